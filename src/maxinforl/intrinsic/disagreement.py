"""Plain disagreement of the members, without logarithm or standardisation (Pathak et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from maxinforl.intrinsic.ensemble import Ensemble, Model, spread


@dataclass(frozen=True)
class Disagreement(Ensemble):
    """Mean of the members' standard deviation within a block, summed over blocks."""

    def score(self, model: Model, z: Array, action: Array) -> Array:
        return self.per_block(model, spread(self.outcome(model, z, action)[0]))
