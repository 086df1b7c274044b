"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from maxinforl.errors import plain
from maxinforl.training.evaluate import Evaluation

SHOWN = {
    "rollout/ep_rew_mean": "return",
    "explore/alpha1": "α1",
    "explore/alpha2": "α2",
    "explore/info_gain": "gain",
    "explore/intrinsic_weight": "1/λ",
    "time/fps": "steps/s",
}


class Progress:
    """Steps, speed, last return, temperatures and time left."""

    def __init__(self, total: int, start: int = 0, *, quiet: bool = False, console: Console | None = None):
        self.total, self.start, self.quiet = total, start, quiet
        self.console = console or Console(file=sys.stdout)
        self.bar: Bar | None = None
        self.text, self.result, self.drawn = "compiling", "", 0.0

    def __enter__(self) -> Progress:
        if not self.quiet and self.console.is_terminal:
            columns = (BarColumn(24), TextColumn("{task.completed}/{task.total} [dim]{task.description}"))
            self.bar = Bar(*columns, TimeRemainingColumn(), console=self.console)
            self.task = self.bar.add_task("compiling", total=self.total, completed=self.start)
            self.bar.start()
        elif not self.quiet:
            self.say(f"compiling; {self.total - self.start} steps to go")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(plain(text, keep="\n"), highlight=False, soft_wrap=True)

    def step(self, step: int) -> None:
        now = time.monotonic()
        if self.bar is not None and (now - self.drawn > 0.1 or step >= self.total):
            self.drawn = now
            self.bar.update(self.task, completed=step, description=f"{self.result} {self.text}")

    def note(self, line: dict[str, float]) -> None:
        self.text = "  ".join(f"{label} {line[name]:.3g}" for name, label in SHOWN.items() if name in line)

    def evaluated(self, step: int, result: Evaluation) -> None:
        self.result = f"eval {result.returns.mean():.1f}"
        if self.bar is None:
            self.say(f"step {step:>8}  {self.result} ± {result.returns.std():.1f}  {self.text}")
