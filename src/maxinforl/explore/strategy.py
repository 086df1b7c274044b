"""What every exploration strategy shares: it is an agent made of an agent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
from jax import Array

from maxinforl.core.actor_critic import ActorCritic, Learner
from maxinforl.core.multiplier import Multiplier
from maxinforl.core.normalizer import Normalizer
from maxinforl.core.types import Batch, Clock, Latents, Metrics, Spec
from maxinforl.errors import BadInput
from maxinforl.intrinsic import Ensemble, InfoGain


@dataclass(frozen=True)
class Strategy:
    """The agent protocol over a base: `init`, `act`, `preprocess`, `critic_step`, `actor_step`, `model_step`."""

    base: ActorCritic = ActorCritic()

    measures_error = False  # whether `recent_error` exists

    def init(self, key: Array, spec: Spec) -> Any:
        raise NotImplementedError  # pragma: no cover

    def act(self, s: Any, obs: Array, key: Array, clock: Clock, *, explore: bool) -> Array:
        return self.base.act(s.learner, obs, key, clock, explore=explore)

    def preprocess(self, batch: Batch, key: Array) -> Batch:
        return self.base.preprocess(batch, key)

    def critic_step(self, s: Any, batch: Batch, key: Array, clock: Clock) -> tuple[Any, Metrics, Latents]:
        raise NotImplementedError  # pragma: no cover

    def actor_step(self, s: Any, batch: Batch, latents: Latents, key: Array, clock: Clock) -> tuple[Any, Metrics]:
        raise NotImplementedError  # pragma: no cover

    def model_step(self, s: Any, latents: Latents) -> tuple[Any, Metrics]:
        """One training step of the intrinsic model, after everything that asked it."""
        return s, {}


class Explorer(eqx.Module):
    learner: Learner
    model: Any
    scale: Normalizer  # of the intrinsic reward
    weight: Multiplier


@dataclass(frozen=True)
class Intrinsic(Strategy):
    """A strategy with an intrinsic model."""

    intrinsic: Ensemble = InfoGain()

    needs_score = False

    def __post_init__(self):
        if self.needs_score and not getattr(self.intrinsic, "scores_actions", True):
            name = type(self.intrinsic).__name__.lower()
            raise BadInput(
                f"{type(self).__name__} scores actions that were never taken, and {name} needs the observed next "
                "state: choose info-gain, disagreement or rnd"
            )

    @property
    def learner(self) -> ActorCritic:
        """The base with as many value channels as the strategy needs."""
        return self.base

    def init(self, key: Array, spec: Spec) -> Explorer:
        model = self.intrinsic.init(jax.random.fold_in(key, 1), self.base.encoder.latents(spec))
        return Explorer(self.learner.init(key, spec), model, Normalizer(), self.weight.init())  # type: ignore[attr-defined]

    @property
    def measures_error(self) -> bool:
        return hasattr(self.intrinsic, "error")

    def recent_error(self, s: Any, batch: Batch) -> Array:
        """How wrong the model is about transitions it has hardly trained on."""
        return self.intrinsic.error(s.model, self.base.latents(s.learner, batch))

    def model_step(self, s: Any, latents: Latents) -> tuple[Any, Metrics]:
        model, metrics = self.intrinsic.update(s.model, latents)
        return replace(s, model=model), metrics
