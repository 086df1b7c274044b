"""Whether the light ensemble explores as well as the paper's.

    python benchmarks/light_paper.py results/light-paper

Per task: the ratio of median steps to the threshold (light over paper, 95 % bootstrap interval), and the mean return
of the last three evaluations of both with their intervals.
"""

import argparse
from pathlib import Path

import numpy as np

from maxinforl.experiments.rundir import find_runs
from maxinforl.experiments.statistics import (
    Hits,
    mean_se,
    median_steps,
    ratio_of_medians,
    steps_to_threshold,
    student_t_quantile,
)

THRESHOLDS = {"mountain-car": 90.0, "pendulum-hanging": -400.0}


def curves(cell: Path) -> tuple[np.ndarray, np.ndarray]:
    returns = [run.evaluation["mean_return"] for run in find_runs([cell])]
    return returns[0].step, np.stack([series.value for series in returns])


def final(returns: np.ndarray) -> str:
    mean, error, _ = mean_se(returns[:, -3:].mean(1))
    half = student_t_quantile(0.975, len(returns) - 1) * float(error)
    return f"{float(mean):.1f} [{float(mean) - half:.1f}, {float(mean) + half:.1f}]"


def said(hits: Hits) -> str:
    return f"{median_steps(hits).value:.0f} ({hits.reached.sum()} of {len(hits.step)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    root = parser.parse_args().directory
    print("| task | seeds | median steps, paper | light | light / paper [95 %] | final return, paper | light |")
    print("|---|---|---|---|---|---|---|")
    for task, threshold in THRESHOLDS.items():
        cells = {name: curves(root / task / name) for name in ("paper", "light")}
        hits = {name: steps_to_threshold(*cell, threshold) for name, cell in cells.items()}
        ratio = ratio_of_medians(hits["light"], hits["paper"], resamples=10_000)
        between = f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        count = len(cells["light"][1])
        ends = " | ".join(final(cells[name][1]) for name in ("paper", "light"))
        print(f"| {task} | {count} | {said(hits['paper'])} | {said(hits['light'])} | {between} | {ends} |")


if __name__ == "__main__":
    main()
