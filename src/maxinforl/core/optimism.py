"""Optimistic actor-critic's behaviour: move the mean towards actions that might be good (Ciosek et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class Optimism:
    beta: float = 4.66  # of the critics' spread in the upper bound
    shift: float = 6.86  # sqrt(2 delta): the KL divergence from the policy is shift**2 / 2

    def __call__(self, policy: Any, out: Array, q: Callable[[Array], Array]) -> Array:
        """The policy's output with its mean moved by c * (var * g) / sqrt(sum g**2 var), g = d upper bound / d mean."""
        mean, log_std = policy.moments(out)
        var = jnp.exp(2 * log_std)

        def upper(mean: Array) -> Array:
            value = q(jnp.tanh(mean))  # [critics, batch]
            return (value.mean(0) + self.beta * (value.max(0) - value.min(0)) / 2).sum()

        gradient = jax.grad(upper)(mean)
        norm = jnp.sqrt((gradient**2 * var).sum(-1, keepdims=True)) + 1e-6
        return policy.shift(out, self.shift * var * gradient / norm)
