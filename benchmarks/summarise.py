"""A Markdown table of runs: python benchmarks/summarise.py results/mountain-car --threshold 90."""

import argparse
import tomllib
from pathlib import Path

import numpy as np


def outcome(cell: Path, threshold: float) -> tuple[np.ndarray, list[int | None]]:
    """The last return of every seed, and the first step at which each was at or above the threshold."""
    runs = [np.genfromtxt(p, delimiter=",", skip_header=1) for p in sorted(cell.glob("seed-*/eval.csv"))]
    firsts = [next((int(r[0]) for r in run if r[3] >= threshold), None) for run in runs]
    return np.array([run[-1, 3] for run in runs]), firsts


def rows(directory: Path, threshold: float) -> list[str]:
    table = [
        "| run | seeds | final return (mean ± se) | first step at threshold, per seed | seeds that reach it |",
        "|---|---|---|---|---|",
    ]
    for cell in sorted(p for p in directory.iterdir() if list(p.glob("seed-*/eval.csv"))):
        final, firsts = outcome(cell, threshold)
        error = final.std(ddof=1) / len(final) ** 0.5 if len(final) > 1 else float("nan")
        reached = sum(f is not None for f in firsts)
        listed = ", ".join("–" if f is None else str(f) for f in firsts)
        table.append(
            f"| {cell.name} | {len(final)} | {final.mean():.1f} ± {error:.1f} | {listed} | {reached} of {len(final)} |"
        )
    return table


def provenance(directory: Path) -> list[str]:
    lines = []
    for path in sorted(directory.glob("*/seed-*/config.toml")):
        with path.open("rb") as file:
            config = tomllib.load(file)
        versions = config["versions"]
        made = f"commit `{versions.get('commit', '?')[:10]}`, jax {versions['jax']}, {config['cores']} cores"
        line = f"- `{config['command']}` at {made}"
        if line not in lines:
            lines.append(line)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threshold", type=float, required=True)
    args = parser.parse_args()
    print("\n".join([*rows(args.directory, args.threshold), "", "Commands:", "", *provenance(args.directory)]))
