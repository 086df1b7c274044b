"""The DeepMind Control Suite as Gymnasium environments."""

import os
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs import gl
from maxinforl.errors import BadInput, missing_extra, unknown

CAMERA = {"quadruped": 2}


class DMControl(gym.Env):
    """`domain-task` of the suite, its observations concatenated in the order of their spec.

    The time limit truncates; a last step with discount 0 terminates. `reset(seed=...)` reseeds the task, so equal seeds
    give equal episodes. `fast_render` drops shadows; other arguments go to the task.
    """

    def __init__(
        self,
        name: str,
        render_mode: str | None = None,
        size: int = 256,
        camera: int | None = None,
        fast_render: bool = False,
        **task_kwargs: Any,
    ):
        suite, (domain, task) = load_suite(), split(name)
        # a few tasks sample their model when they are built: always the same one
        self.task = suite.load(domain, task, task_kwargs={"random": 0, **task_kwargs})
        self.render_mode, self.size = render_mode, size
        self.dt = self.task.control_timestep()
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / self.dt)}
        self.camera = CAMERA.get(domain, 0) if camera is None else camera
        self._camera = None
        gl.fit(self.task.physics.model, size, shadows=not fast_render)
        cameras = self.task.physics.model.ncam
        if not isinstance(self.camera, int) or self.camera not in range(-1, cameras):
            raise BadInput(f"dmc/{name} has the cameras 0 to {cameras - 1}, and -1 moves freely: {camera!r} is none")
        spec = self.task.observation_spec()
        self.observation_parts = [(name, int(np.prod(part.shape))) for name, part in spec.items()]
        width = sum(size for _, size in self.observation_parts)
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        action = self.task.action_spec()
        # MuJoCo writes "no limit" as 1e10
        low, high = (np.where(np.abs(b) < 1e9, b, b * np.inf) for b in (action.minimum, action.maximum))
        self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32), action.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.task.task.random.seed(seed)
        return flat(self.task.reset().observation), {}

    def step(self, action):
        _, reward, discount, observation = step = self.task.step(action)
        ended = step.last()
        return flat(observation), reward, ended and discount == 0, ended and discount != 0, {}

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gl.rendered(self._frame)

    def _frame(self) -> np.ndarray:
        if self._camera is None:
            from dm_control.mujoco.engine import Camera

            # physics.render would build a scene per frame, half the time of a fast one
            self._camera = Camera(self.task.physics, self.size, self.size, self.camera)
        return self._camera.render()

    def close(self) -> None:
        self.task.close()


def flat(observation: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in observation.values()], dtype=np.float32)


def split(name: str) -> tuple[str, str]:
    """The domain and the task of a name in the suite."""
    if name not in tasks():
        raise unknown("environment", f"dmc/{name}", (f"dmc/{task}" for task in tasks()))
    domain, task = name.split("-")
    return domain, task


def tasks() -> dict[str, str]:
    """Every task of the suite with one line about it."""
    suite = load_suite()
    return {f"{d}-{t}": f"{d}: {summary(getattr(suite, d).SUITE[t])}" for d, t in suite.ALL_TASKS}


def summary(build: Any) -> str:
    line = (build.__doc__ or "").split("\n")[0]
    return line.removeprefix("Returns ").rstrip(" .")


def load_suite() -> ModuleType:
    """The suite, imported after a way to render was chosen."""
    gl.choose_backend()
    try:
        import mujoco
        from dm_control import suite
    except ModuleNotFoundError as error:
        raise missing_extra("dmc", "the DeepMind Control Suite") from error
    except Exception as error:
        backend = os.environ.get("MUJOCO_GL")
        raise BadInput(f"dm_control does not import with MUJOCO_GL={backend} ({error}): {gl.FIX}") from error
    if int(mujoco.__version__.split(".")[0]) >= 4:
        raise BadInput(f"dm_control cannot use MuJoCo {mujoco.__version__}: pip install 'mujoco<4'")
    return suite
