"""A suite: the product of algorithms × environments × overrides × seeds, with the settings of every cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from maxinforl.errors import BadInput, unknown
from maxinforl.experiments.suite_runs import PARTS, SETTINGS, SuiteRun
from maxinforl.settings import PAIRS, Settings, read_pairs, read_settings, resolve

MAX_RUNS = 100_000  # per suite
TomlTable = Mapping[str, Any]


@dataclass(frozen=True)
class Resources:
    """What one run needs of a machine."""

    cores: int = 1
    memory_gb: float = 4.0
    gpus: float = 0.0
    hours: float = 24.0
    alone: bool = False  # one run at a time, because its speed is measured
    slurm: TomlTable = field(default_factory=dict)  # further parameters of a Slurm job, such as partition


@dataclass(frozen=True)
class Cells:
    """Settings of the cells that match three lists of patterns, or their exclusion (`skip`)."""

    algorithms: tuple[str, ...]
    environments: tuple[str, ...]
    overrides: tuple[str, ...]
    settings: TomlTable
    skip: bool

    def fits(self, algorithm: str, environment: str, override: str) -> bool:
        named = ((algorithm, self.algorithms), (environment, self.environments), (override, self.overrides))
        return all(matches(name, patterns) for name, patterns in named)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name equals or matches one of the shell patterns."""
    return any(name == p or fnmatchcase(name, p) for p in patterns)


@dataclass(frozen=True)
class Suite:
    """The axes of the product and the settings of its cells.

    Settings are merged in this order, later ones win: settings, environment, algorithm, override, cells, changes (from
    the command line).
    """

    title: str
    algorithms: Mapping[str, TomlTable]
    environments: Mapping[str, TomlTable]
    seeds: tuple[int, ...]
    settings: TomlTable = field(default_factory=dict)
    overrides: Mapping[str, TomlTable] = field(default_factory=lambda: {"": {}})
    cells: tuple[Cells, ...] = ()
    resources: Resources = Resources()
    scale: float = 1.0
    changes: TomlTable = field(default_factory=dict)

    def runs(self) -> list[SuiteRun]:
        """Every run, all cells of one seed before the next: an interrupted suite then covers every cell."""
        self._check_size()
        cells = [(a, e, o) for a in self.algorithms for e in self.environments for o in self.overrides]
        kept = [(cell, s) for cell in cells if (s := self._cell(*cell)) is not None]
        if not kept:
            raise BadInput(f"the suite '{self.title}' has no runs: [[cells]] with skip leaves nothing")
        for entry in self.changes.get("set", {}).items():
            if not any(entry[0] in dict(settings.set) for _, settings in kept):
                resolve(replace(kept[-1][1], set=(entry,)))  # raises with the nearest name
        made = [SuiteRun(*cell, replace(settings, seed=seed)) for seed in self.seeds for cell, settings in kept]
        for run in made[: len(kept)]:
            run.resolved  # noqa: B018 - raises before anything runs if the agent cannot be built
        _distinct(made)
        return made

    def _check_size(self) -> None:
        count = math.prod(map(len, (self.algorithms, self.environments, self.overrides, self.seeds)))
        if count > MAX_RUNS:
            raise BadInput(f"the product of the suite '{self.title}' has {count} runs; at most {MAX_RUNS} are allowed")

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
        """Without changes to parts that this algorithm lacks, such as the intrinsic model of `sac`."""
        own = tuple(entry for entry in settings.set if entry[0] not in self.changes.get("set", {}))
        if len(own) == len(settings.set):
            return settings
        _, agent = resolve(replace(settings, set=own))
        fits = lambda path: path not in self.changes["set"] or hasattr(agent, path.partition(".")[0])
        return replace(settings, set=tuple(entry for entry in settings.set if fits(entry[0])))

    def restricted(self, algorithms: Sequence[str] = (), environments: Sequence[str] = ()) -> Suite:
        """The algorithms and environments that match names or patterns; all if there are none."""
        kept_a = choose_names("algorithm of this suite", algorithms, self.algorithms)
        kept_e = choose_names("environment of this suite", environments, self.environments)
        return replace(self, algorithms=kept_a, environments=kept_e)

    def changed(self, pairs: Iterable[tuple[str, Any]]) -> Suite:
        """With overridden settings, or entries of the agent (base.lr) or environment (env_arg.NAME)."""
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


def merged(tables: Iterable[TomlTable]) -> dict[str, Any]:
    """Later tables over earlier ones; pairs are merged by name, and a new algorithm replaces all parts of the old."""
    out: dict[str, Any] = {}
    for table in tables:
        if set(PARTS) & set(table):
            out = {k: v for k, v in out.items() if k not in PARTS}
        pairs = {k: {**dict(out.get(k, {})), **dict(read_pairs(k, table[k]))} for k in PAIRS if k in table}
        out |= {**table, **pairs}
    return out


def choose_names(kind: str, patterns: Sequence[str], named: Mapping[str, TomlTable]) -> Mapping[str, TomlTable]:
    patterns = with_commas(patterns, named)
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in named):
            raise unknown(kind, pattern, named)
    return {k: v for k, v in named.items() if matches(k, patterns)} if patterns else named


def with_commas(parts: Sequence[str], named: Iterable[str]) -> list[str]:
    """Parts of a list that was split at commas, those put together again that make a name which contains some.

    >>> with_commas(["sac", " pink noise", "redq"], ["sac", "sac, pink noise"])
    ['sac, pink noise', 'redq']
    """
    known, out, left = set(named), [], list(parts)
    while left:
        joined = [n for n in range(len(left), 1, -1) if ",".join(left[:n]).strip() in known]
        taken = joined[0] if joined else 1
        out.append(",".join(left[:taken]).strip())
        left = left[taken:]
    return out


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
