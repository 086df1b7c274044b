"""SIGKILL and exact resume: every run that is killed must end bit-identical to an uninterrupted one.

    python benchmarks/kills.py --out /tmp/kills --log benchmarks/kills.jsonl --kills 100

For each kind of run a reference, its twin, is trained without interruption; then copies of it are killed and resumed.
Every second kill comes before the first checkpoint is complete: inside the write of config.toml, inside the first
checkpoint, or at a step before it. Of the others, half come inside the write of a later checkpoint, at each stage of it
in turn, and half at a random step. Runs are of the command line (one run, several environments, several seeds, the
compiled loop), of the Python API (`make`, and a loaded agent that learns on) and of a sweep, which is killed with its
runs after a random time. eval.csv and the final weights are compared byte for byte. One JSON line per kill, with the
step that training had reached (`died`) and the one it resumed from (`resumed`); a kill that lost no work is repeated,
and kills that are already in the log are skipped. The last line is a summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from maxinforl.training.store import CheckpointStore

PLAN = "KILLS_PLAN"  # tells `wrapped` when to ask for the kill, and where to note the step
STAGES = (
    *("segment writing", "segment written", "segment renamed"),
    *("state.safetensors writing", "state.safetensors written", "state.safetensors renamed"),
    *("manifest.json writing", "manifest.json written", "manifest.json renamed"),
    *("checkpoint renamed", "old checkpoint unnamed", "old checkpoints removed"),
)
MOST = {"segment writing": 40, "state.safetensors writing": 200}  # calls of a stage to choose from; others have 6
BEFORE = "before the first checkpoint"
OPENING = ("config.toml writing", "config.toml written", "config.toml renamed")
TRIES = 20
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
    "python": [],
    "loaded": [],
    "sweep": [],
}
API = ("python", "loaded")
SUITE = """algorithms = ["sac"]
environments = ["Pendulum-v1"]
seeds = 2
[settings]
steps = {steps}
save_every = {every}
eval_every = {every}
eval_episodes = 2
batch_size = 16
set = {{"base.hidden" = [16, 16]}}
"""


def wrapped() -> int:
    """This process as `maxinforl`, which notes its step and asks for the kill where the plan says."""
    from maxinforl import cli, files
    from maxinforl.training.compiled import CompiledTrainer
    from maxinforl.training.trainer import Trainer

    plan = json.loads(os.environ.get(PLAN, "{}"))
    start = through_api if sys.argv[2] in API else cli.main
    if not plan:
        return start(sys.argv[2:])
    note = os.open(plan["note"], os.O_WRONLY | os.O_CREAT)
    for kind in (Trainer, CompiledTrainer):

        def noted(self, most=1, advance=kind.advance):
            made = advance(self, most)
            os.pwrite(note, f"{self.step:09d}".encode(), 0)
            if self.step >= plan.get("step", math.inf):
                print("REACHED", flush=True)
            return made

        kind.advance = noted
    files.atomic.crash_point = (
        Pause(plan["stage"], plan["count"], plan["good"]) if "stage" in plan else files.atomic.crash_point
    )
    return start(sys.argv[2:])


def through_api(words: list[str]) -> int:
    """Begins a run from Python, or resumes it where there is one."""
    import maxinforl

    kind, steps, out = words[0], int(words[1]), Path(words[2])
    if (out / "config.toml").exists():
        try:
            maxinforl.resume(out)
            return 0
        except maxinforl.BadInput as error:
            if "trained before" not in str(error):
                raise
            shutil.rmtree(out)  # the agent was not in it yet: it is loaded again, as the sentence says
    often = {"save_every": period(steps), "eval_every": max(1, steps // 8), "log_every": 50, "eval_episodes": 2}
    small = {"batch_size": 16, "set": {"base.hidden": (16, 16)}}
    saved = out.parent / "learned"
    if kind == "loaded" and not saved.exists():
        maxinforl.make("sac", "Pendulum-v1", **often, **small).learn(50).save(saved)
    agent = maxinforl.load(saved) if kind == "loaded" else maxinforl.make("sac", "Pendulum-v1", **often, **small)
    agent.learn(steps, out=out)
    return 0


class Pause:
    """Stops a write for good at the count-th call of a stage, once `good` checkpoints are whole."""

    def __init__(self, stage: str, count: int, good: int):
        self.stage, self.left, self.good = stage, count, good

    def __call__(self, name: str) -> None:
        name = re.sub(r"segment-\d+\.safetensors", "segment", name)
        self.left -= self.good <= 0 and name == self.stage
        if self.left == 0:
            self.left = -1
            print("REACHED", flush=True)
            time.sleep(1000)
        self.good -= name == "old checkpoints removed"


def command(arguments: list[str]) -> list[str]:
    return [sys.executable, __file__, "wrapped", *arguments]


def seeds_of(directory: Path) -> list[Path]:
    """The directories of all runs in a directory."""
    return sorted({path.parent for path in directory.rglob("config.toml")}) or [directory]


def last_step(directory: Path) -> int:
    """The newest step of which every run has a checkpoint; 0 where there is none."""
    steps = [set(CheckpointStore(d / "checkpoints").steps()) for d in seeds_of(directory)]
    return max(set.intersection(*steps), default=0)


def fate(directory: Path) -> dict[str, bytes]:
    """What must be the same to the bit: evaluations and final weights of every seed."""
    found = {}
    for run in seeds_of(directory):
        state = CheckpointStore(run / "checkpoints").load().state
        name = run.relative_to(directory)
        found[f"{name}/eval"] = (run / "eval.csv").read_bytes()
        found |= {f"{name}/{k}": v.tobytes() for k, v in state.items() if "agent/" in k}
    return found


def begin(kind: str, steps: int, out: Path) -> list[str]:
    """The words that begin a run, or continue it wherever it was killed."""
    if kind in API:
        return [kind, str(steps), str(out)]
    if kind == "sweep":
        suite = out.parent / "suite.toml"
        suite.write_text(SUITE.format(steps=steps, every=period(steps)))
        return ["sweep", str(suite), "--out", str(out), "--jobs", "2"]
    often = ["--save-every", str(period(steps)), "--eval-every", str(max(1, steps // 8))]
    return ["train", *SMALL, *KINDS[kind], "--steps", str(steps), *often, "--out", str(out), "--resume"]


def period(steps: int) -> int:
    return max(1, steps // 12)


def complete(arguments: list[str]) -> str:
    ran = subprocess.run(command(arguments), capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def planned(kind: str, steps: int, stage: str | None, rng: random.Random, note: Path) -> dict:
    """When to kill: before the first checkpoint, at a call of a stage after that of every seed, or at a later step."""
    if stage == BEFORE:
        inside = rng.choice([*OPENING, *STAGES[:9], *STAGES[:9], None, None])
        at = {"stage": inside, "count": 1, "good": 0} if inside else {"step": rng.randint(1, max(1, period(steps) - 1))}
        return {"note": str(note), **at}
    if stage is None:
        return {"note": str(note), "step": rng.randint(period(steps) + 1, steps - 1)}
    count = rng.randint(1, MOST.get(stage, 6))
    return {"note": str(note), "stage": stage, "count": count, "good": 3 if kind == "seeds" else 1}


def killed(kind: str, out: Path, steps: int, stage: str | None, rng: random.Random) -> tuple[int, int]:
    """Starts a run and kills it; the step that training had reached, and the one it can go on from."""
    note = out.with_name(out.name + ".step")
    note.unlink(missing_ok=True)
    if kind == "sweep":
        return killed_sweep(out, steps, rng)
    plan = json.dumps(planned(kind, steps, stage, rng, note))
    words, env = begin(kind, steps, out), os.environ | {PLAN: plan}
    process = subprocess.Popen(command(words), stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    reached = any(line.startswith("REACHED") for line in process.stdout)
    beyond, deadline = rng.randint(1, period(steps)), time.monotonic() + 5
    while (
        reached
        and stage not in (None, BEFORE)
        and int(note.read_text()) < last_step(out) + beyond
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)  # training goes on beside the write, up to the next checkpoint
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if process.returncode != -signal.SIGKILL:
        return -1, 0
    return int(note.read_text() or 0) if note.exists() else 0, last_step(out)


def killed_sweep(out: Path, steps: int, rng: random.Random) -> tuple[int, int]:
    """Starts a sweep and kills it with all of its runs after a random time, counted from the first configuration."""
    process = subprocess.Popen(command(begin("sweep", steps, out)), stdout=subprocess.DEVNULL)
    while process.poll() is None and not any(out.rglob("config.toml")):
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 15))
    ended = process.poll() is not None
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL) if not ended else None
    process.wait()
    return (-1, 0) if ended else (last_step(out) + 1, last_step(out))


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def trial(kind: str, number: int, stage: str | None, args: argparse.Namespace) -> dict:
    twin, out, rng = args.out / f"{kind}-twin", args.out / f"{kind}-{number}", random.Random(f"{kind} {number}")
    if not (twin / "done").exists():
        subprocess.run(["rm", "-rf", str(twin)], check=True)
        complete(begin(kind, args.steps, twin))
        (twin / "done").touch()
    died, resumed, tries = -1, 0, 0
    while died < resumed or (kind != "sweep" and (resumed == 0) != (stage == BEFORE)):
        if (tries := tries + 1) > TRIES:
            raise SystemExit(f"kill {number} of {kind} cost no work {TRIES} times: take more --steps")
        subprocess.run(["rm", "-rf", str(out)], check=True)
        died, resumed = killed(kind, out, args.steps, stage, rng)
    said = complete(begin(kind, args.steps, out))
    line = {"number": number, "kind": kind, "stage": stage, "tries": tries, "died": died, "resumed": resumed}
    begins = [t for t in said.splitlines() if t.startswith("resuming") or t.endswith("starting again from step 0")]
    line["said"] = next(iter(begins), "").replace(str(out), out.name)
    return line | {"same": fate(twin) == fate(out)}


def stage_of(number: int, kinds: int) -> str | None:
    """Every second round over the kinds is killed before the first checkpoint, every fourth inside later writes, each
    at another stage."""
    turn, kind = divmod(number, kinds)
    if turn % 2 == 0:
        return BEFORE
    return None if turn % 4 == 3 else STAGES[(turn // 4 * kinds + kind) % len(STAGES)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs go")
    parser.add_argument("--log", type=Path, default=Path("kills.jsonl"))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    args = parser.parse_args()
    done = {json.loads(line)["number"] for line in args.log.read_text().splitlines()} if args.log.exists() else set()
    args.out.mkdir(parents=True, exist_ok=True)
    trials = [(args.kinds[n % len(args.kinds)], stage_of(n, len(args.kinds))) for n in range(args.kills)]
    for number, (kind, stage) in enumerate(trials):
        if number not in done:
            line = trial(kind, number, stage, args)
            print(json.dumps(line), flush=True)
            with args.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
    lines = [json.loads(line) for line in args.log.read_text().splitlines()]
    same, before = sum(line["same"] for line in lines), sum(line["resumed"] == 0 for line in lines)
    stages = Counter(line["stage"] or "at a step" for line in lines)
    kinds = Counter(line["kind"] for line in lines)
    print(f"{same} of {len(lines)} killed runs end equal to their twins; {before} had no complete checkpoint yet")
    print(json.dumps({"kills": len(lines), "same": same, "before": before, "stages": stages, "kinds": kinds}))
    return 0 if same == len(lines) else 1


if __name__ == "__main__":
    sys.exit(wrapped() if sys.argv[1:2] == ["wrapped"] else main())
