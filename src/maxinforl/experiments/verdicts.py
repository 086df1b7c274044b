"""Verdicts on claims: the four words, what decides between them, and how they are written."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from maxinforl.experiments.arrays import FloatArray

CONFIRMED, NOT_SHOWN, CONTRADICTED, NOT_RUN = "confirmed", "not shown", "contradicted", "not run"
Verdict = dict[str, Any]  # claim, verdict (one of the four words), numbers


def make_verdict(claim: str, confirmed: bool, contradicted: bool, **numbers: Any) -> Verdict:
    """A verdict with the numbers behind it, rounded to four significant digits."""
    word = CONFIRMED if confirmed else CONTRADICTED if contradicted else NOT_SHOWN
    return {"claim": claim, "verdict": word, "numbers": {k: rounded(v) for k, v in numbers.items()}}


def exact(claim: str, error: float, tolerance: float = 1e-10, **numbers: Any) -> Verdict:
    """An identity or inequality without randomness: it holds up to rounding error or it is false."""
    return make_verdict(claim, error <= tolerance, error > tolerance, error=error, tolerance=tolerance, **numbers)


def often(claim: str, failed: FloatArray, share: float, name: str, **numbers: Any) -> Verdict:
    """At most `share` of the seeds fail, decided by the 95 % interval of the failure probability.

    Args:
      claim: the statement.
      failed: one truth value per seed.
      share: the largest failure probability that the claim allows.
      name: the key under which the observed share of failures is reported.
      **numbers: further numbers to report.
    """
    low, high = binomial_interval(int(failed.sum()), len(failed))
    numbers = {name: float(failed.mean()), "interval": [low, high], **numbers}
    return make_verdict(claim, high <= share, low > share, **numbers)


def below(claim: str, drawn: FloatArray, limit: float, also: bool = True, **numbers: Any) -> Verdict:
    """A bootstrapped quantity lies below `limit`, decided by its 95 % interval; `also` is a further condition."""
    low, high = np.quantile(drawn, [0.025, 0.975])
    return make_verdict(claim, high < limit and also, low > limit, interval=[low, high], limit=limit, **numbers)


def binomial_interval(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of a probability, given `hits` successes in `n` draws.

    >>> [round(p, 4) for p in binomial_interval(0, 100)]
    [0.0, 0.0362]
    """
    interval = stats.binomtest(hits, n).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def rounded(value: Any, digits: int = 4) -> Any:
    """Floats to `digits` significant digits, in lists and arrays too; anything else as it is."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [rounded(v, digits) for v in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float | np.floating) else value


def all_of(verdicts: Sequence[str]) -> str:
    """The verdict on a conjunction: contradicted if any part is, else not run if any part is, and so on."""
    for verdict in (CONTRADICTED, NOT_RUN, NOT_SHOWN):
        if verdict in verdicts:
            return verdict
    return CONFIRMED


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Claims and verdicts as a Markdown table."""
    return "| claim | verdict |\n|---|---|\n" + "".join(
        f"| {v['claim'].replace('|', chr(92) + '|')} | {v['verdict']} |\n" for v in verdicts
    )
