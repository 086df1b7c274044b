"""Statistics of learning curves from a few seeds: means, IQM, performance profiles, probability of improvement.

Scores are one 1-D array per task, of any lengths: missing seeds are never padded. Every task has the same weight,
however many seeds it has. Intervals are 95 % by default. Bootstrap intervals are stratified by task, NaN if a task has
a single seed, and drawn from a generator with the caller's seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from maxinforl.errors import BadInput
from maxinforl.experiments.arrays import BoolArray, FloatArray, IntArray

Scores = Sequence[ArrayLike]


@dataclass(frozen=True)
class Estimate:
    """An estimate with its confidence interval; `n` is the smallest number of seeds behind it."""

    value: float
    low: float
    high: float
    n: int

    def excludes(self, null: float) -> bool:
        """Whether `null` lies outside the interval; a NaN bound excludes nothing."""
        return bool(self.low > null or self.high < null)


# --- means ----------------------------------------------------------------------------------------------------


def mean_se(values: ArrayLike, axis: int = 0) -> tuple[FloatArray, FloatArray, IntArray]:
    """Mean, standard error and count along `axis`, ignoring NaN; the standard error of one value is NaN, not 0."""
    x = np.asarray(values, float)
    there = np.isfinite(x)
    n = there.sum(axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(there, x, 0.0).sum(axis) / n
        centred = np.where(there, x - np.expand_dims(mean, axis), 0.0)
        variance = np.where(n > 1, (centred**2).sum(axis) / (n - 1), np.nan)
        return mean, np.sqrt(variance / n), n


def difference(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Estimate:
    """mean(x) - mean(y) with Welch's t interval; the bootstrap's is too narrow at five seeds.

    >>> difference([1, 2, 3, 4, 5], [0, 0, 1, 1, 2]).excludes(0)
    True
    """
    return contrast([(1.0, x), (-1.0, y)], confidence)


def contrast(terms: Sequence[tuple[float, ArrayLike]], confidence: float = 0.95) -> Estimate:
    """A weighted sum of means of independent samples, with the Welch-Satterthwaite t interval.

    Args:
      terms: pairs of weight and sample.
      confidence: coverage of the interval.
    """
    weight = np.array([w for w, _ in terms])
    mean, se, n = (np.array(column) for column in zip(*(mean_se(values) for _, values in terms)))
    value, parts, least = float(weight @ mean), (weight * se) ** 2, int(n.min())
    variance = float(parts.sum())
    if not np.isfinite(variance):
        return Estimate(value, -np.inf, np.inf, least)
    if variance == 0:
        return Estimate(value, value, value, least)
    dof = variance**2 / float((parts**2 / (n - 1)).sum())
    half = float(stats.t.ppf(0.5 + confidence / 2, dof)) * np.sqrt(variance)
    return Estimate(value, value - half, value + half, least)


# --- aggregates over tasks ------------------------------------------------------------------------------------


def interquartile_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Mean of the middle half of the weighted distribution along the last axis.

    The quantile function is integrated between 1/4 and 3/4, so a value on the edge counts in part; this equals
    the mean with a quarter of the values cut from each end whenever their number is divisible by four.
    """
    if np.ptp(weights) == 0:  # then sorting the values is enough, and much faster
        edges = np.linspace(0.0, 1.0, values.shape[-1] + 1).clip(0.25, 0.75)
        return 2 * np.sort(values, axis=-1) @ np.diff(edges)
    order = np.argsort(values, axis=-1)
    edges = np.cumsum(np.take_along_axis(np.broadcast_to(weights, values.shape), order, -1), -1)
    inside = np.diff(np.clip(edges / edges[..., -1:], 0.25, 0.75), prepend=0.25, axis=-1)
    return 2 * (inside * np.take_along_axis(values, order, -1)).sum(-1)


def iqm(scores: Scores, resamples: int = 2000, seed: int = 0, confidence: float = 0.95) -> Estimate:
    """Interquartile mean (IQM) over all runs of all tasks, with a stratified bootstrap interval.

    Args:
      scores: one array of final scores per task.
      resamples: bootstrap samples.
      seed: of the bootstrap.
      confidence: coverage of the interval.

    >>> iqm([[0, 1, 3, 1000]]).value
    2.0
    """
    tasks = _tasks(scores)
    weights = _equal_tasks(tasks)
    pooled = np.concatenate(tasks)
    drawn = _bootstrap(lambda i: interquartile_mean(pooled[i], weights), tasks, resamples, seed)
    value, least = float(interquartile_mean(pooled, weights)), min(map(len, tasks))
    return Estimate(value, *_interval(drawn, confidence, least), n=least)


def performance_profile(
    scores: Scores, thresholds: ArrayLike, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fraction of runs whose score exceeds each threshold, with a stratified bootstrap band (fraction, low, high)."""
    tasks, levels = _tasks(scores), np.asarray(thresholds, float)
    above = [np.asarray(task[:, None] > levels, float) for task in tasks]
    generator = np.random.default_rng(seed)
    drawn = np.zeros((resamples, len(levels)))
    for task in above:
        picks = generator.multinomial(len(task), np.full(len(task), 1 / len(task)), size=resamples)
        drawn += (picks / len(task)) @ task / len(tasks)
    fraction = np.mean([task.mean(0) for task in above], axis=0)
    return fraction, *_interval(drawn, confidence, min(map(len, tasks)))


def probability_of_improvement(
    scores: Scores, baseline: Scores, resamples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> Estimate:
    """P(a run scores above a run of the baseline on the same task), averaged over tasks; a tie counts as a half.

    >>> probability_of_improvement([[1, 2]], [[0, 2]]).value
    0.625
    """
    ours, theirs = _tasks(scores), _tasks(baseline)
    if len(ours) != len(theirs):
        raise BadInput(f"both sides must have the same tasks, got {len(ours)} and {len(theirs)}")
    generator = np.random.default_rng(seed)
    value, drawn = 0.0, np.zeros(resamples)
    for x, y in zip(ours, theirs):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        value += wins.mean() / len(ours)
        rows, columns = (generator.multinomial(n, np.full(n, 1 / n), size=resamples) / n for n in wins.shape)
        drawn += np.einsum("bi,ij,bj->b", rows, wins, columns, optimize=True) / len(ours)
    least = min(map(len, [*ours, *theirs]))
    return Estimate(float(value), *_interval(drawn, confidence, least), n=least)


# --- curves ---------------------------------------------------------------------------------------------------


def on_grid(steps: Sequence[ArrayLike], values: Sequence[ArrayLike], grid: ArrayLike) -> FloatArray:
    """Each run's curve read at the points of `grid`; NaN before its first and after its last point."""
    grid = np.asarray(grid, float)
    curves = np.full((len(steps), len(grid)), np.nan)
    for row, x, y in zip(curves, steps, values):
        x, y = np.asarray(x, float), np.asarray(y, float)
        kept = np.isfinite(y)
        if kept.any():
            row[:] = np.interp(grid, x[kept], y[kept], left=np.nan, right=np.nan)
    return curves


def sample_efficiency(
    curves: Sequence[ArrayLike], resamples: int = 200, seed: int = 0, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """IQM over tasks at every point of a common grid (iqm, low, high); one (seeds, points) array per task.

    A point that some task never reached with any seed is NaN: a mean over fewer tasks would be another quantity.
    """
    tasks = [np.atleast_2d(np.asarray(task, float)) for task in curves]
    points = {task.shape[1] for task in tasks}
    if len(points) != 1:
        raise BadInput("every task must be read on the same grid of steps: use on_grid first")
    band = np.full((3, points.pop()), np.nan)
    for p in range(band.shape[1]):
        scores = [task[np.isfinite(task[:, p]), p] for task in tasks]
        if all(map(len, scores)):
            point = iqm(scores, resamples, seed, confidence)
            band[:, p] = point.value, point.low, point.high
    return band[0], band[1], band[2]


def area_under_curve(steps: ArrayLike, curves: ArrayLike) -> FloatArray:
    """Area under each curve by the trapezoidal rule, divided by the range of `steps`; NaN if incomplete."""
    x, y = np.asarray(steps, float), np.asarray(curves, float)
    if x.size == 1:
        return y[..., 0]
    return np.trapezoid(y, x, axis=-1) / (x[-1] - x[0])


# --- steps to threshold ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hits:
    """The step at which each run reached the threshold or, where `reached` is false, its last step (censored)."""

    step: FloatArray
    reached: BoolArray


@dataclass(frozen=True)
class MedianSteps(Estimate):
    """Median steps to a threshold: `inf` when fewer than half are known to reach it within `horizon`."""

    horizon: float
    censored: int


def steps_to_threshold(steps: ArrayLike, curves: ArrayLike, threshold: float, hold: int = 1) -> Hits:
    """First step from which `hold` points in a row are at or above the threshold, per run (rows of `curves`)."""
    x, y = np.asarray(steps, float), np.atleast_2d(np.asarray(curves, float))
    there = np.isfinite(y)
    above = np.asarray(there & (np.where(there, y, -np.inf) >= threshold))
    padded = np.pad(above, ((0, 0), (0, hold - 1)))
    above = np.asarray(np.lib.stride_tricks.sliding_window_view(padded, hold, axis=1).all(-1))
    reached = np.asarray(above.any(-1))
    last = y.shape[1] - 1 - np.argmax(there[:, ::-1], axis=1)
    return Hits(np.where(reached, x[above.argmax(1)], np.where(there.any(1), x[last], 0.0)), reached)


def median_steps(hits: Hits, resamples: int = 2000, seed: int = 0, confidence: float = 0.95) -> MedianSteps:
    """Kaplan-Meier (lower) median with a bootstrap interval; a run that stopped early is censored, not a failure."""
    if not len(hits.step):
        return MedianSteps(np.nan, np.nan, np.nan, 0, 0.0, 0)
    median = _kaplan_meier_median(hits.step[None], hits.reached[None])[1]
    lows, highs = _bootstrap_medians(hits, resamples, np.random.default_rng(seed))
    n = len(hits.step)
    bounds = _order_interval(lows, highs, confidence, n)
    return MedianSteps(float(median[0]), *bounds, n, float(hits.step.max()), int((~hits.reached).sum()))


def ratio_of_medians(
    hits: Hits, baseline: Hits, resamples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> Estimate:
    """Median steps over the baseline's (below 1 is faster), with a bootstrap interval.

    A median that was not reached lies between the last observed step and infinity. That range is propagated through
    the division, so the interval is valid whatever the censored runs would have done. The value is the ratio if both
    medians exist, 0 or inf if only one does, NaN if neither does.
    """
    if not (len(hits.step) and len(baseline.step)):
        return Estimate(np.nan, np.nan, np.nan, 0)
    generator = np.random.default_rng(seed)
    x, y = (_kaplan_meier_median(h.step[None], h.reached[None])[1] for h in (hits, baseline))
    (lows_x, highs_x), (lows_y, highs_y) = (_bootstrap_medians(h, resamples, generator) for h in (hits, baseline))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float((x / y)[0])
        lows, highs = lows_x / highs_y, highs_x / lows_y  # 0/0: solved before the first step on both sides
    lows, highs = np.nan_to_num(lows, posinf=np.inf), np.nan_to_num(highs, nan=np.inf, posinf=np.inf)
    least = min(len(hits.step), len(baseline.step))
    return Estimate(value, *_order_interval(lows, highs, confidence, least), n=least)


def _kaplan_meier_median(step: FloatArray, reached: BoolArray) -> tuple[FloatArray, FloatArray]:
    """First step where at most half of the runs (rows' entries) survive, as a range: a point, or [last, inf]."""
    # Ties: hits come before censorings, since a run censored at a step was observed up to and including it.
    order = np.lexsort((~reached, step), axis=-1)
    step, reached = np.take_along_axis(step, order, -1), np.take_along_axis(reached, order, -1)
    at_risk = np.arange(step.shape[-1], 0, -1)
    halved = np.cumprod(1 - reached / at_risk, axis=-1) <= 0.5 + 1e-12
    median = np.take_along_axis(step, halved.argmax(-1)[..., None], -1)[..., 0]
    found = halved.any(-1)
    return np.where(found, median, step[..., -1]), np.where(found, median, np.inf)


def _bootstrap_medians(hits: Hits, resamples: int, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    picks = generator.integers(len(hits.step), size=(resamples, len(hits.step)))
    return _kaplan_meier_median(hits.step[picks], hits.reached[picks])


# --- normalisation --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normalisation:
    """A linear map of scores that takes `low` to 0 and `high` to 1; `str` describes it."""

    low: float
    high: float
    source: str

    def __call__(self, scores: ArrayLike) -> FloatArray:
        return (np.asarray(scores, float) - self.low) / (self.high - self.low)

    def __str__(self) -> str:
        return f"0 is a return of {self.low:.4g} and 1 is {self.high:.4g} ({self.source})"


def normalisation(env: str, scores: ArrayLike | None = None) -> Normalisation:
    """The range of a task whose returns are bounded by construction, else the range of the compared `scores`."""
    if env.removeprefix("pixels/").startswith("dmc/"):
        return Normalisation(0.0, 1000.0, "the task's range: 1000 steps of reward in [0, 1], before any action cost")
    seen = np.asarray([] if scores is None else scores, float)
    seen = seen[np.isfinite(seen)]
    if seen.size == 0:
        raise BadInput(f"'{env}' has no known range of returns and no scores to take one from")
    low, high = float(seen.min()), float(seen.max())
    return Normalisation(low, high if high > low else low + 1.0, "lowest and highest score among the runs compared")


# --- bootstrap ------------------------------------------------------------------------------------------------


def _tasks(scores: Scores) -> list[FloatArray]:
    tasks = [np.asarray(task, float).ravel() for task in scores]
    if not tasks or not all(map(len, tasks)):
        raise BadInput("a statistic over tasks needs at least one run of every task")
    if not all(np.isfinite(task).all() for task in tasks):
        raise BadInput("scores must be finite: drop runs without a score and say so")
    return tasks


def _equal_tasks(tasks: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([np.full(len(task), 1 / len(task)) for task in tasks])


def _bootstrap(
    statistic: Callable[[NDArray], FloatArray], tasks: Sequence[FloatArray], resamples: int, seed: int
) -> FloatArray:
    """The statistic of `resamples` bootstrap samples; seeds are drawn with replacement within each task."""
    return np.concatenate([statistic(picks) for picks in _stratified(tasks, resamples, seed)])


def _stratified(tasks: Sequence[FloatArray], resamples: int, seed: int, chunk: int = 2_000_000) -> Iterator[NDArray]:
    sizes = np.array([len(task) for task in tasks])
    size, start = np.repeat(sizes, sizes), np.repeat(np.cumsum(sizes) - sizes, sizes)
    generator = np.random.default_rng(seed)
    rows = max(1, chunk // len(size))  # bounds the memory of a batch of resamples
    for done in range(0, resamples, rows):
        yield start + generator.integers(size, size=(min(rows, resamples - done), len(size)))


def _interval(drawn: FloatArray, confidence: float, seeds: int) -> tuple:
    """Percentile interval of bootstrap draws; NaN if the smallest task has fewer than two `seeds`."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    if seeds < 2:  # every resample of one seed is the same: a width of 0 would claim certainty
        low, high = np.full_like(low, np.nan), np.full_like(high, np.nan)
    return (float(low), float(high)) if drawn.ndim == 1 else (low, high)


def _order_interval(lows: FloatArray, highs: FloatArray, confidence: float, seeds: int) -> tuple[float, float]:
    """As `_interval`, but without interpolation between draws, which may be infinite."""
    if seeds < 2:
        return np.nan, np.nan
    tail = (1 - confidence) / 2
    low = np.quantile(lows, tail, method="lower")
    return float(low), float(np.quantile(highs, 1 - tail, method="higher"))
