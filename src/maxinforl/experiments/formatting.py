"""How numbers, counts and problems are printed, in reports and on the console."""

import math
from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console

from maxinforl.experiments.read_runs import LEFT_OUT, Problem
from maxinforl.files import printable


def plural(n: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "run"), plural(2, "run")
    ('1 run', '2 runs')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def print_problems(problems: Iterable[str], console: Console) -> None:
    """Print one line per kind of problem: its first sentence and the number of others."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for sentence in problems:
        kinds[sentence.kind if isinstance(sentence, Problem) else LEFT_OUT].append(sentence)
    for kind, (first, *rest) in kinds.items():
        others = f" ({plural(len(rest), 'other')} likewise)" if rest else ""
        line = f"{kind}: {printable(first)}{others}"
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


def format_number(value: float) -> str:
    """Three significant digits, without an exponent below 1e7.

    >>> format_number(1234.5)
    '1,234'
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}".replace("-", "−") if abs(value) < 1e7 else f"{value:.2e}"
