"""Bundles act as `predict(deterministic=True)` does, refuse what was changed, and need only NumPy."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import maxinforl
from deploy_helpers import TINY, Arm, Camera, made, only_numpy, scrambled
from maxinforl import cli, deploy, runner
from maxinforl.core.architectures import ADD, KEEP, Network, Operation, dense, layer_norm
from maxinforl.core.networks import Dense, LayerNorm
from maxinforl.deploy import bundle
from maxinforl.errors import BadInput, RunFailed


def observations(agent: maxinforl.Agent, count: int = 10_000) -> np.ndarray:
    """Random ones, and edges: zeros, signs, the smallest numbers there are, one large entry at a time."""
    generator, width = np.random.default_rng(0), agent.spec.obs[0]
    random = generator.normal(0, generator.choice([0.01, 1.0, 8.0], (count, 1)), (count, width))
    edges = [np.zeros(width), np.ones(width), -np.ones(width), np.full(width, 1e-45), *(20 * np.eye(width))]
    return np.concatenate([edges, random]).astype(np.float32)


def apart(agent: maxinforl.Agent, act, obs: np.ndarray) -> float:
    """The largest difference of any action, with the range of the action as the unit."""
    expected, _ = agent.predict(obs, deterministic=True)
    half = (agent.action_space.high - agent.action_space.low) / 2
    assert (np.abs(expected - expected[0]) > 1e-3 * half).any()  # a policy that does nothing would prove nothing
    return float((np.abs(act(obs) - expected) / half).max())


SLOW = [pytest.param(algo, marks=pytest.mark.slow) for algo in ("maxinfo-oac", "eps-maxinfo-sac")]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sac", "ddpg", "eipo-sac", *SLOW])
def test_a_numpy_bundle_acts_as_predict_does(tmp_path, algo):
    agent = made(algo)
    deploy.export(agent, "numpy", tmp_path / "bundle")
    policy, obs = runner.Policy(tmp_path / "bundle"), observations(agent)
    assert apart(agent, policy, obs) < 1e-5
    one_by_one = np.stack([policy(row) for row in obs[:50]])
    np.testing.assert_allclose(one_by_one, policy(obs[:50]), atol=1e-5)


@pytest.mark.slow
def test_a_wide_policy_acts_as_predict_does_in_both_formats(tmp_path):
    pytest.importorskip("onnxruntime")
    agent = scrambled(maxinforl.make("sac", lambda: Arm()))
    assert agent.strategy.base.hidden == (256, 256)
    for to in ("numpy", "onnx"):
        took = deploy.export(agent, to, tmp_path / to)
        assert apart(agent, bundle.opened(tmp_path / to, to), observations(agent)) < 1e-5
        assert 0 < took.median <= took.p99


@pytest.mark.parametrize("algo", ["drqv2", "drq"])
@pytest.mark.slow
def test_pixel_bundles_act_as_predict_does(tmp_path, algo):
    pytest.importorskip("onnxruntime")
    agent = made(algo, lambda: Camera())
    images = np.random.default_rng(0).integers(0, 256, (200, 21, 17, 9), np.uint8)
    images[0], images[1], images[2, :10] = 0, 255, 255
    for to in ("numpy", "onnx"):
        deploy.export(agent, to, tmp_path / to)
        assert apart(agent, bundle.opened(tmp_path / to, to), images) < 1e-5
    policy = runner.Policy(tmp_path / "numpy")
    a, b, c = (image[..., :3] for image in images[3:6])
    np.testing.assert_allclose(policy.see(a, first=True), policy(np.concatenate([a, a, a], -1)), atol=1e-6)
    policy.see(b)
    np.testing.assert_allclose(policy.see(c), policy(np.concatenate([a, b, c], -1)), atol=1e-6)


def test_the_contract_says_what_goes_in_and_out(tmp_path):
    agent = made("sac", "Pendulum-v1", action_repeat=2)
    deploy.export(agent, "numpy", tmp_path / "b")
    contract = json.loads((tmp_path / "b" / "contract.json").read_text())
    assert contract["observation"]["shape"] == [3] and contract["observation"]["dtype"] == "float32"
    assert (contract["action"]["low"], contract["action"]["high"]) == ([-2.0], [2.0])
    assert contract["control_rate_hz"] == 10.0  # steps of 0.05 s, held twice
    assert contract["normaliser"] is None and set(contract["sha256"]) == {"weights.npz", "policy.py"}


def test_the_parts_of_an_observation_keep_their_order():
    env = maxinforl.envs.make(lambda: Arm())
    assert env.observation_parts == [("angle", 2), ("touch", 3)]
    assert deploy.contract.control_rate(env) == 100.0


ARM = [{"name": "angle", "size": 2}, {"name": "touch", "size": 3}]


@pytest.mark.parametrize("env", [Arm, lambda: Arm(), Arm()], ids=["class", "factory", "instance"])
def test_the_contract_asks_every_kind_of_environment(env, monkeypatch):
    closed = []
    monkeypatch.setattr(Arm, "close", lambda self: closed.append(self))
    agent = maxinforl.make("sac", env, set=TINY, action_repeat=4)
    closed.clear()
    assert deploy.contract.env_facts(agent) == (ARM, 25.0)
    assert len(closed) == (0 if isinstance(env, Arm) else 1)  # an instance belongs to the user


def test_export_does_not_need_the_environment(monkeypatch):
    agent = maxinforl.make("sac", Arm, set=TINY)

    def absent(self):
        raise ConnectionError("the robot is switched off")

    monkeypatch.setattr(Arm, "__init__", absent)
    assert deploy.contract.env_facts(agent) == (ARM, None)


class Clock(Arm):
    """States the length of its step in one way or another."""

    def __init__(self, dt=None, timestep=None, fps=None):
        self.dt, self.metadata = dt, {} if fps is None else {"render_fps": fps}
        if timestep is not None:
            self.control_timestep = lambda: timestep


@pytest.mark.parametrize(
    ("clock", "rate"),
    [
        ({"dt": 0.05, "timestep": 0.02, "fps": 30}, 20.0),
        ({"dt": np.float32(0.5)}, 2.0),
        ({"timestep": 0.02, "fps": 30}, 50.0),
        ({"fps": 30}, 30.0),
        ({"dt": 0, "timestep": float("nan"), "fps": "fast"}, None),
        ({}, None),
    ],
)
def test_the_control_rate_is_what_the_environment_states_first(clock, rate):
    assert deploy.contract.control_rate(maxinforl.envs.make(Clock(**clock))) == rate


def test_pure_jax_tasks_state_their_own_rate():
    rate = lambda name: deploy.contract.control_rate(maxinforl.envs.make(name))
    assert (rate("jax/pendulum-hanging"), rate("jax/cartpole-swingup_sparse")) == (20.0, 100.0)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "b"
    deploy.export(made("sac"), "numpy", folder)
    return folder


def copied(bundled: Path, folder: Path) -> Path:
    for path in bundled.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_files_that_were_changed_are_refused(bundled, tmp_path):
    folder = copied(bundled, tmp_path)
    weights = bytearray((folder / "weights.npz").read_bytes())
    weights[200] ^= 1
    (folder / "weights.npz").write_bytes(weights)
    with pytest.raises(ValueError, match=r"weights.npz is not the file"):
        runner.Policy(folder)
    said = subprocess.run([sys.executable, folder / "policy.py"], capture_output=True, text=True)
    assert said.returncode == 1 and said.stderr.startswith("policy.py: weights.npz is not") and said.stdout == ""
    copied(bundled, tmp_path)
    (folder / "policy.py").write_text((folder / "policy.py").read_text().replace("np.tanh", "np.sin"))
    with pytest.raises(ValueError, match=r"policy.py is not the file"):
        runner.Policy(folder)
    copied(bundled, tmp_path)
    text = (folder / "contract.json").read_text()
    (folder / "contract.json").write_text(text.replace("7.0", "70.0"))
    with pytest.raises(ValueError, match="was changed after it was written"):
        runner.Policy(folder)


def test_observations_that_make_no_sense_are_refused(bundled):
    policy = runner.Policy(bundled)
    with pytest.raises(ValueError, match=r"has shape \(5,\)"):
        policy(np.zeros(4))
    with pytest.raises(ValueError, match="not finite"):
        policy(np.array([0, np.nan, 0, 0, 0]))
    assert (policy(np.full(5, 1e30)) <= policy.high).all() and np.isfinite(policy(np.full(5, -1e30))).all()


def test_a_bundle_that_disagrees_is_refused(tmp_path, monkeypatch):
    wrong = lambda agent: {k: v + 0.01 for k, v in deploy.policy_weights.weights_of(agent).items()}
    monkeypatch.setattr(bundle, "weights_of", wrong)
    with pytest.raises(RunFailed, match="differs from predict"):
        deploy.export(made("sac"), "numpy", tmp_path / "b")
    assert not (tmp_path / "b" / "contract.json").exists()


def test_a_directory_that_exists_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists already"):
        deploy.export(made("sac"), "numpy", tmp_path)
    with pytest.raises(BadInput, match="unknown format 'torch'"):
        deploy.export(made("sac"), "torch", tmp_path / "b")


def test_the_command_exports_a_saved_agent_that_numpy_alone_can_run(tmp_path, capsys):
    agent = made("sac", "Pendulum-v1")
    agent.save(tmp_path / "saved")
    assert cli.main(["export", str(tmp_path / "saved"), "--to", "numpy", "--out", str(tmp_path / "b")]) == 0
    assert cli.main(["export", str(tmp_path / "saved")]) == 0
    assert (tmp_path / "saved-numpy" / "contract.json").exists()
    assert "median" in capsys.readouterr().out
    obs = observations(agent, 100)
    np.save(tmp_path / "obs.npy", obs)
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import numpy as np; from policy import Policy\n"
        "print(Policy(sys.argv[2])(np.load(sys.argv[3])).tolist())\n"
        "assert not {'jax', 'equinox', 'gymnasium', 'maxinforl'} & set(sys.modules)"
    )
    numpy_only = only_numpy(tmp_path / "site")
    arguments = [str(numpy_only), str(tmp_path / "b"), str(tmp_path / "obs.npy")]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected, _ = agent.predict(obs, deterministic=True)
    np.testing.assert_allclose(np.array(json.loads(done.stdout)), expected, atol=1e-5)


# ------------------------------------------------------------ networks of one's own


class Tail(eqx.Module):
    first: Dense
    norm: LayerNorm
    last: Dense

    def __call__(self, x):
        x = self.first(x)
        return self.last(x + jax.nn.relu(self.norm(x)))


@dataclass(frozen=True)
class Undescribed(Network):
    def init(self, key, inputs, outputs, out_gain):
        a, b = jax.random.split(key)
        return Tail(Dense(a, inputs, 6), LayerNorm(6), Dense(b, 6, outputs, out_gain))


@dataclass(frozen=True)
class Described(Undescribed):
    wrong: str = ""

    def operations(self, params, stats):
        inside = [KEEP, layer_norm(params.norm), Operation("gelu" if self.wrong == "name" else "relu", {}), ADD]
        inside = [dense(params.last)] if self.wrong == "shape" else inside
        inside = inside[:-1] if self.wrong == "forgotten" else inside
        return [dense(params.first), *inside, *([] if self.wrong == "end" else [dense(params.last)])]


def with_net(net) -> maxinforl.Agent:
    return scrambled(maxinforl.make("sac", lambda: Arm(), set={"base.critic_net": net, "base.actor_net": net}))


def test_a_network_that_cannot_be_exported_is_told_before_it_trains(tmp_path):
    with pytest.warns(UserWarning, match="of kind Undescribed cannot be exported: give it operations"):
        agent = with_net(Undescribed())
    with pytest.raises(BadInput, match="of kind Undescribed cannot be exported"):
        deploy.export(agent, "numpy", tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.filterwarnings("error")
def test_a_network_that_describes_itself_is_exported(tmp_path):
    pytest.importorskip("onnxruntime")
    agent = with_net(Described())
    for to in ("numpy", "onnx"):
        deploy.export(agent, to, tmp_path / to)
        assert apart(agent, bundle.opened(tmp_path / to, to), observations(agent, 100)) < 1e-5


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("name", r"operations\(\) of Described names gelu"),
        ("shape", "do not fit together at dense"),
        ("end", "must end with its dense output layer"),
    ],
)
@pytest.mark.parametrize("to", ["numpy", "onnx"])
def test_a_description_that_no_bundle_can_follow_is_refused(wrong, sentence, to, tmp_path):
    with pytest.raises(BadInput, match=sentence):
        deploy.export(with_net(Described(wrong)), to, tmp_path / "b")


def test_a_description_of_another_network_is_refused(tmp_path):
    with pytest.raises(RunFailed, match="differs from predict"):
        deploy.export(with_net(Described("forgotten")), "numpy", tmp_path / "b")
