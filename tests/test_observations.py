"""Observations of many parts: what an agent and an exported policy take is what the environment gives."""

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

import maxinforl
from deploy_helpers import TINY, scrambled
from maxinforl import cli, deploy, envs, runner
from maxinforl.core.types import Spec
from maxinforl.deploy import bundle
from maxinforl.deploy.policy_weights import learner_of
from maxinforl.errors import BadInput

ACTIONS = spaces.Box(np.array([-0.3, 2.0], np.float32), np.array([0.1, 7.0], np.float32))
NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"angle": spaces.Box(-3, 3, (2, 2), np.float64), "touch": spaces.Discrete(3, start=-1)}),
        "goal": spaces.Box(-1, 1, (2,), np.float32),
        "mode": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[0, 5])]),
    }
)
SPACES = {
    "nested Dict": NESTED,
    "Dict of one": spaces.Dict({"x": spaces.Box(-1, 1, (3,), np.float32)}),
    "Tuple": spaces.Tuple([spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)]),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4, 2]),
    "grid of choices": spaces.MultiDiscrete(np.array([[3, 4], [2, 2]])),
    "Discrete": spaces.Discrete(5),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "number": spaces.Box(-1, 1, (), np.float32),
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "one grey image": spaces.Dict({"camera": spaces.Box(0, 255, (16, 16), np.uint8)}),
}


class Samples(gym.Env):
    """Observes what its space samples, for five steps."""

    def __init__(self, space: spaces.Space = NESTED):
        self.observation_space, self.action_space = space, ACTIONS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), float(action[0]), False, self.left == 0, {}


def agent_for(space: spaces.Space, **options: Any) -> maxinforl.Agent:
    image = envs.make(Samples(space)).observation_space.dtype == np.uint8
    given = {"frame_stack": 1, "image_size": 16} if image else {}
    return scrambled(maxinforl.make("drq" if image else "sac", lambda: Samples(space), set=TINY, **given, **options))


def batched(space: spaces.Space, rows: list) -> Any:
    """Observations as a Gymnasium vector environment puts them together."""
    return concatenate(space, rows, create_empty_array(space, len(rows)))


def mean_return(agent: maxinforl.Agent, vector: gym.vector.VectorEnv, steps: int = 12) -> float:
    """What Stable-Baselines3's evaluate_policy does, on a vector environment."""
    obs, _ = vector.reset(seed=0)
    total, state, start = 0.0, None, np.ones(vector.num_envs, bool)
    for _ in range(steps):
        action, state = agent.predict(obs, state=state, episode_start=start, deterministic=True)
        obs, reward, terminated, truncated, _ = vector.step(action)
        total, start = total + float(reward.sum()), terminated | truncated
    return total


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_predict_takes_the_environments_own_observation(space):
    agent, flat = agent_for(space), envs.make(Samples(space))
    space.seed(1)
    rows = [space.sample() for _ in range(6)]
    vectors = np.stack([flat._observe(row) for row in rows])
    expected, _ = agent.predict(vectors, deterministic=True)
    assert expected.shape == (6, 2)
    np.testing.assert_array_equal(agent.predict(batched(space, rows), deterministic=True)[0], expected)
    for row, action in zip(rows, expected):
        own, _ = agent.predict(row, deterministic=True)
        assert own.shape == (2,)
        np.testing.assert_allclose(own, action, rtol=1e-5)


@pytest.mark.parametrize("to", ["numpy", "onnx"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_bundles_take_the_environments_own_observation(space, to, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    agent = agent_for(space)
    deploy.export(agent, to, tmp_path / "b")
    act = bundle.opened(tmp_path / "b", to)
    space.seed(2)
    rows = [space.sample() for _ in range(6)]
    expected, _ = agent.predict(batched(space, rows), deterministic=True)
    np.testing.assert_allclose(act(batched(space, rows)), expected, atol=1e-4)
    np.testing.assert_allclose(act(rows[3]), expected[3], atol=1e-4)


def test_the_order_of_the_parts_in_an_observation_does_not_matter(tmp_path):
    agent = agent_for(NESTED)
    row = NESTED.sample()
    turned = {key: row[key] for key in reversed(row)} | {"arm": {k: row["arm"][k] for k in reversed(row["arm"])}}
    assert list(turned) != list(row) or list(turned["arm"]) != list(row["arm"])
    deploy.export(agent, "numpy", tmp_path / "b")
    for act in (lambda obs: agent.predict(obs, deterministic=True)[0], runner.Policy(tmp_path / "b")):
        np.testing.assert_array_equal(act(row), act(turned))


def test_a_saved_agent_takes_them_without_its_environment(tmp_path):
    agent, row = agent_for(NESTED), NESTED.sample()
    agent.save(tmp_path)
    again = maxinforl.load(tmp_path)
    assert again.env is None and again.spaces.parts == agent.spaces.parts
    np.testing.assert_array_equal(again.predict(row, deterministic=True)[0], agent.predict(row, deterministic=True)[0])


def test_an_agent_does_not_move_to_parts_in_another_order():
    box = spaces.Box(-1, 1, (2,), np.float32)
    agent = agent_for(spaces.Dict([("a", box), ("b", box)]))
    agent.set_env(lambda: Samples(spaces.Dict([("a", box), ("b", box)])))
    with pytest.raises(BadInput, match="observations are a, b, and the environment's are b, a"):
        agent.set_env(lambda: Samples(spaces.Dict([("b", box), ("a", box)])))


@pytest.mark.slow
def test_a_dict_of_one_vector_trains_as_the_vector(tmp_path):
    learned, plain = [], lambda: Samples(SPACES["vector"])
    inside = lambda: gym.wrappers.TransformObservation(plain(), lambda obs: {"x": obs}, SPACES["Dict of one"])
    for name, env in (("vector", plain), ("dict", inside)):
        agent = maxinforl.make("maxinfo-sac", env, set=TINY, batch_size=8, learning_starts=4, eval_episodes=0)
        agent.learn(12).save(tmp_path / name)
        learned.append(maxinforl.files.load_arrays(tmp_path / name / "agent.safetensors")[0])
    assert learned[0].keys() == learned[1].keys()
    for name, array in learned[0].items():
        np.testing.assert_array_equal(array, learned[1][name], name)


WRONG = {
    "a part that is missing": (lambda row: {k: row[k] for k in ("arm", "mode")}, "lacks its part goal"),
    "a part inside that is missing": (
        lambda row: row | {"arm": {"angle": row["arm"]["angle"]}},
        "its part arm.t",
    ),
    "another shape": (lambda row: row | {"goal": np.zeros(3, np.float32)}, "goal has shape"),
    "a text": (lambda row: row | {"goal": "left"}, "goal has shape"),
    "a choice that there is not": (lambda row: row | {"arm": row["arm"] | {"touch": 7}}, "not among its choices"),
    "unequal batches": (lambda row: row | {"goal": np.zeros((4, 2), np.float32)}, "unequal"),
    "a number that is not finite": (lambda row: row | {"goal": np.full(2, np.nan)}, "not finite"),
    "a number beyond float32": (
        lambda row: row | {"arm": row["arm"] | {"angle": np.full((2, 2), 9e99)}},
        "not finite",
    ),
}


@pytest.mark.parametrize(("wrong", "sentence"), WRONG.values(), ids=WRONG)
def test_an_observation_that_is_not_the_environments_is_refused(wrong, sentence, tmp_path):
    agent, row = agent_for(NESTED), dict(NESTED.sample())
    with pytest.raises(BadInput, match=sentence):
        agent.predict(wrong(row))
    deploy.export(agent, "numpy", tmp_path / "b")
    with pytest.raises(ValueError, match=sentence):
        runner.Policy(tmp_path / "b")(wrong(row))


def test_damaged_parts_in_a_file_are_refused():
    table = agent_for(NESTED).spaces.table()
    for change in ({"path": 3}, {"shape": ["2"]}, {"starts": [0, 0]}, {"shape": [7]}):
        parts = [table["observation_parts"][0] | change, *table["observation_parts"][1:]]
        with pytest.raises(BadInput, match="damaged"):
            maxinforl.spaces.read_spaces(table | {"observation_parts": parts})


@pytest.mark.slow
def test_evaluate_and_vector_environments_of_dicts():
    make = lambda: Samples(NESTED)
    agent = maxinforl.make("sac", make, set=TINY, batch_size=8, learning_starts=4)
    assert agent.evaluate(2).lengths.tolist() == [5, 5]
    vector = SyncVectorEnv([make, make], autoreset_mode=AutoresetMode.DISABLED)
    assert np.isfinite(mean_return(agent, SyncVectorEnv([make, make])))
    trained = maxinforl.make("sac", vector, set=TINY, batch_size=8, learning_starts=4, eval_episodes=0)
    assert trained.spaces.parts == agent.spaces.parts
    assert trained.learn(12).predict(batched(NESTED, [NESTED.sample()] * 2))[0].shape == (2, 2)


@pytest.mark.slow
def test_a_goal_maze_of_gymnasium_robotics(tmp_path):
    import gymnasium_robotics  # not above: it imports MuJoCo, which then draws with a back end of its own choice

    gym.register_envs(gymnasium_robotics)
    make = lambda: gym.make("PointMaze_UMaze-v3", max_episode_steps=20)
    agent = maxinforl.make("maxinfo-sac", make, set=TINY, batch_size=8, learning_starts=4, eval_episodes=0).learn(40)
    assert np.isfinite(mean_return(agent, SyncVectorEnv([make, make])))
    deploy.export(agent, "numpy", tmp_path / "b")
    env, policy = make(), runner.Policy(tmp_path / "b")
    obs, _ = env.reset(seed=0)
    action, _ = agent.predict(obs, deterministic=True)
    assert env.action_space.contains(action)
    np.testing.assert_allclose(policy(obs), action, atol=1e-5)
    assert agent.evaluate(1).lengths.tolist() == [20]
    env.close()


# ------------------------------------------------------------ parts for critics alone

HIDDEN = "arm.touch,mode"


def seen_by_actor(row: dict) -> dict:
    return {"arm": {"angle": row["arm"]["angle"]}, "goal": row["goal"]}


def asymmetric(algo: str, **options: Any) -> maxinforl.Agent:
    options = {"set": TINY, "batch_size": 8, "learning_starts": 4, "eval_episodes": 0, "critic_only": HIDDEN} | options
    return maxinforl.make(algo, lambda: Samples(NESTED), **options)


@pytest.mark.parametrize("algo", ["maxinfo-sac", "simba", "crossq", "eps-maxinfo-sac", "ddpg"])
def test_a_part_for_critics_alone_cannot_change_an_action(algo):
    agent = scrambled(asymmetric(algo, set={} if algo in ("simba", "crossq") else TINY))
    program, state, now = agent.acting_state()
    hidden, generator = agent.spec.hidden, np.random.default_rng(0)
    obs = generator.normal(0, 1, (64, *agent.spec.obs)).astype(np.float32)
    others = obs.copy()
    others[:, -hidden:] = generator.normal(0, 100, (64, hidden))
    actions = [
        (program.act(state, x, now), program.sample_act(state, x, jax.random.key(3), now)) for x in (obs, others)
    ]
    np.testing.assert_array_equal(actions[0], actions[1])
    first, again = (agent.predict(x, deterministic=True)[0] for x in (obs, others))
    np.testing.assert_array_equal(first, again)
    others[:, :-hidden] += 1
    assert (np.array(program.act(state, others, now)) != np.array(actions[0][0])).any(-1).all()
    learner = learner_of(state)
    value = lambda x: agent.strategy.base.q(learner.params.critic, x, actions[0][0], stats=learner.stats.critic)
    others[:, :-hidden] = obs[:, :-hidden]
    assert (np.array(value(obs)) != np.array(value(others))).all()


def test_parts_for_critics_alone_are_last_and_need_not_be_given(tmp_path):
    agent = scrambled(asymmetric("maxinfo-sac"))
    assert [(p.name, p.critic_only) for p in agent.spaces.parts] == [
        ("arm.angle", False), ("goal", False), ("arm.touch", True), ("mode.0", True), ("mode.1", True)
    ]  # fmt: skip
    assert agent.spec == Spec((16,), 2, 10) and agent.spec.seen.obs == (6,)
    row = NESTED.sample()
    expected, _ = agent.predict(row, deterministic=True)
    np.testing.assert_array_equal(agent.predict(seen_by_actor(row), deterministic=True)[0], expected)
    flat = envs.make(Samples(NESTED), critic_only=HIDDEN)._observe(row)
    for vector in (flat, flat[:6]):
        np.testing.assert_array_equal(agent.predict(vector, deterministic=True)[0], expected)
    assert np.isfinite(agent.information_gain(row, expected))
    with pytest.raises(BadInput, match=r"lacks its part arm\.touch"):
        agent.information_gain(seen_by_actor(row), expected)
    for to in ("numpy", "onnx"):
        if to == "onnx":
            pytest.importorskip("onnxruntime")
        deploy.export(agent, to, tmp_path / to)
        act: Any = bundle.opened(tmp_path / to, to)
        np.testing.assert_allclose(act(seen_by_actor(row)), expected, atol=1e-5)
    contract = runner.read_contract(tmp_path / "numpy" / "contract.json")["observation"]
    assert contract["shape"] == [6]
    assert contract["order"] == [{"name": "arm.angle", "size": 4}, {"name": "goal", "size": 2}]


@pytest.mark.slow
def test_the_normaliser_of_an_exported_actor_is_of_what_it_sees(tmp_path):
    agent = asymmetric("simba", set={}).learn(12)
    row = NESTED.sample()
    deploy.export(agent, "numpy", tmp_path / "b")
    expected, _ = agent.predict(row, deterministic=True)
    np.testing.assert_allclose(runner.Policy(tmp_path / "b")(seen_by_actor(row)), expected, atol=1e-5)
    assert len(runner.read_contract(tmp_path / "b" / "contract.json")["normaliser"]["mean"]) == 6


@pytest.mark.slow
def test_an_asymmetric_agent_is_saved_and_resumed_bit_for_bit(tmp_path):
    make = lambda: Samples(NESTED)
    whole = asymmetric("maxinfo-sac", steps=24, save_every=12).learn(24, out=tmp_path / "whole")
    begun = asymmetric("maxinfo-sac", steps=24, save_every=12)
    begun.learn(24, out=tmp_path / "part", callback=StopAt(13))
    resumed = maxinforl.resume(tmp_path / "part", env=make)
    for agent, name in ((whole, "a"), (resumed, "b")):
        agent.save(tmp_path / name)
    first, again = (maxinforl.files.load_arrays(tmp_path / name / "agent.safetensors")[0] for name in "ab")
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name], name)
    loaded, row = maxinforl.load(tmp_path / "part", env=make), seen_by_actor(NESTED.sample())
    np.testing.assert_array_equal(loaded.predict(row, deterministic=True)[0], whole.predict(row, deterministic=True)[0])


class StopAt:
    def __init__(self, step: int):
        self.step = step

    def on_step(self, run):
        return run.step < self.step


@pytest.mark.slow
def test_a_vector_environment_hides_parts_too():
    vector = SyncVectorEnv([lambda: Samples(NESTED)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    tiny = {"set": TINY, "batch_size": 8, "learning_starts": 4, "eval_episodes": 0}
    agent = maxinforl.make("sac", vector, critic_only=["mode"], **tiny)
    before = agent.spaces.parts
    assert agent.learn(8).spec.hidden == 7 and agent.spaces.parts == before  # those of its pool


REFUSED = {
    "a part that there is not": (
        "sac",
        NESTED,
        "velocity",
        "velocity is no part of the observation, whose parts",
    ),
    "a beginning of a name": ("sac", NESTED, "mod", "mod is no part"),
    "every part": ("sac", NESTED, "arm,goal,mode", "leave one for the actor"),
    "a plain vector": ("sac", SPACES["vector"], "velocity", "whose parts are observation"),
    "an optimistic base": ("oac", NESTED, "mode", "optimistic base"),
}


@pytest.mark.parametrize(("algo", "space", "keys", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_for_critics_alone_is_refused(algo, space, keys, sentence):
    with pytest.raises(BadInput, match=sentence):
        maxinforl.make(algo, lambda: Samples(space), critic_only=keys)


def test_a_rendered_image_has_no_parts_to_hide():
    with pytest.raises(BadInput, match="one rendered image"):
        envs.make("pixels/pendulum-hanging", critic_only="velocity")


class Asks:
    def on_step(self, run):
        self.single = run.predict(seen_by_actor(NESTED.sample()))
        self.batch = run.predict(batched(NESTED, [NESTED.sample()] * 3))


def test_a_callback_asks_with_the_environments_own_observation():
    asks = Asks()
    asymmetric("sac").learn(6, callback=asks)
    assert asks.single.shape == (2,) and asks.batch.shape == (3, 2)


@pytest.mark.slow
def test_the_command_line_hides_parts(tmp_path, capsys):
    gym.register("Samples-v0", lambda **_: Samples())
    given = {"algo": "sac", "env": "Samples-v0", "steps": 8, "batch-size": 4, "learning-starts": 4, "eval-episodes": 0}
    flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    run = ["train", *flags, "--set", "base.hidden=[8,8]", "--out", str(tmp_path / "run"), "--critic-only"]
    assert cli.main([*run, "speed"]) == 2 and "speed is no part" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main([*run, HIDDEN]) == 0
    agent = maxinforl.load(tmp_path / "run")
    assert agent.spec.hidden == 10 and agent.predict(seen_by_actor(NESTED.sample()))[0].shape == (2,)
