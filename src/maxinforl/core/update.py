"""Everything that is jitted or donated: what happens in one step of an agent's life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import Batch, Clock, Metrics, Spec, clock
from maxinforl.replay import Replay
from maxinforl.transition import Transition

INIT, STEP = 0, 1  # streams of random numbers
LOOK = 16  # agent steps between two looks at all weights and moments
RECENT = 64  # transitions on which the intrinsic model's error is measured
ONCE = {"xla_backend_optimization_level": 0}  # for programs that run once: they compile in half the time


def stream(seed: Array, name: int, step: Array | int = 0) -> Array:
    """The key of a stream at a step: all randomness is a function of (seed, step)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), name), step)


def update(agent: Any, state: Any, batches: Batch, key: Array, now: Clock) -> tuple[Any, Metrics]:
    """A critic step on each of `batches`, an actor step on the last, and the intrinsic model after each."""
    count = batches.action.shape[0]
    k_view, k_critic, k_actor = jax.random.split(key, 3)

    def evaluate(state, batch: Batch, i: Array | int):
        at = now._replace(update=now.update + i)
        batch = agent.preprocess(batch, jax.random.fold_in(k_view, i))
        state, metrics, latents = agent.critic_step(state, batch, jax.random.fold_in(k_critic, i), at)
        return state, metrics, latents, batch, at

    def without_actor(state, x):
        state, _, latents, _, _ = evaluate(state, *x)
        return agent.model_step(state, latents)[0], None

    if count > 1:
        early = jax.tree.map(lambda x: x[:-1], batches)
        state, _ = jax.lax.scan(without_actor, state, (early, jnp.arange(count - 1)))
    last = jax.tree.map(lambda x: x[-1], batches)
    state, metrics, latents, batch, at = evaluate(state, last, count - 1)
    state, more = agent.actor_step(state, batch, latents, k_actor, at)
    state, model = agent.model_step(state, latents)
    return state, metrics | more | model


def all_finite(tree: Any) -> Array:
    """Whether every float of a tree is finite."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all()


def kept_finite(old: Any, fresh: Any, metrics: Metrics) -> tuple[Any, Metrics]:
    """The fresh state where all of it is finite, else the old one, with the share of updates that were skipped.

    Metrics of a skipped update are 0, for sums that are divided by how many were not.
    """
    good = all_finite((fresh, metrics))
    state = jax.tree.map(lambda o, f: jnp.where(good, f, o), old, fresh)
    metrics = {name: jnp.where(good, value, 0.0) for name, value in metrics.items()}
    return state, metrics | {"train/skipped": 1.0 - good}


class TrainState(eqx.Module):
    """All that training is: with several seeds every leaf but the clock has a leading axis of seeds."""

    agent: Any
    replay: Replay
    clock: Clock
    seed: Array


PER_SEED = TrainState(0, 0, None, 0)  # type: ignore[arg-type]


@jax.tree_util.register_pytree_node_class
class Packed:
    """A train state between two dispatches, in pieces: JAX takes modules apart in Python and a tuple in C++, which
    saves half a millisecond of every agent step."""

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


def pack(x: Any) -> Any:
    """What goes into or comes out of a dispatch, with its train state in pieces."""
    if isinstance(x, TrainState):
        leaves, structure = jax.tree.flatten(x)
        return Packed(tuple(leaves), structure)
    return tuple(map(pack, x)) if type(x) is tuple else x


def unpack(x: Any) -> Any:
    return x.whole if isinstance(x, Packed) else x


@dataclass(frozen=True)
class Program:
    """The compiled functions of one agent: each is one XLA dispatch, traced once."""

    agent: Any
    spec: Spec
    batch_size: int = 256
    updates: int = 1  # critic updates per dispatch: environments x update ratio
    seeds: int | None = None  # None: one seed, no seed axis
    skip_nan: bool = False  # whether an update with a number that is not finite is undone and counted

    @cached_property
    def traces(self) -> Counter[str]:
        return Counter()

    @cached_property
    def metric_names(self) -> list[str]:
        """Names of the entries of the metrics vector, known once `step` is traced."""
        return []

    @property
    def rounds(self) -> int:
        """Actor steps per dispatch: one per `utd` critic steps or somewhat more, and at least one."""
        most = self.updates // self.agent.base.utd
        return next((r for r in range(most, 0, -1) if self.updates % r == 0), 1)

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
        init = lambda seed: self.agent.init(stream(seed, INIT), self.spec)
        agent = jax.jit(init if self.seeds is None else jax.vmap(init), compiler_options=ONCE)(seed)
        return TrainState(agent, replay, clock(total=total), jnp.copy(seed))

    # ------------------------------------------------------------ one dispatch per agent step

    def behave(self, s: TrainState, *, uniform: bool) -> Array:
        key = jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 0)
        obs = s.replay.latest()
        if uniform:
            return jax.random.uniform(key, (obs.shape[0], self.spec.action), minval=-1.0, maxval=1.0)
        return self.agent.act(s.agent, obs, key, s.clock, explore=True)

    def insert(self, s: TrainState, t: Transition) -> TrainState:
        tick = s.clock._replace(step=s.clock.step + t.reward.shape[0])
        return TrainState(s.agent, s.replay.add(t), tick, s.seed)

    def draw(self, s: TrainState, i: Array | int) -> tuple[Batch, Array]:
        """The batches of a round of updates at a step, and the key of those updates."""
        k_sample, k_update = jax.random.split(jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 1))
        shape, base = (self.updates // self.rounds, self.batch_size), self.agent.base
        batches = s.replay.sample(jax.random.fold_in(k_sample, i), shape, base.gamma, base.nstep)
        return batches, jax.random.fold_in(k_update, i)

    def learn(self, s: TrainState) -> tuple[TrainState, Metrics]:
        """`updates` critic steps on fresh batches, in rounds that each end with an actor step."""

        def one(carry, i):
            agent, now = carry
            batches, key = self.draw(s, i)
            fresh, metrics = update(self.agent, agent, batches, key, now)
            agent, metrics = kept_finite(agent, fresh, metrics) if self.skip_nan else (fresh, metrics)
            return (agent, now._replace(update=now.update + self.updates // self.rounds)), metrics

        if self.rounds == 1:
            (agent, now), metrics = one((s.agent, s.clock), 0)
        else:
            (agent, now), metrics = jax.lax.scan(one, (s.agent, s.clock), jnp.arange(self.rounds))
            metrics = jax.tree.map(lambda m: m.mean(0), metrics)
        return TrainState(agent, s.replay, now, s.seed), metrics

    @cached_property
    def begin(self) -> Callable:
        """(state, first observations, uniform) -> (state, action)"""

        def begin(s: TrainState, obs: Array, uniform: bool):
            s = TrainState(s.agent, s.replay.begin(obs), s.clock, s.seed)
            return s, self.behave(s, uniform=uniform)

        programs = {
            uniform: self.compiled(
                "begin", lambda s, obs, u=uniform: begin(s, obs, u), (PER_SEED, 0), (PER_SEED, 0), (0,), ONCE
            )
            for uniform in (False, True)
        }
        return lambda s, obs, uniform: programs[uniform](s, obs)

    def live(self, s: TrainState, t: Transition) -> tuple[TrainState, Array, Array]:
        """Insert, sample, update, act; the third is the vector of metrics and, last, `flaw`."""
        s, metrics = self.learn(self.insert(s, t))
        self.metric_names[:] = sorted(metrics)
        values = [*(metrics[name] for name in self.metric_names), self.flaw(s)]
        return s, self.behave(s, uniform=False), jnp.stack([jnp.asarray(value, jnp.float32) for value in values])

    def flaw(self, s: TrainState) -> Array:
        """NaN where a number of the agent is not finite, which is looked at every `LOOK` steps, else 0.

        Looking costs 3 to 7 % of a step; what spoils a loss or an action is seen at once without it.
        """
        if self.skip_nan:  # never kept
            return jnp.float32(0)
        look = s.clock.step // s.replay.obs.shape[0] % LOOK == 0
        return jnp.where(jax.lax.cond(look, all_finite, lambda _: jnp.array(True), s.agent), 0.0, jnp.nan)

    def idle(self, s: TrainState, t: Transition) -> tuple[TrainState, Array]:
        """Insert, and act uniformly: warm-up."""
        s = self.insert(s, t)
        return s, self.behave(s, uniform=True)

    @cached_property
    def step(self) -> Callable:
        """(state, transition) -> (state, action, metrics); the host looks at the action alone, which is NaN where one
        of the metrics is not finite"""

        def step(s: TrainState, t: Transition):
            s, action, metrics = self.live(s, t)
            return s, jnp.where(jnp.isfinite(metrics).all(), action, jnp.nan), metrics

        return self.compiled("step", step, (PER_SEED, 0), (PER_SEED, 0, 0), (0,))

    @cached_property
    def collect(self) -> Callable:
        """(state, transition) -> (state, action), without learning"""
        return self.compiled("collect", self.idle, (PER_SEED, 0), (PER_SEED, 0), (0,))

    @cached_property
    def react(self) -> Callable:
        """(state, uniform) -> action, where nothing was inserted"""
        programs = {u: self.compiled("react", partial(self.behave, uniform=u), (PER_SEED,), 0) for u in (False, True)}
        return lambda s, uniform: programs[uniform](s)

    @cached_property
    def recent_error(self) -> Callable:
        """state -> the intrinsic model's error on the newest transitions, asked for once per log line"""

        def error(s: TrainState):
            return self.agent.recent_error(s.agent, s.replay.recent(RECENT, self.agent.base.gamma))

        return self.compiled("recent_error", error, (PER_SEED,), 0)

    # ------------------------------------------------------------ acting for others

    @cached_property
    def act(self) -> Callable:
        """(agent, observations, clock) -> deterministic actions, without randomness."""
        act = lambda agent, obs, now: self.agent.act(agent, obs, jax.random.key(0), now, explore=False)
        return self.compiled("act", act, (0, 0, None), 0)

    @cached_property
    def sample_act(self) -> Callable:
        """(agent, observations, key, clock) -> actions as in training."""
        act = lambda agent, obs, key, now: self.agent.act(agent, obs, key, now, explore=True)
        return self.compiled("sample_act", act, (0, 0, 0, None), 0)
