"""Which seeds solved a task, and when: the tables of a suite whose tasks have thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from maxinforl.experiments import statistics as st
from maxinforl.experiments.formatting import format_number
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs
from maxinforl.experiments.tables import TextTable

HOLD = 2  # evaluations in a row at or above the threshold
LATE = 2 / 3  # of training, from which on the mean return is taken
NOTE = (
    f"Solved: at or above the threshold at {HOLD} evaluations in a row, or ended by --stop-at. Median: Kaplan-Meier, "
    "of the agent step of the first of them, with a 95 % bootstrap interval; a run that is not finished is censored. "
    "Return: mean of the evaluations in the last third of training, ± standard error over finished seeds."
)


def hits(runs: Sequence[RunLogs], threshold: float) -> st.Hits:
    """The agent step at which each run solved its task, or its last step."""
    found = [_hit(run, c, threshold) for run in runs if (c := run.curve) is not None]
    return st.Hits(np.concatenate([h.step for h in found]), np.concatenate([h.reached for h in found]))


def _hit(run: RunLogs, curve: Series, threshold: float) -> st.Hits:
    hit = st.steps_to_threshold(curve.step, curve.value, threshold, HOLD)
    return hit if hit.reached.all() or not run.ended else st.steps_to_threshold(curve.step, curve.value, threshold)


def late_return(run: RunLogs) -> float:
    """Mean return in the last third of training; NaN if the run is not finished."""
    curve = run.curve
    if curve is None or curve.step[-1] < run.steps:
        return math.nan
    return float(curve.value[curve.step > LATE * run.steps].mean())


def solved_table(task: str, threshold: float, runs: Iterable[RunLogs], planned: Mapping[str, int]) -> TextTable:
    """A row for every algorithm that the suite has on a task, run or not.

    Args:
      task: the suite's name of the environment.
      threshold: the return that solves it.
      runs: of all algorithms and tasks, with the suite's labels.
      planned: how many seeds the suite has of each algorithm.
    """
    here = [run for run in runs if run.env == task and run.curve is not None]
    rows = [_row(label, sorted((r for r in here if r.algo == label), key=lambda r: r.seed), threshold, seeds)
            for label, seeds in planned.items()]  # fmt: skip
    header = ["algorithm", "seeds", "solved", "median step [95 %]", "return of the last third", "step by seed"]
    return TextTable(f"{task}, solved at {threshold:g}", NOTE, header, rows)


def _row(label: str, runs: Sequence[RunLogs], threshold: float, seeds: int) -> list[str]:
    if not runs:
        return [label, f"0 of {seeds}", "not run", "–", "–", "–"]
    found = hits(runs, threshold)
    median = st.median_steps(found)
    bounds = [format_number(x) if math.isfinite(x) else "∞" for x in (median.value, median.low, median.high)]
    interval = f" [{bounds[1]}, {bounds[2]}]" if len(runs) > 1 else ""
    late = np.array([late_return(run) for run in runs])
    mean, error, finished = (float(x) for x in st.mean_se(late))
    returned = "–" if not finished else format_number(mean) + (f" ± {format_number(error)}" if finished > 1 else "")
    by_seed = ", ".join(f"{run.seed}: {format_number(s) if r else '–'}" for run, s, r in zip(runs, *_columns(found)))
    return [label, f"{len(runs)} of {seeds}", str(int(found.reached.sum())), bounds[0] + interval, returned, by_seed]


def _columns(found: st.Hits) -> tuple[list[float], list[bool]]:
    return found.step.tolist(), found.reached.tolist()


def markdown(table: TextTable) -> str:
    """The rows as a Markdown table."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
