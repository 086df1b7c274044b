"""When an ensemble of the dynamics may teach the critics: how well it predicts, and how far its members agree."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import Latents, Metrics
from maxinforl.errors import BadInput

MEMORY = 0.99  # of the moving averages, per batch


class TrackRecord(eqx.Module):
    """Of an ensemble and its task so far; the averages begin where no row is trusted."""

    error: Array  # of state and reward: squared, in normalised units, on batches before training on them; averages
    low: Array  # of all rewards
    high: Array
    terminated: Array  # share of transitions, averaged

    def __init__(self):
        self.error, self.terminated = jnp.ones(2, jnp.float32), jnp.zeros((), jnp.float32)
        most = jnp.finfo(jnp.float32).max
        self.low, self.high = jnp.asarray(most, jnp.float32), jnp.asarray(-most, jnp.float32)

    def after(self, error: Array, e: Latents) -> TrackRecord:
        """With a batch more, on which the members had this error per block."""
        assert e.ended is not None
        average = lambda old, new: MEMORY * old + (1 - MEMORY) * new
        error, terminated = average(self.error, error), average(self.terminated, e.ended.mean())
        parts = lambda r: (r.error, r.low, r.high, r.terminated)
        return eqx.tree_at(parts, self, (error, *self.reward_range(e.reward), terminated))

    def reward_range(self, reward: Array) -> tuple[Array, Array]:
        """Of all rewards and of these."""
        return jnp.minimum(self.low, reward.min()), jnp.maximum(self.high, reward.max())

    @property
    def metrics(self) -> Metrics:
        state, reward = self.error
        return {"model/state_error": state, "model/reward_error": reward, "model/terminated": self.terminated}


@dataclass(frozen=True)
class ModelRows:
    """How many rows of a critic's batch the ensemble imagines, and when they count (docs/model-rows.md)."""

    share: float = 0.0  # of the batch
    start: int = 10_000  # updates before imagined rows count
    most_error: float = 0.1  # average squared error of state and of reward; predicting the mean has 1
    most_disagreement: float = 0.3  # of the members about a row: their deviation, averaged over outputs
    most_terminated: float = 0.01  # share of transitions: the ensemble does not predict terminations
    batch_norm: bool = False  # whether bases are allowed whose batch norm the imagined rows enter

    def __post_init__(self):
        if not 0 <= self.share < 1:
            raise BadInput(f"the share of a batch that is imagined must be from 0 to below 1, not {self.share}")
        if self.start < 0:
            raise BadInput(f"model_rows.start must be a number of updates that is not negative, not {self.start}")
        for name in ("most_error", "most_disagreement", "most_terminated"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"model_rows.{name} must be a finite number that is not negative")

    def rows(self, batch_size: int) -> int:
        return round(self.share * batch_size)

    def weight(self, record: TrackRecord, disagreement: Array, update: Array) -> Array:
        """1 / (1 + u) where the members' disagreement u is small, and 0 for all rows before the model is good."""
        good = (update >= self.start) & (record.error <= self.most_error).all()
        good &= record.terminated <= self.most_terminated
        return jnp.where(good & (disagreement <= self.most_disagreement), 1 / (1 + disagreement), 0.0)
