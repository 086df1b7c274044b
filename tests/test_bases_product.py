"""The modern bases from the command line and from Python: train, resume, export, inspect."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import maxinforl
from core_helpers import narrow
from deploy_helpers import Arm, scrambled
from maxinforl import config, deploy
from maxinforl.algorithms import BASES, CATALOGUE, algorithm
from maxinforl.cli import main
from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.architectures import SimbaNet
from maxinforl.deploy import bundle
from maxinforl.errors import BadInput
from maxinforl.settings import Settings, read_settings, resolve, settings_table
from maxinforl.training.store import CheckpointStore

pytestmark = pytest.mark.slow

NEW = ("simba", "crossq", "bro", "xqc")
FEW = {"steps": 60, "batch_size": 8, "learning_starts": 10, "eval_episodes": 1, "eval_every": 30, "log_every": 20}


def tiny(name: str) -> ActorCritic:
    return replace(BASES[name], **narrow(BASES[name]))


# ------------------------------------------------------------ files and settings


@pytest.mark.parametrize("name", NEW)
def test_a_base_and_its_maxinfo_go_through_files_and_are_values_of_the_one_learner(name):
    for algo in (name, f"maxinfo-{name}"):
        assert algo in CATALOGUE
        assert config.from_file(config.to_plain(algorithm(algo))) == algorithm(algo)
    assert type(BASES[name]) is ActorCritic


def test_a_file_of_before_means_what_it_meant():
    """Entries that it lacks are SAC's."""
    table = config.to_plain(algorithm("sac"))
    new = {"head", "activation", "target_reduction", "target_entropy", "lr_schedule", "lr_end", "adam_b1", "reset_at"}
    new |= {"weight_decay", "normalize_observations", "normalize_returns", "gamma_by_length", "warm_up", "batch_size"}
    new |= {"delay_across_steps"}
    table["base"] = {k: v for k, v in table["base"].items() if k not in new} | {"policy": {"kind": "SquashedGaussian"}}
    assert config.from_file(table) == algorithm("sac")


def test_the_base_decides_ratio_warm_up_batch_and_discount_also_when_composed():
    asked = {"base": "simba", "explore": "eps", "env": "dmc/cheetah-run"}
    settings, agent = resolve(Settings(steps=20_000, **asked))
    assert (settings.update_ratio, settings.learning_starts, settings.batch_size) == (2, 2_000, 256)
    assert agent.base.gamma == 0.99 and agent.base.critics == 1
    assert resolve(Settings(steps=100_000, **asked))[0].learning_starts == 5_000
    settings, agent = resolve(Settings(algo="bro", env="Pendulum-v1", learning_starts=7))
    assert (settings.batch_size, settings.learning_starts, agent.base.gamma) == (128, 7, 0.99)
    given = resolve(Settings(algo="simba", env="Pendulum-v1", set=(("base.gamma", 0.9),)))[1]
    assert given.base.gamma == 0.9 and resolve(Settings(algo="simba", env="Pendulum-v1"))[1].base.gamma == 0.975
    assert resolve(Settings(algo="sac", env="Pendulum-v1"))[0].learning_starts == 0


def test_published_sizes_apply_by_name_and_widths_of_dense_layers_never_in_silence():
    large = resolve(Settings(algo="simba", env="dmc/humanoid-run", preset="simba-published"))[1].base
    assert (large.critic_net.width, large.actor_net.width, large.hidden) == (512, 128, (256, 256))
    assert resolve(Settings(algo="sac", env="dmc/humanoid-run"))[1].base.hidden == (1024, 1024)
    for wrong in (
        {"algo": "sac", "preset": "simba-published"},
        {"algo": "simba", "preset": "dmc-large"},
        {"algo": "simba", "set": (("base.hidden", (8, 8)),)},
        {"algo": "crossq", "batch_size": 1},
        {"algo": "drq", "env": "pixels/Pendulum-v1", "set": (("base.normalize_observations", True),)},
    ):
        with pytest.raises(BadInput):
            resolve(Settings(**wrong))


def test_the_gains_weight_starts_in_proportion_to_divided_rewards():
    start = lambda **asked: resolve(Settings(env="Pendulum-v1", **asked))[1].weight.start
    divided = ("base.normalize_returns", True)
    assert start(algo="maxinfo-sac") == 1 and start(algo="maxinfo-xqc") == 1
    assert start(algo="maxinfo-sac", set=(divided,)) == pytest.approx(0.05)
    assert start(algo="maxinfo-sac", set=(divided, ("weight.start", 1.0))) == 1


def test_pieces_are_settings_of_any_base():
    pieces = {
        "base.critic_net": {"kind": "SimbaNet", "width": 16, "blocks": 1},
        "base.actor_hidden": (8, 8, 8),
        "base.normalize_returns": True,
        "base.reset_every": 500,
        "base.lr_schedule": "cosine",
        "base.weight_decay": 1e-3,
        "base.alpha": {"kind": "Fixed", "number": 0.1},
        "base.target_entropy": -0.5,
        "base.gamma_by_length": True,
    }
    settings = Settings(algo="sac", env="Pendulum-v1", set=tuple(pieces.items()))
    agent = resolve(settings)[1]
    assert resolve(read_settings(settings_table(settings)))[1] == agent
    as_object = replace(settings, set=(("base.critic_net", SimbaNet(16, 1)), *settings.set[1:]))
    assert resolve(read_settings(settings_table(as_object)))[1] == agent
    assert agent.base.critic_net.width == 16 and agent.base.gamma == 0.975 and agent.base.alpha.number == 0.1
    shapes = jax.eval_shape(lambda: agent.init(jax.random.key(0), maxinforl.core.types.Spec((3,), 1)))
    assert len(shapes.learner.params.actor.head.layers) == 4


# ------------------------------------------------------------ export


@pytest.mark.parametrize("name", [*NEW, "sac"])
def test_bundles_act_as_predict_does(name, tmp_path):
    """Normalisers, residual connections and batch norm in evaluation mode included."""
    pytest.importorskip("onnxruntime")
    base = tiny(name) if name != "sac" else replace(BASES["sac"], activation="silu", hidden=(8, 8))
    agent = scrambled(maxinforl.make(name, lambda: Arm(), base=base))
    observations = np.random.default_rng(0).normal(0, 2, (500, *agent.spec.obs)).astype(np.float32)
    expected, _ = agent.predict(observations, deterministic=True)
    assert np.ptp(expected, axis=0).max() > 1e-3
    half = (agent.action_space.high - agent.action_space.low) / 2
    for to in ("numpy", "onnx"):
        deploy.export(agent, to, tmp_path / to)
        act = bundle.opened(tmp_path / to, to)
        assert (np.abs(act(observations) - expected) / half).max() < 1e-5
    contract = bundle.runner.Policy(tmp_path / "numpy").contract
    assert (contract["normaliser"] is not None) == (name == "simba")
    assert contract["network"].count("dense") >= 3


# ------------------------------------------------------------ whole runs


def flags(name: str, *more: str) -> list[str]:
    net = ["--set", "base.critic_net.width=8", "--set", "base.actor_net.width=8"]
    head = {"xqc": ["--set", "base.head.atoms=5"], "bro": ["--set", "base.head.quantiles=3"]}.get(name, [])
    few = [x for k, v in FEW.items() for x in (f"--{k.replace('_', '-')}", str(v))]
    return ["train", "--algo", f"maxinfo-{name}", *net, *head, *few, "--save-every", "20", *more]


def saved(directory) -> dict[str, np.ndarray]:
    state = CheckpointStore(directory / "checkpoints").load().state
    return {k: v for k, v in state.items() if k.startswith(("agent/", "sums/"))}


OBSERVED = ("--set", "base.normalize_observations=true")  # XQC then has every kind of array that a base can have


@pytest.mark.parametrize("name", ["bro", "xqc"])
def test_a_run_that_stops_before_a_reset_is_resumed_bit_for_bit(name, tmp_path, capsys):
    """With the normalisers as they were; `inspect` shows them."""
    more = ("--env", "Pendulum-v1", "--set", "base.reset_at=[50]", "--set", "base.lr_schedule=constant")
    more += OBSERVED if name == "xqc" else ()
    assert main([*flags(name, *more), "--out", str(tmp_path / "whole")]) == 0
    stopped = flags(name, *more)
    stopped[stopped.index("--steps") + 1] = "40"
    assert main([*stopped, "--out", str(tmp_path / "part")]) == 0
    assert main(["resume", str(tmp_path / "part"), "--steps", "60", "--override"]) == 0
    whole, part = saved(tmp_path / "whole"), saved(tmp_path / "part")
    assert whole.keys() == part.keys()
    assert all(np.array_equal(whole[k], part[k]) for k in whole)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "whole")]) == 0
    assert ("normalisers" in capsys.readouterr().out) == BASES[name].observes


def test_seeds_side_by_side_and_the_compiled_loop(tmp_path):
    more = ("--env", "jax/pendulum-hanging", "--num-envs", "2", "--seeds", "0-1", "--set", "base.reset_every=32")
    assert main([*flags("xqc", *more, *OBSERVED), "--out", str(tmp_path / "both")]) == 0
    one, two = (saved(tmp_path / "both" / f"seed-{i}") for i in (0, 1))
    assert all(np.isfinite(x).all() for x in (*one.values(), *two.values()))
    assert any(not np.array_equal(one[k], two[k]) for k in one)
