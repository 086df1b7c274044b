"""Numbers that change with the number of updates."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from maxinforl.errors import BadInput


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
