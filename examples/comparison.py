"""Two algorithms, several seeds each, and one page that compares them.

python examples/comparison.py [STEPS]
"""

import sys
from pathlib import Path

from maxinforl.cli import main as maxinforl


def main(steps: int = 5_000, out: str = "runs/comparison") -> None:
    common = ["--env", "pendulum-hanging", "--steps", str(steps), "--seeds", "0-1", "--batch-size", "64"]
    common += ["--eval-every", str(max(1, steps // 5)), "--eval-episodes", "2", "--set", "base.hidden=[64,64]"]
    for algo in ("sac", "maxinfo-sac"):
        folder = Path(out) / algo
        # resuming skips every seed that is finished, so the script may be stopped and started again
        command = (
            ["resume", str(folder)] if folder.exists() else ["train", "--algo", algo, *common, "--out", str(folder)]
        )
        if code := maxinforl(command):
            sys.exit(code)
    maxinforl(["report", out, "--out", f"{out}/report.html"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
