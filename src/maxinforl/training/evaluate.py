"""Evaluation apart from training: own seeded environments, deterministic actions, every episode a lane of one act."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from maxinforl.envs import episode_seed
from maxinforl.envs.wrapper import rescale

EVALUATION = 1_000_003  # keeps the seeds of evaluation apart from those of training


class Evaluation(NamedTuple):
    returns: np.ndarray
    lengths: np.ndarray


class Stack:
    """The last frames of every lane on the channel axis, oldest first; a reset fills them with the first."""

    def __init__(self, obs: np.ndarray, depth: int):
        self.channels = obs.shape[-1]
        self.frames = np.concatenate([obs] * depth, -1) if depth > 1 else obs

    def push(self, lane: int, frame: np.ndarray) -> None:
        if self.frames.shape[-1] == frame.shape[-1]:
            self.frames[lane] = frame
        else:
            self.frames[lane] = np.concatenate([self.frames[lane][..., self.channels :], frame], -1)


class Evaluator:
    """Plays one episode in each of its environments."""

    def __init__(self, envs: list[gym.Env], seed: int, stack: int = 1):
        self.envs, self.seed, self.stack = envs, seed, stack
        self.native = rescale(envs[0].action_space)  # type: ignore[arg-type]

    @property
    def fps(self) -> float:
        """Frames per second of real time, one frame per agent step, where the environment says."""
        return float(self.envs[0].metadata.get("render_fps") or 30) / getattr(self.envs[0], "action_repeat", 1)

    def __call__(
        self, act: Callable[[np.ndarray], np.ndarray], index: int, watch: Callable | None = None
    ) -> Evaluation:
        """Evaluation number `index`: its episodes have seeds of their own. `watch(env)` sees lane 0 after each step."""
        resets = [e.reset(seed=episode_seed(self.seed + EVALUATION, i, index))[0] for i, e in enumerate(self.envs)]
        stack = Stack(np.stack(resets), self.stack)
        returns, lengths = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.int64)
        running = list(range(len(self.envs)))
        while running:
            actions = self.native(np.array(act(stack.frames.copy())))
            for lane in list(running):
                obs, reward, terminated, truncated, _ = self.envs[lane].step(actions[lane])
                stack.push(lane, obs)
                returns[lane] += float(reward)
                lengths[lane] += 1
                if watch is not None and lane == 0:
                    watch(self.envs[0])
                if terminated or truncated:
                    running.remove(lane)
        return Evaluation(returns, lengths)

    def close(self) -> None:
        for env in self.envs:
            env.close()
