"""Whether the light ensemble explores as well as the paper's.

    python benchmarks/light_paper.py results/light-paper

Per task and narrow ensemble: the ratio of median steps to the threshold (light over paper, 95 % bootstrap interval),
and the mean return of the last three evaluations of both with their intervals.
"""

import argparse
from pathlib import Path

import numpy as np

from maxinforl.experiments.read_runs import find_runs
from maxinforl.experiments.statistics import (
    Hits,
    mean_se,
    median_steps,
    ratio_of_medians,
    steps_to_threshold,
    student_t_quantile,
)

THRESHOLDS = {"mountain-car": 90.0, "pendulum-hanging": -400.0}
NARROW = {"light": "5 × (32, 32)", "light-64": "5 × (64, 64)"}


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
    columns = ("median steps, paper", "its own", "own / paper [95 %]", "final return, paper", "its own")
    print(f"| task | seeds | ensemble | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|---|")
    for task, threshold in THRESHOLDS.items():
        for narrow, shape in NARROW.items():
            cells = [curves(root / task / name) for name in ("paper", narrow)]
            paper, own = (steps_to_threshold(*cell, threshold) for cell in cells)
            ratio = ratio_of_medians(own, paper, resamples=10_000)
            between = f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
            ends = " | ".join(final(returns) for _, returns in cells)
            print(f"| {task} | {len(own.step)} | {shape} | {said(paper)} | {said(own)} | {between} | {ends} |")


if __name__ == "__main__":
    main()
