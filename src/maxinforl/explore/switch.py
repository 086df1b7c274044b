"""Two agents on one buffer, one for the task and one for what is unknown; a schedule says who acts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.actor_critic import ActorCritic, Learner
from maxinforl.core.multiplier import Tuned
from maxinforl.core.types import PLAIN, Batch, Clock, Latents, Metrics, Shaping, Spec
from maxinforl.errors import BadInput
from maxinforl.explore.strategy import SECOND_LEARNER, SWITCHING, Intrinsic
from maxinforl.fields import later
from maxinforl.intrinsic import Disagreement, IntrinsicReward


def check_period(period: int) -> None:
    if period < 1:
        raise BadInput(f"schedule.period must be at least 1, not {period}")


@dataclass(frozen=True)
class Then:
    """Explore for the first part of training, exploit afterwards."""

    fraction: float = 0.25
    period: int = 1

    def __post_init__(self):
        check_period(self.period)
        if not 0 <= self.fraction <= 1:
            raise BadInput(f"schedule.fraction must lie between 0 and 1, not {self.fraction}")

    def __call__(self, remaining: Array) -> Array:
        return (remaining > 1 - self.fraction).astype(jnp.float32)


@dataclass(frozen=True)
class Epsilon:
    """Explore a round with a probability that falls from `start` to `end` when `at` of training remains, then to 0."""

    start: float = 1.0
    end: float = 0.1
    at: float = 0.25
    period: int = 32

    def __post_init__(self):
        check_period(self.period)
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1 and 0 <= self.at < 1):
            raise BadInput("schedule.start, schedule.end and schedule.at must lie between 0 and 1, `at` below 1")

    def __call__(self, remaining: Array) -> Array:
        return jnp.maximum(0.0, (self.start - self.end) * (remaining - self.at) / (1 - self.at) + self.end)


class SwitchState(eqx.Module):
    task: Learner
    curious: Learner
    model: Any
    dice: Array  # key data: who acts is a function of the seed and the round alone
    scale: Any  # normaliser of the intrinsic reward, or () where it is raw

    @property
    def learner(self) -> Learner:
        return self.task


@dataclass(frozen=True)
class Switch(Intrinsic[SwitchState]):
    """One agent maximises the task's reward, the other the intrinsic one; both learn from every batch."""

    intrinsic: IntrinsicReward = Disagreement()
    schedule: Then | Epsilon = Epsilon()
    normalized: bool = later(True, before=False)  # the explorer's reward; the authors' code leaves it raw
    explorer_alpha: float | None = later(0.1, before=None)  # the explorer's first temperature; None: the base's own

    @property
    def explorer(self) -> ActorCritic:
        """The base, with a temperature that does not drown an intrinsic reward of unit spread."""
        if self.explorer_alpha is None or not isinstance(self.base.alpha, Tuned):
            return self.base
        return replace(self.base, alpha=replace(self.base.alpha, start=self.explorer_alpha))

    def init(self, key: Array, spec: Spec) -> SwitchState:
        curious = self.explorer.init(jax.random.fold_in(key, SECOND_LEARNER), spec)
        dice = jax.random.key_data(jax.random.fold_in(key, SWITCHING))
        scale = self.init_scale() if self.normalized else ()
        return SwitchState(self.base.init(key, spec), curious, self.init_model(key, spec), dice, scale)

    def exploring(self, s: SwitchState, clock: Clock) -> Array:
        """Whether the round that `clock.step` lies in explores."""
        turn = clock.step // self.schedule.period
        remaining = 1 - turn * self.schedule.period / jnp.maximum(clock.total, 1)
        draw = jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(s.dice), turn))
        return draw < self.schedule(remaining)

    def act(
        self, s: SwitchState, obs: Array, key: Array, clock: Clock, *, explore: bool, noise: Array | None = None
    ) -> Array:
        task = self.base.act(s.task, obs, key, clock, explore=explore, noise=noise)
        if not explore:
            return task
        curious = self.explorer.act(s.curious, obs, key, clock, explore=True, noise=noise)
        return jnp.where(self.exploring(s, clock), curious, task)

    def critic_step(
        self, s: SwitchState, batch: Batch, key: Array, clock: Clock
    ) -> tuple[SwitchState, Metrics, Latents]:
        taught = lambda latents: PLAIN._replace(imagination=self.imagination(s, latents, clock))
        task, metrics, latents = self.base.critic_step(s.task, batch, key, clock, taught)
        raw = stop_gradient(self.intrinsic.reward(s.model, latents))
        scale = s.scale.update(raw) if self.normalized else ()
        shaping = Shaping(backup=(batch.one._replace(reward=s.scale(raw) if self.normalized else raw),))
        k_curious = jax.random.fold_in(key, SECOND_LEARNER)
        curious, _, _ = self.explorer.critic_step(s.curious, batch, k_curious, clock, lambda _: shaping)
        s = replace(s, task=task, curious=curious, scale=scale)
        return s, metrics | {"explore/intrinsic_reward": raw.mean()}, latents

    def actor_step(
        self, s: SwitchState, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[SwitchState, Metrics]:
        task, metrics, _ = self.base.actor_step(s.task, batch, latents, key, clock)
        k_curious = jax.random.fold_in(key, SECOND_LEARNER)
        curious, _, _ = self.explorer.actor_step(s.curious, batch, latents, k_curious, clock)
        share = self.exploring(s, clock).astype(jnp.float32)
        return replace(s, task=task, curious=curious), metrics | {"explore/exploring": share}
