"""The charts of a report as plain data, drawn by the page or by Matplotlib."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maxinforl.errors import BadInput
from maxinforl.experiments import statistics as st
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.formatting import plural
from maxinforl.experiments.grouping import RESAMPLES, TaskResults, by_env, common_grid, read_on_grid, shared_tasks
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import DAMAGED, Problem, RunLogs

PHASE_POINTS, PHASE_PLOTS = 1500, 24  # points per phase plot, and plots per task
CELLS = 20  # per axis of the coverage grid
EXPLORATION = {
    "explore/alpha1": "entropy temperature α1",
    "explore/alpha2": "information-gain temperature α2",
    "explore/intrinsic_weight": "EIPO's intrinsic weight 1/λ",
    "explore/info_gain": "information gain (dashed: target policy)",
    "model/used": "imagined rows that counted",
    "model/disagreement": "disagreement about imagined rows",
    "model/recent_error_of_mean": "error of predicting the mean on new transitions (dashed: of the ensemble)",
}
Band = tuple[FloatArray, FloatArray, FloatArray]  # value, low, high
DASHED = {"explore/info_gain": "explore/info_gain_target", "model/recent_error_of_mean": "explore/recent_error"}
METRICS = {"rollout/ep_rew_mean", *EXPLORATION, *DASHED.values()}  # all that a report reads


@dataclass(frozen=True)
class Line:
    """One series of a chart; `low` and `high` bound its band."""

    label: int  # index into ReportData.labels
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    dashed: bool = False
    public: bool = False  # of a public file: few points, which are marked


@dataclass(frozen=True)
class Chart:
    """A panel of lines, or of points coloured by `time`."""

    tab: str
    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    time: FloatArray | None = None
    box: tuple[tuple[float, float], tuple[float, float]] | None = None  # x and y ranges shared with other charts


STEPS, AGENT_STEPS = "environment steps", "agent steps"


def _mean_line(label: int, grid: FloatArray, curves: FloatArray, dashed: bool = False) -> Line:
    mean, se, _ = st.mean_se(curves)
    return Line(label, grid, mean, mean - se, mean + se, dashed)


def curve_chart(task: TaskResults, index: Mapping[str, int]) -> Chart:
    """Learning curves of one task."""
    lines = [_mean_line(index[label], task.grid, cell.curves) for label, cell in task.cells.items()]
    return Chart("curves", task.env, STEPS, "return (mean ± standard error)", lines)


def aggregate_charts(tasks: Sequence[TaskResults], index: Mapping[str, int]) -> list[Chart]:
    """Performance profile and sample efficiency over the tasks that every label finished."""
    common, labels = shared_tasks(tasks)
    if not common:
        return []
    scores = {label: [task.normalisation(task.cells[label].final) for task in common] for label in labels}
    pooled = np.concatenate([task for group in scores.values() for task in group])
    levels = np.linspace(min(0.0, pooled.min()), max(1.0, pooled.max()), 51)
    profile = lambda label: st.performance_profile(scores[label], levels, RESAMPLES)
    over = f"over {plural(len(common), 'task')} that every algorithm finished"
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


def _efficiency(tasks: Sequence[TaskResults], label: str, share: FloatArray) -> Band:
    read = lambda task: st.on_grid(
        [task.grid / task.grid[-1] if task.grid[-1] else task.grid] * len(task.cells[label].curves),
        list(task.normalisation(task.cells[label].curves)),
        share,
    )
    return st.sample_efficiency([read(task) for task in tasks], resamples=100)


def _interval_line(label: int, x: FloatArray, band: Band) -> Line:
    return Line(label, x, *band)


def metric_charts(named: Mapping[str, Sequence[RunLogs]], index: Mapping[str, int]) -> list[Chart]:
    """The metrics of `EXPLORATION`, one chart per environment and metric."""
    grouped = {label: by_env(runs) for label, runs in named.items()}
    charts = []
    for env in sorted({env for group in grouped.values() for env in group}):
        runs = {label: group[env] for label, group in grouped.items() if env in group}
        for name, title in EXPLORATION.items():
            lines = _metric_lines(runs, name, index, False) + _metric_lines(runs, DASHED.get(name, ""), index, True)
            if lines:
                charts.append(Chart("exploration", env, STEPS, title, lines))
    return charts


def _metric_lines(
    runs: Mapping[str, Sequence[RunLogs]], name: str, index: Mapping[str, int], dashed: bool
) -> list[Line]:
    series = {label: [run.metrics[name] for run in group if name in run.metrics] for label, group in runs.items()}
    series = {label: found for label, found in series.items() if found}
    if not series:
        return []
    grid = common_grid([s for found in series.values() for s in found])
    return [_mean_line(index[label], grid, read_on_grid(found, grid), dashed) for label, found in series.items()]


# --- states ---------------------------------------------------------------------------------------------------


def phase(obs: FloatArray) -> tuple[FloatArray, tuple[str, str]]:
    """Two coordinates of observations [M, d], and their names.

    Angle and velocity if the observation is (cos, sin, velocity), else its first two dimensions.
    """
    if obs.shape[1] == 3 and len(obs) and np.allclose((obs[:, :2] ** 2).sum(1), 1.0, atol=1e-3):
        return np.stack([np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]], 1), ("angle", "angular velocity")
    second = obs[:, min(1, obs.shape[1] - 1)]
    return np.stack([obs[:, 0], second], 1), ("obs[0]", f"obs[{min(1, obs.shape[1] - 1)}]")


def coverage(points: FloatArray, low: FloatArray, high: FloatArray, cells: int = CELLS) -> FloatArray:
    """Share of the cells of a grid over [low, high] that were visited up to each point.

    >>> coverage(np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros(2), np.ones(2), cells=2)
    array([0.25, 0.5 ])
    """
    width = np.where(high > low, high - low, 1.0)
    place = np.clip(((points - low) / width * cells).astype(int), 0, cells - 1)
    _, first = np.unique(place[:, 0] * cells + place[:, 1], return_index=True)
    fresh = np.zeros(len(points))
    fresh[first] = 1
    return np.cumsum(fresh) / cells**2


def state_charts(named: Mapping[str, Sequence[RunLogs]], index: Mapping[str, int], problems: list[str]) -> list[Chart]:
    """Coverage and phase plots of every environment with recorded states."""
    found: dict[str, list[tuple[str, RunLogs, FloatArray, FloatArray, tuple[str, str]]]] = defaultdict(list)
    for label, runs in named.items():
        for run in runs:
            try:
                states = run.states()
            except BadInput as problem:
                problems.append(Problem(str(problem), DAMAGED))
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
    grid = common_grid([s for group in grown.values() for s in group])
    lines = [_mean_line(index[label], grid, read_on_grid(group, grid)) for label, group in grown.items()]
    ylabel = f"share of {CELLS}×{CELLS} cells visited"
    return Chart("states", f"{env}: coverage over time", AGENT_STEPS, ylabel, lines)


def _phase_charts(env: str, visits: Sequence, index: Mapping[str, int]) -> list[Chart]:
    """Visited states of the first seed of every label."""
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
