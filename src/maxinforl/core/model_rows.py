"""The last rows of a critic's batch as a model imagines them (MAD-TD, Voelcker et al. 2025).

Their states are real and their actions are those of the policy as it is now. Only the task's critics learn from them:
the actor, the temperatures, the intrinsic model and all statistics see the batch as it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.types import Backup, Batch, Imagined, Latents, Metrics, Shaping


class CriticRows(NamedTuple):
    """What the critics learn from: `real` sampled rows, then imagined ones."""

    batch: Batch
    latents: Latents
    shaping: Shaping
    real: int
    weight: Array | None  # of each row's loss, [channels, 1, rows]; None: all are real and count alike
    metrics: Metrics

    def mean(self, loss: Array) -> Array:
        """The mean of a loss [channels, critics, rows] over rows by weight and over critics, summed over channels."""
        if self.weight is None:
            return loss.mean((1, 2)).sum()
        return ((self.weight * loss).sum(2) / self.weight.sum(2)).mean(1).sum()


def critic_rows(batch: Batch, latents: Latents, shaping: Shaping, policy: Callable[[Array], Array]) -> CriticRows:
    """The batch as it is or, where the shaping has an imagination, with its last rows imagined.

    Args:
        batch: as it was sampled.
        latents: of the batch.
        shaping: of the losses.
        policy: observations -> fresh actions.
    """
    if shaping.imagination is None:
        return CriticRows(batch, latents, shaping, batch.action.shape[0], None, {})
    count, outcome = shaping.imagination
    action = policy(batch.obs[-count:])
    found = stop_gradient(outcome(batch.obs[-count:], action))
    mixed = with_imagined(batch, action, found)
    return CriticRows(
        mixed,
        latents._replace(action=mixed.action, reward=mixed.one.reward, next_z=mixed.one.next_obs),
        shaping_of(shaping, batch, mixed, count),
        batch.action.shape[0] - count,
        row_weights(shaping, latents, found.weight),
        {"model/used": (found.weight > 0).mean(), "model/disagreement": found.disagreement.mean()},
    )


def with_imagined(batch: Batch, action: Array, found: Imagined) -> Batch:
    """The same states in the last rows, with other actions and one step to what the model says follows."""
    count = action.shape[0]
    last = Backup(found.reward, batch.gamma[-count:], found.next_obs)
    backup = lambda real: Backup(*map(with_last, real, last))
    nstep = None if batch.nstep is None else backup(batch.nstep)
    return batch._replace(action=with_last(batch.action, action), one=backup(batch.one), nstep=nstep)


def with_last(real: Array, last: Array) -> Array:
    return jnp.concatenate([real[: -last.shape[0]], last])


def shaping_of(shaping: Shaping, batch: Batch, mixed: Batch, count: int) -> Shaping:
    """Successors that channels shared stay shared, and no imagined row has a bonus beyond those of the real ones."""

    def backup(own: Backup | None) -> Backup | None:
        shared = own is not None and own.next_obs is batch.task.next_obs
        return own._replace(next_obs=mixed.task.next_obs) if shared else own  # type: ignore[union-attr]

    def bonus(z: Array, action: Array):
        value, aux = shaping.bonus(z, action)  # type: ignore[misc]
        return jnp.clip(value, value[:-count].min(), value[:-count].max()), aux

    bounded = None if shaping.bonus is None else bonus
    return shaping._replace(backup=tuple(map(backup, shaping.backup)), bonus=bounded)


def row_weights(shaping: Shaping, latents: Latents, weight: Array) -> Array:
    """1 for real rows; the model's for imagined ones in the task's channels, where the real transition went on."""
    assert latents.ended is not None
    weight = jnp.where(latents.ended[-weight.shape[0] :], 0.0, weight)
    ones = jnp.ones(latents.reward.shape, jnp.float32)
    task, intrinsic = with_last(ones, weight), with_last(ones, jnp.zeros_like(weight))
    return jnp.stack([task if b is None else intrinsic for b in shaping.backup])[:, None]
