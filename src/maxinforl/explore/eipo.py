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
from maxinforl.explore.strategy import SECOND_LEARNER, Intrinsic, IntrinsicState

GREEDY = Shaping(entropy=None)


class EipoState(eqx.Module):
    mixed: IntrinsicState
    greedy: Learner

    @property
    def learner(self) -> Learner:
        """The mixed policy acts; the greedy one only measures the constraint."""
        return self.mixed.learner

    @property
    def model(self) -> Any:
        return self.mixed.model


@dataclass(frozen=True)
class Eipo(Intrinsic[EipoState]):
    """The intrinsic sum, with lambda holding the mixed policy's task value at the greedy agent's."""

    weight: Fixed | Tuned = Tuned()

    def __post_init__(self):
        super().__post_init__()
        _ = self.mixed  # checks the weight

    @property
    def mixed(self) -> IntrinsicSum:
        return IntrinsicSum(self.base, self.intrinsic, self.weight)

    @property
    def greedy(self) -> ActorCritic:
        return replace(self.base, channels=1)

    def init(self, key: Array, spec: Spec) -> EipoState:
        return EipoState(self.mixed.init(key, spec), self.greedy.init(jax.random.fold_in(key, SECOND_LEARNER), spec))

    def critic_step(self, s: EipoState, batch: Batch, key: Array, clock: Clock) -> tuple[EipoState, Metrics, Latents]:
        mixed, metrics, latents = self.mixed.critic_step(s.mixed, batch, key, clock)
        k_greedy = jax.random.fold_in(key, SECOND_LEARNER)
        shaping = lambda latents: GREEDY._replace(imagination=self.imagination(s, latents, clock))
        greedy, _, _ = self.greedy.critic_step(s.greedy, batch, k_greedy, clock, shaping)
        return EipoState(mixed, greedy), metrics, latents

    def actor_step(
        self, s: EipoState, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[EipoState, Metrics]:
        mixed, metrics, of_mixed = self.mixed.improve(s.mixed, batch, latents, key, clock)
        k_greedy = jax.random.fold_in(key, SECOND_LEARNER)
        greedy, _, of_greedy = self.greedy.actor_step(s.greedy, batch, latents, k_greedy, clock, GREEDY)
        weight = self.weight.step(mixed.weight, of_mixed.value[0], of_greedy.value[0])
        metrics |= {"explore/value_gap": (of_greedy.value[0] - of_mixed.value[0]).mean()}
        return EipoState(replace(mixed, weight=weight), greedy), metrics
