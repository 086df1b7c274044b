"""Intrinsic models: information gain, disagreement, curiosity, random network distillation."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import DescentGain, batches, close, fresh, quick, same, small
from maxinforl.core.normalizer import Normalizer
from maxinforl.core.types import Latents, LatentSpec
from maxinforl.intrinsic import RND, Curiosity, Disagreement, InfoGain, ScoresActions

STATE = LatentSpec(1, 1, 0, delta=True)
TINY = {"members": 3, "hidden": (8,)}
SCORES = [InfoGain(**TINY), Disagreement(**TINY), RND(**TINY, target_hidden=(4,))]
IDS = ["info-gain", "disagreement", "rnd"]


def model_of(intrinsic, spec=STATE, seed=0):
    return quick(lambda k: intrinsic.init(k, spec))(jax.random.key(seed))


def saying(model, outputs):
    """The model with members whose predictions are `outputs` whatever the input."""
    outputs = jnp.asarray(outputs, jnp.float32)
    last = lambda m: (m.members.layers[-1].weight, m.members.layers[-1].bias)
    return eqx.tree_at(last, model, (jnp.zeros_like(last(model)[0][: len(outputs)]), outputs))


def latents(seed=0, size=8, z=1, extra=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(size, *shape)), jnp.float32)
    return Latents(draw(z), draw(1), draw(), draw(z), draw(extra))


Z, A = latents().z, latents().action


# ------------------------------------------------------------ scores


@pytest.mark.parametrize("intrinsic", SCORES, ids=IDS)
def test_members_that_agree_score_zero_with_a_finite_gradient(intrinsic):
    """Exactly 0, and no NaN in the gradient with respect to the action."""
    model = model_of(intrinsic)
    alike = eqx.tree_at(lambda m: m.members, model, jax.tree.map(lambda x: jnp.stack([x[0]] * 3), model.members))
    value, slope = jax.value_and_grad(lambda a: intrinsic.score(alike, Z, a).sum())(A)
    assert float(value) == 0
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("intrinsic", SCORES, ids=IDS)
def test_scores_are_never_negative_and_do_not_care_who_said_what(intrinsic):
    """Bonus >= 0, invariant to a permutation of the members."""
    model = model_of(intrinsic)
    score = intrinsic.score(model, Z, A)
    assert score.shape == (8,) and (np.asarray(score) >= 0).all() and score.any()
    turned = eqx.tree_at(lambda m: m.members, model, jax.tree.map(lambda x: x[jnp.asarray([2, 0, 1])], model.members))
    np.testing.assert_allclose(intrinsic.score(turned, Z, A), score, rtol=1e-4)


@pytest.mark.parametrize("intrinsic", SCORES, ids=IDS)
def test_a_member_that_moves_away_raises_the_score(intrinsic):
    model = model_of(intrinsic)
    width = sum(model.blocks)
    scores = [
        float(intrinsic.score(saying(model, [[0.0] * width, [0.0] * width, [x] * width]), Z, A)[0])
        for x in (0.01, 0.1, 1.0)
    ]
    assert 0 < scores[0] < scores[1] < scores[2]


def test_information_gain_of_a_case_made_by_hand():
    """mean_j log(1 + v_j / sigma**2), the population variance once; the sum is d times the mean."""
    gain = InfoGain(members=2, hidden=(8,))
    model = saying(model_of(gain), [[0.0, 0.001], [0.002, 0.005]])  # variances 1e-6 and 4e-6
    np.testing.assert_allclose(gain.score(model, Z, A), (np.log(2) + np.log(5)) / 2, rtol=1e-4)
    summed = replace(gain, aggregate="sum")
    np.testing.assert_allclose(summed.score(model, Z, A), 2 * gain.score(model, Z, A), rtol=1e-5)
    np.testing.assert_allclose(replace(gain, noise=2e-3).score(model, Z, A), (np.log(1.25) + np.log(2)) / 2, rtol=1e-4)


def test_disagreement_of_a_case_made_by_hand():
    """Sample standard deviation, mean within each block, sum over blocks."""
    spec = LatentSpec(2, 1, 0, delta=True)
    wonder = Disagreement(members=2, hidden=(8,))
    model = saying(model_of(wonder, spec), [[0.0, 1.0, 5.0], [2.0, 5.0, 5.5]])  # deviations sqrt(2) * (1, 2, 0.25)
    got = wonder.score(model, jnp.zeros((3, 2)), jnp.zeros((3, 1)))
    np.testing.assert_allclose(got, 2**0.5 * (1.5 + 0.25), rtol=1e-5)


def test_the_logarithm_of_the_disagreement():
    """Mean of log(1e-6 + var) within each block, sum over blocks; finite where the members agree."""
    spec = LatentSpec(2, 1, 0, delta=True)
    wonder = Disagreement(members=2, hidden=(8,), log=True)
    model = saying(model_of(wonder, spec), [[0.0, 1.0, 5.0], [2.0, 5.0, 5.0]])  # variances 2, 8 and 0
    got = wonder.score(model, jnp.zeros((3, 2)), jnp.zeros((3, 1)))
    np.testing.assert_allclose(got, (np.log(2) + np.log(8)) / 2 + np.log(1e-6), rtol=1e-5)


def test_curiosity_of_a_case_made_by_hand():
    """Squared error of the mean prediction in normalised units, mean within a block, sum over blocks."""
    spec, wonder = LatentSpec(2, 1, 0, delta=True), Curiosity(members=2, hidden=(8,), log=False)
    model = saying(model_of(wonder, spec), [[0.0, 0.0, 1.0], [2.0, 4.0, 1.0]])  # mean 1, 2, 1
    stats = lambda m: (m.outputs.mean, m.outputs.std)
    model = eqx.tree_at(stats, model, (jnp.asarray([1.0, 0.0, 0.0]), jnp.asarray([2.0, 1.0, 1.0])))
    seen = Latents(
        jnp.asarray([[1.0, 1.0]]), jnp.zeros((1, 1)), jnp.asarray([3.0]), jnp.asarray([[6.0, 2.0]]), jnp.zeros((1, 0))
    )
    # targets: changes (5, 1) -> ((5-1)/2, 1) = (2, 1); reward 3; errors (1, 1) and 4
    np.testing.assert_allclose(wonder.reward(model, seen), [1.0 + 4.0], rtol=1e-5)
    np.testing.assert_allclose(replace(wonder, log=True).reward(model, seen), [np.log(1.0 + 4.0)], rtol=1e-5)
    assert not isinstance(wonder, ScoresActions) and isinstance(Disagreement(), ScoresActions)


@pytest.mark.slow
def test_learned_noise_divides_the_variance():
    """The aleatoric option: log(1 + v / mean std**2), std from the members' second half."""
    gain = InfoGain(members=2, hidden=(8,), aleatoric=True)
    inverse = lambda std: float(np.log(np.expm1(std)))
    model = saying(model_of(gain), [[0.0, 0.0, inverse(0.5), inverse(1.0)], [2.0, 4.0, inverse(0.5), inverse(1.0)]])
    np.testing.assert_allclose(gain.score(model, Z, A), (np.log(1 + 1 / 0.25) + np.log(1 + 4)) / 2, rtol=1e-4)
    model, metrics = gain.update(model_of(gain), latents())
    assert np.isfinite(metrics["explore/model_error"])


def test_learned_noise_is_trained_by_the_likelihood():
    """The loss is minus the log-likelihood of a Gaussian without its constant; the error beside it is plain."""
    gain = InfoGain(members=2, hidden=(8,), aleatoric=True)
    inverse = lambda std: float(np.log(np.expm1(std)))
    model = saying(model_of(gain), [[0.0, 1.0, inverse(0.5), inverse(2.0)], [3.0, 1.0, inverse(1.0), inverse(2.0)]])
    loss, error = gain.loss(model.members, jnp.zeros((4, 2)), jnp.asarray([[1.0, 5.0]] * 4))
    by_hand = [1 / (2 * 0.25) + np.log(0.5), 16 / (2 * 4) + np.log(2), 4 / 2 + 0.0, 16 / (2 * 4) + np.log(2)]
    np.testing.assert_allclose(loss, np.mean(by_hand), rtol=1e-5)
    np.testing.assert_allclose(error.mean(), (1 + 16 + 4 + 16) / 4, rtol=1e-5)


def test_sum_and_mean_are_the_same_once_standardised():
    gain = InfoGain(**TINY)
    model = model_of(gain)
    raw = [replace(gain, aggregate=name).score(model, 3 * Z, A) for name in ("mean", "sum")]
    mean, summed = (Normalizer().update(x)(x) for x in raw)
    assert float(raw[0].std()) > 1e-3
    np.testing.assert_allclose(mean, summed, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("intrinsic", SCORES, ids=IDS)
def test_a_model_is_a_constant_to_those_who_ask_it(intrinsic):
    """The score's gradient reaches the action, never the members or the statistics."""
    model = model_of(intrinsic)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    score = lambda m, a: intrinsic.score(eqx.combine(m, rest), Z, a).sum()
    by_model, by_action = quick(jax.grad(score, (0, 1)))(arrays, A)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(by_model))
    assert np.asarray(by_action).any()


# ------------------------------------------------------------ training


def test_statistics_contain_the_batch_before_it_is_normalised():
    """One step on targets normalised with statistics that already hold them."""
    gain, e = DescentGain(hidden=(8,)), latents()
    model = saying(model_of(gain), [[0.0, 0.0]] * 3)
    trained, metrics = gain.update(model, e)
    y = np.stack([e.next_z[:, 0] - e.z[:, 0], e.reward], 1)
    x = np.concatenate([e.z, e.action], 1)
    np.testing.assert_allclose(trained.outputs.mean, y.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trained.outputs.std, y.std(0), rtol=1e-4)
    np.testing.assert_allclose(trained.inputs.mean, x.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trained.inputs.std, x.std(0), rtol=1e-4)
    np.testing.assert_allclose(metrics["explore/model_error"], 1.0, rtol=1e-4)  # zero prediction, unit variance
    np.testing.assert_allclose(trained.members.layers[-1].bias, 0.0, atol=1e-6)  # centred targets: no bias to learn


@pytest.mark.slow
def test_targets_of_states_and_of_latents():
    """[s' - s, r] on states; [z', e, r] with 50 + 32 + 1 = 83 numbers on pixels."""
    gain, e = InfoGain(**TINY), latents()
    model = model_of(gain)
    np.testing.assert_array_equal(gain.target(model, model.inputs, e), np.stack([(e.next_z - e.z)[:, 0], e.reward], 1))
    pixels = LatentSpec(50, 1, 32, delta=False)
    seen = latents(z=50, extra=32)
    model = model_of(gain, pixels)
    target = gain.target(model, model.inputs, seen)
    assert target.shape == (8, 83) and model.blocks == (50, 32, 1)
    np.testing.assert_array_equal(target, np.concatenate([seen.next_z, seen.extra, seen.reward[:, None]], 1))
    assert gain.update(model, seen)[0].outputs.mean.shape == (83,)


@pytest.mark.slow
def test_training_the_model_trains_nothing_else():
    """Actor, critics, target networks, weight and scale are bit for bit what they were."""
    agent = small("sac", "maxinfo")
    s = fresh(agent)
    seen = agent.base.latents(s.learner, batches())
    after, _ = quick(agent.model_step)(s, seen)
    assert same((s.learner, s.scale, s.weight), (after.learner, after.scale, after.weight))
    assert not same(s.model, after.model)


def test_members_see_one_batch_and_differ_by_their_start():
    gain, e = DescentGain(hidden=(8,)), latents()
    model = model_of(gain)
    alike = eqx.tree_at(lambda m: m.members, model, jax.tree.map(lambda x: jnp.stack([x[0]] * 3), model.members))
    members = gain.update(alike, e)[0].members
    first, second = (jax.tree.map(lambda x, i=i: x[i], members) for i in (0, 1))
    close(first, second)
    trained = gain.update(model, e)[0].members.layers[0].weight
    assert len({w.tobytes() for w in np.asarray(trained)}) == 3
    assert not same(gain.update(model_of(gain, seed=1), e)[0].members, gain.update(model, e)[0].members)


def test_training_lowers_the_error():
    gain, e = InfoGain(members=3, hidden=(16,), lr=3e-3), latents(size=32)
    e = e._replace(next_z=e.z + jnp.tanh(e.action), reward=e.z[:, 0])
    step = quick(lambda m: gain.update(m, e))
    model, first = step(model_of(gain))
    for _ in range(200):
        model, last = step(model)
    assert float(last["explore/model_error"]) < 0.3 * float(first["explore/model_error"])


# ------------------------------------------------------------ random network distillation


def test_the_random_network_is_never_trained_and_its_predictors_come_to_agree():
    rnd, e = RND(members=3, hidden=(16,), lr=3e-3), latents(size=32)
    model = model_of(rnd)
    start = rnd.score(model, e.z, e.action).mean()
    step = quick(lambda m: rnd.update(m, e))
    trained = model
    for _ in range(200):
        trained, _ = step(trained)
    assert same(model.frozen, trained.frozen)
    end = rnd.score(trained, e.z, e.action)
    assert float(end.mean()) < 0.5 * float(start) and (np.asarray(end) >= 0).all()


def test_the_random_network_reads_normalised_inputs_and_is_normalised_itself():
    """One output by default, relu predictors, tanh target of width 32."""
    rnd, e = RND(**TINY), latents()
    model = model_of(rnd)
    assert (rnd.activation, rnd.init_name, rnd.embedding, model.frozen.activation) == ("relu", "xavier", 1, "tanh")
    assert [layer.weight.shape for layer in model.frozen.layers] == [(2, 32), (32, 32), (32, 1)]
    x = np.concatenate([e.z, e.action], 1)
    y = model.frozen(jnp.asarray((x - x.mean(0)) / x.std(0)))
    trained, _ = rnd.update(model, e)
    np.testing.assert_allclose(trained.outputs.mean, y.mean(0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(trained.outputs.std, y.std(0), rtol=1e-3)


def test_the_papers_ensemble():
    """Five members of (256, 256) with SiLU, noise 1e-3."""
    gain = InfoGain()
    assert (gain.members, gain.hidden, gain.activation, gain.noise, gain.aggregate) == (
        5,
        (256, 256),
        "silu",
        1e-3,
        "mean",
    )
