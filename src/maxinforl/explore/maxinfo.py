"""MaxInfoRL: the information gain joins the soft value, with a weight that tunes itself against the target policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.multiplier import Fixed, Tuned
from maxinforl.core.types import Batch, Clock, Latents, Metrics, Shaping, stop
from maxinforl.errors import BadInput
from maxinforl.explore.strategy import Explorer, Intrinsic


@dataclass(frozen=True)
class Tied(Fixed):
    """The entropy's own temperature: the paper's one-temperature form."""


@dataclass(frozen=True)
class MaxInfo(Intrinsic):
    """max E[sum r + alpha1 H + alpha2 I], I in the value itself (1-step bases) or in its own critic (n-step bases)."""

    weight: Tuned | Fixed | Tied = Tuned()
    target: Callable[[Array, Clock], Array] | None = None  # (target policy's gains, clock) -> what to hold the gain at
    episodic: bool = False  # whether the gain's own critic stops at terminations, as the task's does

    needs_score = True

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.weight, Tied) and not self.base.policy.entropic:
            raise BadInput("a tied weight is the entropy's temperature, which a deterministic policy does not have")

    @property
    def separate(self) -> bool:
        return self.base.nstep > 1

    @property
    def learner(self) -> ActorCritic:
        return replace(self.base, channels=2 if self.separate else 1)

    def alpha2(self, s: Explorer) -> Array:
        if isinstance(self.weight, Tied):
            return stop(jnp.asarray(self.base.temperature(s.learner)))
        return self.weight.value(s.weight)

    def critic_step(self, s: Explorer, batch: Batch, key: Array, clock: Clock) -> tuple[Explorer, Metrics, Latents]:
        alpha2 = self.alpha2(s)

        def shaping(latents: Latents) -> Shaping:
            if not self.separate:
                return Shaping(bonus=lambda z, a: (alpha2 * s.scale(self.intrinsic.score(s.model, z, a)), ()))
            gain = stop(s.scale(self.intrinsic.reward(s.model, latents)))
            backup = (batch.one if self.episodic else batch.endless)._replace(reward=gain)
            return Shaping(backup=(None, backup), weight=(1.0, alpha2))

        learner, metrics, latents = self.learner.critic_step(s.learner, batch, key, clock, shaping)
        return replace(s, learner=learner), metrics, latents

    def actor_step(
        self, s: Explorer, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[Explorer, Metrics]:
        alpha2 = self.alpha2(s)
        slow_action = self.learner.slow_action(s.learner, batch.obs, jax.random.fold_in(key, 1), clock)
        slow_raw = stop(self.intrinsic.score(s.model, latents.z, slow_action))

        def bonus(z: Array, action: Array):
            """alpha2 * gain, standardised with statistics that already hold these very values."""
            raw = self.intrinsic.score(s.model, z, action)
            scale = s.scale.update(jnp.concatenate([raw, slow_raw]))
            return alpha2 * scale(raw), (scale, raw)

        shaping = Shaping((None, None), (1.0, alpha2)) if self.separate else Shaping(bonus=bonus)
        learner, metrics, improvement = self.learner.actor_step(s.learner, batch, latents, key, clock, shaping)
        scale, raw = stop(bonus(latents.z, improvement.action)[1] if self.separate else improvement.aux)
        slow_gain = scale(slow_raw)
        held_at = slow_gain if self.target is None else self.target(slow_gain, clock)
        weight = self.weight.step(s.weight, scale(raw), held_at)
        s = replace(s, learner=learner, scale=scale, weight=weight)
        gains = {"explore/info_gain": raw.mean(), "explore/info_gain_target": slow_raw.mean()}
        return s, metrics | gains | {"explore/alpha2": self.alpha2(s)}
