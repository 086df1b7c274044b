"""The learner: targets, improvement, temperature, target networks, acting; SAC, MaxInfo, REDQ, OAC."""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import (
    DESCENT,
    NOW,
    SPEC,
    Descent,
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
    transition,
)
from maxinforl.algorithms import BASES
from maxinforl.core.actor_critic import ActorCritic, polyak
from maxinforl.core.policies import Linear, NoisyDeterministic
from maxinforl.core.types import Latents, Shaping
from maxinforl.core.update import update
from maxinforl.explore import Fixed, MaxInfo, Plain, Tied
from maxinforl.intrinsic import InfoGain
from maxinforl.replay import Replay

KEY = jax.random.key(0)
SEEN: list = []


@dataclass(frozen=True)
class Spy(Descent):
    """A learner that tells its targets."""

    def td_target(self, *args):
        y = super().td_target(*args)
        SEEN.append(y)
        return y


def targets(agent, s, batch, key=KEY):
    """What the critics of an agent on a Spy regress on; one entry per learner."""

    @quick
    def run(s, batch, key):
        SEEN.clear()
        agent.critic_step(s, batch, key, NOW)
        return tuple(SEEN)

    return run(s, batch, key)


def nothing(batch):
    return Latents(batch.obs, batch.action, batch.one.reward, batch.one.next_obs, batch.obs[:, :0])


# ------------------------------------------------------------ targets


@pytest.mark.slow
def test_the_gain_enters_the_target_inside_the_bracket():
    """y(alpha2) - y(0) = gamma m alpha2 I(s', a') exactly; with m = 0, y = r."""
    agent = MaxInfo(Spy(), DescentGain(), Fixed(0.7))
    s, batch = fresh(agent), batches()
    s = replace(s, scale=s.scale.update(jnp.asarray([5.0, 9.0])))
    (y,), (plain,) = (targets(replace(agent, weight=w), s, batch) for w in (Fixed(0.7), Fixed(0.0)))
    y0 = targets(replace(agent, weight=Fixed(0.0)), replace(s, weight=Fixed(0.0).init()), batch)[0]
    k_action = jax.random.split(jax.random.split(KEY)[0], 3)[0]
    a, _ = agent.base.policy.sample(agent.base.pi(s.learner.params.actor, batch.one.next_obs), k_action)
    gain = s.scale(agent.intrinsic.score(s.model, batch.one.next_obs, a))
    np.testing.assert_allclose((y - y0)[0], batch.one.discount * 0.7 * gain, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(plain, y)  # the weight is the state's, not the configuration's
    ended = np.asarray(batch.one.discount) == 0
    assert ended.any() and not ended.all()
    np.testing.assert_array_equal(np.asarray(y[0])[ended], np.asarray(batch.one.reward)[ended])


def test_a_truncated_transition_bootstraps_and_a_terminated_one_does_not():
    """From the environment's flags to the critic's target."""
    agent = Plain(Spy())
    s = fresh(agent)
    s = replace(s, learner=constant_critics(s.learner, [[10.0, 20.0]]))
    yes, no = np.ones(1, bool), np.zeros(1, bool)
    for flags, bootstraps in (((no, no), 1), ((no, yes), 1), ((yes, no), 0), ((yes, yes), 0)):
        replay = Replay.create(1, 4, SPEC.obs, jnp.float32, SPEC.action).begin(jnp.zeros((1, 3)))
        replay = replay.add(transition(terminated=flags[0], truncated=flags[1], reward=np.ones(1, np.float32)))
        batch = replay.sample(KEY, (8,), 0.9)
        np.testing.assert_allclose(batch.one.discount, 0.9 * bootstraps)
        (y,) = targets(agent, s, batch)
        k_action = jax.random.split(jax.random.split(KEY)[0], 3)[0]
        out = agent.base.pi(s.learner.params.actor, batch.one.next_obs)
        soft = 10.0 - 1.0 * agent.base.policy.sample(out, k_action)[1]
        np.testing.assert_allclose(y[0], 1 + 0.9 * bootstraps * soft, rtol=1e-5)


def test_targets_are_constants():
    """No gradient passes through a target."""
    base, batch = DESCENT, batches()
    s = fresh(Plain(base)).learner
    arrays, rest = eqx.partition(s, eqx.is_inexact_array)
    y = lambda s: base.td_target(eqx.combine(s, rest), batch, nothing(batch), KEY, NOW, Shaping()).sum()
    slope = quick(jax.grad(y))(arrays)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(slope))


# ------------------------------------------------------------ improvement


def improved(agent, s, batch, key=KEY):
    """The state after one actor step."""
    return quick(lambda s, b, k: agent.actor_step(s, b, nothing(b), k, NOW)[0])(s, batch, key)


def test_the_actors_gradient_flows_through_the_ensemble():
    """Another ensemble, another actor; and nothing but actor, target actor, weights and scale changes."""
    agent = MaxInfo(DESCENT, DescentGain(), DescentWeight())
    s, batch = fresh(agent), batches()
    other = replace(s, model=fresh(agent, 5).model)
    after, elsewhere = improved(agent, s, batch), improved(agent, other, batch)
    changed = lambda a, b: np.abs(a.params.actor.head.layers[0].weight - b.params.actor.head.layers[0].weight).max()
    assert changed(after.learner, elsewhere.learner) > 1e-4
    assert same(after.model, s.model)
    untouched = lambda s: (s.learner.params.critic, s.learner.target.critic, s.learner.value_opt)
    assert same(untouched(after), untouched(s))
    close(after.learner.target.actor, polyak(s.learner.target.actor, after.learner.params.actor, DESCENT.tau))


def test_the_critic_step_leaves_the_actor_alone():
    """And the actor's loss does not train critics (above)."""
    agent = MaxInfo(DESCENT, DescentGain(), DescentWeight())
    s, batch = fresh(agent), batches()
    after, _, seen = quick(lambda s, b: agent.critic_step(s, b, KEY, NOW))(s, batch)
    kept = lambda s: (s.learner.params.actor, s.learner.target.actor, s.learner.alpha, s.model, s.scale, s.weight)
    assert same(kept(after), kept(s))
    assert not same(after.learner.params.critic, s.learner.params.critic)
    close(after.learner.target.critic, polyak(s.learner.target.critic, after.learner.params.critic, DESCENT.tau))
    np.testing.assert_array_equal(seen.next_z, batch.one.next_obs)


# ------------------------------------------------------------ the two temperatures


@dataclass(frozen=True)
class Rightness(DescentGain):
    """An intrinsic reward that likes large first actions."""

    def score(self, model, z, action):
        return action[..., 0]


def held(target_mean, seed=0, key=KEY):
    """ln alpha2 after an actor step in which the target policy's actions centre on `target_mean`, the policy's on 0."""
    agent = MaxInfo(DESCENT, Rightness(), DescentWeight())
    s = fresh(agent, seed)
    narrow = [-6.0, -6.0]
    actors = lambda s: (s.learner.params.actor, s.learner.target.actor)
    actor = constant_actor(s.learner.params.actor, [0.0, 0.0], narrow)
    target = constant_actor(s.learner.params.actor, [target_mean, 0.0], narrow)
    return float(improved(agent, eqx.tree_at(actors, s, (actor, target)), batches(), key).weight.log)


def test_alpha2_rises_iff_the_policy_gathers_less_than_the_target_policy():
    assert held(0.5) > 0.01
    assert held(-0.5) < -0.01


def test_target_policy_and_policy_draw_their_own_noise():
    """Independent noise, so that equal policies have a slack that is zero only on average."""
    slacks = [held(0.0, key=jax.random.key(i)) for i in range(4)]
    assert all(abs(x) > 1e-6 for x in slacks) and min(slacks) < 0 < max(slacks)


def test_the_target_policy_starts_as_the_policy():
    """Equal at the start, so with shared noise the slack is 0."""
    agent = MaxInfo(DESCENT, DescentGain(), DescentWeight())
    s, batch = fresh(agent), batches()
    assert same(s.learner.target.actor, s.learner.params.actor)
    assert same(s.learner.target.critic, s.learner.params.critic)
    base = agent.base
    _, _, improvement = quick(lambda s: base.actor_step(s, batch, nothing(batch), KEY, NOW))(s.learner)
    shared = jax.random.split(KEY)[0]
    target = quick(lambda s: base.target_action(s, batch.obs, shared, NOW))(s.learner)
    np.testing.assert_allclose(target, improvement.action, rtol=1e-5, atol=1e-6)


def test_slow_networks_are_the_recursion_of_their_fast_ones():
    """After k updates the target is (1 - tau) target + tau online applied k times; there is one encoder."""
    agent = MaxInfo(DESCENT, DescentGain(), DescentWeight())
    s = fresh(agent)
    actor, critic = s.learner.target.actor, s.learner.target.critic
    for i in range(3):
        s = run(agent, s, seed=i)
        actor = polyak(actor, s.learner.params.actor, 0.005)
        critic = polyak(critic, s.learner.params.critic, 0.005)
    close((s.learner.target.actor, s.learner.target.critic), (actor, critic))
    assert not hasattr(s.learner.target, "encoder")


def test_alpha1_rises_iff_the_entropy_is_below_minus_the_number_of_actions():
    agent = Plain(DESCENT)

    def log(log_std):
        s = fresh(agent)
        actor = constant_actor(s.learner.params.actor, [0.0, 0.0], [log_std, log_std])
        s = eqx.tree_at(lambda s: s.learner.params.actor, s, actor)
        return float(improved(agent, s, batches()).learner.alpha.log)

    start = float(np.log(0.5))
    # the entropy of two actions with deviation exp(x) is about 2 (1.42 + x), the target -2: balance near x = -2.42
    assert log(-3.0) > start + 0.01
    assert log(-1.9) < start - 0.01


def test_tied_weight_is_the_entropys_temperature():
    """The paper's one-temperature form."""
    agent = MaxInfo(DESCENT, DescentGain(), Tied())
    s = fresh(agent)
    assert float(agent.alpha2(s)) == pytest.approx(0.5)
    s = run(agent, s)
    np.testing.assert_allclose(agent.alpha2(s), np.exp(s.learner.alpha.log), rtol=1e-6)


def test_a_users_own_target_holds_the_gain():
    """The weight moves against what the function returns instead of the target policy's gain."""
    low, high = (
        MaxInfo(DESCENT, DescentGain(), DescentWeight(), target=target)
        for target in (lambda gain, clock: gain - 5.0, lambda gain, clock: gain * 0 + 5.0)
    )
    s, batch = fresh(low), batches()
    assert float(improved(low, s, batch).weight.log) < -0.1
    assert float(improved(high, s, batch).weight.log) > 0.1


# ------------------------------------------------------------ acting


@pytest.mark.parametrize("base", ["sac", "oac", "ddpg", "droq"])
def test_evaluation_is_tanh_of_the_mean_and_draws_nothing(base):
    """The same for every key and every clock, with or without optimism."""
    agent = small(base)
    s, obs = fresh(agent), batches().obs
    act = quick(lambda s, k: agent.act(s, obs, k, NOW, explore=False))
    a = act(s, KEY)
    np.testing.assert_array_equal(a, act(s, jax.random.key(9)))
    out = agent.base.pi(s.learner.params.actor, obs)
    np.testing.assert_allclose(a, np.tanh(out[:, :2]), rtol=1e-5, atol=1e-6)
    jaxpr = str(jax.make_jaxpr(lambda s, k: agent.act(s, obs, k, NOW, explore=False))(s, KEY))
    assert "random" not in jaxpr and "threefry" not in jaxpr


def test_acting_samples_the_policy():
    agent = small("sac")
    s, obs = fresh(agent), batches().obs
    a = quick(lambda k: agent.act(s, obs, k, NOW, explore=True))(KEY)
    want, _ = agent.base.policy.sample(agent.base.pi(s.learner.params.actor, obs), KEY)
    np.testing.assert_allclose(a, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_optimism_moves_only_the_behaviour():
    """Learning is SAC's bit for bit, sampling is shifted, and c = 0 is plain SAC sampling."""
    sac, oac = small("sac"), small("oac")
    s, obs = fresh(sac), batches().obs
    assert same(run(sac, s), run(oac, s))
    act = lambda agent: quick(lambda k: agent.act(s, obs, k, NOW, explore=True))(KEY)
    still = replace(oac, base=replace(oac.base, optimism=replace(oac.base.optimism, shift=0.0)))
    np.testing.assert_allclose(act(still), act(sac), rtol=1e-5, atol=1e-6)
    assert np.abs(act(oac) - act(sac)).max() > 0.05


@pytest.mark.slow
def test_optimism_follows_the_learners_online_critics():
    """The shift points where the upper bound of the online critics grows."""
    agent = small("oac")
    s, obs = fresh(agent), batches().obs
    base, learner = agent.base, s.learner
    learner = eqx.tree_at(
        lambda s: s.target.critic, learner, fresh(agent, 7).learner.params.critic
    )  # not the target ones
    out = base.pi(learner.params.actor, obs)
    q = lambda a: base.q(learner.params.critic, obs, a)[0]
    want, _ = base.policy.sample(base.optimism(base.policy, out, q), KEY)
    got = quick(lambda s: agent.act(s, obs, KEY, NOW, explore=True))(replace(s, learner=learner))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------ REDQ


@pytest.mark.slow
def test_two_distinct_target_critics_per_update():
    """The minimum of two of four, never of one critic twice, one draw for the batch and for all channels."""
    base = Descent(critics=4, num_min_critics=2, channels=2)
    batch = batches(gamma=1.0)
    batch = batch._replace(one=batch.one._replace(reward=jnp.zeros(8), discount=jnp.ones(8)))
    s = constant_critics(fresh(Plain(base)).learner, [[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]])
    shaping = Shaping((None, None), (1.0, 1.0), entropy=None)
    y = quick(jax.vmap(lambda k: base.td_target(s, batch, nothing(batch), k, NOW, shaping)))(jax.random.split(KEY, 400))
    y = np.asarray(y)
    assert (y == y[:, :, :1]).all()  # one draw for the batch
    np.testing.assert_array_equal(y[:, 1, 0], y[:, 0, 0] + 10)  # and for the channels
    share = [(y[:, 0, 0] == k).mean() for k in range(4)]
    np.testing.assert_allclose(share, [1 / 2, 1 / 3, 1 / 6, 0], atol=0.08)
    assert share[3] == 0


def test_all_critics_learn_and_the_actor_only_at_the_end_of_a_round():
    """Critics, target critics and model change with every batch, actor, weights and target actor once."""
    steps = []

    class Counting(MaxInfo):
        def critic_step(self, *args):
            steps.append("critic")
            return super().critic_step(*args)

        def actor_step(self, *args):
            steps.append("actor")
            return super().actor_step(*args)

        def model_step(self, *args):
            steps.append("model")
            return super().model_step(*args)

    agent = Counting(
        replace(DESCENT, critics=3, critic_reduction="mean", policy_delay=3), DescentGain(), DescentWeight()
    )
    jax.eval_shape(lambda s: update(agent, s, batches(3), KEY, NOW), fresh(agent))
    assert steps[-3:] == ["critic", "actor", "model"]
    assert set(zip(steps[:-3:2], steps[1:-3:2])) == {("critic", "model")}  # the body of the scan


@pytest.mark.slow
@pytest.mark.parametrize("names", [("redq", "maxinfo"), ("sac", "eps")])
def test_a_round_of_critic_steps_is_those_steps_one_by_one(names):
    """What the scan does is what single calls do, each on its own batch with its own key."""
    agent = small(*names)
    s, data = fresh(agent), batches(3)
    _, k_critic, k_actor = jax.random.split(KEY, 3)
    critic, model = quick(agent.critic_step), quick(agent.model_step)
    one = s
    for i in range(3):
        batch, at = jax.tree.map(lambda x, i=i: x[i], data), NOW._replace(update=NOW.update + i)
        one, _, seen = critic(one, batch, jax.random.fold_in(k_critic, i), at)
        if i == 2:
            one, _ = quick(agent.actor_step)(one, batch, seen, k_actor, at)
        one, _ = model(one, seen)
    close(run(agent, s, data), one, 1e-4, 1e-5)


# ------------------------------------------------------------ DroQ


def test_dropout_follows_its_key_in_values_and_targets():
    """The same without a key, another draw with another, and a target with draws of its own."""
    agent, batch = small("droq"), batches()
    base, s = replace(agent.base, dropout=0.1), fresh(agent).learner
    ones, twos = KEY, jax.random.key(1)
    q = lambda key, critic=s.params.critic: np.asarray(base.q(critic, batch.obs, batch.action, key))
    np.testing.assert_array_equal(q(None), q(None))
    np.testing.assert_array_equal(q(ones), q(ones))
    assert (q(ones) != q(twos)).any() and (q(ones) != q(None)).any()
    twins = replace(s.params.critic, heads=jax.tree.map(lambda x: x[:, [0, 0]], s.params.critic.heads))
    np.testing.assert_array_equal(*q(None, twins)[0])
    assert (q(ones, twins)[0, 0] != q(ones, twins)[0, 1]).any()  # a draw for each critic
    target = lambda base, key: base.td_target(s, batch, nothing(batch), key, NOW, Shaping())[0]
    missing = lambda key: np.asarray(target(base, key) - target(replace(base, dropout=0.0), key))
    assert missing(ones).any() and (missing(ones) != missing(twos)).any()


def test_the_papers_numbers():
    """DroQ (Hiraoka et al. 2022); DDPG with TD3's twin critics and clipped noise."""
    sac, redq, oac = BASES["sac"], BASES["redq"], BASES["oac"]
    droq, ddpg = BASES["droq"], BASES["ddpg"]
    assert (droq.critics, droq.num_min_critics, droq.critic_reduction, droq.policy_delay) == (2, 2, "mean", 20)
    assert droq.update_ratio == redq.update_ratio == 20 and sac.update_ratio == 1
    assert droq == replace(
        sac, critic_reduction="mean", layer_norm=True, dropout=0.01, policy_delay=20, update_ratio=20
    )
    assert ddpg == replace(sac, policy=NoisyDeterministic(clip=0.5), noise=Linear(0.2, 0.2, 1))
    assert sac == ActorCritic()
    assert (sac.gamma, sac.tau, sac.lr, sac.alpha.start, sac.critics, sac.num_min_critics) == (
        0.99,
        0.005,
        3e-4,
        1.0,
        2,
        2,
    )
    assert (sac.hidden, sac.critic_reduction, sac.policy_delay, sac.nstep) == ((256, 256), "min", 1, 1)
    assert (redq.critics, redq.num_min_critics, redq.critic_reduction, redq.policy_delay) == (10, 2, "mean", 20)
    assert (oac.optimism.beta, oac.optimism.shift) == (4.66, 6.86)
    assert isinstance(MaxInfo().intrinsic, InfoGain) and MaxInfo().weight.start == 1.0
