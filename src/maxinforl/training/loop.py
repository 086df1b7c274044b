"""The host loop: environments step in NumPy, everything else is one XLA dispatch per agent step."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box

from maxinforl.core.types import Clock, Spec
from maxinforl.core.update import Program, TrainState
from maxinforl.envs import EnvPool
from maxinforl.errors import BadInput, RunFailed
from maxinforl.explore import Strategy
from maxinforl.replay import Replay, row_bytes
from maxinforl.settings import Settings, check_updates
from maxinforl.training import guard
from maxinforl.training.log import Window

SHORTEST = 20  # episodes at least this long lose nothing to the row that each one's end takes


def rows_for(steps: int, settings: Settings) -> int:
    """Rows per environment for this many transitions in all, up to the capacity."""
    wanted = steps + steps // SHORTEST + 64 * settings.num_envs
    return math.ceil(min(wanted, settings.capacity or wanted) / settings.num_envs) + 8


def available_memory() -> int | None:
    """Bytes that can be had, where the system says."""
    try:
        with open("/proc/meminfo") as lines:
            table = dict(line.split(":") for line in lines)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def check_memory(settings: Settings, steps: int, observation: Box, action: Box) -> int:
    """Bytes the replay will take; refused before anything is taken when they are not there."""
    frame = row_bytes(observation.shape, observation.dtype.itemsize, action.shape[0])
    needed, there = settings.num_envs * rows_for(steps, settings) * frame, available_memory()
    if there is not None and needed > 0.9 * there:
        raise BadInput(
            f"the replay needs {needed / 1e9:.1f} GB and {there / 1e9:.1f} GB are free: lower --capacity or "
            "--image-size"
        )
    return needed


@dataclass
class Trainer:
    """An agent in its environments: `advance` is one agent step of every environment."""

    strategy: Strategy
    settings: Settings
    pool: EnvPool
    total: int  # transitions that schedules plan for

    def __post_init__(self):
        self.stack = self.settings.frame_stack if len(self.pool.observation_space.shape) == 3 else 1
        self.program = Program(
            self.strategy,
            spec_of(self.pool, self.stack),
            self.settings.batch_size,
            check_updates(self.settings),
            skip_nan=self.settings.on_nan == "skip",
        )
        self.step, self.window = 0, Window()
        self.action: np.ndarray | None = None
        self.state = self.program.init(jnp.uint32(self.settings.seed), self.blank(self.total), self.total)

    @property
    def env_step(self) -> int:
        return self.step * (self.settings.action_repeat or 1)

    @property
    def evaluation(self) -> Callable[[np.ndarray], np.ndarray]:
        """The deterministic policy on a batch of observations."""
        return lambda obs: self.program.act(self.state.agent, obs, self.state.clock)

    def blank(self, steps: int) -> Replay:
        obs, action = self.pool.observation_space, self.pool.action_space
        check_memory(self.settings, steps, obs, action)
        rows = rows_for(steps, self.settings)
        return Replay.create(self.pool.num_envs, rows, obs.shape, obs.dtype, action.shape[0], self.stack)

    def make_room(self, steps: int) -> None:
        """Rows for `steps` more transitions, where the capacity allows and nothing was overwritten yet."""
        replay = self.state.replay.grow(rows_for(self.step + steps, self.settings))
        self.state = TrainState(self.state.agent, replay, self.state.clock, self.state.seed)

    def replan(self, steps: int | None) -> None:
        """Room and schedules for another number of transitions than the run was begun with."""
        if steps is not None:
            self.make_room(steps - self.step)
            self.total, clock = steps, self.state.clock._replace(total=jnp.int32(steps))
            self.state = TrainState(self.state.agent, self.state.replay, clock, self.state.seed)

    def adopt(self, agent: Any, clock: Clock) -> None:
        """Continues with an agent that was loaded, on an empty replay."""
        self.state = TrainState(agent, self.state.replay, clock._replace(step=self.state.clock.step), self.state.seed)

    def begin(self) -> None:
        uniform = self.step < (self.settings.learning_starts or 0)
        self.state, action = self.program.begin(self.state, self.pool.reset(), uniform)
        self.action = np.array(action)

    def advance(self) -> np.ndarray:
        """Steps the environments, then inserts, learns and chooses the next actions; returns where they are now."""
        if self.action is None:
            self.begin()
        assert self.action is not None
        transition = self.pool.step(self.action)
        self.step += self.pool.num_envs
        if self.step < (self.settings.learning_starts or 0):
            self.state, action = self.program.collect(self.state, transition)
        else:
            self.state, action, metrics = self.program.step(self.state, transition)
            guard.check(self.program, self.state, np.array(metrics), np.array(action))
            self.window.add(np.array(metrics))
        self.action = np.array(action)
        for _, ret, length in self.pool.finished:
            self.window.episode(ret, length)
        self.pool.finished.clear()
        return transition.obs

    def log_line(self) -> dict[str, float]:
        """Everything worth knowing since the last line; a number that is not finite ends the run."""
        line = self.window.drain(self.program.metric_names)
        for name, value in line.items():
            if not math.isfinite(value):
                raise RunFailed(f"{name} is {value} at step {self.step}: lower the learning rate or scale the reward")
        return {"step": self.step, "env_step": self.env_step, "rollout/faults": self.pool.faults} | line


def spec_of(pool: EnvPool, stack: int) -> Spec:
    shape = pool.observation_space.shape
    return Spec((*shape[:-1], shape[-1] * stack) if len(shape) == 3 else shape, pool.action_space.shape[0])


@contextmanager
def signals() -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM has asked to stop; a second one ends the process at once."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise SystemExit(75)
        asked.append(number)

    try:
        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nothing can be caught here
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Every:
    """True when a counter has passed a multiple of `period` since the last step of `stride`."""

    def __init__(self, period: int, stride: int):
        self.period, self.stride = period, stride

    def __call__(self, step: int) -> bool:
        return step // self.period > (step - self.stride) // self.period


class Stopwatch:
    def __init__(self):
        self.began = self.last = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def lap(self) -> float:
        now = time.perf_counter()
        lap, self.last = now - self.last, now
        return lap


def agent_arrays(state: Any) -> dict[str, np.ndarray]:
    """Every leaf by the path that leads to it, copied from the device."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf) for path, leaf in leaves}


def agent_from(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """A tree shaped as `like` filled with saved arrays, or a sentence about what does not fit."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise BadInput(f"the saved agent does not fit its configuration: '{odd}' is on one side only")
    for name, (_, leaf) in zip(names, leaves):
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise BadInput(f"the saved agent does not fit its configuration: '{name}' has shape {arrays[name].shape}")
    return tree.unflatten([jnp.array(arrays[name]) for name in names])
