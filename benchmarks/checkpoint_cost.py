"""What checkpoints cost: share of the wall time of a Pendulum-v1 run that saves every 1 000 steps.

    python benchmarks/checkpoint_cost.py --rows 10000 500000 --steps 12000

The replay is filled to the given number of rows first (without learning), so that a cost that grew with it would show.
Blocks of 1 000 steps with and without a checkpoint take turns. Prints, and appends to --log, one JSON line per size:
median seconds of both, the seconds for which training stood still, and the bytes of replay that a checkpoint wrote.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import maxinforl
from maxinforl.training import checkpoint
from maxinforl.training.loop import Trainer
from maxinforl.training.store import CheckpointStore

EVERY = 1_000


def filled(rows: int, steps: int, batch_size: int) -> Trainer:
    """A trainer whose replay already holds `rows` transitions of random walks."""
    agent = maxinforl.make(
        "maxinfo-sac", "Pendulum-v1", eval_episodes=0, batch_size=batch_size, capacity=2 * (rows + steps)
    )
    trainer = agent._trainer(int(1.1 * (rows + steps)))
    trainer.begin()
    replay, rng = trainer.state.replay, np.random.default_rng(0)
    obs = jnp.array(rng.normal(size=replay.obs.shape), jnp.float32)
    action = jnp.array(rng.uniform(-1, 1, replay.action.shape), jnp.float32)
    starts = jnp.arange(replay.rows, dtype=jnp.int32)[None]
    counts = {"head": replay.head + rows, "pushed": replay.pushed + rows}
    full = replace(replay, obs=obs, action=action, starts=starts, age=starts + 0, **counts)
    trainer.state = replace(trainer.state, replay=full)
    trainer.step = rows
    return trainer


def block(trainer: Trainer, store: CheckpointStore | None) -> tuple[float, float]:
    """Seconds of `EVERY` steps, and those among them that training stood still for a checkpoint."""
    began, pause = time.perf_counter(), 0.0
    if store is not None:
        checkpoint.save(trainer.members[0], store)
        pause = time.perf_counter() - began
    for _ in range(EVERY):
        trainer.advance()
    return time.perf_counter() - began, pause


def measure(rows: int, steps: int, batch_size: int, where: Path) -> dict:
    """Blocks with and without a checkpoint in turn, so that noise falls on both alike."""
    trainer, directory = filled(rows, steps, batch_size), Path(tempfile.mkdtemp(dir=where))
    trainer.advance()  # compiles
    with CheckpointStore(directory) as store:
        checkpoint.save(trainer.members[0], store, wait=True)  # the first one holds every row
        times = [block(trainer, store if i % 2 else None) for i in range(steps // EVERY)]
        store.wait()
        newest = max(directory.glob("replay/*"), key=lambda path: path.name)
        written = newest.stat().st_size
    shutil.rmtree(directory)
    plain, saving = (float(np.median([t for t, _ in times[i::2]])) for i in (0, 1))
    pause = float(np.median([p for _, p in times[1::2]]))
    line = {"rows": rows, "blocks": len(times), "plain_s": plain, "saving_s": saving, "pause_s": pause}
    return line | {"share": saving / plain - 1, "pause_share": pause / plain, "segment_bytes": written}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 500_000])
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--where", type=Path, default=Path("."), help="a directory on the disk to measure")
    parser.add_argument("--log", type=Path, default=Path("checkpoint_cost.jsonl"))
    args = parser.parse_args()
    for rows in args.rows:
        line = measure(rows, args.steps, args.batch_size, args.where)
        print(json.dumps(line), flush=True)
        with args.log.open("a") as log:
            log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
