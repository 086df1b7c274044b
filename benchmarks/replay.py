"""Time of one `add` and memory of the replay as it grows: alone, inside a scan, and mapped over 3 seeds.

    python benchmarks/replay.py --rows 1000 12000 120000

Every buffer is donated. With 3 seeds each has a third of the rows, so that the bytes are the same. The largest default
is 2.5 GB, beyond 2**31 bytes: rows at both ends are read back and compared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from maxinforl.replay import Replay, row_bytes
from maxinforl.transition import Transition

ACTIONS, STACK, SEEDS = 6, 3, 3
SCAN = 32  # adds per dispatch inside a scan


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def transition(rng: np.random.Generator, frame: tuple[int, ...], lead: tuple[int, ...]) -> Transition:
    image = jnp.asarray(rng.integers(0, 256, (*lead, 1, *frame)), jnp.uint8)
    action = jnp.asarray(rng.uniform(-1, 1, (*lead, 1, ACTIONS)), jnp.float32)
    no, yes = jnp.zeros((*lead, 1), bool), jnp.ones((*lead, 1), bool)
    return Transition(action, jnp.ones((*lead, 1)), no, no, image, image, yes)


def scanned(replay: Replay, transitions: Transition) -> Replay:
    return jax.lax.scan(lambda r, t: (r.add(t), None), replay, transitions)[0]


def add(replay: Replay, t: Transition) -> Replay:
    return replay.add(t)


CASES: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "alone": (add, ()),
    "scan": (scanned, (SCAN,)),
    "3 seeds": (jax.vmap(add), (SEEDS,)),
}


def measure(case: str, rows: int, frame: tuple[int, ...], adds: int) -> dict:
    """Microseconds per stored step (median over dispatches) and resident bytes per row."""
    write, lead = CASES[case]
    seeds = SEEDS if lead == (SEEDS,) else 1
    before = resident()
    create = lambda _: Replay.create(1, rows // seeds, frame, jnp.uint8, ACTIONS, STACK)
    replay = jax.vmap(create)(jnp.zeros(seeds)) if seeds > 1 else create(0)
    # start near the end of the ring, so that writes reach the last rows and wrap
    replay = jax.block_until_ready(
        Replay(*(jax.tree.leaves(replay)[:5]), replay.head + rows // seeds - 8, *(jax.tree.leaves(replay)[6:]), STACK)
    )
    held = resident() - before
    t = transition(np.random.default_rng(0), frame, lead)
    run = jax.jit(write, donate_argnums=0)
    per_call = int(np.prod(lead)) if lead else 1
    times = []
    for i in range(max(2, adds // per_call) + 2):
        began = time.perf_counter()
        replay = jax.block_until_ready(run(replay, t))
        if i >= 2:  # compiled and warm
            times.append((time.perf_counter() - began) / per_call)
    check(replay, t, lead)
    median = 1e6 * float(np.median(times))
    return {"case": case, "rows": rows, "us_per_add": median, "resident": held, "copies": resident() - before - held}


def check(replay: Replay, t: Transition, lead: tuple[int, ...]) -> None:
    """The observation now at the head is the last one written."""
    newest = jax.vmap(lambda r: r.latest())(replay) if lead == (SEEDS,) else replay.latest()
    last = t.obs[-1] if lead == (SCAN,) else t.obs
    assert np.array_equal(np.asarray(newest)[..., -3:], np.asarray(last)), (
        "a row read back differs from what was written"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 12_000, 120_000])
    parser.add_argument("--side", type=int, default=84)
    parser.add_argument("--adds", type=int, default=400)
    parser.add_argument("--json", type=Path, help="also write the rows of the table here")
    args = parser.parse_args()
    frame = (args.side, args.side, 3)
    print(f"{row_bytes(frame, 1, ACTIONS)} bytes per row of {args.side}x{args.side}x3 and {ACTIONS} actions")
    print(f"{'':10}{'rows':>9}{'computed MB':>13}{'resident MB':>13}{'more later':>12}{'us per add':>12}")
    table = []
    for case in CASES:
        measure(case, 300, frame, 1)  # what JAX itself takes, once
        for rows in args.rows:
            row = measure(case, rows, frame, args.adds)
            computed = rows * row_bytes(frame, 1, ACTIONS)
            table.append(row | {"computed": computed})
            numbers = f"{computed / 1e6:13.1f}{row['resident'] / 1e6:13.1f}{row['copies'] / 1e6:12.1f}"
            print(f"{case:10}{rows:>9}{numbers}{row['us_per_add']:12.1f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
