"""A run as a user sees it: reproducible, resumable bit for bit, counted right, saved and loaded whole."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

import maxinforl
from maxinforl import cli
from maxinforl.agent import Agent
from maxinforl.algorithms import BASES, NOISES
from maxinforl.core.normalizer import Normalizer
from maxinforl.core.types import Latents
from maxinforl.envs import make as make_env
from maxinforl.errors import BadInput, RunFailed
from maxinforl.intrinsic import Ensemble
from maxinforl.settings import Settings, resolve
from maxinforl.training.arrays import agent_arrays
from maxinforl.training.compiled import CompiledTrainer
from maxinforl.training.directory import read_run
from maxinforl.training.store import CheckpointStore
from maxinforl.training.trainer import Trainer

SMALL = {"base.hidden": (16, 16), "intrinsic.hidden": (16, 16)}
ROWS = 90  # of the replay, which runs of 26 to 80 steps do not fill: they share their programs
FLAGS = ["--set", "base.hidden=[16,16]", "--batch-size", "16", "--eval-episodes", "2", "--capacity", str(ROWS)]


class Corridor(gym.Env):
    """A point pushed along a line: ends at the right end, is cut after 13 steps."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, poison: int | None = None):
        self.poison, self.count = poison, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1, 0), 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.x, self.t / 13], np.float32)

    def step(self, action):
        self.x, self.t, self.count = self.x + 0.2 * float(action[0]), self.t + 1, self.count + 1
        obs = self.observe()
        if self.poison is not None and self.count >= self.poison:
            obs[0] = np.nan
        return obs, self.x, self.x > 1.0, self.t >= 13, {}


gym.register("Corridor-v0", lambda: Corridor())
gym.register("Poisoned-v0", lambda: Corridor(poison=40))


def make(algo="maxinfo-sac", env="Corridor-v0", **overrides):
    small = {k: v for k, v in SMALL.items() if "maxinfo" in algo or k.startswith("base")}
    given = {"batch_size": 16, "eval_episodes": 2, "eval_every": 40, "log_every": 20, "capacity": ROWS} | overrides
    return maxinforl.make(algo, env, **given, set=small)


def weights(agent: Agent) -> dict[str, np.ndarray]:
    assert agent.trainer is not None
    return agent_arrays(agent.trainer.state.agent)


def saved_weights(directory: Path) -> dict[str, np.ndarray]:
    return {k: v for k, v in CheckpointStore(directory / "checkpoints").load().state.items() if k.startswith("agent/")}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def metrics(directory: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


# ------------------------------------------------------------------ reproducible


@pytest.mark.slow
def test_same_seed_twice_gives_the_same_files(tmp_path):
    for name in "ab":
        make().learn(60, out=tmp_path / name)
    assert (tmp_path / "a/eval.csv").read_bytes() == (tmp_path / "b/eval.csv").read_bytes()
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert same(saved_weights(tmp_path / "a"), saved_weights(tmp_path / "b"))
    assert all(line["explore/recent_error"] > 0 for line in metrics(tmp_path / "a"))
    make(seed=1).learn(60, out=tmp_path / "c")
    assert (tmp_path / "a/eval.csv").read_bytes() != (tmp_path / "c/eval.csv").read_bytes()


@pytest.mark.slow
def test_evaluation_does_not_touch_training():
    assert same(weights(make().learn(60)), weights(make(eval_episodes=0).learn(60)))


def test_one_trace_and_one_dispatch_per_agent_step(trace_anew):
    agent = make()
    trainer = agent._trainer(50)
    calls, inner = [], trainer.program.step
    trainer.program.__dict__["step"] = lambda *a: calls.append(1) or inner(*a)
    agent.learn(50)
    assert len(calls) == 50
    assert trainer.program.traces["step"] == 1 and trainer.program.traces["act"] == 1


# ------------------------------------------------------------------ resumed is never stopped


def interrupted(monkeypatch, at: int):
    """Training that dies without a word when step `at` is reached."""
    for kind in (Trainer, CompiledTrainer):

        def dies(self, most=1, advance=kind.advance):
            if self.step >= at:
                raise MemoryError
            return advance(self, min(most, at - self.step))

        monkeypatch.setattr(kind, "advance", dies)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "extra"),
    [
        ("maxinfo-sac", []),
        ("eps-maxinfo-sac", ["--learning-starts", "30"]),
        ("sac", ["--action-noise", "pink", "--num-envs", "3"]),
        ("maxinfo-ddpg", ["--action-noise", "ou", "--env", "jax/pendulum-hanging", "--num-envs", "2"]),
    ],
)
def test_resumed_equals_never_stopped(tmp_path, monkeypatch, algo, extra):
    command = ["train", "--algo", algo, "--env", "Corridor-v0", "--steps", "120", "--eval-every", "30", *FLAGS, *extra]
    command += ["--log-every", "25", "--save-every", "35", "--record-states", "--capacity", "1000"]
    assert cli.main([*command, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        interrupted(patch, at=95)
        with pytest.raises(MemoryError):
            cli.main([*command, "--out", str(tmp_path / "broken")])
    assert CheckpointStore(tmp_path / "broken/checkpoints").steps()[-1] in (70, 72)
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert (tmp_path / "whole/eval.csv").read_bytes() == (tmp_path / "broken/eval.csv").read_bytes()
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "broken")
    assert same(saved_weights(tmp_path / "whole"), saved_weights(tmp_path / "broken"))
    whole, broken = (np.load(tmp_path / name / "states.npz") for name in ("whole", "broken"))
    assert np.array_equal(whole["obs"], broken["obs"]) and np.array_equal(whole["step"], broken["step"])


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Corridor-v0", "jax/pendulum-hanging"])
def test_seeds_that_train_together_resume_together(tmp_path, monkeypatch, capsys, env):
    command = ["train", "--algo", "sac", "--env", env, "--steps", "60", *FLAGS, "--seeds", "3-4", "--save-every", "20"]
    command += ["--eval-every", "30", "--log-every", "15"]
    assert cli.main([*command, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        interrupted(patch, at=45)
        with pytest.raises(MemoryError):
            cli.main([*command, "--out", str(tmp_path / "broken")])
    assert cli.main(["resume", str(tmp_path / "broken/seed-3")]) == 2
    assert "trains together with seeds 3, 4" in capsys.readouterr().err
    shutil.rmtree(next((tmp_path / "broken/seed-4/checkpoints").glob("step-*40")))  # as if killed before it was written
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert "at step 20 of 60" in capsys.readouterr().out
    for seed in ("seed-3", "seed-4"):
        whole, broken = tmp_path / "whole" / seed, tmp_path / "broken" / seed
        assert (whole / "eval.csv").read_bytes() == (broken / "eval.csv").read_bytes()
        assert metrics(whole) == metrics(broken)
        assert same(saved_weights(whole), saved_weights(broken))
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert "is finished" in capsys.readouterr().out


TOGETHER = 1e-5  # what the rounding of another order of sums may move a weight by in 50 updates


def close(a: Path, b: Path) -> bool:
    one, two = saved_weights(a), saved_weights(b)
    floats = [name for name in one if one[name].dtype == np.float32]
    return set(one) == set(two) and all(np.allclose(one[n], two[n], atol=TOGETHER, rtol=TOGETHER) for n in floats)


@pytest.mark.slow
def test_seeds_together_agree_with_each_alone(tmp_path):
    command = ["train", "--algo", "maxinfo-sac", "--env", "Corridor-v0", "--steps", "50", *FLAGS]
    assert cli.main([*command, "--seeds", "0-2", "--out", str(tmp_path / "all")]) == 0
    for seed in (0, 2):
        assert cli.main([*command, "--seed", str(seed), "--out", str(tmp_path / f"alone-{seed}")]) == 0
        assert close(tmp_path / f"all/seed-{seed}", tmp_path / f"alone-{seed}")
    assert not close(tmp_path / "all/seed-0", tmp_path / "all/seed-1")


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--action-repeat", "3", "--action-cost", "0.5", "--num-envs", "2"]])
def test_the_compiled_loop_is_the_host_loop(tmp_path, extra):
    """Through an episode's end: its time limit of 200 and the seed of the next are the same."""
    command = ["train", "--algo", "sac", "--env", "jax/pendulum-hanging", "--steps", "210", *FLAGS, *extra]
    command += ["--learning-starts", "160", "--log-every", "70", "--capacity", "1000"]
    for loop in ("compiled", "host"):
        assert cli.main([*command, "--loop", loop, "--out", str(tmp_path / loop)]) == 0
    assert close(tmp_path / "compiled", tmp_path / "host")
    one, two = metrics(tmp_path / "compiled"), metrics(tmp_path / "host")
    assert [line["step"] for line in one] == [line["step"] for line in two] == [70, 140, 210]
    assert one[-1]["rollout/ep_rew_mean"] == pytest.approx(two[-1]["rollout/ep_rew_mean"], rel=1e-5)
    assert one[-1]["rollout/episodes"] == two[-1]["rollout/episodes"] >= 1


@pytest.mark.slow
def test_a_compiled_run_traces_once_and_dispatches_chunks(trace_anew):
    agent = make("sac", "jax/pendulum-hanging", learning_starts=30, capacity=None)
    trainer = agent._trainer(250)
    assert isinstance(trainer, CompiledTrainer)
    agent.learn(250)
    assert trainer.program.traces["chunk"] == 2 and trainer.program.traces["step"] == 0


@pytest.mark.slow
def test_seeds_are_dealt_out_to_devices(tmp_path):
    """Two virtual devices share four seeds, and each seed learns what it learns on one."""
    code = (
        "import sys, jax; from maxinforl.cli import main; from maxinforl.training.trainer import Trainer; "
        "before = Trainer.advance; "
        "Trainer.advance = lambda s, *a: [before(s, *a), print(len(s.state.seed.sharding.device_set))][0]; "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = ["train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", "12", *FLAGS, "--seeds", "0-3"]
    for count in (1, 2):
        flags = os.environ["XLA_FLAGS"] + f" --xla_force_host_platform_device_count={count}"
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "--out", str(tmp_path / str(count))],
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"\n{count}\n") or str(count) in done.stdout.split()
    assert all(close(tmp_path / f"1/seed-{s}", tmp_path / f"2/seed-{s}") for s in range(4))


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_starts_again(tmp_path, monkeypatch, capsys):
    command = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "40", "--eval-every", "20", *FLAGS]
    assert cli.main([*command, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        interrupted(patch, at=25)
        with pytest.raises(MemoryError):
            cli.main([*command, "--out", str(tmp_path / "broken")])
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert "from step 0" in capsys.readouterr().out
    assert (tmp_path / "whole/eval.csv").read_bytes() == (tmp_path / "broken/eval.csv").read_bytes()
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert "is finished" in capsys.readouterr().out


@pytest.mark.slow
def test_sigterm_saves_and_exits_75(tmp_path):
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "maxinforl.cli",
        "train",
        "--algo",
        "sac",
        "--env",
        "Pendulum-v1",
        "--steps",
        "100000",
    ]
    process = subprocess.Popen(
        [*command, *FLAGS, "--eval-every", "1000000", "--out", str(out)], env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert CheckpointStore(out / "checkpoints").load().step >= 500


@pytest.mark.slow
def test_an_environment_that_does_not_repeat_is_truncated_and_said(tmp_path, monkeypatch, capsys):
    command = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "60", *FLAGS, "--save-every", "20"]
    with monkeypatch.context() as patch:
        interrupted(patch, at=45)
        with pytest.raises(MemoryError):
            cli.main([*command, "--out", str(tmp_path / "run")])
    before, seeds = Corridor.reset, itertools.count()
    monkeypatch.setattr(Corridor, "reset", lambda self, **kw: before(self, seed=next(seeds)))
    with pytest.warns(UserWarning, match="ignores its seed"):
        assert cli.main(["resume", str(tmp_path / "run")]) == 0
    assert "does not repeat" in " ".join(capsys.readouterr().out.split())


# ------------------------------------------------------------------ counted right


@pytest.mark.slow
def test_steps_count_transitions_over_all_environments(tmp_path):
    agent = make("sac", num_envs=4, update_ratio=0.5, action_repeat=2)
    agent.learn(80, out=tmp_path / "run")
    assert agent.trainer is not None
    clock = agent.trainer.state.clock
    assert int(clock.step) == 80 and int(clock.update) == 40
    last = (tmp_path / "run/eval.csv").read_text().splitlines()[-1].split(",")
    assert last[:2] == ["80", "160"]


def test_warm_up_is_uniform_and_does_not_learn():
    agent = make("sac", learning_starts=60)
    agent.learn(59)
    assert agent.trainer is not None and int(agent.trainer.state.clock.update) == 0
    actions = np.array(agent.trainer.state.replay.action)[0, :59, 0]
    assert abs(actions.mean()) < 0.3 and 0.4 < actions.std() < 0.75
    agent.learn(1)
    assert int(agent.trainer.state.clock.update) == 1


def test_truncation_and_termination_reach_the_replay():
    agent = make("sac", seed=3, capacity=None)
    agent.learn(200)
    assert agent.trainer is not None
    replay = agent.trainer.state.replay
    end, age = np.array(replay.end)[0], np.array(replay.age)[0]
    head = int(replay.head[0])
    ends = [i for i in range(head) if end[i] in (1, 2)]
    assert ends
    for i in ends:
        assert end[i + 1] == 3 and age[i + 2] == 0
        terminated = np.array(replay.obs)[0, i + 1, 0] > 1.0
        assert end[i] == (2 if terminated else 1) and (terminated or age[i + 1] == 13)


def test_learning_twice_goes_on(tmp_path):
    whole, halves = make("sac", total_steps=80), make("sac", total_steps=80)
    whole.learn(80)
    halves.learn(40).learn(40)
    assert same(weights(whole), weights(halves))


@pytest.mark.slow
def test_short_calls_do_not_each_compile(trace_anew):
    agent = make("sac", eval_episodes=0)
    for _ in range(8):
        agent.learn(40)
    assert agent.trainer is not None and agent.trainer.program.traces["step"] <= 4


@pytest.mark.parametrize("steps", [0, -3, 1.5, "x"])
def test_counts_that_are_none_are_refused(steps):
    with pytest.raises(BadInput, match=r"^steps must be"):
        make("sac").learn(steps)
    with pytest.raises(BadInput, match=r"^total_steps must be"):
        make("sac", total_steps=steps)


def test_counts_may_be_written_as_floats():
    assert make("sac", total_steps=1e2).total_steps == 100


def test_composed_without_a_name():
    agent = maxinforl.make(env="Corridor-v0", base="oac", explore="maxinfo", intrinsic="rnd")
    assert agent.strategy.base.optimism is not None and type(agent.strategy.intrinsic).__name__ == "RND"
    with pytest.raises(BadInput, match="needs an environment"):
        maxinforl.make("sac")


def test_learning_into_a_run_names_what_python_can_do(tmp_path):
    make("sac", eval_episodes=0).learn(10, out=tmp_path / "a")
    with pytest.raises(BadInput, match="already holds a run: name another directory with out="):
        make("sac", eval_episodes=0).learn(10, out=tmp_path / "a")


@pytest.mark.slow
def test_schedules_say_that_they_stay():
    agent = make("eps-maxinfo-sac", learning_starts=0)
    agent.learn(30)
    with pytest.warns(UserWarning, match="stay planned for 30"):
        agent.learn(30)


@pytest.mark.slow
def test_a_loaded_agents_schedules_stay_where_they_were_planned(tmp_path):
    """A file that planned nothing leaves it to `learn`; one that did is followed, which is said."""
    agent = make("eps-maxinfo-sac")
    agent.save(tmp_path / "new")
    again = maxinforl.load(tmp_path / "new")
    assert again._trainer(60).planned == 60
    again.save(tmp_path / "planned")
    other = maxinforl.load(tmp_path / "planned")
    with pytest.warns(UserWarning, match="stay planned for 60 steps: pass make"):
        trainer = other._trainer(10)
    assert (trainer.planned, trainer.step, int(trainer.state.clock.step)) == (60, 0, 0)
    with pytest.warns(UserWarning, match="stay planned for 60"):
        other._trainer(61)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["eipo-sac", "maxinfo-rnd-sac"])
def test_the_error_on_recent_transitions_is_that_of_the_model(algo):
    """Of the newest 64 alone: recomputed from the replay's rows."""
    agent = make(algo, learning_starts=0, eval_episodes=0).learn(80)
    assert agent.trainer is not None
    state, strategy = agent.trainer.state, agent.strategy
    replay = state.replay
    newest = np.array(replay.starts)[0, : int(replay.pushed[0])][-64:]
    z, next_z = (np.array(replay.obs)[0, newest + i] for i in (0, 1))
    action, reward = np.array(replay.action)[0, newest], np.array(replay.reward)[0, newest]
    error = strategy.intrinsic.error(state.agent.model, Latents(z, action, reward, next_z, np.zeros((64, 0))))
    assert float(agent.trainer.program.recent_error(state)["explore/recent_error"]) == pytest.approx(
        float(error), rel=1e-5
    )
    assert float(error) > 0


# ------------------------------------------------------------------ acting, saving, loading


def test_predict_takes_one_or_many_and_gives_native_actions():
    agent = make()
    one, state = agent.predict(np.zeros(2, np.float32), None, None, True)
    many, _ = agent.predict(np.zeros((5, 2), np.float32), deterministic=True)
    assert one.shape == (1,) and many.shape == (5, 1) and state is None
    assert np.array_equal(many[0], one)
    noisy = np.stack([agent.predict(np.zeros(2, np.float32))[0] for _ in range(50)])
    assert noisy.std() > 0.1 and np.abs(noisy).max() <= 2.0 and np.abs(noisy).max() > 1.0
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        agent.predict(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        agent.predict(np.array([0.0, np.nan], np.float32))
    with pytest.raises(BadInput, match="episodes must be at least 1"):
        agent.evaluate(0)


@pytest.mark.slow
def test_saved_and_loaded_predicts_bit_identically(tmp_path):
    agent = make().learn(40, out=tmp_path / "run")
    with pytest.raises(BadInput, match="checkpoints of its own"):
        agent.save(tmp_path / "run")
    agent.save(tmp_path / "saved")
    obs = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    expected = agent.predict(obs, deterministic=True)[0]
    for place in ("run", "saved"):
        again = maxinforl.load(tmp_path / place)
        assert np.array_equal(again.predict(obs, deterministic=True)[0], expected)
    again.learn(10)
    assert again.trainer is not None and int(again.trainer.state.clock.update) == 50
    assert not any(p.suffix in (".pkl", ".pickle") for p in tmp_path.rglob("*"))


def test_a_damaged_or_foreign_saved_agent_is_refused(tmp_path):
    make("sac").save(tmp_path)
    path = tmp_path / "agent.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput):
        maxinforl.load(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(BadInput):
        maxinforl.load(tmp_path)
    with pytest.raises(BadInput, match="neither a run"):
        maxinforl.load(tmp_path.parent)


@pytest.mark.slow
def test_an_instance_trains_and_says_that_evaluation_is_skipped():
    agent = make("sac", env=Corridor())
    with pytest.warns(UserWarning, match="evaluation is skipped"):
        agent.learn(20)
    agent = make("sac", env=Corridor(), eval_env=lambda: Corridor())
    agent.learn(20)
    assert len(agent.evaluations) == 2
    assert make("sac", env=lambda: Corridor(), num_envs=2).learn(20).evaluations


@pytest.mark.slow
def test_nothing_is_written_without_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make("sac").learn(20)
    assert list(tmp_path.iterdir()) == []


def test_config_file_round_trip(tmp_path):
    agent = make(learning_starts=5).learn(20, out=tmp_path / "run")
    settings, strategy, _ = read_run(tmp_path / "run")
    assert strategy == agent.strategy and settings == replace(agent.settings, steps=20)
    again = cli.main(["train", "--config", str(tmp_path / "run/config.toml"), "--out", str(tmp_path / "again")])
    assert again == 0
    assert (tmp_path / "run/eval.csv").read_bytes() == (tmp_path / "again/eval.csv").read_bytes()


# ------------------------------------------------------------------ one's own parts


@dataclass(frozen=True)
class Speed:
    """A bonus of one's own: how strong the action is."""

    def init(self, key, spec):
        return Normalizer((spec.z,))

    def score(self, model, z, action):
        return jnp.square(action).sum(-1)

    def reward(self, model, latents):
        return self.score(model, latents.z, latents.action)

    def update(self, model, latents):
        return model.update(latents.z), {}


@pytest.mark.slow
def test_own_bonus_and_own_target():
    strong = maxinforl.make(
        "maxinfo-sac", "Corridor-v0", intrinsic=Speed(), set={"base.hidden": (16, 16)}, eval_episodes=0
    )
    strong.learn(30)
    assert strong.trainer is not None and "explore/alpha2" in strong.trainer.program.metric_names
    eager = make(target=lambda gains, clock: gains.mean() + 100.0, eval_episodes=0).learn(30)
    assert eager.trainer is not None and float(eager.trainer.state.agent.weight.log) > 0.005


class Loose:
    """Has `score`, and is no dataclass."""

    def score(self, model, z, action):
        return action.sum(-1)


@dataclass(frozen=True)
class Silent(Ensemble):
    """Forgot `score`."""


@dataclass(frozen=True)
class Wide(Ensemble):
    """Gives a number per output."""

    def score(self, model, z, action):
        return self.outcome(model, z, action)[0]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"intrinsic": Silent()}, "Silent does not implement score()"),
        ({"intrinsic": Wide()}, "Wide.score must give a number per row, so [2] for two of them, not [5, 2, "),
        ({"learning_rate": 1e-3}, "did you mean 'base.lr'? Entries of the agent go into set="),
        ({"intrinsic": Loose()}, "intrinsic must be a frozen dataclass on maxinforl.intrinsic.Ensemble with `score`"),
        ({"intrinsic": Speed}, "intrinsic must be a frozen dataclass"),
        ({"base": 3}, "base must be a frozen dataclass"),
        ({"weight": [0.5]}, "such as maxinforl.Fixed(0.5), not [0.5]"),
        ({"target": 0.5}, "target must be a function"),
        ({"schedul": 1}, "did you mean 'schedule'"),
    ],
)
def test_a_part_that_cannot_be_one_is_refused_with_the_reason(part, words):
    with pytest.raises(BadInput) as error:
        maxinforl.make("maxinfo-sac", "Corridor-v0", **part)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_part_that_the_algorithm_lacks():
    with pytest.raises(BadInput, match="sac has no intrinsic: choose an algorithm that has"):
        maxinforl.make("sac", "Corridor-v0", intrinsic=Speed())


@pytest.mark.slow
def test_weight_as_a_value():
    fixed = make(weight=maxinforl.Fixed(0.25), eval_episodes=0).learn(10)
    assert fixed.trainer is not None and float(fixed.trainer.state.agent.weight.value) == 0.25
    tied = make(weight=maxinforl.Tied(), eval_episodes=0, log_every=1)
    tied.learn(10)
    assert tied.trainer is not None
    state = tied.trainer.state.agent
    assert float(tied.strategy.alpha2(state)) == pytest.approx(float(jnp.exp(state.learner.alpha.log)))


# ------------------------------------------------------------------ settings and presets


def test_presets_state_differences_and_flags_win():
    settings, agent = resolve(Settings(algo="maxinfo-sac", env="h1-run"))
    assert agent.base.hidden == (512, 512) == agent.intrinsic.hidden
    assert agent.base.lr == agent.base.alpha.lr == agent.intrinsic.lr == agent.weight.lr == 5e-5
    assert settings.capacity == 2_500_000
    _, agent = resolve(Settings(algo="maxinfo-sac", env="h1-run", preset="none", uncertainty="light"))
    assert agent.base.hidden == (256, 256) and agent.intrinsic.hidden == (32, 32)
    assert resolve(Settings(algo="sac", env="dmc/walker-run"))[0].action_repeat == 2
    settings, agent = resolve(Settings(algo="maxinfo-drq", env="pixels/dmc/reacher-hard"))
    assert (settings.action_repeat, agent.intrinsic.hidden, agent.base.lr) == (2, (256, 256), 3e-4)
    for env in ("pixels/dmc/humanoid-run", "pixels/dmc/dog-walk"):
        _, agent = resolve(Settings(algo="maxinfo-drm", env=env))
        assert agent.base.hidden == agent.intrinsic.hidden == (1024, 1024) and agent.base.encoder.latent == 100
        assert agent.base.lr == agent.intrinsic.lr == agent.weight.lr == 8e-5
        assert agent.base.noise == NOISES["linear-long"]
    assert resolve(Settings(algo="eipo-sac", env="Pendulum-v1"))[0].learning_starts == 500
    assert resolve(Settings(algo="eipo-sac", env="Pendulum-v1", learning_starts=3))[0].learning_starts == 3


def test_updates_per_transition_are_those_of_the_base_that_is_asked_for():
    """After `set` and parts; what the flag says wins."""
    ratio = lambda parts=None, **asked: resolve(Settings(env="Pendulum-v1", **asked), parts)[0].update_ratio
    assert [ratio(algo=algo) for algo in ("sac", "redq", "maxinfo-droq")] == [1, 20, 20]
    assert ratio(algo="sac", set=(("base.update_ratio", 20),)) == 20
    assert ratio({"base": BASES["redq"]}, algo="maxinfo-sac") == 20
    assert ratio(algo="redq", set=(("base.update_ratio", 5),), update_ratio=2.0) == 2


# ------------------------------------------------------------------ bad input


BAD = [
    (["--algo", "maxinfo-sacc"], "did you mean 'maxinfo-sac'"),
    (["--algo", "MaxInfoSAC"], "did you mean 'maxinfo-sac'?"),
    (["--algo", "ppo2000"], "unknown algorithm 'ppo2000'. `maxinforl list`"),
    (["--set", "base.learning_rate=1"], "did you mean 'base.lr'?"),
    (["--env", "pendulum-hanging", "--env-arg", "time_limt_is_terminal=true"], "did you mean 'time_limit_is_terminal'"),
    (["--env", "Pendulum-v9"], "Pendulum"),
    (["--env", "MountainCarContinous-v0"], "MountainCarContinuous-v0"),
    (["--env", "CartPole-v1"], "iscrete"),
    (["--steps", "-5"], "--steps must be at least 1"),
    (["--steps", "0"], "--steps must be at least 1"),
    (["--steps", "1.5"], "whole number"),
    (["--batch-size", "0"], "--batch-size"),
    (["--num-envs", "0"], "--num-envs"),
    (["--eval-every", "0"], "--eval-every"),
    (["--env", "pixels/pendulum-hanging", "--algo", "drq", "--image-size", "12"], "images of 12x12 are too small"),
    (["--video", "--eval-episodes", "0"], "--video films evaluations"),
    (["--image-size", "100000"], "--image-size must be at most 2048"),
    (["--frame-stack", "1000000"], "--frame-stack must be at most 64"),
    (["--algo", "drq", "--env", "pixels/pendulum-hanging", "--set", "base.encoder.latent=0"], "must be at least 1"),
    (["--update-ratio", "0.5"], "whole number"),
    (["--update-ratio", "-1"], "more than 0"),
    (["--action-cost", "-1"], "--action-cost"),
    (["--algo", "sac", "--base", "sac"], "--algo names a whole algorithm"),
    (["--base", "sac", "--explore", "maxinfo", "--intrinsic", "curiosity"], "does not implement score()"),
    (["--base", "sac", "--intrinsic", "rnd"], "--explore maxinfo"),
    (["--explore", "maxinof"], "did you mean 'maxinfo'"),
    (["--uncertainty", "medium"], "uncertainty"),
    (["--set", "base.lrr=1"], "did you mean 'base.lr'"),
    (["--set", "base.lr=fast"], "base.lr must be"),
    (["--set", "nonsense"], "NAME=VALUE"),
    (["--preset", "papr"], "preset"),
    (["--seeds", "4-0"], "smaller number first"),
    (["--loop", "compiled"], "needs a jax/ or brax/ environment"),
    (["--stepz", "5"], "did you mean '--steps'"),
    (["--on-nan", "panic"], "on-nan"),
    (["--config", "nowhere.toml"], "is not a file"),
    (["--env-arg", "colour=3"], "colour"),
    (["--env-timeout", "inf"], "--env-timeout must be a finite number"),
    (["--max-hours", "inf"], "--max-hours must be a finite number"),
    (["--seed", "4294967296"], "--seed must be at most 4294967295"),
    (["--seeds", "0-999", "--capacity", "1000000000000", "--steps", "2000000000"], "GB are free"),
]


@pytest.mark.parametrize(("flags", "words"), BAD, ids=[" ".join(f) for f, _ in BAD])
def test_bad_input_is_one_sentence_before_anything_is_written(tmp_path, monkeypatch, capsys, flags, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *flags]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_command_is_answered_with_the_nearest(capsys):
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err


def test_a_bare_install_still_knows_its_environments(monkeypatch, capsys):
    """Without dm_control: names are listed, and a misspelt one is answered with the nearest."""
    monkeypatch.setitem(sys.modules, "dm_control", None)
    assert cli.main(["list", "--envs"]) == 0
    listed = capsys.readouterr().out
    assert "jax/mountain-car" in listed and "dmc/" not in listed
    assert cli.main(["train", "--env", "Pendulm-v1"]) == 2
    assert "'Pendulum-v1'" in capsys.readouterr().err
    assert cli.main(["completion", "bash"]) == 0
    assert "pendulum-hanging" in capsys.readouterr().out
    assert cli.main(["train", "--env", "dmc/walker-run"]) == 2
    assert "maxinforl[dmc]" in capsys.readouterr().err


def test_a_directory_that_holds_a_run_is_kept(tmp_path, capsys):
    out = str(tmp_path / "run")
    command = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "20", *FLAGS, "--out", out]
    assert cli.main(command) == 0
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "maxinforl resume" in said and "--overwrite" in said
    assert cli.main([*command, "--overwrite"]) == 0


OVERWRITE = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "20", *FLAGS, "--overwrite", "--out"]


@pytest.mark.parametrize(
    "names",
    [
        {"notes.txt": "keep me"},
        {"config.toml": "[tool]\nname = 'mine'", "src.py": "keep me"},
        {"config.toml": "[tool]\nname = 'mine'", "metrics.jsonl": "keep me", "checkpoints/a.pt": "keep me"},
        {"config.toml": "not toml", "checkpoints/a.pt": "keep me"},
        {"config.toml": "format = 1", "thesis.tex": "keep me"},
        {"seed-0/config.toml": "", "seed-0/eval.csv": "keep me"},
    ],
)
def test_overwriting_leaves_what_is_no_run(tmp_path, capsys, names):
    for name, text in names.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (OVERWRITE, [flag for flag in OVERWRITE if flag != "--overwrite"]):
        assert cli.main([*command, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "holds no run: name another directory" in said and "--overwrite" not in said and said.count("\n") == 1
    assert {name: (tmp_path / name).read_text() for name in names} == names


@pytest.mark.parametrize("name", ["notes.txt", "seed-1/notes.txt", "seed-1/config.toml", "seed-x", "bad-batch-x"])
def test_overwriting_a_run_refuses_before_anything_is_removed(tmp_path, capsys, name):
    make("sac").learn(20, out=tmp_path / "run")
    (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / name).write_text("mine = 1")
    before = sorted((tmp_path / "run").rglob("*"))
    assert cli.main([*OVERWRITE, str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{name} was not written by a run" in said and said.count("\n") == 1
    assert sorted((tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize("text", ["", "not toml"])
def test_a_run_whose_configuration_is_damaged_can_be_overwritten(tmp_path, capsys, text):
    make("sac").learn(20, out=tmp_path / "run")
    (tmp_path / "run/config.toml").write_text(text)
    (tmp_path / "run/bad-batch-7.safetensors").write_text("")
    assert cli.main([*OVERWRITE, str(tmp_path / "run")]) == 0
    assert read_run(tmp_path / "run")[0].steps == 20 and not (tmp_path / "run/bad-batch-7.safetensors").exists()


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ("", "is not the configuration of a run"),
        ("format = 0", "is not the configuration of a run"),
        ("format = true", "is not the configuration of a run"),
        ("format = 2", "is of a newer format"),
    ],
)
def test_a_format_that_no_run_has_is_told_from_a_newer_one(tmp_path, capsys, new, words):
    make("sac").learn(20, out=tmp_path / "run")
    path = tmp_path / "run/config.toml"
    path.write_text(path.read_text().replace("format = 1", new))
    for command in ("resume", "eval"):
        assert cli.main([command, str(tmp_path / "run")]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_or_is_skipped(tmp_path, capsys):
    command = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "60", *FLAGS, "--log-every", "20"]
    command += ["--eval-episodes", "0", "--set", "base.lr=1e30"]
    assert cli.main([*command, "--out", str(tmp_path / "stop")]) == 3
    said = capsys.readouterr().err
    assert re.search(r"/\w+ is (nan|inf|-inf) at step \d+: its batch is in ", said) and "no checkpoint" in said
    assert cli.main([*command, "--on-nan", "skip", "--out", str(tmp_path / "skip")]) == 0
    assert metrics(tmp_path / "skip")[-1]["train/skipped"] == 1.0
    assert all(np.isfinite(v).all() for v in saved_weights(tmp_path / "skip").values() if v.dtype == np.float32)


@pytest.mark.slow
def test_an_agent_that_sees_trains_and_is_evaluated(tmp_path):
    """Frames, stacks, the encoder and evaluation through the whole command."""
    small = ["--image-size", "16", "--batch-size", "4", "--set", "base.hidden=[8]", "--set", "base.encoder.latent=4"]
    command = ["train", "--algo", "drq", "--env", "pixels/pendulum-hanging", "--steps", "12", *small]
    command += ["--eval-every", "12", "--eval-episodes", "1", "--log-every", "6", "--learning-starts", "4"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    assert [row["step"] for row in metrics(tmp_path / "run")] == [6, 12]
    agent = maxinforl.load(tmp_path / "run")
    assert agent.observation_space.shape == (16, 16, 3)
    with pytest.raises(BadInput, match="the last 3 frames on the last axis, oldest first"):
        agent.predict(np.zeros((16, 16, 3), np.uint8))
    with pytest.raises(BadInput, match="images are uint8 from 0 to 255, and these are float64"):
        agent.predict(np.zeros((16, 16, 9)))
    with pytest.raises(BadInput, match=r"observations of shape \(16, 16, 3\), and the environment"):
        maxinforl.load(tmp_path / "run", env=lambda: make_env("pixels/pendulum-hanging", image_size=20))
    (played,) = agent.evaluate(1).returns
    last = (tmp_path / "run" / "eval.csv").read_text().splitlines()[-1].split(",")
    assert int(last[0]) == 12 and np.isfinite(played)


def test_what_cannot_be_filmed_is_refused_before_training(tmp_path, capsys):
    command = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "20", *FLAGS, "--video"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 2
    assert "render" in capsys.readouterr().err and not (tmp_path / "run" / "checkpoints" / "step-000000020").exists()


@pytest.mark.slow
def test_a_video_of_the_last_evaluation(tmp_path):
    command = ["train", "--algo", "sac", "--env", "pendulum-hanging", "--steps", "20", *FLAGS, "--video"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    (film,) = (tmp_path / "run/videos").glob("*.mp4")
    assert film.stat().st_size > 1000


class Breaks(Corridor):
    """One whose simulator is gone after 30 steps in all."""

    def step(self, action):
        if self.count >= 30:
            raise OSError("simulator\nlost")
        return super().step(action)


gym.register("Breaks-v0", lambda: Breaks())


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--num-envs", "2"], ["--seeds", "0-1"]])
def test_what_was_learned_is_kept_where_the_environment_breaks_before_any_checkpoint(tmp_path, capsys, flags):
    """And it is whole: a run with more patience goes on from there as if nothing had happened."""
    command = ["train", "--algo", "sac", "--env", "Breaks-v0", "--steps", "100", *FLAGS, "--eval-episodes", "0", *flags]
    assert cli.main([*command, "--max-faults", "0", "--out", str(tmp_path / "run")]) == 3
    said = capsys.readouterr().err
    last = 60 if "--num-envs" in flags else 30
    assert f"raised OSError: simulator lost (what was learned until step {last} is kept)" in said
    assert said.count("\n") == 1 and "Traceback" not in said
    runs = [tmp_path / "run" / f"seed-{i}" for i in (0, 1)] if "--seeds" in flags else [tmp_path / "run"]
    assert {CheckpointStore(run / "checkpoints").load().step for run in runs} == {last}
    assert cli.main(["resume", str(tmp_path / "run"), "--max-faults", "9", "--override"]) == 0
    assert "does not repeat" not in capsys.readouterr().out


def test_an_environment_of_ones_own_that_breaks_leaves_what_was_learned(tmp_path):
    agent = make("sac", Breaks(), eval_episodes=0)
    with pytest.raises(RunFailed, match=r"simulator lost \(what was learned until step 30 is kept\)"):
        agent.learn(100, out=tmp_path / "run")
    assert CheckpointStore(tmp_path / "run/checkpoints").load().step == 30


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Corridor-v0", "jax/pendulum-hanging"])
def test_the_states_that_are_recorded_are_those_that_steps_led_to(tmp_path, env):
    """The last one of an episode too, and not the first of the next in its place."""
    command = ["train", "--algo", "sac", "--env", env, "--steps", "205", *FLAGS, "--eval-episodes", "0"]
    command += ["--capacity", "1000"]
    assert cli.main([*command, "--record-states", "--learning-starts", "201", "--out", str(tmp_path)]) == 0
    saved, (lane,) = np.load(tmp_path / "states.npz"), CheckpointStore(tmp_path / "checkpoints").load().rows.lanes
    follows = np.flatnonzero(lane.columns["end"][:-1] != 3) + 1  # rows that a transition led to
    np.testing.assert_array_equal(saved["obs"], lane.columns["obs"][follows])
    assert (lane.columns["end"] == 3).any()


def test_evaluations_pay_the_price_of_actions():
    returns = {}
    for cost in (0.0, 0.5):
        agent = make("sac", action_cost=cost, seed=3)
        returns[cost] = np.array([agent.evaluate(episodes=2).returns])
    assert (returns[0.5] < returns[0.0]).all()


def test_a_bad_observation_ends_the_run_with_code_3_and_keeps_it(tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", "--algo", "sac", "--env", "Poisoned-v0", "--steps", "100", *FLAGS, "--save-every", "10"]
    command += ["--max-faults", "0"]
    assert cli.main([*command, "--eval-episodes", "0", "--out", str(out)]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "observation is nan at entry 0" in said and "step" in said
    assert CheckpointStore(out / "checkpoints").load().step >= 20
    with pytest.raises(RunFailed):
        make("sac", env="Poisoned-v0", eval_episodes=0, max_faults=0).learn(100)
