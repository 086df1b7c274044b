"""What happens in one step of an agent, as pure functions; core/program.py compiles them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from maxinforl.core.types import Batch, Clock, Metrics, Spec
from maxinforl.replay import Replay
from maxinforl.transition import Transition

INIT, STEP = 0, 1  # streams of random numbers
PRIOR = 0  # folded into a batch's key for its rows of prior data
CHECK_EVERY = 16  # agent steps between two checks of all weights and moments


def stream(seed: Array, name: int, step: Array | int = 0) -> Array:
    """The key of a stream at a step: all randomness is a function of (seed, step)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), name), step)


def update(agent: Any, state: Any, batches: Batch, key: Array, now: Clock) -> tuple[Any, Metrics]:
    """A critic step on each of `batches`, an actor step on the last, and the intrinsic model after each.

    Where the delay counts all updates there is one batch, and the actor step is left out unless it is due.
    """
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
    improve = lambda state: agent.actor_step(state, batch, latents, k_actor, at)
    delay = agent.base.policy_delay if agent.base.delay_across_steps else 1
    state, more = improve(state) if delay == 1 else delayed(improve, state, delay, at)
    state, model = agent.model_step(state, latents)
    return state, metrics | more | model


def delayed(improve: Callable, state: Any, delay: int, now: Clock) -> tuple[Any, Metrics]:
    """Every `delay`-th update improves; its metrics count `delay` times and those of the others are 0, so that means
    over many updates are those of the updates that improved."""

    def due(state):
        state, metrics = improve(state)
        return state, jax.tree.map(lambda m: delay * jnp.asarray(m, jnp.float32), metrics)

    def not_due(state):
        return state, jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), jax.eval_shape(due, state)[1])

    return jax.lax.cond((now.update + 1) % delay == 0, due, not_due, state)


def all_finite(tree: Any) -> Array:
    """Whether every float of a tree is finite."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all()


def keep_finite(old: Any, fresh: Any, metrics: Metrics) -> tuple[Any, Metrics]:
    """The fresh state where all of it is finite, else the old one, with the share of updates that were skipped.

    Metrics of a skipped update are 0, for sums that are divided by how many were not.
    """
    good = all_finite((fresh, metrics))
    state = jax.tree.map(lambda o, f: jnp.where(good, f, o), old, fresh)
    metrics = {name: jnp.where(good, value, 0.0) for name, value in metrics.items()}
    return state, metrics | {"train/skipped": 1.0 - good}


class TrainState(eqx.Module):
    """The whole state of training: with several seeds every leaf but clock and prior has a leading axis of
    seeds."""

    agent: Any
    replay: Replay
    clock: Clock
    seed: Array
    noise: Any = ()  # of the behaviour, where it is correlated
    sums: Any = ()  # discounted sum of each open episode's rewards, where returns are normalised
    prior: Any = ()  # a replay of prior data, where batches have a share of it; one for all seeds


@dataclass(frozen=True)
class StepFunctions:
    """The parts of one step of an agent: choose an action, insert a transition, learn."""

    agent: Any
    spec: Spec
    batch_size: int = 256
    updates: int = 1  # critic updates per dispatch: environments x update ratio
    seeds: int | None = None  # None: one seed, no seed axis
    skip_nan: bool = False  # whether an update with a non-finite number is undone and counted
    prior_rows: int = 0  # of every batch, which come from the prior data

    @cached_property
    def metric_names(self) -> list[str]:
        """Names of the entries of the metrics vector, known once `train_step` is traced."""
        return []

    @property
    def rounds(self) -> int:
        """Actor steps per dispatch; each is the last of a round of `updates // rounds` critic updates.

        Where the base's `policy_delay` divides `updates`, an actor step follows every `policy_delay` critic updates.
        Elsewhere rounds are as long as evenly fits: every dispatch ends with an actor step, and an actor step follows
        every `updates` critic updates where the delay is longer than a dispatch (REDQ with an update ratio of 4).
        With `delay_across_steps` the delay counts over dispatches: rounds are one update long, and some have no actor
        step.
        """
        if self.agent.base.delay_across_steps:
            return self.updates
        most = self.updates // self.agent.base.policy_delay
        return next((r for r in range(most, 0, -1) if self.updates % r == 0), 1)

    def select_action(self, s: TrainState, *, uniform: bool) -> Array:
        key = jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 0)
        if uniform:
            return jax.random.uniform(key, (s.replay.obs.shape[0], self.spec.action), minval=-1.0, maxval=1.0)
        obs = s.replay.latest()
        noise = self.agent.base.action_noise
        return self.agent.act(s.agent, obs, key, s.clock, explore=True, noise=noise and noise(s.noise))

    def insert(self, s: TrainState, t: Transition) -> TrainState:
        tick = s.clock._replace(step=s.clock.step + t.reward.shape[0])
        noise, ended = self.agent.base.action_noise, t.terminated | t.truncated | ~t.valid
        process = noise and noise.advance(s.noise, self.noise_key(s.seed, tick.step), ended)
        s = replace(s, replay=s.replay.add(t), clock=tick, noise=s.noise if process is None else process)
        return self.observe(s, t, ended)

    def observe(self, s: TrainState, t: Transition, ended: Array) -> TrainState:
        """Statistics with the observations to act on next, and with every episode's discounted rewards up to now."""
        base = self.agent.base
        if not base.normalize_returns:
            return replace(s, agent=self.agent.observe(s.agent, t.obs))
        sums = base.gamma * s.sums + t.reward
        return replace(s, agent=self.agent.observe(s.agent, t.obs, sums, t.valid), sums=jnp.where(ended, 0.0, sums))

    def noise_key(self, seed: Array, step: Array | int) -> Array:
        return jax.random.fold_in(stream(seed, STEP, step), 2)

    def sample_round(self, s: TrainState, i: Array | int) -> tuple[Batch, Array]:
        """The batches of a round of updates at a step, and the key of those updates."""
        k_sample, k_update = jax.random.split(jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 1))
        count, base = self.updates // self.rounds, self.agent.base
        k_batch = jax.random.fold_in(k_sample, i)
        draw = lambda replay, key, rows: replay.sample(key, (count, rows), base.gamma, base.nstep)
        batches = draw(s.replay, k_batch, self.batch_size - self.prior_rows)
        if self.prior_rows:
            prior = draw(s.prior, jax.random.fold_in(k_batch, PRIOR), self.prior_rows)
            # The agent's own rows come last: those are the ones whose place imagined rows take.
            batches = jax.tree.map(lambda more, own: jnp.concatenate([more, own], 1), prior, batches)
        return batches, jax.random.fold_in(k_update, i)

    def learn(self, s: TrainState) -> tuple[TrainState, Metrics]:
        """`updates` critic steps on fresh batches, in rounds that each end with an actor step."""
        s = self.begin_afresh(s) if self.agent.base.resets else s

        def one_round(carry, i):
            agent, now = carry
            batches, key = self.sample_round(s, i)
            fresh, metrics = update(self.agent, agent, batches, key, now)
            agent, metrics = keep_finite(agent, fresh, metrics) if self.skip_nan else (fresh, metrics)
            return (agent, now._replace(update=now.update + self.updates // self.rounds)), metrics

        if self.rounds == 1:
            (agent, now), metrics = one_round((s.agent, s.clock), 0)
        else:
            (agent, now), metrics = jax.lax.scan(one_round, (s.agent, s.clock), jnp.arange(self.rounds))
            metrics = jax.tree.map(lambda m: m.mean(0), metrics)
        return replace(s, agent=agent, clock=now), metrics

    def begin_afresh(self, s: TrainState) -> TrainState:
        """New networks where the newest transitions are ones to reset at."""
        key = jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 3)
        due = self.agent.base.reset_due(s.clock, s.replay.obs.shape[0])
        afresh = lambda agent: self.agent.begin_afresh(agent, key, self.spec)
        return replace(s, agent=jax.lax.cond(due, afresh, lambda agent: agent, s.agent))

    def train_step(self, s: TrainState, t: Transition) -> tuple[TrainState, Array, Array]:
        """Insert, sample, update, act; the third is the vector of metrics and, last, `nonfinite_flag`."""
        s, metrics = self.learn(self.insert(s, t))
        self.metric_names[:] = sorted(metrics)
        values = [*(metrics[name] for name in self.metric_names), self.nonfinite_flag(s)]
        action = self.select_action(s, uniform=False)
        return s, action, jnp.stack([jnp.asarray(value, jnp.float32) for value in values])

    def nonfinite_flag(self, s: TrainState) -> Array:
        """NaN where a number of the agent is not finite, which is checked every `CHECK_EVERY` steps, else 0.

        Checking costs 3 to 7 % of a step; a non-finite loss or action is seen at once without it.
        """
        if self.skip_nan:  # never kept
            return jnp.float32(0)
        due = s.clock.step // s.replay.obs.shape[0] % CHECK_EVERY == 0
        return jnp.where(jax.lax.cond(due, all_finite, lambda _: jnp.array(True), s.agent), 0.0, jnp.nan)

    def warmup_step(self, s: TrainState, t: Transition) -> tuple[TrainState, Array]:
        """Insert, and act uniformly."""
        s = self.insert(s, t)
        return s, self.select_action(s, uniform=True)
