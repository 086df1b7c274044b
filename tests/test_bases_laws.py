"""What holds for the pieces of the modern bases whatever their numbers: heads, networks, normalisers, schedules."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from core_helpers import HIDDEN, NOW, SPEC, batches, close, fresh, leaves, quick, same, small
from maxinforl.algorithms import BASES, compose
from maxinforl.core.actor_critic import ActorCritic, Successor, discount_of
from maxinforl.core.architectures import BatchNorm, BatchNormNet, BroNet, Running, SimbaNet
from maxinforl.core.heads import Categorical, Quantile, Scalar, quantile_huber
from maxinforl.core.multiplier import Fixed, Tuned
from maxinforl.core.observers import Moments, ReturnScale
from maxinforl.core.policies import SquashedGaussian
from maxinforl.core.types import Shaping, clock
from maxinforl.errors import BadInput
from maxinforl.explore import MaxInfo, Plain

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


# ------------------------------------------------------------ categorical critics

HEAD = Categorical(11, -5.0, 5.0)  # atoms at whole numbers
P = jax.nn.softmax(normal(7, 11))


def backed_up(p, reward, discount, shift=0.0):
    return HEAD.target(p, lambda v: reward + discount * (v + shift))


def test_projection_keeps_all_mass_and_the_mean_of_what_is_not_clipped():
    wild = backed_up(P, 3 * normal(7), 0.9, normal(7))
    np.testing.assert_allclose(wild.sum(-1), 1.0, rtol=1e-5)
    assert (wild >= 0).all()
    reward = 0.1 * normal(7)
    mean = (backed_up(P, reward, 0.5, 0.25) * HEAD.support).sum(-1)
    np.testing.assert_allclose(mean, reward + 0.5 * ((P * HEAD.support).sum(-1) + 0.25), atol=1e-5)


@pytest.mark.parametrize(
    ("reward", "want"), [(2.0, {7: 1.0}), (1.25, {6: 0.75, 7: 0.25}), (9.0, {10: 1.0}), (-9.0, {0: 1.0})]
)
def test_a_terminal_reward_is_one_atom_or_the_two_beside_it(reward, want):
    got = np.asarray(backed_up(P, jnp.full(7, reward), 0.0))
    expected = np.zeros(11)
    for atom, share in want.items():
        expected[atom] = share
    np.testing.assert_allclose(got, np.tile(expected, (7, 1)), atol=1e-5)


def test_nothing_happens_without_reward_and_discount_and_rewards_of_whole_atoms_move_them():
    np.testing.assert_allclose(backed_up(P, 0.0, 1.0), P, atol=1e-6)
    got = np.asarray(backed_up(P, 2.0, 1.0))
    np.testing.assert_allclose(got[:, 2:-1], P[:, :-3], atol=1e-6)
    np.testing.assert_allclose(got[:, -1], P[:, -3:].sum(-1), atol=1e-6)


def test_the_projection_is_that_of_floor_and_ceiling():
    values = np.clip(np.concatenate([RNG.normal(0, 3, (50, 11)), RNG.integers(-6, 7, (50, 11))]), -5, 5)
    p = np.asarray(jax.nn.softmax(normal(100, 11)))
    want = np.zeros_like(p)
    for row in range(100):
        for j in range(11):
            place = values[row, j] + 5
            low, high = int(np.floor(place)), int(np.ceil(place))
            if low == high:
                want[row, low] += p[row, j]
            else:
                want[row, low] += p[row, j] * (high - place)
                want[row, high] += p[row, j] * (place - low)
    np.testing.assert_allclose(HEAD.projected(jnp.asarray(p), jnp.asarray(values, jnp.float32)), want, atol=1e-5)


def test_cross_entropy_of_one_atom_has_the_gradient_of_a_classifier():
    logits, one = normal(5, 11), jax.nn.one_hot(jnp.arange(5), 11)
    np.testing.assert_allclose(
        HEAD.loss(logits, one), -np.log(jax.nn.softmax(logits)[np.arange(5), np.arange(5)]), rtol=1e-5
    )
    slope = jax.grad(lambda x: HEAD.loss(x, one).sum())(logits)
    np.testing.assert_allclose(slope, jax.nn.softmax(logits) - one, atol=1e-6)


@pytest.mark.parametrize("head", [HEAD, Quantile(4)])
def test_the_minimum_is_the_whole_distribution_of_the_critic_with_the_smaller_mean(head):
    raw = normal(2, 3, 6, head.outputs)
    got, means = np.asarray(head.combine(raw, "min")), np.asarray(head.mean(raw))
    each = np.asarray(jax.nn.softmax(raw) if head is HEAD else raw)
    for channel in range(2):
        for row in range(6):
            np.testing.assert_array_equal(got[channel, row], each[channel, means[channel, :, row].argmin(), row])
    alike = jnp.broadcast_to(raw[:, :1], raw.shape)
    np.testing.assert_allclose(head.combine(alike, "mean"), head.combine(alike, "min"), atol=1e-6)


# ------------------------------------------------------------ quantile critics


def test_quantile_loss_sums_over_predictions_and_averages_over_targets():
    predicted, target = jnp.array([0.0, 1.0]), jnp.array([0.5, -1.0, 3.0])
    huber = lambda d: 0.5 * d * d if abs(d) <= 1 else abs(d) - 0.5
    want = 0.0
    for i, tau in enumerate((0.25, 0.75)):
        for y in target:
            d = float(y - predicted[i])
            want += abs(tau - (d < 0)) * huber(d) / 3
    np.testing.assert_allclose(quantile_huber(predicted, target), want, rtol=1e-6)
    np.testing.assert_allclose(quantile_huber(predicted + 2, target + 2), want, rtol=1e-5)
    np.testing.assert_allclose(quantile_huber(jnp.array([0.2]), jnp.array([0.9])), 0.5 * huber(0.7), rtol=1e-5)


def test_the_quantile_loss_is_least_at_the_quantiles():
    target = 1e3 * jnp.sort(normal(401))  # far apart: the quadratic part of the loss is negligible
    want = np.quantile(np.asarray(target), [0.125, 0.375, 0.625, 0.875])
    theta = optimum = jnp.asarray(want, jnp.float32)
    slope = jax.jit(jax.grad(quantile_huber))
    for _ in range(2000):
        optimum = optimum - 2.0 * slope(optimum, target)
    np.testing.assert_allclose(optimum, theta, atol=12)


# ------------------------------------------------------------ residual networks


def applied(net, params, x, stats=None, train=False):
    return net.apply(params, net.statistics(x.shape[-1]) if stats is None else stats, x, train)


def count(params) -> int:
    return sum(leaf.size for leaf in leaves(params).values())


def test_simba_without_blocks_is_linear_but_for_its_norm_and_has_the_parameters_of_the_paper():
    x = normal(6, 5)
    net = SimbaNet(8, 0)
    p = net.init(KEY, 5, 3, 1.0)
    inside = x @ p.first.weight + p.first.bias
    mean, std = inside.mean(-1, keepdims=True), jnp.sqrt(inside.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(applied(net, p, x)[0], (inside - mean) / std @ p.last.weight + p.last.bias, atol=1e-5)
    i, w, n, o = 5, 8, 2, 3
    assert count(SimbaNet(w, n).init(KEY, i, o, 1.0)) == i * w + w + n * (8 * w * w + 7 * w) + 2 * w + w * o + o


def test_a_block_that_adds_nothing_is_the_identity():
    x, zero = normal(6, 5), jnp.zeros
    for net, where in (
        (SimbaNet(8, 1), lambda p: (p.blocks[0].down.weight,)),
        (BroNet(8, 1), lambda p: (p.blocks[0].norms[1].scale, p.blocks[0].norms[1].shift)),
    ):
        p = net.init(KEY, 5, 2, 1.0)
        still = eqx.tree_at(where, p, tuple(zero(leaf.shape) for leaf in where(p)))
        none = replace(net, blocks=0)
        np.testing.assert_allclose(
            applied(net, still, x)[0], applied(none, eqx.tree_at(lambda p: p.blocks, p, ()), x)[0], atol=1e-6
        )
        assert not np.allclose(applied(net, p, x)[0], applied(net, still, x)[0], atol=1e-3)


# ------------------------------------------------------------ batch norm

NETS = [BatchNormNet(8, 2, unit=True), BatchNormNet(8, 2, after=True, renorm=100)]


def test_batch_norm_in_training_has_the_moments_of_its_scale_and_shift():
    x, norm = 3 + 2 * normal(64, 4), BatchNorm(4)
    norm = eqx.tree_at(lambda n: (n.scale, n.shift), norm, (jnp.arange(1.0, 5), jnp.arange(4.0)))
    y, running = norm(Running(4), x, True, None)
    np.testing.assert_allclose(y.mean(0), norm.shift, atol=1e-5)
    np.testing.assert_allclose(y.var(0), norm.scale**2 * x.var(0) / (x.var(0) + 1e-3), rtol=1e-4)
    np.testing.assert_allclose(running.mean, 0.01 * x.mean(0), rtol=1e-4)
    for _ in range(9):
        running = norm(running, x, True, None)[1]
    np.testing.assert_allclose(running.var, (1 - 0.99**10) * x.var(0) + 0.99**10, rtol=1e-5)
    there = eqx.tree_at(lambda r: (r.mean, r.var), running, (x.mean(0), x.var(0)))
    np.testing.assert_allclose(norm(there, x, False, None)[0], y, atol=1e-5)
    late = eqx.tree_at(lambda r: r.passes, there, jnp.float32(1e6))
    np.testing.assert_allclose(norm(late, x, True, 10)[0], y, atol=1e-3)  # running = batch: renormalisation is nothing


def test_renormalisation_begins_after_its_passes_and_outputs_as_running_statistics_do():
    x, norm = 1 + 1.5 * normal(64, 4), BatchNorm(4)
    running = eqx.tree_at(lambda r: (r.mean, r.var), Running(4), (jnp.full(4, 0.5), jnp.full(4, 1.5)))
    early, late = running, eqx.tree_at(lambda r: r.passes, running, jnp.float32(10))
    np.testing.assert_array_equal(norm(early, x, True, 10)[0], norm(early, x, True, None)[0])
    np.testing.assert_allclose(norm(late, x, True, 10)[0], norm(late, x, False, None)[0], atol=5e-3)
    assert same(norm(late, x, True, 10)[1], norm(late, x, True, None)[1])  # raw moments enter the averages


@pytest.mark.parametrize("net", NETS)
def test_rows_are_alone_in_evaluation_and_together_in_training(net):
    x = normal(6, 5)
    p, stats = net.init(KEY, 5, 2, 1.0), net.statistics(5)
    whole, unmoved = applied(net, p, x, stats)
    assert same(unmoved, stats)
    np.testing.assert_allclose(applied(net, p, x[:1], stats)[0], whole[:1], atol=1e-6)
    trained, moved = applied(net, p, x, stats, train=True)
    assert not same(moved, stats)
    order = jnp.array([3, 1, 5, 0, 2, 4])
    np.testing.assert_allclose(applied(net, p, x[order], stats, train=True)[0], trained[order], atol=1e-5)
    other = applied(net, p, x.at[0].add(1.0), stats, train=True)[0]
    assert np.abs(np.asarray(other - trained))[1:].max() > 1e-3


def test_columns_of_norm_1_leave_a_network_in_training_as_it_was_and_are_held_after_every_step():
    net, x = NETS[0], normal(64, 5)
    p = net.init(KEY, 5, 2, 1.0)
    assert all(np.allclose(np.linalg.norm(d.weight, axis=0), 1, atol=1e-6) for d in p.layers)
    stretched = eqx.tree_at(lambda p: [d.weight for d in p.layers[:-1]], p, [3 * d.weight for d in p.layers[:-1]])
    np.testing.assert_allclose(applied(net, stretched, x, train=True)[0], applied(net, p, x, train=True)[0], 5e-3, 5e-3)
    close(net.project(stretched), p, atol=1e-6)
    close(net.project(p), p, atol=1e-6)
    assert same(NETS[1].project(stretched), stretched)


# ------------------------------------------------------------ the learner's passes


def small_base(name: str) -> ActorCritic:
    return small(name).base


@pytest.mark.slow
def test_a_network_without_batch_norm_does_not_care_who_joins_its_pass():
    base, data = small_base("simba"), batches()
    s = fresh(Plain(base)).learner
    after = Successor(data.one.next_obs, data.action, data.gamma)
    joint, _ = base.evaluate(s.params.critic, s.stats.critic, data.obs, data.action, joined=after)
    alone, _ = base.evaluate(s.params.critic, s.stats.critic, data.obs, data.action)
    np.testing.assert_allclose(joint[:, :, :8], alone, atol=1e-6)


def test_without_a_target_network_the_target_is_that_of_a_copy():
    base, data = small_base("crossq"), batches()
    s = fresh(Plain(base)).learner
    target = lambda base: quick(lambda s: base.td_target(s, data, base.latents(s, data), KEY, NOW, Shaping()))(s)
    np.testing.assert_allclose(target(base), target(replace(base, tau=0.5, actor_tau=None)), atol=1e-6)


def test_acting_moves_no_statistics_and_a_critic_step_moves_those_of_the_critics_once():
    base, data = small_base("crossq"), batches()
    agent = Plain(base)
    s = fresh(agent)
    stepped = quick(lambda s: agent.critic_step(s, data, KEY, NOW)[0])(s).learner
    assert same(stepped.stats.actor, s.learner.stats.actor)
    assert np.asarray(stepped.stats.critic[0].passes).max() == 1 == np.asarray(stepped.stats.critic[0].passes).min()
    improved = quick(lambda s: agent.actor_step(s, data, base.latents(s.learner, data), KEY, NOW)[0])(s).learner
    assert same(improved.stats.critic, s.learner.stats.critic)
    assert float(improved.stats.actor[0].passes) == 1
    np.testing.assert_allclose(improved.stats.target_actor[0].mean, 0.005 * improved.stats.actor[0].mean, rtol=1e-4)


# ------------------------------------------------------------ observers


def test_moments_are_those_of_everything_seen_and_rows_that_are_not_valid_do_not_count():
    x = 5 + 2 * RNG.normal(size=(300, 3)).astype(np.float32)
    m = Moments((3,))
    for part in np.split(x, [1, 4, 100, 200]):
        m = m.update(jnp.asarray(part))
    np.testing.assert_allclose(m.mean, x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(m.var, x.var(0), rtol=1e-3)
    more = m.update(jnp.asarray(x[:2]) + 100, jnp.array([False, False]))
    close(more, m, rtol=1e-5)


def test_the_divisor_scales_with_rewards_and_holds_the_first_reward_after_zeros_within_the_bound():
    def divisor(rewards, gamma=0.9):
        scale, total = ReturnScale(), jnp.zeros(1)
        step = quick(lambda scale, total, r: (scale.update(gamma * total + r, jnp.array([True])), gamma * total + r))
        for r in rewards:
            scale, total = step(scale, total, jnp.float32(r))
        return float(scale.divisor())

    rewards = RNG.normal(size=200)
    np.testing.assert_allclose(divisor(10 * rewards) / divisor(rewards), 10, rtol=1e-3)
    constant = divisor(np.full(200, 3.0))
    assert 4.9 < 30 / constant < 5.01
    zeros = ReturnScale()
    zeros = eqx.tree_at(lambda r: (r.moments.var, r.moments.count), zeros, (jnp.float32(1e-8), jnp.float32(1e4)))
    first = zeros.update(jnp.ones(1), jnp.array([True]))
    assert 1 / float(first.divisor()) <= 5 < 1 / float(first.moments.std)
    assert np.isfinite(float(zeros.divisor()))


@pytest.mark.slow
def test_observations_stretched_and_shifted_change_nothing_once_they_are_normalised():
    base, data = small_base("simba"), batches()
    stretch, shift = jnp.array([2.0, 30.0, 0.5]), jnp.array([1.0, -40.0, 3.0])
    moved = lambda x: stretch * x + shift
    other = data._replace(obs=moved(data.obs), one=data.one._replace(next_obs=moved(data.one.next_obs)))
    agent = Plain(base)
    s = fresh(agent)
    learner = lambda d: quick(lambda s: agent.observe(s, d.obs))(s)
    action = lambda d: base.act(learner(d).learner, d.obs, KEY, NOW, explore=True)
    np.testing.assert_allclose(action(other), action(data), atol=2e-3)
    np.testing.assert_array_equal(base.latents(s.learner, data).z, data.obs)  # intrinsic models read raw ones


# ------------------------------------------------------------ optimiser and schedules


def test_the_optimiser_is_adam_unless_weights_decay():
    p, g = normal(4), normal(4)
    for base, want in (
        (ActorCritic(), optax.adam(3e-4)),
        (ActorCritic(adam_b1=0.5, lr=1e-3), optax.adam(1e-3, b1=0.5)),
    ):
        got, other = (o.update(g, o.init(p), p)[0] for o in (base.optimizer, want))
        np.testing.assert_array_equal(got, other)
    decaying = ActorCritic(weight_decay=0.1, lr=0.01).optimizer
    change, _ = decaying.update(jnp.zeros(4), decaying.init(p), p)
    np.testing.assert_allclose(p + change, p * (1 - 0.001), rtol=1e-6)


@pytest.mark.parametrize(("shape", "half"), [("linear", 0.55), ("cosine", 0.55)])
def test_the_learning_rate_falls_over_the_run(shape, half):
    base = ActorCritic(lr=1e-3, lr_end=1e-4, lr_schedule=shape)
    pace = [float(base.pace(clock(step=t, total=100))) for t in (0, 50, 100, 150)]
    np.testing.assert_allclose(pace, [1, half, 0.1, 0.1], rtol=1e-5)
    assert ActorCritic().pace(NOW) is None


def test_log_deviations_by_tanh_stay_within_their_bounds():
    moments = lambda raw, **kind: float(SquashedGaussian(**kind).moments(jnp.array([0.0, raw]))[1][0])
    assert moments(0.0, log_std="tanh") == -4.0 and moments(0.0) == 0.0
    assert moments(9.0, log_std="tanh") == pytest.approx(2.0) and moments(-9.0, log_std="tanh") == pytest.approx(-10.0)
    assert moments(-99.0, least=-20.0) == -20.0


def test_the_discount_follows_the_length_of_an_episode():
    assert [discount_of(length) for length in (500, 1000, 50, 10_000)] == [0.99, 0.995, 0.95, 0.995]


@pytest.mark.slow
def test_a_fixed_entropy_weight_stays_and_the_target_entropy_is_per_dimension():
    data = batches()
    stepped = {}
    for name, base in {
        "fixed": ActorCritic(hidden=HIDDEN, alpha=Fixed(0.25)),
        "half": ActorCritic(hidden=HIDDEN, target_entropy=-0.5),
    }.items():
        agent = Plain(base)
        step = quick(lambda s, agent=agent: agent.actor_step(s, data, agent.base.latents(s.learner, data), KEY, NOW))
        stepped[name] = step(fresh(agent))
    assert float(stepped["fixed"][0].learner.alpha.value) == 0.25
    entropy, log = float(stepped["half"][1]["train/entropy"]), float(stepped["half"][0].learner.alpha.log)
    assert np.sign(log) == -np.sign(entropy + 0.5 * SPEC.action)


# ------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reset_every": 0}, "at least 1 transition"),
        ({"reset_at": (0,)}, "counts transitions from 1"),
        ({"lr_schedule": "wave"}, "lr_schedule"),
        ({"adam_b1": 1.0}, "adam_b1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"critic_net": SimbaNet(), "layer_norm": True}, "dense layers"),
        ({"actor_net": SimbaNet(), "activation": "tanh"}, "dense layers"),
        ({"critic_net": "wide"}, "must be a network"),
        ({"head": Categorical(), "gamma": 1.0}, "below 1"),
        ({"critic_net": BatchNormNet(), "nstep": 3, "channels": 2}, "batch norm joins"),
    ],
)
def test_pieces_that_do_not_fit_are_refused_in_one_sentence(changes, sentence):
    with pytest.raises(BadInput, match=sentence):
        ActorCritic(**changes)


def test_heads_policies_and_weights_that_cannot_be_are_refused():
    for wrong in (
        lambda: Categorical(low=1.0, high=1.0),
        lambda: Categorical(atoms=1),
        lambda: Quantile(1),
        lambda: SimbaNet(width=0),
        lambda: BatchNormNet(renorm=-1),
        lambda: BroNet(blocks=-1),
        lambda: SquashedGaussian(log_std="sigmoid"),
        lambda: Tuned(b1=1.0),
        lambda: MaxInfo(replace(BASES["crossq"], actor_tau=1.0)),
        lambda: replace(BASES["drq"], normalize_observations=True),
    ):
        with pytest.raises(BadInput):
            wrong()


@pytest.mark.slow
def test_every_base_composes_with_every_strategy():
    for base in ("simba", "crossq", "bro", "xqc"):
        for strategy in ("none", "maxinfo", "sum", "eipo", "eps", "then"):
            agent = compose(base, strategy)
            state = jax.eval_shape(lambda agent=agent: agent.init(KEY, SPEC))
            assert agent.base.critic_net is not None and jax.tree.leaves(state.learner.params)


def test_the_scalar_head_is_one_value():
    raw = normal(1, 2, 5, 1)
    np.testing.assert_array_equal(Scalar().combine(raw, "min"), raw[..., 0].min(1))
