"""How numbers, counts and problems are printed, in reports and on the console."""

import math
from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console

from maxinforl.experiments.read_runs import LEFT_OUT, Problem
from maxinforl.files import shown


def plural(n: int, noun: str) -> str:
    """'1 run', '2 runs'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def print_problems(problems: Iterable[str], console: Console) -> None:
    """A line for each kind of problem: its first sentence, and how many others there are."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for sentence in problems:
        kinds[sentence.kind if isinstance(sentence, Problem) else LEFT_OUT].append(sentence)
    for kind, (first, *rest) in kinds.items():
        others = f" ({plural(len(rest), 'other')} likewise)" if rest else ""
        said = f"{kind}: {shown(first)}{others}"
        console.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)


def format_number(value: float) -> str:
    """Three significant digits, no exponent for everyday sizes."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}".replace("-", "−") if abs(value) < 1e7 else f"{value:.2e}"
