"""The README's second picture: every seed of `dmc/pendulum-swingup` in results/hard-exploration, and public curves.

python benchmarks/pendulum_picture.py docs/images/pendulum-swingup.png
"""

import sys
from pathlib import Path

import numpy as np

from maxinforl.experiments import figures
from maxinforl.experiments.read_runs import find_runs
from maxinforl.experiments.reference import read_curves

RUNS = Path(__file__).parents[1] / "results" / "hard-exploration"
OURS = {"maxinfo-sac": "MaxInfoSAC (1 update per agent step)", "sac": "SAC (1)"}
PUBLIC = {  # and their updates per agent step
    "SAC (SimBa repo)": "SAC, SimBa's repository (2)",
    "SimBa": "SimBa (2)",
    "BRO utd2": "BRO (2)",
    "FlashSAC": "FlashSAC (1)",
    "XQC": "XQC (2)",
}
END = 200_000  # environment steps


@figures.styled
def main(out: Path) -> None:
    figure, (ax,) = figures.canvas(1, 1, width=7.5, height=3.0)
    for i, (folder, name) in enumerate(OURS.items()):
        curves = [run.curve for run in find_runs([RUNS / folder / "pendulum-swingup"]) if run.curve is not None]
        for curve in curves:
            ax.plot(curve.env_step, curve.value, color=figures.colour(i), alpha=0.3, linewidth=0.8)
        mean = np.mean([curve.value for curve in curves], axis=0)
        label = f"{name}, {len(curves)} seeds, here"
        ax.plot(curves[0].env_step, mean, color=figures.colour(i), linewidth=2.2, label=label)
    for i, (name, label) in enumerate(PUBLIC.items(), len(OURS)):
        (curve,) = [c for c in read_curves("public") if c.env == "dmc/pendulum-swingup" and c.algorithm == name]
        kept = curve.steps <= END
        style = {"color": figures.colour(i), "marker": "o", "markersize": 4, "capsize": 2, "linestyle": "--"}
        ax.errorbar(curve.steps[kept], curve.mean[kept], curve.std_err[kept], label=f"{label}, {curve.runs}", **style)
    ax.set(xlabel="environment steps", ylabel="return", title="dmc/pendulum-swingup", ylim=(-30, 1000))
    figures.step_axis(ax)
    figures.shared_legend(figure, [ax])
    figures.save(figure, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
