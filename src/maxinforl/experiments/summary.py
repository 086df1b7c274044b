"""From runs to what a report shows: charts and tables as plain data, drawn by the page or by Matplotlib."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from maxinforl.errors import BadInput
from maxinforl.experiments import statistics as st
from maxinforl.experiments.rundir import DAMAGED, LEFT_OUT, Problem, Run, Series
from maxinforl.files import printable

Array = NDArray[np.float64]
POINTS = 100  # of a curve on the page
RESAMPLES = 1000
LATE = 0.9  # evaluations from this share of the steps on are the final score, as claims have it
FEW = 5  # seeds below which a bootstrap interval says too little
# Kinds of problems, besides those of reading a run.
INCOMPLETE, STOPPED, MISSING, APART = "incomplete", "stopped", "missing", "not compared"
LENGTHS, SETTINGS = "other lengths", "other settings"
PHASE_POINTS, PHASE_PLOTS, CELLS = 1500, 24, 20

EXPLORATION = {
    "explore/alpha1": "entropy temperature α1",
    "explore/alpha2": "information-gain temperature α2",
    "explore/intrinsic_weight": "EIPO's intrinsic weight 1/λ",
    "explore/info_gain": "information gain (dashed: target policy)",
}
METRICS = {"rollout/ep_rew_mean", "explore/info_gain_target", *EXPLORATION}  # all that a report reads
DASHED = {"explore/info_gain": "explore/info_gain_target"}


@dataclass(frozen=True)
class Line:
    """One series of a chart; `low` and `high` bound its band."""

    label: int  # index into Summary.labels
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """A panel of lines, or of points coloured by `time`."""

    tab: str
    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    time: Array | None = None
    box: tuple[tuple[float, float], tuple[float, float]] | None = None  # x and y ranges shared with other charts


@dataclass(frozen=True)
class Table:
    """Rows of text; `note` says what the numbers are."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cell:
    """All seeds of one label on one task, curves on the task's grid."""

    runs: Sequence[Run]
    curves: Array  # [seeds, grid]
    finished: NDArray[np.bool_]  # per seed: it reached the task's horizon
    late: NDArray[np.bool_]  # per grid point: it counts for the final score

    @property
    def final(self) -> Array:
        """Mean of the late evaluations, of finished runs only."""
        return self.curves[np.ix_(self.finished, self.late)].mean(1)


@dataclass(frozen=True)
class Task:
    """One environment: its grid of environment steps and its cells by label."""

    env: str
    grid: Array
    cells: Mapping[str, Cell]
    normalisation: st.Normalisation
    given: float | None = None  # the threshold that was asked for

    @property
    def start(self) -> int:
        """The first grid point from which on every finished run is known."""
        known = np.concatenate([np.isfinite(cell.curves[cell.finished]) for cell in self.cells.values()])
        return int(np.argmax(known.all(0))) if len(known) else 0

    @property
    def threshold(self) -> float:
        """The one asked for, else halfway up the normalisation's range."""
        return self.given if self.given is not None else (self.normalisation.low + self.normalisation.high) / 2


@dataclass(frozen=True)
class Summary:
    """Everything a report shows."""

    runs: Sequence[Run]
    labels: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Table]
    problems: Sequence[str] = field(default_factory=list)


def summarise(runs: Sequence[Run], problems: Iterable[str] = (), threshold: float | None = None) -> Summary:
    """Charts and tables of all runs; whatever is missing, incomplete or unlike is said in `problems`."""
    if not runs:
        raise BadInput("there are no runs to report: give directories that hold config.toml and metrics.jsonl")
    notes = list(problems)
    runs = name_tasks(runs)
    named = label_runs(runs, notes)
    labels = sorted(named)
    index = {label: i for i, label in enumerate(labels)}
    tasks = [replace(task, given=threshold) for task in _tasks(named, notes)]
    charts = [_curve_chart(task, index) for task in tasks]
    charts += _aggregate_charts(tasks, index) + _metric_charts(named, index) + _state_charts(named, index, notes)
    tables = _aggregate_tables(tasks, notes) + [_task_table(task) for task in tasks]
    return Summary(list(runs), labels, charts, tables, notes)


# --- grouping -------------------------------------------------------------------------------------------------

# Never part of a label: what differs from run to run anyway, or changes nothing that is learned.
SAME = {"algo", "env", "seed", "steps", "command", "versions", "format", "cores", "by_name", "spaces", "together"}
SILENT = {"eval_every", "eval_episodes", "log_every", "save_every", "keep", "max_hours", "video", "record_states"}
SILENT |= {"tensorboard", "wandb", "base", "explore", "intrinsic", "set", "preset", "uncertainty", "capacity", "loop"}
SILENT |= {"max_faults", "workers", "env_timeout", "on_nan"}
TASK = {"env_arg", "action_cost", "action_repeat", "image_size", "frame_stack"}  # what belongs to the task


def name_tasks(runs: Sequence[Run]) -> list[Run]:
    """Runs whose task is told apart: what differs between tasks of one environment is added to its name."""
    settings = [_task_settings(run) for run in runs]
    keys = {key for table in settings for key in table}
    seen: dict[tuple[str, str], set[str | None]] = defaultdict(set)
    for run, table in zip(runs, settings):
        for key in keys:
            seen[run.env, key].add(table.get(key))
    named = []
    for run, table in zip(runs, settings):
        said = [f"{key}={value}" for key, value in sorted(table.items()) if len(seen[run.env, key]) > 1]
        named.append(replace(run, env=f"{run.env} ({', '.join(said)})") if said else run)
    return named


def _task_settings(run: Run) -> dict[str, str]:
    settings = run.config.get("settings", {})
    settings = settings if isinstance(settings, dict) else {}
    pairs = settings.get("env_arg", [])
    pairs = [p for p in pairs if isinstance(p, list) and len(p) == 2] if isinstance(pairs, list) else []
    return {k: str(v) for k, v in settings.items() if k in TASK - {"env_arg"}} | {str(k): str(v) for k, v in pairs}


def label_runs(runs: Sequence[Run], notes: list[str] | None = None) -> dict[str, list[Run]]:
    """Runs by algorithm; settings that differ between runs of an algorithm on one task are added to its name."""
    settings = {id(run): _flat(run.config) for run in runs}
    cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.algo, run.env].append(run)
    varying: dict[str, set[str]] = defaultdict(set)
    for (algo, _), cell in cells.items():
        first = settings[id(cell[0])]
        for other in (settings[id(run)] for run in cell[1:]):
            if other != first:
                varying[algo] |= {k for k in first.keys() | other.keys() if first.get(k) != other.get(k)}
    named: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        own = settings[id(run)]
        shown = [f"{k.rpartition('.')[2]}={own[k]}" for k in sorted(varying[run.algo]) if k in own]
        named[run.algo + (f" ({', '.join(shown)})" if shown else "")].append(run)
    return {label: _one_per_seed(label, group, notes if notes is not None else []) for label, group in named.items()}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat = {}
    for key, value in table.items():
        if prefix == "settings." and key in SAME | SILENT | TASK:
            continue
        if prefix or key not in SAME:
            flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: str(value)}
    return flat


def _one_per_seed(label: str, runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """A seed counts once: of copies of the same run, the one that got furthest."""
    best: dict[tuple[str, int], Run] = {}
    for run in sorted(runs, key=_reached):
        best[run.env, run.seed] = run
    if len(best) < len(runs):
        extra = len(runs) - len(best)
        notes.append(f"{label} has {count(extra, 'run')} of seeds that are there already: the longest of each was kept")
    return sorted(best.values(), key=lambda run: (run.env, run.seed))


def _reached(run: Run) -> float:
    return float(run.returns.step[-1]) if run.returns else 0.0


def _by_env(runs: Iterable[Run]) -> dict[str, list[Run]]:
    grouped: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        grouped[run.env].append(run)
    return grouped


def _grid(series: Sequence[Series], end: float = math.inf) -> Array:
    """The steps at which anything was logged, thinned to `POINTS`."""
    steps = np.unique(np.concatenate([s.env_step for s in series]))
    steps = steps[steps <= end]
    return steps[np.unique(np.linspace(0, len(steps) - 1, POINTS).round().astype(int))] if len(steps) else steps


def _read(series: Sequence[Series], grid: Array) -> Array:
    return st.on_grid([s.env_step for s in series], [s.value for s in series], grid)


def _tasks(named: Mapping[str, Sequence[Run]], notes: list[str]) -> list[Task]:
    found: dict[str, dict[str, list[Run]]] = defaultdict(dict)
    for label, runs in named.items():
        for env, cell in _by_env(runs).items():
            kept = [run for run in cell if run.returns is not None and np.isfinite(run.returns.value).any()]
            if len(kept) < len(cell):
                notes.append(f"{label} on {env} has {count(len(cell) - len(kept), 'run')} without returns: left out")
            if kept:
                found[env][label] = kept
    tasks = [_task(env, found[env], notes) for env in sorted(found)]
    notes += [sentence for task in tasks for sentence in _missing_seeds(task)]
    return tasks


def _task(env: str, cells: Mapping[str, Sequence[Run]], notes: list[str]) -> Task:
    """Read every curve on one grid, up to the last step that every label which finished anything reached."""
    series = {label: [run.returns for run in runs if run.returns] for label, runs in cells.items()}
    longest = {
        label: max((s.env_step[-1] for s, run in zip(series[label], runs) if _done(run, s)), default=math.nan)
        for label, runs in cells.items()
    }
    horizon = float(np.nanmin(list(longest.values()))) if not all(map(math.isnan, longest.values())) else math.inf
    grid = _grid([s for group in series.values() for s in group], horizon)
    built = {}
    for label, runs in cells.items():
        curves = _read(series[label], grid)
        built[label] = Cell(runs, curves, np.isfinite(curves[:, -1]), grid >= LATE * grid[-1])
        notes += _short(f"{label} on {env}", built[label], f"{grid[-1]:,.0f} steps")
    notes += _unlike(env, cells, horizon)
    everything = np.concatenate([cell.curves.ravel() for cell in built.values()])
    return Task(env, grid, built, st.normalisation(env, everything))


def _short(where: str, cell: Cell, end: str) -> Sequence[str]:
    """Why runs of a cell have no final score, a sentence for each reason."""
    runs = [run for run, finished in zip(cell.runs, cell.finished) if not finished]
    cut = sum(run.cut for run in runs)
    asked = sum(not run.cut and _reached(run) >= run.steps for run in runs)
    stopped = len(runs) - cut - asked
    said = {
        INCOMPLETE: (cut, f"finished, but eval.csv is damaged or incomplete and ends before {end}"),
        LENGTHS: (asked, f"asked for less than {end}"),
        STOPPED: (stopped, f"stopped before {end}"),
    }
    return [
        Problem(f"{where}: {count(n, 'run')} {why}, without a final score", kind)
        for kind, (n, why) in said.items()
        if n
    ]


ALIKE = ("learning_starts", "update_ratio", "batch_size", "num_envs", "eval_every", "eval_episodes")


def _unlike(env: str, cells: Mapping[str, Sequence[Run]], horizon: float) -> Sequence[str]:
    """What a comparison on one task should know: runs that were cut, and settings in which algorithms differ."""
    runs = [run for group in cells.values() for run in group]
    longer = sum(run.returns is not None and run.returns.env_step[-1] > horizon for run in runs)
    said = [f"{env}: {count(longer, 'run')} went on after {horizon:,.0f} steps, and only what was before is compared"]
    tables = [run.config.get("settings") for run in runs]
    tables = [table for table in tables if isinstance(table, dict)]
    values = {name: sorted({str(table[name]) for table in tables if name in table}) for name in ALIKE}
    differ = [f"{name} ({', '.join(found[:5])})" for name, found in values.items() if len(found) > 1]
    other = [f"{env}: runs differ in {', '.join(differ)}, and are compared all the same"]
    return [Problem(s, LENGTHS) for s in said * bool(longer)] + [Problem(s, SETTINGS) for s in other * bool(differ)]


def _done(run: Run, series: Series) -> bool:
    return bool(series.step[-1] >= 0.95 * run.steps)


def _missing_seeds(task: Task) -> Iterator[str]:
    """Seeds that other algorithms have; an algorithm without any run on the task may never have been meant to have."""
    seeds = {label: {run.seed for run in cell.runs} for label, cell in task.cells.items()}
    wanted = set.union(*seeds.values())
    for label in sorted(seeds):
        if missing := sorted(wanted - seeds[label]):
            noun = "seed" if len(missing) == 1 else "seeds"
            listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            so = "its intervals are wider" if len(seeds[label]) > 1 else "of one seed there are no intervals"
            yield Problem(f"{label} on {task.env} misses {noun} {listed}: {so}", MISSING)


# --- charts ---------------------------------------------------------------------------------------------------

STEPS, AGENT_STEPS = "environment steps", "agent steps"


def _mean_line(label: int, grid: Array, curves: Array, dashed: bool = False) -> Line:
    mean, se, _ = st.mean_se(curves)
    return Line(label, grid, mean, mean - se, mean + se, dashed)


def _curve_chart(task: Task, index: Mapping[str, int]) -> Chart:
    lines = [_mean_line(index[label], task.grid, cell.curves) for label, cell in task.cells.items()]
    return Chart("curves", task.env, STEPS, "return (mean ± standard error)", lines)


def _common(tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
    """The tasks on which every label has a final score, and the labels."""
    labels = sorted({label for task in tasks for label in task.cells})
    scored = lambda task, label: label in task.cells and task.cells[label].finished.any()
    return [task for task in tasks if all(scored(task, label) for label in labels)], labels


def _aggregate_charts(tasks: Sequence[Task], index: Mapping[str, int]) -> list[Chart]:
    common, labels = _common(tasks)
    if not common:
        return []
    scores = {label: [task.normalisation(task.cells[label].final) for task in common] for label in labels}
    pooled = np.concatenate([task for group in scores.values() for task in group])
    levels = np.linspace(min(0.0, pooled.min()), max(1.0, pooled.max()), 51)
    profile = lambda label: st.performance_profile(scores[label], levels, RESAMPLES)
    over = f"over {count(len(common), 'task')} that every algorithm finished"
    title = f"performance profile {over}"
    profiles = [_interval_line(index[label], levels, profile(label)) for label in labels]
    charts = [Chart("profiles", title, "normalised final score τ", "fraction of runs above τ (95 % band)", profiles)]
    share = np.linspace(0.0, 1.0, 31)
    shared = [_interval_line(index[label], share, _efficiency(common, label, share)) for label in labels]
    title = f"sample efficiency {over}"
    return [
        *charts,
        Chart("profiles", title, "share of the task's steps", "IQM of normalised return (95 % band)", shared),
    ]


def _efficiency(tasks: Sequence[Task], label: str, share: Array) -> tuple[Array, Array, Array]:
    read = lambda task: st.on_grid(
        [task.grid / task.grid[-1] if task.grid[-1] else task.grid] * len(task.cells[label].curves),
        list(task.normalisation(task.cells[label].curves)),
        share,
    )
    return st.sample_efficiency([read(task) for task in tasks], resamples=100)


def _interval_line(label: int, x: Array, band: tuple[Array, Array, Array]) -> Line:
    return Line(label, x, *band)


def _metric_charts(named: Mapping[str, Sequence[Run]], index: Mapping[str, int]) -> list[Chart]:
    grouped = {label: _by_env(runs) for label, runs in named.items()}
    charts = []
    for env in sorted({env for group in grouped.values() for env in group}):
        runs = {label: group[env] for label, group in grouped.items() if env in group}
        for name, title in EXPLORATION.items():
            lines = _metric_lines(runs, name, index, False) + _metric_lines(runs, DASHED.get(name, ""), index, True)
            if lines:
                charts.append(Chart("exploration", env, STEPS, title, lines))
    return charts


def _metric_lines(runs: Mapping[str, Sequence[Run]], name: str, index: Mapping[str, int], dashed: bool) -> list[Line]:
    series = {label: [run.metrics[name] for run in group if name in run.metrics] for label, group in runs.items()}
    series = {label: found for label, found in series.items() if found}
    if not series:
        return []
    grid = _grid([s for found in series.values() for s in found])
    return [_mean_line(index[label], grid, _read(found, grid), dashed) for label, found in series.items()]


# --- states ---------------------------------------------------------------------------------------------------


def phase(obs: Array) -> tuple[Array, tuple[str, str]]:
    """Two coordinates of observations [M, d]: the angle of a (cos, sin, velocity) observation, else the first two."""
    if obs.shape[1] == 3 and len(obs) and np.allclose((obs[:, :2] ** 2).sum(1), 1.0, atol=1e-3):
        return np.stack([np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]], 1), ("angle", "angular velocity")
    second = obs[:, min(1, obs.shape[1] - 1)]
    return np.stack([obs[:, 0], second], 1), ("obs[0]", f"obs[{min(1, obs.shape[1] - 1)}]")


def coverage(points: Array, low: Array, high: Array, cells: int = CELLS) -> Array:
    """Share of a cells × cells grid over [low, high] visited up to each point."""
    width = np.where(high > low, high - low, 1.0)
    place = np.clip(((points - low) / width * cells).astype(int), 0, cells - 1)
    _, first = np.unique(place[:, 0] * cells + place[:, 1], return_index=True)
    fresh = np.zeros(len(points))
    fresh[first] = 1
    return np.cumsum(fresh) / cells**2


def _state_charts(named: Mapping[str, Sequence[Run]], index: Mapping[str, int], notes: list[str]) -> list[Chart]:
    found: dict[str, list[tuple[str, Run, Array, Array, tuple[str, str]]]] = defaultdict(list)
    for label, runs in named.items():
        for run in runs:
            try:
                states = run.states()
            except BadInput as problem:
                notes.append(Problem(str(problem), DAMAGED))
                continue
            if states and len(states[0]) and states[1].shape[1]:
                finite = np.isfinite(states[1]).all(1)
                points, axes = phase(states[1][finite])
                if len(points):
                    found[run.env].append((label, run, states[0][finite], points, axes))
    charts = []
    for env, visits in sorted(found.items()):
        charts += [_coverage_chart(env, visits, index), *_phase_charts(env, visits, index)]
    return charts


def _coverage_chart(env: str, visits: Sequence, index: Mapping[str, int]) -> Chart:
    every = np.concatenate([points for _, _, _, points, _ in visits])
    low, high = every.min(0), every.max(0)
    grown: dict[str, list[Series]] = defaultdict(list)
    for label, _, step, points, _ in visits:
        grown[label].append(Series(step, step, coverage(points, low, high)))
    grid = _grid([s for group in grown.values() for s in group])
    lines = [_mean_line(index[label], grid, _read(group, grid)) for label, group in grown.items()]
    shown = f"share of {CELLS}×{CELLS} cells visited"
    return Chart("states", f"{env}: coverage over time", AGENT_STEPS, shown, lines)


def _phase_charts(env: str, visits: Sequence, index: Mapping[str, int]) -> list[Chart]:
    """The first seed of every label."""
    charts, seen = [], set()
    every = np.concatenate([points for _, _, _, points, _ in visits])
    (x0, y0), (x1, y1) = every.min(0).tolist(), every.max(0).tolist()
    for label, run, step, points, axes in visits:
        if label not in seen and len(seen) < PHASE_PLOTS:
            seen.add(label)
            kept = np.unique(np.linspace(0, len(points) - 1, PHASE_POINTS).round().astype(int))
            line = Line(index[label], points[kept, 0], points[kept, 1])
            title = f"{env}: {label}, seed {run.seed}"
            charts.append(Chart("states", title, axes[0], axes[1], [line], step[kept], ((x0, x1), (y0, y1))))
    return charts


# --- tables ---------------------------------------------------------------------------------------------------


def count(n: int, noun: str) -> str:
    """'1 run', '2 runs'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def tell(problems: Iterable[str], console: Console) -> None:
    """A line for each kind of problem: its first sentence, and how many others there are."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for sentence in problems:
        kinds[sentence.kind if isinstance(sentence, Problem) else LEFT_OUT].append(sentence)
    for kind, (first, *rest) in kinds.items():
        others = f" ({count(len(rest), 'other')} likewise)" if rest else ""
        said = f"{kind}: {printable(first)}{others}"
        console.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)


def number(value: float) -> str:
    """Three significant digits, no exponent for everyday sizes."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}".replace("-", "−") if abs(value) < 1e7 else f"{value:.2e}"


def _estimate(point: st.Estimate) -> str:
    bounds = "–" if math.isnan(point.low) else f"{number(point.low)}, {number(point.high)}"
    return f"{number(point.value)} [{bounds}]"


def _plus_minus(values: Array) -> str:
    if not len(values):
        return "–"
    mean, se, n = (float(v) for v in st.mean_se(values))
    return f"{number(mean)} ± {number(se)}" if n > 1 else f"{number(mean)} (one seed)"


def baseline(labels: Iterable[str]) -> str:
    """What others are compared with: plain SAC if it is there, else the first name."""
    return min(labels, key=lambda label: (label.lower() != "sac", label))


def _hits(task: Task, cell: Cell) -> st.Hits:
    """From the evaluations of each run itself: on a line between two of them nothing was measured."""
    found = []
    for series in (run.returns for run in cell.runs if run.returns is not None):
        here = series.env_step <= task.grid[-1]
        found.append(st.steps_to_threshold(series.env_step[here], series.value[here], task.threshold))
    return st.Hits(np.concatenate([h.step for h in found]), np.concatenate([h.reached for h in found]))


def _task_table(task: Task) -> Table:
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
    header += [f"median steps to {number(task.threshold)} [95 %]", f"ratio to {reference} [95 %]"]
    late = f"mean of the evaluations in the last {1 - LATE:.0%} of {number(task.grid[-1])} environment steps"
    area = f"mean height of the curve from {number(task.grid[task.start])} steps on"
    note = (
        f"Final return: {late}. Area: {area}. Steps to {number(task.threshold)}: the first evaluation at or above it, "
    )
    note += (
        "which is the threshold given. " if task.given is not None else "halfway between the lowest and highest score. "
    )
    note += "Above (>) or below (<): one of two medians is not known, because fewer than half of the seeds got there."
    return Table(task.env, note + _few(min(len(cell.final) for cell in task.cells.values())), header, rows)


def _few(seeds: int) -> str:
    """What to know about bootstrap intervals where a cell has so few seeds."""
    one = " The interval of a single seed is not defined (–)." if seeds < 2 else ""
    return f" Bootstrap intervals of fewer than {FEW} seeds are too narrow.{one}" if seeds < FEW else ""


def _ratio(point: st.Estimate) -> str:
    """A ratio of which one side is not known has a bound, and one without either has nothing."""
    if point.value == 0:
        return f"< {number(point.high)}" if math.isfinite(point.high) else "–"
    if math.isinf(point.value):
        return f"> {number(point.low)}" if point.low > 0 else "–"
    return "–" if math.isnan(point.value) else _estimate(point)


def _median(point: st.MedianSteps) -> str:
    if math.isfinite(point.value):
        return _estimate(point)
    return f"> {number(point.horizon)} ({point.n - point.censored} of {point.n} reached it)"


def _aggregate_tables(tasks: Sequence[Task], notes: list[str]) -> list[Table]:
    common, labels = _common(tasks)
    if not common:
        if len(tasks) > 1:
            sentence = "no task was finished by every algorithm: there are no numbers over all tasks"
            notes.append(Problem(sentence, APART))
        return []
    reference = baseline(labels)
    scores = {label: [task.normalisation(task.cells[label].final) for task in common] for label in labels}
    rows = []
    for label in labels:
        wins = st.probability_of_improvement(scores[label], scores[reference], RESAMPLES)
        shown = "–" if label == reference else _estimate(wins)
        rows.append([label, str(sum(map(len, scores[label]))), _estimate(st.iqm(scores[label], RESAMPLES)), shown])
    how = "; ".join(
        sorted({str(task.normalisation) if len(common) < 4 else task.normalisation.source for task in common})
    )
    note = f"Over the {len(common)} of {count(len(tasks), 'task')} that every algorithm finished. Normalised: {how}."
    note += _few(min(len(task) for group in scores.values() for task in group))
    header = ["algorithm", "runs", "IQM of normalised final return [95 %]", f"P(better than {reference}) [95 %]"]
    return [Table("All tasks", note, header, rows)]
