"""Statistics of what is inserted into the replay, which keeps it raw: observations, and discounted sums of rewards."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

PRIOR = 1e-4  # observations that the initial mean 0 and variance 1 are worth
BOUND = 5.0  # the largest discounted sum seen, after division


class Moments(eqx.Module):
    """Mean and variance of everything seen so far."""

    mean: Array
    var: Array
    count: Array

    def __init__(self, shape: tuple[int, ...] = ()):
        self.mean, self.var = jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
        self.count = jnp.asarray(PRIOR, jnp.float32)

    def update(self, x: Array, valid: Array | None = None) -> Moments:
        """With the rows of `x` that are valid: the parallel form of Chan et al. (1979)."""
        weight = jnp.ones(x.shape[0], jnp.float32) if valid is None else valid.astype(jnp.float32)
        weight = weight.reshape(-1, *(1,) * (x.ndim - 1))
        added = weight.sum()
        mean = (weight * x).sum(0) / jnp.maximum(added, 1)
        spread = (weight * (x - mean) ** 2).sum(0)
        total, change = self.count + added, mean - self.mean
        var = (self.count * self.var + spread + change**2 * self.count * added / total) / total
        fresh = (self.mean + change * added / total, var, total)
        return eqx.tree_at(lambda m: (m.mean, m.var, m.count), self, fresh)

    @property
    def std(self) -> Array:
        return jnp.sqrt(self.var + 1e-8)

    def __call__(self, x: Array) -> Array:
        return (x - self.mean) / self.std


class ReturnScale(eqx.Module):
    """What divides rewards: the spread of G, the discounted sum of an episode's rewards so far, bounded by its peak."""

    moments: Moments
    peak: Array  # the largest |G|

    def __init__(self):
        self.moments, self.peak = Moments(), jnp.zeros((), jnp.float32)

    def update(self, sums: Array, valid: Array) -> ReturnScale:
        peak = jnp.maximum(self.peak, jnp.where(valid, jnp.abs(sums), 0.0).max())
        return eqx.tree_at(lambda r: (r.moments, r.peak), self, (self.moments.update(sums, valid), peak))

    def divisor(self, bound: float = BOUND) -> Array:
        """max(std[G], max|G| / bound): the second keeps a first reward after many zeros within the bound."""
        return jnp.maximum(self.moments.std, self.peak / bound)
