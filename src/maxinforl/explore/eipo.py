"""EIPO off-policy: explore as long as the task's value stays at that of a purely greedy agent (Chen et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
from jax import Array

from maxinforl.core.actor_critic import ActorCritic, Learner
from maxinforl.core.multiplier import Fixed, Tuned
from maxinforl.core.types import Batch, Clock, Latents, Metrics, Shaping, Spec
from maxinforl.explore.intrinsic_sum import IntrinsicSum
from maxinforl.explore.strategy import Explorer

GREEDY = Shaping(entropy=None)


class Pair(eqx.Module):
    mixed: Explorer
    greedy: Learner

    @property
    def learner(self) -> Learner:
        """The mixed policy acts; the greedy one only measures the constraint."""
        return self.mixed.learner

    @property
    def model(self) -> Any:
        return self.mixed.model


@dataclass(frozen=True)
class Eipo(IntrinsicSum):
    """The intrinsic sum, with lambda holding the mixed policy's task value at the greedy agent's."""

    weight: Fixed | Tuned = Tuned()

    @property
    def alone(self) -> ActorCritic:
        return replace(self.base, channels=1)

    def init(self, key: Array, spec: Spec) -> Pair:  # type: ignore[override]
        return Pair(super().init(key, spec), self.alone.init(jax.random.fold_in(key, 2), spec))

    def critic_step(self, s: Pair, batch: Batch, key: Array, clock: Clock) -> tuple[Pair, Metrics, Latents]:  # type: ignore[override]
        mixed, metrics, latents = super().critic_step(s.mixed, batch, key, clock)
        k_greedy = jax.random.fold_in(key, 2)
        greedy, _, _ = self.alone.critic_step(s.greedy, batch, k_greedy, clock, lambda _: GREEDY)
        return Pair(mixed, greedy), metrics, latents

    def actor_step(self, s: Pair, batch: Batch, latents: Latents, key: Array, clock: Clock) -> tuple[Pair, Metrics]:  # type: ignore[override]
        mixed, metrics, mixture = self.improve(s.mixed, batch, latents, key, clock)
        k_greedy = jax.random.fold_in(key, 2)
        greedy, _, alone = self.alone.actor_step(s.greedy, batch, latents, k_greedy, clock, GREEDY)
        weight = self.weight.step(mixed.weight, mixture.value[0], alone.value[0])
        metrics |= {"explore/value_gap": (alone.value[0] - mixture.value[0]).mean()}
        return Pair(replace(mixed, weight=weight), greedy), metrics

    def model_step(self, s: Pair, latents: Latents) -> tuple[Pair, Metrics]:
        mixed, metrics = super().model_step(s.mixed, latents)
        return replace(s, mixed=mixed), metrics
