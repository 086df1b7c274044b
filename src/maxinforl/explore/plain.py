"""No directed exploration: the base alone."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
from jax import Array

from maxinforl.core.actor_critic import Learner
from maxinforl.core.types import Batch, Clock, Latents, Metrics, Spec
from maxinforl.explore.strategy import Strategy


class Alone(eqx.Module):
    learner: Learner


@dataclass(frozen=True)
class Plain(Strategy):
    def init(self, key: Array, spec: Spec) -> Alone:
        return Alone(self.base.init(key, spec))

    def critic_step(self, s: Alone, batch: Batch, key: Array, clock: Clock) -> tuple[Alone, Metrics, Latents]:
        learner, metrics, latents = self.base.critic_step(s.learner, batch, key, clock)
        return Alone(learner), metrics, latents

    def actor_step(self, s: Alone, batch: Batch, latents: Latents, key: Array, clock: Clock) -> tuple[Alone, Metrics]:
        learner, metrics, _ = self.base.actor_step(s.learner, batch, latents, key, clock)
        return Alone(learner), metrics
