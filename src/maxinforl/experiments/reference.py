"""Public learning curves beside one's own in a report: which tasks they fit, and what is drawn of them."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl.envs.names import DMC, H1
from maxinforl.errors import BadInput
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.charts import Chart, Line
from maxinforl.experiments.formatting import format_number
from maxinforl.experiments.read_runs import Problem, RunLogs
from maxinforl.experiments.summary import ReportData
from maxinforl.experiments.tables import TextTable
from maxinforl.files import MiB, printable, reading

PUBLIC = "public"  # the file of the package
LIMIT = 16 * MiB
TEXTS, NUMBERS = ("algorithm", "env", "source"), ("env_steps_used", "mean", "std_err", "runs")
AHEAD = 2.0  # public curves are drawn up to so many times the steps of one's own
OTHER_VERSION, NOT_COMPARED = "other version", "not compared"  # kinds of problems
DMC_TASKS = {
    "acrobot": ("swingup",),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse"),
    "cheetah": ("run",),
    "dog": ("run", "stand", "trot", "walk"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("swim",),
    "hopper": ("hop", "stand"),
    "humanoid": ("run", "stand", "walk"),
    "pendulum": ("swingup",),
    "quadruped": ("run", "walk"),
    "reacher": ("easy", "hard"),
    "walker": ("run", "stand", "walk"),
}
DMC_NAMES = [f"{domain}-{task}" for domain, tasks in DMC_TASKS.items() for task in tasks]
NAMES = {name.replace("_", "-"): DMC + name for name in DMC_NAMES} | {f"{name}-v0": name for name in H1}
NAMES |= {"cup-catch": DMC + "ball_in_cup-catch"}


@dataclass(frozen=True)
class PublicCurve:
    """Mean and standard error over seeds of one algorithm on one task, at environment steps in increasing order."""

    algorithm: str
    task: str  # as its source calls it
    source: str
    steps: FloatArray
    mean: FloatArray
    std_err: FloatArray
    runs: int  # the fewest of its points

    @property
    def env(self) -> str:
        """The library's name of the task."""
        return library_name(self.task)

    @property
    def label(self) -> str:
        return f"{self.algorithm} · {self.source.split()[0]}"


def library_name(task: str) -> str:
    """What this library calls a task of a public file; a Gymnasium name is the same.

    >>> library_name("cartpole-swingup-sparse"), library_name("Hopper-v4")
    ('dmc/cartpole-swingup_sparse', 'Hopper-v4')
    """
    return NAMES.get(task, task)


def without_version(env: str) -> str:
    return re.sub(r"-v\d+$", "", env)


def read_curves(path: str | os.PathLike[str]) -> list[PublicCurve]:
    """The curves of a CSV file, or of the package for the word `public`; `BadInput` if it does not fit.

    Example:
      >>> len({curve.env for curve in read_curves("public")}) > 30
      True
    """
    where = resources("maxinforl.experiments") / "reference.csv" if str(path) == PUBLIC else Path(path)
    with reading(str(where)):
        if not where.is_file():
            raise BadInput(f"--reference {printable(path)} is not a file: name a CSV file, or leave the name out")
        if isinstance(where, Path) and where.stat().st_size > LIMIT:
            raise BadInput(f"--reference {printable(path)} is larger than {LIMIT // MiB} MiB")
        lines = where.read_bytes().decode("utf-8", errors="replace").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    missing = [name for name in (*TEXTS, *NUMBERS) if name not in (rows.fieldnames or ())]
    if missing:
        raise BadInput(f"{printable(path)} has no column {missing[0]}: it needs {', '.join((*TEXTS, *NUMBERS))}")
    points: dict[tuple[str, ...], list[list[float]]] = {}
    for number, row in enumerate(rows, 2):
        points.setdefault(tuple(row[name] or "" for name in TEXTS), []).append(_numbers(row, number, path))
    if not points:
        raise BadInput(f"{printable(path)} holds no curve: it has a header and no rows")
    return [_curve(*key, np.array(sorted(found))) for key, found in points.items()]  # type: ignore[call-arg]


def _numbers(row: Mapping[str, Any], number: int, path: Any) -> list[float]:
    for name in TEXTS:
        if not (row[name] or "").strip():
            raise BadInput(f"{printable(path)}, row {number}: {name} is empty")
    for name in NUMBERS:
        try:
            right = math.isfinite(float(row[name])) and (name == "mean" or float(row[name]) >= 0)
        except (TypeError, ValueError):
            right = False
        if not right:
            least = "" if name == "mean" else " of at least 0"
            raise BadInput(
                f"{printable(path)}, row {number}: {name} is {printable(repr(row[name]))}, not a finite number{least}"
            )
    return [float(row[name]) for name in NUMBERS]


def _curve(algorithm: str, task: str, source: str, points: FloatArray) -> PublicCurve:
    return PublicCurve(algorithm, task, source, *points.T[:3], runs=int(points[:, 3].min()))


# --- in a report ----------------------------------------------------------------------------------------------


def with_reference(data: ReportData, curves: Sequence[PublicCurve]) -> ReportData:
    """The report with public curves in its charts of learning curves, and a table of them per task."""
    changed = {run.env for run in data.runs if _is_changed(run)}
    problems = [_not_public(env) for env in sorted(changed) if _fitting(curves, env)]
    labels, charts, tables = list(data.labels), [], []
    for chart in data.charts:
        found = _fitting(curves, chart.title) if chart.tab == "curves" and chart.title not in changed else []
        found = [c for c in found if c.steps[0] <= AHEAD * _end(chart)]
        if found:
            labels += sorted({c.label for c in found} - set(labels))
            chart = replace(chart, lines=[*chart.lines, *(_line(c, labels, _end(chart)) for c in found)])
            tables.append(public_table(chart.title, found))
            problems += _versions(chart.title, found)
        charts.append(chart)
    if not tables:
        there = ", ".join(sorted({run.env for run in data.runs})[:5])
        why = problems[0] if problems else f"the runs are on {printable(there)}"
        raise BadInput(f"the file of --reference has no curve for a task of these runs: {why}")
    tables, problems = [*data.tables, *tables], [*data.problems, *problems]
    return replace(data, labels=labels, charts=charts, tables=tables, problems=problems)


def _fitting(curves: Iterable[PublicCurve], env: str) -> list[PublicCurve]:
    return [c for c in curves if without_version(c.env) == without_version(env)]


def _is_changed(run: RunLogs) -> bool:
    """Whether a run is on a task with an action cost or arguments, of which no public curve is."""
    settings = run.config.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    return bool(settings.get("action_cost") or settings.get("env_arg"))


def _not_public(env: str) -> str:
    sentence = f"{env}: the runs have an action cost or environment arguments, which the public curves have not"
    return Problem(sentence, NOT_COMPARED)


def _versions(env: str, curves: Sequence[PublicCurve]) -> list[str]:
    other = sorted({c.env for c in curves} - {env})
    sentence = f"{env}: the public curves are on {', '.join(other)}, another version of the task, and are drawn beside"
    return [Problem(sentence, OTHER_VERSION)] if other else []


def _end(chart: Chart) -> float:
    return max(float(line.x[-1]) for line in chart.lines if not line.public)


def _line(curve: PublicCurve, labels: Sequence[str], end: float) -> Line:
    kept = curve.steps <= AHEAD * end
    x, mean, se = (values[kept] for values in (curve.steps, curve.mean, curve.std_err))
    return Line(labels.index(curve.label), x, mean, mean - se, mean + se, public=True)


def public_table(env: str, curves: Sequence[PublicCurve]) -> TextTable:
    """Every point of public curves, with their sources."""
    steps = sorted({step for c in curves for step in c.steps})
    rows = []
    for c in curves:
        at = {s: f"{format_number(m)} ± {format_number(e)}" for s, m, e in zip(c.steps, c.mean, c.std_err)}
        rows.append([c.algorithm, c.task, str(c.runs), *(at.get(step, "–") for step in steps), c.source])
    header = ["public curve", "task there", "seeds", *(f"{step:,.0f}" for step in steps), "source"]
    note = "Mean ± standard error over seeds at environment steps (agent steps × action repeat), as computed from the "
    note += "files of the sources. They differ in updates per step, action repeat and warm-up: match them before "
    return TextTable(f"Public curves: {env}", note + "a comparison is about anything else.", header, sorted(rows))
