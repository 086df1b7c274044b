"""A run that is stopped and goes on bit for bit, as on a cluster that pre-empts.

python examples/resuming.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

from maxinforl.cli import main as maxinforl

PREEMPTED = 75  # also what Ctrl-C and SIGTERM lead to, after a checkpoint was written


def main(steps: int = 4_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        task = ["--algo", "sac", "--env", "Pendulum-v1", "--steps", str(steps), "--batch-size", "64"]
        code = maxinforl(["train", *task, "--max-hours", "0.00001", "--out", str(run)])  # stops as if time were up
        print(f"exit code {code}; checkpoints: {sorted(p.name for p in (run / 'checkpoints').glob('step-*'))}")
        assert code == PREEMPTED
        # The limit was part of the run, so it is lifted here; after a signal plain `maxinforl resume DIR` is enough.
        config = run / "config.toml"
        config.write_text("".join(line for line in config.open() if not line.startswith("max_hours")))
        assert maxinforl(["resume", str(run)]) == 0
        print((run / "eval.csv").read_text())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
