"""How the weight of the intrinsic reward evolves: MaxInfo's α2 against EIPO's 1/λ.

python benchmarks/weights.py results/pendulum-hanging results/pendulum-hanging-cost --picture results/weights.png
Reads every metrics.jsonl below the directories, draws a panel for each and prints first, lowest and last means.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

NAMES = {"explore/alpha2": "α2", "explore/intrinsic_weight": "1/λ"}


def curves(cell: Path) -> tuple[str, np.ndarray] | None:
    """Which weight a cell's runs have, and (step, weight) over seeds: [seeds, points, 2]."""
    paths = sorted(cell.glob("seed-*/metrics.jsonl"))
    runs = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    for name in NAMES:
        points = [[(line["step"], line[name]) for line in run if name in line] for run in runs]
        if points and all(points):
            shortest = min(map(len, points))
            return name, np.array([p[:shortest] for p in points])
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--only", default="maxinfo-sac,eipo-sac", help="names of cells")
    parser.add_argument("--picture", type=Path, required=True)
    args = parser.parse_args()
    count = len(args.directories)
    figure, panels = plt.subplots(1, count, figsize=(4.2 * count, 3.4), squeeze=False, layout="constrained")
    print("| task | run | weight | first | lowest | last |\n|---|---|---|---|---|---|")
    for directory, axes in zip(args.directories, panels[0]):
        for name in args.only.split(","):
            found = curves(directory / name)
            if found is None:
                continue
            kind, runs = found
            step, mean = runs[0, :, 0], runs[..., 1].mean(0)
            (line,) = axes.plot(step, mean, label=f"{name}: {NAMES[kind]}")
            axes.fill_between(step, runs[..., 1].min(0), runs[..., 1].max(0), color=line.get_color(), alpha=0.2, lw=0)
            first, least, last = mean[0], mean.min(), mean[-1]
            print(f"| {directory.name} | {name} | {NAMES[kind]} | {first:.2f} | {least:.2f} | {last:.2f} |")
        axes.set(title=directory.name, xlabel="agent steps", ylabel="weight of the intrinsic reward", ylim=(0, None))
        axes.legend(fontsize=8)
    figure.savefig(args.picture, dpi=120)


if __name__ == "__main__":
    main()
