"""Curiosity: how wrong the ensemble's mean was about what happened (Pathak et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.core.normalizer import Standardize
from maxinforl.core.types import Latents
from maxinforl.fields import later
from maxinforl.intrinsic.ensemble import LEAST_ERROR, Ensemble, Model


@dataclass(frozen=True)
class Curiosity(Ensemble):
    """Squared error of the mean prediction in a block, summed over blocks; needs the observed next state."""

    log: bool = later(True, before=False)  # its logarithm: an error falls a hundredfold within 500 updates
    normalize: Standardize = later(
        Standardize(memory=5e3, floor=1e-6), before=Standardize()
    )  # an error decays within 100 updates

    least = 1

    def reward(self, model: Model, e: Latents) -> Array:
        mean = self.outcome(model, e.z, e.action)[0].mean(0)
        error = self.per_block(model, jnp.square(mean - model.outputs(self.target(model, model.inputs, e))))
        return jnp.log(LEAST_ERROR + error) if self.log else error
