"""`maxinforl report`: one self-contained HTML file, and the same charts as figures for a paper."""

import base64
import gzip
import html
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files as resources
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from rich.console import Console

from maxinforl.errors import BadInput
from maxinforl.experiments import figures
from maxinforl.experiments.charts import AGENT_STEPS, METRICS, STEPS, Chart, Line
from maxinforl.experiments.formatting import plural, print_problems
from maxinforl.experiments.grouping import label_runs
from maxinforl.experiments.read_runs import RunLogs, find_runs
from maxinforl.experiments.reference import read_curves, with_reference
from maxinforl.experiments.summary import ReportData, summarise
from maxinforl.experiments.tables import TextTable
from maxinforl.files import MiB, make_directory, printable, reading, write_atomic

TABS = {
    "overview": "Overview",
    "curves": "Learning curves",
    "profiles": "Profiles",
    "exploration": "Exploration",
    "states": "States",
    "videos": "Videos",
    "data": "Data and commands",
}
VIDEO_LIMIT, VIDEOS_LIMIT, PLAIN_CSV_LIMIT = 4 * MiB, 24 * MiB, 2 * MiB
LISTED = 200  # problems and commands listed individually
PANELS = 30  # per exported figure

Paths = Iterable[str | os.PathLike[str]]


def report(
    paths: Paths,
    out: str | os.PathLike[str],
    threshold: float | None = None,
    console: Console | None = None,
    reference: str | os.PathLike[str] | None = None,
) -> Path:
    """Write an HTML report of runs.

    Args:
      paths: run directories, or directories that contain some.
      out: the file to write, or a directory for report.html.
      threshold: the return to which steps are counted; by default the middle of each task's range.
      console: prints what is missing, left out or not comparable, one line per kind.
      reference: a CSV file of public curves to draw beside the runs, or "public" for the package's own.

    Returns:
      The file that was written.

    Example:
      >>> report(["results/mountain-car"], "report.html")  # doctest: +SKIP
    """
    summary = _collect(paths, threshold, reference)
    out = Path(out)
    with reading(out):
        out = out / "report.html" if out.is_dir() or not out.suffix else out
    make_directory(out.parent)
    write_atomic(out, (part.encode() for part in render(summary)))
    if console is not None:
        print_problems(summary.problems, console)
    return out


def _collect(
    paths: Paths, threshold: float | None = None, reference: str | os.PathLike[str] | None = None
) -> ReportData:
    curves = None if reference is None else read_curves(reference)
    problems: list[str] = []
    runs = find_runs(paths, problems, METRICS)
    if not runs and problems:
        raise BadInput(f"none of the runs can be read: {problems[0]}")
    summary = summarise(runs, problems, threshold)
    return summary if curves is None else with_reference(summary, curves)


def render(summary: ReportData) -> Iterator[str]:
    """The page in pieces; every string from a run passes through `html.escape` or JSON."""
    template = (resources("maxinforl.experiments") / "report.html").read_text(encoding="utf-8")
    panels = {
        "overview": _overview(summary),
        "videos": _videos(summary),
        "data": _data(summary),
        **dict.fromkeys(("curves", "profiles", "exploration", "states"), '<div class="charts"></div>'),
    }
    there = {chart.tab for chart in summary.charts} | {"overview", "data"} | ({"videos"} if panels["videos"] else set())
    visible_tabs = [tab for tab in TABS if tab in there]
    parts = {
        "title": html.escape(_title(summary)),
        "tabs": "".join(_tab(tab, tab == "overview") for tab in visible_tabs),
        "panels": "".join(_panel(tab, panels[tab], tab == "overview") for tab in visible_tabs),
        "data": _json({"labels": summary.labels, "colours": figures.COLOURS, "charts": _charts(summary.charts)}),
    }
    # One pass over the template: inserted text is not scanned for placeholders.
    for i, piece in enumerate(re.split(r"@@(\w+)@@", template)):
        yield parts[piece] if i % 2 else piece


def _title(summary: ReportData) -> str:
    envs = sorted({run.env for run in summary.runs})
    where = envs[0] if len(envs) == 1 else f"{len(envs)} tasks"
    return f"{plural(len(summary.labels), 'algorithm')}, {where}, {plural(len(summary.runs), 'run')}"


def _tab(tab: str, first: bool) -> str:
    state = f'aria-selected="{str(first).lower()}" aria-controls="panel-{tab}" id="tab-{tab}"'
    return f'<button role="tab" type="button" {state} data-tab="{tab}">{TABS[tab]}</button>'


def _panel(tab: str, content: str, first: bool) -> str:
    hidden = "" if first else " hidden"
    label = f'aria-labelledby="tab-{tab}" id="panel-{tab}"'
    return f'<section role="tabpanel" {label} data-tab="{tab}"{hidden}>{content}</section>'


# --- parts of the page ----------------------------------------------------------------------------------------


def _overview(summary: ReportData) -> str:
    return _list("Missing or left out", summary.problems) + "".join(map(_table, summary.tables))


def _list(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(s)}</li>" for s in sentences[:LISTED])
    more = f"<li>… and {len(sentences) - LISTED} more</li>" if len(sentences) > LISTED else ""
    opened = " open" if len(sentences) <= 5 else ""
    return (
        f"<details{opened}><summary>{html.escape(title)} ({len(sentences)})</summary><ul>{items}{more}</ul></details>"
    )


def _table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.header)
    body = "".join(map(_row, table.rows))
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    note = f'<p class="note">{html.escape(table.note)}</p>'
    return f'<h2>{html.escape(table.title)}</h2><div class="scroll">{grid}</div>{note}'


def _row(cells: Sequence[str]) -> str:
    name, *values = map(html.escape, cells)
    return f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{value}</td>" for value in values) + "</tr>"


def _videos(summary: ReportData) -> str:
    """Small videos embedded in the page, larger ones by name."""
    parts, left = [], VIDEOS_LIMIT
    for run, video in [(r, v) for r in summary.runs for v in r.videos]:
        caption, size = f"{run.algo} on {run.env}, seed {run.seed}: {video.name}", video.stat().st_size
        if not os.access(video, os.R_OK):
            player, caption = "", f"{caption} (cannot be read: {video})"
        elif size <= min(VIDEO_LIMIT, left):
            left -= size
            content = base64.b64encode(video.read_bytes()).decode()
            source = f'src="data:video/mp4;base64,{content}"'
            player = f'<video controls muted playsinline preload="metadata" {source}></video>'
        else:
            player, caption = "", f"{caption} ({size / MiB:.1f} MiB, not embedded: {video})"
        parts.append(f"<figure>{player}<figcaption>{html.escape(caption)}</figcaption></figure>")
    return f'<div class="videos">{"".join(parts)}</div>' if parts else ""


def _data(summary: ReportData) -> str:
    lines = _commands(summary.runs)
    versions = defaultdict(Counter)
    for run in summary.runs:
        for name, version in run.versions.items():
            versions[name][version] += 1
    rows = [
        [name, "; ".join(f"{v} ({plural(n, 'run')})" for v, n in counts.most_common(20))]
        for name, counts in versions.items()
    ]
    table = TextTable("Versions", "As recorded by the runs.", ["software", "version"], sorted(rows))
    listed = "\n".join(lines) if lines else "the runs recorded no command"
    return f"{_download(summary)}<h2>Commands</h2><pre>{html.escape(listed)}</pre>{_table(table) if rows else ''}"


def _commands(runs: Sequence[RunLogs]) -> list[str]:
    """The exact command of each run; commands that differ only in the seed are one line, with N for the seed."""
    groups: dict[str, list[RunLogs]] = defaultdict(list)
    for run in runs:
        if run.command:
            pattern = re.sub(rf"\bseed-{run.seed}\b", "seed-N", re.sub(r" --seed[ =]\d+", "", run.command))
            groups[pattern].append(run)
    lines = []
    for pattern, group in sorted(groups.items(), key=lambda item: -len(item[1]))[:LISTED]:
        one = len({run.command for run in group}) == 1
        seeds = ", ".join(map(str, sorted({run.seed for run in group})[:20]))
        lines.append(
            f"{group[0].command if one else f'{pattern} --seed N'}   # {plural(len(group), 'run')}, seeds {seeds}"
        )
    return lines


def _download(summary: ReportData) -> str:
    raw = raw_csv(summary.runs).encode()
    small = len(raw) <= PLAIN_CSV_LIMIT
    content = base64.b64encode(raw if small else gzip.compress(raw, compresslevel=3, mtime=0)).decode()
    name, kind = ("returns.csv", "text/csv") if small else ("returns.csv.gz", "application/gzip")
    link = f'<a class="button" download="{name}" href="data:{kind};base64,{content}">Download {name}</a>'
    return f"<h2>Raw data</h2><p>{link} Every logged return of every run.</p>"


def raw_csv(runs: Sequence[RunLogs]) -> str:
    """Every return behind the curves as CSV: label, task, seed, step, env_step, return, and its source."""
    lines = ["algorithm,env,seed,step,env_step,return,source"]
    for label, group in label_runs(runs).items():
        for run in group:
            if run.returns is not None:
                source = "evaluation" if "mean_return" in run.evaluation else "training episodes"
                start = f"{_cell(label)},{_cell(run.env)},{run.seed}".replace("%", "%%")
                rows = np.stack([run.returns.step, run.returns.env_step, run.returns.value], 1).tolist()
                lines += map(f"{start},%d,%d,%.8g,{source}".__mod__, map(tuple, rows))
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A CSV cell that a spreadsheet neither splits nor evaluates as a formula."""
    text = "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n\r') else text


# --- chart data -----------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    """JSON that cannot close the script element it is embedded in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _charts(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """Charts as the page's script reads them: numbers as text, and x once if all lines share it."""
    out = []
    for chart in charts:
        shared = all(line.x is chart.lines[0].x for line in chart.lines)
        plain = {"tab": chart.tab, "title": chart.title, "xlabel": chart.xlabel, "ylabel": chart.ylabel}
        arrays = {"x": chart.lines[0].x if shared else None, "time": chart.time}
        box = {} if chart.box is None else {"box": chart.box}
        out.append({**plain, **box, **_numbers(arrays), "lines": [_line(line, shared) for line in chart.lines]})
    return out


def _line(line: Line, shared: bool) -> dict[str, Any]:
    arrays = {"x": None if shared else line.x, "y": line.y, "low": line.low, "high": line.high}
    kind = {name: True for name in ("dashed", "public") if getattr(line, name)}
    return {"label": line.label, **kind, **_numbers(arrays)}


def _numbers(arrays: Mapping[str, np.ndarray | None]) -> dict[str, str]:
    """Arrays as text with five digits, more than a screen resolves."""
    return {name: " ".join(map("%.5g".__mod__, a.tolist())) for name, a in arrays.items() if a is not None}


# --- figures for a paper --------------------------------------------------------------------------------------


def export_figures(
    paths: Paths,
    out: str | os.PathLike[str],
    fmt: str = "pdf",
    reference: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Draw the charts of a report with Matplotlib.

    Args:
      paths: as for `report`.
      out: the directory to write to.
      fmt: png, pdf or svg.
      reference: as for `report`.

    Returns:
      The files: one per tab (curves, profiles, exploration, states), or several if it has more than `PANELS` charts.
    """
    if fmt not in ("png", "pdf", "svg"):
        raise BadInput(f"figures can be written as png, pdf or svg, not '{printable(fmt)}'")
    summary, written = _collect(paths, None, reference), []
    for tab in TABS:
        charts = [chart for chart in summary.charts if chart.tab == tab]
        for start in range(0, len(charts), PANELS):
            name = tab if len(charts) <= PANELS else f"{tab}-{start // PANELS + 1}"
            written.append(draw_charts(charts[start : start + PANELS], summary.labels, Path(out) / f"{name}.{fmt}"))
    return written


@figures.styled
def draw_charts(charts: Sequence[Chart], labels: Sequence[str], path: Path) -> Path:
    """Draw charts as the panels of one figure."""
    columns = min(3, len(charts))
    figure, axes = figures.canvas(-(-len(charts) // columns), columns)
    for ax, chart in zip(axes, charts):
        if chart.time is not None:
            states = np.stack([chart.lines[0].x, chart.lines[0].y], 1)
            figures.phase_plot(
                ax, states, chart.time, names=(chart.xlabel, chart.ylabel), title=fill(_text(chart.title), 44)
            )
            ax.set(**dict(zip(("xlim", "ylim"), chart.box or ())))
            continue
        for line in chart.lines:
            low, high = (line.y if bound is None else bound for bound in (line.low, line.high))
            name = "" if line.dashed else _text(labels[line.label])
            style = {"color": figures.colour(line.label), "linestyle": "--" if line.dashed else "-"}
            style |= {"linestyle": ":", "marker": "o", "markersize": 3} if line.public else {}
            figures.band(ax, line.x, low, line.y, high, name, **style)
        ax.set(xlabel=chart.xlabel, ylabel=fill(chart.ylabel, 30), title=fill(_text(chart.title), 44))
        if chart.xlabel in (STEPS, AGENT_STEPS):
            figures.step_axis(ax)
    figures.shared_legend(figure, axes[: len(charts)])
    for ax in axes[len(charts) :]:
        ax.set_axis_off()
    return figures.save(figure, path)


def _text(name: str) -> str:
    """A name as plain text: Matplotlib reads dollar signs as formulas and a leading underscore as "no legend"."""
    name = name if len(name) <= 120 else name[:119] + "…"
    return " " * name.startswith("_") + name.replace("$", r"\$")
