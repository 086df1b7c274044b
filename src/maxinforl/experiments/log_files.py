"""Parsing metrics.jsonl, eval.csv and states.npz of runs that other processes, machines and versions wrote.

A line that cannot be parsed is skipped and reported in one sentence. Nothing is unpickled, and sizes are checked before
anything is read.
"""

import itertools
import json
import math
import os
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl.errors import BadInput
from maxinforl.experiments.arrays import FloatArray
from maxinforl.files import MiB, printable, read_npz, reading

TEXT_LIMIT = 64 * MiB
STATES_LIMIT = 256 * MiB
LINE_LIMIT, BATCH = 1 * MiB, MiB // 4  # a longer line is left out; so many bytes of lines are parsed at once
MAX_METRICS = 1000  # per run
MAX_STEP = 1e15


@dataclass(frozen=True)
class Series:
    """One metric of one run, in increasing order of `step` (agent steps) and `env_step`."""

    step: FloatArray
    env_step: FloatArray
    value: FloatArray


class collect_problems(suppress):  # noqa: N801 - used as `with collect_problems(problems):`
    """Context manager that appends the message of a `BadInput` to a list instead of raising it."""

    def __init__(self, problems: list[str]):
        super().__init__(BadInput)
        self.problems = problems

    def __exit__(self, kind, error, trace) -> bool:
        if isinstance(error, BadInput):
            self.problems.append(str(error))
        return super().__exit__(kind, error, trace)


def _batches(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a regular text file of bounded size, some at a time, each time with the number of the first."""
    with reading(path):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{printable(path)} is not a file")
        if status.st_size > TEXT_LIMIT:
            raise BadInput(f"{printable(path)} is too large: {status.st_size} bytes where {TEXT_LIMIT} are allowed")
        with path.open("rb") as file:
            first = 1
            while lines := file.readlines(BATCH):
                long = lambda line: "" if len(line) > LINE_LIMIT else line.decode(errors="replace").removesuffix("\n")
                yield first, list(map(long, lines))
                first += len(lines)


class _SkippedLines:
    """Counts the lines of a file that could not be parsed, and keeps the reason for the first."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def add(self, number: int, why: object) -> None:
        self.count += 1
        self.first = self.first or f"line {number}: {printable(str(why))}"

    def report_to(self, path: Path, problems: list[str]) -> None:
        if self.count:
            lines = "a line" if self.count == 1 else f"{self.count} lines"
            problems.append(f"{printable(path)}: left out {lines} that cannot be read ({self.first})")


def read_metrics(path: Path, problems: list[str], names: Container[str] | None) -> tuple[dict[str, Series], float]:
    """The metrics in `names` (all if None) of a metrics.jsonl, and the last step at which anything was logged."""
    skipped, table = _SkippedLines(), _SparseTable(path)
    for first, lines in _batches(path):
        rows = _json_rows(lines, skipped, first)
        known = dict.fromkeys(itertools.chain.from_iterable(rows))
        kept = [name for name in known if name not in ("step", "env_step") and (names is None or name in names)]
        table.add(rows, kept)
    skipped.report_to(path, problems)
    return table.series(), float(table.steps.max(initial=0.0))


class _SparseTable:
    """Metrics of many rows, of which each may have a few: only the numbers that are there take memory."""

    def __init__(self, path: Path):
        self.path, self.steps, self.env_steps = path, np.zeros(0), np.zeros(0)
        self.parts: dict[str, list[tuple[np.ndarray, FloatArray]]] = {}

    def add(self, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
        if (count := len(self.parts.keys() | set(names))) > MAX_METRICS:
            raise BadInput(f"{printable(self.path)} has {count} metrics where at most {MAX_METRICS} are allowed")
        for name, (where, values) in _entries(rows, names).items():
            column = _column(values)
            there = np.isfinite(column)
            self.parts.setdefault(name, []).append((np.asarray(where)[there] + len(self.steps), column[there]))
        self.steps = np.append(self.steps, _column([row["step"] for row in rows]))
        self.env_steps = np.append(self.env_steps, _column([row.get("env_step", row["step"]) for row in rows]))

    def series(self) -> dict[str, Series]:
        """By name, in the order of steps; a step that was logged twice keeps its later row."""
        last = _last_of_each(self.steps)
        steps, env_steps = self.steps[last], np.maximum.accumulate(self.env_steps[last])
        place = np.full(len(self.steps), -1)
        place[last] = np.arange(len(last))
        found = {}
        for name, parts in self.parts.items():
            where = place[np.concatenate([rows for rows, _ in parts])]
            order = np.argsort(where, kind="stable")[(where < 0).sum() :]
            value, where = np.concatenate([values for _, values in parts])[order], where[order]
            whole = len(where) == len(steps)
            if len(where):
                found[name] = Series(steps if whole else steps[where], env_steps if whole else env_steps[where], value)
        return found


def _entries(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, tuple[Sequence[int], list[Any]]]:
    """By name the rows that have an entry, and the entries: in time that grows with their number."""
    if rows and all(row.keys() == rows[0].keys() for row in rows):
        return {name: (range(len(rows)), [row[name] for row in rows]) for name in names}
    found: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in names}
    for i, row in enumerate(rows):
        for name in row.keys() & found.keys():
            found[name][0].append(i)
            found[name][1].append(row[name])
    return dict(found)


def _last_of_each(steps: FloatArray) -> np.ndarray:
    """Indices of the rows in the order of steps, of each step the last one."""
    if (np.diff(steps) > 0).all():
        return np.arange(len(steps))
    return len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]


def _json_rows(lines: Sequence[str], skipped: _SkippedLines, first: int = 1) -> list[dict[str, Any]]:
    """The JSON objects, one per line, whose steps are in range."""
    try:  # parsing all lines at once is several times faster than one by one
        rows = json.loads("[" + ",".join(lines) + "]")
        if len(rows) == len(lines) and _have_steps(rows):
            return rows
    except (ValueError, RecursionError):
        pass
    rows = []
    for number, line in enumerate(lines, first):
        try:
            row = json.loads(line)
            if not _have_steps([row]):
                raise ValueError("it is not an object with a step")
            rows.append(row)
        except (ValueError, RecursionError) as error:
            skipped.add(number, error)
    return rows


def _have_steps(rows: Sequence[Any]) -> bool:
    if not set(map(type, rows)) <= {dict}:
        return False
    counters = [row.get("step") for row in rows] + [row.get("env_step", 0) for row in rows]
    return set(map(type, counters)) <= {int, float} and all(map(MAX_STEP.__ge__, map(abs, counters)))


def _column(values: Sequence[Any]) -> FloatArray:
    """Floats; NaN for anything that is not a number."""
    try:
        return np.array(values, float)
    except (ValueError, TypeError, OverflowError):
        is_number = lambda v: type(v) is float or (type(v) is int and abs(v) < 1 << 64)
        return np.array([v if is_number(v) else math.nan for v in values], float)


def read_table(
    path: Path, problems: list[str], needed: Sequence[str] = ("step", "mean_return")
) -> dict[str, FloatArray]:
    """The columns of an eval.csv by name, without the lines that cannot be parsed; empty if the file is.

    Args:
      path: the file; one that does not exist counts as empty.
      problems: a sentence about skipped lines is appended here.
      needed: columns that must be there, otherwise `BadInput` is raised.
    """
    skipped, header, rows = _SkippedLines(), [], []
    for first, lines in _batches(path):
        if first == 1:
            header, lines, first = lines[0].strip().split(","), lines[1:], 2
            _check_header(path, header, needed)
        if header == [""]:
            return {}
        rows.append(_csv_rows(lines, header, skipped, first))
    skipped.report_to(path, problems)
    return dict(zip(header, np.concatenate(rows).T)) if rows else {}


def _check_header(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    odd = not {*needed} <= set(header) or len(set(header)) < len(header) or len(header) > MAX_METRICS
    if odd and header != [""]:
        listed = " and ".join(needed)
        raise BadInput(f"{printable(path)} has no columns {listed}: it is not an evaluation of this version")


def read_evaluation(path: Path, problems: list[str]) -> dict[str, Series]:
    """The columns of an eval.csv as series."""
    table = read_table(path, problems)
    if not table:
        return {}
    steps, env_steps = table.pop("step"), table.pop("env_step", None)
    return _series(path, steps, steps if env_steps is None else env_steps, table, problems)


def _csv_rows(lines: Sequence[str], header: Sequence[str], skipped: _SkippedLines, first: int) -> FloatArray:
    """The rows of numbers whose steps are in range, as an array [rows, columns]."""
    width, rows = len(header), []
    if {line.count(",") for line in lines} == {width - 1}:
        with suppress(ValueError):  # parsing all lines at once is several times faster than one by one
            table = np.array(list(map(float, ",".join(lines).split(",")))).reshape(-1, width)
            if (np.abs(table[:, _counters(header)]) <= MAX_STEP).all():
                return table
    for number, line in enumerate(lines, first):
        try:
            row = list(map(float, line.split(",")))
            if len(row) != width or not all(abs(row[i]) <= MAX_STEP for i in _counters(header)):
                raise ValueError(f"it does not hold {width} numbers with steps in range")
            rows.append(row)
        except ValueError as error:
            skipped.add(number, error)
    return np.array(rows, float).reshape(-1, width)


def _counters(header: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(header) if name in ("step", "env_step")]


def _series(
    path: Path, steps: FloatArray, env_steps: FloatArray, columns: Mapping[str, FloatArray], problems: list[str]
) -> dict[str, Series]:
    """Columns in the order of steps; a step that was logged twice, as after a resume, keeps its later entry."""
    if not len(steps):
        return {}
    last = _last_of_each(steps)
    steps, env_steps, series = steps[last], np.maximum.accumulate(env_steps[last]), {}
    for name, column in columns.items():
        there = np.isfinite(column := column[last])
        if name == "mean_return" and not there.all():
            problems.append(f"{printable(path)} has returns that are not finite: they were left out")
        if there.all():
            series[name] = Series(steps, env_steps, column)
        elif there.any():
            series[name] = Series(steps[there], env_steps[there], column[there])
    return series


def read_states(path: Path) -> tuple[FloatArray, FloatArray]:
    """`step` [M] and `obs` [M, d] of a states.npz; raises `BadInput` if the file is damaged."""
    step, obs = (array.astype(float) for array in read_npz(path, ("step", "obs"), STATES_LIMIT))
    if step.ndim != 1 or obs.ndim != 2 or len(step) != len(obs) or not np.isfinite(step).all():
        raise BadInput(f"{printable(path)} must hold step [M] and obs [M, d], got {step.shape} and {obs.shape}")
    return step, obs
