"""What a strategy asks of an intrinsic reward; a frozen dataclass of the user's own may implement it as well."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jax import Array

from maxinforl.core.types import Latents, LatentSpec, Metrics


@runtime_checkable
class IntrinsicReward(Protocol):
    """A model, its training, and the reward of observed transitions."""

    def init(self, key: Array, spec: LatentSpec) -> Any: ...

    def reward(self, model: Any, e: Latents) -> Array: ...

    def update(self, model: Any, e: Latents) -> tuple[Any, Metrics]: ...


@runtime_checkable
class ScoresActions(IntrinsicReward, Protocol):
    """Also scores actions that were never taken, differentiable in the action: MaxInfo needs it."""

    def score(self, model: Any, z: Array, action: Array) -> Array: ...


@runtime_checkable
class MeasuresError(Protocol):
    """Also says how wrong the model is about transitions; the error is logged."""

    def error(self, model: Any, e: Latents) -> Array: ...
