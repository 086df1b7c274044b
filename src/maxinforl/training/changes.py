"""Settings that change within a run: listed, asked about, and written down in its config.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from maxinforl import config, files
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.settings import FIXED, FREE, Settings, check_updates, flag
from maxinforl.training.directory import read_run
from maxinforl.training.lock import RunLock
from maxinforl.training.store import CheckpointStore

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
        if change.name in FIXED:
            raise BadInput(f"{change}, which cannot change within a run: start a new one with `maxinforl train`")
    return found


def ask(runs: list[Path], given: Mapping[str, Any], override: bool) -> None:
    """Changes the runs' settings to the given ones; without `override` only says what would change."""
    tables = {}
    for directory in runs:
        settings, strategy, table = read_run(directory)
        if found := changes(settings, given):
            if not override and any(change.name not in FREE for change in found):
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
    from maxinforl.agent import plain_settings

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
    own = {"steps": fresh.steps, "settings": plain_settings(fresh), "agent": config.to_plain(agent)}
    return table | own | planned | {"history": [*table.get("history", []), *history]}


def last_step(directory: Path) -> int:
    return max(CheckpointStore(files.inside(directory, "checkpoints")).steps(), default=0)


def shapes(strategy: Strategy, table: dict[str, Any], settings: Settings) -> Any:
    """Structure, shapes and types of everything an agent keeps."""
    leaves, tree = jax.tree.flatten(outlined(strategy, table, settings))
    return [(leaf.shape, leaf.dtype) for leaf in leaves], tree


def outlined(strategy: Strategy, table: dict[str, Any], settings: Settings) -> Any:
    """An agent of a run's configuration as shapes and types."""
    from maxinforl.agent import Agent, read_spaces

    agent = Agent(settings, strategy, None)
    agent._known_spaces = read_spaces(table["spaces"])
    return agent._outline()
