"""What every exploration strategy shares, and the one that does not explore beyond its base."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import equinox as eqx
import jax
from jax import Array

from maxinforl.core.actor_critic import ActorCritic, Learner, own
from maxinforl.core.encoders import States
from maxinforl.core.multiplier import Fixed, Tied, Tuned
from maxinforl.core.normalizer import Normalizer, Standardize
from maxinforl.core.types import Batch, Clock, Imagination, Latents, Metrics, Spec
from maxinforl.errors import BadInput
from maxinforl.intrinsic import Ensemble, InfoGain, IntrinsicReward, MeasuresError, ScoresActions


class StrategyState(Protocol):
    @property
    def learner(self) -> Learner: ...  # the policy that is evaluated


class ModelState(StrategyState, Protocol):
    @property
    def model(self) -> Any: ...  # of the intrinsic reward


# Keys of a strategy's own, which passes its base's key on unchanged. `split(key, n)[i]` is `fold_in(key, i)`, so these
# lie beyond every index that a base splits off.
MODEL, TARGET_POLICY, SECOND_LEARNER, SWITCHING = 1001, 1002, 1003, 1004

S = TypeVar("S", bound=StrategyState)
M = TypeVar("M", bound=ModelState)


@dataclass(frozen=True)
class Strategy(Generic[S]):
    """An agent over a base, whose state is an `S`."""

    base: ActorCritic = ActorCritic()

    def init(self, key: Array, spec: Spec) -> S:
        raise NotImplementedError  # pragma: no cover

    def act(self, s: S, obs: Array, key: Array, clock: Clock, *, explore: bool, noise: Array | None = None) -> Array:
        return self.base.act(s.learner, obs, key, clock, explore=explore, noise=noise)

    def preprocess(self, batch: Batch, key: Array) -> Batch:
        return self.base.preprocess(batch, key)

    def observe(self, s: S, obs: Array, sums: Array | None = None, valid: Array | None = None) -> S:
        """What is inserted into the replay enters the running statistics of every learner."""
        if not self.base.observes:
            return s
        return each_learner(lambda learner, _: self.base.observe(learner, obs, sums, valid), s)

    def begin_afresh(self, s: S, key: Array, spec: Spec) -> S:
        """New networks for every learner. Intrinsic models, weights and statistics stay: what is known is known."""
        return each_learner(lambda learner, i: self.base.begin_afresh(learner, own(key, i), spec), s)

    def critic_step(self, s: S, batch: Batch, key: Array, clock: Clock) -> tuple[S, Metrics, Latents]:
        raise NotImplementedError  # pragma: no cover

    def actor_step(self, s: S, batch: Batch, latents: Latents, key: Array, clock: Clock) -> tuple[S, Metrics]:
        raise NotImplementedError  # pragma: no cover

    def model_step(self, s: S, latents: Latents) -> tuple[S, Metrics]:
        """One training step of the intrinsic model, after the critic and the actor have used it."""
        return s, {}

    @property
    def measures_error(self) -> bool:
        """Whether `recent_error` may be called."""
        return False

    def recent_error(self, s: S, batch: Batch) -> Metrics:
        """How wrong the intrinsic model is about transitions it has hardly trained on."""
        raise NotImplementedError  # pragma: no cover

    @property
    def most_terminated(self) -> float | None:
        """The share of transitions that may terminate while imagined rows count; None where no row is imagined."""
        return None

    @property
    def can_score(self) -> bool:
        """Whether `score` may be called."""
        return False

    def score(self, s: S, obs: Array, action: Array) -> Array:
        """The intrinsic reward of actions in [-1, 1], taken or not, before standardisation."""
        raise NotImplementedError  # pragma: no cover


def each_learner(change: Callable[[Learner, int], Learner], state: Any) -> Any:
    """A strategy's state with every learner in it changed; the function also gets the number of the learner."""
    is_learner = lambda part: isinstance(part, Learner)
    leaves, structure = jax.tree.flatten(state, is_leaf=is_learner)
    number = itertools.count()
    return jax.tree.unflatten(structure, [change(x, next(number)) if is_learner(x) else x for x in leaves])


class PlainState(eqx.Module):
    learner: Learner


@dataclass(frozen=True)
class Plain(Strategy[PlainState]):
    """No directed exploration: the base alone."""

    def init(self, key: Array, spec: Spec) -> PlainState:
        return PlainState(self.base.init(key, spec))

    def critic_step(self, s: PlainState, batch: Batch, key: Array, clock: Clock) -> tuple[PlainState, Metrics, Latents]:
        learner, metrics, latents = self.base.critic_step(s.learner, batch, key, clock)
        return PlainState(learner), metrics, latents

    def actor_step(
        self, s: PlainState, batch: Batch, latents: Latents, key: Array, clock: Clock
    ) -> tuple[PlainState, Metrics]:
        learner, metrics, _ = self.base.actor_step(s.learner, batch, latents, key, clock)
        return PlainState(learner), metrics


@dataclass(frozen=True)
class Intrinsic(Strategy[M]):
    """A strategy with an intrinsic model."""

    intrinsic: IntrinsicReward = InfoGain()

    needs_score = False  # whether the strategy scores actions that were never taken

    def __post_init__(self):
        if self.needs_score and not isinstance(self.intrinsic, ScoresActions):
            raise BadInput(
                f"{type(self).__name__} scores actions that were never taken, and {type(self.intrinsic).__name__} does "
                "not implement score(): choose info-gain, disagreement or rnd"
            )
        if isinstance(self.intrinsic, Ensemble) and self.intrinsic.model_rows.share:
            self.check_imagination(self.intrinsic)

    @property
    def most_terminated(self) -> float | None:
        rows = self.intrinsic.model_rows if isinstance(self.intrinsic, Ensemble) else None
        return rows.most_terminated if rows is not None and rows.share else None

    def check_imagination(self, intrinsic: Ensemble) -> None:
        if not isinstance(self.base.encoder, States):
            raise BadInput(
                "--model-share imagines observations that are vectors, and this base has an encoder: leave it out, or "
                "choose a base that learns from states, such as sac"
            )
        if self.base.of_critic.batch_norm and not intrinsic.model_rows.batch_norm:
            raise BadInput(
                "imagined rows would enter the batch norm of this base's critics: leave out --model-share, or allow it "
                "with --set intrinsic.model_rows.batch_norm=true"
            )

    def imagination(self, s: M, latents: Latents, clock: Clock) -> Imagination | None:
        """The rows of the task's critics that the intrinsic model imagines."""
        return self.intrinsic.imagination(s.model, latents, clock) if isinstance(self.intrinsic, Ensemble) else None

    def init_model(self, key: Array, spec: Spec) -> Any:
        return self.intrinsic.init(jax.random.fold_in(key, MODEL), self.base.encoder.latents(spec))

    def init_scale(self) -> Normalizer:
        """Of the intrinsic reward, as it asks for itself."""
        return Normalizer(rule=getattr(self.intrinsic, "normalize", Standardize()))

    def model_step(self, s: M, latents: Latents) -> tuple[M, Metrics]:
        model, metrics = self.intrinsic.update(s.model, latents)
        return eqx.tree_at(lambda s: s.model, s, model), metrics

    @property
    def measures_error(self) -> bool:
        return isinstance(self.intrinsic, MeasuresError)

    def recent_error(self, s: M, batch: Batch) -> Metrics:
        """Where the model imagines rows, beside the error of predicting the mean."""
        assert isinstance(self.intrinsic, MeasuresError)
        latents = self.base.latents(s.learner, batch)
        found = {"explore/recent_error": self.intrinsic.error(s.model, latents)}
        if isinstance(self.intrinsic, Ensemble) and self.intrinsic.model_rows.share:
            found["model/recent_error_of_mean"] = self.intrinsic.error_of_mean(s.model, latents)
        return found

    @property
    def can_score(self) -> bool:
        return isinstance(self.intrinsic, ScoresActions)

    def score(self, s: M, obs: Array, action: Array) -> Array:
        assert isinstance(self.intrinsic, ScoresActions)
        z = self.base.encoder.trunk(s.learner.target.critic.trunk, self.base.features(s.learner, obs))
        return self.intrinsic.score(s.model, z, action)


class IntrinsicState(eqx.Module):
    learner: Learner
    model: Any
    scale: Normalizer  # of the intrinsic reward
    weight: Any  # what the weight's `init` gives


@dataclass(frozen=True)
class Weighted(Intrinsic[IntrinsicState]):
    """One learner, with a weight between its task and intrinsic values."""

    weight: Tuned | Fixed | Tied = Tuned()

    @property
    def learner(self) -> ActorCritic:
        """The base with as many value channels as the strategy needs."""
        raise NotImplementedError  # pragma: no cover

    def init(self, key: Array, spec: Spec) -> IntrinsicState:
        return IntrinsicState(
            self.learner.init(key, spec), self.init_model(key, spec), self.init_scale(), self.weight.init()
        )
