"""Numbers that are not finite: found at the step they appear, named, and kept with the batch they came from.

All randomness is a function of (seed, step) and the replay still holds the rows, so the batches of a step that went
wrong are drawn again after it, exactly as the step drew them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from maxinforl import files
from maxinforl.core.types import Backup, Batch
from maxinforl.core.update import Program, TrainState, update
from maxinforl.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from maxinforl.agent import Agent

ADVICE = "lower the learning rate or scale the reward"


class NotFinite(RunFailed):
    """A number of a step is not finite: `tensor` names the first, `arrays` hold the batches and the update's keys."""

    def __init__(self, tensor: str, value: float, step: int, arrays: dict[str, np.ndarray], kept: str = ""):
        super().__init__(f"{tensor} is {value} at step {step}: {kept}{ADVICE}")
        self.tensor, self.value, self.step, self.arrays = tensor, value, step, arrays

    def saved(self, directory: Path | None, checkpoint: int | None) -> NotFinite:
        """The same error, which also says where its batch is and which checkpoint is the last good one."""
        if directory is None:
            return self
        path = directory / f"bad-batch-{self.step}.safetensors"
        files.save_arrays(path, self.arrays, {"step": self.step, "tensor": self.tensor, "value": str(self.value)})
        good = "no checkpoint was written yet" if checkpoint is None else f"the checkpoint at step {checkpoint} is kept"
        kept = f"the batch of that step is in {path} and {good}; "
        return NotFinite(self.tensor, self.value, self.step, self.arrays, kept)


def check(program: Program, state: TrainState, metrics: np.ndarray, action: np.ndarray) -> None:
    """Raises NotFinite after a step whose metrics (one row per seed) or next actions are not finite."""
    if np.isfinite(metrics).all() and np.isfinite(action).all():
        return
    seed = None
    if program.seeds is not None:
        whole = np.isfinite(metrics).all(-1) & np.isfinite(action).reshape(len(metrics), -1).all(-1)
        seed = int(np.argmin(whole))
        metrics, action = metrics[seed], action[seed]
    own = alone(state, seed)
    known = dict(zip(program.metric_names, metrics))
    raise diagnose(program, own, known, {"the next action": action})


def check_weights(program: Program, state: TrainState, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises NotFinite before a checkpoint is written of an agent with weights that are not finite."""
    for name, array in arrays.items():
        if name.startswith("agent/") and not whole(array):
            bad = None if program.seeds is None else int(np.argwhere(~np.isfinite(array))[0][0])
            raise diagnose(program, alone(state, bad), {}, {name: array})


def whole(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def alone(state: TrainState, seed: int | None) -> TrainState:
    """The state of one of several seeds."""
    if seed is None:
        return state
    agent, replay, key = jax.tree.map(lambda x: x[seed], (state.agent, state.replay, state.seed))
    return TrainState(agent, replay, state.clock, key)


def diagnose(
    program: Program, state: TrainState, metrics: Mapping[str, Any], seen: Mapping[str, np.ndarray]
) -> NotFinite:
    """The error about the first bad tensor of a step: of its batch, its metrics, the agent, or what was seen to be."""
    arrays = drawn(program, state)
    agent = {f"agent/{name}": leaf for name, leaf in _named(state.agent)}
    suspects = {k: v for k, v in arrays.items() if k.startswith("batch/")} | dict(metrics) | agent | dict(seen)
    for name, value in suspects.items():
        array = np.asarray(value)
        if not whole(array):
            return NotFinite(name, float(array[~np.isfinite(array)].flat[0]), int(state.clock.step), arrays)
    raise AssertionError("diagnose was asked about a step that is whole")


def drawn(program: Program, state: TrainState) -> dict[str, np.ndarray]:
    """The batches that the update at this state's step drew, [rounds, updates, batch, ...], and the keys it used."""
    rounds = [jax.jit(program.draw)(state, jnp.int32(i)) for i in range(program.rounds)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *(batch for batch, _ in rounds))
    keys = np.stack([np.asarray(jax.random.key_data(key)) for _, key in rounds])
    return {f"batch/{name}": leaf for name, leaf in _named(stacked)} | {"key": keys}


def _named(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), np.array(leaf)


# ------------------------------------------------------------ looking at one again


def load_bad_batch(path: str | Path) -> tuple[Batch, np.ndarray, dict[str, Any]]:
    """The batches [rounds, updates, batch, ...] that a run stopped at, the keys of its updates, and what was wrong."""
    arrays, facts = files.load_arrays(path)
    part = lambda name: jnp.asarray(arrays[f"batch/{name}"])
    backup = lambda name: Backup(*(part(f"{name}/{f}") for f in Backup._fields))
    try:
        nth = backup("nstep") if "batch/nstep/reward" in arrays else None
        return Batch(part("obs"), part("action"), backup("one"), nth, part("gamma")), arrays["key"], facts
    except KeyError as error:
        raise BadInput(f"{files.shown(path)} is not a batch that a run stopped at: it lacks {error}") from None


def replay_bad_batch(agent: Agent, path: str | Path) -> dict[str, float]:
    """The metrics of the same updates on an agent, such as the last good checkpoint of that run."""
    program, state, now = agent._acting()
    batches, keys, _ = load_bad_batch(path)
    step = jax.jit(lambda state, batch, key: update(program.agent, state, batch, key, now))
    metrics: dict[str, Any] = {}
    for i, data in enumerate(keys):
        state, metrics = step(state, jax.tree.map(lambda x, i=i: x[i], batches), jax.random.wrap_key_data(data))
    return {name: float(value) for name, value in metrics.items()}
