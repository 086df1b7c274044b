"""Numbers that are not finite: found at the step they appear, named, and kept with the batch they came from.

All randomness is a function of (seed, step) and the replay still holds the rows, so the batches of a step that went
wrong are drawn again after it, exactly as the step drew them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from maxinforl import files
from maxinforl.core.layout import Parts
from maxinforl.core.program import Packed, Program, unpack
from maxinforl.core.types import Backup, Batch
from maxinforl.core.update import TrainState, update
from maxinforl.errors import BadInput, RunFailed
from maxinforl.training.arrays import agent_arrays

if TYPE_CHECKING:
    from maxinforl.agent import Agent

Arrays = dict[str, np.ndarray]
ADVICE = "lower the learning rate or scale the reward"


class NotFinite(RunFailed):
    """A number of a step is not finite.

    `tensor` names the first, `arrays` hold its batches and keys unless the replay has overwritten them, and `seed` is
    the index of its seed among those that train together.
    """

    def __init__(self, tensor: str, value: float, step: int, arrays: Arrays, seed: int = 0, kept: str = ""):
        super().__init__(f"{tensor} is {value} at step {step}: {kept}{ADVICE}")
        self.tensor, self.value, self.step, self.arrays, self.seed = tensor, value, step, arrays, seed

    def saved(self, directory: Path | None, checkpoint: int | None) -> NotFinite:
        """The same error, which also says where its batch is and which checkpoint is the last good one."""
        if directory is None:
            return self
        path, batch = directory / f"bad-batch-{self.step}.safetensors", "its batch was overwritten meanwhile"
        if self.arrays:
            files.save_arrays(path, self.arrays, {"step": self.step, "tensor": self.tensor, "value": str(self.value)})
            batch = f"its batch is in {path}"
        good = "no checkpoint was written yet" if checkpoint is None else f"the checkpoint at step {checkpoint} is kept"
        return NotFinite(self.tensor, self.value, self.step, self.arrays, self.seed, f"{batch} and {good}; ")


def checked(program: Program, state: TrainState | Packed, values: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The metrics of the last steps, [(seeds,) steps, names], from what `Program.train_step` gave.

    Raises NotFinite where one of them, the agent after one of the steps or the next actions are not finite.
    """
    if np.isfinite(values).all() and np.isfinite(action).all():
        return values[..., : len(program.metric_names)]
    raise first_bad(program, state, values, action)


def first_bad(program: Program, state: TrainState | Packed, metrics: np.ndarray, action: np.ndarray) -> NotFinite:
    """The error about the first of these steps that has a number which is not finite."""
    if program.seeds is None:
        metrics, action = metrics[None], action[None]
    fine = np.array(np.isfinite(metrics).all(-1))
    fine[:, -1] &= np.isfinite(action).reshape(len(action), -1).all(-1)
    step = int(np.argmin(fine.all(0)))
    seed, ago = int(np.argmin(fine[:, step])), fine.shape[1] - 1 - step
    own = rewound(alone(state, program, seed), ago)
    # a replay that is full has overwritten rows since a step before the last
    arrays = {} if ago and bool(own.replay.popped.any()) else drawn(program, own)
    return diagnose(own, seed, arrays, dict(zip(program.metric_names, metrics[seed, step])), action[seed])


def check_weights(
    program: Program, state: TrainState | Packed, arrays: Mapping[str, np.ndarray], seed: int = 0
) -> None:
    """Raises NotFinite before a checkpoint is written of a seed's agent with weights that are not finite."""
    if not all(whole(array) for name, array in arrays.items() if name.startswith("agent/")):
        own = alone(state, program, seed)
        raise diagnose(own, seed, drawn(program, own), {}, np.zeros(0))


def whole(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def alone(state: TrainState | Packed, program: Program, seed: int) -> TrainState:
    """The state of one of the seeds of a program."""
    if program.seeds is None:
        return unpack(state)
    own = lambda tree: jax.tree.map(lambda x: x[seed], tree)
    state = unpack(state)
    parts = (state.agent, state.replay, state.seed, state.noise, state.sums)
    agent, replay, of_seed, noise, sums = (own(part) for part in parts)
    return TrainState(agent, replay, state.clock, of_seed, noise, sums, state.prior)


def rewound(state: TrainState, steps: int) -> TrainState:
    """The replay and the clock as they were some steps ago; the agent stays as it is now."""
    if steps == 0:
        return state
    replay, lanes = state.replay, state.replay.obs.shape[0]
    pushed = replay.pushed - steps
    head = replay.starts[replay.lanes, pushed % replay.rows]
    replay = eqx.tree_at(lambda r: (r.pushed, r.head), replay, (pushed, head))
    return replace(state, replay=replay, clock=state.clock._replace(step=state.clock.step - steps * lanes))


def diagnose(state: TrainState, seed: int, arrays: Arrays, metrics: Mapping[str, Any], action: np.ndarray) -> NotFinite:
    """The error about the first bad tensor of a step: of its batch, its metrics, the agent or the next action."""
    batch = {k: v for k, v in arrays.items() if k.startswith("batch/")}
    agent = {f"agent/{name}": leaf for name, leaf in agent_arrays(state.agent).items()}
    for name, value in (batch | dict(metrics) | agent | {"the next action": action}).items():
        array = np.asarray(value)
        if not whole(array):
            return NotFinite(name, float(array[~np.isfinite(array)].flat[0]), int(state.clock.step), arrays, seed)
    raise AssertionError("diagnose was asked about a step that is whole")


def drawn(program: Program, state: TrainState) -> Arrays:
    """The batches that the update at this state's step drew, [rounds, updates, batch, ...], and the keys it used."""
    rounds = [jax.jit(program.sample_round)(state, jnp.int32(i)) for i in range(program.rounds)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *(batch for batch, _ in rounds))
    keys = np.stack([np.asarray(jax.random.key_data(key)) for _, key in rounds])
    return {f"batch/{name}": leaf for name, leaf in agent_arrays(stacked).items()} | {"key": keys}


# ------------------------------------------------------------ looking at one again


def load_bad_batch(path: str | Path) -> tuple[Batch, np.ndarray, dict[str, Any]]:
    """The batches [rounds, updates, batch, ...] that a run stopped at, the keys of its updates, and what was wrong."""
    arrays, facts = files.load_arrays(path)

    def part(name: str) -> Any:
        if f"batch/{name}/vector" not in arrays:
            return jnp.asarray(arrays[f"batch/{name}"])
        count = sum(n.startswith(f"batch/{name}/images/") for n in arrays)
        images = (jnp.asarray(arrays[f"batch/{name}/images/{i}"]) for i in range(count))
        return Parts(tuple(images), jnp.asarray(arrays[f"batch/{name}/vector"]))

    backup = lambda name: Backup(*(part(f"{name}/{f}") for f in Backup._fields))
    try:
        nth = backup("nstep") if "batch/nstep/reward" in arrays else None
        return Batch(part("obs"), part("action"), backup("one"), nth, part("gamma")), arrays["key"], facts
    except KeyError as error:
        raise BadInput(f"{files.printable(path)} is not a batch that a run stopped at: it lacks {error}") from None


def replay_bad_batch(agent: Agent, path: str | Path) -> dict[str, float]:
    """The metrics of the same updates on an agent, such as the last good checkpoint of that run."""
    program, state, now = agent.acting_state()
    batches, keys, _ = load_bad_batch(path)
    step = jax.jit(lambda state, batch, key: update(program.agent, state, batch, key, now))
    metrics: dict[str, Any] = {}
    for i, data in enumerate(keys):
        state, metrics = step(state, jax.tree.map(lambda x, i=i: x[i], batches), jax.random.wrap_key_data(data))
    return {name: float(value) for name, value in metrics.items()}
