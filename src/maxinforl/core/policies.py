"""How a network's output becomes an action: a tanh-Gaussian, or a deterministic action with noise."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import stop

LOG_STD = (-10.0, 2.0)


@dataclass(frozen=True)
class SquashedGaussian:
    """tanh of a Gaussian with a state-dependent diagonal standard deviation."""

    entropic = True
    out_gain = 1.0

    def outputs(self, actions: int) -> int:
        return 2 * actions

    def moments(self, out: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(out, 2, -1)
        return mean, jnp.clip(log_std, *LOG_STD)

    def sample(self, out: Array, key: Array, sigma: Array | float = 0.0) -> tuple[Array, Array]:
        """A reparameterised action and its log-probability."""
        mean, log_std = self.moments(out)
        noise = jax.random.normal(key, mean.shape)
        x = mean + jnp.exp(log_std) * noise
        log_normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        log_slope = 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))
        return jnp.tanh(x), (log_normal - log_slope).sum(-1)

    def act(self, out: Array, key: Array, sigma: Array | float = 0.0) -> Array:
        return self.sample(out, key)[0]

    def mode(self, out: Array) -> Array:
        return jnp.tanh(self.moments(out)[0])

    def shift(self, out: Array, by: Array) -> Array:
        """The same distribution with its mean before the tanh moved."""
        return out.at[..., : by.shape[-1]].add(by)


@dataclass(frozen=True)
class NoisyDeterministic:
    """tanh of the network plus Gaussian noise: clipped in updates, unclipped when acting."""

    clip: float = 0.3
    entropic = False
    out_gain = 2**0.5

    def outputs(self, actions: int) -> int:
        return actions

    def sample(self, out: Array, key: Array, sigma: Array | float) -> tuple[Array, Array]:
        """Noisy action; the outer clip is straight-through, so that its gradient is the identity."""
        noise = jnp.clip(sigma * jax.random.normal(key, out.shape), -self.clip, self.clip)
        action = jnp.tanh(out) + noise
        return action + stop(jnp.clip(action, -1, 1) - action), jnp.zeros(out.shape[:-1])

    def act(self, out: Array, key: Array, sigma: Array | float) -> Array:
        return jnp.clip(jnp.tanh(out) + sigma * jax.random.normal(key, out.shape), -1, 1)

    def mode(self, out: Array) -> Array:
        return jnp.tanh(out)
