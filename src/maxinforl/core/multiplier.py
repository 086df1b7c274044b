"""One positive number in log space that holds a value at a target: SAC's alpha, MaxInfo's alpha2, EIPO's lambda."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.networks import apply_gradients
from maxinforl.errors import BadInput

LOW, HIGH = 1e-8, 1e8


class Multiplier(eqx.Module):
    log: Array
    opt: Any


@dataclass(frozen=True)
class Tuned:
    """exp(log), moved by Adam so that `value` is held at `target`; falls while value > target."""

    start: float = 1.0
    lr: float = 3e-4
    clip: float | None = None  # bound on the gradient's norm
    b1: float = 0.9  # of Adam (BRO: 0.5)

    def __post_init__(self):
        if not LOW <= self.start <= HIGH:
            raise BadInput(f"a tuned weight must start between {LOW} and {HIGH}, not {self.start}: use Fixed for 0")
        if not 0 < self.lr < float("inf"):
            raise BadInput(f"the learning rate of a tuned weight must be a finite number above 0, not {self.lr}")
        if not 0 <= self.b1 < 1:
            raise BadInput(f"the momentum b1 of a tuned weight must be at least 0 and below 1, not {self.b1}")
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"the bound on the gradient of a tuned weight must be above 0, not {self.clip}")

    @property
    def optimizer(self):
        adam = optax.adam(self.lr, b1=self.b1)
        return adam if self.clip is None else optax.chain(optax.clip_by_global_norm(self.clip), adam)

    def init(self) -> Multiplier:
        log = jnp.log(jnp.asarray(self.start, jnp.float32))
        return Multiplier(log, self.optimizer.init(log))

    def value(self, m: Multiplier) -> Array:
        """The clip bounds the value alone: the gradient of log * slack is the slack, wherever log is."""
        return jnp.exp(jnp.clip(m.log, jnp.log(LOW), jnp.log(HIGH)))

    def step(self, m: Multiplier, value: Array, target: Array | float) -> Multiplier:
        """One step on L(log) = log * sg[value - target]."""
        slack = stop_gradient(jnp.mean(value) - jnp.mean(jnp.asarray(target)))
        return Multiplier(*apply_gradients(self.optimizer, slack, m.opt, m.log))


@dataclass(frozen=True)
class Paired(Tuned):
    """`Tuned` on a difference whose two sides are drawn with the same noise.

    Value and target are the gains of a policy and of its slow copy, which hardly differ: with independent noise the
    estimate of their difference is mostly noise, Adam divides by that noise, and the weight drifts by the clock.
    """


class Constant(eqx.Module):
    value: Array


@dataclass(frozen=True)
class Fixed:
    """A constant, 0 included."""

    number: float = 1.0

    def __post_init__(self):
        if not (self.number >= 0 and self.number < float("inf")):
            raise BadInput(f"a fixed weight must be a finite number that is not negative, not {self.number}")

    def init(self) -> Constant:
        return Constant(jnp.asarray(self.number, jnp.float32))

    def value(self, m: Constant) -> Array:
        return m.value

    def step(self, m: Constant, value: Array, target: Array | float) -> Constant:
        return m


@dataclass(frozen=True)
class Tied:
    """The entropy's own temperature: the paper's one-temperature form (equations 7 and 8). Without a state."""

    def init(self) -> tuple[()]:
        return ()

    def step(self, m: tuple[()], value: Array, target: Array | float) -> tuple[()]:
        return m
