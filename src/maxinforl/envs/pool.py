"""N environments behind one `step`: seeded episodes, true last observations, and sentences for what misbehaves."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs.wrapper import clip, rescale
from maxinforl.errors import BadInput, RunFailed
from maxinforl.replay import Transition


class Finished(NamedTuple):
    """An episode that ended; `length` counts agent steps."""

    lane: int
    ret: float
    length: int


def episode_seed(seed: int, lane: int, episode: int) -> int:
    """The seed in [0, 2**31) that an episode is reset with."""
    return int(np.random.SeedSequence((seed, lane, episode)).generate_state(1)[0] >> 1)


class EnvPool:
    """Steps its lanes one after the other in this process; every episode has a seed of its own.

    `envs` are environments as `maxinforl.envs.make` returns them (native actions); the pool takes actions in [-1, 1].
    `episodes` holds the index of the episode each lane is in; the caller drains `finished`. Where `seedable` is False
    an episode cannot be repeated, so `restore` can only begin new ones.
    """

    def __init__(self, envs: Iterable[gym.Env], seed: int = 0):
        self.envs = list(envs)
        self._set_up(len(self.envs), self.envs[0].observation_space, self.envs[0].action_space, seed)
        self.seedable = self._check_seeding()

    def _set_up(self, lanes: int, observation: spaces.Space, action: spaces.Space, seed: int) -> None:
        assert isinstance(observation, spaces.Box) and isinstance(action, spaces.Box)
        self.num_envs, self.seed = lanes, seed
        self.observation_space, self.action_space = observation, action
        self.episodes = np.zeros(lanes, np.int64)
        self.finished: list[Finished] = []
        self._return, self._length = [0.0] * lanes, [0] * lanes
        self._native = rescale(action)
        self._floats = observation.dtype == np.float32
        self._valid = np.ones(lanes, bool)
        self._valid.setflags(write=False)  # every ordinary transition shares it

    def reset(self) -> np.ndarray:
        """Starts episode 0 in every lane."""
        return self.restore(np.zeros(self.num_envs, np.int64), [()] * self.num_envs)

    def restore(self, episodes: np.ndarray, actions: Sequence[Sequence[np.ndarray] | np.ndarray]) -> np.ndarray:
        """Begins the given episode in each lane and plays the given actions in it; returns what to act on next."""
        obs = self._blank()
        for lane in range(self.num_envs):
            obs[lane] = self._begin(lane, int(episodes[lane]))
            for action in actions[lane]:
                obs[lane], _, *ended = self._step_lane(lane, self._native(action))
                if any(ended):
                    raise RunFailed(f"{self._where(lane)}: it ended while replayed, so this episode does not repeat")
        self._check_obs(obs)
        return obs

    def step(self, action: np.ndarray) -> Transition:
        """One action in [-1, 1] for every lane."""
        action = self._checked(action)
        native = self._native(action)
        next_obs, reward = self._blank(), np.empty(self.num_envs, np.float32)
        terminated, truncated = [False] * self.num_envs, [False] * self.num_envs
        for lane in range(self.num_envs):
            next_obs[lane], reward[lane], terminated[lane], truncated[lane] = self._step_lane(lane, native[lane])
        self._check_obs(next_obs)
        obs = next_obs
        if any(terminated) or any(truncated):
            obs = self._restarted(next_obs, terminated, truncated)
        return Transition(action, reward, np.array(terminated), np.array(truncated), next_obs, obs, self._valid)

    def _restarted(self, obs: np.ndarray, terminated: list[bool], truncated: list[bool]) -> np.ndarray:
        """The observations with those of new episodes in the lanes that ended."""
        obs = obs.copy()
        for lane in range(self.num_envs):
            if terminated[lane] or truncated[lane]:
                self._end(lane)
                obs[lane] = self._begin(lane, int(self.episodes[lane]))
        self._check_obs(obs)
        return obs

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, lane: int, episode: int) -> np.ndarray:
        self.episodes[lane], self._return[lane], self._length[lane] = episode, 0.0, 0
        return self._call(lane, self.envs[lane].reset, seed=episode_seed(self.seed, lane, episode))[0]

    def _step_lane(self, lane: int, native: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self._length[lane] += 1
        obs, reward, terminated, truncated, _ = self._call(lane, self.envs[lane].step, native)
        self._earn(lane, reward)
        return obs, reward, terminated, truncated

    def _earn(self, lane: int, reward: float) -> None:
        if not math.isfinite(reward):
            raise RunFailed(f"{self._where(lane)}: the reward is {reward}")
        self._return[lane] += reward

    def _end(self, lane: int) -> None:
        self.finished.append(Finished(lane, self._return[lane], self._length[lane]))
        self.episodes[lane] += 1
        self._return[lane], self._length[lane] = 0.0, 0

    def _call(self, lane: int, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Calls into an environment; whatever it raises becomes a sentence that says where."""
        try:
            return function(*args, **kwargs)
        except RunFailed as error:
            raise RunFailed(f"{self._where(lane)}: {error}") from error
        except Exception as error:
            raise RunFailed(f"{self._where(lane)} raised {type(error).__name__}: {error}") from error

    def _where(self, lane: int) -> str:
        step = self._length[lane]
        place = f"episode {self.episodes[lane]}, " + (f"step {step}" if step else "reset")
        return f"environment {lane} ({self._name(lane)}), {place}"

    def _name(self, lane: int) -> str:
        return env_name(self.envs[lane])

    def _blank(self) -> np.ndarray:
        return np.empty((self.num_envs, *self.observation_space.shape), self.observation_space.dtype)

    def _checked(self, action: np.ndarray) -> np.ndarray:
        action = clip(action)
        if action.shape != (self.num_envs, *self.action_space.shape):
            raise BadInput(f"actions have shape {action.shape}, but {self.num_envs} of {self.action_space.shape} fit")
        if not np.isfinite(action).all():
            raise RunFailed(f"{self._where(0)}: the action that follows is not finite ({action.tolist()})")
        return action

    def _check_obs(self, obs: np.ndarray) -> None:
        if self._floats and not np.isfinite(obs).all():
            lane, entry = (int(i) for i in np.argwhere(~np.isfinite(obs))[0])
            raise RunFailed(f"{self._where(lane)}: the observation is {obs[lane, entry]} at entry {entry}")

    def _check_seeding(self) -> bool:
        """Whether two resets with one seed begin alike; warns where they do not."""
        if np.array_equal(self.reset(), self.reset()):
            return True
        warnings.warn(f"{self._name(0)}: reset ignores its seed, so a run cannot be resumed exactly", stacklevel=3)
        return False


def env_name(env: Any) -> str:
    """What to call an environment in a sentence."""
    if getattr(env, "name", None):
        return env.name
    return env.spec.id if getattr(env, "spec", None) else type(env.unwrapped).__name__
