"""Frozen dataclasses to plain tables and back: names and numbers only, so that nothing loaded can execute."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from typing import Any

from maxinforl.core import (
    action_noise,
    actor_critic,
    architectures,
    encoders,
    heads,
    multiplier,
    normalizer,
    plasticity,
    policies,
)
from maxinforl.errors import BadInput, unknown
from maxinforl.explore import eipo, intrinsic_sum, maxinfo, strategy, switch
from maxinforl.fields import BEFORE
from maxinforl.files import printable
from maxinforl.intrinsic import curiosity, disagreement, info_gain, model_rows, rnd

MOST_ENTRIES = 32  # of a list, such as the layers of a network
WIDEST = 65_536
MOST: dict[str, int] = {  # by name of an entry; any other count is below 2**31
    **dict.fromkeys(("hidden", "target_hidden", "latent", "embedding"), WIDEST),
    **dict.fromkeys(("critics", "num_min_critics", "members", "nstep"), 1000),
    "channels": 16,
    "update_ratio": 10_000,
}


@cache
def registry() -> dict[str, type]:
    """Every class a configuration may name."""
    modules = (action_noise, actor_critic, architectures, encoders, heads, multiplier, normalizer, plasticity, policies)
    modules += (eipo, intrinsic_sum, maxinfo, strategy, switch, curiosity, disagreement, info_gain, model_rows, rnd)
    found = [thing for module in modules for thing in vars(module).values()]
    return {c.__name__: c for c in found if isinstance(c, type) and is_dataclass(c) and _ours(c)}


def _ours(cls: type) -> bool:
    return cls.__module__.startswith("maxinforl.") and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def to_plain(value: Any) -> Any:
    """Tables, lists, strings and numbers; a field that is None is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) is not None}
        return {"kind": type(value).__name__} | own
    if isinstance(value, tuple):
        return [to_plain(v) for v in value]
    if callable(value):
        return f"custom:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return value


def from_file(table: Any, custom: Iterable[type] = ()) -> Any:
    """The agent that a file describes; entries that it lacks are as in the version before they came."""
    return from_plain(table, custom=custom, absent=as_before)


def from_plain(
    value: Any,
    hint: Any = Any,
    path: str = "agent",
    custom: Iterable[type] = (),
    absent: Callable[[type], dict[str, Any]] = lambda cls: {},
) -> Any:
    """The dataclass a table describes, every entry checked against the field's type: the one gate of what files and
    flags say about an agent.

    Args:
        value: the table, or a plain value.
        hint: the type of the field it is for.
        path: to the field, for messages.
        custom: classes of the user's own.
        absent: values of entries that a table lacks, by class, where they are not the defaults.
    """
    if isinstance(value, dict):
        value = _dataclass(value, path, {c.__name__: c for c in custom}, absent)
    return _bounded(coerce(value, hint, path), path)


def as_before(cls: type) -> dict[str, Any]:
    """The fields of a class that came later, with what was done before."""
    return {f.name: f.metadata[BEFORE] for f in fields(cls) if BEFORE in f.metadata}


def like_before(agent: Any) -> Any:
    """An agent with every part as it was before: as in the authors' code."""
    parts = {f.name: getattr(agent, f.name) for f in fields(agent)}
    return replace(agent, **{k: like_before(v) for k, v in parts.items() if is_dataclass(v)} | as_before(type(agent)))


def _dataclass(table: dict[str, Any], path: str, custom: dict[str, type], missing: Callable) -> Any:
    known = registry() | custom
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise unknown(f"kind in [{path}]", str(kind), known, "Classes of your own are passed to load(custom=[...]).")
    cls = known[kind]
    hints, names = type_hints(cls), {f.name for f in fields(cls)}
    for name in table:
        if name != "kind" and name not in names:
            raise unknown(f"setting in [{path}]", name, names)
    values = {
        name: from_plain(value, hints[name], f"{path}.{name}", custom.values(), missing)
        for name, value in table.items()
        if name != "kind"
    }
    for f in fields(cls):
        _check_family(f, hints[f.name], values.get(f.name, f.default), path, custom)
    absent = {f.name: None for f in fields(cls) if f.name not in table and type(None) in typing.get_args(hints[f.name])}
    required = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values | absent]
    if required:
        raise BadInput(f"[{path}] lacks '{required[0]}'")
    return cls(**(missing(cls) | absent | values))


def _check_family(f: Any, hint: Any, value: Any, path: str, custom: dict[str, type]) -> None:
    """Where a field takes anything, as for an encoder: what lies where its default does, or is the user's own."""
    known = type(value).__module__ == type(f.default).__module__ or type(value).__name__ in custom
    if hint is Any and is_dataclass(f.default) and not known:
        raise BadInput(f"{path}.{f.name} cannot be of kind {type(value).__name__}: leave it out, or name another kind")


def _bounded(value: Any, path: str) -> Any:
    """The value, unless it is a count or a list that no agent needs, and that would take the memory or the time."""
    name, numbers = path.rpartition(".")[2], value if isinstance(value, tuple) else (value,)
    if len(numbers) > MOST_ENTRIES:
        raise BadInput(f"{path} has {len(numbers)} entries, and at most {MOST_ENTRIES} are allowed")
    most: int = MOST.get(name, 2**31 - 1)
    for number in numbers:
        if isinstance(number, int) and not -(2**31) < number <= most:
            raise BadInput(f"{path} must be at most {most}, not {printable(str(number))}")
    return value


@cache
def type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def coerce(value: Any, hint: Any, path: str) -> Any:
    """`value` as the type a field declares, or a sentence."""
    options = (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )
    for option in options:
        fitted = _fit(value, option, path)
        if fitted is not MISSING:
            return fitted
    wanted = " or ".join(NAMES.get(o) or getattr(o, "__name__", str(o)) for o in options if o is not type(None))
    raise BadInput(f"{path} must be {wanted}, not {printable(repr(value))}")


NAMES = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text"}


def _fit(value: Any, hint: Any, path: str) -> Any:
    if hint is Any or hint is Ellipsis:
        return value
    if hint is type(None):
        return None if value is None else MISSING
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            return MISSING
        inner = typing.get_args(hint)[0]
        return tuple(coerce(v, inner, path) for v in value)
    if hint is float and type(value) in (int, float):
        return float(value) if abs(value) < 2**63 or math.isfinite(value) else MISSING
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    if typing.get_origin(hint) is Callable and callable(value):
        return value
    return MISSING


def override(tree: Any, path: str, value: Any, full: str | None = None) -> Any:
    """A copy of a configuration with one entry replaced.

    >>> from maxinforl.algorithms import algorithm
    >>> override(algorithm("maxinfo-sac"), "base.lr", 1e-4).base.lr
    0.0001
    """
    full = full or path
    name, _, rest = path.partition(".")
    names = {f.name for f in fields(tree)}
    if name not in names:
        near = unknown("setting", full, [f"{full[: -len(path)]}{n}" for n in names])
        raise near
    if rest:
        child = getattr(tree, name)
        if not is_dataclass(child):
            raise BadInput(f"'{full}' reaches into '{name}', which is a single value")
        return replace(tree, **{name: override(child, rest, value, full)})
    hint = type_hints(type(tree))[name]
    fresh = value if (is_dataclass(value) and not isinstance(value, type)) or callable(value) else None
    if fresh is None:  # not an object of the user's
        fresh = from_plain(value, hint, full)
        _check_family(next(f for f in fields(tree) if f.name == name), hint, fresh, full.rpartition(".")[0], {})
    return replace(tree, **{name: fresh})
