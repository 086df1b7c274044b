"""Suites from TOML files: every key and name checked, every error one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from maxinforl import config, files
from maxinforl.envs.names import DMC, PIXELS, catalogue
from maxinforl.errors import BadInput, unknown
from maxinforl.experiments.suite import MAX_RUNS, Cells, Resources, Suite, TomlTable, choose_names
from maxinforl.experiments.suite_runs import PARTS, SETTINGS

KEYS = {"title", "algorithms", "environments", "seeds", "settings", "overrides", "cells", "resources"}


def read_suite(path: str | os.PathLike[str]) -> Suite:
    """Read a suite from a TOML file; raises `BadInput` with one sentence if it is invalid.

    Example:
      >>> read_suite("suite.toml").runs()  # doctest: +SKIP
    """
    if not Path(path).is_file():
        raise BadInput(f"{path} does not exist or is not a file: name the TOML file of a suite", "evidence.md#suites")
    return parse_suite(files.read_toml(path), Path(path).stem)


def parse_suite(table: TomlTable, name: str, also: Iterable[str] = ()) -> Suite:
    """A suite from a parsed TOML table.

    Args:
      table: the table.
      name: for error messages, and the default title.
      also: further keys that are allowed and ignored here.
    """
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


def _axis(table: TomlTable, key: str, names: str | None = None) -> dict[str, TomlTable]:
    """A list of names, or a table of settings by name; by default the name is the algorithm or environment itself."""
    value = table.get(key, [])
    if isinstance(value, list) and all(isinstance(v, str) for v in value) and names:
        value = {v: {} for v in value}
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise BadInput(f"'{key}' must be {'a list of names or ' if names else ''}a table [{key}.NAME] per name")
    if not value:
        raise BadInput(f"the suite has no {key}: the product is empty, so name at least one")
    named: dict[str, TomlTable] = {}
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
    """Seeds 0 to n - 1 from a number n, or a list of seeds."""
    if type(value) is int and value > MAX_RUNS:
        raise BadInput(f"'seeds' is {value}; at most {MAX_RUNS} are allowed")
    seeds: Any = list(range(value)) if type(value) is int else value
    whole = isinstance(seeds, list) and all(type(s) is int and s >= 0 for s in seeds)
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise BadInput(
            f"'seeds' must be a number of seeds or a list of distinct seeds, not {files.printable(repr(value))}"
        )
    return tuple(seeds)


def _cells(entry: TomlTable, table: TomlTable) -> Cells:
    own = dict(entry)
    patterns = {key: own.pop(key, ["*"]) for key in ("algorithms", "environments", "overrides")}
    for key, value in patterns.items():
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise BadInput(f"'{key}' in [[cells]] must be a list of names or patterns")
        if key in table:
            choose_names(f"{key[:-1]} in [[cells]]", value, {name: {} for name in table[key]})
    skip = own.pop("skip", False)
    if type(skip) is not bool:
        raise BadInput("'skip' in [[cells]] must be true or false")
    algorithms, environments, overrides = map(tuple, patterns.values())
    return Cells(algorithms, environments, overrides, _settings(own, "[[cells]]"), skip)


def _tables(table: TomlTable, key: str) -> list[TomlTable]:
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
    """Raise `BadInput` if no environment has this name; none is built."""
    import gymnasium as gym

    bare, known = name.removeprefix(PIXELS), catalogue()
    if bare in known or bare in gym.registry or ":" in bare or bare.startswith("brax/"):
        return
    if bare.startswith(DMC) and not any(k.startswith(DMC) for k in known):
        return  # dm_control is not installed here; the machine that runs the suite will check
    raise unknown("environment", name, [*known, *gym.registry])
