"""Entries of an agent's configuration that came after files were written."""

from __future__ import annotations

from dataclasses import field
from typing import Any

BEFORE = "before"


def later(default: Any, *, before: Any) -> Any:
    """A field of a later version: `default` now, and `before` in a file that lacks it.

    Args:
        default: what a new agent has.
        before: what 0.1.0 did, which is also what the authors' code does; the preset `authors` sets it.
    """
    return field(default=default, metadata={BEFORE: before})
