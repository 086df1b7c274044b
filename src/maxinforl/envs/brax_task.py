"""Brax environments behind the protocol of the pure tasks."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.envs.draw import Rod
from maxinforl.errors import BadInput, missing_extra, unknown


@dataclass(frozen=True)
class BraxTask:
    """A registered Brax environment without its wrappers; `done` terminates and 1000 steps are the limit."""

    name: str
    action_bound = 1.0
    time_limit = 1000

    def __post_init__(self):
        self.env  # noqa: B018  (a wrong name must fail here and not under jit)

    @cached_property
    def env(self) -> Any:
        try:
            from brax import envs
        except ImportError as error:
            raise missing_extra("brax", f"the environment 'brax/{self.name}'") from error
        if self.name not in envs._envs:
            raise unknown("environment", f"brax/{self.name}", (f"brax/{known}" for known in envs._envs))
        return envs.get_environment(self.name)

    @property
    def summary(self) -> str:
        return f"Brax's {self.name}"

    @property
    def dt(self) -> float:
        return float(self.env.dt)

    @property
    def observation_size(self) -> int:
        return self.env.observation_size

    @property
    def action_size(self) -> int:
        return self.env.action_size

    def reset(self, key: Array) -> Any:
        return self.env.reset(key)

    def observe(self, state: Any) -> Array:
        return state.obs

    def step(self, state: Any, action: Array) -> tuple[Any, Array, Array]:
        after = self.env.step(state, action)
        # some of its rewards are plain floats
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        return after, after.reward, after.done > 0

    def rods(self, state: Any) -> list[Rod]:
        raise BadInput(f"brax/{self.name} cannot be rendered here")
