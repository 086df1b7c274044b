"""The hanging pendulum."""

import numpy as np
import pytest

from maxinforl.envs import make


def play(env, state=None, action=0.0, seed=0):
    env.reset(seed=seed)
    if state is not None:
        env.unwrapped.state = np.array(state)
    total, done = 0.0, False
    while not done:
        _, reward, terminated, truncated, _ = env.step(np.array([action], np.float32))
        total, done = total + reward, terminated or truncated
    return total, terminated, truncated


def test_resets_near_hanging():
    env = make("pendulum-hanging")
    starts = np.array([env.reset(seed=seed) and env.unwrapped.state for seed in range(200)])
    offset = np.abs(starts - [np.pi, 0])
    assert offset.max() <= 0.1 and (offset.max(0) > 0.09).all()


def test_zero_torque_from_the_exact_hanging_state_returns_minus_1974():
    total, terminated, truncated = play(make("pendulum-hanging"), (np.pi, 0.0))
    assert total == pytest.approx(-200 * np.pi**2, abs=1e-6)
    assert truncated and not terminated


def test_the_time_limit_can_be_terminal():
    _, terminated, truncated = play(make("pendulum-hanging", env_args={"time_limit_is_terminal": True}))
    assert terminated and not truncated


def test_squared_cost_is_k_u_squared_and_the_norm_cost_is_k_u():
    hanging = (np.pi, 0.0)
    plain = play(make("pendulum-hanging"), hanging, action=1.5)[0]
    squared = play(make("pendulum-hanging", env_args={"squared_cost": 0.2}), hanging, action=1.5)[0]
    norm = play(make("pendulum-hanging", action_cost=0.2), hanging, action=1.5)[0]
    assert plain - squared == pytest.approx(200 * 0.2 * 1.5**2)
    assert plain - norm == pytest.approx(200 * 0.2 * 1.5)


def test_dynamics_are_those_of_gymnasium():
    hanging, standard = make("pendulum-hanging"), make("Pendulum-v1")
    hanging.reset(seed=0)
    standard.reset(seed=0)
    standard.unwrapped.state = hanging.unwrapped.state.copy()
    for _ in range(100):
        action = standard.action_space.sample()
        a, b = hanging.step(action), standard.step(action)
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1] == b[1]
