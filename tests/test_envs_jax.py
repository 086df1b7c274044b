"""The pure JAX tasks against the simulators they restate."""

from importlib.util import find_spec

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxinforl.envs import jax_native, make
from maxinforl.envs.jax_native import TASKS

RNG = np.random.default_rng(0)


def steps(task, states, actions):
    return jax.jit(jax.vmap(task.step))(jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32))


def test_pendulum_agrees_with_gymnasium_on_1000_single_steps():
    states = np.stack([RNG.uniform(-7, 7, 1000), RNG.uniform(-8, 8, 1000)], 1)
    actions = RNG.uniform(-1, 1, (1000, 1)).astype(np.float32)
    after, reward, terminated = steps(TASKS["pendulum-hanging"], states, actions)
    env = gym.make("Pendulum-v1").unwrapped
    for i in range(1000):
        env.reset(seed=0)
        env.state = states[i]
        _, expected, *_ = env.step(2 * actions[i])
        np.testing.assert_allclose(after[i], env.state, rtol=1e-6, atol=2e-6)
        assert reward[i] == pytest.approx(expected, rel=2e-6, abs=1e-5)
    assert not terminated.any()


def test_mountain_car_agrees_with_gymnasium_on_1000_single_steps():
    # a tenth near each wall, so that stopping and reaching the goal are met
    position = np.concatenate([RNG.uniform(-1.2, 0.6, 800), RNG.uniform(-1.2, -1.15, 100), RNG.uniform(0.4, 0.5, 100)])
    states = np.stack([position, RNG.uniform(-0.07, 0.07, 1000)], 1).astype(np.float32)
    actions = RNG.uniform(-1, 1, (1000, 1)).astype(np.float32)
    after, reward, terminated = steps(TASKS["mountain-car"], states, actions)
    env = gym.make("MountainCarContinuous-v0").unwrapped
    ends = 0
    for i in range(1000):
        env.reset(seed=0)
        env.state = states[i]
        obs, expected, ended, *_ = env.step(actions[i])
        np.testing.assert_allclose(after[i], obs, rtol=1e-6, atol=2e-7)
        assert bool(terminated[i]) == ended and reward[i] == pytest.approx(expected, rel=1e-6)
        ends += ended
    assert ends > 20 and (np.asarray(after)[:, 0] == np.float32(-1.2)).sum() > 10


@pytest.mark.parametrize("reach", [1.6, 2.2], ids=["free", "with the ends of the rail"])
def test_cartpole_agrees_with_dm_control_on_1000_single_steps(reach):
    pytest.importorskip("dm_control")
    states = np.stack([RNG.uniform(-reach, reach, 1000), RNG.uniform(-4, 4, 1000)], 1)
    states = np.concatenate([states, RNG.normal(size=(1000, 2)) * [2, 5]], 1)
    states[:50, 0], states[:50, 1] = states[:50, 0] / 10, states[:50, 1] / 40  # rewarded ones
    actions = RNG.uniform(-1, 1, (1000, 1))
    task = TASKS["cartpole-swingup_sparse"]
    after, reward, terminated = steps(task, states, actions)
    obs = np.asarray(jax.vmap(task.observe)(after))
    env = make("dmc/cartpole-swingup_sparse").unwrapped
    for i in range(1000):
        env.reset(seed=0)
        with env.task.physics.reset_context():
            env.task.physics.data.qpos[:], env.task.physics.data.qvel[:] = states[i, :2], states[i, 2:]
        expected, value, *_ = env.step(actions[i])
        np.testing.assert_allclose(obs[i], expected, rtol=1e-6, atol=2e-6)
        assert reward[i] == value
    assert not terminated.any() and reward.sum() > 10


def test_cartpole_follows_dm_control_for_an_episode():
    pytest.importorskip("dm_control")
    task, env = TASKS["cartpole-swingup_sparse"], make("dmc/cartpole-swingup_sparse").unwrapped
    env.reset(seed=0)
    physics = env.task.physics
    state = jnp.array([*physics.data.qpos, *physics.data.qvel], jnp.float32)
    advance, rng, gap = jax.jit(task.step), np.random.default_rng(3), []
    for _ in range(300):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        state, *_ = advance(state, action)
        expected, *_ = env.step(action)
        gap.append(np.abs(np.asarray(task.observe(state)) - expected).max())
    assert max(gap[:100]) < 1e-4 and max(gap) < 1e-2


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_pure_seeded_and_truncate(name):
    task, env = TASKS[name], make(f"jax/{name}")
    assert env.observation_space.shape == (task.observation_size,)
    assert env.action_space.high[0] == task.action_bound and hash(task) == hash(type(task)())
    starts = [env.reset(seed=seed)[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert (starts[0] != starts[2]).any() and (env.reset()[0] != starts[2]).any()
    np.testing.assert_array_equal(starts[0], task.observe(task.reset(jax.random.key(1))))
    env.reset(seed=1)
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(task.time_limit)]
    assert ends == [(False, False)] * (task.time_limit - 1) + [(False, True)]


@pytest.mark.parametrize("name", TASKS)
def test_tasks_scan_and_vmap_with_stable_types(name):
    task = TASKS[name]

    def episode(key):
        state = task.reset(key)
        body = lambda state, action: (lambda out: (out[0], (task.observe(out[0]), *out[1:])))(task.step(state, action))
        return jax.lax.scan(body, state, jnp.zeros((5, task.action_size)))[1]

    obs, reward, terminated = jax.vmap(episode)(jax.random.split(jax.random.key(0), 4))
    assert obs.shape == (4, 5, task.observation_size) and obs.dtype == reward.dtype == jnp.float32
    assert terminated.dtype == bool and np.isfinite(obs).all()


def test_starts_are_those_stated():
    keys = jax.random.split(jax.random.key(0), 2000)
    pendulum = np.asarray(jax.vmap(TASKS["pendulum-hanging"].reset)(keys)) - [np.pi, 0]
    assert np.abs(pendulum).max() <= 0.1001 and np.abs(pendulum).max(0).min() > 0.099
    car = np.asarray(jax.vmap(TASKS["mountain-car"].reset)(keys))
    assert car[:, 0].min() >= -0.6 and car[:, 0].max() <= -0.4 and np.ptp(car[:, 0]) > 0.19 and (car[:, 1] == 0).all()
    cart = np.asarray(jax.vmap(TASKS["cartpole-swingup_sparse"].reset)(keys)) - [0, np.pi, 0, 0]
    np.testing.assert_allclose(cart.std(0), 0.01, rtol=0.1)


@pytest.mark.parametrize("name", TASKS)
def test_rendering_follows_the_state(name):
    env = make(f"jax/{name}", render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    for _ in range(40):
        env.step(env.action_space.high)
    assert before.shape == (256, 256, 3) and (env.render() != before).any()


def test_brax_is_named_where_it_is_missing():
    try:
        import brax  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match=r"maxinforl\[brax\]"):
            make("brax/ant")
        return
    with pytest.raises(ValueError, match=r"did you mean 'brax/ant'"):
        make("brax/aant")


@pytest.mark.skipif(find_spec("brax") is None, reason="Brax is not installed")
def test_a_brax_task_repeats_from_a_seed_terminates_and_is_cut_at_its_limit():
    env = make("brax/inverted_pendulum")

    def play(seed):
        obs, rewards, ended = [env.reset(seed=seed)[0]], [], False
        while not ended and len(rewards) < 200:
            state, reward, ended, _, _ = env.step(np.ones(1, np.float32))
            obs.append(state)
            rewards.append(reward)
        return np.stack(obs), np.array(rewards), ended

    (obs, rewards, ended), again, other = play(1), play(1), play(2)
    assert ended and obs.shape == (len(rewards) + 1, *env.observation_space.shape) and np.isfinite(obs).all()
    assert (
        np.array_equal(obs, again[0]) and np.array_equal(rewards, again[1]) and not np.array_equal(obs[0], other[0][0])
    )
    env = make("brax/fast")
    env.reset(seed=0)
    task = jax_native.task("brax/inverted_pendulum")
    shapes = jax.eval_shape(task.reset, jax.random.key(0))
    assert jax.eval_shape(lambda s: task.step(s, jnp.zeros(1))[0], shapes) == shapes  # so that a loop can carry it
    ends = [env.step(np.zeros(env.action_space.shape, np.float32))[2:4] for _ in range(1000)]
    assert ends[-1] == (False, True) and set(ends[:-1]) == {(False, False)}
