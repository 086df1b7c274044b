"""Running mean and standard deviation; constants to every gradient."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

FLOOR = 1e-3
MOST = 1e6  # points after which old ones fade


class Normalizer(eqx.Module):
    mean: Array
    std: Array
    count: Array

    def __init__(self, shape: tuple[int, ...] = ()):
        self.mean, self.std = jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
        self.count = jnp.zeros((), jnp.float32)

    def update(self, x: Array) -> Normalizer:
        """Statistics of everything seen so far and the batch `x`, which has one leading axis."""
        x = stop_gradient(x)
        count = self.count + x.shape[0]
        mean = (self.count * self.mean + x.sum(0)) / count
        spread = self.count * (self.std**2 + (self.mean - mean) ** 2) + ((x - mean) ** 2).sum(0)
        std = jnp.maximum(jnp.sqrt(spread / count), FLOOR)
        return eqx.tree_at(
            lambda n: (n.mean, n.std, n.count), self, (mean, std, jnp.minimum(count, MOST)), is_leaf=lambda x: x is None
        )

    def __call__(self, x: Array) -> Array:
        return (x - stop_gradient(self.mean)) / stop_gradient(self.std)
