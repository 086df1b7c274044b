"""The paper's claims as data: a statistic per run, the groups it compares, a rule and a threshold.

A claim is written in a figure's TOML file before anything is run. It is *confirmed* if at least five seeds of every
group give a 95 % interval that lies wholly on the claimed side of the threshold, *contradicted* if such an interval is
wholly on the other side, *not run* if runs that it needs are missing, and *not shown* otherwise. A claim of being tied
("not below" a negative margin) is also not shown if the whole interval is below 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from maxinforl import config
from maxinforl.errors import BadInput, unknown
from maxinforl.experiments import statistics as st
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.charts import coverage, phase
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs
from maxinforl.experiments.suite import matches
from maxinforl.experiments.verdicts import CONFIRMED, CONTRADICTED, NOT_RUN, NOT_SHOWN, Verdict, all_of

MIN_SEEDS = 5  # of every group; fewer decide nothing
COMPARISONS, SCOPES = ("above", "below", "not below"), ("each", "some", "mean")
RETURN, COVERAGE, SPEED = "return", "coverage", "ms per step"
Key = tuple[str, str]  # label and environment


@dataclass(frozen=True)
class Claim:
    """`statistic` of `group`, less that of each of `against`, is above or below `threshold`.

    The statistic is the mean over the share of training in `window` of the return (in units of the task's normalised
    range), of the share of cells visited, of the milliseconds per step, or of any logged metric. `over` says on which
    environments: on each (one verdict each), on at least one, or on average. With `ratio` the quotient of
    geometric means is compared instead of the difference of means, and `other_statistic` is that of `against` where it
    is another. Runs of fewer than `least` steps are ignored: too short for the claimed effect.
    """

    claim: str
    group: str
    rule: str
    statistic: str = RETURN
    against: tuple[str, ...] = ()
    threshold: float = 0.0
    window: tuple[float, ...] = (0.9, 1.0)
    over: str = "each"
    environments: tuple[str, ...] = ("*",)
    ratio: bool = False
    other_statistic: str = ""
    least: int = 0

    @property
    def description(self) -> str:
        """The rule as a sentence."""
        what = f"{self.statistic} of {self.group}, mean over {self.window[0]:.0%} to {self.window[1]:.0%} of training"
        other = self.other_statistic or "that"
        less = f"{', divided by' if self.ratio else ', less'} {other} of {' and of '.join(self.against)}"
        return f"{what}{less if self.against else ''}, is {self.rule} {self.threshold:g} ({self.over})"


def parse_claims(
    tables: Sequence[Mapping[str, Any]], labels: Iterable[str], environments: Iterable[str]
) -> list[Claim]:
    """Claims from the [[claims]] tables of a figure's file; unknown labels, environments and keys raise `BadInput`."""
    return [_parse(table, list(labels), list(environments)) for table in tables]


def _parse(table: Mapping[str, Any], labels: list[str], environments: list[str]) -> Claim:
    hints = config.type_hints(Claim)
    for name in table:
        if name not in hints:
            raise unknown("key in [[claims]]", name, hints)
    missing = [f.name for f in fields(Claim)[:3] if f.name not in table]
    if missing:
        raise BadInput(f"a claim in [[claims]] lacks '{missing[0]}'")
    claim = Claim(**{k: config.coerce(v, hints[k], f"claims.{k}") for k, v in table.items()})
    for label in (claim.group, *claim.against):
        if label not in labels:
            raise unknown("group in [[claims]]", label, labels)
    for value, options in ((claim.rule, COMPARISONS), (claim.over, SCOPES)):
        if value not in options:
            raise unknown("word in [[claims]]", value, options)
    for pattern in claim.environments:
        if not any(matches(env, [pattern]) for env in environments):
            raise unknown("environment in [[claims]]", pattern, environments)
    if len(claim.window) != 2 or not 0 <= claim.window[0] < claim.window[1] <= 1:
        raise BadInput("'window' in [[claims]] must be two shares of training, such as [0.9, 1.0]")
    if claim.ratio and not (claim.against and claim.threshold > 0):
        raise BadInput("a claim about a ratio needs 'against' and a threshold above 0")
    return claim


# --- statistics of runs ---------------------------------------------------------------------------------------


class Evidence:
    """The runs of a figure by label and environment, and the statistics of a claim on them."""

    def __init__(self, runs: Iterable[RunLogs]):
        self.runs: dict[Key, list[RunLogs]] = {}
        for run in runs:
            self.runs.setdefault((run.algo, run.env), []).append(run)
        self._values: dict[tuple[Key, str, tuple[float, ...]], FloatArray] = {}
        self._visits: dict[str, dict[str, tuple[FloatArray, FloatArray]]] = {}

    def raw(self, key: Key, claim: Claim) -> FloatArray:
        """The statistic of every run of a cell that trained long enough."""
        place = (key, claim.statistic, (*claim.window, claim.least))
        if place not in self._values:
            found = [self._one(run, claim) for run in self.runs.get(key, [])]
            self._values[place] = np.array([v for v in found if v is not None and math.isfinite(v)])
        return self._values[place]

    def _one(self, run: RunLogs, claim: Claim) -> float | None:
        series = self._series(run, claim.statistic)
        if series is None or not len(series.step) or run.steps < claim.least:
            return None
        share = series.step / run.steps
        inside = (share >= claim.window[0] - 1e-9) & (share <= claim.window[1] + 1e-9)
        if not inside.any() or share[-1] < claim.window[1] - 0.05:
            return None
        return float(series.value[inside].mean())

    def _series(self, run: RunLogs, statistic: str) -> Series | None:
        if statistic == RETURN:
            return run.curve
        if statistic == COVERAGE:
            return self._coverage(run)
        if statistic == SPEED:
            rate = run.metrics.get("time/fps")
            return rate and Series(rate.step, rate.env_step, 1000 / rate.value)
        return run.metrics.get(statistic)

    def _coverage(self, run: RunLogs) -> Series | None:
        """Share of grid cells visited, on the bounding box of all runs of the task, as in the report."""
        if run.env not in self._visits:
            runs = [r for (_, env), group in self.runs.items() if env == run.env for r in group]
            self._visits[run.env] = {str(r.path): found for r in runs if (found := _visited(r)) is not None}
        visits = self._visits[run.env]
        if str(run.path) not in visits:
            return None
        step, points = visits[str(run.path)]
        every = np.concatenate([places for _, places in visits.values()])
        return Series(step, step, coverage(points, every.min(0), every.max(0)))

    def values(self, key: Key, claim: Claim) -> FloatArray:
        """The statistic in the units that the claim compares: logarithms, or normalised returns."""
        values = self.raw(key, claim)
        if claim.ratio:
            return np.log(values)
        if claim.statistic != RETURN or not claim.against:
            return values
        returns = [r.returns.value for (_, env), rs in self.runs.items() if env == key[1] for r in rs if r.returns]
        return st.normalisation(key[1], np.concatenate(returns))(values) if len(values) else values

    def estimate(self, claim: Claim, envs: Sequence[str], other: str | None, confidence: float) -> st.Estimate | None:
        """The contrast of one pair of groups, averaged over environments; None if a cell has no run."""
        terms = [(1 / len(envs), self.values((claim.group, env), claim)) for env in envs]
        its = replace(claim, statistic=claim.other_statistic or claim.statistic)
        terms += [(-1 / len(envs), self.values((other, env), its)) for env in envs] if other else []
        return st.contrast(terms, confidence) if terms and all(len(values) for _, values in terms) else None


def _visited(run: RunLogs) -> tuple[FloatArray, FloatArray] | None:
    """Steps and phase-plane points of the recorded states; None if there are none or they are damaged."""
    try:
        states = run.states()
    except BadInput:
        return None
    if states is None:
        return None
    finite = np.isfinite(states[1]).all(1)
    return (states[0][finite], phase(states[1][finite])[0]) if finite.any() else None


# --- verdicts -------------------------------------------------------------------------------------------------


def judge(claims: Sequence[Claim], runs: Iterable[RunLogs], environments: Sequence[str], reduced: str) -> list[Verdict]:
    """Judge claims on runs.

    Args:
      claims: as `parse_claims` returns them.
      runs: with the figure's labels as `algo` and its environment names as `env`.
      environments: of the figure, in order.
      reduced: how the runs fall short of the paper's, copied into the verdicts.

    Returns:
      One verdict per claim, or per claim and environment if it is made on each.
    """
    evidence = Evidence(runs)
    verdicts = []
    for claim in claims:
        envs = [env for env in environments if matches(env, claim.environments)]
        places = [[env] for env in envs] if claim.over == "each" else [envs]
        verdicts += [_verdict(claim, place, evidence, reduced) for place in places]
    return verdicts


def _verdict(claim: Claim, envs: Sequence[str], evidence: Evidence, reduced: str) -> Verdict:
    decide = _some if claim.over == "some" else _mean
    pairs = {other: decide(claim, envs, evidence, other) for other in claim.against or (None,)}
    found = [verdict for verdict, _ in pairs.values()]
    numbers: dict[str, Any] = {"rule": claim.description}
    numbers |= {f"against {o}" if o else claim.group: n for o, (_, n) in pairs.items() if n}
    if reduced and any(n for _, n in pairs.values()):
        numbers["reduced"] = reduced
    where = f" [{envs[0]}]" if claim.over == "each" and envs else ""
    return {"claim": claim.claim + where, "verdict": all_of(found), "numbers": numbers}


def decide(claim: Claim, estimate: st.Estimate | None) -> str:
    """The verdict of one interval on the threshold."""
    if estimate is None:
        return NOT_RUN
    if estimate.n < MIN_SEEDS:
        return NOT_SHOWN
    limit = math.log(claim.threshold) if claim.ratio else claim.threshold
    above, below = estimate.low > limit, estimate.high < limit
    right, wrong = (below, above) if claim.rule == "below" else (above, below)
    if claim.rule == "not below" and estimate.high < 0:  # within the margin, but significantly below
        right = False
    return CONFIRMED if right else CONTRADICTED if wrong else NOT_SHOWN


def _mean(claim: Claim, envs: Sequence[str], evidence: Evidence, other: str | None) -> tuple[str, dict[str, Any]]:
    point = evidence.estimate(claim, envs, other, 0.95)
    return decide(claim, point), _numbers(claim, envs, evidence, other, point)


def _some(claim: Claim, envs: Sequence[str], evidence: Evidence, other: str | None) -> tuple[str, dict[str, Any]]:
    """Confirmed on one environment suffices; intervals are Bonferroni-corrected for the number of environments."""
    confidence = 1 - 0.05 / max(1, len(envs))
    points = {env: evidence.estimate(claim, [env], other, confidence) for env in envs}
    found = {env: decide(claim, point) for env, point in points.items()}
    numbers = {env: _numbers(claim, [env], evidence, other, p) for env, p in points.items() if p is not None}
    if CONFIRMED in found.values():
        return CONFIRMED, numbers
    if numbers and all(v == CONTRADICTED for v in found.values()):
        return CONTRADICTED, numbers
    return (NOT_SHOWN if numbers else NOT_RUN), numbers


def _numbers(
    claim: Claim, envs: Sequence[str], evidence: Evidence, other: str | None, point: st.Estimate | None
) -> dict[str, Any]:
    if point is None:
        return {}
    scale = np.exp if claim.ratio else float
    name = "value" if other is None else "ratio" if claim.ratio else "difference"
    interval = {
        key: _json_number(float(scale(v))) for key, v in ((name, point.value), ("low", point.low), ("high", point.high))
    }
    groups = {claim.group: claim.statistic} | ({other: claim.other_statistic or claim.statistic} if other else {})
    mean = lambda g, s: _json_number(float(evidence.raw((g, envs[0]), replace(claim, statistic=s)).mean()))
    means = {g: mean(g, s) for g, s in groups.items()} if len(envs) == 1 else {}
    return {**interval, "seeds": point.n, **({"means": means} if means else {})}


def _json_number(value: float) -> float | str:
    """Five significant digits, or "unbounded", which JSON has no number for."""
    return float(f"{value:.5g}") if math.isfinite(value) else "unbounded"
