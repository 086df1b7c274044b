"""A trainer to arrays and back, so that a resumed run is the run."""

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
from maxinforl.replay import LAST, Replay
from maxinforl.settings import FIXED, Settings, flag
from maxinforl.training import guard
from maxinforl.training.fit import COLUMNS, check_saved
from maxinforl.training.loop import Member, Trainer, agent_arrays, agent_from, rows_for, spread
from maxinforl.training.store import Checkpoint, CheckpointStore, Lane, NewerFormat, Rows

LEARNING = ("update_ratio", "learning_starts", "batch_size", "on_nan")  # may change, and changes what is learned
LOGS = "logs/"


def save(member: Member, store: CheckpointStore, wait: bool = False, logs: Mapping[str, np.ndarray] = {}) -> None:
    """Begins to write a checkpoint of a seed as it is now, from copies; `logs` tell what its log files hold."""
    trainer, state = member.trainer, arrays(member) | {LOGS + name: summary for name, summary in logs.items()}
    guard.check_weights(trainer.program, trainer.state, state, member.index)
    store.save_async(member.step, state, new_rows(member, store.saved_upto(trainer.num_envs)), made_of(member))
    if wait:
        store.wait()


def made_of(member: Member) -> dict[str, Any]:
    """What the meaning of a checkpoint's arrays depends on, by path."""
    return plain_parts(member.settings, member.trainer.strategy)


def plain_parts(settings: Settings, strategy: Strategy) -> dict[str, Any]:
    own = config.to_plain(settings)
    return {flag(name): own.get(name) for name in (*FIXED, *LEARNING)} | dict(_leaves(config.to_plain(strategy)))


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
    if any(flag(name) in differ for name in FIXED):
        raise BadInput(f"{text}: restore its config.toml from a copy")
    return [f"{text}, which holds from here on"] if differ else []


def arrays(member: Member) -> dict[str, np.ndarray]:
    return (
        {f"agent/{k}": v for k, v in agent_arrays(member.agent).items()}
        | {f"clock/{k}": np.array(v) for k, v in member.trainer.state.clock._asdict().items()}
        | {f"host/{k}": np.array(v) for k, v in member.trainer.place(member).items()}
        | {f"window/{k}": v.copy() for k, v in member.window.arrays().items()}
    )


def new_rows(member: Member, saved: list[int]) -> Rows:
    """The rows of every lane from the last one saved, whose end a fault may have changed, up to the head."""
    replay, at = member.trainer.state.replay, member.at
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
    like = jax.eval_shape(lambda: trainer.members[0].agent)
    agents = [agent_from(part(c, "agent/"), like) for c in checkpoints]
    first = lambda replay: replay if trainer.alone else jax.tree.map(lambda leaf: leaf[0], replay)
    blank = jax.eval_shape(first, trainer.state.replay)
    trainer.state = TrainState(None, blank, trainer.state.clock, trainer.state.seed)  # frees what is replaced
    replays = []
    for i, c in enumerate(checkpoints):
        assert c.rows is not None
        replays.append(rebuilt(blank, c.rows).grow(rows_for(trainer.total, trainer.settings)))
        checkpoints[i] = replace(c, rows=None)
    state = TrainState(
        trainer.joined(agents, jnp.stack),
        trainer.joined(replays, jnp.stack),
        trainer.state.clock._replace(**{k: jnp.array(v) for k, v in part(checkpoints[0], "clock/").items()}),
        trainer.state.seed,
    )
    trainer.state = state if trainer.alone else spread(state)
    for member, checkpoint in zip(trainer.members, checkpoints):
        member.window.restore(part(checkpoint, "window/"))
    trainer.step = checkpoints[0].step
    return trainer.put([part(c, "host/") for c in checkpoints])


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
    )
