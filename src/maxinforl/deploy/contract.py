"""What whoever runs a policy must know: contract.json."""

from __future__ import annotations

from typing import Any

import numpy as np

import maxinforl
from maxinforl import envs
from maxinforl.agent import Agent, env_options
from maxinforl.deploy.policy_weights import strides_of
from maxinforl.deploy.runner import FORMAT, checksum
from maxinforl.errors import BadInput
from maxinforl.settings import title


def contract(agent: Agent, sha256: dict[str, str]) -> dict[str, Any]:
    """Everything about observations and actions, sealed with a checksum of its own."""
    settings, action = agent.settings, agent.action_space
    parts, rate = surroundings(agent)
    table = {
        "format": FORMAT,
        "maxinforl": maxinforl.__version__,
        "algorithm": title(settings),
        "environment": settings.env,
        "agent_steps": int(agent._acting()[2].step),
        "observation": {
            "shape": list(agent.spec.obs),
            "dtype": str(agent.observation_space.dtype),
            "order": parts,
            "stack": agent.stack,
            "strides": strides_of(agent),
        },
        "normaliser": None,
        "action": {
            "shape": list(action.shape),
            "dtype": "float32",
            "low": [float(x) for x in action.low],
            "high": [float(x) for x in action.high],
            "units": "those of the environment's action space, from low to high",
        },
        "control_rate_hz": rate,
        "action_repeat": settings.action_repeat or 1,
        "sha256": sha256,
    }
    return table | {"checksum": checksum(table)}


def surroundings(agent: Agent) -> tuple[list[dict[str, Any]], float | None]:
    """Names and sizes of the observation's parts in order, and actions per second, as far as the environment says."""
    whole = [{"name": "image" if agent.spec.pixels else "observation", "size": int(np.prod(agent.spec.obs))}]
    if not isinstance(agent.env, str):
        return whole, None
    try:
        env = envs.make(agent._environment(), **env_options(agent.settings))  # type: ignore[arg-type]
    except BadInput:  # an extra that this machine lacks, or a module that only a file asks for: the policy is complete
        return whole, None
    try:
        return (whole if agent.spec.pixels else parts_of(env)), rate_of(env)
    finally:
        env.close()


def parts_of(env: envs.AdaptedEnv) -> list[dict[str, Any]]:
    """Parts of a vector observation in the order they are laid out in."""
    own = getattr(env.unwrapped, "observation_parts", None) or env.observation_parts
    return [{"name": name, "size": size} for name, size in own]


def rate_of(env: envs.AdaptedEnv) -> float | None:
    """Actions per second, where the environment knows the length of its step."""
    dt = getattr(env.unwrapped, "dt", None)
    known = isinstance(dt, (int, float)) and dt > 0
    return round(1 / (float(dt) * env.action_repeat), 6) if known else None  # type: ignore[arg-type]
