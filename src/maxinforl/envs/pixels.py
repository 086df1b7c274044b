"""Rendered frames as observations."""

from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs import gl
from maxinforl.errors import EXTRAS, BadInput, RunFailed


class Frames:
    """Observes what the environment renders, as size x size x 3 uint8."""

    def __init__(self, env: gym.Env, size: int):
        self.env, self.size = env, size
        self.space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def __call__(self, raw: Any) -> np.ndarray:
        frame = picture(self.env)
        return frame if frame.shape[:2] == (self.size, self.size) else resize(frame, self.size)


def picture(env: gym.Env) -> np.ndarray:
    """What an environment renders, as a fresh uint8 HxWx3 array, or a sentence that says why there is none."""
    try:
        mujoco = hasattr(env.unwrapped, "mujoco_renderer")  # Gymnasium's own, which names no package that it lacks
        frame = gl.rendered(env.render) if mujoco else env.render()
    except gym.error.DependencyNotInstalled as error:
        missing = "pygame is not installed, run `pip install pygame`" if "pygame" in str(error) else str(error)
        raise BadInput(f"this environment cannot render: {missing}", EXTRAS) from error
    if frame is None:
        raise BadInput("this environment renders nothing: its render() must give a frame in the mode rgb_array")
    frame = np.array(frame)
    if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
        raise RunFailed(f"render gave {frame.dtype} of shape {frame.shape} and not a uint8 HxWx3 frame")
    return frame


def resize(frame: np.ndarray, size: int) -> np.ndarray:
    """Each new pixel is the mean over the area it covers; the aspect ratio is not kept."""
    height, width, channels = frame.shape
    rows = _weights(height, size) @ frame.reshape(height, -1).astype(np.float32)
    mean = _weights(width, size) @ rows.reshape(size, width, channels)
    return (mean + 0.5).astype(np.uint8)


@lru_cache(16)
def _weights(length: int, size: int) -> np.ndarray:
    """Row i: how much each of `length` pixels counts in the i-th of `size` equal shares."""
    edge = np.linspace(0, length, size + 1)[:, None]
    pixel = np.arange(length)
    overlap = np.minimum(edge[1:], pixel + 1) - np.maximum(edge[:-1], pixel)
    return (np.maximum(overlap, 0) * size / length).astype(np.float32)
