"""What a critic's outputs mean: one value, a distribution over fixed values, or quantiles of the return.

Shapes: `raw` is what the networks give, [channels, critics, batch, outputs]. `bellman` is the Bellman operator of one
channel, a function of next values [batch]: v -> r + discount * (v + bonus - alpha log pi).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import Metrics
from maxinforl.errors import BadInput

Bellman = Callable[[Array], Array]


@dataclass(frozen=True)
class Scalar:
    """The expected return, regressed by squared error."""

    outputs = 1
    reach = None  # the largest value that it can represent, where there is one

    def mean(self, raw: Array) -> Array:
        return raw[..., 0]

    def combine(self, raw: Array, how: str) -> Array:
        """The critics of a channel as one: their minimum or mean, [channels, batch]."""
        q = self.mean(raw)
        return q.min(1) if how == "min" else q.mean(1)

    def target(self, value: Array, bellman: Bellman) -> Array:
        return bellman(value)

    def loss(self, raw: Array, target: Array) -> Array:
        return jnp.square(self.mean(raw) - target)

    def metrics(self, target: Array) -> Metrics:
        return {}


@dataclass(frozen=True)
class Categorical:
    """Probabilities of `atoms` fixed values from `low` to `high`, trained by cross-entropy (Bellemare et al. 2017)."""

    atoms: int = 101
    low: float = -5.0
    high: float = 5.0

    def __post_init__(self):
        if self.atoms < 2:
            raise BadInput(f"base.head.atoms: a support needs at least 2 atoms, not {self.atoms}")
        if not -float("inf") < self.low < self.high < float("inf"):
            raise BadInput(f"base.head: the support from {self.low} to {self.high} is empty: low must be below high")

    @property
    def outputs(self) -> int:
        return self.atoms

    @property
    def reach(self) -> float:
        return max(-self.low, self.high)

    @property
    def support(self) -> Array:
        return jnp.linspace(self.low, self.high, self.atoms, dtype=jnp.float32)

    def mean(self, raw: Array) -> Array:
        return (jax.nn.softmax(raw) * self.support).sum(-1)

    def combine(self, raw: Array, how: str) -> Array:
        """Probabilities [channels, batch, atoms]: of the critic with the smaller mean, row by row, or their mean."""
        p = jax.nn.softmax(raw)
        return smallest(p, (p * self.support).sum(-1)) if how == "min" else p.mean(1)

    def target(self, p: Array, bellman: Bellman) -> Array:
        """Every atom moves by the Bellman operator; the two atoms that it falls between share its probability."""
        moved = jax.vmap(bellman, -1, -1)(jnp.broadcast_to(self.support, p.shape))
        return self.projected(p, jnp.clip(moved, self.low, self.high))

    def projected(self, p: Array, values: Array) -> Array:
        """target_k = sum_j p_j max(0, 1 - |b_j - k|), where b_j is the place of value j counted in atoms."""
        place = (values - self.low) * ((self.atoms - 1) / (self.high - self.low))
        near = jnp.maximum(0.0, 1.0 - jnp.abs(place[..., None, :] - jnp.arange(self.atoms, dtype=jnp.float32)[:, None]))
        return (near * p[..., None, :]).sum(-1)

    def loss(self, raw: Array, target: Array) -> Array:
        return -(target * jax.nn.log_softmax(raw)).sum(-1)

    def metrics(self, target: Array) -> Metrics:
        """How much of the targets lies on the first and last atom: much of it means that the support is too narrow."""
        return {"train/support_edges": (target[0, ..., 0] + target[0, ..., -1]).mean()}


@dataclass(frozen=True)
class Quantile:
    """Quantiles of the return at (k - 1/2) / K, trained by the quantile Huber loss (Dabney et al. 2018)."""

    quantiles: int = 32
    reach = None

    def __post_init__(self):
        if self.quantiles < 2:
            raise BadInput(
                f"base.head.quantiles must be at least 2, not {self.quantiles}: use a Scalar head for one value"
            )

    @property
    def outputs(self) -> int:
        return self.quantiles

    def mean(self, raw: Array) -> Array:
        return raw.mean(-1)

    def combine(self, raw: Array, how: str) -> Array:
        """Quantiles [channels, batch, quantiles]: of the critic with the smaller mean, row by row, or their mean."""
        return smallest(raw, self.mean(raw)) if how == "min" else raw.mean(1)

    def target(self, value: Array, bellman: Bellman) -> Array:
        return jax.vmap(bellman, -1, -1)(value)

    def loss(self, raw: Array, target: Array) -> Array:
        return quantile_huber(raw, target)

    def metrics(self, target: Array) -> Metrics:
        return {}


def smallest(distribution: Array, mean: Array) -> Array:
    """Row by row the whole distribution of the critic whose mean is smallest; critics are axis 1 of both."""
    return jnp.take_along_axis(distribution, mean.argmin(1)[:, None, :, None], 1)[:, 0]


def quantile_huber(predicted: Array, target: Array) -> Array:
    """mean_j sum_i |tau_i - 1[d_ij < 0]| H(d_ij), d_ij = target_j - predicted_i; H is quadratic to 1, then linear."""
    count = predicted.shape[-1]
    tau = (jnp.arange(count, dtype=jnp.float32)[:, None] + 0.5) / count
    d = target[..., None, :] - predicted[..., :, None]
    size = jnp.abs(d)
    huber = jnp.where(size <= 1, 0.5 * d**2, size - 0.5)
    return (jnp.abs(tau - (d < 0)) * huber).sum(-2).mean(-1)
