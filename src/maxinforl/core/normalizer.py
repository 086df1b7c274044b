"""Running mean and standard deviation; constants to every gradient."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.errors import BadInput


@dataclass(frozen=True)
class Standardize:
    """(x - mean) / std over about the last `memory` points."""

    memory: float = 1e6  # points after which old ones fade
    centre: bool = True  # False: x / std, so that an intrinsic reward is never negative
    floor: float = 1e-3  # of the standard deviation

    def __post_init__(self):
        if not 1 <= self.memory < float("inf"):
            raise BadInput(f"the memory of a normaliser must be a finite number of points, not {self.memory}")
        if not 0 < self.floor < float("inf"):
            raise BadInput(f"the floor of a normaliser must be a finite number above 0, not {self.floor}")


DEFAULT_RULE = Standardize()


class Normalizer(eqx.Module):
    mean: Array
    std: Array
    count: Array
    rule: Standardize = eqx.field(static=True)

    def __init__(self, shape: tuple[int, ...] = (), rule: Standardize = DEFAULT_RULE):
        self.mean, self.std = jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
        self.count, self.rule = jnp.zeros((), jnp.float32), rule

    def update(self, x: Array) -> Normalizer:
        """Statistics of everything remembered and the batch `x`, which has one leading axis."""
        x = stop_gradient(x)
        count = self.count + x.shape[0]
        mean = (self.count * self.mean + x.sum(0)) / count
        spread = self.count * (self.std**2 + (self.mean - mean) ** 2) + ((x - mean) ** 2).sum(0)
        std = jnp.maximum(jnp.sqrt(spread / count), self.rule.floor)
        return eqx.tree_at(
            lambda n: (n.mean, n.std, n.count),
            self,
            (mean, std, jnp.minimum(count, self.rule.memory)),
            is_leaf=lambda x: x is None,
        )

    def inverse(self, x: Array) -> Array:
        """What has the normal value `x`."""
        scaled = x * stop_gradient(self.std)
        return scaled + stop_gradient(self.mean) if self.rule.centre else scaled

    def __call__(self, x: Array) -> Array:
        if not self.rule.centre:
            return x / stop_gradient(self.std)
        return (x - stop_gradient(self.mean)) / stop_gradient(self.std)
