"""N environments behind one `step`: seeded episodes, true last observations, one sentence for every fault."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs.fault import EnvCaller, Fault
from maxinforl.envs.worker import Worker
from maxinforl.envs.wrapper import clip, rescale, within
from maxinforl.errors import BadInput, RunFailed
from maxinforl.transition import Transition


class Finished(NamedTuple):
    """An episode that ended; `length` counts agent steps."""

    lane: int
    ret: float
    length: int


def episode_seed(seed: int, lane: int, episode: int) -> int:
    """The seed in [0, 2**31) that an episode is reset with."""
    return int(np.random.SeedSequence((seed, lane, episode)).generate_state(1)[0] >> 1)


class EnvPool(EnvCaller):
    """Steps its lanes (environments), in sequence in this process or in parallel in workers, with a seed per episode.

    `envs` are environments as `maxinforl.envs.make` returns them (native actions); the pool takes actions in [-1, 1].
    `episodes` holds the index of the current episode of each lane; the caller empties `finished`. If `seedable` is
    False, episodes cannot be repeated and `restore` can only begin new ones.

    An environment that raises, hangs in its worker or returns non-finite numbers is a fault. If `remake` is given, the
    open episode is cut (see `Transition.valid`), a new environment continues with the next episode, `faults` is
    incremented and `report_fault` called, up to `max_faults` times. Faults before the first successful step are errors.

    `close` closes the environments unless they are `borrowed`: those that a user made are the user's to close.
    """

    def __init__(
        self,
        envs: Iterable[gym.Env],
        seed: int = 0,
        *,
        remake: Callable[[], gym.Env] | None = None,
        max_faults: int = 0,
        borrowed: bool = False,
    ):
        self.envs, self.remake, self.max_faults, self.borrowed = list(envs), remake, max_faults, borrowed
        self._set_up(len(self.envs), self.envs[0].observation_space, self.envs[0].action_space, seed)
        self.seedable = self._check_seeding()

    def _set_up(self, lanes: int, observation: spaces.Space, action: spaces.Space, seed: int) -> None:
        super().__init__()
        assert isinstance(observation, spaces.Box) and isinstance(action, spaces.Box)
        self.num_envs, self.seed = lanes, seed
        self.observation_space, self.action_space = observation, action
        self.episodes, self.faults = np.zeros(lanes, np.int64), 0
        self.finished: list[Finished] = []
        self._proven = False  # whether any step succeeded
        self._return, self._length = [0.0] * lanes, [0] * lanes
        self._native = rescale(action)
        self._all, self._none = np.ones(lanes, bool), np.zeros(lanes, bool)
        for shared in (self._all, self._none):  # every ordinary transition refers to these two arrays
            shared.setflags(write=False)

    def reset(self) -> np.ndarray:
        """Starts episode 0 in every lane."""
        return self.restore(np.zeros(self.num_envs, np.int64), [()] * self.num_envs)

    def restore(self, episodes: np.ndarray, actions: Sequence[Sequence[np.ndarray] | np.ndarray]) -> np.ndarray:
        """Begins the given episode in each lane, replays the given actions in it and returns the observations."""
        self._proven = self._proven or bool(episodes.any()) or any(len(lane) for lane in actions)
        obs = self._blank()
        for lane in range(self.num_envs):
            begin = self._begin if len(actions[lane]) else self._start
            obs[lane] = begin(lane, int(episodes[lane]))
            if len(actions[lane]):
                obs[lane] = self._replay_lane(lane, actions[lane])
        return obs

    def _replay_lane(self, lane: int, actions: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Replays actions; only the last observation is computed, and rendered."""
        obs = None
        for left, action in zip(range(len(actions) - 1, -1, -1), actions):
            native = self._native(action)
            if left:
                self._length[lane] += 1
                reward, *ended = self._call(lane, self.envs[lane].skip, native)  # type: ignore[attr-defined]
                self._earn(lane, reward)
            else:
                obs, _, *ended = self._step_lane(lane, native)
            if any(ended):
                raise RunFailed(f"{self._where(lane)}: it ended during replay, so this episode does not repeat")
        assert obs is not None
        return obs

    def step(self, action: np.ndarray) -> Transition:
        """Steps every lane.

        Args:
            action: [lanes, actions] in [-1, 1].
        """
        action = self._checked(action)
        native, lanes = self._native(action), range(self.num_envs)
        next_obs, reward = self._blank(), [0.0] * self.num_envs
        terminated, truncated, faults = [False] * self.num_envs, [False] * self.num_envs, {}
        for lane in lanes:
            if isinstance(env := self.envs[lane], Worker):
                env.send(native[lane])
        for lane in lanes:
            try:
                next_obs[lane], reward[lane], terminated[lane], truncated[lane] = self._step_lane(lane, native[lane])
            except Fault as fault:
                faults[lane], truncated[lane] = fault, True
        self._proven = self._proven or len(faults) < self.num_envs
        earned = np.array(reward, np.float32)
        if not (any(terminated) or any(truncated)):
            return Transition(action, earned, self._none, self._none, next_obs, next_obs, self._all)
        obs, valid = self._restarted(next_obs, terminated, truncated, faults)
        return Transition(action, earned, np.array(terminated), np.array(truncated), next_obs, obs, valid)

    def _restarted(
        self, last: np.ndarray, terminated: list[bool], truncated: list[bool], faults: dict[int, Fault]
    ) -> tuple[np.ndarray, np.ndarray]:
        """First observations of new episodes where one ended or failed, and which lanes did not fail."""
        obs, valid = last.copy(), np.array([lane not in faults for lane in range(self.num_envs)])
        for lane in range(self.num_envs):
            if lane in faults:
                last[lane] = obs[lane] = self._repaired(lane, faults[lane])
            elif terminated[lane] or truncated[lane]:
                self._end(lane)
                obs[lane] = self._start(lane, int(self.episodes[lane]))
        return obs, valid

    def close(self) -> None:
        for lane, env in enumerate([] if self.borrowed else self.envs):
            with suppress(Fault):
                self._call(lane, env.close)

    def _start(self, lane: int, episode: int) -> np.ndarray:
        """The first observation of an episode, or of a later one if the environment fails."""
        try:
            return self._begin(lane, episode)
        except Fault as fault:
            return self._repaired(lane, fault)

    def _begin(self, lane: int, episode: int) -> np.ndarray:
        self.episodes[lane], self._return[lane], self._length[lane] = episode, 0.0, 0
        obs, _ = self._call(lane, self.envs[lane].reset, seed=episode_seed(self.seed, lane, episode))
        self._check_lane(lane, obs)
        return obs

    def _repaired(self, lane: int, fault: Fault) -> np.ndarray:
        """The first observation of the next episode, in a new environment."""
        while True:
            self._allow(fault)
            if self._length[lane] > 1:
                self._length[lane] -= 1  # the failed step does not count
                self.finished.append(Finished(lane, self._return[lane], self._length[lane]))
            self.episodes[lane] += 1
            try:
                self._renew(lane)
                return self._begin(lane, int(self.episodes[lane]))
            except Fault as again:
                fault = again

    def _allow(self, fault: Fault) -> None:
        """Counts and reports a fault; raises it if the run cannot continue."""
        self.faults += 1
        if self.remake is None or not self._proven or self.max_faults == 0:
            raise fault
        if self.faults > self.max_faults:
            raise RunFailed(f"{fault}; one fault more than --max-faults {self.max_faults} allows") from fault
        self.report_fault(
            f"fault {self.faults} of at most {self.max_faults}: {fault}; its episode was cut and a new one begins"
        )

    def _renew(self, lane: int) -> None:
        assert self.remake is not None
        self._length[lane] = 0
        with suppress(Fault):  # a broken environment may fail to close
            self._call(lane, self.envs[lane].close)
        self.envs[lane] = env = self._call(lane, self.remake)
        if (env.observation_space.shape, env.action_space) != (self.observation_space.shape, self.action_space):
            raise RunFailed(f"{self._where(lane)}: the new environment has other observations or actions")

    def _step_lane(self, lane: int, native: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self._length[lane] += 1
        obs, reward, terminated, truncated, _ = self._call(lane, self.envs[lane].step, native)
        self._check_lane(lane, obs)
        self._earn(lane, reward)
        return obs, reward, terminated, truncated

    def _earn(self, lane: int, reward: float) -> None:
        self._check_reward(lane, reward)
        self._return[lane] += reward

    def _end(self, lane: int) -> None:
        self.finished.append(Finished(lane, self._return[lane], self._length[lane]))
        self.episodes[lane] += 1
        self._return[lane], self._length[lane] = 0.0, 0

    def _where(self, lane: int) -> str:
        step = self._length[lane]
        place = f"episode {self.episodes[lane]}, " + (f"step {step}" if step else "reset")
        return f"environment {lane} ({self._name(lane)}), {place}"

    def _name(self, lane: int) -> str:
        return env_name(self.envs[lane])

    def _blank(self) -> np.ndarray:
        return np.empty((self.num_envs, *self.observation_space.shape), self.observation_space.dtype)

    def _checked(self, action: np.ndarray) -> np.ndarray:
        action = np.array(action, np.float32)
        if action.shape != (self.num_envs, *self.action_space.shape):
            raise BadInput(f"actions have shape {action.shape}, but {self.num_envs} of {self.action_space.shape} fit")
        if within(action):
            return action
        action = clip(action)
        if not np.isfinite(action).all():
            raise RunFailed(f"{self._where(0)}: the action that follows is not finite ({action.tolist()})")
        return action

    def _check_obs(self, obs: np.ndarray) -> None:
        for lane in range(self.num_envs):
            self._check_lane(lane, obs[lane])

    def _check_seeding(self) -> bool:
        """Whether two resets with the same seed agree; warns if not."""
        if np.array_equal(self.reset(), self.reset()):
            return True
        warnings.warn(f"{self._name(0)}: reset ignores its seed, so a run cannot be resumed exactly", stacklevel=3)
        return False


def env_name(env: Any) -> str:
    """The name of an environment for messages."""
    if getattr(env, "name", None):
        return env.name
    return env.spec.id if getattr(env, "spec", None) else type(env.unwrapped).__name__
