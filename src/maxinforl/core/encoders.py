"""What turns an observation into the vector that actor, critics and intrinsic models read."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from maxinforl.core.types import Batch, LatentSpec, Spec


@dataclass(frozen=True)
class States:
    """The observation itself: nothing to learn, nothing to augment."""

    pixels = False

    def init(self, key: Array, spec: Spec):
        return ()

    def features(self, params, obs: Array) -> Array:
        return obs

    def trunk_init(self, key: Array, spec: Spec):
        return ()

    def trunk(self, params, features: Array) -> Array:
        return features

    def extra(self, features: Array) -> Array:
        return features[..., :0]

    def latents(self, spec: Spec) -> LatentSpec:
        return LatentSpec(spec.obs[0], spec.action, 0, delta=True)

    def augment(self, batch: Batch, key: Array) -> Batch:
        return batch
