"""Writes the pages of docs/reference/ that are derived from the code: python tools/reference.py"""

from pathlib import Path

from maxinforl.algorithms import BASES, CATALOGUE, INTRINSICS, STRATEGIES
from maxinforl.cli import parser
from maxinforl.cli_docs import reference
from maxinforl.listing import STEP_COST
from maxinforl.settings import PRESETS

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def catalogue() -> str:
    """algorithms.md"""
    rows = [
        f"| `{name}` | `{r.base}` | `{r.explore}` | {f'`{r.intrinsic}`' if r.intrinsic else '–'} "
        f"| {STEP_COST[name]:g} | {r.summary} |"
        for name, r in CATALOGUE.items()
    ]
    presets = [
        f"| `{p.name}` | {', '.join(f'`{k}={v}`' for k, v in (*p.settings, *p.agent))} | {p.why} |" for p in PRESETS
    ]
    names = lambda table: ", ".join(f"`{name}`" for name in table)
    return "\n".join(
        [
            "# Algorithms and presets",
            "",
            "Written by `python tools/reference.py` from the catalogue itself.",
            "",
            "| name | base | strategy | intrinsic reward | cost | what it is |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "Cost: floating-point operations of an agent step relative to SAC's, with the base's own update ratio.",
            "",
            "Any other product is composed with `--base`, `--explore` and `--intrinsic`:",
            "",
            f"- bases: {names(BASES)}",
            f"- strategies: {names(STRATEGIES)}",
            f"- intrinsic rewards: {names(INTRINSICS)}",
            "",
            "## Presets",
            "",
            "Applied where algorithm and environment fit, unless `--preset` names one or is `none`. Flags win.",
            "",
            "| preset | changes | why |",
            "|---|---|---|",
            *presets,
            "",
        ]
    )


def pages() -> dict[str, str]:
    return {"cli.md": reference(parser()), "algorithms.md": catalogue()}


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
