"""contract.json: what the user of an exported policy must know about observations and actions."""

from __future__ import annotations

from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np

import maxinforl
from maxinforl import envs
from maxinforl.agent import Agent, env_options
from maxinforl.deploy.policy_weights import learner_of, operations_of, strides_of
from maxinforl.runner import FORMAT, checksum
from maxinforl.settings import title


def contract(agent: Agent, sha256: dict[str, str]) -> dict[str, Any]:
    """The content of contract.json, with a checksum of its own.

    Args:
        agent: the agent that is exported.
        sha256: checksum of each file of the bundle, by name.
    """
    settings, action = agent.settings, agent.action_space
    parts, rate = env_facts(agent)
    many = agent.spec.layout is not None
    table = {
        "format": FORMAT,
        "maxinforl": maxinforl.__version__,
        "algorithm": title(settings),
        "environment": settings.env,
        "agent_steps": int(agent.acting_state()[2].step),
        "observation": {
            "shape": [agent.spec.seen.vector] if many else list(agent.spec.seen.obs),
            "dtype": "float32" if many else str(agent.observation_space.dtype),
            "order": parts,
            "parts": [part.table() for part in agent.spaces.seen],
            "stack": agent.stack,
            "strides": strides_of(agent),
        },
        "normaliser": normaliser(agent),
        "network": [operation.name for operation in operations_of(agent)],
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


def normaliser(agent: Agent) -> dict[str, Any] | None:
    """What the bundle does to an observation before its network, so that the user must not."""
    if not agent.strategy.base.normalize_observations:
        return None
    seen = learner_of(agent.acting_state()[1]).observed.observations
    entries = slice(*agent.spec.seen.obs)
    parts = {"mean": seen.mean[entries], "std": seen.std[entries]}
    return {"rule": "(observation - mean) / std, inside the bundle"} | {
        name: [float(x) for x in np.array(part)] for name, part in parts.items()
    }


def env_facts(agent: Agent) -> tuple[list[dict[str, Any]], float | None]:
    """Names and sizes of the observation's parts in order, and actions per second, as far as the environment tells.

    An environment given as an instance is asked itself; one from a name, class or factory is built for this and closed.
    """
    image = len(agent.spec.obs) == 3
    parts = [] if image else [{"name": part.name, "size": part.size} for part in agent.spaces.seen]
    whole = parts or [{"name": "image" if image else "observation", "size": int(np.prod(agent.spec.obs))}]
    try:
        given = agent.environment()
        env = envs.make(given, **env_options(agent.settings))  # type: ignore[arg-type]
    except Exception:  # such as an extra that is not installed here, or hardware that is absent: export needs neither
        return whole, None
    try:
        return (whole if parts or image else observation_parts(env)), control_rate(env)
    finally:
        if not isinstance(given, gym.Env):
            envs.close_quietly(env)


def observation_parts(env: envs.AdaptedEnv) -> list[dict[str, Any]]:
    """Parts of a vector observation in their order."""
    own = getattr(env.unwrapped, "observation_parts", None) or env.observation_parts
    return [{"name": name, "size": size} for name, size in own]


def control_rate(env: envs.AdaptedEnv) -> float | None:
    """Actions per second: from `dt`, dm_control's `control_timestep()` or `metadata["render_fps"]`, else None."""
    timestep = getattr(env.unwrapped, "control_timestep", None)
    fps = env.metadata.get("render_fps")
    for seconds in (
        getattr(env.unwrapped, "dt", None),
        timestep() if callable(timestep) else None,
        1 / fps if positive(fps) else None,
    ):
        if positive(seconds):
            return round(1 / (float(seconds) * env.action_repeat), 6)
    return None


def positive(value: Any) -> TypeGuard[float]:
    """Whether this is a finite number above 0 (NumPy's numbers included)."""
    return isinstance(value, (int, float, np.number)) and 0 < float(value) < float("inf")
