"""Cost of checkpoints: their share of the wall time of a Pendulum-v1 run that saves every 1 000 steps.

    python benchmarks/checkpoint_cost.py --rows 10000 500000 --rounds 8

The replay is filled to the given number of rows first (without learning), so that a cost that grows with it is visible.
A round is 1 000 steps in four blocks: a checkpoint is begun at the start of the first, and is durable at its end; the
third is the same without one, a few seconds later, so that noise affects both alike. The cost is the difference
between the best first and the best third block of all rounds (and that of the medians), as a share of a round.
Prints a sentence and appends a JSON line to --log per size; both sizes take about five minutes on one quiet core.
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
from maxinforl.core.program import unpack
from maxinforl.training import checkpoint
from maxinforl.training.store import CheckpointStore
from maxinforl.training.trainer import Trainer

EVERY, BLOCKS = 1_000, 4


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
    trainer.state = replace(unpack(trainer.state), replay=full)
    trainer.step = rows
    return trainer


def block(trainer: Trainer, store: CheckpointStore | None = None) -> tuple[float, float]:
    """Seconds of a block of steps, and those among them that training stood still for a checkpoint."""
    began, pause = time.perf_counter(), 0.0
    if store is not None:
        checkpoint.save(trainer.seeds[0], store)
        pause = time.perf_counter() - began
    for _ in range(EVERY // BLOCKS):
        trainer.advance()
    trainer.settle()
    if store is not None:
        store.wait()  # whatever it costs falls into this block
    return time.perf_counter() - began, pause


def measure(rows: int, rounds: int, batch_size: int, where: Path) -> dict:
    """Times of rounds that each begin with a checkpoint."""
    trainer, directory = filled(rows, (rounds + 1) * EVERY, batch_size), Path(tempfile.mkdtemp(dir=where))
    with CheckpointStore(directory) as store:
        trainer.advance()  # compiles
        checkpoint.save(trainer.seeds[0], store, wait=True)  # the first one holds every row
        block(trainer)
        times = np.array([[block(trainer, store if i == 0 else None) for i in range(BLOCKS)] for _ in range(rounds)])
        written = max(directory.glob("replay/*"), key=lambda path: path.name).stat().st_size
    shutil.rmtree(directory)
    seconds, pause = times[..., 0], float(np.median(times[:, 0, 1]))
    saving, plain = seconds[:, 0], seconds[:, 2]
    share = lambda of: float((of(saving) - of(plain)) / (BLOCKS * of(plain)))
    line = {"rows": rows, "rounds": rounds, "plain_s": BLOCKS * float(plain.min()), "pause_s": pause}
    return line | {"share_best": share(np.min), "share_median": share(np.median), "segment_bytes": written}


def sentence(line: dict) -> str:
    best, median, pause = (
        f"{line['share_best']:+.2%}",
        f"{line['share_median']:+.2%}",
        f"{1e3 * line['pause_s']:.1f} ms",
    )
    return (
        f"{line['rows']} rows: a checkpoint every {EVERY} steps adds {best} of wall time (best of {line['rounds']}; "
        f"medians {median}), training stands still for {pause} of {line['plain_s']:.1f} s, "
        f"{line['segment_bytes']} bytes of replay written"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 500_000])
    parser.add_argument("--rounds", type=int, default=8, help="of 1 000 steps")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--where", type=Path, default=Path("."), help="a directory on the disk to measure")
    parser.add_argument("--log", type=Path, default=Path("checkpoint_cost.jsonl"))
    args = parser.parse_args()
    for rows in args.rows:
        line = measure(rows, args.rounds, args.batch_size, args.where)
        print(sentence(line), flush=True)
        with args.log.open("a") as log:
            log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
