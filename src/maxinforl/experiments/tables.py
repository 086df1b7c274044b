"""The tables of a report: rows of text with a note that says what the numbers are."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from maxinforl.experiments import statistics as st
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.formatting import format_number, plural
from maxinforl.experiments.grouping import LATE, RESAMPLES, Cell, TaskResults, shared_tasks
from maxinforl.experiments.read_runs import Problem

FEW = 5  # seeds below which a bootstrap interval is too narrow
NOT_COMPARED = "not compared"  # a kind of problem


@dataclass(frozen=True)
class TextTable:
    """Rows of text; `note` says what the numbers are."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def _estimate(point: st.Estimate) -> str:
    bounds = "–" if math.isnan(point.low) else f"{format_number(point.low)}, {format_number(point.high)}"
    return f"{format_number(point.value)} [{bounds}]"


def _plus_minus(values: FloatArray) -> str:
    if not len(values):
        return "–"
    mean, se, n = (float(v) for v in st.mean_se(values))
    return f"{format_number(mean)} ± {format_number(se)}" if n > 1 else f"{format_number(mean)} (one seed)"


def baseline(labels: Iterable[str]) -> str:
    """The label that others are compared with: plain SAC if present, else the first."""
    return min(labels, key=lambda label: (label.lower() != "sac", label))


def _hits(task: TaskResults, cell: Cell) -> st.Hits:
    """Steps to the threshold, from the evaluations themselves: nothing was measured between two of them."""
    found = []
    for series in (run.returns for run in cell.runs if run.returns is not None):
        here = series.env_step <= task.grid[-1]
        if here.any():
            found.append(st.steps_to_threshold(series.env_step[here], series.value[here], task.threshold))
    if not found:  # all of it lies beyond the end of the others
        return st.Hits(np.zeros(0), np.zeros(0, bool))
    return st.Hits(np.concatenate([h.step for h in found]), np.concatenate([h.reached for h in found]))


def task_table(task: TaskResults) -> TextTable:
    """Final return, area under the curve and steps to the threshold of every label on one task."""
    reference = baseline(task.cells)
    hits = {k: _hits(task, cell) for k, cell in task.cells.items()}
    rows = []
    for label, cell in sorted(task.cells.items()):
        final = cell.final
        median = st.median_steps(hits[label], RESAMPLES)
        ratio = "1" if label == reference else _ratio(st.ratio_of_medians(hits[label], hits[reference], RESAMPLES))
        area = st.area_under_curve(task.grid[task.start :], cell.curves[:, task.start :])
        rows.append([
            label, f"{len(final)} of {len(cell.runs)}", _plus_minus(final),
            _estimate(st.iqm([final], RESAMPLES)) if len(final) else "–", _plus_minus(area[np.isfinite(area)]),
            _median(median), ratio,
        ])  # fmt: skip
    header = ["algorithm", "finished", "final return ± se", "final IQM [95 %]", "area under curve ± se"]
    header += [f"median steps to {format_number(task.threshold)} [95 %]", f"ratio to {reference} [95 %]"]
    late = f"mean of the evaluations in the last {1 - LATE:.0%} of {format_number(task.grid[-1])} environment steps"
    area = f"mean height of the curve from {format_number(task.grid[task.start])} steps on"
    threshold = format_number(task.threshold)
    note = f"Final return: {late}. Area: {area}. Steps to {threshold}: the first evaluation at or above it, "
    note += (
        "which is the threshold given. " if task.given is not None else "halfway between the lowest and highest score. "
    )
    note += "Above (>) or below (<): one of the two medians is unknown, because fewer than half of the seeds "
    note += "reached the threshold."
    return TextTable(task.env, note + _few(min(len(cell.final) for cell in task.cells.values())), header, rows)


def _few(seeds: int) -> str:
    """A warning about bootstrap intervals of few seeds."""
    one = " The interval of a single seed is not defined (–)." if seeds < 2 else ""
    return f" Bootstrap intervals of fewer than {FEW} seeds are too narrow.{one}" if seeds < FEW else ""


def _ratio(point: st.Estimate) -> str:
    """A ratio of medians, or a bound on it if one median was not reached."""
    if point.value == 0:
        return f"< {format_number(point.high)}" if math.isfinite(point.high) else "–"
    if math.isinf(point.value):
        return f"> {format_number(point.low)}" if point.low > 0 else "–"
    return "–" if math.isnan(point.value) else _estimate(point)


def _median(point: st.MedianSteps) -> str:
    if math.isnan(point.value):
        return "–"
    if math.isfinite(point.value):
        return _estimate(point)
    return f"> {format_number(point.horizon)} ({point.n - point.censored} of {point.n} reached it)"


def aggregate_tables(tasks: Sequence[TaskResults], problems: list[str]) -> list[TextTable]:
    """IQM and probability of improvement over the tasks that every label finished."""
    common, labels = shared_tasks(tasks)
    if not common:
        if len(tasks) > 1:
            sentence = "no task was finished by every algorithm: there are no numbers over all tasks"
            problems.append(Problem(sentence, NOT_COMPARED))
        return []
    reference = baseline(labels)
    scores = {label: [task.normalisation(task.cells[label].final) for task in common] for label in labels}
    rows = []
    for label in labels:
        wins = st.probability_of_improvement(scores[label], scores[reference], RESAMPLES)
        improvement = "–" if label == reference else _estimate(wins)
        rows.append(
            [label, str(sum(map(len, scores[label]))), _estimate(st.iqm(scores[label], RESAMPLES)), improvement]
        )
    how = "; ".join(
        sorted({str(task.normalisation) if len(common) < 4 else task.normalisation.source for task in common})
    )
    note = f"Over the {len(common)} of {plural(len(tasks), 'task')} that every algorithm finished. Normalised: {how}."
    note += _few(min(len(task) for group in scores.values() for task in group))
    header = ["algorithm", "runs", "IQM of normalised final return [95 %]", f"P(better than {reference}) [95 %]"]
    return [TextTable("All tasks", note, header, rows)]
