"""Writes the tables of measured returns in docs/choosing.md from the raw runs in results/.

python benchmarks/measured.py
"""

import tomllib
from pathlib import Path
from statistics import median

from summarise import outcome

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "choosing.md"
BEGIN, END = "<!-- measured: python benchmarks/measured.py -->", "<!-- end of measured -->"
TASKS = {
    "mountain-car": ("`MountainCarContinuous-v0`, solved at 90", 90.0),
    "pendulum-hanging": ("`pendulum-hanging`, solved at −400", -400.0),
    "mountain-car-cost": ("`MountainCarContinuous-v0 --action-cost 0.1`, solved at 80", 80.0),
    "pendulum-hanging-cost": ("`pendulum-hanging --action-cost 0.5`, solved at −450", -450.0),
}
HEAD = [
    "| algorithm | seeds | steps | final return (mean ± se) | seeds that solve it | median step at which they do |",
    "|---|---|---|---|---|---|",
]


def number(x: float, digits: int = 0) -> str:
    return f"{x:,.{digits}f}".replace(",", " ").replace("-", "−")


def row(cell: Path, threshold: float) -> str:
    """One algorithm on one task; the median is over all seeds, so there is none where fewer than half solve it."""
    final, firsts = outcome(cell, threshold)
    with next(cell.glob("seed-*/config.toml")).open("rb") as file:
        settings = tomllib.load(file)["settings"]
    solved = sum(first is not None for first in firsts)
    middle = median(float("inf") if first is None else first for first in firsts)
    ratio = "" if settings["update_ratio"] == 1 else f", ratio {settings['update_ratio']:g}"
    returns = f"{number(final.mean(), 1)} ± {number(final.std(ddof=1) / len(final) ** 0.5, 1)}"
    when = "–" if middle == float("inf") else number(middle)
    name = f"`{settings['algo']}`" + ("" if cell.name == settings["algo"] else ", time limit terminates")
    name += " †" if settings["learning_starts"] else ""
    seeds, steps = len(final), number(settings["steps"])
    return f"| {name} | {seeds} | {steps}{ratio} | {returns} | {solved} of {seeds} | {when} |"


def tables(results: Path = ROOT / "results") -> str:
    lines = []
    for folder, (title, threshold) in TASKS.items():
        cells = sorted(p for p in (results / folder).iterdir() if p.is_dir())
        lines += [f"**{title}**", "", *HEAD, *(row(cell, threshold) for cell in cells), ""]
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with its tables made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
