"""An agent never commands more than the environment at hand allows."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

import maxinforl
from maxinforl.deploy import export
from maxinforl.runner import Policy


class Cart(gym.Env):
    """A mass pushed by a force of at most `limit` newtons."""

    limit, axes = 12.0, 1

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-self.limit, self.limit, (self.axes,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.time = self.np_random.normal(size=2).astype(np.float32), 0
        return self.state, {}

    def step(self, action):
        assert np.abs(action).max() <= self.limit, "a force beyond the limit"
        self.time += 1
        self.state = (0.9 * self.state + 0.1 * action[0] / self.limit).astype(np.float32)
        return self.state, float(-np.abs(self.state[0])), False, self.time >= 20, {}


class Weak(Cart):
    limit = 3.0


class Lopsided(Cart):
    def __init__(self):
        super().__init__()
        self.action_space = Box(np.float32(-1), np.float32(2), (1,), np.float32)


class TwoAxes(Cart):
    axes = 2


SMALL = {"batch_size": 8, "eval_episodes": 1, "log_every": 10, "set": {"base.hidden": (8, 8)}}
FAR = np.array([[50.0, -50.0], [-50.0, 50.0], [1e3, 1e3]], np.float32)  # where a policy saturates


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("strong")
    agent = maxinforl.make("sac", Cart, **SMALL)
    agent.learn(40, out=root / "run")
    agent.save(root / "saved")
    assert np.abs(agent.predict(FAR, deterministic=True)[0]).max() > 3
    return root


@pytest.mark.parametrize(
    ("source", "env"),
    [
        pytest.param("saved", Weak, id="saved-weaker"),
        pytest.param("run", Lopsided, id="run-asymmetric"),
        pytest.param("saved", Lopsided, id="saved-asymmetric", marks=pytest.mark.slow),
        pytest.param("run", Weak, id="run-weaker", marks=pytest.mark.slow),
    ],
)
def test_a_loaded_agent_acts_within_the_limits_of_the_environment_at_hand(saved, tmp_path, source, env):
    agent, space = maxinforl.load(saved / source, env=env), env().action_space
    assert agent.action_space == space
    for deterministic in (True, False):
        action, _ = agent.predict(FAR, deterministic=deterministic)
        assert (action >= space.low).all() and (action <= space.high).all()
    for to in ("numpy", "onnx"):
        export(agent, to, tmp_path / to)
        contract = json.loads((tmp_path / to / "contract.json").read_text())
        assert contract["action"]["low"] == space.low.tolist() and contract["action"]["high"] == space.high.tolist()
    bundle = Policy(tmp_path / "numpy")(FAR)
    assert (bundle >= space.low).all() and (bundle <= space.high).all()
    agent.learn(20)  # Cart.step refuses a force beyond its limit
    assert agent.action_space == space


def test_set_env_moves_a_trained_agent_and_drops_its_replay():
    agent = maxinforl.make("sac", Cart, **SMALL)
    agent.learn(20)
    before = agent.predict(FAR, deterministic=True)[0]
    with pytest.warns(UserWarning, match="replay"):
        agent.set_env(Weak)
    np.testing.assert_allclose(agent.predict(FAR, deterministic=True)[0], before / 4, rtol=1e-6)
    agent.learn(20)
    assert agent.settings.env == "custom" and agent.action_space.high[0] == 3


@pytest.mark.parametrize("source", ["saved", "run"])
def test_another_shape_of_actions_is_refused_with_a_sentence(saved, source):
    with pytest.raises(maxinforl.BadInput, match=r"actions of shape \(1,\), and the environment \(2,\)"):
        maxinforl.load(saved / source, env=TwoAxes)


@pytest.mark.slow
def test_an_agent_that_was_asked_before_it_learned_moves_with_what_it_has_learned():
    agent = maxinforl.make("sac", Cart, **SMALL)
    agent.predict(FAR)
    agent.learn(20)
    learned = agent.predict(FAR, deterministic=True)[0]
    with pytest.warns(UserWarning, match="replay"):
        agent.set_env(Weak)
    np.testing.assert_allclose(agent.predict(FAR, deterministic=True)[0], learned / 4, rtol=1e-6)
