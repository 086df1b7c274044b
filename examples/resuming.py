"""A run that is preempted and resumed bit for bit, as on a cluster.

python examples/resuming.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

from maxinforl.cli import main as maxinforl

PREEMPTED = 75  # the exit code of Ctrl-C and SIGTERM too, after a checkpoint is written


def main(steps: int = 4_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        task = ["--algo", "sac", "--env", "Pendulum-v1", "--steps", str(steps), "--batch-size", "64"]
        code = maxinforl(["train", *task, "--max-hours", "0.00001", "--out", str(run)])  # as if time were up
        print(f"exit code {code}; checkpoints: {sorted(p.name for p in (run / 'checkpoints').glob('step-*'))}")
        assert code == PREEMPTED
        # The time limit is a setting of the run, so it is raised here; after a signal `maxinforl resume DIR` suffices.
        assert maxinforl(["resume", str(run), "--override", "--max-hours", "1"]) == 0
        print((run / "eval.csv").read_text())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
