"""Configurations and suites that are changed at random: each is read, or refused with one sentence.

    python benchmarks/fuzz.py --cases 50000 --most-mb 1500

A configuration is read as `resume`, `eval`, `inspect`, `export` and `sweep --reuse` read it, and every `--shapes`-th is
taken as far as the shapes of its agent; a suite is read to the list of its runs. Anything but a sentence for the user,
a case of more than five seconds, or more memory than the bound is a failure. Prints a line for each failure, a summary,
and the summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import maxinforl
from maxinforl.errors import UserError
from maxinforl.experiments.suite_file import read_suite
from maxinforl.experiments.suite_runs import fingerprint
from maxinforl.spaces import read_spaces
from maxinforl.training.arrays import agent_shapes
from maxinforl.training.directory import finished, read_run

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from test_fuzz_files import SUITES, config_tree, noise

SLOW = 5.0  # seconds


def a_run(root: Path) -> Path:
    """A tiny run, whose configuration is changed."""
    small = {"base.hidden": (8, 8), "intrinsic.hidden": (8, 8)}
    settings = {"eval_episodes": 0, "learning_starts": 1000, "env_arg": {"g": 9.0}}
    maxinforl.make("maxinfo-sac", "Pendulum-v1", set=small, **settings).learn(1, out=root / "run")
    return root / "run"


def read_configuration(run: Path, shapes: bool) -> None:
    settings, agent, table = read_run(run)
    finished(run, settings, table.get("together", ()))
    fingerprint(settings, agent)
    if shapes:
        agent_shapes(agent, read_spaces(table["spaces"]).spec(settings))


def attempt(read: Callable[[], object], failures: Counter) -> bool:
    """Whether a case was read; what is neither read nor refused is counted by where it broke."""
    began, good = time.perf_counter(), False
    try:
        read()
        good = True
    except UserError as error:
        if "\n" in error.message():
            failures["a message of several lines"] += 1
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        failures[f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:80]}"] += 1
    if time.perf_counter() - began > SLOW:
        failures["more than five seconds"] += 1
    return good


def fuzz(what: str, cases: int, seed: int, shapes: int) -> dict:
    """So many changed files; how many were read, refused, and neither."""
    chance, failures, read = random.Random(f"{what} {seed}"), Counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        run = a_run(Path(folder)) if what == "configurations" else Path(folder)
        path = run / ("config.toml" if what == "configurations" else "suite.toml")
        originals = [path.read_bytes()] if what == "configurations" else SUITES
        for number in range(cases):
            change = config_tree if number % 3 else noise
            path.write_bytes(change(chance, chance.choice(originals)))
            whole = what == "configurations" and number % shapes == 0
            own = what == "configurations"
            task = (lambda w=whole: read_configuration(run, w)) if own else (lambda: read_suite(path).runs())
            read += attempt(task, failures)
    for failure, count in failures.most_common():
        print(f"{what}: {count} x {failure}")
    return {"what": what, "cases": cases, "read": read, "failures": sum(failures.values()), "kinds": len(failures)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50_000, help="of each kind of file")
    parser.add_argument("--shapes", type=int, default=50, help="cases between two whose agent is traced")
    parser.add_argument("--most-mb", type=float, default=1500.0, help="bound on the memory of this process")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.perf_counter()
    found = [fuzz(what, args.cases, args.seed, args.shapes) for what in ("configurations", "suites")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    bad = sum(part["failures"] for part in found)
    print(f"{2 * args.cases} files: {bad} failures, at most {peak:.0f} MB, {time.perf_counter() - began:.0f} s")
    print(json.dumps({"parts": found, "peak_mb": round(peak), "bound_mb": args.most_mb, "seed": args.seed}))
    return 0 if bad == 0 and peak <= args.most_mb else 1


if __name__ == "__main__":
    sys.exit(main())
