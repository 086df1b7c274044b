"""How a network's output becomes an action: a tanh-Gaussian or a deterministic action with scheduled noise, and OAC's
optimistic shift of the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.errors import BadInput, unknown

LARGEST_LOG_STD = 2.0


@dataclass(frozen=True)
class SquashedGaussian:
    """tanh of a Gaussian with a state-dependent diagonal standard deviation.

    Its logarithm lies between `least` and 2, the network's output clipped or, as in SimBa and BRO, squashed by a tanh:
    an output of 0 is a deviation of 1 in the one and of exp(-4) in the other.
    """

    log_std: str = "clip"  # clip or tanh
    least: float = -10.0

    entropic = True
    edge = 0.0
    out_gain = 1.0

    def __post_init__(self):
        if self.log_std not in ("clip", "tanh"):
            raise unknown("base.policy.log_std", self.log_std, ("clip", "tanh"))
        if not -30 <= self.least < LARGEST_LOG_STD:
            raise BadInput(f"base.policy.least must lie between -30 and {LARGEST_LOG_STD:g}, not {self.least}")

    def outputs(self, actions: int) -> int:
        return 2 * actions

    def moments(self, out: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(out, 2, -1)
        if self.log_std == "clip":
            return mean, jnp.clip(log_std, self.least, LARGEST_LOG_STD)
        return mean, self.least + 0.5 * (LARGEST_LOG_STD - self.least) * (1 + jnp.tanh(log_std))

    def sample(self, out: Array, key: Array, sigma: Array | float = 0.0) -> tuple[Array, Array]:
        """A reparameterised action and its log-probability."""
        return self.at_noise(out, jax.random.normal(key, (*out.shape[:-1], out.shape[-1] // 2)))

    def at_noise(self, out: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = self.moments(out)
        x = mean + jnp.exp(log_std) * noise
        log_normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        log_slope = 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))
        return jnp.tanh(x), (log_normal - log_slope).sum(-1)

    def act(self, out: Array, key: Array, sigma: Array | float = 0.0, noise: Array | None = None) -> Array:
        """An action of the behaviour; `noise` is standard normal, drawn with the key where it is not given."""
        return self.sample(out, key)[0] if noise is None else self.at_noise(out, noise)[0]

    def mode(self, out: Array) -> Array:
        return jnp.tanh(self.moments(out)[0])

    def shift(self, out: Array, by: Array) -> Array:
        """The same distribution with its mean before the tanh moved."""
        return out.at[..., : by.shape[-1]].add(by)


@dataclass(frozen=True)
class NoisyDeterministic:
    """tanh of the network plus Gaussian noise: clipped in updates, unclipped when acting."""

    clip: float = 0.3
    edge: float = 0.0  # cost of squared outputs in the actor's loss: far from 0 the tanh has no gradient left
    entropic = False
    out_gain = 2**0.5

    def outputs(self, actions: int) -> int:
        return actions

    def sample(self, out: Array, key: Array, sigma: Array | float) -> tuple[Array, Array]:
        """Noisy action; the outer clip is straight-through, so that its gradient is the identity."""
        noise = jnp.clip(sigma * jax.random.normal(key, out.shape), -self.clip, self.clip)
        action = jnp.tanh(out) + noise
        return action + stop_gradient(jnp.clip(action, -1, 1) - action), jnp.zeros(out.shape[:-1])

    def act(self, out: Array, key: Array, sigma: Array | float, noise: Array | None = None) -> Array:
        noise = jax.random.normal(key, out.shape) if noise is None else noise
        return jnp.clip(jnp.tanh(out) + sigma * noise, -1, 1)

    def mode(self, out: Array) -> Array:
        return jnp.tanh(out)


@dataclass(frozen=True)
class Linear:
    """From `start` to `end` over `steps`, then constant."""

    start: float
    end: float
    steps: int

    def __post_init__(self):
        if self.steps < 1:
            raise BadInput(f"a linear schedule must take at least 1 step, not {self.steps}")

    def __call__(self, t: Array) -> Array:
        if self.start == self.end:
            return jnp.asarray(self.start, jnp.float32)
        return self.start + (self.end - self.start) * jnp.clip(t / self.steps, 0.0, 1.0).astype(jnp.float32)


def constant(value: float) -> Linear:
    return Linear(value, value, 1)


@dataclass(frozen=True)
class Optimism:
    """Acting with the mean moved towards actions that might be good (Ciosek et al. 2019)."""

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
