"""What a worker process costs: resident memory and seconds until its environment is ready.

    python benchmarks/workers.py benchmarks/workers.json --label "some label"

Each line of the file is one measurement; the label says of what. Linux only.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from maxinforl.envs import make_pool


def resident_mb(pid: int) -> float:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024


def measure(env: str) -> tuple[float, float, bool]:
    """Memory and start time of one worker, and whether it loaded JAX."""
    began = time.perf_counter()
    pool = make_pool(env, workers=True)
    took = time.perf_counter() - began
    pid = pool.envs[0]._process.pid
    loaded = "jaxlib" in Path(f"/proc/{pid}/maps").read_text()
    memory = resident_mb(pid)
    pool.close()
    return memory, took, loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--label", default="")
    parser.add_argument("--envs", nargs="+", default=["Pendulum-v1", "dmc/cartpole-swingup"])
    parser.add_argument("--count", type=int, default=5)
    args = parser.parse_args()
    lines = json.loads(args.out.read_text()) if args.out.exists() else []
    for env in args.envs:
        memory, seconds, jax = zip(*(measure(env) for _ in range(args.count)))
        line = {"label": args.label, "env": env, "workers": args.count, "jax": any(jax)}
        line |= {"resident_mb": round(statistics.median(memory), 1), "start_s": round(statistics.median(seconds), 2)}
        lines.append(line)
        print(line)
    args.out.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
