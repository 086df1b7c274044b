"""One wrapper for all environments: flat float32 or uint8 frames, action repeat, action cost."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs.fault import SMALL
from maxinforl.envs.observation import Encoder
from maxinforl.errors import BadInput, RunFailed


class Observe(Protocol):
    """Turns what an environment returned into one fresh array of `space`."""

    @property
    def space(self) -> spaces.Box: ...

    def __call__(self, raw: Any) -> np.ndarray: ...


class AdaptedEnv(gym.Wrapper):
    """Any environment with a rank-1 float32 or HxWxC uint8 observation and a rank-1 float32 action in native units.

    An action is held for `action_repeat` base steps (fewer if the episode ends); the reward is the sum over them, less
    `action_cost` times the Euclidean norm of the native action on every base step. `observe` is called once per step,
    so frames inside a repeat are not rendered.
    """

    name: str = ""

    def __init__(
        self,
        env: gym.Env,
        *,
        action_repeat: int = 1,
        action_cost: float = 0.0,
        observe: Observe | None = None,
        critic_only: str | None = None,
    ):
        super().__init__(env)
        if action_repeat < 1:
            raise BadInput(f"the action repeat is {action_repeat}, but an action lasts at least 1 step")
        if not (math.isfinite(action_cost) and action_cost >= 0):
            raise BadInput(f"the action cost is {action_cost}, but it must be a finite number that is not negative")
        self.action_repeat, self.action_cost = action_repeat, action_cost
        if observe is not None and critic_only:
            raise BadInput("--critic-only names parts of a Dict or Tuple, and this observation is one rendered image")
        self._observe = observe or Encoder(env.observation_space, critic_only)
        self.observation_space = self._observe.space
        self.action_space, self._native = native_actions(env.action_space)

    @property
    def observation_parts(self) -> list[tuple[str, int]]:
        """Names and sizes of the observation's parts, in order."""
        parts = getattr(self._observe, "parts", ())
        return [(part.name, part.size) for part in parts] or [("observation", spaces.flatdim(self.observation_space))]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        raw, info = self.env.reset(seed=seed, options=options)
        return self._observe(raw), info

    def step(self, action):
        raw, *rest = self._repeat(action)
        return self._observe(raw), *rest

    def skip(self, action) -> tuple[float, bool, bool]:
        """A step without an observation: reward, terminated, truncated; no frame is rendered."""
        return self._repeat(action)[1:4]

    def _repeat(self, action) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        native = action if self._native is None else self._native(action)
        total, steps, done = 0.0, 0, False
        raw = terminated = truncated = info = None
        while steps < self.action_repeat and not done:
            # a copy, which takes under 1 us: some environments write into it, and the replay stores this very array
            raw, reward, terminated, truncated, info = self.env.step(np.array(native))
            total += number(reward)
            steps += 1
            done = terminated or truncated
        if self.action_cost:
            total -= steps * self.action_cost * math.sqrt(sum(a * a for a in action.tolist()))
        return raw, total, bool(terminated), bool(truncated), dict(info or (), base_steps=steps)


class NormalizedActions(gym.Wrapper):
    """Takes actions in [-1, 1], clips them and hands on native units."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        assert isinstance(env.action_space, spaces.Box)
        self.to_native = rescale(env.action_space)
        self.action_space = spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)

    def step(self, action):
        return self.env.step(self.to_native(clip(action)))


def clip(action: np.ndarray) -> np.ndarray:
    """A fresh float32 copy within [-1, 1]; np.clip costs five times as much on arrays this small."""
    return np.minimum(np.maximum(np.asarray(action, np.float32), -1), 1)


def within(action: np.ndarray) -> bool:
    """Whether `clip` would change nothing, as with an agent's actions; False for NaN and for large arrays."""
    return action.size <= SMALL and all(-1.0 <= a <= 1.0 for a in action.reshape(-1).tolist())


def rescale(box: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    """The affine map from [-1, 1] onto a bounded float32 box; works on batches."""
    low, high = box.low, box.high
    centre, half = (high / 2 + low / 2).astype(np.float32), (high / 2 - low / 2).astype(np.float32)
    if (centre == 0).all() and (half == 1).all():
        return lambda action: action
    if (centre == 0).all():
        scale = np.diag(half)
        return lambda action: action.dot(
            scale
        )  # the same numbers in a fifth of a ufunc's time, as caches are cold after an update
    if ((centre - half >= low) & (centre + half <= high)).all():
        return lambda action: centre + half * action
    # rounding leads out of some boxes by one unit in the last place
    return lambda action: np.minimum(np.maximum(centre + half * action, low), high)


def number(reward: Any) -> float:
    """The reward as a Python float, or a sentence."""
    if isinstance(reward, (np.ndarray, list, tuple)):  # some environments return an array of one number
        array = np.asarray(reward) if isinstance(reward, np.ndarray) or len(reward) == 1 else np.zeros(0)
        reward = array.reshape(()) if array.size == 1 and array.dtype.kind in "fiub" else reward
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise RunFailed(f"the reward is {' '.join(repr(reward).split())[:80]} and not a number") from None


def native_actions(space: spaces.Space) -> tuple[spaces.Box, Callable | None]:
    """The rank-1 float32 box users act in, and how an action becomes what the environment wants (None: as it is)."""
    if not (isinstance(space, spaces.Box) and space.dtype.kind == "f"):
        raise BadInput(f"the action space is {space}, but the algorithms here need continuous actions (a float Box)")
    if not space.is_bounded():
        raise BadInput(f"the action space {space} has no bounds, but actions in [-1, 1] must map onto some")
    low, high = (np.asarray(b, np.float32).ravel() for b in (space.low, space.high))
    box = spaces.Box(low, high, dtype=np.float32)
    if space.dtype == np.float32 and len(space.shape) == 1:
        return box, None
    # a float32 bound can lie outside a float64 one by a rounding, and some environments assert
    return box, lambda a: np.clip(np.reshape(a, space.shape).astype(space.dtype), space.low, space.high)
