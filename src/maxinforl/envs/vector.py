"""Vector environments that a user built, in each of Gymnasium's autoreset modes."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from maxinforl.envs.observation import Encoder
from maxinforl.envs.pool import EnvPool, Transition, env_name, episode_seed
from maxinforl.envs.wrapper import native_actions, number
from maxinforl.errors import RunFailed

SELF_RESET = "resets itself without a seed (AutoresetMode.DISABLED would not)"


class VectorPool(EnvPool):
    """An `EnvPool` over a `gymnasium.vector.VectorEnv`.

    DISABLED: lanes that ended are reset through `reset_mask`, each with its episode's seed; exact resume works.
    SAME_STEP: the last observation comes from `final_obs`; the environment seeds its own resets.
    NEXT_STEP: the environment spends a lane's next step on the reset. That lane's transition has `valid` False and
    must not be stored; until then `obs` is the last observation, and the action chosen on it goes nowhere.
    """

    def __init__(self, vector: VectorEnv, seed: int = 0, critic_only: str | None = None):
        self.vector = vector
        self.mode = AutoresetMode(vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._observe = Encoder(vector.single_observation_space, critic_only)
        self._resetting = np.zeros(vector.num_envs, bool)
        self._set_up(vector.num_envs, self._observe.space, native_actions(vector.single_action_space)[0], seed)
        if self.mode is AutoresetMode.DISABLED:
            self.seedable = self._check_seeding()
        else:
            self.seedable = False
            warnings.warn(f"{self._name(0)} {SELF_RESET}, so a run cannot be resumed exactly", stacklevel=2)

    def restore(self, episodes: np.ndarray, actions: Sequence[Sequence[np.ndarray] | np.ndarray]) -> np.ndarray:
        lengths = np.array([len(lane) for lane in actions])
        if self.mode is not AutoresetMode.DISABLED:
            return self._restart(episodes, lengths)
        # lanes move together, so the longest history goes first and the others join when theirs is as long as the rest
        start, done = lengths.max() - lengths, np.ones(self.num_envs, bool)
        obs = self._blank()
        for t in range(lengths.max() + 1):
            if (begin := done | (start == t)).any():
                obs = self._begin_lanes(begin, episodes)
            if t == lengths.max():
                break
            action = [lane[t - s] if t >= s else self._idle() for lane, s in zip(actions, start)]
            obs, _, terminated, truncated, _ = self._step_all(np.stack(action), start <= t)
            done = terminated | truncated
            if (done & (start <= t)).any():
                lane = int(np.flatnonzero(done & (start <= t))[0])
                raise RunFailed(f"{self._where(lane)}: it ended during replay, so this episode does not repeat")
        return obs

    def step(self, action: np.ndarray) -> Transition:
        action, valid = self._checked(action), ~self._resetting
        next_obs, reward, terminated, truncated, infos = self._step_all(action, valid)
        terminated, truncated = terminated & valid, truncated & valid
        done = terminated | truncated
        for lane in np.flatnonzero(done).tolist():
            self._end(lane)
        obs = next_obs
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = done
        elif self.mode is AutoresetMode.SAME_STEP:
            next_obs = self._last(obs, done, infos)
        elif done.any():
            obs = self._begin_lanes(done, self.episodes)
        return Transition(action, reward, terminated, truncated, next_obs, obs, valid)

    def close(self) -> None:
        """Nothing: a vector environment is always the user's."""

    def _step_all(
        self, action: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps every lane; counts and reports only the live ones."""
        space = self.vector.action_space
        native = np.clip(self._native(action).reshape(space.shape), space.low, space.high)  # pyright: ignore
        for lane in np.flatnonzero(live).tolist():
            self._length[lane] += 1
        raw, rewards, terminated, truncated, infos = self._call(0, self.vector.step, native.astype(space.dtype))
        obs = self._encode(raw)
        reward = np.zeros(self.num_envs, np.float32)
        for lane in np.flatnonzero(live).tolist():
            value = self._call(lane, number, rewards[lane])
            self._earn(lane, value)
            reward[lane] = value
        return obs, reward, np.array(terminated, bool), np.array(truncated, bool), infos

    def _begin_lanes(self, mask: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        for lane in np.flatnonzero(mask).tolist():
            self.episodes[lane], self._return[lane], self._length[lane] = episodes[lane], 0.0, 0
        seeds = [episode_seed(self.seed, lane, int(episode)) for lane, episode in enumerate(episodes)]
        options = {} if mask.all() else {"options": {"reset_mask": mask.copy()}}
        return self._encode(self._call(0, self.vector.reset, seed=seeds, **options)[0])

    def _restart(self, episodes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if lengths.any():
            raise RunFailed(f"{self._name(0)} {SELF_RESET}, so its episodes cannot be replayed")
        self.episodes[:] = episodes
        self._return, self._length = [0.0] * self.num_envs, [0] * self.num_envs
        self._resetting = np.zeros(self.num_envs, bool)
        return self._encode(self._call(0, self.vector.reset, seed=episode_seed(self.seed, 0, int(episodes.sum())))[0])

    def _last(self, obs: np.ndarray, done: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
        """The observations with those that an episode ended on put back."""
        if not done.any():
            return obs
        if "final_obs" not in infos:
            raise RunFailed(f"{self._name(0)} resets in the same step but its infos hold no 'final_obs'")
        last = obs.copy()
        for lane in np.flatnonzero(done).tolist():
            last[lane] = self._call(lane, self._observe, infos["final_obs"][lane])
        self._check_obs(last)
        return last

    def _encode(self, raw: Any) -> np.ndarray:
        lanes = iterate(self.vector.observation_space, raw)
        obs = np.stack([self._call(lane, self._observe, part) for lane, part in enumerate(lanes)])
        self._check_obs(obs)
        return obs

    def _idle(self) -> np.ndarray:
        return np.zeros(self.action_space.shape, np.float32)

    def _name(self, lane: int) -> str:
        return env_name(self.vector)
