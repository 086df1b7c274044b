"""MaxInfoRL: the information gain joins the soft value, with a weight that tunes itself against the target policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.actor_critic import ActorCritic, actor_keys
from maxinforl.core.multiplier import Fixed, Paired, Tied, Tuned
from maxinforl.core.types import Batch, Clock, Latents, Metrics, Shaping
from maxinforl.errors import BadInput
from maxinforl.explore.strategy import TARGET_POLICY, IntrinsicState, Weighted
from maxinforl.intrinsic import InfoGain, ScoresActions


@dataclass(frozen=True)
class MaxInfo(Weighted):
    """max E[sum r + alpha1 H + alpha2 I].

    I lies in the value itself or, for n-step returns and deterministic policies, in a critic of its own.
    """

    intrinsic: ScoresActions = InfoGain()
    weight: Tuned | Fixed | Tied = Tuned()
    target: Callable[[Array, Clock], Array] | None = None  # (target policy's gains, clock) -> what to hold the gain at
    episodic: bool = False  # whether the gain's own critic stops at terminations, as the task's does
    separate: bool = False  # whether the gain has a critic of its own, as it always has on n-step returns

    needs_score = True

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.weight, Tied) and not self.base.policy.entropic:
            raise BadInput("a tied weight is the entropy's temperature, which a deterministic policy does not have")
        if isinstance(self.weight, Tuned) and self.target is None and (self.base.actor_tau or self.base.tau) == 1:
            raise BadInput("a target policy that does not lag cannot tune the weight: lower base.actor_tau")

    @property
    def own_critic(self) -> bool:
        """Whether the gain has a critic of its own: n-step returns need it, and supports that the task alone fills."""
        return self.separate or self.base.nstep > 1 or self.base.head.reach is not None

    @property
    def learner(self) -> ActorCritic:
        return replace(self.base, channels=2 if self.own_critic else 1)

    def alpha2(self, s: IntrinsicState) -> Array:
        if isinstance(self.weight, Tied):
            return stop_gradient(jnp.asarray(self.base.temperature(s.learner)))
        return self.weight.value(s.weight)

    def critic_step(
        self, s: IntrinsicState, batch: Batch, key: Array, clock: Clock
    ) -> tuple[IntrinsicState, Metrics, Latents]:
        alpha2 = self.alpha2(s)

        def shaping(latents: Latents) -> Shaping:
            imagined = self.imagination(s, latents, clock)
            if not self.own_critic:
                bonus = lambda z, a: (alpha2 * s.scale(self.intrinsic.score(s.model, z, a)), ())
                return Shaping(bonus=bonus, imagination=imagined)
            gain = stop_gradient(s.scale(self.intrinsic.reward(s.model, latents)))
            backup = (batch.one if self.episodic else batch.non_episodic)._replace(reward=gain)
            return Shaping(backup=(None, backup), weight=(1.0, alpha2), imagination=imagined)

        learner, metrics, latents = self.learner.critic_step(s.learner, batch, key, clock, shaping)
        return replace(s, learner=learner), metrics, latents

    def actor_step(
        self, s: IntrinsicState, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[IntrinsicState, Metrics]:
        alpha2 = self.alpha2(s)
        k_target = actor_keys(key)[0] if isinstance(self.weight, Paired) else jax.random.fold_in(key, TARGET_POLICY)
        target_action = self.learner.target_action(s.learner, batch.obs, k_target, clock)
        target_raw = stop_gradient(self.intrinsic.score(s.model, latents.z, target_action))

        def bonus(z: Array, action: Array):
            """alpha2 * gain, standardised with statistics that already hold these very values."""
            raw = self.intrinsic.score(s.model, z, action)
            scale = s.scale.update(jnp.concatenate([raw, target_raw]))
            return alpha2 * scale(raw), (scale, raw)

        shaping = Shaping((None, None), (1.0, alpha2)) if self.own_critic else Shaping(bonus=bonus)
        learner, metrics, improvement = self.learner.actor_step(s.learner, batch, latents, key, clock, shaping)
        scale, raw = stop_gradient(bonus(latents.z, improvement.action)[1] if self.own_critic else improvement.aux)
        target_gain = scale(target_raw)
        held_at = target_gain if self.target is None else self.target(target_gain, clock)
        weight = self.weight.step(s.weight, scale(raw), held_at)
        s = replace(s, learner=learner, scale=scale, weight=weight)
        gains = {"explore/info_gain": raw.mean(), "explore/info_gain_target": target_raw.mean()}
        return s, metrics | gains | {"explore/alpha2": self.alpha2(s)}
