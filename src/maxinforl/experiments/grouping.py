"""Runs grouped for comparison: by task, then by label (algorithm and the settings that differ), on a common grid."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from maxinforl.experiments import statistics as st
from maxinforl.experiments.arrays import BoolArray, FloatArray
from maxinforl.experiments.formatting import plural
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import Problem, RunLogs
from maxinforl.settings import known_as

POINTS = 100  # of a curve on the page
LATE = 0.9  # evaluations from this share of the steps on are the final score, as in claims
RESAMPLES = 1000  # of every bootstrap in a report
# Kinds of problems, besides those of reading a run.
INCOMPLETE, STOPPED, MISSING, CARRIED = "incomplete", "stopped", "missing", "ended early"
OTHER_LENGTHS, OTHER_SETTINGS = "other lengths", "other settings"


@dataclass(frozen=True)
class Cell:
    """All seeds of one label on one task, curves on the task's grid."""

    runs: Sequence[RunLogs]
    curves: FloatArray  # [seeds, grid]
    finished: BoolArray  # per seed: whether it reached the task's last grid point
    late: BoolArray  # per grid point: whether it counts for the final score

    @property
    def final(self) -> FloatArray:
        """Final score of each finished run: the mean of its late evaluations."""
        return self.curves[np.ix_(self.finished, self.late)].mean(1)


@dataclass(frozen=True)
class TaskResults:
    """One environment: its grid of environment steps and its cells by label."""

    env: str
    grid: FloatArray
    cells: Mapping[str, Cell]
    normalisation: st.Normalisation
    given: float | None = None  # the user's threshold

    @property
    def start(self) -> int:
        """The first grid point at which every finished run has a value."""
        known = np.concatenate([np.isfinite(cell.curves[cell.finished]) for cell in self.cells.values()])
        return int(np.argmax(known.all(0))) if len(known) else 0

    @property
    def threshold(self) -> float:
        """The return to which steps are counted: the user's, else the middle of the normalised range."""
        return self.given if self.given is not None else (self.normalisation.low + self.normalisation.high) / 2


# Never part of a label: what identifies a run, and what does not change what is learned.
IDENTIFYING = {
    "algo",
    "env",
    "seed",
    "steps",
    "command",
    "versions",
    "format",
    "cores",
    "by_name",
    "spaces",
    "together",
    "continues",
}
NOT_LEARNING = {*known_as("silent", "logged", "implied", "unlabelled")}
TASK = {*known_as("task")}


def name_tasks(runs: Sequence[RunLogs]) -> list[RunLogs]:
    """Runs whose `env` includes the task settings that differ between runs of that environment."""
    settings = [_task_settings(run) for run in runs]
    keys = {key for table in settings for key in table}
    seen: dict[tuple[str, str], set[str | None]] = defaultdict(set)
    for run, table in zip(runs, settings):
        for key in keys:
            seen[run.env, key].add(table.get(key))
    named = []
    for run, table in zip(runs, settings):
        differing = [f"{key}={value}" for key, value in sorted(table.items()) if len(seen[run.env, key]) > 1]
        named.append(replace(run, env=f"{run.env} ({', '.join(differing)})") if differing else run)
    return named


def _task_settings(run: RunLogs) -> dict[str, str]:
    settings = run.config.get("settings", {})
    settings = settings if isinstance(settings, dict) else {}
    pairs = settings.get("env_arg", [])
    pairs = [p for p in pairs if isinstance(p, list) and len(p) == 2] if isinstance(pairs, list) else []
    return {k: str(v) for k, v in settings.items() if k in TASK - {"env_arg"}} | {str(k): str(v) for k, v in pairs}


def label_runs(runs: Sequence[RunLogs], problems: list[str] | None = None) -> dict[str, list[RunLogs]]:
    """Runs by label: the algorithm and the settings that differ between its runs on one task.

    A seed counts once; copies are reported in `problems`.
    """
    settings = {id(run): _flat(run.config) for run in runs}
    cells: dict[tuple[str, str], list[RunLogs]] = defaultdict(list)
    for run in runs:
        cells[run.algo, run.env].append(run)
    varying: dict[str, set[str]] = defaultdict(set)
    for (algo, _), cell in cells.items():
        first = settings[id(cell[0])]
        for other in (settings[id(run)] for run in cell[1:]):
            if other != first:
                varying[algo] |= {k for k in first.keys() | other.keys() if first.get(k) != other.get(k)}
    named: dict[str, list[RunLogs]] = defaultdict(list)
    for run in runs:
        own = settings[id(run)]
        differing = [f"{k.rpartition('.')[2]}={own[k]}" for k in sorted(varying[run.algo]) if k in own]
        named[run.algo + (f" ({', '.join(differing)})" if differing else "")].append(run)
    problems = [] if problems is None else problems
    return {label: _one_per_seed(label, group, problems) for label, group in named.items()}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat = {}
    for key, value in table.items():
        if prefix == "settings." and key in IDENTIFYING | NOT_LEARNING | TASK:
            continue
        if prefix or key not in IDENTIFYING:
            flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: str(value)}
    return flat


def _one_per_seed(label: str, runs: Sequence[RunLogs], problems: list[str]) -> list[RunLogs]:
    """Of several runs with one seed, the one that trained longest."""
    best: dict[tuple[str, int], RunLogs] = {}
    for run in sorted(runs, key=_reached):
        best[run.env, run.seed] = run
    if len(best) < len(runs):
        extra = len(runs) - len(best)
        problems.append(f"{label} has {plural(extra, 'run')} with duplicate seeds: kept the longest of each")
    return sorted(best.values(), key=lambda run: (run.env, run.seed))


def _reached(run: RunLogs) -> float:
    return float(run.curve.step[-1]) if run.curve else 0.0


def by_env(runs: Iterable[RunLogs]) -> dict[str, list[RunLogs]]:
    """Runs by environment."""
    grouped: dict[str, list[RunLogs]] = defaultdict(list)
    for run in runs:
        grouped[run.env].append(run)
    return grouped


def common_grid(series: Sequence[Series], end: float = math.inf) -> FloatArray:
    """Up to `POINTS` of the environment steps at which anything was logged, at most `end`."""
    steps = np.unique(np.concatenate([s.env_step for s in series]))
    steps = steps[steps <= end]
    return steps[np.unique(np.linspace(0, len(steps) - 1, POINTS).round().astype(int))] if len(steps) else steps


def read_on_grid(series: Sequence[Series], grid: FloatArray) -> FloatArray:
    """Series interpolated on a grid of environment steps, [series, grid]."""
    return st.on_grid([s.env_step for s in series], [s.value for s in series], grid)


def group_tasks(named: Mapping[str, Sequence[RunLogs]], problems: list[str]) -> list[TaskResults]:
    """The results of every task; runs without returns and missing seeds are reported in `problems`."""
    found: dict[str, dict[str, list[RunLogs]]] = defaultdict(dict)
    for label, runs in named.items():
        for env, cell in by_env(runs).items():
            kept = [run for run in cell if run.returns is not None and np.isfinite(run.returns.value).any()]
            if len(kept) < len(cell):
                problems.append(
                    f"{label} on {env} has {plural(len(cell) - len(kept), 'run')} without returns: left out"
                )
            if kept:
                found[env][label] = kept
    tasks = [_task(env, found[env], problems) for env in sorted(found)]
    problems += [sentence for task in tasks for sentence in _missing_seeds(task)]
    return tasks


def _task(env: str, cells: Mapping[str, Sequence[RunLogs]], problems: list[str]) -> TaskResults:
    """All curves on one grid, which ends where the shortest of the labels with a finished run does."""
    series = {label: [run.curve for run in runs if run.curve] for label, runs in cells.items()}
    longest = {
        label: max((s.env_step[-1] for s, run in zip(series[label], runs) if _done(run, s)), default=math.nan)
        for label, runs in cells.items()
    }
    horizon = float(np.nanmin(list(longest.values()))) if not all(map(math.isnan, longest.values())) else math.inf
    grid = common_grid([s for group in series.values() for s in group], horizon)
    built = {}
    for label, runs in cells.items():
        curves = read_on_grid(series[label], grid)
        built[label] = Cell(runs, curves, np.isfinite(curves[:, -1]), grid >= LATE * grid[-1])
        where, end = f"{label} on {env}", f"{grid[-1]:,.0f} steps"
        problems += [*_unfinished(where, built[label], end), *_ended_early(where, runs, grid[-1])]
    problems += _differences(env, cells, horizon)
    everything = np.concatenate([cell.curves.ravel() for cell in built.values()])
    return TaskResults(env, grid, built, st.normalisation(env, everything))


def _unfinished(where: str, cell: Cell, end: str) -> Sequence[str]:
    """Why runs of a cell have no final score: one sentence per reason."""
    runs = [run for run, finished in zip(cell.runs, cell.finished) if not finished]
    cut = sum(run.cut for run in runs)
    asked = sum(not run.cut and _reached(run) >= run.steps for run in runs)
    stopped = len(runs) - cut - asked
    reasons = {
        INCOMPLETE: (cut, f"finished, but eval.csv is damaged or incomplete and ends before {end}"),
        OTHER_LENGTHS: (asked, f"requested fewer than {end}"),
        STOPPED: (stopped, f"stopped before {end}"),
    }
    return [
        Problem(f"{where}: {plural(n, 'run')} {why}, without a final score", kind)
        for kind, (n, why) in reasons.items()
        if n
    ]


def _ended_early(where: str, runs: Sequence[RunLogs], end: float) -> Sequence[str]:
    """That the last evaluations of runs which --stop-at ended stand for those they would have had later."""
    early = sum(run.ended and run.returns is not None and run.returns.env_step[-1] < end for run in runs)
    sentence = f"{where}: {plural(early, 'run')} reached --stop-at and ended before {end:,.0f} steps; the last "
    return [Problem(sentence + "evaluation is carried forward to there", CARRIED)] if early else []


SHOULD_MATCH = known_as("unlike")


def _differences(env: str, cells: Mapping[str, Sequence[RunLogs]], horizon: float) -> Sequence[str]:
    """What makes runs of one task less comparable: different lengths and different settings."""
    runs = [run for group in cells.values() for run in group]
    longer = sum(run.returns is not None and run.returns.env_step[-1] > horizon for run in runs)
    cut = [f"{env}: {plural(longer, 'run')} continued after {horizon:,.0f} steps; only the part before is compared"]
    tables = [run.config.get("settings") for run in runs]
    tables = [table for table in tables if isinstance(table, dict)]
    values = {name: sorted({str(table[name]) for table in tables if name in table}) for name in SHOULD_MATCH}
    differ = [f"{name} ({', '.join(found[:5])})" for name, found in values.items() if len(found) > 1]
    other = [f"{env}: runs differ in {', '.join(differ)}, but are compared"]
    return [Problem(s, OTHER_LENGTHS) for s in cut * bool(longer)] + [
        Problem(s, OTHER_SETTINGS) for s in other * bool(differ)
    ]


def _done(run: RunLogs, series: Series) -> bool:
    return bool(series.step[-1] >= 0.95 * run.steps)


def _missing_seeds(task: TaskResults) -> Iterator[str]:
    """Seeds that other labels have on this task; a label without any run on it is not expected to have one."""
    seeds = {label: {run.seed for run in cell.runs} for label, cell in task.cells.items()}
    wanted = set.union(*seeds.values())
    for label in sorted(seeds):
        if missing := sorted(wanted - seeds[label]):
            noun = "seed" if len(missing) == 1 else "seeds"
            listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            effect = "its intervals are wider" if len(seeds[label]) > 1 else "one seed has no intervals"
            yield Problem(f"{label} on {task.env} misses {noun} {listed}: {effect}", MISSING)


def shared_tasks(tasks: Sequence[TaskResults]) -> tuple[list[TaskResults], list[str]]:
    """The tasks on which every label has a final score, and all labels."""
    labels = sorted({label for task in tasks for label in task.cells})
    scored = lambda task, label: label in task.cells and task.cells[label].finished.any()
    return [task for task in tasks if all(scored(task, label) for label in labels)], labels
