"""The host loop: environments step in NumPy, everything else is one XLA dispatch per agent step."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box

from maxinforl.core.program import Packed, Program
from maxinforl.core.types import Clock, Spec
from maxinforl.core.update import TrainState
from maxinforl.envs import EnvPool
from maxinforl.envs.fault import finite
from maxinforl.errors import BadInput, RunFailed
from maxinforl.explore import Strategy
from maxinforl.files import shown
from maxinforl.replay import Replay, Transition, row_bytes
from maxinforl.settings import Settings, check_updates
from maxinforl.training import guard
from maxinforl.training.log import Window

PREEMPTED = 75  # the exit code of a run that can go on later
STOPS = (signal.SIGINT, signal.SIGTERM)
OVER = b"\0"  # no signal has this number
SHORTEST = 20  # episodes at least this long lose nothing to the row that each one's end takes
UNREAD = 256  # most steps whose metrics stay on the device


def rows_for(steps: int, settings: Settings) -> int:
    """Rows per environment for this many transitions in all, up to the capacity."""
    wanted = steps + steps // SHORTEST + 64 * settings.num_envs
    return math.ceil(min(wanted, settings.capacity or wanted) / settings.num_envs) + 8


def available_memory() -> int | None:
    """Bytes that the system and this process's control group leave, or None where neither says."""
    limits = [_system_free(), _group_free()]
    return min((limit for limit in limits if limit is not None), default=None)


def _system_free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
    except (OSError, ValueError):
        return None


def _group_free() -> int | None:
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        return int(limit) - int(used)
    except (OSError, ValueError):  # no group, or the limit is the word "max"
        return None


def keep_freed_memory() -> None:
    """Lets glibc keep what XLA frees: by default blocks above 32 MB go back to the system after every dispatch, and
    faulting their pages in again takes up to a third of the time of large updates."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for parameter, value in ((-3, 2**30), (-1, 2**31 - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, value)


def replay_bytes(settings: Settings, steps: int, observation: Box, action: Box, seeds: int = 1) -> int:
    frame = row_bytes(observation.shape, observation.dtype.itemsize, action.shape[0])
    return seeds * settings.num_envs * rows_for(steps, settings) * frame


def tree_bytes(tree: Any) -> int:
    """Bytes of the arrays in a tree, or of those that it outlines."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_memory(settings: Settings, steps: int, observation: Box, action: Box, seeds: int = 1, like: Any = ()) -> None:
    """Refuses, before anything is taken, what is more than there is: the replay, and an agent `like` that, per seed."""
    replay, agent = replay_bytes(settings, steps, observation, action, seeds), seeds * tree_bytes(like)
    there = available_memory()
    if there is not None and replay + agent > 0.9 * there:
        raise BadInput(
            f"the replay needs {replay / 1e9:.1f} GB, the agent {agent / 1e9:.1f} GB, and {there / 1e9:.1f} GB are free"
            ": lower --capacity, --image-size or the networks (--set base.hidden)"
        )


@dataclass
class Member:
    """One seed's share of a trainer."""

    trainer: Trainer
    index: int
    settings: Settings
    _window: Window = field(default_factory=Window)

    @property
    def window(self) -> Window:
        """What happened since the last log line, up to now."""
        self.trainer.settle()
        return self._window

    @property
    def step(self) -> int:
        return self.trainer.step

    @property
    def env_step(self) -> int:
        return self.step * (self.settings.action_repeat or 1)

    @property
    def at(self) -> tuple[int, ...]:
        """Where this seed's part of an array lies: nowhere in particular when it is alone."""
        return () if self.trainer.alone else (self.index,)

    @property
    def agent(self) -> Any:
        state = self.trainer.state.agent
        return state if self.trainer.alone else jax.tree.map(lambda leaf: leaf[self.index], state)

    @property
    def evaluation(self) -> Callable[[np.ndarray], np.ndarray]:
        """The deterministic policy as it is now, on a batch of observations."""
        self.trainer.settle()
        agent, now, acting = self.agent, self.trainer.state.clock, self.trainer.acting
        return lambda obs: acting.act(agent, obs, now)

    def log_line(self) -> dict[str, float]:
        """Everything worth knowing since the last line; a number that is not finite ends the run."""
        line = self.window.drain(self.trainer.program.metric_names)
        if self.trainer.strategy.measures_error and line.get("explore/model_error") is not None:
            line["explore/recent_error"] = float(
                np.array(self.trainer.program.recent_error(self.trainer.state))[self.at]
            )
        for name, value in line.items():
            if not math.isfinite(value):
                raise RunFailed(f"{name} is {value} at step {self.step}: lower the learning rate or scale the reward")
        faults = {"rollout/faults": self.trainer.pools[self.index].faults} if self.trainer.pools else {}
        return {"step": self.step, "env_step": self.env_step} | faults | line

    def visited(self, most: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
        """States still in the replay with the order they were met in, thinned to `most`."""
        replay = self.trainer.state.replay
        head, rows = int(np.array(replay.head)[(*self.at, 0)]), replay.age.shape[-1]
        order = np.arange(max(0, head - rows + 1), head + 1)
        order = order[:: max(1, len(order) // most)]
        return order, np.array(replay.obs[(*self.at, 0, order % rows)])


@dataclass
class Trainer:
    """Agents in their environments: one seed, or several side by side in one program with a pool of lanes each."""

    strategy: Strategy
    seeds: Sequence[Settings]  # that differ in the seed alone
    pools: Sequence[EnvPool]
    total: int  # transitions to have room for, and that schedules plan for where no file says otherwise
    restored: bool = False  # its replay will come from a checkpoint, so that it takes no room for one yet

    def __post_init__(self):
        keep_freed_memory()
        self.settings = self.seeds[0]
        self.members = [Member(self, i, settings) for i, settings in enumerate(self.seeds)]
        self.stack = self.settings.frame_stack if len(self.observation_space.shape) == 3 else 1
        self.program = Program(
            self.strategy,
            spec_of(self, self.stack),
            self.settings.batch_size,
            check_updates(self.settings),
            seeds=None if self.alone else len(self.seeds),
            skip_nan=self.settings.on_nan == "skip",
        )
        self.acting = self.program if self.alone else replace(self.program, seeds=None)
        self.step = 0
        self.action = None
        seeds = np.array([s.seed for s in self.seeds], np.uint32)
        replay = self.blank(0 if self.restored else self.total)
        state = self.program.init(jnp.asarray(seeds[0] if self.alone else seeds), replay, self.total)
        self.state: TrainState | Packed = spread(state) if not self.alone else state

    @property
    def alone(self) -> bool:
        return len(self.seeds) == 1

    @property
    def num_envs(self) -> int:
        """Environments of each seed."""
        return self.settings.num_envs if not self.pools else self.pools[0].num_envs

    @property
    def observation_space(self) -> Box:
        return self.pools[0].observation_space

    @property
    def action_space(self) -> Box:
        return self.pools[0].action_space

    def blank(self, steps: int) -> Replay:
        obs, action = self.observation_space, self.action_space
        check_memory(self.settings, steps, obs, action, len(self.seeds))
        rows = rows_for(steps, self.settings)
        create = lambda: Replay.create(self.num_envs, rows, obs.shape, obs.dtype, action.shape[0], self.stack)
        if self.alone:
            return create()
        zeros = lambda column: jnp.zeros((len(self.seeds), *column.shape), column.dtype)
        return jax.tree.map(zeros, jax.eval_shape(create))  # never two copies of what may be most of the memory

    def joined(self, parts: Sequence[Any], stack: Callable = np.stack) -> Any:
        """What each seed has as one tree: with a leading axis of seeds where there are several."""
        return parts[0] if self.alone else jax.tree.map(lambda *leaves: stack(leaves), *parts)

    def each(self, whole: np.ndarray) -> Sequence[np.ndarray]:
        return [whole] if self.alone else list(whole)

    def make_room(self, steps: int) -> None:
        """Rows for `steps` more transitions of a seed, where the capacity allows and nothing was overwritten yet.

        Twice as many as there were at least: programs are compiled anew for another replay, so many short calls must
        not each ask for one.
        """
        if self.alone and rows_for(self.step + steps, self.settings) > self.state.replay.rows:
            wanted = max(self.step + steps, 2 * self.step)
            check_memory(self.settings, wanted, self.observation_space, self.action_space)
            replay = self.state.replay.grow(rows_for(wanted, self.settings))
            self.state = TrainState(self.state.agent, replay, self.state.clock, self.state.seed)

    def replan(self, total: int) -> None:
        """Schedules for another number of transitions than they were begun with."""
        clock = self.state.clock._replace(total=jnp.int32(total))
        self.state = TrainState(self.state.agent, self.state.replay, clock, self.state.seed)

    @property
    def planned(self) -> int:
        """Transitions that schedules are planned for: `total`, or what a file said."""
        return int(self.state.clock.total)

    def adopt(self, agent: Any, clock: Clock) -> None:
        """Continues with an agent that was loaded, on an empty replay; schedules stay planned as its file says."""
        total = jnp.int32(int(clock.total) or self.planned)  # 0: nothing was planned yet
        clock = clock._replace(step=self.state.clock.step, total=total)
        self.state = TrainState(agent, self.state.replay, clock, self.state.seed)

    @property
    def action(self) -> np.ndarray | None:
        """The next actions of every environment, once the dispatch that chooses them is through; None before the first.

        Raises NotFinite where that dispatch met a number that is not finite.
        """
        if self._chosen is not None:
            chosen, metrics = self._chosen
            action = np.array(chosen)
            if not finite(action):
                self._chosen = None  # told once: whoever goes on all the same does so with the actions before
                raise guard.first_bad(self.program, self.state, np.stack(metrics, -2), action)
            self._action, self._chosen = action, None
            self._metrics += metrics
        return self._action

    @action.setter
    def action(self, action: np.ndarray | None) -> None:
        self._action = action
        self._chosen: tuple[jax.Array, list[jax.Array]] | None = None  # actions and metrics of the dispatch under way
        self._metrics: list[jax.Array] = []  # of the steps since then that nobody has read yet

    def settle(self) -> None:
        """Waits for the last dispatch, and hands every seed the metrics of the steps since this was last asked for.

        On the host they are nobody's business before that: reading them at each step costs more than all the rest.
        """
        while self.action is not None and self._metrics:
            for member, own in zip(self.members, self.each(np.array(self._metrics[0])[..., :-1])):
                member._window.add(own)
            del self._metrics[0]

    @property
    def warming_up(self) -> bool:
        """Whether actions are still uniform."""
        return self.step < (self.settings.learning_starts or 0)

    def begin(self) -> None:
        first = self.joined([pool.reset() for pool in self.pools])
        self.state, action = self.program.begin(self.state, first, self.warming_up)
        self.action = np.array(action)

    def advance(self, most: int = 1) -> list[tuple[int, np.ndarray]]:
        """One step of every environment, then a dispatch that inserts, learns and chooses the next actions.

        Nobody waits for it here: what the host does until the next call costs no time beside the device's work.
        Returns, for each step made (never more than `most`), its number and where it led: [seeds, environments, ...].
        """
        if self.action is None:
            self.begin()
        if len(self._metrics) >= UNREAD:
            self.settle()
        parts = self.play()
        self.step += self.num_envs
        dispatch = self.program.collect if self.warming_up else self.program.step
        self.state, action, *metrics = dispatch(self.state, self.joined(parts))
        self._chosen = action, metrics
        for member, pool in zip(self.members, self.pools):
            for _, ret, length in pool.finished:
                member._window.episode(ret, length)
            pool.finished.clear()
        led = [part.next_obs for part in parts]
        return [(self.step, led[0][None] if self.alone else np.stack(led))]

    def play(self) -> list[Transition]:
        """One step of every seed's environments."""
        assert self.action is not None
        before = [pool.episodes.copy() for pool in self.pools]
        try:
            return [pool.step(action) for pool, action in zip(self.pools, self.each(self.action))]
        except RunFailed:  # the step did not happen, so that a checkpoint is of the one before
            for pool, episodes in zip(self.pools, before):
                pool.episodes[:] = episodes
            raise

    # ------------------------------------------------------------ what a checkpoint holds beyond agent and replay

    def place(self, member: Member) -> dict[str, np.ndarray]:
        """Where a seed's environments are."""
        assert self.action is not None
        action, pool = self.each(self.action)[member.index], self.pools[member.index]
        return {"action": action, "episodes": pool.episodes.copy(), "faults": np.array(pool.faults)}

    def place_kinds(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of all that `place` gives."""
        action = (self.num_envs, *self.action_space.shape)
        return {"action": (action, np.float32), "episodes": ((self.num_envs,), np.int64), "faults": ((), np.int64)}

    def put(self, places: Sequence[dict[str, np.ndarray]]) -> list[str]:
        """Brings every environment to where it was, by its episode's seed and actions; a sentence for each seed whose
        environment did not repeat."""
        self.action = np.array(self.joined([place["action"] for place in places]))
        for pool, place in zip(self.pools, places):
            pool.faults = int(place.get("faults", 0))
        said = [replay_episodes(member, place["episodes"]) for member, place in zip(self.members, places)]
        return [sentence for sentence in said if sentence]

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def spread(state: TrainState) -> TrainState:
    """The seeds dealt out to the devices, where there are several and the seeds divide among them."""
    devices, seeds = jax.devices(), state.seed.shape[0]
    if len(devices) == 1 or seeds % len(devices):
        return state
    mesh = jax.sharding.Mesh(np.array(devices), ("seed",))
    dealt = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seed"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    put = lambda tree, sharding: jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree)
    return TrainState(
        put(state.agent, dealt), put(state.replay, dealt), put(state.clock, whole), put(state.seed, dealt)
    )


def spec_of(of: Any, stack: int) -> Spec:
    """What an agent sees and does where it has these spaces."""
    shape = of.observation_space.shape
    return Spec((*shape[:-1], shape[-1] * stack) if len(shape) == 3 else shape, of.action_space.shape[0])


def replay_episodes(member: Member, episodes: np.ndarray) -> str | None:
    """Brings a seed's environments to where they were, and checks that they got there."""
    trainer, at = member.trainer, member.at
    replay, pool = trainer.state.replay, trainer.pools[member.index]
    heads, rows = np.array(replay.head[at]), replay.age.shape[-1]
    lanes = np.arange(len(heads))
    ages, stored = (np.array(column[(*at, lanes, heads % rows)]) for column in (replay.age, replay.obs))
    lost = ages >= rows  # the first actions of these episodes were overwritten
    past = [
        () if lost[lane] else np.array(replay.action[(*at, lane, np.arange(head - ages[lane], head) % rows)])
        for lane, head in enumerate(heads)
    ]
    reached = repeated(pool, episodes + lost, past)
    if reached is None or not np.array_equal(reached[~lost], stored[~lost]):
        start_afresh(member, ~np.zeros_like(lost), pool.restore(episodes + 1, [()] * len(heads)))
        return (
            "this environment does not repeat an episode from its seed and actions, so the run goes on with new "
            "episodes, the open ones counted as truncated, and is not the run that it would have been"
        )
    if lost.any():
        start_afresh(member, lost, reached)
        return (
            f"an episode is longer than the {rows} rows that the replay keeps of an environment, so it counts as "
            "truncated, a new one begins and the run is not the run that it would have been: raise --capacity"
        )
    return None


def repeated(pool: EnvPool, episodes: np.ndarray, past: Sequence[Any]) -> np.ndarray | None:
    """What the lanes of a pool see once these actions were played in these episodes; None where that cannot be."""
    if pool.seedable:
        with suppress(RunFailed):
            return pool.restore(episodes, past)
    return None


def start_afresh(member: Member, lanes: np.ndarray, obs: np.ndarray) -> None:
    """New episodes, which begin with `obs`, in some lanes of a seed; those that were open are cut, as an environment
    that breaks cuts them. All other lanes and seeds stay as they are."""
    trainer, at, none = member.trainer, member.at, np.zeros_like(lanes)
    whole, before = trainer.state.replay, np.array(trainer.action)
    cut = Transition(before[at], none.astype(np.float32), none, lanes, obs, obs, none)
    replay = jax.tree.map(lambda leaf: leaf[at], whole).add(cut)
    if at:
        replay = jax.tree.map(lambda w, r: w.at[at].set(r), whole, replay)
    trainer.state = TrainState(trainer.state.agent, replay, trainer.state.clock, trainer.state.seed)
    fresh = np.array(trainer.program.next_action(trainer.state, trainer.warming_up))
    before[at][lanes] = fresh[at][lanes]
    trainer.action = before


_listening: list[Callable] = []  # the handlers of ours that are in place


_masks: list[Any] = []  # of signals, of forks that are under way


def _hold_back() -> None:
    """No signal may come between a fork and what the child forgets."""
    if _listening:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, STOPS))


def _let_come() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _forget_in_child() -> None:
    """A forked child takes signals for itself, and does not speak for this process through its pipe."""
    if _listening:
        _listening.clear()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_come()


os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_forget_in_child)


@contextmanager
def signals(ends_process: bool = False) -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM has asked to stop; a second one interrupts, or ends the process at once."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1 and not ends_process:
            raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, note) for s in STOPS}
    except ValueError:  # not the main thread: nothing can be caught here
        yield lambda: False
        return
    _listening.append(note)
    try:
        with end_at_second() if ends_process else nullcontext():
            yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if note in _listening:
            _listening.remove(note)


@contextmanager
def end_at_second() -> Iterator[None]:
    """Ends the process at the second signal even where the main thread runs no Python, as in XLA's compiler."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def listen() -> None:
        count = 0
        while (number := os.read(heard, 1)) != OVER:
            count += number[0] in STOPS
            if count > 1:
                leave_at_once()

    thread = Thread(target=listen, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(told, OVER)  # closing would not do: a child that lives on may have this end open, too
        thread.join()
        os.close(told)
        os.close(heard)


def leave_at_once() -> None:
    """Checkpoints are whole or absent however a process ends."""
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # the progress bar hides the cursor
    os._exit(PREEMPTED)


class Every:
    """True when a counter has passed a multiple of `period` since the last step of `stride`."""

    def __init__(self, period: int, stride: int):
        self.period, self.stride = period, stride

    def __call__(self, step: int) -> bool:
        return step // self.period > (step - self.stride) // self.period

    def left(self, step: int) -> int:
        """Steps of `stride` until it is true again."""
        return math.ceil((self.period - step % self.period) / self.stride)


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


def named(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf with the path that leads to it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def agent_arrays(state: Any) -> dict[str, np.ndarray]:
    """Every leaf by the path that leads to it, copied from the device."""
    return {name: np.array(leaf) for name, leaf in named(state)}


def agent_from(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """A tree shaped as `like` filled with saved arrays, or a sentence about what does not fit."""
    names = check_arrays(arrays, like)
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.array(arrays[name]) for name in names])


def check_arrays(arrays: dict[str, np.ndarray], like: Any) -> list[str]:
    """The names of a tree's leaves, in order, where the saved arrays are just those."""
    leaves = named(like)
    names = [name for name, _ in leaves]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise BadInput(f"the saved agent does not fit its configuration: '{shown(odd)}' is on one side only")
    for name, leaf in leaves:
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise BadInput(f"the saved agent does not fit its configuration: '{name}' has shape {arrays[name].shape}")
    return names
