"""Information gain about dynamics and reward, bounded by the members' variance against the noise."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.core.normalizer import Standardize
from maxinforl.errors import BadInput
from maxinforl.intrinsic.ensemble import Ensemble, Model, block_means, variance


@dataclass(frozen=True)
class InfoGain(Ensemble):
    """I(s, a) = mean_j log(1 + Var_i(p_ij) / noise**2) in normalised output units.

    `aggregate` is the mean over outputs j, the paper's sum (the same after standardisation), or the mean of the state's
    and the reward's own means, as in the authors' PyTorch code.
    """

    noise: float = 1e-3
    aleatoric: bool = False  # learn the noise per output instead of fixing it
    normalize: Standardize = Standardize()  # a logarithm keeps its spread while the disagreement decays

    def __post_init__(self):
        super().__post_init__()
        if not self.noise > 0:
            raise BadInput(f"the noise of the information gain must be above 0, not {self.noise}")

    def score(self, model: Model, z: Array, action: Array) -> Array:
        mean, std = self.outcome(model, z, action)
        noise = self.noise**2 if std is None else jnp.square(std).mean(0)
        gain = jnp.log1p(variance(mean) / noise)  # the variance itself: a square root has no gradient at agreement
        if self.aggregate == "blocks":
            return block_means(model.blocks, gain).mean(-1)
        return gain.mean(-1) if self.aggregate == "mean" else gain.sum(-1)
