"""A sweep: two algorithms, several seeds each, and one report that compares them.

    python examples/sweep.py [STEPS] [SEEDS]

Run it again after an interruption: finished runs are skipped, interrupted ones resumed.
"""

import sys
from pathlib import Path

from maxinforl.cli import main as maxinforl

SUITE = """
title = "Does information gain help a hanging pendulum?"
algorithms = ["sac", "maxinfo-sac"]
environments = ["pendulum-hanging"]
seeds = {seeds}

[settings]
steps = {steps}
eval_every = {eval_every}
eval_episodes = 2
batch_size = 64
set = {{ "base.hidden" = [64, 64] }}
"""


def main(steps: int = 5_000, seeds: int = 3, out: str = "runs/sweep") -> None:
    suite = Path(out) / "suite.toml"
    suite.parent.mkdir(parents=True, exist_ok=True)
    suite.write_text(SUITE.format(steps=steps, seeds=seeds, eval_every=max(1, steps // 5)))
    if code := maxinforl(["sweep", str(suite), "--out", f"{out}/runs"]):
        sys.exit(code)
    maxinforl(["report", f"{out}/runs", "--out", f"{out}/report.html"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
