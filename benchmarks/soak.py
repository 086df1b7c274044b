"""A long run with exceptions, hangs, NaN and signals, resumed until it is finished.

    python benchmarks/soak.py --out /tmp/soak --log benchmarks/soak.jsonl --steps 200000

Trains a tiny MaxInfoSAC on a pendulum that breaks: it raises, gives NaN, ends its process or hangs, in worker
processes; some rewards are so large that their update is not finite and is skipped. SIGTERM comes every few minutes and
the run is resumed. Twelve times in a life, at most every ten seconds, a JSON line records the step, resident memory and
open files of the parent. Over the second half of every life memory must stay within 5 % and the number of open files
within 3; a life with fewer than four looks says nothing and fails, unless it is the last. Stopped itself, it goes on
where it was. Ends with a summary and the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

HERE = Path(__file__).parent
PREEMPTED = 75
RATES = {"exception": 2e-4, "observation": 1e-4, "exit": 3e-5, "hang": 1e-5, "reward": 5e-4}  # per step


class Unreliable(gym.Wrapper):
    """Pendulum-v1 that breaks at random; what happens in an episode is a function of its seed."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1"))

    def reset(self, *, seed=None, options=None):
        self.luck = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        happens = {kind: self.luck.random() < rate for kind, rate in RATES.items()}
        if happens["exception"]:
            raise RuntimeError("injected")
        if happens["exit"]:
            os._exit(1)
        if happens["hang"]:
            time.sleep(10_000)
        if happens["observation"]:
            obs = obs * np.nan
        return obs, 1e38 if happens["reward"] else reward, *rest


gym.register("Unreliable-v0", Unreliable, max_episode_steps=200)


def command(args: argparse.Namespace) -> list[str]:
    base = [sys.executable, "-m", "maxinforl.cli"]
    if (args.out / "config.toml").exists():
        return [*base, "resume", str(args.out), "--env", "soak:Unreliable-v0"]
    small = [
        "--set",
        "base.hidden=[16,16]",
        "--set",
        "intrinsic.hidden=[8,8]",
        "--batch-size",
        "16",
        "--eval-episodes",
        "0",
        "--keep",
        "2",
    ]
    faults = ["--workers", "--num-envs", "2", "--env-timeout", "5", "--max-faults", "100000", "--on-nan", "skip"]
    run = [
        "train",
        "--algo",
        "maxinfo-sac",
        "--env",
        "soak:Unreliable-v0",
        "--steps",
        str(args.steps),
        "--save-every",
        "2000",
    ]
    return [*base, *run, *small, *faults, "--capacity", "20000", "--out", str(args.out)]


def last_line(path: Path) -> dict:
    lines = path.read_bytes().splitlines()[-1:] if path.exists() else []
    return json.loads(lines[0]) if lines else {}


def observe(pid: int, args: argparse.Namespace, life: int) -> dict:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    line = last_line(args.out / "metrics.jsonl")
    facts = {
        "step": line.get("step", 0),
        "faults": line.get("rollout/faults"),
        "skipped": line.get("train/skipped_total"),
    }
    own = {"time": time.time(), "life": life, "rss": pages * os.sysconf("SC_PAGE_SIZE")}
    return own | {"files": len(os.listdir(f"/proc/{pid}/fd"))} | facts


def live(args: argparse.Namespace, life: int) -> int:
    """One life of the run, ended by SIGTERM after a while; its exit code."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with (args.out.parent / "soak.txt").open("a") as said:
        process = subprocess.Popen(command(args), env=env, stdout=said, stderr=said)
        began = time.monotonic()
        while process.poll() is None:
            time.sleep(min(10, args.minutes * 5))
            if process.poll() is None:
                with args.log.open("a") as log:
                    log.write(json.dumps(observe(process.pid, args, life)) + "\n")
            if time.monotonic() - began > args.minutes * 60:
                process.send_signal(signal.SIGTERM)
                return process.wait()
        return process.returncode


def verdict(args: argparse.Namespace) -> bool:
    """Whether memory stayed within 5 % and the number of open files within 3 over the second half of each life."""
    lives: dict[int, list[dict]] = {}
    for line in args.log.read_text().splitlines():
        lives.setdefault(json.loads(line)["life"], []).append(json.loads(line))
    found = [judged(life, lines, last=life == max(lives)) for life, lines in lives.items()]
    ends = [lines[-1] for lines in lives.values()]
    flat = all(life["flat"] for life in found)
    print(
        f"{len(found)} lives to step {ends[-1]['step']}, {ends[-1]['faults']} faults: {'flat' if flat else 'not flat'}"
    )
    print(json.dumps({"lives": found, "faults": ends[-1]["faults"], "skipped": ends[-1]["skipped"], "flat": flat}))
    return flat


def judged(life: int, lines: list[dict], last: bool) -> dict:
    """A life in numbers, over the second half of its looks."""
    half = lines[len(lines) // 2 :]
    rss, handles = ([line[name] for line in half] for name in ("rss", "files"))
    flat = max(rss) <= 1.05 * min(rss) and max(handles) - min(handles) <= 3 and len(lines) >= 4
    return {
        "life": life,
        "looks": len(lines),
        "steps": [lines[0]["step"], lines[-1]["step"]],
        "mb": [round(min(rss) / 1e6), round(max(rss) / 1e6)],
        "files": [min(handles), max(handles)],
        "flat": flat or (last and len(lines) < 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="run directory")
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=4.0, help="minutes between two SIGTERMs")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    life = (last_line(args.log).get("life", -1) if args.log.exists() else -1) + 1
    while (code := live(args, life)) == PREEMPTED:
        life += 1
    print(f"ended with code {code} in life {life}")
    return 0 if code == 0 and verdict(args) else 1


if __name__ == "__main__":
    sys.exit(main())
