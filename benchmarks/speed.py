"""Floor, update and whole agent step of SAC and MaxInfoSAC in one run; writes benchmarks/speed.json.

    python benchmarks/speed.py [--algos sac maxinfo-sac] [--json FILE]

The floor is one jitted program of exactly the matrix products of an update: forward, input gradients and weight
gradients, operands as arguments, results returned, batched as the update batches them.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from maxinforl.algorithms import algorithm, with_uncertainty
from maxinforl.experiments.speed import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algos", nargs="+", default=["sac", "maxinfo-sac", "maxinfo-sac:light"])
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    rows = []
    print(
        f"{'algorithm':20} {'GFLOP':>6} {'floor':>7} {'update':>7} {'step':>7}  u/floor  s/update  GFLOP/s floor, 1024²"
    )
    for name in args.algos:
        algo, _, uncertainty = name.partition(":")
        row, machine = measure(name, with_uncertainty(algorithm(algo), uncertainty or "paper"))
        rows.append(asdict(row) | machine)
        print(
            f"{name:20} {row.gflop:6.2f} {row.floor_ms:7.2f} {row.update_ms:7.2f} {row.step_ms:7.2f}"
            f"  {row.update_ms / row.floor_ms:7.2f}  {row.step_ms / row.update_ms:8.2f}"
            f"  {row.gflop / row.floor_ms * 1e3:13.0f}, {machine['matmul_gflops']:.0f}"
        )
    args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
