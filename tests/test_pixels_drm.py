"""DrM and MaxInfoDrM: dormant neurons, the noise that follows them, perturbations."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import subjaxprs

from core_helpers import close, fresh, leaves, quick, same
from maxinforl.core import networks
from maxinforl.core.encoders import Pixels
from maxinforl.core.networks import MLP, Dense, LayerNorm
from maxinforl.core.plasticity import ASLEEP, Dormant, DormantState, perturbed
from maxinforl.core.policies import Linear, constant
from maxinforl.core.types import clock
from maxinforl.core.update import update
from maxinforl.errors import BadInput
from pixel_helpers import SPEC, batches, named

pytestmark = pytest.mark.slow

KEY = jax.random.key(2)
OFF = Dormant(every=0, aware="never")


def dormant_state(ratio=0.0, awake=ASLEEP) -> DormantState:
    return DormantState(jnp.asarray(ratio, jnp.float32), jnp.asarray(awake, jnp.int32))


@cache
def stepper(agent):
    return quick(lambda s, data, key, now: update(agent, s, data, key, now))


def step(agent, state, at: int, seed=0):
    """The state after the update that `at` others came before."""
    now = clock(at, at, 100)
    return stepper(agent)(state, batches(3, seed=seed), jax.random.key(seed), now)[0]


# ------------------------------------------------------------ invariant 28: the dormant ratio


def measured(build) -> float:
    """The ratio an update finds in the actor with layers (projection, hidden 1, hidden 2, output) that `build` made."""
    agent, data = named("drm", plasticity=Dormant(every=0)), batches(3, None)
    state = fresh(agent, spec=SPEC).learner
    actor = state.params.actor
    made = build([actor.trunk.dense, *actor.head.layers])
    parts = lambda a: (a.trunk.dense, a.trunk.norm.shift, a.head.layers)
    # the shift keeps the first hidden layer's inputs positive, so that its ReLUs do what `build` says
    actor = eqx.tree_at(parts, actor, (made[0], jnp.full(8, 9.0), tuple(made[1:])))
    state = eqx.tree_at(lambda s: s.params.actor, state, actor)
    return float(perturb_dormant(agent.base)(state, data).plastic.ratio)


@cache
def perturb_dormant(base):
    def act(s, data):
        features = base.encoder.features(s.params.encoder, data.obs)
        return base.perturb_dormant(base.plasticity, s, features, data, KEY, clock())

    return quick(act)


def test_the_ratio_counts_neurons_zeroed_by_hand():
    """Latent 8, hidden 16 and 16, 2 outputs: 42 neurons over projection, hidden layers and output."""
    lively = lambda layers: [jax.tree.map(lambda x: jnp.abs(x) + 0.1, layer) for layer in layers]
    silent = lambda layer, which: jax.tree.map(lambda x: x.at[..., jnp.asarray(which)].set(0.0), layer)
    plan = [[0, 3], [1, 2, 5], [15], [1]]
    assert measured(lively) == 0
    zeroed = measured(lambda layers: [silent(layer, which) for layer, which in zip(lively(layers), plan)])
    assert zeroed == pytest.approx(7 / 42)


def test_hidden_layers_are_read_after_relu_and_the_others_raw():
    """Outputs of -1 are awake in the projection and the output, and asleep in a hidden layer."""
    constant_layer = lambda layer, bias: eqx.tree_at(
        lambda d: (d.weight, d.bias), layer, (jnp.zeros_like(layer.weight), jnp.asarray(bias, jnp.float32))
    )
    negative = [[-1.0] * 4 + [1.0] * 4, [-1.0] * 5 + [1.0] * 11, [-1.0] * 3 + [1.0] * 13, [-1.0, 1.0]]
    found = measured(lambda layers: [constant_layer(layer, bias) for layer, bias in zip(layers, negative)])
    assert found == pytest.approx((5 + 3) / 42)


def test_a_neuron_is_dormant_below_a_share_of_its_own_layer():
    quiet = jnp.asarray([[1.0, -1.0, 0.017], [1.0, 1.0, -0.015]])  # 0.016 < 0.025 * 0.672
    awake = jnp.asarray([[1.0, -1.0, 0.018], [1.0, 1.0, -0.016]])  # 0.017 > 0.025 * 0.6723
    assert float(Dormant().ratio([quiet])) == pytest.approx(1 / 3)
    assert float(Dormant().ratio([awake])) == 0
    assert float(Dormant().ratio([quiet, 1e-6 * awake, jnp.ones((2, 1))])) == pytest.approx(1 / 7)
    assert 0 <= float(Dormant().ratio([jnp.zeros((2, 3))])) <= 1


# ------------------------------------------------------------ invariant 29: perturbations


def test_how_much_is_kept():
    ratios = [0.0, 0.04, 0.2, 0.35, 0.4, 0.9]
    kept = [float(Dormant().kappa(dormant_state(r))) for r in ratios]
    np.testing.assert_allclose(kept, [0.9, 0.9, 0.6, 0.3, 0.2, 0.2], rtol=1e-6)
    assert float(Dormant(most=0.6).kappa(dormant_state(0.0))) == pytest.approx(0.6)


def test_keeping_all_changes_nothing_and_keeping_nothing_starts_anew():
    old, new = (
        (Dense(k, 3, 4), LayerNorm(4), Pixels().init(k, SPEC), MLP(k, (3, 5, 2), layer_norm=True))
        for k in jax.random.split(KEY)
    )
    old = jax.tree.map(lambda x: x + 0.25, old)  # so that norms and biases differ from fresh ones
    assert same(perturbed(old, new, 1.0), old)
    reset = perturbed(old, new, 0.0)
    for name, leaf in leaves(reset).items():
        dense = name.startswith("[0]") or ".layers" in name
        assert np.array_equal(leaf, leaves(new if dense else old)[name]), name
    half = perturbed(old, new, 0.75)[0].weight
    np.testing.assert_allclose(half, 0.75 * old[0].weight + 0.25 * new[0].weight, rtol=1e-6)


def test_only_on_multiples():
    due = [t + 1 for t in range(400_000 - 1, 400_001)] + [t + 1 for t in (0, 99_998, 99_999, 100_000, 199_999)]
    assert [u for u in due if Dormant().due(jnp.asarray(u - 1))] == [400_000, 100_000, 200_000]
    assert list(map(bool, Dormant(every=3).due(jnp.arange(7)))) == [False, False, True] * 2 + [False]


@pytest.fixture(scope="module")
def around():
    """MaxInfoDrM after an ordinary update, and after the same update with a perturbation; 2 updates lie behind both."""
    agent = named("maxinfo-drm", plasticity=Dormant(every=3))
    kept, networks.orthogonal = networks.orthogonal, lambda key, i, o: jax.random.normal(key, (i, o)) / i**0.5
    try:
        state = fresh(agent, spec=SPEC)
        for at in range(2):
            state = step(agent, state, at, seed=at)
        never = replace(agent, base=replace(agent.base, plasticity=Dormant(every=0)))
        return agent, step(never, state, 2), step(agent, state, 2)
    finally:
        networks.orthogonal = kept


@pytest.mark.slow
def test_dense_layers_of_every_network_are_drawn_towards_fresh_ones(around):
    """Both value channels, target critics and the target policy as well; convolutions and layer norms stay."""
    agent, plain, after = around
    kappa = float(agent.base.plasticity.kappa(plain.learner.plastic))
    assert 0.2 < kappa < 0.9
    old, new = (leaves((s.learner.params, s.learner.target)) for s in (plain, after))
    changed = {name for name in old if not np.array_equal(old[name], new[name])}
    dense = {n for n in old if "dense" in n or "layers" in n}
    assert changed == dense and len(old) - len(dense) == 8 + 4 * 2  # 4 convolutions, 4 layer norms
    assert any("encoder" in n for n in old) and any("norm" in n for n in old)
    for name in dense:  # fresh biases are 0; fresh weights are what is left
        if name.endswith("bias"):
            np.testing.assert_allclose(new[name], kappa * old[name], rtol=1e-5, atol=1e-7)
    for heads in (after.learner.params.critic.heads, after.learner.target.critic.heads):
        assert heads.layers[0].weight.shape[0] == 2


@pytest.mark.slow
def test_fresh_draws_are_independent_in_every_network(around):
    agent, plain, after = around
    kappa = float(agent.base.plasticity.kappa(plain.learner.plastic))
    drawn = lambda part: (np.asarray(part(after.learner)) - kappa * np.asarray(part(plain.learner))) / (1 - kappa)
    weights = [
        drawn(lambda s: s.params.critic.heads.layers[1].weight[0, 0]),
        drawn(lambda s: s.params.critic.heads.layers[1].weight[1, 0]),
        drawn(lambda s: s.params.critic.heads.layers[1].weight[0, 1]),
        drawn(lambda s: s.target.critic.heads.layers[1].weight[0, 0]),
        drawn(lambda s: s.params.actor.head.layers[1].weight),
        drawn(lambda s: s.target.actor.head.layers[1].weight),
    ]
    match = np.abs(np.corrcoef([w.ravel() for w in weights]) - np.eye(6)).max()
    assert match < 0.4  # 256 entries each: 0.06 is usual
    projections = [
        drawn(lambda s: s.params.actor.trunk.dense.weight),
        drawn(lambda s: s.target.actor.trunk.dense.weight),
    ]
    assert abs(np.corrcoef([p.ravel() for p in projections])[0, 1]) < 0.4
    np.testing.assert_allclose(projections[0].std(), 32**-0.5, rtol=0.25)  # LeCun on the 32 features of a 16x16 image


@pytest.mark.slow
def test_optimisers_start_anew(around):
    _, plain, after = around
    for name in ("value_opt", "actor_opt"):
        assert any(x.any() for x in leaves(getattr(plain.learner, name)).values())
        assert not any(x.any() for x in leaves(getattr(after.learner, name)).values())


@pytest.mark.slow
def test_ensemble_weight_and_statistics_are_untouched(around):
    _, plain, after = around
    for part in ("model", "weight", "scale"):
        close(getattr(plain, part), getattr(after, part), rtol=1e-6)
    assert same(plain.learner.plastic, after.learner.plastic) and same(plain.learner.alpha, after.learner.alpha)


@pytest.mark.slow
def test_the_update_after_a_perturbation_is_ordinary(around):
    agent, _, state = around
    never = replace(agent, base=replace(agent.base, plasticity=Dormant(every=0)))
    close(step(agent, state, 3), step(never, state, 3), rtol=1e-6, atol=1e-7)


def equations(jaxpr, name: str) -> list:
    """Every equation of this primitive, those of inner programs too."""
    inner = [eqn for sub in subjaxprs(jaxpr) for eqn in equations(sub, name)]
    return [eqn for eqn in jaxpr.eqns if eqn.primitive.name == name] + inner


def test_a_perturbation_stays_conditional_when_seeds_are_mapped():
    """A `cond` on a mapped predicate becomes a `select`, which would initialise networks at every update."""
    agent = named("drm")
    init = lambda k: agent.init(k, SPEC)
    states = jax.eval_shape(lambda: jax.vmap(init)(jax.random.split(KEY, 2)))
    data, now = jax.eval_shape(lambda: batches(3)), jax.eval_shape(clock)
    keys = jax.eval_shape(lambda: jax.random.split(KEY, 2))
    mapped = jax.vmap(lambda s, k, d, n: update(agent, s, d, k, n)[0], (0, 0, None, None))
    program = jax.make_jaxpr(mapped)(states, keys, data, now).jaxpr
    branches = [cond.params["branches"] for cond in equations(program, "cond")]
    random = [pair for pair in branches if any(equations(branch.jaxpr, "random_bits") for branch in pair)]
    assert len(random) == 1  # the others choose how to convolve


# ------------------------------------------------------------ invariant 30: the noise


def test_noise_follows_the_ratio_until_the_actor_wakes():
    schedule = Linear(1.0, 0.1, 100)
    for ratio in (0.0, 0.2, 0.7):
        wanted = 1 / (1 + np.exp(-10 * (ratio - 0.2)))
        asleep = Dormant().sigma(dormant_state(ratio), schedule, jnp.asarray(50))
        np.testing.assert_allclose(asleep, wanted, rtol=1e-5)
        awake = Dormant().sigma(dormant_state(ratio, 10), schedule, jnp.asarray(50))
        np.testing.assert_allclose(awake, max(wanted, 0.55), rtol=1e-5)
    assert float(Dormant().sigma(Dormant().init(), schedule, jnp.asarray(0))) == pytest.approx(0.1192, abs=1e-4)
    assert float(Dormant(start=1.0).sigma(Dormant(start=1.0).init(), schedule, jnp.asarray(0))) > 0.999


def test_the_schedule_may_start_when_the_actor_wakes():
    schedule, woken = Linear(1.0, 0.1, 100), dormant_state(0.0, 40)
    at = lambda origin, t: float(Dormant(origin=origin).sigma(woken, schedule, jnp.asarray(t)))
    assert at("global", 50) == pytest.approx(0.55)
    assert at("awake", 50) == pytest.approx(0.91) and at("awake", 90) == pytest.approx(0.55)


def test_waking_latches_and_not_before_step_2000():
    alive, dead = [jnp.ones((2, 4))], [jnp.asarray([[1.0, 0.0, 0.0, 0.0]] * 2)]
    observe = lambda v, outputs, t: Dormant().observe(v, outputs, jnp.asarray(t, jnp.int32))
    early = observe(Dormant().init(), alive, 1_999)
    assert early.awake == ASLEEP and early.ratio == 0
    assert observe(early, dead, 2_000).awake == ASLEEP
    woken = observe(early, alive, 2_000)
    assert woken.awake == 2_000
    again = observe(woken, dead, 2_001)
    assert again.awake == 2_000 and float(again.ratio) == pytest.approx(0.75)
    assert observe(again, alive, 9_000).awake == 2_000


@pytest.mark.parametrize(
    ("aware", "updates", "acting"), [("always", 0.5, 0.5), ("acting", 0.2, 0.5), ("never", 0.2, 0.2)]
)
def test_where_the_noise_follows_the_ratio(aware, updates, acting):
    agent = named("drm", plasticity=Dormant(aware=aware), noise=constant(0.2))
    state = replace(fresh(agent, spec=SPEC).learner, plastic=dormant_state(0.2))
    base, now = agent.base, clock()
    assert float(base.sigma(state, now)) == pytest.approx(updates)
    assert float(base.sigma(state, now, "acting")) == pytest.approx(acting)
    obs = batches(3, None).obs
    calm = base.act(state, obs, KEY, now, explore=False)
    noise = jax.random.normal(KEY, calm.shape)
    wanted = jnp.clip(calm + acting * noise, -1, 1)
    np.testing.assert_allclose(base.act(state, obs, KEY, now, explore=True), wanted, atol=1e-5)


@pytest.mark.slow
def test_an_update_measures_the_ratio_that_the_next_action_uses():
    agent = named("drm", plasticity=Dormant(after=1))
    state = fresh(agent, spec=SPEC)
    after = step(agent, state, 1)
    learner = after.learner
    k_view = jax.random.fold_in(jax.random.split(jax.random.key(0), 3)[0], 0)
    view = agent.preprocess(jax.tree.map(lambda x: x[0], batches(3)), k_view)
    features = agent.base.encoder.features(learner.params.encoder, view.obs)
    actor = learner.params.actor
    z = actor.trunk(features)
    outputs = [actor.trunk.dense(features), *actor.head.hidden(z)[1:], actor.head(z)]
    np.testing.assert_allclose(learner.plastic.ratio, agent.base.plasticity.ratio(outputs), rtol=1e-6)
    assert learner.plastic.awake == (1 if learner.plastic.ratio < 0.2 else ASLEEP)


# ------------------------------------------------------------ laws


@pytest.mark.slow
def test_drm_without_perturbation_and_dormant_noise_is_drqv2():
    drm, drqv2 = named("drm", plasticity=OFF), named("drqv2")
    a, b = fresh(drm, spec=SPEC), fresh(drqv2, spec=SPEC)
    for at in range(3):
        a, b = step(drm, a, at, at), step(drqv2, b, at, at)
    close(replace(a.learner, plastic=()), b.learner, rtol=1e-6, atol=1e-7)
    obs = batches(3, None).obs
    act = lambda agent, s: agent.act(s, obs, KEY, clock(9, 9), explore=True)
    np.testing.assert_allclose(act(drm, a), act(drqv2, b), atol=1e-6)


def test_bases_without_plasticity_carry_nothing_of_it():
    for algo in ("drq", "drqv2", "maxinfo-drqv2"):
        shape = jax.eval_shape(lambda algo=algo: named(algo).init(KEY, SPEC))
        assert shape.learner.plastic == ()


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(BadInput, match="unknown origin 'wake': did you mean 'awake'"):
        Dormant(origin="wake")
    with pytest.raises(BadInput, match="unknown aware 'often': choose from acting, always, never"):
        Dormant(aware="often")
    with pytest.raises(BadInput, match="0 <= `least` <= `most` <= 1"):
        Dormant(most=0.1)
