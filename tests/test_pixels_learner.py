"""DrQ, DrQv2 and their MaxInfo versions at the level of one update."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import NOW, close, constant_critics, finite, fresh, leaves, quick, run, same
from maxinforl.algorithms import BASES, NOISES, algorithm, compose, with_noise
from maxinforl.core.encoders import Pixels
from maxinforl.core.multiplier import Fixed, Tuned
from maxinforl.core.policies import Linear, NoisyDeterministic, constant
from maxinforl.core.types import Shaping
from maxinforl.errors import BadInput
from maxinforl.explore import MaxInfo
from pixel_helpers import LATENT, SPEC, batches, named

pytestmark = pytest.mark.slow

KEY = jax.random.key(3)


@cache
def critic_step(agent):
    return quick(lambda s, data: agent.critic_step(s, data, KEY, NOW))


@cache
def actor_step(agent):
    """(state, batch) -> (state, metrics), with the latents a critic step would have handed on."""

    def step(s, data):
        learner = getattr(agent, "learner", agent.base)
        return agent.actor_step(s, data, learner.latents(s.learner, data), KEY, NOW)

    return quick(step)


def with_learner(state, learner):
    return eqx.tree_at(lambda s: s.learner, state, learner)


# ------------------------------------------------------------ values of one learner


def test_bases_are_the_papers_values():
    drq, drqv2 = BASES["drq"], BASES["drqv2"]
    assert drq == replace(BASES["sac"], encoder=Pixels())
    assert (drq.lr, drq.tau, drq.nstep, drq.alpha.start, drq.encoder.latent) == (3e-4, 0.005, 1, 1.0, 50)
    assert (drqv2.lr, drqv2.tau, drqv2.nstep, drqv2.policy_delay, drqv2.hidden) == (1e-4, 0.01, 3, 1, (256, 256))
    assert drqv2.policy == NoisyDeterministic(clip=0.3) and drqv2.encoder == Pixels()
    assert BASES["drm"] == replace(drqv2, plasticity=BASES["drm"].plasticity)


def test_the_information_gain_replaces_the_falling_noise():
    for algo in ("maxinfo-drqv2", "maxinfo-drm"):
        agent = algorithm(algo)
        assert isinstance(agent, MaxInfo) and agent.weight == Tuned(lr=1e-4) and agent.intrinsic.lr == 1e-4
        assert agent.base == replace(BASES[algo.removeprefix("maxinfo-")], noise=constant(0.2))
    drq = algorithm("maxinfo-drq")
    assert isinstance(drq, MaxInfo) and drq.weight == Tuned(lr=3e-4) and drq.intrinsic.lr == 3e-4


def test_schedules_have_their_ends_and_stay_there():
    noise = BASES["drqv2"].noise
    at = [float(noise(jnp.asarray(t))) for t in (0, 250_000, 500_000, 3_000_000)]
    np.testing.assert_allclose(at, [1.0, 0.55, 0.1, 0.1], rtol=1e-6)
    assert float(NOISES["linear-long"](jnp.asarray(1_000_000))) == pytest.approx(0.55)
    for name, level in (("constant", 0.2), ("zero", 0.0)):
        assert [float(NOISES[name](jnp.asarray(t))) for t in (0, 10**6)] == pytest.approx([level, level])


def test_noise_is_chosen_by_name():
    agent = with_noise(algorithm("maxinfo-drqv2"), "zero")
    assert agent.base.noise == constant(0.0) and agent.base.nstep == 3
    with pytest.raises(BadInput, match="unknown noise 'liner': did you mean 'linear'"):
        with_noise(algorithm("drqv2"), "liner")
    with pytest.raises(BadInput, match="no effect on a policy that is random itself"):
        with_noise(algorithm("drq"), "zero")


# ------------------------------------------------------------ one encoder, trained by the critic alone


@pytest.mark.slow
def test_the_actors_loss_gives_no_gradient_to_the_convolutions():
    agent, data = named("drq"), batches(1, None)
    state = fresh(agent, spec=SPEC)

    def loss(encoder):
        learner = eqx.tree_at(lambda s: s.params.encoder, state.learner, encoder)
        latents = agent.base.latents(state.learner, data)
        return agent.base.actor_step(learner, data, latents, KEY, NOW)[1]["train/actor_loss"]

    slope = quick(jax.grad(loss))(state.learner.params.encoder)
    assert all(not x.any() for x in leaves(slope).values())


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["drq", "maxinfo-drq", "drqv2", "maxinfo-drqv2"])
def test_only_the_critic_trains_the_convolutions(algo):
    agent = named(algo)
    data, state = batches(agent.base.nstep, None), fresh(agent, spec=SPEC)
    evaluated = critic_step(agent)(state, data)[0].learner
    improved = actor_step(agent)(state, data)[0].learner
    before = state.learner
    assert same(improved.params.encoder, before.params.encoder) and same(improved.value_opt, before.value_opt)
    old, new = leaves(before.params), leaves(evaluated.params)
    assert {name for name in old if np.array_equal(old[name], new[name])} == {n for n in old if n.startswith(".actor")}
    assert not same(improved.params.actor, before.params.actor)


@pytest.mark.slow
def test_the_actor_reads_the_encoder_the_critic_has_just_trained():
    agent = named("drqv2", lr=1e-2, noise=constant(0.0))
    base, data = agent.base, batches(3, None)
    before = fresh(agent, spec=SPEC)
    after, _, latents = critic_step(agent)(before, data)
    _, metrics = quick(lambda s: agent.actor_step(s, data, latents, KEY, NOW))(after)

    def loss(encoder, s):
        features = base.encoder.features(encoder, data.obs)
        a = jnp.tanh(base.pi(s.params.actor, features))
        return -base.q(s.params.critic, features, a)[0].min(0).mean()

    wanted, stale = (quick(loss)(s.learner.params.encoder, after.learner) for s in (after, before))
    np.testing.assert_allclose(metrics["train/actor_loss"], wanted, rtol=1e-5)
    assert abs(wanted - stale) > 1e-4


def test_the_critic_regresses_on_targets_of_the_encoder_before_the_step():
    """DrQv2: y = R + discount * min Q(s_n, a_n), target trunk and heads on the current encoder."""
    agent = named("drqv2", noise=constant(0.0))
    base, data, state = agent.base, batches(3, None), fresh(agent, spec=SPEC)
    # a target critic unlike the online one
    state = eqx.tree_at(lambda s: s.learner.target, state, fresh(agent, 1, SPEC).learner.target)
    _, metrics, _ = critic_step(agent)(state, data)

    def loss(s):
        features = base.encoder.features(s.params.encoder, data.nstep.next_obs)  # type: ignore[union-attr]
        a = jnp.tanh(base.pi(s.params.actor, features))
        y = data.nstep.reward + data.nstep.discount * base.q(s.target.critic, features, a)[0].min(0)  # type: ignore[union-attr]
        q = base.q(s.params.critic, base.encoder.features(s.params.encoder, data.obs), data.action)
        return jnp.square(q[0] - y).mean()

    np.testing.assert_allclose(metrics["train/critic_loss"], quick(loss)(state.learner), rtol=1e-5)


@pytest.mark.slow
def test_there_is_one_encoder_and_heads_lag():
    agent = named("maxinfo-drq")
    state = fresh(agent, spec=SPEC)
    after = run(agent, state, batches(1)).learner
    assert not [name for name in leaves(after.target) if "encoder" in name]
    tau = agent.base.tau
    target = jax.tree.map(lambda s, f: (1 - tau) * s + tau * f, state.learner.target.actor, after.params.actor)
    close(after.target.actor, target)
    assert not same(after.target.critic, after.params.critic)


def test_latents_come_through_the_target_trunk_of_the_augmented_batch():
    agent = named("maxinfo-drqv2")
    base, data, state = agent.learner, batches(3, None), fresh(agent, spec=SPEC).learner
    state = eqx.tree_at(lambda s: s.target, state, fresh(agent, 1, SPEC).learner.target)
    found = quick(lambda s: base.latents(s, data))(state)
    features = [base.encoder.features(state.params.encoder, x) for x in (data.obs, data.one.next_obs)]
    np.testing.assert_allclose(found.z, state.target.critic.trunk(features[0]), atol=1e-5)
    np.testing.assert_allclose(found.next_z, state.target.critic.trunk(features[1]), atol=1e-5)
    np.testing.assert_allclose(found.extra, base.encoder.extra(features[0]), atol=1e-5)
    np.testing.assert_array_equal(found.reward, data.one.reward)
    assert found.z.shape == (6, LATENT) and not jnp.allclose(found.z, state.params.critic.trunk(features[0]))


# ------------------------------------------------------------ the information gain in the value itself (DrQ)


@pytest.mark.slow
def test_maxinfo_with_no_weight_is_drq():
    """The law of alpha2 = 0: within 1e-6, because the two programs are fused differently."""
    plain, maxinfo = named("drq"), replace(named("maxinfo-drq"), weight=Fixed(0.0))
    a, b = fresh(plain, spec=SPEC), fresh(maxinfo, spec=SPEC)
    assert same(a.learner, b.learner)
    for seed in range(3):
        data = batches(1, seed=seed)
        a, b = run(plain, a, data, seed), run(maxinfo, b, data, seed)
    close(a.learner, b.learner, rtol=1e-5, atol=1e-6)


def test_the_gain_enters_drqs_target_at_the_next_latent():
    agent = named("maxinfo-drq")
    base, data, state = agent.learner, batches(1, None), fresh(agent, spec=SPEC)
    latents = quick(lambda s: base.latents(s, data))(state.learner)

    def target(weight):
        seen = []
        bonus = lambda z, a: (weight * agent.intrinsic.score(state.model, z, a), seen.append((z, a)))
        y = base.td_target(state.learner, data, latents, KEY, NOW, Shaping(bonus=bonus))
        return y[0], seen[0]

    (with_gain, (z, a)), (without, _) = target(2.0), target(0.0)
    gain = agent.intrinsic.score(state.model, latents.next_z, a)
    np.testing.assert_array_equal(z, latents.next_z)
    np.testing.assert_allclose(with_gain - without, data.one.discount * 2.0 * gain, rtol=1e-4, atol=1e-5)


def test_the_gain_moves_drqs_actor():
    agent = named("maxinfo-drq")
    data, state = batches(1, None), fresh(agent, spec=SPEC)
    other = replace(state, model=fresh(agent, 1, SPEC).model)
    a, b = (actor_step(agent)(s, data)[0].learner.params.actor for s in (state, other))
    assert not same(a, b)


# ------------------------------------------------------------ the information gain in its own critic (DrQv2)


@pytest.fixture(scope="module")
def critics():
    """MaxInfoDrQv2 whose critics are constants: 3 and 5 for the task, 7 and 11 for the gain."""
    agent = named("maxinfo-drqv2")
    state = fresh(agent, spec=SPEC)
    return agent, with_learner(state, constant_critics(state.learner, [[3.0, 5.0], [7.0, 11.0]]))


def closed_form(state, agent, data, mask) -> float:
    """mean (Q_ext - y_ext)**2 + mean (Q_int - y_int)**2, means over critics and batch."""
    latents = agent.learner.latents(state.learner, data)
    gain = state.scale(agent.intrinsic.score(state.model, latents.z, data.action))
    task = data.nstep.reward + data.nstep.discount * 3.0
    own = gain + mask * 7.0
    error = lambda y, values: np.mean([np.square(v - np.asarray(y)) for v in values])
    return error(task, (3.0, 5.0)) + error(own, (7.0, 11.0))


def test_the_gains_critic_ignores_terminations_and_the_tasks_does_not(critics):
    agent, state = critics
    data = batches(3, None)
    assert 0 < (data.one.discount == 0).sum() < 6
    scale = eqx.tree_at(lambda n: (n.mean, n.std), state.scale, (jnp.asarray(2.0), jnp.asarray(0.5)))
    state = replace(state, scale=scale)
    loss = critic_step(agent)(state, data)[1]["train/critic_loss"]
    np.testing.assert_allclose(loss, closed_form(state, agent, data, data.gamma), rtol=1e-4)
    ended = data._replace(one=data.one._replace(discount=jnp.zeros(6)))
    assert critic_step(agent)(state, ended)[1]["train/critic_loss"] == loss
    ended = data._replace(nstep=data.nstep._replace(discount=jnp.zeros(6)))  # type: ignore[union-attr]
    assert critic_step(agent)(state, ended)[1]["train/critic_loss"] != loss


@pytest.mark.slow
def test_an_episodic_gain_stops_at_terminations(critics):
    agent, state = critics
    data, agent = batches(3, None), replace(agent, episodic=True)
    loss = critic_step(agent)(state, data)[1]["train/critic_loss"]
    np.testing.assert_allclose(loss, closed_form(state, agent, data, data.one.discount), rtol=1e-4)


def test_without_weight_the_actors_loss_is_drqv2s():
    plain, maxinfo = named("drqv2"), named("maxinfo-drqv2")
    maxinfo = replace(maxinfo, weight=Fixed(0.0), base=plain.base)
    data, a, b = batches(3, None), fresh(plain, spec=SPEC), fresh(maxinfo, spec=SPEC)
    assert same(a.learner.params.actor, b.learner.params.actor)
    (a, first), (b, second) = actor_step(plain)(a, data), actor_step(maxinfo)(b, data)
    np.testing.assert_allclose(first["train/actor_loss"], second["train/actor_loss"], rtol=1e-5)
    close(a.learner.params.actor, b.learner.params.actor)


def test_the_actor_maximises_both_critics_by_their_weight(critics):
    agent, state = critics
    data = batches(3, None)
    state = eqx.tree_at(lambda s: s.weight.log, state, jnp.log(0.5))
    loss = actor_step(agent)(state, data)[1]["train/actor_loss"]
    np.testing.assert_allclose(loss, -(3.0 + 0.5 * 7.0), rtol=1e-6)


def test_the_gain_itself_gives_drqv2s_actor_no_gradient():
    agent = named("maxinfo-drqv2")
    data, state = batches(3, None), fresh(agent, spec=SPEC)
    other = replace(state, model=fresh(agent, 1, SPEC).model)
    (a, first), (b, second) = (actor_step(agent)(s, data) for s in (state, other))
    assert same(a.learner, b.learner)
    assert first["explore/info_gain"] != second["explore/info_gain"]


@pytest.mark.slow
def test_the_gains_weight_and_statistics_move_on_drqv2():
    agent = named("maxinfo-drqv2")
    state = fresh(agent, spec=SPEC)
    after = run(agent, state, batches(3))
    assert after.scale.count == 12 and after.weight.log != state.weight.log  # policy and target policy, 6 each
    assert finite(after)


def test_next_actions_of_the_two_critics_have_their_own_noise():
    agent = named("maxinfo-drqv2", noise=constant(0.2))
    base, data, state = agent.learner, batches(3, None), fresh(agent, spec=SPEC).learner
    data = data._replace(one=data.nstep._replace(), nstep=data.nstep)  # type: ignore[union-attr]
    alike = eqx.tree_at(  # both channels the same critic
        lambda s: s.target.critic.heads, state, jax.tree.map(lambda x: jnp.stack([x[0]] * 2), state.target.critic.heads)
    )
    copied = data.one._replace(next_obs=data.one.next_obs + 0)
    shaping = Shaping(backup=(None, copied), weight=(1.0, 1.0))
    y = base.td_target(alike, data, base.latents(alike, data), KEY, NOW, shaping)
    assert not jnp.allclose(y[0], y[1])
    calm = replace(base, noise=constant(0.0))
    y = calm.td_target(alike, data, base.latents(alike, data), KEY, NOW, shaping)
    np.testing.assert_allclose(y[0], y[1], rtol=1e-5)


# ------------------------------------------------------------ invariant 24: noise


def test_noise_of_updates_is_clipped_and_that_of_acting_is_not():
    policy, out = BASES["drqv2"].policy, jnp.zeros((4000, 2))
    updates, _ = policy.sample(out, KEY, 0.25)
    acting = policy.act(out, KEY, 0.25)
    assert float(jnp.abs(updates).max()) == pytest.approx(0.3)
    np.testing.assert_allclose(jnp.clip(acting, -0.3, 0.3), updates, atol=1e-6)
    assert 0.6 < float(jnp.abs(acting).max()) <= 1.0


def test_the_gradient_through_a_saturated_clip_is_that_of_tanh():
    policy, out = BASES["drqv2"].policy, jnp.full((500, 1), 2.0)
    action = lambda out: policy.sample(out, KEY, 1.0)[0]
    assert (action(out) == 1.0).any()
    np.testing.assert_allclose(jax.grad(lambda o: action(o).sum())(out), 1 - jnp.tanh(out) ** 2, rtol=1e-5)


def test_noise_follows_the_schedule_in_updates_and_when_acting():
    base = named("drqv2", noise=Linear(1.0, 0.0, 10)).base
    state = fresh(replace(algorithm("drqv2"), base=base), spec=SPEC).learner
    late, obs = NOW._replace(update=jnp.asarray(10)), batches(1, None).obs
    assert float(base.sigma(state, NOW)) == pytest.approx(0.5)
    act = quick(lambda now, k: base.act(state, obs, k, now, explore=True))
    assert np.array_equal(act(late, KEY), act(late, jax.random.key(9)))
    assert not np.array_equal(act(NOW, KEY), act(NOW, jax.random.key(9)))
    calm = base.act(state, obs, KEY, NOW, explore=False)
    np.testing.assert_allclose(act(late, KEY), calm, atol=1e-5)


def test_maxinfo_cannot_be_driven_by_curiosity_on_pixels():
    with pytest.raises(BadInput, match="Curiosity does not implement score"):
        compose("drqv2", "maxinfo", "curiosity")
