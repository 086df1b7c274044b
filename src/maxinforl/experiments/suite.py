"""Suites: a TOML file of algorithms × environments × overrides × seeds, turned into runs.

A run is a `Settings` and a directory. Its fingerprint is the hash of what determines its numbers, so that a finished
run is recognised wherever it lies and whatever flags described it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from maxinforl import config, files
from maxinforl.agent import read_pairs, read_settings
from maxinforl.envs.names import BRAX, DMC, JAX, PIXELS, catalogue
from maxinforl.errors import BadInput, unknown
from maxinforl.experiments.rundir import run_folders
from maxinforl.explore import Strategy
from maxinforl.settings import Settings, flag, resolve
from maxinforl.training.directory import FORMAT, read_run
from maxinforl.training.store import CheckpointStore

PAIRS = ("env_arg", "set")
PARTS = ("algo", "base", "explore", "intrinsic")
SETTINGS = {f.name: f for f in fields(Settings)}
# What a run does beside its numbers, and names whose meaning is in the resolved agent already.
SILENT = {"log_every", "save_every", "keep", "max_hours", "video", "record_states", "tensorboard", "wandb"}
SILENT |= {"max_faults", "workers", "env_timeout"}
SILENT |= {*PARTS, "set", "preset", "uncertainty", "capacity"}
KEYS = {"title", "algorithms", "environments", "seeds", "settings", "overrides", "cells", "resources"}
MOST = 100_000  # runs of a suite
Table = Mapping[str, Any]


# --- runs -----------------------------------------------------------------------------------------------------


def fingerprint(settings: Settings, agent: Strategy) -> str:
    """The hash of resolved settings and agent: equal where, on one machine, the numbers are."""
    table = config.to_plain(settings)
    own = {k: v for k, v in table.items() if k not in SILENT and k != "kind"}
    if not settings.env.startswith((JAX, BRAX)):
        own.pop("loop")  # only pure environments can be compiled
    own["capacity"] = min(settings.capacity or settings.steps, settings.steps)
    whole = {"format": FORMAT, "settings": own, "agent": config.to_plain(agent)}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SuiteRun:
    """One seed of one cell: what to run, what a figure calls it, and where below the output it lies."""

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
        """The flags of `maxinforl train` that mean these settings."""
        return as_flags(self.settings)


def slug(name: str) -> str:
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "-"


def as_flags(settings: Settings) -> list[str]:
    """The inverse of the command line: flags for all that differs from the defaults."""
    given: list[str] = []
    for name, f in SETTINGS.items():
        value = getattr(settings, name)
        if value == f.default:
            continue
        if name in PAIRS:
            given += [word for k, v in value for word in (flag(name), f"{k}={inline(v)}")]
        else:
            given += [flag(name)] if value is True else [flag(name), str(value)]
    return given


def inline(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def logged_steps(folder: Path) -> int:
    """The last step a run evaluated or logged; -1 where it did neither."""
    evaluated, logged = (last_line(folder / name) for name in ("eval.csv", "metrics.jsonl"))
    steps = [-1]
    if (first := evaluated.partition(",")[0]).isdecimal():
        steps.append(int(first))
    with suppress(ValueError, KeyError, TypeError):
        steps.append(int(json.loads(logged)["step"]))
    return max(steps)


def last_line(path: Path) -> str:
    """The last whole line of a text file; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return lines[-2] if len(lines) > 1 else ""


def finished(folder: Path, steps: int) -> bool:
    """By its checkpoints; where they were not kept, as in published results, by its logs."""
    saved = CheckpointStore(folder / "checkpoints").steps()
    return (max(saved) if saved else logged_steps(folder)) >= steps


def check_same(runs: Iterable[tuple[Settings, Path]]) -> None:
    """Refuses to continue runs under other settings than theirs."""
    for settings, directory in runs:
        if not (directory / "config.toml").exists():
            raise BadInput(f"{directory} holds no run although its neighbours do: leave --resume out")
        own, agent, _ = read_run(directory)
        if fingerprint(own, agent) != fingerprint(*resolve(settings)):
            raise BadInput(f"{directory} holds a run with other settings: use another --out, or `maxinforl resume`")


@dataclass
class Library:
    """Finished runs below some directories, by fingerprint."""

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
                    settings, agent, _ = read_run(folder)
                except BadInput as error:
                    self.problems.append(f"{folder}: {error}" if str(folder) not in str(error) else str(error))
                    continue
                if finished(folder, settings.steps):
                    found.setdefault(fingerprint(settings, agent), []).append(folder)
        return found

    def find(self, run: SuiteRun) -> Path | None:
        """A finished run with the same numbers; one that recorded states where those are asked for."""
        needed = [name for name, on in (("states.npz", run.settings.record_states),) if on]
        kept = [f for f in self.found.get(run.fingerprint, []) if all((f / name).exists() for name in needed)]
        return kept[0] if kept else None


@dataclass(frozen=True)
class Planned:
    """A run, where it is or will be, and what is left to do: finished, interrupted or new."""

    run: SuiteRun
    directory: Path
    state: str


def plan(runs: Iterable[SuiteRun], out: Path, reuse: Sequence[Path] = (), problems: list[str] | None = None):
    """What is there already, in `out` and in the directories to reuse, and what is left."""
    library = Library([Path(r) for r in reuse], [] if problems is None else problems)
    return [_place(run, out / run.name, library) for run in runs]


def _place(run: SuiteRun, directory: Path, library: Library) -> Planned:
    if (directory / "config.toml").exists():
        try:
            read_run(directory)
        except BadInput:  # which the run itself will say, and fail alone
            return Planned(run, directory, "interrupted")
        check_same([(run.settings, directory)])
        return Planned(run, directory, "finished" if finished(directory, run.settings.steps) else "interrupted")
    elsewhere = library.find(run)
    return Planned(run, directory, "new") if elsewhere is None else Planned(run, elsewhere, "finished")


# --- suite files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """What one run takes of a machine."""

    cores: int = 1
    memory_gb: float = 4.0
    gpus: float = 0.0
    hours: float = 24.0
    alone: bool = False  # one run at a time: its speed is what is measured
    slurm: Table = field(default_factory=dict)  # further parameters of a Slurm job, such as partition


@dataclass(frozen=True)
class Cells:
    """Settings for the cells that three patterns name, or their exclusion."""

    algorithms: tuple[str, ...]
    environments: tuple[str, ...]
    overrides: tuple[str, ...]
    settings: Table
    skip: bool

    def fits(self, algorithm: str, environment: str, override: str) -> bool:
        named = ((algorithm, self.algorithms), (environment, self.environments), (override, self.overrides))
        return all(matches(name, patterns) for name, patterns in named)


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name == p or fnmatchcase(name, p) for p in patterns)


@dataclass(frozen=True)
class Suite:
    """The axes of a product and the settings of its cells; later tables win: settings, environment, algorithm,
    override, cells, and last what the command line changes."""

    title: str
    algorithms: Mapping[str, Table]
    environments: Mapping[str, Table]
    seeds: tuple[int, ...]
    settings: Table = field(default_factory=dict)
    overrides: Mapping[str, Table] = field(default_factory=lambda: {"": {}})
    cells: tuple[Cells, ...] = ()
    resources: Resources = Resources()
    scale: float = 1.0
    changes: Table = field(default_factory=dict)

    def runs(self) -> list[SuiteRun]:
        """Every run, seed by seed, so that an interrupted suite has every cell before it has many seeds."""
        self._check_size()
        cells = [(a, e, o) for a in self.algorithms for e in self.environments for o in self.overrides]
        kept = [(cell, s) for cell in cells if (s := self._cell(*cell)) is not None]
        if not kept:
            raise BadInput(f"the suite '{self.title}' has no runs: [[cells]] with skip leaves nothing")
        for entry in self.changes.get("set", {}).items():
            if not any(entry[0] in dict(settings.set) for _, settings in kept):
                resolve(replace(kept[-1][1], set=(entry,)))  # which says what there is instead
        made = [SuiteRun(*cell, replace(settings, seed=seed)) for seed in self.seeds for cell, settings in kept]
        for run in made[: len(kept)]:
            run.resolved  # noqa: B018 - so that what cannot be built is refused before anything runs
        _distinct(made)
        return made

    def _check_size(self) -> None:
        count = math.prod(map(len, (self.algorithms, self.environments, self.overrides, self.seeds)))
        if count > MOST:
            raise BadInput(f"the product of the suite '{self.title}' has {count} runs where at most {MOST} are allowed")

    def _cell(self, algorithm: str, environment: str, override: str) -> Settings | None:
        fitting = [c for c in self.cells if c.fits(algorithm, environment, override)]
        if any(c.skip for c in fitting):
            return None
        layers = [self.settings, self.environments[environment], self.algorithms[algorithm], self.overrides[override]]
        table = merged([*layers, *(c.settings for c in fitting)])
        for name in ("steps", "eval_every"):
            value = table.get(name, SETTINGS[name].default)
            table[name] = max(1, round(value * self.scale)) if isinstance(value, int) else value
        return self._fitting(read_settings(merged([table, self.changes])))

    def _fitting(self, settings: Settings) -> Settings:
        """Without the changed entries of parts that this algorithm has not, such as the intrinsic model of `sac`."""
        own = tuple(entry for entry in settings.set if entry[0] not in self.changes.get("set", {}))
        if len(own) == len(settings.set):
            return settings
        _, agent = resolve(replace(settings, set=own))
        fits = lambda path: path not in self.changes["set"] or hasattr(agent, path.partition(".")[0])
        return replace(settings, set=tuple(entry for entry in settings.set if fits(entry[0])))

    def restricted(self, algorithms: Sequence[str] = (), environments: Sequence[str] = ()) -> Suite:
        """The part of the suite that names or patterns choose."""
        kept_a = _chosen("algorithm of this suite", algorithms, self.algorithms)
        kept_e = _chosen("environment of this suite", environments, self.environments)
        return replace(self, algorithms=kept_a, environments=kept_e)

    def changed(self, pairs: Iterable[tuple[str, Any]]) -> Suite:
        """With settings, or entries of agent (base.lr) and environment (env_arg.NAME), that win over the file's."""
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in SETTINGS and name not in PAIRS:
                table[name] = value
            elif "." in name:
                kind, key = ("env_arg", name.removeprefix("env_arg.")) if name.startswith("env_arg.") else ("set", name)
                table[kind] = {**table.get(kind, {}), key: value}
            else:
                known = [n for n in SETTINGS if n not in PAIRS]
                raise unknown("setting", name, known, "Entries have a dot, such as base.lr or env_arg.NAME.")
        return replace(self, changes=merged([self.changes, table]))


def merged(tables: Iterable[Table]) -> dict[str, Any]:
    """Later tables over earlier ones; pairs are merged name by name, and naming an algorithm anew forgets the old."""
    out: dict[str, Any] = {}
    for table in tables:
        if set(PARTS) & set(table):
            out = {k: v for k, v in out.items() if k not in PARTS}
        pairs = {k: {**dict(out.get(k, {})), **dict(read_pairs(k, table[k]))} for k in PAIRS if k in table}
        out |= {**table, **pairs}
    return out


def _chosen(kind: str, patterns: Sequence[str], named: Mapping[str, Table]) -> Mapping[str, Table]:
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in named):
            raise unknown(kind, pattern, named)
    return {k: v for k, v in named.items() if matches(k, patterns)} if patterns else named


def _distinct(runs: Sequence[SuiteRun]) -> None:
    names: dict[str, SuiteRun] = {}
    prints: dict[str, SuiteRun] = {}
    for run in runs:
        if run.name in names:
            raise BadInput(f"two runs of the suite would be written to {run.name}: give them names that differ")
        if run.fingerprint in prints:
            twin = prints[run.fingerprint]
            raise BadInput(f"{run.name} and {twin.name} are the same run: change a setting or leave one out")
        names[run.name] = prints[run.fingerprint] = run


def read_suite(path: str | os.PathLike[str]) -> Suite:
    """The suite in a TOML file, or a sentence that says what is wrong with it."""
    if not Path(path).is_file():
        raise BadInput(f"{path} does not exist or is not a file: name the TOML file of a suite", "evidence.md#suites")
    return parse_suite(files.read_toml(path), Path(path).stem)


def parse_suite(table: Table, name: str, also: Iterable[str] = ()) -> Suite:
    """A suite from a table; `also` are keys that others read."""
    for key in table:
        if key not in KEYS | set(also):
            raise unknown(f"key in the suite '{name}'", key, KEYS | set(also))
    suite = Suite(
        title=_text(table.get("title", name), "title"),
        algorithms=_axis(table, "algorithms", "algo"),
        environments=_axis(table, "environments", "env"),
        seeds=_seeds(table.get("seeds", 5)),
        settings=_settings(table.get("settings", {}), "[settings]"),
        overrides=_axis(table, "overrides") if "overrides" in table else {"": {}},
        cells=tuple(_cells(entry, table) for entry in _tables(table, "cells")),
        resources=_resources(table.get("resources", {})),
    )
    for name, own in suite.environments.items():
        check_environment(str(own.get("env", name)))
    return suite


def _axis(table: Table, key: str, names: str | None = None) -> dict[str, Table]:
    """A list of names, or a table of named settings; the name stands for the algorithm or environment itself."""
    value = table.get(key, [])
    if isinstance(value, list) and all(isinstance(v, str) for v in value) and names:
        value = {v: {} for v in value}
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise BadInput(f"'{key}' must be {'a list of names or ' if names else ''}a table [{key}.NAME] per name")
    if not value:
        raise BadInput(f"the suite has no {key}: the product is empty, so name at least one")
    named: dict[str, Table] = {}
    for name, own in value.items():
        implied = {names: name} if names and not {names, *(PARTS if names == "algo" else ())} & set(own) else {}
        named[name] = implied | _settings(own, f"[{key}.{name}]")
    return named


def _settings(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise BadInput(f"{where} must be a table of settings")
    for name in table:
        if name == "seed":
            raise BadInput(f"{where} has a seed: write 'seeds' at the top of the suite")
        if name not in SETTINGS:
            raise unknown(f"setting in {where}", name, SETTINGS)
    return dict(table)


def _seeds(value: Any) -> tuple[int, ...]:
    """A number of seeds, counted from 0, or a list of them."""
    if type(value) is int and value > MOST:
        raise BadInput(f"'seeds' is {value} where at most {MOST} are allowed")
    seeds: Any = list(range(value)) if type(value) is int else value
    whole = isinstance(seeds, list) and all(type(s) is int and s >= 0 for s in seeds)
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise BadInput(
            f"'seeds' must be a number of seeds or a list of different ones, not {files.printable(repr(value))}"
        )
    return tuple(seeds)


def _cells(entry: Table, table: Table) -> Cells:
    own = dict(entry)
    patterns = {key: own.pop(key, ["*"]) for key in ("algorithms", "environments", "overrides")}
    for key, value in patterns.items():
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise BadInput(f"'{key}' in [[cells]] must be a list of names or patterns")
        if key in table:
            _chosen(f"{key[:-1]} in [[cells]]", value, {name: {} for name in table[key]})
    skip = own.pop("skip", False)
    if type(skip) is not bool:
        raise BadInput("'skip' in [[cells]] must be true or false")
    algorithms, environments, overrides = map(tuple, patterns.values())
    return Cells(algorithms, environments, overrides, _settings(own, "[[cells]]"), skip)


def _tables(table: Table, key: str) -> list[Table]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise BadInput(f"'{key}' must be written as [[{key}]] tables")
    return value


def _resources(table: Any) -> Resources:
    if not isinstance(table, dict) or not isinstance(table.get("slurm", {}), dict):
        raise BadInput("[resources] and [resources.slurm] must be tables")
    known = {f.name: type(f.default) for f in fields(Resources) if f.name != "slurm"}
    for name in table:
        if name not in {*known, "slurm"}:
            raise unknown("setting in [resources]", name, [*known, "slurm"])
    values = {k: config.coerce(v, known[k], f"resources.{k}") for k, v in table.items() if k in known}
    made = Resources(**values, slurm=table.get("slurm", {}))
    if made.cores < 1 or made.memory_gb <= 0 or made.gpus < 0 or made.hours <= 0:
        raise BadInput("[resources] needs at least one core, and memory and hours above 0")
    return made


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"'{key}' must be text, not {files.printable(repr(value))}")
    return value


def check_environment(name: str) -> None:
    """Refuses a name that no environment has, without building one."""
    import gymnasium as gym

    bare, known = name.removeprefix(PIXELS), catalogue()
    if bare in known or bare in gym.registry or ":" in bare or bare.startswith("brax/"):
        return
    if bare.startswith(DMC) and not any(k.startswith(DMC) for k in known):
        return  # the control suite is not installed here; the machine that runs it will say
    raise unknown("environment", name, [*known, *gym.registry])
