"""What a person meets with an environment of their own: names, hints, and how fast the run says that it is."""

import json
import sys
import time
from io import StringIO

import pytest
from rich.console import Console

import maxinforl
from maxinforl import envs
from maxinforl.errors import BadInput
from maxinforl.experiments.suite_file import parse_suite
from maxinforl.experiments.suite_runs import plan
from maxinforl.experiments.sweep import Sweep
from maxinforl.training.trainer import Trainer

TASK = """
import gymnasium as gym
gym.register("Mine-v0", entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv", max_episode_steps=20)
"""


def test_an_id_of_a_known_package_names_its_module():
    with pytest.raises(BadInput, match=r"pip install panda-gym, then name it panda_gym:PandaReach-v3"):
        envs.make("PandaReach-v3")


def test_a_module_of_the_current_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "task_found_here.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    env = envs.make("task_found_here:Mine-v0")
    assert env.observation_space.shape == (3,)
    env.close()


def test_a_module_that_is_nowhere_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="module 'nowhere_at_all', which is neither installed nor in this directory"):
        envs.make("nowhere_at_all:Mine-v0")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gamma", "did you mean 'base.gamma'"),
        ("tau", "did you mean 'base.tau'"),
        ("lr", "did you mean 'base.lr'"),
        ("ent_coef", "did you mean 'base.alpha'"),
        ("policy_kwargs", "did you mean 'base.hidden'"),
        ("total_timesteps", "did you mean 'steps'"),
        ("device", "JAX_PLATFORMS"),
        ("relabel", "Hindsight relabelling is not offered"),
        ("progress_bar", r"learn\(steps, progress=True\)"),
    ],
)
def test_names_of_other_libraries_are_translated(name, sentence):
    with pytest.raises(BadInput, match=sentence):
        maxinforl.make("sac", "Pendulum-v1", **{name: 1})


@pytest.mark.slow
def test_steps_per_second_leave_out_compilation(tmp_path, monkeypatch):
    advance = Trainer.advance

    def compiles_long(self, *args):
        if self.step in (0, 8):  # the first step, and the first that learns
            time.sleep(1.5)
        return advance(self, *args)

    monkeypatch.setattr(Trainer, "advance", compiles_long)
    agent = maxinforl.make(
        "sac", "Pendulum-v1", learning_starts=8, log_every=20, eval_episodes=0, batch_size=8, set={"base.hidden": [8]}
    )
    agent.learn(20, out=tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["step"] == 20
    assert line["time/fps"] > 12 / 1.5  # the rate if one of the two waits were counted


def test_a_sweep_without_a_terminal_says_how_far_its_runs_are(tmp_path):
    suite = parse_suite(
        {"algorithms": ["sac"], "environments": ["Pendulum-v1"], "seeds": 1, "settings": {"steps": 100}}, "small"
    )
    planned = plan(suite.runs(), tmp_path, (), [])
    console = Console(file=StringIO(), width=200)
    sweep = Sweep(planned, launcher=None, out=tmp_path, console=console)  # type: ignore[arg-type]
    (row,) = sweep.rows.values()
    row.state = "running"
    planned[0].directory.mkdir(parents=True)
    (planned[0].directory / "metrics.jsonl").write_text('{"step": 40, "time/fps": 2.0}\n')
    (planned[0].directory / "eval.csv").write_text("step,env_step,seed,mean_return\n20,20,0,-7.25\n")
    sweep._note()
    assert "40/100 steps, return -7.2, 0:00:30 left" in console.file.getvalue()  # type: ignore[attr-defined]
