"""Strategies with an intrinsic reward: switch, intrinsic sum, EIPO and what is refused."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import (
    DESCENT,
    NOW,
    DescentGain,
    DescentWeight,
    batches,
    close,
    constant_actor,
    constant_critics,
    fresh,
    quick,
    run,
    same,
    small,
)
from maxinforl.core.types import Clock, Shaping
from maxinforl.errors import BadInput
from maxinforl.explore import Eipo, Epsilon, Fixed, IntrinsicSum, MaxInfo, Plain, Switch, Tied
from maxinforl.explore.strategy import MODEL, SECOND_LEARNER, SWITCHING, TARGET_POLICY
from maxinforl.intrinsic import Curiosity, Disagreement
from test_core_learner import Spy, nothing, targets

KEY = jax.random.key(0)
EPS, THEN = small("sac", "eps"), small("sac", "then")


def at(step, total):
    """A clock, or one per step."""
    step = jnp.asarray(step, jnp.int32)
    return Clock(step, jnp.zeros_like(step), jnp.full_like(step, total))


def modes(agent, s, steps, total):
    return np.asarray(quick(jax.vmap(lambda now: agent.exploring(s, now)))(at(jnp.arange(steps), total)))


# ------------------------------------------------------------ switch


def test_epsilon_falls_linearly_and_stops_at_zero():
    """eps(1) = 1, eps(0.25) = 0.1, 0 from 1/6 on."""
    eps = Epsilon()
    got = [float(eps(jnp.asarray(p))) for p in (1.0, 0.625, 0.25, 1 / 6, 0.1, 0.0)]
    np.testing.assert_allclose(got, [1.0, 0.55, 0.1, 0.0, 0.0, 0.0], atol=1e-6)
    assert got[4] == 0 and eps.period == 32


@pytest.mark.slow
def test_the_mode_is_constant_within_a_round():
    """It changes between rounds only, and does change."""
    mode = modes(EPS, fresh(EPS), 32 * 40, 32 * 40).reshape(40, 32)
    assert (mode == mode[:, :1]).all()
    assert mode[0].all() and not mode[-6:].any() and len(np.unique(mode[5:30, 0])) == 2


@pytest.mark.slow
def test_the_share_of_exploring_rounds_is_epsilon():
    """Over many seeds, at several points of training, read at the start of the round."""
    s, total = fresh(EPS), 32 * 100
    dice = jax.vmap(jax.random.key_data)(jax.random.split(KEY, 2000))
    share = quick(jax.vmap(lambda d, now: EPS.exploring(replace(s, dice=d), now).astype(float), (0, None)))
    for turn in (0, 20, 50, 75, 90):
        now = at(turn * 32 + 31, total)
        want = max(0.0, 0.9 * (0.75 - turn / 100) / 0.75 + 0.1)
        assert abs(float(share(dice, now).mean()) - want) < 0.04
    whole = np.mean([modes(EPS, replace(s, dice=d), total, total).mean() for d in dice[:20]])
    assert abs(whole - 0.417) < 0.04


@pytest.mark.slow
def test_explore_then_exploit_switches_once_at_a_quarter():
    """Exactly at 25 % of the steps."""
    s = fresh(THEN)
    for total in (200, 1000, 6000):
        mode = modes(THEN, s, total, total)
        assert mode[: total // 4].all() and not mode[total // 4 :].any()


def two_minded(agent):
    """A switch whose task actor says -2 and whose curious actor says +2, both without noise."""
    s = fresh(agent)
    say = lambda mean: constant_actor(s.task.params.actor, [mean, mean], [-20.0, -20.0])
    return eqx.tree_at(lambda s: (s.task.params.actor, s.curious.params.actor), s, (say(-2.0), say(2.0)))


def test_who_acts_is_who_the_schedule_says():
    """The curious actor while exploring, the task's otherwise and in every evaluation."""
    s, obs = two_minded(THEN), jnp.zeros((2, 3))
    act = quick(lambda now: THEN.act(s, obs, KEY, now, explore=True))
    np.testing.assert_allclose(act(at(24, 100)), np.tanh(2.0), atol=1e-3)
    np.testing.assert_allclose(act(at(25, 100)), -np.tanh(2.0), atol=1e-3)
    judged = quick(lambda now: THEN.act(s, obs, KEY, now, explore=False))
    np.testing.assert_allclose(judged(at(0, 100)), -np.tanh(2.0), atol=1e-6)


@pytest.mark.slow
def test_the_task_agent_knows_nothing_of_the_intrinsic_reward():
    """Whatever the bonus, the task's row is the same."""
    rows = [run(agent, fresh(agent)).task for agent in (EPS, small("sac", "eps", "curiosity"))]
    close(rows[0], rows[1], 1e-6, 1e-7)


def test_the_curious_agent_knows_nothing_of_the_reward():
    """Except through the model, which learns it after this update."""
    s, data = fresh(EPS), batches(1)
    other = data._replace(one=data.one._replace(reward=data.one.reward + 3))
    one, two = run(EPS, s, data), run(EPS, s, other)
    assert same(one.curious, two.curious)
    assert not same(one.task, two.task) and not same(one.model, two.model)


def test_the_curious_agent_respects_terminations():
    """The mask is applied here."""
    agent = Switch(Spy(), Disagreement(members=3, hidden=(16,)))
    s, batch = fresh(agent), batches()
    task, curious = targets(agent, s, batch)
    ended = np.asarray(batch.one.discount) == 0
    reward = agent.intrinsic.reward(s.model, nothing(batch))
    np.testing.assert_allclose(np.asarray(curious[0])[ended], np.asarray(reward)[ended], rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(task[0])[ended], np.asarray(batch.one.reward)[ended])
    assert np.abs(curious[0] - reward)[~ended].min() > 1e-3


# ------------------------------------------------------------ intrinsic sum and EIPO


SUM = IntrinsicSum(Spy(), DescentGain())
PAIR = Eipo(Spy(), DescentGain(), DescentWeight())


def test_lambda_holds_the_task_value_at_the_greedy_agents():
    """Grows when mean Q(pi) < mean Q*(pi_E), shrinks when above."""
    agent = Eipo(DESCENT, DescentGain(), DescentWeight())

    def log(mixed, greedy):
        s = fresh(agent)
        s = eqx.tree_at(lambda s: s.mixed.learner, s, constant_critics(s.mixed.learner, [[mixed] * 2, [0.0] * 2]))
        s = replace(s, greedy=constant_critics(s.greedy, [[greedy] * 2]))
        return float(quick(lambda s, b: agent.actor_step(s, b, nothing(b), KEY, NOW)[0])(s, batches()).mixed.weight.log)

    np.testing.assert_allclose([log(1.0, 3.0), log(3.0, 1.0), log(2.0, 2.0)], [0.2, -0.2, 0.0], atol=1e-5)


def test_a_large_lambda_leaves_the_extrinsic_gradient_alone():
    agent = IntrinsicSum(DESCENT, DescentGain(), Fixed(1e8))
    s, batch = fresh(agent), batches()
    step = lambda shaping: quick(lambda s: agent.learner.actor_step(s, batch, nothing(batch), KEY, NOW, shaping)[0])
    want = step(Shaping((None, None), (1.0, 0.0), entropy=None))(s.learner)
    got = quick(lambda s: agent.actor_step(s, batch, nothing(batch), KEY, NOW)[0])(s)
    close(got.learner.params.actor, want.params.actor)
    unit = replace(agent, weight=Fixed(1.0))
    other = quick(lambda s: unit.actor_step(s, batch, nothing(batch), KEY, NOW)[0])(
        replace(s, weight=Fixed(1.0).init())
    )
    weight = lambda s: np.asarray(s.learner.params.actor.head.layers[0].weight)
    assert np.abs(weight(other) - weight(got)).max() > 1e-4


def test_the_intrinsic_critic_is_endless_and_carries_the_entropy():
    """The mask touches the task's target only, the temperature the intrinsic one's only."""
    s, batch = fresh(SUM), batches()
    (y,) = targets(SUM, s, batch)
    (masked,) = targets(SUM, s, batch._replace(one=batch.one._replace(discount=jnp.zeros(8))))
    np.testing.assert_array_equal(masked[1], y[1])
    np.testing.assert_array_equal(masked[0], batch.one.reward)
    hot = eqx.tree_at(lambda s: s.learner.alpha.log, s, jnp.asarray(2.0))
    (warmer,) = targets(SUM, hot, batch)
    np.testing.assert_array_equal(warmer[0], y[0])
    assert np.abs(warmer[1] - y[1]).min() > 1e-3


def test_the_greedy_agent_has_no_entropy_and_never_acts():
    s, batch = fresh(PAIR), batches()
    _, y = targets(PAIR, s, batch)
    hot = eqx.tree_at(lambda s: (s.greedy.alpha.log, s.mixed.learner.alpha.log), s, (jnp.asarray(2.0),) * 2)
    np.testing.assert_array_equal(targets(PAIR, hot, batch)[1], y)
    after = run(PAIR, s)
    assert same(after.greedy.alpha, s.greedy.alpha) and not same(after.greedy.params, s.greedy.params)
    obs = batch.obs
    for explore in (True, False):
        act = quick(lambda s, explore=explore: PAIR.act(s, obs, KEY, NOW, explore=explore))
        np.testing.assert_array_equal(act(s), act(replace(s, greedy=fresh(PAIR, 8).greedy)))
        mixed = Plain(PAIR.base).act(s.mixed, obs, KEY, NOW, explore=explore)
        np.testing.assert_allclose(act(s), mixed, rtol=1e-5, atol=1e-6)


def test_the_intrinsic_reward_is_standardised_with_the_statistics_before_it():
    """Use first, then update with the raw values of the batch."""
    s, batch = fresh(SUM), batches()
    s = replace(s, scale=s.scale.update(jnp.asarray([1.0, 5.0])))
    raw = SUM.intrinsic.score(s.model, batch.obs, batch.action)
    (y,) = targets(SUM, s, batch._replace(gamma=jnp.zeros(8)))
    np.testing.assert_allclose(y[1], (raw - 3.0) / 2.0, rtol=1e-5, atol=1e-5)
    close(run(SUM, s, batches(1)).scale, s.scale.update(raw))


# ------------------------------------------------------------ refusals


def test_curiosity_cannot_drive_maxinfo():
    with pytest.raises(BadInput, match="does not implement score"):
        MaxInfo(intrinsic=Curiosity())


def test_a_weight_cannot_be_tied_to_a_temperature_that_is_not_there():
    with pytest.raises(BadInput, match="temperature"):
        MaxInfo(small("ddpg").base, weight=Tied())


def test_a_strategys_keys_are_none_of_its_bases():
    """`split(key, n)[i]` is `fold_in(key, i)`: a small constant would give a strategy the key of a part of its base."""
    data = lambda key: tuple(jax.random.key_data(key).tolist())
    key = jax.random.key(0)
    own = [data(jax.random.fold_in(key, name)) for name in (MODEL, TARGET_POLICY, SECOND_LEARNER, SWITCHING)]
    base = {data(part) for n in (2, 3, 5, 64) for part in jax.random.split(key, n)}
    assert len(set(own)) == 4 and not base & set(own)
    assert data(jax.random.split(key, 5)[1]) == data(jax.random.fold_in(key, 1))
