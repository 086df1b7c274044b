"""What makes explorers explore: how intrinsic rewards are normalised, correlated action noise, weights, old files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import (
    NOW,
    SPEC,
    DescentWeight,
    batches,
    close,
    constant_actor,
    descending,
    fresh,
    run,
    same,
    small,
    train_state,
    transition,
)
from maxinforl import cli, config
from maxinforl.algorithms import INTRINSICS, algorithm
from maxinforl.core.action_noise import ORNSTEIN_UHLENBECK, PINK, CorrelatedNoise
from maxinforl.core.normalizer import Normalizer, Standardize
from maxinforl.core.program import Program
from maxinforl.errors import BadInput
from maxinforl.explore import Fixed, MaxInfo, Paired, Tied, Tuned
from maxinforl.intrinsic import Curiosity, Disagreement, InfoGain
from maxinforl.settings import Settings, resolve
from test_core_intrinsic import STATE, TINY, A, Z, latents, model_of, saying

KEY = jax.random.key(0)


class Pairwise(DescentWeight, Paired):
    pass


RESULTS = Path(__file__).parent.parent / "results"


# ------------------------------------------------------------ the normaliser of intrinsic rewards


def remembered(x: np.ndarray, memory: float, floor: float) -> np.ndarray:
    """Independent and slow: the statistics of batches in float64, each with the weight that its points still have."""
    mean, second, count = 0.0, 1.0, 0.0
    for batch in x.astype(np.float64):
        total = count + len(batch)
        spread = count * second + np.square(batch).sum() if count else np.square(batch).sum()
        mean, second = (count * mean + batch.sum()) / total, spread / total
        std = max(np.sqrt(max(second - mean**2, 0.0)), floor)
        second, count = std**2 + mean**2, min(total, memory)
    return np.array([mean, std, count])


@pytest.mark.parametrize("rule", [Standardize(), Standardize(memory=40), Standardize(memory=40, floor=0.9)])
def test_statistics_remember_as_many_points_as_they_say(rule):
    x = np.random.default_rng(0).normal(3, 0.5, (20, 16)).astype(np.float32) * np.linspace(1, 0.1, 20)[:, None]
    n = Normalizer(rule=rule)
    for batch in x:
        n = n.update(jnp.asarray(batch, jnp.float32))
    np.testing.assert_allclose([n.mean, n.std, n.count], remembered(x, rule.memory, rule.floor), rtol=1e-4)
    centred = (x[-1] - n.mean) / n.std
    np.testing.assert_allclose(n(jnp.asarray(x[-1], jnp.float32)), centred, rtol=1e-4, atol=1e-5)
    plain = Normalizer(rule=replace(rule, centre=False))
    plain = eqx.tree_at(lambda n: (n.mean, n.std), plain, (n.mean, n.std))
    np.testing.assert_allclose(plain(jnp.asarray(x[-1], jnp.float32)), x[-1] / n.std, rtol=1e-5)


@pytest.mark.parametrize(
    ("entry", "value", "says"),
    [("memory", 0, "memory"), ("memory", float("inf"), "memory"), ("floor", 0, "floor"), ("floor", -1.0, "floor")],
)
def test_a_normaliser_that_cannot_be_is_one_sentence(entry, value, says):
    with pytest.raises(BadInput, match=says):
        resolve(Settings(algo="maxinfo-rnd-sac", set=((f"intrinsic.normalize.{entry}", float(value)),)))


def test_a_logarithm_needs_its_centre():
    with pytest.raises(BadInput, match="negative everywhere"):
        Curiosity(normalize=Standardize(centre=False))
    assert not Curiosity(log=False, normalize=Standardize(centre=False)).log


def spread_of(means: np.ndarray, rule: Standardize, size: int, log: bool = False) -> np.ndarray:
    """The standard deviation of each batch once it is normalised, for rewards whose spread follows their mean."""
    rewards = means[:, None] * np.random.default_rng(1).lognormal(-0.5, 1.0, (len(means), size))
    rewards = np.log(1e-6 + rewards) if log else rewards

    def step(n: Normalizer, x: jax.Array) -> tuple[Normalizer, jax.Array]:
        n = n.update(x)
        return n, n(x).std()

    return np.asarray(jax.lax.scan(step, Normalizer(rule=rule), jnp.asarray(rewards, jnp.float32))[1])


@pytest.mark.parametrize("ratio", [1, 4])
@pytest.mark.parametrize("name", ["disagreement", "rnd", "curiosity"])
def test_a_decaying_reward_keeps_its_spread(name, ratio):
    """From 0.17 to 0.0085 within 6 000 steps, as on mountain car; the long memory loses most of it."""
    means = 0.17 * np.exp(-np.linspace(0, 3, 6000 * ratio))[:6000]
    intrinsic = INTRINSICS[name]
    kept = spread_of(means, intrinsic.normalize, 256, getattr(intrinsic, "log", False))[200:].reshape(-1, 100).mean(1)
    assert kept.min() > 0.5 and kept.max() < 2


def test_a_long_memory_loses_the_spread():
    assert spread_of(0.17 * np.exp(-np.linspace(0, 3, 6000)), Standardize(), 256)[-100:].mean() < 0.3


LOGGED = ["maxinfo-rnd-sac", "disagreement-sac", "curiosity-sac", "eps-maxinfo-sac", "eps-maxinfo-curiosity-sac"]


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1, 4])
@pytest.mark.parametrize("algo", LOGGED)
def test_logged_rewards_of_mountain_car_keep_their_spread(algo, ratio):
    """With the means that committed runs logged every 500 steps."""
    lines = [json.loads(line) for line in (RESULTS / f"mountain-car/{algo}/seed-0/metrics.jsonl").open()]
    name = "explore/info_gain" if algo == "maxinfo-rnd-sac" else "explore/intrinsic_reward"
    steps, means = zip(*((line["step"], line[name]) for line in lines if line.get(name)))
    every = np.exp(np.interp(np.arange(steps[0], steps[-1], 1 / ratio), steps, np.log(means)))
    size = 512 if algo == "maxinfo-rnd-sac" else 256
    intrinsic = algorithm(algo).intrinsic
    kept = spread_of(every, intrinsic.normalize, size, getattr(intrinsic, "log", False))
    running = np.convolve(kept[100:], np.ones(100) / 100, "valid")
    assert running.min() > 0.5 and running.max() < 2


@pytest.mark.slow
def test_an_explorer_is_given_the_normalised_reward_and_one_setting_gives_the_raw_one():
    agent = small("sac", "eps")
    assert agent.normalized
    raw = replace(agent, normalized=False)
    state = run(agent, fresh(agent))
    assert float(state.scale.count) == batches(1).obs.shape[1] and float(state.scale.std) != 1
    assert run(raw, fresh(raw)).scale == ()
    again, plain = run(agent, state).curious, run(raw, replace(state, scale=())).curious
    assert not same(again.params.critic, plain.params.critic)
    close(run(agent, state).task, run(raw, replace(state, scale=())).task)


def test_an_explorer_starts_cold_and_the_task_does_not():
    agent = small("sac", "eps")
    state = fresh(agent)
    assert float(state.curious.alpha.log) == pytest.approx(np.log(0.1)) and float(state.task.alpha.log) == 0
    warm = replace(agent, explorer_alpha=None)
    assert float(fresh(warm).curious.alpha.log) == 0


# ------------------------------------------------------------ blocks and clipped targets


def test_one_block_is_the_plain_mean():
    gain, blocks = InfoGain(**TINY), InfoGain(**TINY, aggregate="blocks")
    x, y = jnp.zeros((4, 2)), jnp.asarray([[1.0, 5.0]] * 4)
    model = replace(saying(model_of(gain), [[0.0, 0.0], [0.0, 3.0], [0.0, -3.0]]), blocks=(2,))
    np.testing.assert_allclose(*(i.loss(model.members, x, y, model.blocks)[0] for i in (gain, blocks)), rtol=1e-6)
    np.testing.assert_allclose(*(i.score(model, Z, A) for i in (gain, blocks)), rtol=1e-6)


def test_in_blocks_the_reward_weighs_as_much_as_the_whole_state():
    spec = STATE._replace(z=3)
    blocks = InfoGain(**TINY, aggregate="blocks")
    model = saying(model_of(blocks, spec), [[0.0, 0.0, 0.0, v] for v in (0.0, 1.0, -1.0)])
    z, a = jnp.zeros((2, 3)), jnp.zeros((2, 1))
    ratio = blocks.score(model, z, a) / InfoGain(**TINY).score(model, z, a)
    np.testing.assert_allclose(ratio, 2.0, rtol=1e-5)  # 1/2 instead of 1/4
    y = jnp.asarray([[0.0, 0.0, 0.0, 2.0]] * 2)
    still = saying(model, np.zeros((3, 4)))
    x = jnp.zeros((2, 4))
    by_block, by_mean = (i.loss(still.members, x, y, model.blocks)[0] for i in (blocks, InfoGain(**TINY)))
    assert float(by_block) == pytest.approx(2.0) and float(by_mean) == pytest.approx(1.0)


def test_targets_are_clipped_only_where_asked():
    rare = latents(size=64)._replace(reward=jnp.zeros(64).at[0].set(1000.0))
    plain, clipped = Disagreement(**TINY), Disagreement(**TINY, clip=2.0)
    model = model_of(plain)
    errors = [float(i.update(model, rare)[1]["explore/model_error"]) for i in (plain, clipped)]
    assert errors[1] < errors[0]
    with pytest.raises(BadInput, match="bound on normalised targets"):
        Disagreement(clip=0.0)


# ------------------------------------------------------------ noise of the behaviour


def played(noise: CorrelatedNoise, steps: int, lanes: int = 64) -> np.ndarray:
    """[steps, lanes] of one long episode."""
    going = jnp.zeros(lanes, bool)

    def one(state, key):
        state = noise.advance(state, key, going)
        return state, noise(state)[:, 0]

    return np.asarray(jax.lax.scan(one, noise.init(KEY, lanes, 1), jax.random.split(jax.random.key(1), steps))[1])


def test_pink_noise_has_its_spectrum_and_unit_variance():
    x = played(PINK, 4096)
    assert x.var() == pytest.approx(1.0, abs=0.1)
    power = np.square(np.abs(np.fft.rfft(x - x.mean(0), axis=0))).mean(1)[1:]
    band = slice(8, 1024)  # frequencies from 1/512 to 1/4
    slope = np.polyfit(np.log(np.arange(1, len(power) + 1)[band]), np.log(power[band]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.08)


def test_an_ornstein_uhlenbeck_process_decays_at_its_rate():
    x = played(ORNSTEIN_UHLENBECK, 4096)
    lag = (x[1:] * x[:-1]).mean() / x.var()
    assert lag == pytest.approx(np.exp(-0.15), abs=0.01) and x.var() == pytest.approx(1.0, abs=0.1)


def test_noise_starts_afresh_where_an_episode_ended_and_lanes_are_independent():
    state = PINK.init(KEY, 500, 2)
    after = PINK.advance(state, jax.random.key(1), jnp.arange(500) < 250)
    now, then = PINK(state), PINK(after)
    likeness = lambda part: np.corrcoef(now[part].ravel(), then[part].ravel())[0, 1]
    assert abs(likeness(slice(250))) < 0.15 and likeness(slice(250, 500)) > 0.4
    assert abs(np.corrcoef(now[:, 0], now[:, 1])[0, 1]) < 0.15


@pytest.mark.slow
def test_noise_is_the_behaviours_alone():
    """The same update, the same deterministic action, other actions in training, and white is the agent of before."""
    plain = small("sac", "maxinfo")
    pink = replace(plain, base=replace(plain.base, action_noise=PINK))
    state = fresh(plain)
    assert same(run(plain, state), run(pink, state))
    obs, noise = batches().obs, PINK(PINK.init(KEY, 8, 2))
    judged = [a.act(state, obs, KEY, NOW, explore=False) for a in (plain, pink)]
    assert same(*judged)
    white, coloured = (plain.act(state, obs, KEY, NOW, explore=True, noise=n) for n in (None, noise))
    assert not same(white, coloured)
    assert resolve(Settings(algo="sac", action_noise="white"))[1] == resolve(Settings(algo="sac"))[1]


def test_the_process_advances_once_per_step_and_restarts_with_the_episode():
    agent = small("sac")
    agent = replace(agent, base=replace(agent.base, action_noise=PINK))
    program = Program(agent, SPEC)
    state = replace(train_state(program), noise=PINK.init(KEY, 1, 2))
    going, over = transition(1), transition(1, terminated=np.array([True]))
    moved, begun = program.insert(state, going), program.insert(state, over)
    key = program.noise_key(state.seed, state.clock.step + 1)
    close(moved.noise, PINK.advance(state.noise, key, jnp.array([False])))
    close(begun.noise, PINK.advance(state.noise, key, jnp.array([True])))


@pytest.mark.parametrize("wrong", [{"times": ()}, {"times": (0.0,)}, {"times": (float("inf"),)}])
def test_noise_that_cannot_be_is_one_sentence(wrong):
    with pytest.raises(BadInput, match="action noise"):
        replace(PINK, **wrong)


# ------------------------------------------------------------ the weight of the information gain


def test_the_weight_has_names_and_numbers_and_keeps_rate_and_clip():
    weight = lambda **given: resolve(Settings(**given))[1].weight  # type: ignore[attr-defined]
    assert weight(algo="maxinfo-rnd-sac", weight="paper") == Tuned(clip=0.5)
    assert weight(algo="maxinfo-sac", weight="tied") == Tied() and weight(algo="maxinfo-sac", weight=0.5) == Fixed(0.5)
    for algo in ("sac", "intrinsic-sac", "eps-maxinfo-sac"):
        with pytest.raises(BadInput, match="--weight"):
            resolve(Settings(algo=algo, weight="paper"))
    with pytest.raises(BadInput, match="did you mean 'tied'"):
        resolve(Settings(algo="maxinfo-sac", weight="tide"))


def test_paired_noise_leaves_nothing_to_compare_where_policy_and_copy_are_alike():
    """A fresh policy is its own slow copy: with noise of its own the estimate is off 0, with the same noise it is 0."""
    agent = small("sac", "maxinfo")
    log = lambda weight: float(run(replace(agent, weight=weight), fresh(replace(agent, weight=weight))).weight.log)
    assert log(Pairwise()) == 0 and log(DescentWeight()) != 0


def test_a_deterministic_policy_has_a_critic_for_the_gain():
    ddpg = algorithm("maxinfo-ddpg")
    assert isinstance(ddpg, MaxInfo) and ddpg.own_critic and ddpg.learner.channels == 2
    assert not algorithm("maxinfo-sac").own_critic and algorithm("maxinfo-drqv2").own_critic


def test_a_saturated_deterministic_actor_comes_back_from_the_edge():
    """At an output of 20 the tanh's gradient is 0: only the cost of the edge moves the actor, and towards 0."""
    plain = descending("ddpg", "none")
    after = lambda agent, learner: run(agent, replace(fresh(agent), learner=learner)).learner.params.actor
    bias = lambda agent, learner: after(agent, learner).head.layers[-1].bias
    state = fresh(plain).learner
    stuck = constant_actor(state.params.actor, [20.0, -20.0])
    state = replace(state, params=replace(state.params, actor=stuck))
    pulled = replace(plain, base=replace(plain.base, policy=replace(plain.base.policy, edge=0.1)))
    np.testing.assert_allclose(bias(plain, state), [20.0, -20.0])
    slope, lr = 2 * 0.1 * 20, 0.1
    np.testing.assert_allclose(bias(pulled, state), [20 - lr * slope, -20 + lr * slope], rtol=1e-4)


# ------------------------------------------------------------ old files keep their meaning


def test_an_entry_that_a_file_lacks_means_what_was_done_before():
    for algo in ("eps-maxinfo-sac", "maxinfo-rnd-sac", "curiosity-sac"):
        agent = algorithm(algo)
        table = config.to_plain(agent)
        for name in ("normalize", "aggregate", "log"):
            table["intrinsic"].pop(name, None)
        for name in ("normalized", "explorer_alpha"):
            table.pop(name, None)
        old = config.from_file(table)
        assert old.intrinsic.normalize == Standardize() and old != agent
        assert not getattr(old, "normalized", False)
        assert config.from_file(config.to_plain(agent)) == agent
        assert old == resolve(Settings(algo=algo, preset="authors", uncertainty="paper"))[1]


def test_a_new_part_has_the_defaults_of_now():
    agent = config.override(algorithm("eps-maxinfo-sac"), "intrinsic", {"kind": "Curiosity"})
    assert agent.intrinsic == Curiosity()


# ------------------------------------------------------------ committed runs are still those of the paper's suites

DRAWN = [  # the flags of docs/evidence.md, and how many committed runs they find
    ("phase-plot --envs *terminal --set intrinsic.hidden=[64,64]", 10),
    ("switching-frequency --envs pendulum-hanging?K=0.5 --set steps=8000 --set eval_episodes=5"
     " --set intrinsic.hidden=[64,64]", 10),
    ("compute-cost --scale 0.03 --seeds 0-4", 10),  # of 15: the light ensemble was wider
    ("action-cost --envs pendulum-hanging* --set steps=8000 --set eval_episodes=5 --set intrinsic.hidden=[64,64]", 90),
    ("lambda-evolution --envs pendulum-hanging* --set steps=8000 --set eval_episodes=5"
     " --set intrinsic.hidden=[64,64]", 30),
    ("state-based --envs MountainCarContinuous-v0 --set steps=10000 --set eval_episodes=10"
     " --set intrinsic.hidden=[64,64]", 30),
    ("state-based --envs dmc/cartpole-swingup_sparse --algos sac,maxinfo-sac --seeds 0-2 --set steps=100000"
     " --set eval_episodes=5 --set intrinsic.hidden=[64,64]", 6),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "count"), DRAWN, ids=[flags.split()[0] for flags, _ in DRAWN])
def test_committed_runs_are_still_found(flags, count, tmp_path, capsys):
    assert cli.main(["reproduce", *flags.split(), "--reuse", str(RESULTS), "--dry-run", "--out", str(tmp_path)]) == 0
    assert re.search(rf"^{count} of \d+ runs finished", capsys.readouterr().out, re.MULTILINE)
