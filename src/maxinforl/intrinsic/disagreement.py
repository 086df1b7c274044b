"""Plain disagreement of the members, without standardisation (Pathak et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.intrinsic.ensemble import Ensemble, Model, member_std, variance

LEAST = 1e-6  # variance in the logarithm


@dataclass(frozen=True)
class Disagreement(Ensemble):
    """Mean of the members' standard deviation within a block, summed over blocks."""

    log: bool = False  # of the variance, as explore-then-exploit has it in the authors' code

    def score(self, model: Model, z: Array, action: Array) -> Array:
        mean, _ = self.outcome(model, z, action)
        return self.per_block(model, jnp.log(LEAST + variance(mean, ddof=1)) if self.log else member_std(mean))
