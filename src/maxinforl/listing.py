"""The tables of `maxinforl list`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from maxinforl import envs
from maxinforl.algorithms import CATALOGUE
from maxinforl.settings import PRESETS

# FLOP of an agent step divided by SAC's, from `experiments.cost.step_cost`, which would import JAX; a test compares.
STEP_COST = {
    "sac": 1, "redq": 52, "oac": 1, "ddpg": 0.99, "droq": 12, "simba": 2.4, "crossq": 0.83, "bro": 2.5, "xqc": 2.4,
    "maxinfo-sac": 1.1, "maxinfo-redq": 53, "maxinfo-oac": 1.1, "maxinfo-ddpg": 1.9, "maxinfo-droq": 13,
    "maxinfo-simba": 2.6, "maxinfo-crossq": 0.87, "maxinfo-bro": 2.5, "maxinfo-xqc": 4.9, "maxinfo-rnd-sac": 1.1,
    "eps-maxinfo-sac": 2, "eps-maxinfo-curiosity-sac": 2, "disagreement-sac": 2, "curiosity-sac": 2,
    "intrinsic-sac": 1.8, "eipo-sac": 2.8, "drq": 200, "drqv2": 200, "drm": 200, "maxinfo-drq": 200,
    "maxinfo-drqv2": 240, "maxinfo-drm": 250,
}  # fmt: skip


def table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(column, no_wrap=i == 0)
    return made


def screen() -> Console:
    """A console as wide as the terminal; 160 columns where the output is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=160)


def show_algorithms() -> None:
    rows = table("algorithm", "base", "explore", "intrinsic", "paper", "cost", "what it is")
    for name, r in CATALOGUE.items():
        rows.add_row(name, r.base, r.explore, r.intrinsic or "-", r.section, f"{STEP_COST[name]:g}", r.summary)
    console = screen()
    console.print(rows)
    console.print("\ncost: FLOP of an agent step relative to SAC's, with the base's own update ratio.")
    console.print("Compose any other with --base B --explore none|maxinfo|sum|eipo|eps|then --intrinsic I.")


def show_envs() -> None:
    rows = table("environment", "what it is")
    for name, text in envs.catalogue().items():
        rows.add_row(name, text)
    console = screen()
    console.print(rows)
    console.print("\nAny Gymnasium id with continuous actions works too, and pixels/<name> for its rendered images.")


def show_presets() -> None:
    rows = table("preset", "algorithms", "environments", "changes", "why")
    for p in PRESETS:
        changes = ", ".join(f"{k}={v}" for k, v in (*p.settings, *p.agent))
        rows.add_row(p.name, "by name" if p.by_name else " ".join(p.algos), " ".join(p.envs), changes, p.why)
    console = screen()
    console.print(rows)
    console.print("\nAll that fit are applied, and the one that --preset names; `none` turns all off; flags win.")


def show_figures() -> None:
    from maxinforl.experiments import reproduce, theory

    rows = table("figure", "runs", "claims", "what it shows")
    for name in reproduce.figure_names():
        if name in theory.REPRODUCE:
            rows.add_row(name, "-", "-", "a theory experiment, see docs/theory.md")
        else:
            found = reproduce.load_figure(name)
            rows.add_row(name, str(len(found.suite.runs())), str(len(found.claims)), found.suite.title)
    screen().print(rows)
