"""The README's picture, from the raw curves in results/mountain-car and the states of one run of each algorithm.

maxinforl train --algo maxinfo-sac --record-states --out runs/maxinfo
maxinforl train --algo sac --record-states --out runs/sac
python benchmarks/mountain_car_picture.py runs/maxinfo runs/sac docs/images/mountain-car.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = {"maxinfo-sac": "#0b6e99", "sac": "#c2571a"}
NAMES = {"maxinfo-sac": "MaxInfoSAC", "sac": "SAC"}


def main(maxinfo: Path, sac: Path, out: Path) -> None:
    results = Path(__file__).parents[1] / "results" / "mountain-car"
    figure = Figure((11, 3.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    curve, *phases = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    for algo in NAMES:
        runs = [
            np.genfromtxt(p, delimiter=",", skip_header=1) for p in sorted((results / algo).glob("seed-*/eval.csv"))
        ]
        returns = np.stack([run[:, 3] for run in runs])
        curve.plot(runs[0][:, 0], returns.T, color=COLOURS[algo], alpha=0.25, linewidth=1)
        curve.plot(
            runs[0][:, 0], returns.mean(0), color=COLOURS[algo], linewidth=2, label=f"{NAMES[algo]} ({len(runs)} seeds)"
        )
    curve.set(xlabel="agent steps", ylabel="return", title="MountainCarContinuous-v0")
    curve.legend(frameon=False)
    for axes, algo, run in zip(phases, NAMES, (maxinfo, sac)):
        states = np.load(run / "states.npz")
        dots = axes.scatter(*states["obs"].T, c=states["step"], s=3, cmap="viridis", linewidths=0)
        axes.axvline(0.45, color="grey", linewidth=1, linestyle=":")
        axes.set(xlabel="position", ylabel="velocity", xlim=(-1.25, 0.65), ylim=(-0.075, 0.075))
        axes.set_title(f"states {NAMES[algo]} visited")
    figure.colorbar(dots, ax=phases, label="agent step")
    for axes in (curve, *phases):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


if __name__ == "__main__":
    main(*(Path(a) for a in sys.argv[1:4]))
