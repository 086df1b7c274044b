"""One update of each modern base against its equations (docs/bases.md), written out a second time and slowly.

The learners descend plainly (no Adam), so that a wrong term in any gradient shows at its full size; statistics of
observations and rewards are not (0, 1), target networks lag and batch norms are in the midst of training.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import (
    SPEC,
    batches,
    close,
    descending,
    filled,
    finite,
    fresh,
    quick,
    run,
    same,
    small,
    transition,
)
from maxinforl.core.program import Program
from maxinforl.core.types import clock
from maxinforl.core.update import STEP, TrainState, stream
from maxinforl.explore import Fixed
from maxinforl.replay import Replay
from test_core_reference import noises, one_of, only

pytestmark = pytest.mark.slow

LR, LR_END, ALPHA, ACTIONS, ROWS = 0.1, 0.02, 0.5, 2, 8
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("crossq", "bro")]
PACE = {"xqc": 1 - (1 - LR_END / LR) * 5 / 100}  # linear, at step 5 of 100
TAU = {"crossq": 1.0}
MEAN, STD = jnp.array([0.5, -1.0, 2.0]), jnp.array([2.0, 0.5, 1.0])  # of observations
PEAK, SPREAD = 12.0, 1.5  # of discounted sums of rewards


# ------------------------------------------------------------ the networks, written plainly


def dense(layer, x):
    return x @ layer.weight + (0.0 if layer.bias is None else layer.bias)


def layer_norm(norm, x):
    mean = x.mean(1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-6) * norm.scale + norm.shift


def simba(p, x, _):
    x = dense(p.first, x)
    for block in p.blocks:
        x = x + dense(block.down, jnp.maximum(dense(block.up, layer_norm(block.norm, x)), 0))
    return dense(p.last, layer_norm(p.norm, x)), []


def bro(p, x, _):
    x = jnp.maximum(layer_norm(p.norm, dense(p.first, x)), 0)
    for block in p.blocks:
        inside = jnp.maximum(layer_norm(block.norms[0], dense(block.layers[0], x)), 0)
        x = x + layer_norm(block.norms[1], dense(block.layers[1], inside))
    return dense(p.last, x), []


def batch_norm(norm, x, running):
    """With the batch's own moments where there are no running ones; and those moments."""
    mean, var = (x.mean(0), ((x - x.mean(0)) ** 2).mean(0)) if running is None else (running.mean, running.var)
    return (x - mean) / jnp.sqrt(var + 1e-3) * norm.scale + norm.shift, (mean, var)


def normed(after):
    def forward(p, x, stats):
        x, seen = batch_norm(p.norms[0], x, stats and stats[0])
        moments = [seen]
        for i, layer in enumerate(p.layers[:-1]):
            x = dense(layer, x)
            x = jnp.maximum(x, 0) if after else x
            x, seen = batch_norm(p.norms[i + 1], x, stats and stats[i + 1])
            x = x if after else jnp.maximum(x, 0)
            moments.append(seen)
        return dense(p.layers[-1], x), moments

    return forward


FORWARD = {"simba": simba, "bro": bro, "crossq": normed(True), "xqc": normed(False)}


def critics(name, heads, x, stats=None):
    """Outputs of both critics, [2, rows, outputs], and moments of both; `stats` lead with channel and critic."""
    each = [FORWARD[name](one_of(heads, 0, k), x, stats and one_of(stats, 0, k)) for k in range(2)]
    return jnp.stack([out for out, _ in each]), [moments for _, moments in each]


def policy(name, out, noise):
    mean, raw = out[:, :ACTIONS], out[:, ACTIONS:]
    low = {"crossq": -20}.get(name, -10)
    log_std = -10 + 6 * (1 + jnp.tanh(raw)) if name in ("simba", "bro") else jnp.clip(raw, low, 2)
    x = mean + jnp.exp(log_std) * noise
    log_slope = -2 * (jnp.logaddexp(x, -x) - jnp.log(2.0))
    logp = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi) - log_slope
    return jnp.tanh(x), logp.sum(1)


def value(name, raw):
    if name == "xqc":
        return (jax.nn.softmax(raw) * jnp.linspace(-5, 5, 5)).sum(-1)
    return raw.mean(-1)


# ------------------------------------------------------------ targets and losses


def target(name, raw, reward, discount, entropy):
    """y of every row from both critics' outputs at the next state, [2, rows, outputs]; `entropy` is -alpha log pi."""
    if name in ("simba", "crossq"):
        return reward + discount * (jnp.minimum(raw[0, :, 0], raw[1, :, 0]) + entropy)
    if name == "bro":
        return jnp.stack([reward + discount * ((raw[0, :, j] + raw[1, :, j]) / 2 + entropy) for j in range(4)], 1)
    p, support = jax.nn.softmax(raw), [-5.0, -2.5, 0.0, 2.5, 5.0]
    smaller = value(name, raw[1]) < value(name, raw[0])
    p, y = jnp.where(smaller[:, None], p[1], p[0]), jnp.zeros((ROWS, 5))
    for j, z in enumerate(support):
        place = (jnp.clip(reward + discount * (z + entropy), -5, 5) + 5) / 2.5
        low = jnp.floor(place)
        for k in range(5):
            y = y.at[:, k].add(p[:, j] * jnp.where(low == k, low + 1 - place, jnp.where(low == k - 1, place - low, 0)))
    return y


def loss(name, raw, y):
    """Of one critic, a number per row."""
    if name in ("simba", "crossq"):
        return (raw[:, 0] - y) ** 2
    if name == "xqc":
        return -(y * jnp.log(jax.nn.softmax(raw))).sum(1)
    total = jnp.zeros(ROWS)
    for i in range(4):
        for j in range(4):
            d = y[:, j] - raw[:, i]
            huber = jnp.where(jnp.abs(d) <= 1, d**2 / 2, jnp.abs(d) - 0.5)
            total = total + jnp.abs((i + 0.5) / 4 - (d < 0)) * huber / 4
    return total


# ------------------------------------------------------------ one update


def descended(name, grads, params):
    params = jax.tree.map(lambda p, g: p - LR * PACE.get(name, 1.0) * g, params, grads)
    if name != "xqc":
        return params
    unit = lambda d: eqx.tree_at(lambda d: d.weight, d, d.weight / jnp.sqrt((d.weight**2).sum(-2, keepdims=True)))
    return eqx.tree_at(lambda p: p.layers, params, tuple(unit(d) for d in params.layers))


def moved(running, moments):
    """Running statistics after a pass with these batch moments."""
    if not moments:
        return running
    after = lambda r, m, v: (0.99 * r.mean + 0.01 * m, 0.99 * r.var + 0.01 * v, r.passes + 1)
    entries = lambda r: (r.mean, r.var, r.passes)
    return tuple(eqx.tree_at(entries, r, after(r, m, v)) for r, (m, v) in zip(running, moments))


def average(old, new, tau):
    return jax.tree.map(lambda o, n: (1 - tau) * o + tau * n, old, new)


def reference(name, s, batch, key):
    """The learner after one update."""
    at_next, at_state, *_ = noises(key)
    see = (lambda x: (x - MEAN) / STD) if name == "simba" else (lambda x: x)
    obs, next_obs = see(batch.obs), see(batch.one.next_obs)
    reward = batch.one.reward / max(SPREAD, PEAK / 5) if name == "xqc" else batch.one.reward
    joint = name in ("crossq", "xqc")
    forward, own = FORWARD[name], s.stats.actor if joint else None

    next_action, logp = policy(name, forward(s.params.actor.head, next_obs, own)[0], at_next)
    here, there = jnp.concatenate([obs, batch.action], 1), jnp.concatenate([next_obs, next_action], 1)
    slow = s.params.critic.heads if name == "crossq" else s.target.critic.heads
    raw = critics(name, slow, jnp.concatenate([here, there]))[0][:, ROWS:] if joint else critics(name, slow, there)[0]
    y = target(name, raw, reward, batch.one.discount, -ALPHA * logp)

    def critic_loss(heads):
        raw, moments = critics(name, heads, jnp.concatenate([here, there]) if joint else here)
        return sum(loss(name, raw[k, :ROWS], y).mean() for k in range(2)) / 2, moments

    grads, moments = jax.grad(critic_loss, has_aux=True)(s.params.critic.heads)
    heads = descended(name, grads, s.params.critic.heads)
    of_critic = [moved(one_of(s.stats.critic, 0, k), moments[k]) for k in range(2)]
    of_critic = jax.tree.map(lambda a, b: jnp.stack([a, b])[None], *of_critic)

    def actor_loss(head):
        out, moments = forward(head, obs, None)
        action, logp = policy(name, out, at_state)
        raw, _ = critics(name, heads, jnp.concatenate([obs, action], 1), of_critic if joint else None)
        each = value(name, raw)
        q = each.mean(0) if name == "bro" else each.min(0)
        return (ALPHA * logp - q).mean(), (moments, -logp.mean())

    grads, (moments, entropy) = jax.grad(actor_loss, has_aux=True)(s.params.actor.head)
    head = descended(name, grads, s.params.actor.head)
    of_actor, per_dimension = moved(s.stats.actor, moments), -1.0 if name == "crossq" else -0.5
    log = s.alpha.log - PACE.get(name, 1.0) * LR * (entropy - per_dimension * ACTIONS)
    parts = lambda s: (
        s.params.critic.heads, s.target.critic.heads, s.params.actor.head, s.target.actor.head,
        s.stats.critic, s.stats.actor, s.stats.target_actor, s.alpha.log,
    )  # fmt: skip
    fresh = (
        heads, average(s.target.critic.heads, heads, TAU.get(name, 0.005)),
        head, average(s.target.actor.head, head, 0.005),
        of_critic, of_actor, average(s.stats.target_actor, of_actor, 0.005), log,
    )  # fmt: skip
    return eqx.tree_at(parts, s, fresh)


def agent(name, *strategy):
    made = descending(name, *strategy)
    return replace(made, base=replace(made.base, lr_end=LR_END))


@cache
def warm(name):
    """A learner in the midst of training."""
    base = agent(name).base
    s, other = fresh(agent(name), 0).learner, fresh(agent(name), 1).learner
    lag = other.params.critic if name != "crossq" else s.params.critic
    s = eqx.tree_at(lambda s: (s.target.critic, s.target.actor), s, (lag, other.params.actor))
    uneven = lambda x: x + 0.1 * jnp.abs(jnp.sin(jnp.arange(x.size).reshape(x.shape)))
    s = replace(s, stats=jax.tree.map(uneven, s.stats))
    if base.normalize_observations:
        moments = eqx.tree_at(lambda m: (m.mean, m.var), s.observed.observations, (MEAN, STD**2))
        s = eqx.tree_at(lambda s: s.observed.observations, s, moments)
    if base.normalize_returns:
        where = lambda s: (s.observed.returns.moments.var, s.observed.returns.peak)
        s = eqx.tree_at(where, s, (jnp.float32(SPREAD**2), jnp.float32(PEAK)))
    return s


@pytest.mark.parametrize("name", ["simba", "xqc", *SLOW])
def test_an_update_matches_the_equations(name):
    made, data, key = agent(name), batches(1), jax.random.key(7)
    s = fresh(made)
    got = run(made, eqx.tree_at(lambda s: s.learner, s, warm(name)), data, key=key).learner
    want = quick(lambda s: reference(name, s, only(data), key))(warm(name))
    for part in ("params", "target", "stats"):
        close(getattr(got, part), getattr(want, part), 1e-4, 3e-5)
    np.testing.assert_allclose(got.alpha.log, want.alpha.log, rtol=1e-4, atol=2e-5)
    assert same(got.observed, want.observed)


# ------------------------------------------------------------ MaxInfo on them


@pytest.mark.parametrize("name", ["xqc", pytest.param("simba", marks=pytest.mark.slow), *SLOW])
def test_maxinfo_without_weight_is_its_base(name):
    """Where the gain has a critic of its own, its first channel and all else."""
    plain, maxinfo = agent(name), replace(agent(name, "maxinfo"), weight=Fixed(0.0))
    a, b = fresh(plain), fresh(maxinfo)
    a, b = run(plain, a, seed=1).learner, run(maxinfo, b, seed=1).learner
    first = lambda critic: jax.tree.map(lambda x: x[:1], critic)
    close(a.params.actor, b.params.actor, 1e-6, 1e-6)
    close((a.params.critic, a.stats.critic), first((b.params.critic, b.stats.critic)), 1e-6, 1e-6)
    close((a.alpha.log, a.stats.actor), (b.alpha.log, b.stats.actor), 1e-6, 1e-6)
    channels = jax.tree.leaves(b.params.critic)[0].shape[0]
    assert channels == (2 if name == "xqc" else 1)


def test_a_sustained_gain_of_two_is_all_that_a_support_holds():
    base = small("xqc").base
    backup = only(batches(1)).one._replace(reward=jnp.full(ROWS, 2.0))
    np.testing.assert_allclose(base.within_reach(backup).reward / (1 - base.gamma), 5.0, rtol=1e-5)
    assert small("bro").base.within_reach(backup) is backup


# ------------------------------------------------------------ delays, resets and observers of the program


def life(name, steps, seeds=None, **changes):
    """A program, and the states after each of its steps from an empty replay."""
    made = small(name)
    made = replace(made, base=replace(made.base, **changes))
    program = Program(made, SPEC, batch_size=ROWS, updates=1)
    s = TrainState(fresh(made), jax.tree.map(jnp.copy, filled()), clock(total=100), jnp.asarray(0, jnp.int32))
    s = replace(s, sums=jnp.zeros(1) if made.base.normalize_returns else ())
    step, states = quick(program.train_step), [s]
    for i in range(steps):
        end = {"terminated": np.array([True]), "obs": np.ones((1, 3), np.float32)} if i == 1 else {}
        states.append(step(states[-1], transition(seed=i, **end))[0])
    return program, states


def test_the_actor_waits_for_every_third_update_across_steps():
    _, states = life("crossq", 6, policy_delay=3)
    learners = [s.agent.learner for s in states]
    still = lambda part: [same(part(a), part(b)) for a, b in itertools.pairwise(learners)]
    assert still(lambda s: s.params.actor) == still(lambda s: s.alpha) == [True, True, False, True, True, False]
    assert not any(still(lambda s: s.params.critic))
    assert all(finite(s.agent) for s in states)


@pytest.mark.slow
def test_a_reset_begins_afresh_but_for_what_was_observed():
    """The update after it is that of a fresh learner with what was observed; every reset has a key of its own."""
    program, states = life("simba", 2, reset_at=(2,), update_ratio=1)
    before = states[1]
    due = lambda step: bool(program.agent.base.reset_due(clock(step=step), 1))
    assert [due(step) for step in (1, 2, 3)] == [False, True, False]
    at = replace(before, clock=before.clock._replace(step=before.clock.step + 1))
    after = quick(program.begin_afresh)(at)
    key = jax.random.fold_in(stream(at.seed, STEP, at.clock.step), 3)
    want = quick(lambda k: program.agent.base.init(k, SPEC))(key)
    got = after.agent.learner
    close((got.params, got.target, got.alpha), (want.params, want.target, want.alpha), 1e-5, 1e-6)
    assert same(got.observed, before.agent.learner.observed) and same(after.replay, before.replay)
    assert same(quick(program.begin_afresh)(before).agent, before.agent)
    lanes = lambda step: bool(replace(program.agent.base, reset_every=10, reset_at=()).reset_due(clock(step=step), 4))
    assert [lanes(step) for step in (8, 12, 16, 20, 24)] == [False, True, False, True, False]


def test_a_reset_keeps_the_model_its_weight_and_statistics():
    maxinfo = small("bro", "maxinfo")
    s, other = fresh(maxinfo), jax.random.key(3)
    s = replace(s, weight=replace(s.weight, log=jnp.float32(0.3)))
    after = quick(lambda s: maxinfo.begin_afresh(s, other, SPEC))(s)
    assert same((after.model, after.weight, after.scale), (s.model, s.weight, s.scale))
    assert not same(after.learner.params, s.learner.params)
    new = after.learner
    assert same((new.target.critic, new.target.actor), (new.params.critic, new.params.actor))
    twin = quick(lambda s: small("xqc", "eps").begin_afresh(s, other, SPEC))(fresh(small("xqc", "eps")))
    assert not same(twin.task.params, twin.curious.params)


@pytest.mark.slow
def test_statistics_are_of_what_is_acted_on_and_the_last_reward_belongs_to_its_episode():
    _, states = life("simba", 3)
    acted = np.concatenate([transition(seed=0).obs, np.ones((1, 3), np.float32), transition(seed=2).obs])
    seen = states[-1].agent.learner.observed.observations
    np.testing.assert_allclose(seen.mean, acted.mean(0), rtol=1e-3)
    np.testing.assert_allclose(seen.var, acted.var(0), rtol=2e-3)
    raw, same_rows = life("xqc", 3)[1][-1], states[-1]
    assert same(raw.replay.obs, same_rows.replay.obs) and same(raw.replay.reward, same_rows.replay.reward)
    rewards, gamma = [float(transition(seed=i).reward[0]) for i in range(3)], small("xqc").base.gamma
    sums = [rewards[0], gamma * rewards[0] + rewards[1], rewards[2]]
    moments = raw.agent.learner.observed.returns
    np.testing.assert_allclose(moments.moments.mean, np.mean(sums), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(moments.peak, np.abs(sums).max(), rtol=1e-5)
    np.testing.assert_allclose(raw.sums, rewards[2], rtol=1e-5)


def test_the_first_observation_of_all_is_observed():
    made = small("simba")
    program = Program(made, SPEC, batch_size=ROWS)
    replay = Replay.create(1, 8, SPEC.obs, jnp.float32, SPEC.action)
    s = TrainState(jax.tree.map(jnp.copy, fresh(made)), replay, clock(total=10), jnp.asarray(0, jnp.int32))
    s, _ = program.begin(s, jnp.array([[1.0, 2.0, 3.0]]), True)
    np.testing.assert_allclose(s.agent.learner.observed.observations.mean, [1, 2, 3], rtol=1e-3)
    assert float(s.agent.learner.observed.observations.count) == pytest.approx(1.0001)
