"""Time per agent step of other implementations and of this one, measured in turn.

    python -m venv sbx && sbx/bin/pip install sbx-rl
    python benchmarks/rivals.py --sbx sbx/bin/python

Pendulum-v1, batches of 256, 256-wide networks, one update per step. Each turn is a new process that compiles,
warms up and times ten blocks of 100 steps; ms per agent step, the best block. Writes rivals.json.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

SBX = """
import time
from sbx import SAC
model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=100, policy_kwargs={"net_arch": [256, 256]})
model.learn(400)
for _ in range(10):
    began = time.perf_counter()
    model.learn(100, reset_num_timesteps=False)
    print(10 * (time.perf_counter() - began))
"""
OURS = """
import time
from maxinforl.experiments.speed import TimedAgent
from maxinforl.settings import Settings
subject = TimedAgent(Settings(algo="{algo}", uncertainty="{uncertainty}", env="Pendulum-v1"))
for _ in range(300):
    subject.step()
for _ in range(10):
    began = time.perf_counter()
    for _ in range(100):
        subject.step()
    print(10 * (time.perf_counter() - began))
"""


def milliseconds(python: str, code: str) -> float:
    """The best of what a program prints, ms per agent step."""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return min(float(line) for line in done.stdout.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sbx", required=True, help="the Python of an environment with sbx-rl")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    programs = {
        "sbx sac": (args.sbx, SBX),
        "sac": (sys.executable, OURS.format(algo="sac", uncertainty="light")),
        "maxinfo-sac light": (sys.executable, OURS.format(algo="maxinfo-sac", uncertainty="light")),
        "maxinfo-sac paper": (sys.executable, OURS.format(algo="maxinfo-sac", uncertainty="paper")),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(args.turns):
        for name, (python, code) in programs.items():
            times[name].append(milliseconds(python, code))
            print(f"turn {turn}: {name} {times[name][-1]:.2f} ms", flush=True)
    rows = [{"name": name, "step_ms": min(found), "turns_ms": found} for name, found in times.items()]
    Path(__file__).with_name("rivals.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
