"""Disagreement of the members (Pathak et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.intrinsic.ensemble import LEAST_ERROR, Ensemble, Model, member_std, variance


@dataclass(frozen=True)
class Disagreement(Ensemble):
    """Mean of the members' standard deviation (or log-variance) in a block, summed over blocks."""

    log: bool = False  # of the variance, as explore-then-exploit has it in the authors' code

    def score(self, model: Model, z: Array, action: Array) -> Array:
        mean, _ = self.outcome(model, z, action)
        return self.per_block(model, jnp.log(LEAST_ERROR + variance(mean, ddof=1)) if self.log else member_std(mean))
