"""`maxinforl reproduce FIGURE`: the runs, the plot and the verdicts of one figure of the paper.

A figure is a file in `suites/`: a suite, a kind of plot, and the paper's claims, all written before any run.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl import files
from maxinforl.errors import BadInput, unknown
from maxinforl.experiments import charts, figures, report, sweep, theory
from maxinforl.experiments.claims import SPEED, Claim, Evidence, judge, parse_claims
from maxinforl.experiments.formatting import plural
from maxinforl.experiments.read_runs import RunLogs, read_run_logs
from maxinforl.experiments.solved import markdown, solved_table
from maxinforl.experiments.suite import Suite
from maxinforl.experiments.suite_file import parse_suite
from maxinforl.experiments.suite_runs import PlannedRun, plan
from maxinforl.experiments.summary import summarise
from maxinforl.experiments.tables import TextTable
from maxinforl.experiments.verdicts import NOT_RUN, Verdict, verdict_table
from maxinforl.training.directory import command_line, commit, logged_steps

KINDS = ("curves", "profiles", "exploration", "states", "speed")
PAPER_SEEDS, MIN_SEEDS = 5, 3  # of the paper, and at any --scale
FIGURE_METRICS = charts.METRICS | {"time/fps"}


@dataclass(frozen=True)
class Figure:
    """The contents of a figure's file; `metrics` are those that an exploration figure shows."""

    name: str
    suite: Suite
    kind: str
    claims: Sequence[Claim]
    about: str = ""
    metrics: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)  # by environment: the return that solves it


def figure_names() -> list[str]:
    """The names of all figures, the theory experiments last."""
    shipped = [path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml")]
    return [*sorted(shipped), *theory.REPRODUCE]


def _folder() -> Any:
    return resources("maxinforl.experiments") / "suites"


def load_figure(name: str) -> Figure:
    """Read the file of a figure; raises `BadInput` with the nearest name if there is none."""
    if name not in figure_names() or name in theory.REPRODUCE:
        raise unknown("figure", name, figure_names(), "`maxinforl list --figures` shows them all.")
    table = files.read_toml(str(_folder() / f"{name}.toml"))
    if "like" in table:  # defaults to the keys of another figure's file
        table = {**files.read_toml(str(_folder() / f"{table.pop('like')}.toml")), "about": "", **table}
    return parse_figure(name, table)


def parse_figure(name: str, table: Mapping[str, Any]) -> Figure:
    """A figure from its table, every key checked."""
    suite = parse_suite(table, name, also=("figure", "claims", "about"))
    own = table.get("figure", {})
    for key in own:
        if key not in ("kind", "metrics", "thresholds"):
            raise unknown("key in [figure]", key, ("kind", "metrics", "thresholds"))
    if own.get("kind") not in KINDS:
        raise unknown("kind of figure", str(own.get("kind")), KINDS)
    found = parse_claims(table.get("claims", []), {r.label for r in suite.runs()}, suite.environments)
    thresholds = own.get("thresholds", {})
    for env in thresholds:
        if env not in suite.environments:
            raise unknown("environment in [figure.thresholds]", env, suite.environments)
    return Figure(name, suite, own["kind"], found, table.get("about", ""), tuple(own.get("metrics", ())), thresholds)


def scaled(suite: Suite, scale: float) -> Suite:
    """At scale S: steps × S and max(3, round(5 S)) seeds."""
    if not 0 < scale <= 1:
        raise BadInput(f"--scale must be above 0 and at most 1, not {scale:g}")
    return replace(suite, scale=scale, seeds=tuple(range(max(MIN_SEEDS, round(PAPER_SEEDS * scale)))))


def reduction(whole: Suite, part: Suite) -> str:
    """How `part` is smaller than the figure's whole suite, in words; empty if it is not."""
    words = [] if part.scale == 1 else [f"{part.scale:g} of the paper's steps"]
    for kind in ("algorithms", "environments"):
        there, kept = len(getattr(whole, kind)), len(getattr(part, kind))
        words += [f"{kept} of {there} {kind}"] if kept < there else []
    words += [f"{len(part.seeds)} of {len(whole.seeds)} seeds"] if len(part.seeds) < len(whole.seeds) else []
    agent = dict(part.changes.get("set", {}))
    words += [f"{k}={v}" for k, v in {**part.changes, **agent}.items() if k != "set"]
    return "; ".join(words)


# --- the command ----------------------------------------------------------------------------------------------


def main(name: str, out: Path, scale: float, args: Any) -> int:
    """Run what is missing, then draw and judge the runs there are; returns the exit code of the runs."""
    if name in theory.REPRODUCE:
        return _theory(name, out, scale, args)
    found = load_figure(name)
    suite = sweep.select(scaled(found.suite, scale), args)
    where = sweep.LaunchOptions.of(args)
    if args.reuse is None and found.kind != "speed" and Path("results").is_dir():  # times depend on the machine
        where = replace(where, reuse=[Path("results")])
    code = sweep.run(suite, out / "runs", where)
    if where.dry_run:
        return code
    planned = plan(suite.runs(), out / "runs", where.reuse)
    show(write(found, suite, planned, out))
    if missing := sum(p.state != "finished" for p in planned):
        print(f"{missing} of {plural(len(planned), 'run')} are missing, or were made with other settings")
    return code


def _theory(name: str, out: Path, scale: float, args: Any) -> int:
    given = [flag for flag in ("algos", "envs", "seeds", "set", "reuse") if getattr(args, flag)]
    if given or args.dry_run:
        raise BadInput(f"--{given[0] if given else 'dry-run'} has no meaning for {name}: it has no runs")
    print(f"computing {name}: minutes on two cores", flush=True)
    show(theory.reproduce(name, out, scale))
    return 0


def show(verdicts: Sequence[Verdict]) -> None:
    """Print a line per claim that could be judged, and how many could not."""
    judged = [v for v in verdicts if v["verdict"] != NOT_RUN]
    for verdict in judged:
        print(f"{verdict['verdict']:>12}  {verdict['claim']}")
    if len(judged) < len(verdicts):
        print(f"{NOT_RUN:>12}  {len(verdicts) - len(judged)} of {plural(len(verdicts), 'claim')}")


def gather(planned: Sequence[PlannedRun], problems: list[str]) -> list[RunLogs]:
    """The runs that logged anything, with the figure's labels and environment names."""
    runs = []
    for p in planned:
        if (p.directory / "config.toml").exists() and logged_steps(p.directory) > 0:
            run = read_run_logs(p.directory, problems, FIGURE_METRICS)
            runs.append(replace(run, algo=p.run.label, env=p.run.environment, config={}))
            if p.state != "finished":
                problems.append(f"{p.run.name} is not finished: it stopped at step {logged_steps(p.directory)}")
    return runs


def write(found: Figure, suite: Suite, planned: Sequence[PlannedRun], out: Path) -> list[Verdict]:
    """Write verdicts.json, returns.csv, the figure, its data and a README; returns the verdicts."""
    problems: list[str] = []
    runs = gather(planned, problems)
    reduced = reduction(found.suite, suite)
    verdicts = judge(found.claims, runs, list(found.suite.environments), reduced)
    files.make_directory(out)
    (out / "verdicts.json").write_text(json.dumps(verdicts, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if runs:
        (out / "returns.csv").write_text(report.raw_csv(runs))
        draw_figure(found, runs, out, problems)
    missing = len(planned) - len(runs)
    problems += [f"{missing} of {len(planned)} runs are missing"] if missing else []
    tables = solved_tables(found, planned, runs)
    (out / "README.md").write_text(_readme(found, verdicts, reduced, problems, _source(planned, runs, out), tables))
    return verdicts


def solved_tables(found: Figure, planned: Sequence[PlannedRun], runs: Sequence[RunLogs]) -> list[TextTable]:
    """Of every task with a threshold: a row per algorithm of the suite, run or not."""
    seeds: dict[str, Counter[str]] = defaultdict(Counter)
    for p in planned:
        seeds[p.run.environment][p.run.label] += 1
    return [solved_table(env, at, runs, seeds[env]) for env, at in found.thresholds.items() if env in seeds]


def draw_figure(found: Figure, runs: Sequence[RunLogs], out: Path, problems: list[str]) -> None:
    """Write figure.png, figure.pdf and figure.csv."""
    if found.kind == "speed":
        _draw_speed(runs, out)
        return
    whole = summarise(runs)
    titles = {charts.EXPLORATION[name] for name in found.metrics if name in charts.EXPLORATION}
    panels = [c for c in whole.charts if c.tab == found.kind and (not titles or c.ylabel in titles)]
    problems += [p for p in whole.problems if p not in problems]
    if not panels:
        problems.append("the runs have no data for this figure")
        return
    for suffix in ("png", "pdf"):
        report.draw_charts(panels[: report.PANELS], whole.labels, out / f"figure.{suffix}")
    rows = [
        (chart.title, chart.ylabel, whole.labels[line.label] + (" (target)" if line.dashed else ""), *point)
        for chart in panels
        for line in chart.lines
        for point in zip(line.x, line.y, *(line.y if b is None else b for b in (line.low, line.high)))
    ]
    figures.write_csv(out / "figure.csv", ["panel", "quantity", "series", "x", "y", "low", "high"], rows, digits=6)


@figures.styled
def _draw_speed(runs: Sequence[RunLogs], out: Path) -> None:
    """Milliseconds per agent step, a point per run."""
    evidence = Evidence(runs)
    claim = Claim("", "", "above", statistic=SPEED, window=(0.25, 1.0))
    cells = {f"{label}\n{env}": evidence.raw((label, env), claim) for label, env in evidence.runs}
    figure, (ax,) = figures.canvas(1, 1, width=max(3.4, 1.5 * len(cells)), height=3.0)
    for i, (name, values) in enumerate(cells.items()):
        ax.bar(i, values.mean() if len(values) else 0.0, color=figures.colour(i), alpha=0.5, label=name)
        ax.plot(np.full(len(values), i), values, "o", color=figures.colour(i), markersize=4)
    ax.set_xticks(range(len(cells)), list(cells), fontsize=7)
    ax.set(ylabel="ms per agent step")
    for suffix in ("png", "pdf"):
        figures.save(figure, out / f"figure.{suffix}")
    rows = [(*name.split("\n"), i, v) for name, values in cells.items() for i, v in enumerate(values)]
    figures.write_csv(out / "figure.csv", ["algorithm", "environment", "run", "ms_per_step"], rows, digits=6)


def _source(planned: Sequence[PlannedRun], runs: Sequence[RunLogs], out: Path) -> str:
    home = (out / "runs").resolve()
    reused = sum(not run.path.resolve().is_relative_to(home) for run in runs)
    return f"{len(runs)} of {len(planned)} runs" + (f", {reused} of them reused" if reused else "")


def _readme(
    found: Figure,
    verdicts: Sequence[Verdict],
    reduced: str,
    problems: Sequence[str],
    source: str,
    tables: Sequence[TextTable] = (),
) -> str:
    at = f" at commit `{found_commit[:10]}`" if (found_commit := commit()) else ""
    made = f"Made by `{command_line()}` with maxinforl {version('maxinforl')}{at} from {source}."
    lines = [f"# {found.name}", "", found.suite.title + ".", *([found.about] if found.about else []), "", made, ""]
    lines += [f"Reduced: {reduced}.", ""] if reduced else []
    lines += ["Missing or left out:", "", *(f"- {p}" for p in problems), ""] if problems else []
    for table in tables:
        lines += [f"## {table.title[0].upper()}{table.title[1:]}", "", markdown(table), ""]
    lines += [tables[0].note, ""] if tables else []
    judged = [v for v in verdicts if v["verdict"] != NOT_RUN]
    rest = len(verdicts) - len(judged)
    lines += [f"{plural(rest, 'claim')} of {len(verdicts)} could not be judged by these runs."] if rest else []
    return "\n".join([*lines, "", verdict_table(judged) if judged else ""])
