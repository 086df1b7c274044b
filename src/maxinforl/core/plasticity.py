"""Keeping networks plastic: noise and resets that follow the share of dormant neurons (DrM, Xu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.networks import Dense
from maxinforl.core.policies import Linear
from maxinforl.errors import BadInput, unknown

ASLEEP = -1


class DormantState(eqx.Module):
    ratio: Array  # of the actor's neurons that are dormant
    awake: Array  # the update at which the actor woke, or ASLEEP


@dataclass(frozen=True)
class Dormant:
    threshold: float = 0.025  # a neuron below this share of its layer's mean magnitude is dormant
    target: float = 0.2  # ratio of an actor that is awake
    sharpness: float = 10.0
    after: int = 2_000  # updates before the actor may wake
    every: int = 100_000  # updates between perturbations; 0: never
    least: float = 0.2  # of what a perturbation keeps
    most: float = 0.9
    factor: float = 2.0
    start: float = 0.0  # ratio before the first update; DrM's own code starts at 1
    origin: str = "global"  # where the noise schedule counts from: global, or awake (DrM's own code)
    aware: str = "always"  # where the noise follows the ratio: always, acting (the authors' MaxInfoDrM) or never

    def __post_init__(self):
        for field, options in (("origin", ("global", "awake")), ("aware", ("always", "acting", "never"))):
            if getattr(self, field) not in options:
                raise unknown(field, getattr(self, field), options)
        if self.every < 0 or not 0 <= self.least <= self.most <= 1:
            raise BadInput("perturbations need `every` of 0 or more, and 0 <= `least` <= `most` <= 1")
        if not (0 <= self.start <= 1 and all(x >= 0 for x in (self.threshold, self.sharpness, self.factor))):
            raise BadInput("plasticity needs `start` from 0 to 1, and no negative `threshold`, `sharpness` or `factor`")

    def init(self) -> DormantState:
        return DormantState(jnp.asarray(self.start, jnp.float32), jnp.asarray(ASLEEP, jnp.int32))

    def ratio(self, outputs: Sequence[Array]) -> Array:
        """Share of neurons whose magnitude, averaged over the batch, is below `threshold` of their layer's."""
        size = [jnp.abs(layer).mean(0) for layer in outputs]
        return jnp.concatenate([layer < self.threshold * layer.mean() for layer in size]).mean(dtype=jnp.float32)

    def observe(self, v: DormantState, outputs: Sequence[Array], update: Array) -> DormantState:
        """The ratio now; waking is for good."""
        ratio = self.ratio(outputs)
        wakes = (v.awake == ASLEEP) & (ratio < self.target) & (update >= self.after)
        return DormantState(ratio, jnp.where(wakes, update, v.awake))

    def sigma(self, v: DormantState, schedule: Linear, update: Array) -> Array:
        """sigmoid(10 (ratio - 0.2)) while asleep, then the larger of that and the schedule."""
        dormant = jax.nn.sigmoid(self.sharpness * (v.ratio - self.target))
        scheduled = schedule(update - v.awake if self.origin == "awake" else update)
        return jnp.where(v.awake == ASLEEP, dormant, jnp.maximum(dormant, scheduled))

    def due(self, update: Array) -> Array:
        """Whether the update that `update` others came before is one to perturb after."""
        return (update + 1) % self.every == 0

    def kappa(self, v: DormantState) -> Array:
        """What a perturbation keeps of the old parameters."""
        return jnp.clip(1 - self.factor * v.ratio, self.least, self.most)


def perturbed(old, fresh, kappa: Array | float):
    """kappa * old + (1 - kappa) * fresh in every dense layer; convolutions and layer norms stay."""
    dense = lambda layer: isinstance(layer, Dense)
    mix = lambda a, b: jax.tree.map(lambda x, y: kappa * x + (1 - kappa) * y, a, b) if dense(a) else a
    return jax.tree.map(mix, old, fresh, is_leaf=dense)
