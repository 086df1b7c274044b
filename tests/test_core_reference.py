"""Every update against the paper's equations 19 to 24 (docs/paper.md), written out a second time and slowly.

The agents descend plainly (no Adam), so that a wrong term in any gradient shows at its full size.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import DESCENT, DescentGain, DescentWeight, batches, close, fresh, quick, run
from maxinforl.core.policies import NoisyDeterministic, constant
from maxinforl.explore import Eipo, IntrinsicSum, MaxInfo, Plain, Switch
from maxinforl.explore.strategy import SECOND_LEARNER, TARGET_POLICY
from maxinforl.intrinsic import Curiosity, Disagreement

LR, TAU, ALPHA = DESCENT.lr, DESCENT.tau, 0.5
ACTIONS = 2


# ------------------------------------------------------------ the parts, written plainly


def network(net, x, activation):
    for layer in net.layers[:-1]:
        x = activation(x @ layer.weight + layer.bias)
    return x @ net.layers[-1].weight + net.layers[-1].bias


def one_of(tree, *index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def values(critic, channel, s, a):
    """[critics, batch]"""
    x, heads = jnp.concatenate([s, a], 1), critic.heads
    count = heads.layers[0].bias.shape[1]
    return jnp.stack([network(one_of(heads, channel, k), x, jax.nn.relu)[:, 0] for k in range(count)])


def gaussian(actor, s, noise):
    """Action and log-probability by the change of variables."""
    out = network(actor.head, s, jax.nn.relu)
    mean, std = out[:, :ACTIONS], jnp.exp(jnp.clip(out[:, ACTIONS:], -10, 2))
    x = mean + std * noise
    log_slope = -2 * (jnp.logaddexp(x, -x) - jnp.log(2.0))  # log(1 - tanh(x)**2)
    logp = -0.5 * ((x - mean) / std) ** 2 - jnp.log(std * np.sqrt(2 * np.pi)) - log_slope
    return jnp.tanh(x), logp.sum(1)


def predictions(model, s, a):
    x = (jnp.concatenate([s, a], 1) - model.inputs.mean) / model.inputs.std
    count = model.members.layers[0].bias.shape[0]
    return jnp.stack([network(one_of(model.members, i), x, jax.nn.silu) for i in range(count)])


def raw_gain(model, s, a):
    p = predictions(model, s, a)
    v = ((p - p.mean(0)) ** 2).mean(0)
    return jnp.log(1 + v / 1e-3**2).mean(1)


def statistics(stats, x):
    n = stats.count + len(x)
    mean = (stats.count * stats.mean + x.sum(0)) / n
    v = (stats.count * stats.std**2 + ((x - mean) ** 2).sum(0) + stats.count * (stats.mean - mean) ** 2) / n
    return eqx.tree_at(lambda t: (t.mean, t.std, t.count), stats, (mean, jnp.maximum(jnp.sqrt(v), 1e-3), n))


def standard(stats, x):
    return (x - stats.mean) / stats.std


def descend(loss, params):
    return jax.tree.map(lambda p, g: p - LR * g, params, jax.grad(loss)(params))


def average(target, online):
    return jax.tree.map(lambda s, f: (1 - TAU) * s + TAU * f, target, online)


def regress(critic, batch, targets):
    """All critics of every channel on their target: mean over critics and batch, sum over channels."""
    return descend(
        lambda c: sum(((values(c, i, batch.obs, batch.action) - y) ** 2).mean() for i, y in enumerate(targets)), critic
    )


def train_model(model, batch):
    """Statistics with the batch first, then mean squared error on normalised targets, the same batch for all."""
    x = jnp.concatenate([batch.obs, batch.action], 1)
    y = jnp.concatenate([batch.one.next_obs - batch.obs, batch.one.reward[:, None]], 1)
    model = eqx.tree_at(
        lambda m: (m.inputs, m.outputs), model, (statistics(model.inputs, x), statistics(model.outputs, y))
    )

    def loss(members):
        p = predictions(eqx.tree_at(lambda m: m.members, model, members), batch.obs, batch.action)
        return ((p - standard(model.outputs, y)) ** 2).mean()

    return eqx.tree_at(lambda m: m.members, model, descend(loss, model.members))


def temperature(log, entropy):
    return log - LR * (entropy + ACTIONS)


def noises(key, size=8):
    """The learner's noise: at the next state, at the state, of the target policy, and of a second learner."""
    _, k_critic, k_actor = jax.random.split(key, 3)
    k_critic = jax.random.fold_in(k_critic, 0)
    normal = lambda k: jax.random.normal(k, (size, ACTIONS))
    at_next = lambda k: normal(jax.random.split(jax.random.split(k)[0], 3)[0])
    at_state = lambda k: normal(jax.random.split(k)[0])
    other = lambda k: jax.random.fold_in(k, SECOND_LEARNER)
    target = normal(jax.random.fold_in(k_actor, TARGET_POLICY))
    return at_next(k_critic), at_state(k_actor), target, at_next(other(k_critic)), at_state(other(k_actor))


def only(data):
    return jax.tree.map(lambda x: x[0], data)


def warm(agent, where=lambda s: s.learner):
    """A state in the midst of training: target networks that lag, statistics that are not (0, 1)."""
    s, other = fresh(agent, 0), fresh(agent, 1)
    lagging = lambda s: (where(s).target.critic, where(s).target.actor)
    return eqx.tree_at(lagging, s, (where(other).params.critic, where(other).params.actor))


def warm_stats(s):
    rng = np.random.default_rng(3)
    seen = lambda stats: statistics(stats, jnp.asarray(2 + 3 * rng.normal(size=(20, *stats.mean.shape)), jnp.float32))
    stats = lambda s: (s.model.inputs, s.model.outputs)
    s = eqx.tree_at(stats, s, tuple(seen(x) for x in stats(s)))
    return eqx.tree_at(lambda s: s.scale, s, statistics(s.scale, jnp.asarray([9.0, 13.0, 14.0, 12.0])))


def check_learner(got, want, tolerance=2e-5):
    close(got.params, want.params, 1e-4, tolerance)
    close(got.target, want.target, 1e-4, tolerance)
    np.testing.assert_allclose(got.alpha.log, want.alpha.log, rtol=1e-4, atol=tolerance)


# ------------------------------------------------------------ soft actor-critic and MaxInfo


def soft_update(s, batch, noise, alpha2=0.0, model=None, scale=None, critic_reduction="min"):
    """Returns the learner, the gain's statistics, and both gains."""
    alpha1 = jnp.exp(s.alpha.log)
    read = (lambda q: q.min(0)) if critic_reduction == "min" else (lambda q: q.mean(0))
    gain = lambda stats, s_, a: 0.0 if model is None else standard(stats, raw_gain(model, s_, a))

    a_next, logp_next = gaussian(s.params.actor, batch.task.next_obs, noise[0])
    soft = values(s.target.critic, 0, batch.task.next_obs, a_next).min(0)
    soft = soft + alpha2 * gain(scale, batch.task.next_obs, a_next) - alpha1 * logp_next
    critic = regress(s.params.critic, batch, [batch.task.reward + batch.task.discount * soft])
    target_critic = average(s.target.critic, critic)

    a_target, _ = gaussian(s.target.actor, batch.obs, noise[2])
    a_now, logp = gaussian(s.params.actor, batch.obs, noise[1])
    if model is not None:
        both = jnp.concatenate([raw_gain(model, batch.obs, a_now), raw_gain(model, batch.obs, a_target)])
        scale = statistics(scale, both)

    def loss(actor):
        a, logp = gaussian(actor, batch.obs, noise[1])
        return -(alpha2 * gain(scale, batch.obs, a) - alpha1 * logp + read(values(critic, 0, batch.obs, a))).mean()

    actor = descend(loss, s.params.actor)
    log = temperature(s.alpha.log, -logp.mean())
    parts = lambda s: (s.params.critic, s.params.actor, s.target.critic, s.target.actor, s.alpha.log)
    s = eqx.tree_at(parts, s, (critic, actor, target_critic, average(s.target.actor, actor), log))
    return s, scale, (gain(scale, batch.obs, a_now), gain(scale, batch.obs, a_target))


def test_sac_update_matches_the_equations():
    """Target, order, temperature."""
    agent = Plain(DESCENT)
    s, data = warm(agent), batches(1)
    want = quick(lambda s, b, k: soft_update(s, b, noises(k))[0])
    for i in range(2):
        expected = want(s.learner, only(data), jax.random.key(i))
        s = run(agent, s, data, i)
        check_learner(s.learner, expected)


@pytest.mark.slow
def test_sac_with_mean_reduction_matches_the_equations():
    """REDQ's actor reads the mean of its critics, all of which regress on one target."""
    agent = Plain(replace(DESCENT, critics=3, num_min_critics=3, critic_reduction="mean"))
    s, data = warm(agent), batches(1)
    want = quick(lambda s, b, k: soft_update(s, b, noises(k), critic_reduction="mean")[0])
    check_learner(run(agent, s, data).learner, want(s.learner, only(data), jax.random.key(0)))


def test_nstep_sac_regresses_on_the_nstep_backup():
    agent = Plain(replace(DESCENT, nstep=3))
    s, data = warm(agent), batches(1, nstep=True)
    want = quick(lambda s, b, k: soft_update(s, b, noises(k))[0])
    check_learner(run(agent, s, data).learner, want(s.learner, only(data), jax.random.key(0)))


MAXINFO = MaxInfo(DESCENT, DescentGain(), DescentWeight(start=0.7))


def test_maxinfo_update_matches_the_equations():
    """Old statistics in the critic, new ones in the actor, the model last."""

    @quick
    def want(s, batch, key):
        alpha2 = jnp.exp(s.weight.log)
        learner, scale, (gain, target_gain) = soft_update(s.learner, batch, noises(key), alpha2, s.model, s.scale)
        log = s.weight.log - LR * (gain.mean() - target_gain.mean())
        return learner, scale, log, train_model(s.model, batch)

    s, data = warm_stats(warm(MAXINFO)), batches(1)
    for i in range(2):
        learner, scale, log, model = want(s, only(data), jax.random.key(i))
        s = run(MAXINFO, s, data, i)
        check_learner(s.learner, learner, 1e-4)
        close(s.scale, scale, 1e-4)
        np.testing.assert_allclose(s.weight.log, log, rtol=1e-4, atol=1e-5)
        close((s.model.inputs, s.model.outputs), (model.inputs, model.outputs), 1e-4, 1e-5)
        close(s.model.members, model.members, 1e-3, 1e-5)


@pytest.mark.slow
def test_maxinfo_on_an_nstep_base_keeps_the_gain_in_its_own_critic():
    """The gain of the stored action, one step, no mask; the actor adds no immediate gain."""
    base = replace(DESCENT, nstep=3, policy=NoisyDeterministic(), noise=constant(0.2))
    agent = replace(MAXINFO, base=base)

    @quick
    def want(s, batch, key):
        p, target, alpha2 = s.learner.params, s.learner.target, jnp.exp(s.weight.log)
        _, k_critic, k_actor = jax.random.split(key, 3)
        k_next = jax.random.split(jax.random.split(jax.random.fold_in(k_critic, 0))[0], 3)[0]
        k_now = jax.random.split(k_actor)[0]

        def action(actor, s_, k):
            noise = jnp.clip(0.2 * jax.random.normal(k, (8, ACTIONS)), -0.3, 0.3)
            a = jnp.tanh(network(actor.head, s_, jax.nn.relu)) + noise
            return a + jax.lax.stop_gradient(jnp.clip(a, -1, 1) - a)

        task, one = batch.nstep, batch.one
        a_task = action(p.actor, task.next_obs, k_next)
        a_one = action(p.actor, one.next_obs, jax.random.fold_in(k_next, 1))
        y_task = task.reward + task.discount * values(target.critic, 0, task.next_obs, a_task).min(0)
        gain = standard(s.scale, raw_gain(s.model, batch.obs, batch.action))
        y_gain = gain + 0.9 * values(target.critic, 1, one.next_obs, a_one).min(0)
        critic = regress(p.critic, batch, [y_task, y_gain])

        def loss(actor):
            a = action(actor, batch.obs, k_now)
            return -(values(critic, 0, batch.obs, a).min(0) + alpha2 * values(critic, 1, batch.obs, a).min(0)).mean()

        actor = descend(loss, p.actor)
        gain_of = lambda actor, k: raw_gain(s.model, batch.obs, action(actor, batch.obs, k))
        raw, target_raw = gain_of(p.actor, k_now), gain_of(target.actor, jax.random.fold_in(k_actor, TARGET_POLICY))
        scale = statistics(s.scale, jnp.concatenate([raw, target_raw]))
        log = s.weight.log - LR * (standard(scale, raw).mean() - standard(scale, target_raw).mean())
        return critic, actor, average(target.critic, critic), average(target.actor, actor), scale, log

    s, data = warm_stats(warm(agent)), batches(1, nstep=True)
    expected = want(s, only(data), jax.random.key(0))
    s = run(agent, s, data)
    learner = s.learner
    got = (
        learner.params.critic,
        learner.params.actor,
        learner.target.critic,
        learner.target.actor,
        s.scale,
        s.weight.log,
    )
    close(got, expected, 1e-3, 1e-4)


# ------------------------------------------------------------ two channels


def sum_update(s, batch, noise, weight):
    """The part of the mixed policy in an update of EIPO."""
    p, target, alpha1 = s.learner.params, s.learner.target, jnp.exp(s.learner.alpha.log)
    a_next, logp_next = gaussian(p.actor, batch.one.next_obs, noise[0])
    raw = raw_gain(s.model, batch.obs, batch.action)
    q = lambda channel: values(target.critic, channel, batch.one.next_obs, a_next).min(0)
    y_task = batch.one.reward + batch.one.discount * q(0)
    y_gain = standard(s.scale, raw) + 0.9 * (q(1) - alpha1 * logp_next)
    critic = regress(p.critic, batch, [y_task, y_gain])

    def loss(actor):
        a, logp = gaussian(actor, batch.obs, noise[1])
        task, intrinsic = (values(critic, c, batch.obs, a).min(0) for c in (0, 1))
        return -(task + (intrinsic - alpha1 * logp) / weight).mean()

    actor = descend(loss, p.actor)
    a, logp = gaussian(p.actor, batch.obs, noise[1])
    parts = lambda s: (s.params.critic, s.params.actor, s.target.critic, s.target.actor, s.alpha.log)
    changed = (critic, actor, average(target.critic, critic), average(target.actor, actor))
    learner = eqx.tree_at(parts, s.learner, (*changed, temperature(s.learner.alpha.log, -logp.mean())))
    return learner, statistics(s.scale, raw), values(critic, 0, batch.obs, a).min(0).mean()


@pytest.mark.slow
def test_intrinsic_sum_update_matches_the_equations():
    """No mask and the entropy on the intrinsic channel; statistics after use."""
    agent = IntrinsicSum(DESCENT, DescentGain())
    s, data = warm_stats(warm(agent)), batches(1)
    learner, scale, _ = quick(lambda s, b, k: sum_update(s, b, noises(k), 1.0))(s, only(data), jax.random.key(0))
    s = run(agent, s, data)
    check_learner(s.learner, learner, 1e-4)
    close(s.scale, scale)


@pytest.mark.slow
def test_eipo_update_matches_the_equations():
    """A greedy learner without entropy, lambda between the two values."""
    agent = Eipo(DESCENT, DescentGain(), DescentWeight(start=2.0))

    def greedy_update(s, batch, noise):
        p, target = s.params, s.target
        a_next, _ = gaussian(p.actor, batch.one.next_obs, noise[3])
        y = batch.one.reward + batch.one.discount * values(target.critic, 0, batch.one.next_obs, a_next).min(0)
        critic = regress(p.critic, batch, [y])
        value = lambda actor: values(critic, 0, batch.obs, gaussian(actor, batch.obs, noise[4])[0]).min(0).mean()
        actor = descend(lambda actor: -value(actor), p.actor)
        parts = lambda s: (s.params.critic, s.params.actor, s.target.critic, s.target.actor)
        changed = (critic, actor, average(target.critic, critic), average(target.actor, actor))
        return eqx.tree_at(parts, s, changed), value(p.actor)

    @quick
    def want(s, batch, key):
        noise = noises(key)
        mixed, _, value = sum_update(s.mixed, batch, noise, jnp.exp(s.mixed.weight.log))
        greedy, best = greedy_update(s.greedy, batch, noise)
        return mixed, greedy, s.mixed.weight.log - LR * (value - best)

    s, data = warm(agent, lambda s: s.mixed.learner), batches(1)
    s = replace(s, mixed=warm_stats(s.mixed))
    s = eqx.tree_at(lambda s: s.greedy.target.critic, s, fresh(agent, 4).greedy.params.critic)
    mixed, greedy, log = want(s, only(data), jax.random.key(0))
    s = run(agent, s, data)
    check_learner(s.mixed.learner, mixed, 1e-4)
    check_learner(s.greedy, greedy)
    np.testing.assert_allclose(s.mixed.weight.log, log, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------ two agents on one buffer


def disagreement(model, batch):
    p = predictions(model, batch.obs, batch.action)
    deviation = jnp.sqrt(((p - p.mean(0)) ** 2).sum(0) / (len(p) - 1))
    return deviation[:, :3].mean(1) + deviation[:, 3]


def curiosity(model, batch):
    y = jnp.concatenate([batch.one.next_obs - batch.obs, batch.one.reward[:, None]], 1)
    error = (predictions(model, batch.obs, batch.action).mean(0) - standard(model.outputs, y)) ** 2
    return jnp.log(1e-6 + error[:, :3].mean(1) + error[:, 3])


@pytest.mark.parametrize(("intrinsic", "reward"), [(Disagreement, disagreement), (Curiosity, curiosity)])
@pytest.mark.slow
def test_switch_update_matches_the_equations(intrinsic, reward):
    """Two SAC agents on one batch, the second on the intrinsic reward, mask applied."""
    agent = Switch(DESCENT, intrinsic(members=3, hidden=DESCENT.hidden))

    @quick
    def want(s, batch, key):
        n = noises(key)
        task = soft_update(s.task, batch, n)[0]
        intrinsic = batch._replace(one=batch.one._replace(reward=reward(s.model, batch)))
        return task, soft_update(s.curious, intrinsic, (n[3], n[4], n[2]))[0]

    s, data = warm(agent, lambda s: s.task), batches(1)
    stats = statistics(s.model.inputs, only(data).obs @ jnp.ones((3, 5)) + 1)
    s = eqx.tree_at(lambda s: s.model.inputs, s, stats)
    task, curious = want(s, only(data), jax.random.key(0))
    s = run(agent, s, data)
    check_learner(s.task, task)
    check_learner(s.curious, curious)
