"""Settings that change within a run: refused, or written to its config.toml with their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from maxinforl import config, files
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.settings import Settings, check_updates, flag, known_as, read_settings, settings_table
from maxinforl.spaces import read_spaces
from maxinforl.training.arrays import agent_shapes
from maxinforl.training.directory import last_step, read_run
from maxinforl.training.lock import RunLock

CHANGING = "reliability.md#changing-settings-on-the-way"


class Change(NamedTuple):
    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{flag(self.name)} is {shown(self.before)} and would become {shown(self.after)}"


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{k}={v}" for k, v in value) or "empty"
    return "open" if value is None else str(value)


def changes(settings: Settings, given: Mapping[str, Any]) -> list[Change]:
    """What given settings would change in a run; entries of --set are added to those it has."""
    asked = dict(given)
    if "set" in asked:
        asked["set"] = tuple((dict(settings.set) | dict(asked["set"])).items())
    found = [Change(k, getattr(settings, k), v) for k, v in asked.items() if getattr(settings, k) != v]
    for change in found:
        if change.name in known_as("fixed"):
            raise BadInput(f"{change}, which cannot change within a run: start a new one with `maxinforl train`")
    return found


def apply_overrides(runs: list[Path], given: Mapping[str, Any], override: bool) -> None:
    """Changes the runs' settings to the given ones; without `override` only says what would change."""
    tables = {}
    for directory in runs:
        settings, strategy, table = read_run(directory)
        if found := changes(settings, given):
            if not override and any(change.name not in known_as("free") for change in found):
                listed = "; ".join(map(str, found))
                raise BadInput(
                    f"{directory} was begun with other settings: {listed}; add --override to change them", CHANGING
                )
            tables[directory] = changed(settings, strategy, table, found, at=last_step(directory))
    for directory, table in tables.items():
        with RunLock(directory):
            files.write_toml(directory / "config.toml", table)


def changed(settings: Settings, strategy: Strategy, table: dict[str, Any], found: list[Change], at: int) -> dict:
    """The table of config.toml with changes made at a step, and their history."""
    fresh, agent = replace(settings, **{change.name: change.after for change in found}), strategy
    check_updates(fresh)
    for path, value in fresh.set if fresh.set != settings.set else ():
        agent = config.override(agent, path, value)
    if shapes(agent, table, settings) != shapes(strategy, table, settings):
        raise BadInput("--set changes the shape of the agent, which cannot change within a run: start a new one")
    history = [
        {"step": at, "setting": name, "before": shown(before), "after": shown(after)} for name, before, after in found
    ]
    planned = {"planned": fresh.steps} if fresh.steps != settings.steps else {}
    own = {"steps": fresh.steps, "settings": settings_table(fresh), "agent": config.to_plain(agent)}
    return table | own | planned | {"history": [*table.get("history", []), *history]}


def shapes(strategy: Strategy, table: dict[str, Any], settings: Settings) -> Any:
    """Structure, shapes and types of everything an agent keeps."""
    leaves, tree = jax.tree.flatten(agent_shapes(strategy, read_spaces(table["spaces"]).spec(settings)))
    return [(leaf.shape, leaf.dtype) for leaf in leaves], tree


def extend_run(directory: Path, settings: Settings, strategy: Strategy, step: int, planned: int) -> None:
    """Lets the run of an agent that learns on go to the steps of its new settings.

    Args:
        directory: the run that the agent wrote before.
        settings: those of the agent from here on.
        strategy: the agent.
        step: where the agent is; the run must be there, too.
        planned: steps that schedules stay planned for.
    """
    table = files.read_toml(files.inside(directory, "config.toml"))
    if table.get("agent") != config.to_plain(strategy) or last_step(directory) != step:
        raise BadInput(f"{directory} is not where this agent left it: name another directory with out=")
    before = read_settings(table.get("settings"))
    given = {f.name: getattr(settings, f.name) for f in fields(Settings)}
    fresh = changed(before, strategy, table, changes(before, given), at=step)
    with RunLock(directory):
        files.write_toml(directory / "config.toml", fresh | {"planned": planned})
