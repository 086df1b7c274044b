"""Whether two versions of the library compute the same: runs of many kinds, compared tensor by tensor.

    PYTHONPATH=OLD/src python benchmarks/same_numbers.py make before
    python benchmarks/same_numbers.py make after
    python benchmarks/same_numbers.py compare before after

Names of tensors may differ between versions: they are compared in the order in which an agent lists them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

NARROW = "--batch-size 8 --set base.hidden=[8,8] --eval-every 50 --eval-episodes 2 --log-every 25 --save-every 100"
SMALL = f"{NARROW} --steps 150 --learning-starts 20"
IMAGES = f"{SMALL} --image-size 16 --set base.encoder.latent=4 --env pixels/pendulum-hanging"
FULL = "--steps 2000 --eval-every 1000 --eval-episodes 2"

RUNS = {
    "sac-full": f"--algo sac --env Pendulum-v1 {FULL}",
    "maxinfo-sac-full": f"--algo maxinfo-sac --env MountainCarContinuous-v0 {FULL}",
    "eps-full": f"--algo eps-maxinfo-sac --env pendulum-hanging {FULL}",
    "maxinfo-redq": f"--algo maxinfo-redq --env Pendulum-v1 {SMALL} --update-ratio 4",
    "droq": f"--algo droq --env Pendulum-v1 {SMALL}",
    "maxinfo-oac": f"--algo maxinfo-oac --env Pendulum-v1 {SMALL}",
    "maxinfo-ddpg": f"--algo maxinfo-ddpg --env Pendulum-v1 {SMALL}",
    "maxinfo-rnd": f"--algo maxinfo-rnd-sac --env Pendulum-v1 {SMALL}",
    "eipo": f"--algo eipo-sac --env pendulum-hanging {SMALL}",
    "sum": f"--algo intrinsic-sac --env pendulum-hanging {SMALL}",
    "then": f"--algo curiosity-sac --env pendulum-hanging {SMALL} --num-envs 2",
    "several-environments": f"--algo maxinfo-sac --env Pendulum-v1 {SMALL} --num-envs 4 --action-cost 0.1",
    "several-seeds": f"--algo maxinfo-sac --env Pendulum-v1 {SMALL} --seeds 0-2",
    "compiled": f"--algo maxinfo-sac --env jax/pendulum-hanging {SMALL} --num-envs 2",
    "compiled-seeds": f"--algo eps-maxinfo-sac --env jax/pendulum-hanging {SMALL} --seeds 0-1",
    "workers": f"--algo sac --env Pendulum-v1 {SMALL} --workers --num-envs 2",
    "skip": f"--algo maxinfo-sac --env Pendulum-v1 {SMALL} --on-nan skip --record-states",
    "drqv2": f"--algo drqv2 {IMAGES}",
    "maxinfo-drq": f"--algo maxinfo-drq {IMAGES}",
    "maxinfo-drm": f"--algo maxinfo-drm {IMAGES}",
    "killed": f"--algo maxinfo-sac --env Pendulum-v1 {NARROW} --steps 3000 --seed 3",
}
PREEMPTED = 75


def maxinforl(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "maxinforl", *arguments], stdout=subprocess.DEVNULL).returncode


def make(out: Path) -> None:
    """Every run that is not there yet; the one called `killed` is killed after its first checkpoint, then resumed."""
    for name, flags in RUNS.items():
        if (out / name / "done").exists():
            continue
        began = time.perf_counter()
        if name == "killed":
            kill_at_checkpoint(flags.split(), out / name)
        code = maxinforl("resume", str(out / name)) if name == "killed" else None
        code = maxinforl("train", *flags.split(), "--out", str(out / name)) if code is None else code
        if code != 0:
            raise SystemExit(f"{name} ended with {code}")
        (out / name / "done").touch()
        print(f"{name:22} {time.perf_counter() - began:6.1f} s", flush=True)


def kill_at_checkpoint(flags: list[str], out: Path) -> None:
    command = [sys.executable, "-m", "maxinforl", "train", *flags, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not any(out.glob("checkpoints/step-*")):
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def weights(run: Path) -> list[tuple[str, np.ndarray]]:
    """The agent in the last checkpoint, in the order in which its manifest or file lists it."""
    newest = max(run.glob("checkpoints/step-*"))
    arrays = load_file(newest / "state.safetensors")
    return [(name, arrays[name]) for name in listed(newest) if name.startswith("agent/")]


def listed(checkpoint: Path) -> list[str]:
    """Names as they lie in the file, which is the order of the tree."""
    with open(checkpoint / "state.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    placed = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return sorted(placed, key=lambda name: placed[name])


def compare(before: Path, after: Path) -> bool:
    """Whether all evaluations and all tensors are the same; prints a line for each run."""
    same = True
    for name in RUNS:
        runs = sorted(p.parent for p in (before / name).glob("**/config.toml"))
        tensors, differ = 0, []
        for run in runs:
            other = after / run.relative_to(before)
            if (run / "eval.csv").read_bytes() != (other / "eval.csv").read_bytes():
                differ.append(f"{run.name}/eval.csv")
            ours, theirs = weights(run), weights(other)
            tensors += len(ours)
            if len(ours) != len(theirs):
                differ.append(f"{len(ours)} tensors, {len(theirs)} after")
            differ += [a for (a, x), (_, y) in zip(ours, theirs) if x.shape != y.shape or x.tobytes() != y.tobytes()]
        same &= not differ and bool(runs)
        verdict = "same" if not differ else f"DIFFERS: {', '.join(differ[:4])}"
        print(f"{name:22} {len(runs)} run{'s' * (len(runs) != 1)}, {tensors:4} tensors: {verdict}")
    return same


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "make":
        make(Path(paths[0]))
    else:
        sys.exit(not compare(*map(Path, paths)))
