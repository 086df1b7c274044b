"""The deterministic policy of an agent as NumPy arrays, and the operations that they belong to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from maxinforl.agent import Agent
from maxinforl.core.actor_critic import Learner
from maxinforl.core.architectures import Operation
from maxinforl.core.checks import why_not_exported
from maxinforl.core.encoders import STRIDES, Pixels
from maxinforl.core.networks import ACTIVATIONS
from maxinforl.errors import BadInput
from maxinforl.runner import ARRAYS, operate

Arrays = dict[str, np.ndarray]


def learner_of(state: Any) -> Learner:
    """The learner whose policy is evaluated: the task's own where two of them share a replay."""
    found = getattr(state, "learner", None)
    if not isinstance(found, Learner):
        raise BadInput(f"a {type(state).__name__} has no learner that acts for the task: it cannot be exported")
    return found


def weights_of(agent: Agent) -> Arrays:
    """Convolutions and projection where there are any, then every operation's arrays by its name and number.

    A Gaussian's last layer gives its mean alone: the deterministic action of every policy here is tanh of the network.
    """
    base, params = agent.strategy.base, learner_of(agent.acting_state()[1]).params
    operations, count = operations_of(agent), Counter[str]()
    arrays: Arrays = {}
    if isinstance(base.encoder, Pixels):
        many, trunk = agent.spec.layout is not None, params.actor.trunk
        cameras = zip(params.encoder, trunk) if many else [(params.encoder, trunk)]
        for i, (layers, projection) in enumerate(cameras):
            arrays |= camera(layers, projection, f"image.{i}." if many else "")
    for name, own in operations:
        arrays |= {f"{name}.{count[name]}.{part}": np.array(array, np.float32) for part, array in own.items()}
        count[name] += 1
    return only_mean(arrays, count["dense"] - 1, agent.spec.action)


def camera(layers: Any, projection: Any, of: str) -> Arrays:
    """The convolutions of an image and the actor's projection of it."""
    arrays = {f"{of}conv.{i}.{name}": getattr(x, name) for i, x in enumerate(layers) for name in ("weight", "bias")}
    dense, norm = projection.dense, projection.norm
    parts = {"weight": dense.weight, "bias": dense.bias, "scale": norm.scale, "shift": norm.shift}
    return {name: np.array(array) for name, array in (arrays | {f"{of}trunk.{k}": v for k, v in parts.items()}).items()}


def operations_of(agent: Agent) -> list[Operation]:
    """The actor in evaluation mode, from the normaliser of its observations to its outputs."""
    base, learner = agent.strategy.base, learner_of(agent.acting_state()[1])
    if (sentence := why_not_exported(base)) is not None:
        raise BadInput(sentence)
    found = base.of_actor.operations(learner.params.actor.head, learner.stats.actor)
    check_operations(type(base.of_actor).__name__, found, base.encoder.latents(agent.spec.seen).z)
    if not base.normalize_observations:
        return found
    seen, view = learner.observed.observations, learner.params.actor.view
    scale, shift = 1 / seen.std, 0 * seen.mean
    arrays = {"mean": view(seen.mean), "scale": view(scale), "shift": view(shift)}
    return [Operation("standardize", arrays), *found]


def check_operations(network: str, operations: list[Operation], width: int) -> None:
    """A network of one's own may describe itself in a way that no bundle can follow."""
    if not operations or operations[-1].name != "dense":
        raise BadInput(f"operations() of {network} must end with its dense output layer", "deployment.md")
    kept: list[np.ndarray] = []
    x = np.zeros((1, width), np.float32)
    for name, arrays in operations:
        wanted = ARRAYS.get(name, () if name in (*ACTIVATIONS, "keep", "add") else None)
        if wanted is None or set(wanted) != set(arrays):
            raise BadInput(f"operations() of {network} names {name} with {sorted(arrays)}", "deployment.md")
        try:
            x = operate(name, [np.array(arrays[part]) for part in wanted], x, kept)
        except (ValueError, IndexError) as error:
            raise BadInput(f"operations() of {network} do not fit together at {name}: {error}") from None


def only_mean(arrays: Arrays, last: int, actions: int) -> Arrays:
    """Without the standard deviations that follow the means in the last layer."""
    mean = {name: arrays[name][..., :actions].copy() for name in (f"dense.{last}.weight", f"dense.{last}.bias")}
    return arrays | mean


def strides_of(agent: Agent) -> list[int]:
    """Strides of the convolutions, none for states."""
    return list(STRIDES) if isinstance(agent.strategy.base.encoder, Pixels) else []
