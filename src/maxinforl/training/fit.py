"""Whether the arrays of a checkpoint are what a trainer would have saved, asked before any of them is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from maxinforl import files
from maxinforl.errors import BadInput
from maxinforl.replay import row_bytes
from maxinforl.training.loop import Trainer, available_memory, rows_for
from maxinforl.training.store import COLUMN, Checkpoint, Rows

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


def check_saved(trainer: Trainer, saved: Checkpoint) -> None:
    """Refuses a checkpoint, whole as it may be, whose arrays a fresh trainer cannot take."""
    where, clock = f"the checkpoint at step {saved.step}", trainer.state.clock._asdict()
    kinds: dict[str, Any] = {f"clock/{name}": (value.shape, value.dtype) for name, value in clock.items()}
    kinds |= {f"host/{name}": kind for name, kind in trainer.place_kinds().items()} | dict(WINDOW)
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
    obs, action = trainer.observation_space, trainer.action_space
    needed = len(rows.lanes) * rows.capacity * row_bytes(obs.shape, obs.dtype.itemsize, action.shape[0])
    there = available_memory() if rows.capacity > rows_for(trainer.total, trainer.settings) else None
    if (there is not None and needed > there) or max(rows.capacity, *(lane.head for lane in rows.lanes)) >= 2**31 - 2:
        raise BadInput(f"{where} has a replay of {rows.capacity} rows an environment, which does not fit in memory")
