"""Closed forms of the small parts: networks, normaliser, multiplier, policies, optimism, schedules."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from core_helpers import HIDDEN, quick
from maxinforl.core.actor_critic import ActorCritic, polyak
from maxinforl.core.multiplier import HIGH, LOW, Fixed, Tuned
from maxinforl.core.networks import MLP, RELU_GAIN, Dense, LayerNorm, initial_weight, orthogonal, stacked
from maxinforl.core.normalizer import Normalizer, Standardize
from maxinforl.core.policies import Linear, NoisyDeterministic, Optimism, SquashedGaussian, constant
from maxinforl.errors import BadInput
from maxinforl.intrinsic import Disagreement, InfoGain

KEY = jax.random.key(0)


# ------------------------------------------------------------ networks


@pytest.mark.parametrize(("fan_in", "fan_out"), [(5, 16), (16, 16), (16, 1), (64, 3)])
def test_orthogonal_weights_are_orthonormal(fan_in, fan_out):
    w = quick(lambda k: orthogonal(k, fan_in, fan_out))(KEY)
    assert w.shape == (fan_in, fan_out)
    gram = w.T @ w if fan_in >= fan_out else w @ w.T
    np.testing.assert_allclose(gram, np.eye(min(fan_in, fan_out)), atol=1e-4)


def test_initial_weights_have_the_gain_and_range_they_name():
    w = quick(lambda k: initial_weight("orthogonal", k, 16, 16, 3.0))(KEY)
    np.testing.assert_allclose(w @ w.T, 9 * np.eye(16), atol=1e-3)
    w = initial_weight("xavier", KEY, 200, 100, 2**0.5)  # Xavier uniform: gain * sqrt(6 / (in + out))
    bound = 2**0.5 * (6 / 300) ** 0.5
    assert 0.99 * bound < float(jnp.abs(w).max()) <= bound


def test_an_actors_head_has_gain_one_and_a_critics_root_two():
    """Hidden layers and the critic's output sqrt(2), the policy's output 1, biases 0."""
    assert SquashedGaussian().out_gain == 1.0
    net = quick(lambda k: MLP(k, (3, 16, 16, 4), out_gain=1.0))(KEY)
    critic = quick(lambda k: MLP(k, (3, 16, 16, 4)))(KEY)
    norm = lambda layer: float(jnp.linalg.norm(layer.weight, axis=0)[0])
    np.testing.assert_allclose([norm(net.layers[1]), norm(net.layers[2])], [2**0.5, 1.0], rtol=1e-3)
    np.testing.assert_allclose(norm(critic.layers[2]), RELU_GAIN, rtol=1e-3)
    assert all(not layer.bias.any() for layer in net.layers)


def test_mlp_is_hidden_layers_with_an_activation_and_a_linear_output():
    net = MLP(KEY, (2, 3, 1), activation="silu")
    x = jnp.asarray([[0.3, -1.2]])
    h = x @ net.layers[0].weight + net.layers[0].bias
    np.testing.assert_allclose(net(x), (h * jax.nn.sigmoid(h)) @ net.layers[1].weight + net.layers[1].bias, rtol=1e-5)


def test_layer_norm_and_dropout():
    y = LayerNorm(4)(jnp.asarray([[1.0, 2.0, 3.0, 6.0]]))
    np.testing.assert_allclose([y.mean(), y.var()], [0, 1], atol=1e-5)
    net = MLP(KEY, (2, 1000, 1), dropout=0.25, layer_norm=True)
    inputs = net.hidden(jnp.ones((1, 2)), KEY)
    plain = MLP(KEY, (2, 1000, 1), dropout=0.25)
    hidden = plain.hidden(jnp.ones((1, 2)), KEY)[-1]
    kept = np.asarray(hidden != 0).sum() / max(1, np.asarray(plain.hidden(jnp.ones((1, 2)))[-1] != 0).sum())
    assert abs(kept - 0.75) < 0.06
    scale = hidden[hidden > 0] / plain.hidden(jnp.ones((1, 2)))[-1][hidden > 0]
    np.testing.assert_allclose(scale, 4 / 3, rtol=1e-5)
    assert inputs[-1].shape == (1, 1000) and net(jnp.ones((1, 2))).shape == (1, 1)


def test_stacked_networks_are_independent():
    nets = stacked(lambda k: Dense(k, 2, 2, init="xavier"), KEY, 3)
    assert nets.weight.shape == (3, 2, 2)
    assert len({w.tobytes() for w in np.asarray(nets.weight)}) == 3


# ------------------------------------------------------------ normaliser


def test_normalizer_equals_the_statistics_of_everything_seen():
    """The exact population mean and standard deviation of the concatenation."""
    rng = np.random.default_rng(0)
    chunks = [rng.normal(3, 2, (n, 4)) * [1, 5, 0.1, 1] for n in (7, 1, 30)]
    n = Normalizer((4,))
    for chunk in chunks:
        n = n.update(jnp.asarray(chunk, jnp.float32))
    whole = np.concatenate(chunks)
    np.testing.assert_allclose(n.mean, whole.mean(0), rtol=1e-5)
    np.testing.assert_allclose(n.std, whole.std(0), rtol=1e-5)
    assert n.count == 38
    np.testing.assert_allclose(n(jnp.asarray(whole)), (whole - whole.mean(0)) / whole.std(0), rtol=1e-3, atol=1e-4)


def test_normalizer_starts_as_the_identity_and_forgets_its_start():
    """(0, 1, 0) before the first batch, which then counts alone."""
    n = Normalizer()
    assert (float(n.mean), float(n.std), float(n.count)) == (0, 1, 0)
    np.testing.assert_array_equal(n(jnp.asarray([2.0, -3.0])), [2, -3])
    n = n.update(jnp.asarray([2.0, 4.0]))
    assert (float(n.mean), float(n.std), float(n.count)) == (3, 1, 2)


def test_normalizer_floor_and_cap():
    """The standard deviation never below the floor, the count capped."""
    n = Normalizer().update(jnp.full(5, 7.0))
    assert float(n.std) == pytest.approx(1e-3) == Standardize().floor
    old = eqx.tree_at(lambda n: n.count, Normalizer(), jnp.asarray(1e6))
    new = old.update(jnp.full(1000, 1.0))
    assert float(new.count) == 1e6 == Standardize().memory
    np.testing.assert_allclose(new.mean, 1000 / 1001000, rtol=1e-5)


def test_statistics_are_constants_to_every_gradient():
    """Gradients pass through the normalised value alone, even with statistics of that very value."""
    x = jnp.asarray([1.0, 2.0, 4.0])
    n = Normalizer().update(x)
    got = jax.grad(lambda x: Normalizer().update(x)(x)[0])(x)
    np.testing.assert_allclose(got, [1 / float(n.std), 0, 0], rtol=1e-6)
    by_stats = jax.grad(lambda n: n(x).sum())(n)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(by_stats))
    seen = jnp.arange(6.0)
    for part in ("mean", "std"):
        assert not np.asarray(jax.grad(lambda x, part=part: getattr(Normalizer().update(x), part))(seen)).any()


# ------------------------------------------------------------ multiplier


def test_a_multiplier_falls_while_its_value_is_above_the_target():
    """Up iff value < target, down iff value > target, still iff equal (first Adam step)."""
    tuned = Tuned(start=2.0)
    log = lambda value, target: float(tuned.step(tuned.init(), jnp.asarray(value), target).log)
    start = float(np.log(np.float32(2.0)))
    assert log([1.0, 3.0], 2.5) > start
    assert log([1.0, 3.0], 1.5) < start
    assert log([1.0, 3.0], 2.0) == start
    assert log([1.0, 3.0], jnp.asarray([5.0, -1.0])) == start


def test_the_gradient_of_a_multiplier_is_the_slack_itself():
    """Log space, so not multiplied by alpha; with Adam the first step is the learning rate."""

    class Plain(Tuned):
        @property
        def optimizer(self):
            return optax.sgd(1.0)

    for start in (1e-3, 1.0, 50.0):
        m = Plain(start=start)
        np.testing.assert_allclose(m.step(m.init(), jnp.asarray(3.0), 1.0).log, np.log(start) - 2.0, rtol=1e-4)
    tuned = Tuned(lr=0.01)
    np.testing.assert_allclose(tuned.step(tuned.init(), jnp.asarray(3.0), 1.0).log, -0.01, rtol=1e-4)


def test_a_multiplier_is_clipped_in_value_and_not_in_gradient():
    """Never at or below 0, capped at 1e8, and the way back is open."""
    tuned = Tuned(lr=1.0)
    at = lambda log: eqx.tree_at(lambda m: m.log, tuned.init(), jnp.asarray(log, jnp.float32))
    np.testing.assert_allclose(tuned.value(at(100.0)), HIGH, rtol=1e-4)
    np.testing.assert_allclose(tuned.value(at(-100.0)), LOW, rtol=1e-4)
    assert tuned.step(at(100.0), jnp.asarray(1.0), 0.0).log < 100
    assert tuned.step(at(-100.0), jnp.asarray(0.0), 1.0).log > -100


def test_a_multipliers_gradient_can_be_clipped():
    """The norm of the gradient at most 0.5."""
    limited = Tuned(clip=0.5).optimizer
    state = limited.init(jnp.zeros(()))
    _, state = limited.update(jnp.asarray(40.0), state)
    _, same = limited.update(jnp.asarray(0.5), limited.init(jnp.zeros(())))
    assert all(np.allclose(a, b) for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same)))


def test_fixed_weights_hold_zero_and_refuse_the_impossible():
    m = Fixed(0.0).init()
    assert float(Fixed(0.0).value(m)) == 0 and Fixed(0.0).step(m, jnp.ones(()), 0.0) is m
    for wrong in (lambda: Fixed(-1.0), lambda: Fixed(float("nan")), lambda: Fixed(float("inf")), lambda: Tuned(0.0)):
        with pytest.raises(BadInput, match="weight"):
            wrong()


# ------------------------------------------------------------ optimisers


@pytest.mark.parametrize("part", [ActorCritic(), Tuned(), InfoGain(), Disagreement()])
def test_everything_is_trained_by_adam_at_3e_4(part):
    """Adam with its usual betas and epsilon."""
    params, grads = jnp.asarray([1.0, 2.0]), jnp.asarray([0.3, -1e-7])
    ours, theirs = part.optimizer, optax.adam(3e-4, b1=0.9, b2=0.999, eps=1e-8)
    a, b = ours.init(params), theirs.init(params)
    for _ in range(2):
        step, a = ours.update(grads, a, params)
        wanted, b = theirs.update(grads, b, params)
        np.testing.assert_array_equal(step, wanted)


def test_polyak_moves_the_target_by_tau():
    """target <- (1 - tau) target + tau online."""
    np.testing.assert_allclose(polyak(jnp.asarray([1.0]), jnp.asarray([3.0]), 0.25), [1.5])


# ------------------------------------------------------------ policies


def test_log_probability_is_that_of_the_squashed_gaussian():
    """The density of tanh(x) integrates to one and matches the change of variables."""
    out = jnp.asarray([[0.4, -0.9]])  # mean, log std of one action
    policy = SquashedGaussian()
    keys = jax.random.split(KEY, 2000)
    a, logp = quick(jax.vmap(lambda k: policy.sample(out, k)))(keys)
    a, logp = np.asarray(a)[:, 0, 0].astype(np.float64), np.asarray(logp)[:, 0]
    x, std = np.arctanh(a), np.exp(-0.9)
    want = -0.5 * ((x - 0.4) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi)) - np.log(1 - a**2)
    np.testing.assert_allclose(logp, want, atol=5e-3)
    np.testing.assert_allclose([x.mean(), x.std()], [0.4, std], atol=0.05)
    inside = (a > -0.5) & (a < 0.9)  # where weights 1/p are bounded: E[1{a in I}/p(a)] = length of I
    np.testing.assert_allclose((inside / np.exp(logp)).mean(), 1.4, rtol=0.1)


def test_log_probability_stays_finite_where_tanh_saturates():
    out = jnp.asarray([[30.0, -30.0, -9.0, -9.0]])
    value, slope = jax.value_and_grad(lambda o: SquashedGaussian().sample(o, KEY)[1].sum())(out)
    assert np.isfinite(value) and np.isfinite(slope).all()


def test_log_std_is_clipped_hard():
    _, low = SquashedGaussian().moments(jnp.asarray([0.0, -11.0]))
    _, high = SquashedGaussian().moments(jnp.asarray([0.0, 3.0]))
    assert (float(low[0]), float(high[0])) == (-10.0, 2.0)


def test_a_sample_is_reparameterised():
    """d tanh(mean + std eps) / d mean = 1 - a**2."""
    out = jnp.asarray([0.3, -1.0])
    a = SquashedGaussian().sample(out, KEY)[0]
    slope = jax.grad(lambda o: SquashedGaussian().sample(o, KEY)[0].sum())(out)
    np.testing.assert_allclose(slope[0], 1 - a[0] ** 2, rtol=1e-5)


def test_noise_of_a_deterministic_policy_is_clipped_in_updates_only():
    """At most 0.3 in updates, unclipped when acting, gradient through the outer clip."""
    policy, out = NoisyDeterministic(clip=0.3), jnp.zeros((4000, 1))
    a, logp = policy.sample(out, KEY, 1.0)
    assert float(jnp.abs(a).max()) == pytest.approx(0.3) and not logp.any()
    assert float(jnp.abs(policy.act(out, KEY, 0.5)).max()) == 1.0
    saturated = jnp.full((64, 1), 2.0)
    slope = jax.grad(lambda o: policy.sample(o, KEY, 1.0)[0].sum())(saturated)
    np.testing.assert_allclose(slope, 1 - np.tanh(2.0) ** 2, rtol=1e-4)
    np.testing.assert_allclose(policy.mode(saturated), np.tanh(2.0), rtol=1e-6)


# ------------------------------------------------------------ schedules


def test_a_linear_schedule_has_its_ends_and_stays_there():
    line = Linear(1.0, 0.1, 100)
    got = [float(line(jnp.asarray(t))) for t in (0, 50, 100, 1000)]
    np.testing.assert_allclose(got, [1.0, 0.55, 0.1, 0.1], rtol=1e-6)
    assert float(constant(0.2)(jnp.asarray(77))) == pytest.approx(0.2)


# ------------------------------------------------------------ optimism


def quadratic(a):
    """Two critics: [critics, batch]."""
    return jnp.stack([(a * jnp.asarray([1.0, 2.0])).sum(-1), (a * jnp.asarray([3.0, -1.0])).sum(-1)])


OUT = jnp.asarray([[0.1, -0.2, -1.0, -0.5], [0.5, 0.4, -2.0, 0.3], [-1.0, 0.0, 0.0, -3.0]])


def test_optimism_shifts_by_a_fixed_divergence():
    """KL(shifted || policy) = c**2 / 2 in every row, up to the 1e-6."""
    policy, c = SquashedGaussian(), 1.7
    moved = Optimism(beta=4.66, shift=c)(policy, OUT, quadratic)
    (mean, log_std), (old, log_old) = policy.moments(moved), policy.moments(OUT)
    np.testing.assert_array_equal(log_std, log_old)
    divergence = ((mean - old) ** 2 / jnp.exp(2 * log_std)).sum(-1) / 2
    np.testing.assert_allclose(divergence, c**2 / 2, rtol=1e-4)


def test_optimism_follows_the_upper_bound():
    """Delta = c var g / |g|_var, g = d [mean Q + beta |Q1 - Q2| / 2] / d mean."""
    policy, row = SquashedGaussian(), OUT[0]
    moved = Optimism(beta=2.0, shift=1.3)(policy, row[None], quadratic)[0, :2] - row[:2]
    mean, std = np.asarray(row[:2]), np.exp(np.asarray(row[2:]))
    slopes = np.asarray([[1.0, 2.0], [3.0, -1.0]])
    q = (np.tanh(mean) * slopes).sum(-1)
    g = (slopes.mean(0) + 2.0 * np.sign(q[0] - q[1]) * (slopes[0] - slopes[1]) / 2) * (1 - np.tanh(mean) ** 2)
    np.testing.assert_allclose(moved, 1.3 * std**2 * g / np.sqrt((g**2 * std**2).sum()), rtol=1e-4)


def test_optimism_treats_rows_independently_and_is_nothing_without_cause():
    """Batch rows independent; c = 0 or a zero gradient leaves the policy as it was."""
    policy, optimism = SquashedGaussian(), Optimism()
    whole = optimism(policy, OUT, quadratic)
    for i in range(len(OUT)):
        np.testing.assert_allclose(optimism(policy, OUT[i : i + 1], quadratic)[0], whole[i], rtol=1e-6)
    np.testing.assert_array_equal(Optimism(shift=0.0)(policy, OUT, quadratic), OUT)
    np.testing.assert_array_equal(optimism(policy, OUT, lambda a: jnp.zeros((2, len(a)))), OUT)


def test_hidden_is_what_small_agents_have():
    assert HIDDEN == (16, 16)
