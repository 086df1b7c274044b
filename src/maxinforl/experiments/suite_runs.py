"""The runs of a suite: what identifies one, whether it is finished, and where it lies.

A run is a `Settings` and a directory. Its fingerprint is the hash of everything that determines its numbers, so that a
finished run is recognised wherever it lies and whichever flags described it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from maxinforl import config
from maxinforl.envs.names import BRAX, JAX
from maxinforl.errors import BadInput
from maxinforl.experiments.read_runs import run_folders
from maxinforl.explore import Strategy
from maxinforl.settings import PAIRS, Settings, flag, known_as, resolve
from maxinforl.training.directory import FORMAT, finished, read_run

SETTINGS = {f.name: f for f in fields(Settings)}
PARTS = ("algo", "base", "explore", "intrinsic")  # settings that name the agent or its parts
# Settings that do not change a run's numbers, and those whose meaning is already in the resolved agent.
NOT_IN_FINGERPRINT = {*known_as("silent", "implied")}


def fingerprint(settings: Settings, agent: Strategy) -> str:
    """The hash of resolved settings and agent: equal if, on one machine, the numbers are.

    Args:
      settings: resolved settings.
      agent: the strategy they resolve to.

    Returns:
      16 hexadecimal digits.
    """
    table = config.to_plain(settings)
    own = {k: v for k, v in table.items() if k not in NOT_IN_FINGERPRINT and k != "kind"}
    if not settings.env.startswith((JAX, BRAX)):
        own.pop("loop")  # only JAX environments have a compiled loop
    own["capacity"] = min(settings.capacity or settings.steps, settings.steps)
    whole = {"format": FORMAT, "settings": own, "agent": config.to_plain(agent)}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SuiteRun:
    """One seed of one cell of a suite: its settings, its label in a figure, and its directory below the output."""

    algorithm: str
    environment: str
    override: str
    settings: Settings

    @property
    def label(self) -> str:
        return f"{self.algorithm} ({self.override})" if self.override else self.algorithm

    @property
    def name(self) -> str:
        parts = [self.algorithm, self.environment, *([self.override] if self.override else [])]
        return "/".join([*map(slug, parts), f"seed-{self.settings.seed}"])

    @cached_property
    def resolved(self) -> tuple[Settings, Strategy]:
        return resolve(self.settings)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(*self.resolved)

    @property
    def flags(self) -> list[str]:
        """The flags of `maxinforl train` for these settings."""
        return as_flags(self.settings)


def slug(name: str) -> str:
    """A name as a directory name."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "-"


def as_flags(settings: Settings) -> list[str]:
    """The flags of `maxinforl train` for every setting that differs from its default.

    >>> as_flags(Settings(algo="sac", env="Pendulum-v1", seed=3))
    ['--algo', 'sac', '--env', 'Pendulum-v1', '--seed', '3']
    """
    given: list[str] = []
    for name, f in SETTINGS.items():
        value = getattr(settings, name)
        if value == f.default:
            continue
        if name in PAIRS:
            given += [word for k, v in value for word in (flag(name), f"{k}={inline_toml(v)}")]
        else:
            given += [flag(name)] if value is True else [flag(name), str(value)]
    return given


def inline_toml(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {inline_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(inline_toml, value)) + "]"
    return json.dumps(value)


def check_same(runs: Iterable[tuple[Settings, Path]]) -> None:
    """Raise `BadInput` unless each directory holds a run with the same fingerprint as the settings."""
    for settings, directory in runs:
        if not (directory / "config.toml").exists():
            raise BadInput(f"{directory} holds no run, but other seeds do: leave --resume out")
        own, agent, _ = read_run(directory)
        if fingerprint(own, agent) != fingerprint(*resolve(settings)):
            raise BadInput(f"{directory} holds a run with other settings: use another --out, or `maxinforl resume`")


@dataclass
class FinishedRuns:
    """Finished runs below some directories, found by fingerprint."""

    roots: Sequence[Path]
    problems: list[str] = field(default_factory=list)

    @cached_property
    def found(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for root in self.roots:
            if not root.is_dir():
                raise BadInput(f"--reuse {root} is not a directory")
            for folder in run_folders(root.resolve()):
                try:
                    settings, agent, table = read_run(folder)
                    done = finished(folder, settings, table.get("together", ()))
                except BadInput as error:
                    self.problems.append(f"{folder}: {error}" if str(folder) not in str(error) else str(error))
                    continue
                if done:
                    found.setdefault(fingerprint(settings, agent), []).append(folder)
        return found

    def find(self, run: SuiteRun) -> Path | None:
        """A finished run with the same fingerprint, with recorded states if the settings ask for them; else None."""
        needed = [name for name, on in (("states.npz", run.settings.record_states),) if on]
        kept = [f for f in self.found.get(run.fingerprint, []) if all((f / name).exists() for name in needed)]
        return kept[0] if kept else None


@dataclass(frozen=True)
class PlannedRun:
    """A run, its directory, and its state: finished, interrupted or new."""

    run: SuiteRun
    directory: Path
    state: str


def plan(
    runs: Iterable[SuiteRun], out: Path, reuse: Sequence[Path] = (), problems: list[str] | None = None
) -> list[PlannedRun]:
    """Which runs are finished, in `out` or in directories to reuse, and which are left.

    Args:
      runs: of the suite.
      out: the directory of the suite.
      reuse: directories to search for finished runs with the same fingerprints.
      problems: a sentence about each run that cannot be read is appended here.
    """
    library = FinishedRuns([Path(r) for r in reuse], [] if problems is None else problems)
    return [_locate(run, out / run.name, library) for run in runs]


def _locate(run: SuiteRun, directory: Path, library: FinishedRuns) -> PlannedRun:
    if (directory / "config.toml").exists():
        try:
            table = read_run(directory)[2]
        except BadInput:  # the run itself will report it, and fail alone
            return PlannedRun(run, directory, "interrupted")
        check_same([(run.settings, directory)])
        done = finished(directory, run.settings, table.get("together", ()))
        return PlannedRun(run, directory, "finished" if done else "interrupted")
    elsewhere = library.find(run)
    return PlannedRun(run, directory, "new") if elsewhere is None else PlannedRun(run, elsewhere, "finished")
