"""What the tests of the pixel agents share: small images, small agents, batches of noise."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from core_helpers import shrink
from maxinforl.algorithms import algorithm
from maxinforl.core.types import Backup, Batch, Spec

SPEC = Spec((16, 16, 3), 2)
LATENT = 8


def small(agent):
    """The same agent with small networks."""
    agent = shrink(agent)
    return replace(agent, base=replace(agent.base, encoder=replace(agent.base.encoder, latent=LATENT)))


def named(algo: str, **base):
    agent = small(algorithm(algo))
    return replace(agent, base=replace(agent.base, **base))


def images(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.integers(0, 256, shape), jnp.uint8)


def batches(nstep: int, count: int | None = 1, size: int = 6, seed: int = 0, gamma: float = 0.9, spec=SPEC) -> Batch:
    """Transitions between random images; half of the one-step backups and of the n-step ones terminate."""
    rng = np.random.default_rng(seed)
    lead = (size,) if count is None else (count, size)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32)

    def backup(discount: float) -> Backup:
        going = jnp.asarray(rng.random(lead) > 0.5, jnp.float32)
        return Backup(draw(), discount * going, images(rng, *lead, *spec.obs))

    later = backup(gamma**nstep) if nstep > 1 else None
    action = jnp.tanh(draw(spec.action))
    obs = images(rng, *lead, *spec.obs)
    return Batch(obs, action, backup(gamma), later, jnp.full(lead, gamma, jnp.float32))
