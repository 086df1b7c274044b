"""Ten thousand synthetic runs, summarised and reported: python benchmarks/report_scale.py [--runs N] [--out FILE]."""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import tomli_w

from maxinforl.experiments.report import report

METHODS, TASKS, POINTS = 10, 20, 100
HEADER = "step,env_step,seed,mean_return,std_return,min_return,max_return,mean_length,episodes"


def write_run(folder: Path, method: int, task: int, seed: int) -> None:
    """A run directory as training leaves it: a hundred evaluations, a hundred log lines."""
    folder.mkdir(parents=True)
    algo, env = f"method-{method}", f"dmc/task-{task}"
    config = {"format": 1, "algo": algo, "env": env, "seed": seed, "steps": 100_000, "command": f"maxinforl {algo}"}
    config |= {"settings": {"seed": seed, "action_cost": 0.0}, "agent": {"lr": 3e-4}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    generator = np.random.default_rng((method, task, seed))
    steps = np.linspace(0, 100_000, POINTS + 1, dtype=int)[1:]
    curve = 1000 / (1 + np.exp(-(np.arange(POINTS) - 50 - 3 * generator.normal()) / (5 + method)))
    lines = [f"{s},{2 * s},{seed},{v!r},1.0,{v!r},{v!r},1000,5" for s, v in zip(steps, curve.tolist())]
    (folder / "eval.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    values = {"explore/alpha1": 0.5, "explore/alpha2": 0.1, "explore/info_gain": 3.0, "train/q": 1.0, "time/fps": 100.0}
    rows = [{"step": int(s), "env_step": int(2 * s), **values} for s in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON too")
    args = parser.parse_args()
    seeds = max(1, args.runs // (METHODS * TASKS))
    with tempfile.TemporaryDirectory() as scratch:
        for method, task, seed in np.ndindex(METHODS, TASKS, seeds):
            write_run(Path(scratch) / f"m{method}" / f"t{task}" / f"seed-{seed}", method, task, seed)
        began, cpu = time.perf_counter(), time.process_time()
        page = report([scratch], Path(scratch) / "report.html")
        took = {
            "runs": METHODS * TASKS * seeds,
            "seconds": round(time.perf_counter() - began, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            "page_mb": round(page.stat().st_size / 1e6, 1),
        }
    print(json.dumps(took))
    if args.out:
        args.out.write_text(json.dumps(took, indent=2) + "\n")


if __name__ == "__main__":
    main()
