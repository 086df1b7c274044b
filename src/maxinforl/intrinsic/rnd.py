"""Random network distillation with an ensemble: how the predictors of a frozen random network disagree."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.networks import MLP
from maxinforl.core.normalizer import Normalizer
from maxinforl.core.types import Latents, LatentSpec
from maxinforl.intrinsic.ensemble import Ensemble, Model, member_std


@dataclass(frozen=True)
class RND(Ensemble):
    """Members regress on a frozen network's output at the normalised (s, a)."""

    activation: str = "relu"
    init_name: str = "xavier"
    embedding: int = 1
    target_hidden: tuple[int, ...] = (32, 32)

    def blocks(self, spec: LatentSpec) -> tuple[int, ...]:
        return (self.embedding,)

    def frozen(self, key: Array, spec: LatentSpec) -> MLP:
        return MLP(key, (spec.z + spec.action, *self.target_hidden, self.embedding), activation="tanh", init="xavier")

    def target(self, model: Model, inputs: Normalizer, e: Latents) -> Array:
        return stop_gradient(model.frozen(inputs(jnp.concatenate([e.z, e.action], -1))))

    def score(self, model: Model, z: Array, action: Array) -> Array:
        return member_std(self.outcome(model, z, action)[0]).mean(-1)
