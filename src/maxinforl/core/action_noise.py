"""Noise of the behaviour that is correlated along an episode: pink, or an Ornstein-Uhlenbeck process."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.errors import BadInput

OCTAVES = tuple(0.5 * 2.0**k for k in range(12))  # correlation times from half a step to a thousand


@dataclass(frozen=True)
class CorrelatedNoise:
    """A sum of AR(1) processes, one per correlation time: standard normal at every step of an episode of any length.

    With one process per octave the power spectrum falls as 1/f: pink noise (Eberhard et al. 2023), within 1 dB from a
    thousandth of the sampling rate up to half of it. One process is an Ornstein-Uhlenbeck process.
    """

    times: tuple[float, ...] = OCTAVES  # correlation times in agent steps

    def __post_init__(self):
        if not self.times or not all(0 < t < float("inf") for t in self.times):
            raise BadInput("the correlation times of action noise must be finite numbers of steps above 0")

    @property
    def decay(self) -> Array:
        return jnp.exp(-1.0 / jnp.asarray(self.times, jnp.float32))

    def init(self, key: Array, lanes: int, actions: int) -> Array:
        """The processes at the start of an episode: [environments, actions, processes]."""
        return jax.random.normal(key, (lanes, actions, len(self.times)))

    def advance(self, state: Array, key: Array, ended: Array) -> Array:
        """One step later; afresh where an episode ended."""
        fresh = jax.random.normal(key, state.shape)
        going = self.decay * state + jnp.sqrt(1 - self.decay**2) * fresh
        return jnp.where(ended[:, None, None], fresh, going)

    def __call__(self, state: Array) -> Array:
        """Standard normal noise for every action: [environments, actions]."""
        return state.sum(-1) / math.sqrt(len(self.times))


PINK, ORNSTEIN_UHLENBECK = CorrelatedNoise(), CorrelatedNoise(times=(1 / 0.15,))
