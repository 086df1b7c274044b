"""Evaluation apart from training: own seeded environments, deterministic actions, every episode a lane of one act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from maxinforl.envs import EnvCaller, Fault, env_name, episode_seed
from maxinforl.envs.wrapper import rescale

TRIES = 3  # environments made anew in one evaluation before it is given up
EVALUATION = 1_000_003  # keeps the seeds of evaluation apart from those of training


class Evaluation(NamedTuple):
    returns: np.ndarray
    lengths: np.ndarray


class Stack:
    """The last frames of every lane on the channel axis, oldest first; a reset fills them with the first."""

    def __init__(self, obs: np.ndarray, depth: int):
        self.channels = obs.shape[-1]
        self.frames = np.concatenate([obs] * depth, -1) if depth > 1 else obs

    def fill(self, lane: int, frame: np.ndarray) -> None:
        self.frames[lane] = np.concatenate([frame] * (self.frames.shape[-1] // frame.shape[-1]), -1)

    def push(self, lane: int, frame: np.ndarray) -> None:
        if self.frames.shape[-1] == frame.shape[-1]:
            self.frames[lane] = frame
        else:
            self.frames[lane] = np.concatenate([self.frames[lane][..., self.channels :], frame], -1)


class Evaluator(EnvCaller):
    """Plays one episode in each of its environments; where one breaks, `makers` make it anew and its episode begins
    again, `TRIES` times in an evaluation."""

    def __init__(
        self, envs: list[gym.Env], seed: int, stack: int = 1, makers: Sequence[Callable[[], gym.Env]] | None = None
    ):
        super().__init__()
        self.envs, self.seed, self.stack, self.makers = envs, seed, stack, makers
        self.native = rescale(envs[0].action_space)  # type: ignore[arg-type]

    @property
    def fps(self) -> float:
        """Frames per second of real time, one frame per agent step, where the environment says."""
        return float(self.envs[0].metadata.get("render_fps") or 30) / getattr(self.envs[0], "action_repeat", 1)

    def __call__(
        self, act: Callable[[np.ndarray], np.ndarray], index: int, watch: Callable | None = None
    ) -> Evaluation:
        """Evaluation number `index`: its episodes have seeds of their own. `watch(env)` sees lane 0 after each step."""
        self._tries = TRIES
        stack = Stack(np.stack([self._begin(lane, index) for lane in range(len(self.envs))]), self.stack)
        returns, lengths = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.int64)
        running = list(range(len(self.envs)))
        while running:
            actions = self.native(np.array(act(stack.frames.copy())))
            for lane in list(running):
                try:
                    obs, reward, *ended, _ = self._call(lane, self.envs[lane].step, actions[lane])
                    self._check_lane(lane, obs)
                    self._check_reward(lane, reward)
                except Fault as fault:
                    stack.fill(lane, self._again(lane, index, fault))
                    returns[lane], lengths[lane] = 0.0, 0
                    continue
                stack.push(lane, obs)
                returns[lane] += float(reward)
                lengths[lane] += 1
                if watch is not None and lane == 0:
                    self._call(0, watch, self.envs[0])
                if any(ended):
                    running.remove(lane)
        return Evaluation(returns, lengths)

    def look(self, watch: Callable) -> None:
        """Shows `watch` how an episode begins."""
        self._tries = 0
        self._begin(0, 0)
        self._call(0, watch, self.envs[0])

    def _begin(self, lane: int, index: int) -> np.ndarray:
        try:
            obs, _ = self._call(lane, self.envs[lane].reset, seed=episode_seed(self.seed + EVALUATION, lane, index))
            self._check_lane(lane, obs)
            return obs
        except Fault as fault:
            return self._again(lane, index, fault)

    def _again(self, lane: int, index: int, fault: Fault) -> np.ndarray:
        """The first observation of the same episode in an environment made anew."""
        if self.makers is None:
            raise fault
        if self._tries == 0:
            raise Fault(f"{fault}, one fault more than the {TRIES} that an evaluation survives") from fault
        self._tries -= 1
        self.report_fault(f"{fault}; it was made anew, and its episode begins again")
        with suppress(Fault):
            self._call(lane, self.envs[lane].close)
        self.envs[lane] = self._call(lane, self.makers[lane])
        return self._begin(lane, index)

    def _where(self, lane: int) -> str:
        return f"environment {lane} of the evaluation ({env_name(self.envs[lane])})"

    def close(self) -> None:
        for lane, env in enumerate(self.envs):
            with suppress(Fault):
                self._call(lane, env.close)
