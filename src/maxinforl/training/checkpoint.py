"""A trainer to arrays and back, so that a resumed run is bit-identical to an uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxinforl import config, files
from maxinforl.core.update import TrainState
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.replay import LAST, Replay, row_bytes
from maxinforl.settings import Settings, flag, known_as
from maxinforl.system import memory
from maxinforl.training import nonfinite
from maxinforl.training.arrays import agent_arrays, agent_from
from maxinforl.training.store import COLUMN, Checkpoint, CheckpointStore, Lane, NewerFormat, Rows
from maxinforl.training.trainer import SeedView, Trainer, rows_for, shard_seeds

LOGS, PRIOR = "logs/", "prior/sha256"
Kinds = Mapping[str, tuple[tuple[int | None, ...], Any]]  # by name the shape, with None for any length, and the type

COLUMNS = ("obs", "action", "reward", "end", "age")
LATER = {"host/faults", "window/skipped"}  # not saved from the beginning
WINDOW: Kinds = {
    "window/total": ((None,), np.float64),
    "window/returns": ((None,), np.float64),
    "window/lengths": ((None,), np.float64),
    "window/numbers": ((2,), np.int64),
    "window/skipped": ((), np.float64),
}


def save(seed: SeedView, store: CheckpointStore, wait: bool = False, logs: Mapping[str, np.ndarray] = {}) -> None:
    """Begins to write a checkpoint of a seed as it is now, from copies; `logs` tell what its log files hold."""
    trainer, state = seed.trainer, arrays(seed) | {LOGS + name: summary for name, summary in logs.items()}
    nonfinite.check_weights(trainer.program, trainer.state, state, seed.index)
    store.save_async(seed.step, state, new_rows(seed, store.saved_upto(trainer.num_envs)), made_of(seed))
    if wait:
        store.wait()


def made_of(seed: SeedView) -> dict[str, Any]:
    """What the meaning of a checkpoint's arrays depends on, by path."""
    return plain_parts(seed.settings, seed.trainer.strategy)


def plain_parts(settings: Settings, strategy: Strategy) -> dict[str, Any]:
    own = config.to_plain(settings)
    return {flag(name): own.get(name) for name in known_as("fixed", "learning", "told")} | dict(
        _leaves(config.to_plain(strategy))
    )


def _leaves(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def changed_since(saved: Checkpoint, settings: Settings, strategy: Strategy) -> list[str]:
    """A sentence where a run's configuration is not what its checkpoint was made with; refuses what cannot change."""
    now, shown = plain_parts(settings, strategy), lambda value: "open" if value is None else str(value)
    differ = [name for name in sorted(saved.meta) if now.get(name) != saved.meta[name]]  # a later version has more
    listed = [f"{name} {shown(saved.meta[name])} and not {shown(now.get(name))}" for name in differ]
    text = f"the checkpoint at step {saved.step} was made with {files.printable(', '.join(listed))}"
    if any(flag(name) in differ for name in known_as("fixed")):
        raise BadInput(f"{text}: restore its config.toml from a copy")
    return [f"{text}, which holds from here on"] if differ else []


def arrays(seed: SeedView) -> dict[str, np.ndarray]:
    return (
        {f"agent/{k}": v for k, v in agent_arrays(seed.agent).items()}
        | {f"clock/{k}": np.array(v) for k, v in seed.trainer.state.clock._asdict().items()}
        | {f"noise/{k}": v for k, v in agent_arrays(seed.noise).items()}
        | {f"sums/{k}": v for k, v in agent_arrays(seed.sums).items()}
        | {f"host/{k}": np.array(v) for k, v in seed.trainer.env_state(seed).items()}
        | {f"window/{k}": v.copy() for k, v in seed.window.arrays().items()}
        | prior_digest(seed.trainer)
    )


def prior_digest(trainer: Trainer) -> dict[str, np.ndarray]:
    """What tells the prior data of a run from any other."""
    digest = trainer.prior_digest
    return {} if digest is None else {PRIOR: np.frombuffer(bytes.fromhex(digest), np.uint8)}


def new_rows(seed: SeedView, saved: list[int]) -> Rows:
    """The rows of every lane from the last one saved, whose end a fault may have changed, up to the head."""
    replay, at = seed.trainer.state.replay, seed.at
    heads, rows = np.array(replay.head[at]), replay.age.shape[-1]
    columns = {name: getattr(replay, name) for name in COLUMNS}
    lanes = []
    for lane, head in enumerate(int(h) for h in heads):
        first = max(saved[lane] - 1, head - rows + 1, 0)
        index = np.arange(first, head + 1) % rows
        lanes.append(Lane(first, {name: take(column, (*at, lane), index) for name, column in columns.items()}))
    return Rows(rows, lanes)


def take(column: jax.Array, at: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """A copy of some rows: through a view where they lie in the host's memory, else gathered by the device.

    A gather is compiled for each number of rows, so that it takes a power of two of them.
    """
    if len(column.devices()) == 1 and next(iter(column.devices())).platform == "cpu":
        return np.from_dlpack(column)[(*at, index)]  # type: ignore[arg-type]
    wanted = np.resize(index, 1 << (len(index) - 1).bit_length())
    return np.array(column[(*at, wanted)])[: len(index)]


def newest(stores: Sequence[CheckpointStore]) -> list[Checkpoint] | None:
    """The newest step of which every seed has a good checkpoint, with all of them; None where there is none yet.

    Where an older segment of a replay is damaged no checkpoint is whole, and the newest does without those rows.
    """
    if len(stores) == 1:
        return [stores[0].load(lossy=True)] if stores[0].steps() else None
    common = set.intersection(*(set(store.steps()) for store in stores))
    problems: list[str] = []
    for lossy in (False, True):
        problems.clear()
        for step in sorted(common, reverse=True):
            try:
                found = [store.load(step, lossy=lossy) for store in stores]
            except NewerFormat:
                raise
            except BadInput as problem:
                problems.append(f"{problem}; going back to an earlier step")
                continue
            return [replace(found[0], warnings=(*problems, *found[0].warnings)), *found[1:]]
    if problems:
        raise BadInput(f"no checkpoint can be loaded: {problems[0]}")
    return None


def part(saved: Checkpoint, name: str) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint whose names begin with `name`, without it."""
    return {k.removeprefix(name): v for k, v in saved.state.items() if k.startswith(name)}


def restore(trainer: Trainer, checkpoints: list[Checkpoint]) -> list[str]:
    """Puts a fresh trainer where the checkpoints were, one of each seed; sentences where something did not repeat.

    Rows leave the list as soon as they are in the replay, so that no seed's are held twice.
    """
    for c in checkpoints:
        check_saved(trainer, c)
    view = trainer.seeds[0]
    like, noise_like, sums_like = jax.eval_shape(lambda: (view.agent, view.noise, view.sums))
    agents = [agent_from(part(c, "agent/"), like) for c in checkpoints]
    noises = [agent_from(part(c, "noise/"), noise_like) for c in checkpoints]
    sums = [agent_from(part(c, "sums/"), sums_like) for c in checkpoints]
    first = lambda replay: replay if trainer.alone else jax.tree.map(lambda leaf: leaf[0], replay)
    blank = jax.eval_shape(first, trainer.state.replay)
    clock, of_seeds, prior = trainer.state.clock, trainer.state.seed, trainer.state.prior
    trainer.state = TrainState(None, blank, clock, of_seeds)  # frees what is replaced
    replays = []
    for i, c in enumerate(checkpoints):
        assert c.rows is not None
        replays.append(rebuilt(blank, c.rows).grow(rows_for(trainer.total, trainer.settings)))
        checkpoints[i] = replace(c, rows=None)
    state = TrainState(
        trainer.joined(agents, jnp.stack),
        trainer.joined(replays, jnp.stack),
        clock._replace(**{k: jnp.array(v) for k, v in part(checkpoints[0], "clock/").items()}),
        of_seeds,
        trainer.joined(noises, jnp.stack),
        trainer.joined(sums, jnp.stack),
        prior,
    )
    trainer.state = state if trainer.alone else shard_seeds(state)
    for seed, checkpoint in zip(trainer.seeds, checkpoints):
        seed.window.restore(part(checkpoint, "window/"))
    trainer.step = checkpoints[0].step
    return trainer.restore_env_state([part(c, "host/") for c in checkpoints])


def rebuilt(blank: Replay, rows: Rows) -> Replay:
    """A replay of the saved capacity with the saved rows in their places and its list of starts made anew.

    The rows are used up, a column at a time, so that only one is held twice.
    """
    lanes, size = len(rows.lanes), rows.capacity
    numbers = [np.arange(lane.first, lane.head + 1) for lane in rows.lanes]
    starts, pushed = np.zeros((lanes, size), np.int32), np.zeros(lanes, np.int32)
    heads = np.array([lane.head for lane in rows.lanes], np.int32)
    for i, (lane, number) in enumerate(zip(rows.lanes, numbers)):
        lost = lane.first > max(lane.head - size + 1, 0)  # with a damaged segment
        gone = lane.first - 1 if lost else lane.head - size
        kept = (number[:-1] > gone + blank.stack - 1) & (lane.columns["end"][:-1] != LAST)
        start = number[:-1][kept]
        starts[i, : len(start)], pushed[i] = start, len(start)

    def column(name: str) -> jax.Array:
        like = getattr(blank, name)
        whole = np.zeros((lanes, size, *like.shape[2:]), like.dtype)
        for i, (lane, number) in enumerate(zip(rows.lanes, numbers)):
            whole[i, number % size] = lane.columns.pop(name)
        return jnp.array(whole)

    return Replay(
        *(column(name) for name in COLUMNS),
        head=jnp.array(heads),
        starts=jnp.array(starts),
        pushed=jnp.array(pushed),
        popped=jnp.zeros(lanes, jnp.int32),
        stack=blank.stack,
        layout=blank.layout,
    )


# ------------------------------------------------------------ whether saved arrays fit a trainer


def check_saved(trainer: Trainer, saved: Checkpoint) -> None:
    """Refuses a checkpoint, whole as it may be, whose arrays a fresh trainer cannot take."""
    where, clock = f"the checkpoint at step {saved.step}", trainer.state.clock._asdict()
    kinds: dict[str, Any] = {f"clock/{name}": (value.shape, value.dtype) for name, value in clock.items()}
    kinds |= {f"host/{name}": kind for name, kind in trainer.env_state_kinds().items()} | dict(WINDOW)
    _compare(where, {k: v for k, v in saved.state.items() if k.startswith(("clock/", "host/", "window/"))}, kinds)
    for name, array in saved.state.items():
        if name in ("host/episodes", "host/lanes/episode") and array.min() < 0:
            raise BadInput(f"{where} is damaged: '{name}' is negative, restore it from a copy")
    if saved.rows is None or len(saved.rows.lanes) != trainer.num_envs:
        raise BadInput(f"{where} is damaged: it lacks the replay of {trainer.num_envs} environments, restore it")
    _check_size(where, trainer, saved.rows)
    axes = 2 if trainer.alone else 3
    columns = {name: getattr(trainer.state.replay, name) for name in COLUMNS}
    kinds = {COLUMN + name: ((None, *like.shape[axes:]), like.dtype) for name, like in columns.items()}
    for lane in saved.rows.lanes:
        _compare(where, {COLUMN + name: column for name, column in lane.columns.items()}, kinds)


def _compare(where: str, found: Mapping[str, np.ndarray], kinds: Kinds) -> None:
    """Names the first array that is missing, too many, or of another shape or type."""
    if absent := kinds.keys() - found.keys() - LATER:
        raise BadInput(f"{where} is damaged: it lacks '{min(absent)}', restore it from a copy")
    if extra := found.keys() - kinds.keys():
        raise BadInput(
            f"{where} is damaged: {files.printable(repr(min(extra)))} is not part of it, restore it from a copy"
        )
    for name, array in found.items():
        shape, dtype = kinds[name]
        same = len(shape) == array.ndim and all(n in (None, m) for n, m in zip(shape, array.shape))
        if not same or array.dtype != dtype:
            wanted = f"{np.dtype(dtype)}[{', '.join('any' if n is None else str(n) for n in shape)}]"
            given = f"{array.dtype}{list(array.shape)}"
            raise BadInput(f"{where} is damaged: it has '{name}' as {given} where {wanted} is needed, restore it")


def _check_size(where: str, trainer: Trainer, rows: Rows) -> None:
    """Refuses a ring beyond its counters, or one that was not asked for and does not fit in memory."""
    obs, action = trainer.spaces
    needed = len(rows.lanes) * rows.capacity * row_bytes(obs.shape, obs.dtype.itemsize, action.shape[0])
    free = memory.available_memory() if rows.capacity > rows_for(trainer.total, trainer.settings) else None
    if rows.capacity > (most := rows_for(2**31, trainer.settings)):
        raise BadInput(
            f"{where} is damaged: its replay has {rows.capacity} rows where the run allows {most}, restore it"
        )
    if (free is not None and needed > free) or max(rows.capacity, *(lane.head for lane in rows.lanes)) >= 2**31 - 2:
        raise BadInput(f"{where} has a replay of {rows.capacity} rows an environment, which does not fit in memory")
