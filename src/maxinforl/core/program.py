"""The compiled functions of an agent, and the form in which a train state passes through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import clock
from maxinforl.core.update import INIT, StepFunctions, TrainState, stream
from maxinforl.replay import Replay
from maxinforl.transition import Transition

RECENT = 64  # transitions on which the intrinsic model's error is measured
ONCE = {"xla_backend_optimization_level": 0}  # for programs that run once: they compile in half the time
PER_SEED = TrainState(0, 0, None, 0, 0, 0, None)  # type: ignore[arg-type]


@jax.tree_util.register_pytree_node_class
class Packed:
    """A train state as a flat tuple of arrays between two dispatches.

    `jit` flattens modules in Python and tuples in C++, which saves half a millisecond of every agent step.
    """

    def __init__(self, leaves: tuple, structure: Any):
        self.leaves, self.structure = leaves, structure

    def tree_flatten(self) -> tuple[tuple, Any]:
        return self.leaves, self.structure

    @classmethod
    def tree_unflatten(cls, structure: Any, leaves: Iterable) -> Packed:
        return cls(tuple(leaves), structure)

    @property
    def whole(self) -> TrainState:
        return jax.tree.unflatten(self.structure, self.leaves)

    agent = property(lambda self: self.whole.agent)
    replay = property(lambda self: self.whole.replay)
    clock = property(lambda self: self.whole.clock)
    seed = property(lambda self: self.whole.seed)
    noise = property(lambda self: self.whole.noise)
    sums = property(lambda self: self.whole.sums)
    prior = property(lambda self: self.whole.prior)


def pack(x: Any) -> Any:
    """Arguments or results of a dispatch, with their train states flat."""
    if isinstance(x, TrainState):
        leaves, structure = jax.tree.flatten(x)
        return Packed(tuple(leaves), structure)
    return tuple(map(pack, x)) if type(x) is tuple else x


def unpack(x: Any) -> Any:
    return x.whole if isinstance(x, Packed) else x


@dataclass(frozen=True)
class Program(StepFunctions):
    """The compiled functions of one agent: each is one XLA dispatch, traced once."""

    @cached_property
    def traces(self) -> Counter[str]:
        return Counter()

    def compiled(
        self, name: str, function: Callable, in_axes, out_axes, donate: tuple[int, ...] = (), options: Any = None
    ) -> Callable:
        def counted(*args):
            self.traces[name] += 1
            return function(*args)

        mapped = counted if self.seeds is None else jax.vmap(counted, in_axes, out_axes)
        dispatch = jax.jit(
            lambda *args: pack(mapped(*map(unpack, args))), donate_argnums=donate, compiler_options=options
        )
        return lambda *args: dispatch(*map(pack, args))

    def init(self, seed: Array, replay: Replay, total: int) -> TrainState:
        """A fresh state; outputs of one program share no buffer, so that it can be donated."""
        lanes, now = replay.head.shape[-1], clock(total=total)
        noise, sums = self.init_noise(seed, lanes), self.init_sums(lanes)
        return TrainState(self.init_agent(seed), replay, now, jnp.copy(seed), noise, sums)

    @cached_property
    def init_agent(self) -> Callable:
        """seed -> the agent before it learns, traced once as all else is"""
        init = lambda seed: self.agent.init(stream(seed, INIT), self.spec)
        return jax.jit(init if self.seeds is None else jax.vmap(init), compiler_options=ONCE)

    def init_noise(self, seed: Array, lanes: int) -> Any:
        """Of the behaviour at the first step of all environments, where it is correlated."""
        noise = self.agent.base.action_noise
        if noise is None:
            return ()
        init = lambda seed: noise.init(self.noise_key(seed, 0), lanes, self.spec.action)
        return init(seed) if self.seeds is None else jax.vmap(init)(seed)

    def init_sums(self, lanes: int) -> Any:
        """Of the rewards of the episodes under way, where returns are normalised."""
        lead = () if self.seeds is None else (self.seeds,)
        return jnp.zeros((*lead, lanes), jnp.float32) if self.agent.base.normalize_returns else ()

    def observe_prior(self, state: Any, prior: Replay) -> Any:
        """Agents whose statistics of observations and returns begin with those of the prior data."""
        base, (row,) = self.agent.base, prior.starts[:, : int(prior.pushed[0])]

        def add(total: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
            total = base.gamma * total + x[0]
            return jnp.where(x[1] > 0, 0.0, total), total

        _, sums = jax.lax.scan(add, jnp.float32(0), (prior.reward[0, row], prior.end[0, row]))
        observe = lambda s: self.agent.observe(s, prior.obs[0, row], sums, jnp.ones(row.shape, bool))
        return jax.jit(observe if self.seeds is None else jax.vmap(observe), compiler_options=ONCE)(state)

    # ------------------------------------------------------------ one dispatch per agent step

    @cached_property
    def begin(self) -> Callable:
        """(state, first observations, uniform) -> (state, action)"""

        def begin(s: TrainState, obs: Array, uniform: bool):
            s = replace(s, replay=s.replay.begin(obs), agent=self.agent.observe(s.agent, obs))
            return s, self.select_action(s, uniform=uniform)

        programs = {
            uniform: self.compiled(
                "begin", lambda s, obs, u=uniform: begin(s, obs, u), (PER_SEED, 0), (PER_SEED, 0), (0,), ONCE
            )
            for uniform in (False, True)
        }
        return lambda s, obs, uniform: programs[uniform](s, obs)

    @cached_property
    def step(self) -> Callable:
        """(state, transition) -> (state, action, metrics); the action is NaN where a metric is not finite, so that the
        host needs to read nothing else"""

        def step(s: TrainState, t: Transition):
            s, action, metrics = self.train_step(s, t)
            return s, jnp.where(jnp.isfinite(metrics).all(), action, jnp.nan), metrics

        return self.compiled("step", step, (PER_SEED, 0), (PER_SEED, 0, 0), (0,))

    @cached_property
    def collect(self) -> Callable:
        """(state, transition) -> (state, action), without learning"""
        return self.compiled("collect", self.warmup_step, (PER_SEED, 0), (PER_SEED, 0), (0,))

    @cached_property
    def next_action(self) -> Callable:
        """(state, uniform) -> the action at the newest observation, without a transition"""
        act = lambda uniform: self.compiled("next_action", partial(self.select_action, uniform=uniform), (PER_SEED,), 0)
        programs = {uniform: act(uniform) for uniform in (False, True)}
        return lambda s, uniform: programs[uniform](s)

    @cached_property
    def recent_error(self) -> Callable:
        """state -> metrics: the intrinsic model's error on the newest transitions, asked for once per log line"""

        def error(s: TrainState):
            return self.agent.recent_error(s.agent, s.replay.recent(RECENT, self.agent.base.gamma))

        return self.compiled("recent_error", error, (PER_SEED,), 0)

    # ------------------------------------------------------------ acting for others

    @cached_property
    def act(self) -> Callable:
        """(agent, observations, clock) -> deterministic actions, without randomness."""
        read = self.spec.read
        act = lambda agent, obs, now: self.agent.act(agent, read(obs), jax.random.key(0), now, explore=False)
        return self.compiled("act", act, (0, 0, None), 0)

    @cached_property
    def sample_act(self) -> Callable:
        """(agent, observations, key, clock) -> actions as in training."""
        act = lambda agent, obs, key, now: self.agent.act(agent, self.spec.read(obs), key, now, explore=True)
        return self.compiled("sample_act", act, (0, 0, 0, None), 0)

    @cached_property
    def score(self) -> Callable:
        """(agent, observations, actions in [-1, 1]) -> the intrinsic reward of each, before standardisation."""
        score = lambda agent, obs, action: self.agent.score(agent, self.spec.read(obs), action)
        return self.compiled("score", score, (0, 0, 0), 0)


def shared_program(*configuration: Any) -> Program:
    """The program of a configuration, the fields of `Program` in order.

    Agents of one process that are alike share it, so that they are traced once.
    """
    try:
        hash(configuration)
    except TypeError:  # a part of the user's own holds a list or an array
        return Program(*configuration)
    return _shared(*configuration)


@lru_cache(maxsize=16)
def _shared(*configuration: Any) -> Program:
    return Program(*configuration)
