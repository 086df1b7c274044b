"""Curiosity: how wrong the ensemble's mean was about what happened (Pathak et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import Latents
from maxinforl.errors import BadInput
from maxinforl.intrinsic.ensemble import Ensemble, Model


@dataclass(frozen=True)
class Curiosity(Ensemble):
    """Squared error of the mean prediction within a block, summed over blocks; needs the observed next state."""

    scores_actions = False
    least = 1

    def score(self, model: Model, z: Array, action: Array) -> Array:
        raise BadInput("curiosity needs the observed next state: it cannot score an action that was never taken")

    def reward(self, model: Model, e: Latents) -> Array:
        mean = self.outcome(model, e.z, e.action)[0].mean(0)
        return self.per_block(model, jnp.square(mean - model.outputs(self.target(model, model.inputs, e))))
