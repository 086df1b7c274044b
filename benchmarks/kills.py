"""SIGKILL against exact resume: every run that is killed must end as its twin that never was.

    python benchmarks/kills.py --out /tmp/kills --log benchmarks/kills.jsonl --kills 50

For each kind of run a twin is trained without interruption; then copies of it are killed, a share of them inside a
checkpoint write and the others at a random moment after the first checkpoint, and resumed. eval.csv and the final
weights are compared byte for byte. One JSON line per kill; kills that the log already holds are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from maxinforl.errors import BadInput
from maxinforl.training.store import CheckpointStore

PAUSE = "KILLS_PAUSE"  # tells `wrapped` at which call of files.stage to stop and wait for the kill
SMALL = ["--set", "base.hidden=[16,16]", "--batch-size", "16", "--eval-episodes", "2", "--log-every", "50"]
KINDS = {
    "sac": ["--algo", "sac", "--env", "Pendulum-v1"],
    "maxinfo-sac": ["--algo", "maxinfo-sac", "--env", "Pendulum-v1"],
    "eps-maxinfo-sac": ["--algo", "eps-maxinfo-sac", "--env", "Pendulum-v1", "--learning-starts", "30"],
    "eipo-sac": ["--algo", "eipo-sac", "--env", "Pendulum-v1", "--learning-starts", "30"],
    "drqv2": ["--algo", "drqv2", "--env", "pixels/pendulum-hanging", "--image-size", "36", "--batch-size", "4"],
    "num-envs": ["--algo", "sac", "--env", "Pendulum-v1", "--num-envs", "4"],
    "seeds": ["--algo", "sac", "--env", "Pendulum-v1", "--seeds", "0-2"],
    "compiled": ["--algo", "sac", "--env", "jax/pendulum-hanging"],
}


def wrapped() -> int:
    """This process as `maxinforl`, stopped for good at the stage of a write that the environment names."""
    from maxinforl import cli, files

    left = int(os.environ.get(PAUSE, "0"))

    def stage(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            print(f"PAUSED in {name}", flush=True)
            time.sleep(1000)

    if left:
        files.stage = stage
    return cli.main(sys.argv[2:])


def command(arguments: list[str]) -> list[str]:
    return [sys.executable, __file__, "wrapped", *arguments]


def seeds_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("seed-*")) or [directory]


def last_step(directory: Path) -> int:
    """The newest step of which every seed has a checkpoint; 0 where there is none."""
    steps = [set(CheckpointStore(d / "checkpoints").steps()) for d in seeds_of(directory)]
    return max(set.intersection(*steps), default=0)


def fate(directory: Path) -> dict[str, bytes]:
    """What must be the same to the bit: evaluations and final weights of every seed."""
    found = {}
    for run in seeds_of(directory):
        state = CheckpointStore(run / "checkpoints").load().state
        found[f"{run.name if run != directory else ''}/eval"] = (run / "eval.csv").read_bytes()
        found |= {f"{run.name if run != directory else ''}/{k}": v.tobytes() for k, v in state.items() if "agent/" in k}
    return found


def flags(kind: str, steps: int) -> list[str]:
    period = str(max(1, steps // 12))
    return ["train", *SMALL, *KINDS[kind], "--steps", str(steps), "--save-every", period, "--eval-every", period]


def complete(arguments: list[str]) -> str:
    ran = subprocess.run(command(arguments), capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def killed(kind: str, out: Path, steps: int, inside: bool, rng: random.Random) -> dict:
    """Starts a run and kills it, in the midst of a checkpoint write or a random time after the first one."""
    pause = {PAUSE: str(rng.randint(40, 120))} if inside else {}
    process = subprocess.Popen(
        command([*flags(kind, steps), "--out", str(out)]), stdout=subprocess.PIPE, text=True, env=os.environ | pause
    )
    assert process.stdout is not None
    where = "between writes"
    if inside:
        where = next((line.strip() for line in process.stdout if line.startswith("PAUSED")), "after its end")
    else:
        while process.poll() is None and not last_step_or_none(out):
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return {"kind": kind, "inside": inside, "where": where, "killed": process.returncode == -9, "died": step_of(out)}


def last_step_or_none(out: Path) -> int:
    try:
        return last_step(out)
    except (OSError, BadInput):
        return 0


def step_of(out: Path) -> int:
    """The last step that the run logged or evaluated before it died."""
    lines = [(run / "eval.csv").read_text().splitlines() for run in seeds_of(out) if (run / "eval.csv").exists()]
    return max((int(line[-1].split(",")[0]) for line in lines if len(line) > 1), default=0)


def trial(kind: str, number: int, inside: bool, args: argparse.Namespace) -> dict:
    twin, out = args.out / f"{kind}-twin", args.out / f"{kind}-{number}"
    if not (twin / "done").exists():
        subprocess.run(["rm", "-rf", str(twin)], check=True)
        complete([*flags(kind, args.steps), "--out", str(twin)])
        (twin / "done").touch()
    subprocess.run(["rm", "-rf", str(out)], check=True)
    line = killed(kind, out, args.steps, inside, random.Random(f"{kind} {number}"))
    line["resumed"] = last_step(out)
    said = complete(["resume", str(out)])
    line["said"] = next((text for text in said.splitlines() if text.startswith(("resuming", str(out)))), "")
    line["same"] = fate(twin) == fate(out)
    return {"number": number} | line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs go")
    parser.add_argument("--log", type=Path, default=Path("kills.jsonl"))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    args = parser.parse_args()
    done = {json.loads(line)["number"] for line in args.log.read_text().splitlines()} if args.log.exists() else set()
    args.out.mkdir(parents=True, exist_ok=True)
    for number in range(args.kills):
        if number not in done:
            kind, inside = args.kinds[number % len(args.kinds)], number // len(args.kinds) % 3 == 0
            line = trial(kind, number, inside, args)
            print(json.dumps(line), flush=True)
            with args.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
    lines = [json.loads(line) for line in args.log.read_text().splitlines()]
    same, within = sum(line["same"] for line in lines), sum(line["inside"] and line["killed"] for line in lines)
    print(f"{same} of {len(lines)} resumed runs equal their twins; {within} were killed inside a checkpoint write")
    return 0 if same == len(lines) else 1


if __name__ == "__main__":
    sys.exit(wrapped() if sys.argv[1:2] == ["wrapped"] else main())
