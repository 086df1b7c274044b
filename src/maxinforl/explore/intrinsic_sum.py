"""SACIntrinsic: one policy for the sum of the task's value and a non-episodic intrinsic one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.multiplier import LOW, Fixed, Tuned
from maxinforl.core.types import Batch, Clock, Improvement, Latents, Metrics, Shaping
from maxinforl.errors import BadInput
from maxinforl.explore.strategy import IntrinsicState, Weighted


@dataclass(frozen=True)
class IntrinsicSum(Weighted):
    """max E[Q_task + (Q_int - alpha1 log pi) / lambda]; entropy lives with the intrinsic value."""

    weight: Fixed | Tuned = Fixed(1.0)  # lambda, the weight of the task

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.weight, Fixed) and self.weight.number < LOW:
            raise BadInput(f"the intrinsic value is divided by the weight, which must be at least {LOW}")

    @property
    def learner(self) -> ActorCritic:
        """The base with a value channel for the intrinsic reward."""
        return replace(self.base, channels=2)

    def shaping(self, s: IntrinsicState, batch: Batch, reward: Array | None = None) -> Shaping:
        intrinsic = None if reward is None else batch.non_episodic._replace(reward=reward)
        return Shaping((None, intrinsic), (1.0, 1.0 / self.weight.value(s.weight)), entropy=1)

    def critic_step(
        self, s: IntrinsicState, batch: Batch, key: Array, clock: Clock
    ) -> tuple[IntrinsicState, Metrics, Latents]:
        reward = lambda latents: stop_gradient(self.intrinsic.reward(s.model, latents))

        def shaping(latents: Latents) -> Shaping:
            imagined = self.imagination(s, latents, clock)
            return self.shaping(s, batch, s.scale(reward(latents)))._replace(imagination=imagined)

        learner, metrics, latents = self.learner.critic_step(s.learner, batch, key, clock, shaping)
        raw = reward(latents)
        s = replace(s, learner=learner, scale=s.scale.update(raw))
        return s, metrics | {"explore/intrinsic_reward": raw.mean()}, latents

    def improve(
        self, s: IntrinsicState, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[IntrinsicState, Metrics, Improvement]:
        shaping = self.shaping(s, batch)
        learner, metrics, improvement = self.learner.actor_step(s.learner, batch, latents, key, clock, shaping)
        metrics |= {"explore/intrinsic_weight": 1.0 / self.weight.value(s.weight)}
        return replace(s, learner=learner), metrics, improvement

    def actor_step(
        self, s: IntrinsicState, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[IntrinsicState, Metrics]:
        return self.improve(s, batch, latents, key, clock)[:2]
