"""A trainer to arrays and back, so that a resumed run is the run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jax.numpy as jnp
import numpy as np

from maxinforl.core.update import TrainState
from maxinforl.errors import RunFailed
from maxinforl.replay import LAST, Replay, Transition
from maxinforl.training import guard
from maxinforl.training.loop import Trainer, agent_arrays, agent_from
from maxinforl.training.store import Checkpoint, CheckpointStore, Lane, Rows

COLUMNS = ("obs", "action", "reward", "end", "age")


def save(trainer: Trainer, store: CheckpointStore, meta: dict[str, Any], wait: bool = False) -> None:
    """Begins to write a checkpoint of the trainer as it is now, from copies."""
    replay = trainer.state.replay
    state, rows = arrays(trainer), new_rows(replay, store.saved_upto(trainer.pool.num_envs))
    guard.check_weights(trainer.program, trainer.state, state)
    store.save_async(trainer.step, state, rows, meta)
    if wait:
        store.wait()


def arrays(trainer: Trainer) -> dict[str, np.ndarray]:
    state = trainer.state
    host = {"action": trainer.action, "episodes": trainer.pool.episodes.copy(), "faults": trainer.pool.faults}
    return (
        {f"agent/{k}": v for k, v in agent_arrays(state.agent).items()}
        | {f"clock/{k}": np.array(v) for k, v in state.clock._asdict().items()}
        | {f"host/{k}": np.array(v) for k, v in host.items()}
        | {f"window/{k}": v.copy() for k, v in trainer.window.arrays().items()}
    )


def new_rows(replay: Replay, saved: list[int]) -> Rows:
    """The rows of every lane from the last one saved, whose end a fault may have changed, up to the head."""
    heads = np.array(replay.head)
    columns = {name: getattr(replay, name) for name in COLUMNS}
    lanes = []
    for lane, head in enumerate(int(h) for h in heads):
        first = max(saved[lane] - 1, head - replay.rows + 1, 0)
        index = np.arange(first, head + 1) % replay.rows
        lanes.append(Lane(first, {name: np.array(column[lane, index]) for name, column in columns.items()}))
    return Rows(replay.rows, lanes)


def restore(trainer: Trainer, checkpoint: Checkpoint) -> str | None:
    """Puts a fresh trainer where the checkpoint was; returns a sentence where an environment did not repeat."""
    part = lambda name: {k.removeprefix(name): v for k, v in checkpoint.state.items() if k.startswith(name)}
    host, clock = part("host/"), part("clock/")
    assert checkpoint.rows is not None
    replay = rebuilt(trainer.state.replay, checkpoint.rows)
    trainer.state = TrainState(
        agent_from(part("agent/"), trainer.state.agent),
        replay,
        trainer.state.clock._replace(**{k: jnp.array(v) for k, v in clock.items()}),
        trainer.state.seed,
    )
    trainer.window.restore(part("window/"))
    trainer.step, trainer.action = checkpoint.step, host["action"].copy()
    trainer.pool.faults = int(host.get("faults", 0))
    return replay_episodes(trainer, host["episodes"])


def rebuilt(blank: Replay, rows: Rows) -> Replay:
    """A replay of the saved capacity with the saved rows in their places and its list of starts made anew."""
    lanes, size = len(rows.lanes), rows.capacity
    column = lambda name: np.zeros((lanes, size, *getattr(blank, name).shape[2:]), getattr(blank, name).dtype)
    columns = {name: column(name) for name in COLUMNS}
    starts, pushed, heads = np.zeros((lanes, size), np.int32), np.zeros(lanes, np.int32), np.zeros(lanes, np.int32)
    for i, lane in enumerate(rows.lanes):
        number = np.arange(lane.first, lane.head + 1)
        for name in COLUMNS:
            columns[name][i, number % size] = lane.columns[name]
        kept = (number[:-1] > lane.head - size + blank.stack - 1) & (lane.columns["end"][:-1] != LAST)
        start = number[:-1][kept]
        starts[i, : len(start)], pushed[i], heads[i] = start, len(start), lane.head
    parts = {name: jnp.array(columns[name]) for name in COLUMNS}
    return Replay(
        *(parts[name] for name in COLUMNS),
        head=jnp.array(heads),
        starts=jnp.array(starts),
        pushed=jnp.array(pushed),
        popped=jnp.zeros(lanes, jnp.int32),
        stack=blank.stack,
    )


def replay_episodes(trainer: Trainer, episodes: np.ndarray) -> str | None:
    """Brings every environment to where it was by its episode's seed and actions, and checks that it got there."""
    replay = trainer.state.replay
    ages, heads = np.array(replay.age), np.array(replay.head)
    past = []
    for lane, head in enumerate(heads):
        back = np.arange(head - ages[lane, head % replay.rows], head) % replay.rows
        past.append(np.array(replay.action[lane, back]))
    stored = np.array(replay.obs[np.arange(len(heads)), heads % replay.rows])
    if trainer.pool.seedable:
        with suppress(RunFailed):
            if np.array_equal(trainer.pool.restore(episodes, past), stored):
                return None
    start_afresh(trainer, episodes + 1)
    return (
        "this environment does not repeat an episode from its seed and actions, so the run goes on with new episodes, "
        "the open ones counted as truncated, and is not the run that it would have been"
    )


def start_afresh(trainer: Trainer, episodes: np.ndarray) -> None:
    """New episodes in every lane; those that were open are cut, as an environment that breaks cuts them."""
    pool, state = trainer.pool, trainer.state
    obs, none = pool.restore(episodes, [()] * pool.num_envs), np.zeros(pool.num_envs, bool)
    cut = Transition(trainer.action, none.astype(np.float32), none, ~none, obs, obs, none)
    trainer.state = TrainState(state.agent, state.replay.add(cut), state.clock, state.seed)
    trainer.action = np.array(trainer.program.react(trainer.state))
