"""MuJoCo set-up before its import: off-screen rendering, and warnings sent to `logging`."""

import ctypes
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from maxinforl.errors import BadInput, RunFailed

FIX = "on Debian install libegl1 and libgl1, or install libosmesa6 and set MUJOCO_GL=osmesa"
BACKENDS = {"egl": ("libEGL.so.1", "libGL.so.1"), "osmesa": ("libOSMesa.so.8",)}


def choose_backend() -> None:
    """Sets MUJOCO_GL to the first back end whose libraries load; a value set by the user is kept."""
    if "MUJOCO_GL" in os.environ:
        return
    for backend, libraries in BACKENDS.items():
        if all(map(loads, libraries)):
            os.environ["MUJOCO_GL"] = backend
            return


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def log_warnings(mujoco: Any) -> None:
    """Sends MuJoCo's warnings to `logging`; by itself it writes MUJOCO_LOG.TXT into the working directory."""
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(logging.getLogger("maxinforl.mujoco").warning)


def rendered(render: Callable[[], Any]) -> np.ndarray:
    """A fresh frame, or a sentence that names what to install."""
    try:
        return np.array(render())
    except Exception as error:
        what = f"{type(error).__name__}: {error}".split("\n")[0]
        raise RunFailed(f"rendering failed ({what}): {FIX}") from error


def raised(error: Exception) -> bool:
    """Whether an error comes out of OpenGL, or out of MuJoCo's choice of it."""
    inside = any("/OpenGL/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
    return inside or "MUJOCO_GL" in str(error)


def check_camera(name: str, env: Any, args: Mapping[str, Any]) -> None:
    """Refuses a camera that a MuJoCo task of Gymnasium does not have: MuJoCo would end the process, or take another."""
    model: Any = getattr(env.unwrapped, "model", None)
    if not {"camera_id", "camera_name"} & set(args) or not hasattr(model, "ncam"):
        return
    cameras = [model.camera(i).name for i in range(model.ncam)]
    given = (args.get("camera_id", -1), range(-1, model.ncam)), (args.get("camera_name"), (None, *cameras))
    for wrong in (camera for camera, there in given if camera not in there):
        listed = ", ".join(f"{i} ({camera})" for i, camera in enumerate(cameras)) or "none of its own"
        raise BadInput(f"{name} has no camera {wrong!r}: it has {listed}, and -1 moves freely")


def fit(model: Any, size: int, *, shadows: bool) -> None:
    """A framebuffer as large as the picture, which a software renderer clears and resolves for every frame."""
    model.vis.global_.offwidth = model.vis.global_.offheight = size
    if not shadows:
        model.vis.quality.shadowsize = 0
