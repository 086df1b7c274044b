"""Disagreement of the members (Pathak et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.fields import later
from maxinforl.intrinsic.ensemble import LEAST_ERROR, Ensemble, Model, member_std, variance


@dataclass(frozen=True)
class Disagreement(Ensemble):
    """Mean of the log-variance (or of the standard deviation) of the members in a block, summed over blocks."""

    log: bool = later(True, before=False)  # of the variance: a logarithm keeps its spread while the reward decays

    def score(self, model: Model, z: Array, action: Array) -> Array:
        mean, _ = self.outcome(model, z, action)
        return self.per_block(model, jnp.log(LEAST_ERROR + variance(mean, ddof=1)) if self.log else member_std(mean))
