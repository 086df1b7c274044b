"""The deterministic policy of an agent as NumPy arrays: one feed-forward network."""

from __future__ import annotations

from typing import Any

import numpy as np

from maxinforl.agent import Agent
from maxinforl.core.actor_critic import Learner
from maxinforl.core.encoders import STRIDES, Pixels, States
from maxinforl.core.policies import NoisyDeterministic, SquashedGaussian
from maxinforl.errors import BadInput

Arrays = dict[str, np.ndarray]


def learner_of(state: Any) -> Learner:
    """The learner whose policy is evaluated: the task's own where two of them share a replay."""
    found = getattr(state, "learner", None)
    if not isinstance(found, Learner):
        raise BadInput(f"a {type(state).__name__} has no learner that acts for the task: it cannot be exported")
    return found


def weights_of(agent: Agent) -> Arrays:
    """Convolutions and projection where there are any, then dense layers; a Gaussian's last one gives its mean alone.

    The deterministic action of every policy here is tanh of that network, so nothing else is exported.
    """
    base, params = agent.strategy.base, learner_of(agent.acting_state()[1]).params
    if not isinstance(base.policy, (SquashedGaussian, NoisyDeterministic)):
        raise BadInput(f"a policy of kind {type(base.policy).__name__} cannot be exported: only tanh policies can")
    if not isinstance(base.encoder, (States, Pixels)):
        raise BadInput(f"an encoder of kind {type(base.encoder).__name__} cannot be exported: use States or Pixels")
    arrays: Arrays = {}
    for i, layer in enumerate(params.encoder):
        arrays |= {f"conv.{i}.weight": np.array(layer.weight), f"conv.{i}.bias": np.array(layer.bias)}
    if isinstance(base.encoder, Pixels):
        dense, norm = params.actor.trunk.dense, params.actor.trunk.norm
        parts = {"weight": dense.weight, "bias": dense.bias, "scale": norm.scale, "shift": norm.shift}
        arrays |= {f"trunk.{name}": np.array(part) for name, part in parts.items()}
    for i, layer in enumerate(params.actor.head.layers):
        arrays |= {f"dense.{i}.weight": np.array(layer.weight), f"dense.{i}.bias": np.array(layer.bias)}
    return only_mean(arrays, len(params.actor.head.layers) - 1, agent.spec.action)


def only_mean(arrays: Arrays, last: int, actions: int) -> Arrays:
    """Without the standard deviations that follow the means in the last layer."""
    mean = {name: arrays[name][..., :actions].copy() for name in (f"dense.{last}.weight", f"dense.{last}.bias")}
    return arrays | mean


def strides_of(agent: Agent) -> list[int]:
    """Strides of the convolutions, none for states."""
    return list(STRIDES) if isinstance(agent.strategy.base.encoder, Pixels) else []
