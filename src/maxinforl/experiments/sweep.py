"""`maxinforl sweep`: runs every run of a suite to its end; a failure affects only its own run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from maxinforl.errors import plain, unknown
from maxinforl.experiments import cost
from maxinforl.experiments.formatting import plural, print_problems
from maxinforl.experiments.launch import LAUNCHERS, Done, Job, Launcher, job_for, make_launcher, write_scripts
from maxinforl.experiments.suite import Suite
from maxinforl.experiments.suite_runs import PlannedRun, plan
from maxinforl.training.directory import last_line

DONE, RUN_FAILED, PREEMPTED = 0, 3, 75
LIVE_ROWS = 20  # rows of the live table
STYLES = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow", "waiting": "dim"}


@dataclass
class RunStatus:
    """State and progress of one run of the sweep."""

    planned: PlannedRun
    state: str
    tail: str = ""

    @property
    def total(self) -> int:
        return self.planned.run.settings.steps

    def progress(self) -> tuple[int, float, float]:
        """Step, steps per second and last return, from the run's log files; NaN if not logged yet."""
        step, fps, score = 0, float("nan"), float("nan")
        try:
            line = json.loads(last_line(self.planned.directory / "metrics.jsonl"))
            step, fps = int(line["step"]), float(line["time/fps"])
        except (ValueError, KeyError, TypeError):
            pass
        try:
            at, _, _, score = map(float, last_line(self.planned.directory / "eval.csv").split(",")[:4])
            step = max(step, int(at))
        except ValueError:
            pass
        return step, fps, score

    def cells(self) -> tuple[str, str, str]:
        """Steps, last return and time left, as text."""
        step, fps, score = self.progress() if self.state != "waiting" else (0, float("nan"), float("nan"))
        left = format_duration((self.total - step) / fps) if fps > 0 and self.state == "running" else "–"
        return f"{step}/{self.total}", "–" if score != score else f"{score:.1f}", left


@dataclass
class Sweep:
    """The planned runs and their states; `go` runs them and returns the exit code."""

    plan: Sequence[PlannedRun]
    launcher: Launcher
    out: Path
    threads: int = 1
    console: Console = field(default_factory=Console)
    every: float = 0.5  # seconds between polls
    note_every: float = 60.0  # seconds between lines of progress where there is no live table

    def __post_init__(self):
        start = {"finished": "finished", "interrupted": "waiting", "new": "waiting"}
        self.rows = {p.run.name: RunStatus(p, start[p.state]) for p in self.plan}
        self.noted = time.monotonic()

    def go(self) -> int:
        """Submit every unfinished run, wait, and print a summary; returns the exit code."""
        jobs = {p.run.name: job_for(p, self.out, self.threads) for p in self.plan if p.state != "finished"}
        before = len(self.rows) - len(jobs)
        self.say(f"{plural(len(self.rows), 'run')}: {before} finished before, {len(jobs)} to do → {self.out}")
        for job in jobs.values():
            self.launcher.submit(job)
        try:
            with stop_signals() as stopping, self._screen():
                self._watch(jobs, stopping)
        finally:
            self.launcher.stop()
        return self._summary()

    def _watch(self, jobs: dict[str, Job], stopping: list[int]) -> None:
        left = set(jobs)
        while left and not stopping:
            for done in self.launcher.poll():
                left.discard(done.job.name)
                self._end(done)
            for name in self.launcher.running() & left:
                self._mark(name, "running")
            if not self.console.is_terminal and time.monotonic() - self.noted >= self.note_every:
                self._note()
            if left:
                time.sleep(self.every)
        for name in left & {*self.launcher.running(), *(n for n, row in self.rows.items() if row.state == "running")}:
            self._mark(name, "interrupted")

    def _note(self) -> None:
        self.noted = time.monotonic()
        for name, row in self.rows.items():
            if row.state == "running":
                steps, last_return, left = row.cells()
                self.say(f"{'running':>11}  {name}: {steps} steps, return {last_return}, {left} left")

    def _end(self, done: Done) -> None:
        row = self.rows[done.job.name]
        row.tail = done.tail
        self._mark(done.job.name, {DONE: "finished", PREEMPTED: "interrupted"}.get(done.code, "failed"))

    def _mark(self, name: str, state: str) -> None:
        row = self.rows[name]
        if row.state != state:
            row.state = state
            if not self.console.is_terminal:
                self.say(f"{state:>11}  {name}")

    # ------------------------------------------------------------ console output

    def say(self, text: str) -> None:
        self.console.print(plain(text, keep="\n"), highlight=False, soft_wrap=True, markup=False)

    def _screen(self):
        return Live(get_renderable=self.table, console=self.console, refresh_per_second=1, transient=True)

    def table(self) -> Table:
        """State, steps, return and time left of up to `LIVE_ROWS` runs, the running ones first."""
        order = ("running", "failed", "interrupted", "waiting", "finished")
        rows = sorted(self.rows.values(), key=lambda row: order.index(row.state))
        counts = ", ".join(f"{n} {s}" for s in order if (n := sum(row.state == s for row in rows)))
        table = Table("run", "state", "steps", "return", "time left", box=None, caption=counts, pad_edge=False)
        for row in rows[:LIVE_ROWS] if self.console.is_terminal else ():
            table.add_row(escape(row.planned.run.name), f"[{STYLES[row.state]}]{row.state}[/]", *row.cells())
        return table

    def _summary(self) -> int:
        states = [row.state for row in self.rows.values()]
        for row in self.rows.values():
            if row.state == "failed":
                self.say(
                    f"\nfailed: {row.planned.run.name}\n" + "\n".join(f"  {line}" for line in row.tail.split("\n"))
                )
        counts = ", ".join(
            f"{states.count(s)} {s}" for s in ("finished", "failed", "interrupted", "waiting") if s in states
        )
        self.say(f"{counts} of {plural(len(states), 'run')}")
        left = {"interrupted", "waiting"} & set(states)
        if left:
            self.say("run the same command again to finish the others")
        return RUN_FAILED if "failed" in states else PREEMPTED if left else DONE


@dataclass(frozen=True)
class LaunchOptions:
    """The flags that say where and how the runs of a suite are launched."""

    launcher: str = "local"
    address: str | None = None
    jobs: int | None = None
    dry_run: bool = False
    reuse: Sequence[Path] = ()

    @classmethod
    def of(cls, args: Any) -> LaunchOptions:
        return cls(args.launcher, args.address, args.jobs, args.dry_run, [Path(p) for p in args.reuse or ()])


def select(suite: Suite, args: Any) -> Suite:
    """The suite restricted and changed by command-line flags (--algos, --envs, --set, --seeds)."""
    part = suite.restricted(args.algos, args.envs).changed(args.set)
    return replace(part, seeds=tuple(args.seeds)) if args.seeds else part


def run(suite: Suite, out: Path, where: LaunchOptions) -> int:
    """Plan a suite and run what is unfinished, or with --dry-run print the plan; returns the exit code."""
    if where.launcher not in LAUNCHERS:
        raise unknown("launcher", where.launcher, LAUNCHERS)
    problems: list[str] = []
    planned = plan(suite.runs(), out, where.reuse, problems)
    console = Console()
    print_problems(problems, console)
    if where.dry_run:
        describe(suite, planned, out, where, console)
        return DONE
    if where.jobs == 0:
        return DONE
    left = [p for p in planned if p.state != "finished"]
    launcher = make_launcher(where.launcher if left else "local", suite.resources, out, where.jobs, where.address)
    return Sweep(planned, launcher, out, suite.resources.cores, console).go()


def describe(suite: Suite, planned: Sequence[PlannedRun], out: Path, where: LaunchOptions, console: Console) -> None:
    """Print the cost of a dry run; for Slurm, write the batch scripts."""
    say = lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
    left = [p for p in planned if p.state != "finished"]
    for line in cost.lines([p.run for p in left]) if left else ():
        say(line)
    say(f"{len(planned) - len(left)} of {plural(len(planned), 'run')} finished, {len(left)} left")
    if where.launcher == "slurm":
        jobs = [job_for(p, out, suite.resources.cores) for p in left]
        say(f"wrote {len(write_scripts(jobs, suite.resources, out / 'slurm'))} scripts to {out / 'slurm'}")


def format_duration(seconds: float) -> str:
    """Seconds as H:MM:SS.

    >>> format_duration(3661)
    '1:01:01'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yields a list to which SIGINT and SIGTERM are appended instead of ending the process."""
    received: list[int] = []
    old = {s: signal.signal(s, lambda number, _: received.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
