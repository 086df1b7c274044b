"""A saved agent: `agent.safetensors` holds weights, optimisers, normalisers and the configuration. No pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import maxinforl
from maxinforl import config, files
from maxinforl.core.types import Clock
from maxinforl.explore import Strategy
from maxinforl.settings import Settings, settings_table
from maxinforl.spaces import Spaces
from maxinforl.training.arrays import agent_arrays

FILE = "agent.safetensors"
FORMAT = 1


def write_agent(
    path: Path,
    state: Any,
    clock: Clock,
    strategy: Strategy,
    settings: Settings,
    spaces: Spaces,
    env: str | None,
    **facts: Any,
) -> None:
    """Writes an agent to a file, whole or not at all.

    Args:
        path: the file; its directory exists.
        state: the strategy's state, with all arrays of the agent.
        clock: the counters that schedules read.
        strategy: the configuration of the agent.
        settings: resolved settings.
        spaces: what the agent observes and does.
        env: the name of its environment; None where it has no name that a file could hold.
        facts: further entries of the file's metadata.
    """
    meta = {
        "format": FORMAT,
        "maxinforl": maxinforl.__version__,
        "settings": settings_table(settings),
        "agent": config.to_plain(strategy),
        "spaces": spaces.table(),
        "clock": {k: int(v) for k, v in clock._asdict().items()},
        "env": env,
    }
    files.save_arrays(path, agent_arrays(state), meta | facts)
