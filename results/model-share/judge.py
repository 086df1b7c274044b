"""The rule of README.md on the runs beside this file: python results/model-share/judge.py"""

from pathlib import Path

import numpy as np

from maxinforl.experiments.read_runs import RunLogs, find_runs
from maxinforl.experiments.statistics import area_under_curve, difference

HERE = Path(__file__).parent
ARMS = ("maxinfo-sac", "maxinfo-sac-share-0.05")  # folders, as `sweep` names them


def area(run: RunLogs) -> float:
    returns = run.returns
    assert returns is not None and returns.step[-1] == run.steps, f"{run.path} is not finished"
    return float(area_under_curve(returns.step, returns.value))


def minutes(runs: list[RunLogs]) -> float:
    return float(np.mean([run.metrics["time/elapsed"].value[-1] for run in runs])) / 60


def row(task: str) -> str:
    without, shared = (find_runs([HERE / arm / task]) for arm in ARMS)
    base, taught = ([area(run) for run in runs] for runs in (without, shared))
    used = float(np.mean([run.metrics["model/used"].value.mean() for run in shared]))
    gap = difference(taught, base)
    verdict = "does not count" if used < 0.5 else "helps" if gap.low > 0 else "hurts" if gap.high < 0 else "undecided"
    return (
        f"| {task} | {len(base)}, {len(taught)} | {np.mean(base):.1f} | {np.mean(taught):.1f} "
        f"| {gap.value:+.1f} [{gap.low:.1f}, {gap.high:.1f}] | {used:.0%} "
        f"| {minutes(without):.1f}, {minutes(shared):.1f} | {verdict} |"
    )


if __name__ == "__main__":
    print("| task | seeds | area, 0 | area, 0.05 | difference [95 %] | rows used | minutes | verdict |")
    print("|---|---|---|---|---|---|---|---|")
    for task in ("pendulum-hanging", "pendulum-swingup", "cheetah-run"):
        print(row(task))
