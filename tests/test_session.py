"""One owner of a run: every setting has its effect, callbacks, --stop-at, the best agent, learning on."""

import json
import shutil
import time
from dataclasses import MISSING, fields

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.wrappers import TransformObservation

import maxinforl
from maxinforl import BadInput, RunFailed, cli
from maxinforl.settings import Settings, flag, known_as
from maxinforl.training import session
from maxinforl.training.callbacks import EARLIER, read_best, roll_back_best
from maxinforl.training.directory import finished, read_run
from maxinforl.training.store import CheckpointStore
from test_run import FLAGS, interrupted, make, metrics, same, saved_weights, weights

SMALL = ["--algo", "sac", "--env", "Corridor-v0", *FLAGS, "--eval-episodes", "1", "--eval-every", "10"]


# ------------------------------------------------------------ every setting has its effect in Python


class Ramp(gym.Env):
    """A cart on a line that notes what it was asked for; faulty where told so."""

    def __init__(self, slope: float = 1.0, render_mode=None):
        self.slope, self.render_mode = slope, render_mode
        self.observation_space, self.action_space = Box(-9, 9, (2,), np.float32), Box(-1, 1, (1,), np.float32)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.time = float(self.np_random.uniform(-0.1, 0.1)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        if self.time == 3 and self.slope < 0 and self.np_random.uniform() < 0.3:
            raise ValueError("the cart fell off")
        if self.time == 3 and self.slope == 7:
            time.sleep(3)
        self.x = float(np.clip(self.x + 0.1 * action[0], -5, 5))
        return np.array([self.x, self.time / 8], np.float32), self.slope * self.x, False, self.time >= 8, {}

    def render(self):
        return np.full((16, 16, 3), 128 + int(20 * self.x), np.uint8)


gym.register("Ramp-v0", Ramp)


def two_parts() -> gym.Env:
    """The cart, with place and time apart."""
    space = Dict({"place": Box(-9, 9, (1,), np.float32), "time": Box(-9, 9, (1,), np.float32)})
    return TransformObservation(Ramp(), lambda obs: {"place": obs[:1], "time": obs[1:]}, space)


# What a run of another value is given beside it, and the other value; all fields of Settings must be here.
OTHER = {
    "algo": ({}, "oac"),
    "base": ({"algo": None, "explore": "none"}, "oac"),
    "explore": ({"algo": None, "base": "sac"}, "maxinfo"),
    "intrinsic": ({"algo": None, "base": "sac", "explore": "maxinfo"}, "rnd"),
    "env": ({}, "Pendulum-v1"),
    "env_arg": ({}, (("slope", 2.0),)),
    "steps": ({}, 24),
    "seed": ({}, 5),
    "num_envs": ({}, 2),
    "update_ratio": ({}, 2.0),
    "learning_starts": ({}, 4),
    "batch_size": ({}, 5),
    "capacity": ({}, 10),
    "uncertainty": ({"algo": "maxinfo-sac"}, "paper"),
    "weight": ({"algo": "maxinfo-sac"}, 0.5),
    "action_noise": ({}, "pink"),
    "set": ({}, {"base.hidden": (8, 8), "base.lr": 1e-2}),
    "preset": ({"algo": "oac", "learning_starts": None}, "none"),
    "prior_data": ({}, "prior.npz"),
    "prior_share": ({"prior_data": "prior.npz"}, 0.25),
    "model_share": ({"algo": "maxinfo-sac"}, 0.5),
    "image_size": ({"algo": "drq", "env": "pixels/Ramp-v0"}, 20),
    "frame_stack": ({"algo": "drq", "env": "pixels/Ramp-v0"}, 2),
    "critic_only": ({"env": two_parts}, "time"),
    "action_cost": ({}, 0.5),
    "action_repeat": ({}, 2),
    "loop": ({"env": "jax/pendulum-hanging"}, "host"),
    "eval_every": ({}, 5),
    "eval_episodes": ({}, 2),
    "eval_limit": ({}, 3),
    "stop_at": ({}, -1e6),
    "log_every": ({}, 7),
    "save_every": ({}, 9),
    "keep": ({"save_every": 5}, 1),
    "max_hours": ({}, 1e-9),
    "on_nan": ({}, "skip"),
    "max_faults": ({"env_arg": (("slope", -1.0),)}, 0),
    "workers": ({"env": Ramp}, True),
    "env_timeout": ({"env": Ramp, "env_arg": (("slope", 7.0),), "workers": True, "max_faults": 0, "steps": 4}, 0.5),
    "video": ({}, True),
    "record_states": ({}, True),
    "tensorboard": ({}, True),
    "wandb": ({}, True),
}


def some_rows(path):
    """Transitions of `Ramp` in a file."""
    obs = np.linspace(-1, 1, 22, dtype=np.float32).reshape(11, 2)
    maxinforl.Prior(obs[:-1], np.zeros((10, 1)), np.arange(10), obs[1:], np.zeros(10)).save(path)
    return path


def outcome(out, given) -> dict:
    """What a tiny run from Python leaves behind, by name: files, numbers of its logs, or why it ended."""
    given = {
        "algo": "sac",
        "env": "Ramp-v0",
        "steps": 20,
        "batch_size": 4,
        "eval_episodes": 1,
        "eval_every": 10,
    } | given
    given = {"set": {"base.hidden": (8, 8)}, "log_every": 10, "save_every": 10, "image_size": 16} | given
    given.setdefault("learning_starts", 2)
    if "prior_data" in given:
        given["prior_data"] = some_rows(out.parent / given["prior_data"])
    left = {}
    try:
        agent = maxinforl.make(given.pop("algo"), given.pop("env"), **given)
        agent.learn(out=out)
        left["envs"] = [type(lane).__name__ for pool in agent.trainer.pools for lane in pool.envs]
    except (BadInput, RunFailed) as error:
        left["error"] = str(error)
    steps = sorted(path.name for path in out.glob("checkpoints/step-*"))
    left |= {"files": sorted(p.name for p in out.glob("*")) if out.exists() else [], "checkpoints": steps}
    if steps:
        state = CheckpointStore(out / "checkpoints").load(rows=False).state
        left["weights"] = {k: v.tobytes() for k, v in state.items() if not k.startswith("logs/")}
    if (out / "eval.csv").exists():
        left["eval"] = (out / "eval.csv").read_text()
    if (out / "metrics.jsonl").exists():
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        left["metrics"] = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]
    return left


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The outcome without the other value, which many settings share."""
    found = {}

    def of(beside) -> dict:
        if repr(beside) not in found:
            found[repr(beside)] = outcome(tmp_path_factory.mktemp("without") / "run", dict(beside))
        return found[repr(beside)]

    return of


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [f.name for f in fields(Settings)])
def test_every_setting_of_make_has_its_effect(tmp_path, monkeypatch, name, without):
    monkeypatch.setenv("WANDB_MODE", "offline")
    beside, other = OTHER[name]
    one, two = without(beside), outcome(tmp_path / "two", beside | {name: other})
    differ = [part for part in one.keys() | two.keys() if one.get(part) != two.get(part)]
    assert differ, f"{name} changes nothing"
    if name not in ("env_timeout", "max_faults"):
        assert "error" not in one and "error" not in two, (one.get("error"), two.get("error"))


@pytest.mark.parametrize("name", known_as("directory"))
def test_what_is_written_needs_a_directory(name):
    with pytest.raises(BadInput, match=f"{name}=True writes into a run directory: pass learn"):
        make("sac", **{name: True}).learn(10)


def test_a_setting_says_all_that_is_known_about_it():
    kinds = {"fixed", "free", "learning", "silent", "implied", "logged", "unlike", "unlabelled", "task"}
    kinds |= {"env", "pool", "directory", "told"}
    for f in fields(Settings):
        assert f.default is not MISSING and f.metadata["help"] and flag(f.name).startswith("--")
        unknown = f.metadata.keys() - kinds - {"help", "least", "most", "positive", "choices", "extra"}
        assert not unknown, f"{f.name} knows {unknown}, which nothing reads"


# ------------------------------------------------------------ callbacks


class Watcher:
    """Notes every call; observes and changes nothing."""

    def __init__(self):
        self.calls = []

    def on_step(self, run):
        self.calls.append(("step", run.seed, run.step))

    def on_log(self, run, metrics):
        self.calls.append(("log", run.seed, run.step))
        assert metrics["step"] == run.step and metrics["env_step"] == run.env_step

    def on_evaluation(self, run, evaluation):
        self.calls.append(("evaluation", run.seed, run.step))
        assert len(evaluation.returns) == run.settings.eval_episodes

    def on_checkpoint(self, run):
        self.calls.append(("checkpoint", run.seed, run.step))

    def of(self, kind):
        return [step for name, _, step in self.calls if name == kind]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Corridor-v0", "jax/pendulum-hanging"])
def test_a_callback_that_observes_changes_nothing(tmp_path, env):
    given = {"learning_starts": 5, "save_every": 20, "log_every": 10, "eval_every": 20, "eval_episodes": 1}
    watcher = Watcher()
    make("sac", env, **given).learn(40, out=tmp_path / "plain")
    make("sac", env, **given).learn(40, out=tmp_path / "watched", callback=watcher)
    assert same(saved_weights(tmp_path / "plain"), saved_weights(tmp_path / "watched"))
    assert (tmp_path / "plain/eval.csv").read_text() == (tmp_path / "watched/eval.csv").read_text()
    assert watcher.of("log") == [10, 20, 30, 40] and watcher.of("evaluation") == [0, 20, 40]
    assert watcher.of("checkpoint") == [20, 40]
    steps = watcher.of("step")
    assert steps == list(range(1, 41)) if env == "Corridor-v0" else steps[-1] == 40 and len(steps) < 40


def test_metrics_of_a_callback_reach_every_sink(tmp_path):
    class Adds:
        def on_step(self, run):
            run.record("mine/step", run.step)

        def on_log(self, run, metrics):
            metrics["mine/double"] = 2.0 * run.step

    seen = []
    agent = make("sac", learning_starts=1000, log_every=10, eval_episodes=0, tensorboard=True)
    agent.learn(20, out=tmp_path / "run", callback=[Adds(), lambda run, line: seen.append(dict(line))])
    assert [line["mine/step"] for line in metrics(tmp_path / "run")] == [10, 20]
    assert [line["mine/double"] for line in seen] == [20, 40] == [m["mine/double"] for m in metrics(tmp_path / "run")]
    assert b"mine/double" in next((tmp_path / "run/tensorboard").glob("*")).read_bytes()


@pytest.mark.parametrize("last", [20, 60])
def test_metrics_of_the_last_evaluation_have_a_line_of_their_own(tmp_path, last):
    """Of a run that ends at its last step, and of one that a callback ends."""

    class Adds:
        def on_evaluation(self, run, evaluation):
            run.record("mine/evaluated", run.step)
            return run.step < 20

    given = {"learning_starts": 1000, "log_every": 10, "eval_every": 10, "eval_episodes": 1}
    make("sac", **given).learn(last, out=tmp_path / "run", callback=Adds())
    lines = metrics(tmp_path / "run")
    assert [(m["step"], m["mine/evaluated"]) for m in lines] == [(10, 0), (20, 10), (20, 20)]
    assert lines[-1].keys() == {"step", "env_step", "mine/evaluated"}
    assert not CheckpointStore(tmp_path / "run/checkpoints").load().warnings


def test_what_could_not_be_opened_closes_its_evaluator(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(session, "extra_sinks", lambda settings, directory: 1 / 0)
    monkeypatch.setattr(session.Evaluator, "close", lambda self: closed.append(self))
    with pytest.raises(ZeroDivisionError):
        make("sac", learning_starts=1000).learn(20, out=tmp_path / "run")
    assert len(closed) == 1
    with pytest.raises(ZeroDivisionError):
        maxinforl.resume(tmp_path / "run")
    assert len(closed) == 2


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_step", "on_log", "on_evaluation", "on_checkpoint"])
def test_a_callback_that_returns_false_stops_with_a_checkpoint(tmp_path, hook):
    stop = type("Stops", (), {hook: lambda self, run, *_: run.step < 20})()
    given = {"learning_starts": 5, "log_every": 10, "save_every": 10, "eval_every": 10, "eval_episodes": 1}
    make("sac", **given).learn(60, out=tmp_path / "run", callback=stop)
    assert max(CheckpointStore(tmp_path / "run/checkpoints").steps()) == 20
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    make("sac", **given).learn(60, out=tmp_path / "twin")
    assert same(saved_weights(tmp_path / "run"), saved_weights(tmp_path / "twin"))


@pytest.mark.parametrize("hook", ["on_step", "on_log", "on_evaluation"])
def test_a_callback_that_raises_ends_the_run_with_its_name_and_a_checkpoint(tmp_path, hook):
    class Fragile:
        pass

    def raises(self, run, *_):
        if run.step >= 20:
            raise KeyError("lost")

    setattr(Fragile, hook, raises)
    given = {"learning_starts": 5, "log_every": 10, "eval_every": 10, "eval_episodes": 1}
    with pytest.raises(
        RunFailed, match=r"callback Fragile raised KeyError: 'lost' at step 20 \(.*until step 20 is kept"
    ):
        make("sac", **given).learn(60, out=tmp_path / "run", callback=Fragile())
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    make("sac", **given).learn(60, out=tmp_path / "twin")
    assert same(saved_weights(tmp_path / "run"), saved_weights(tmp_path / "twin"))
    assert (tmp_path / "run/eval.csv").read_text() == (tmp_path / "twin/eval.csv").read_text()


def test_a_callback_may_ask_the_policy():
    asked = []
    look = lambda run, line: asked.append(run.predict(np.zeros((3, 2), np.float32)))
    make("sac", learning_starts=5, log_every=10, eval_episodes=0).learn(20, callback=look)
    assert [a.shape for a in asked] == [(3, 1), (3, 1)] and np.abs(asked[-1]).max() <= 1


def test_numpys_false_stops_and_its_numbers_are_metrics(tmp_path):
    class Numpy:
        def on_log(self, run, metrics):
            metrics["mine/number"] = np.float32(run.step)
            metrics["step"] = -1
            return np.float64(run.step) < 20

    make("sac", learning_starts=1000, log_every=10, eval_episodes=0).learn(60, out=tmp_path / "run", callback=Numpy())
    assert [(m["step"], m["mine/number"]) for m in metrics(tmp_path / "run")] == [(10, 10.0), (20, 20.0)]


def test_a_metric_that_is_no_number_ends_the_run_with_a_sentence(tmp_path):
    add = lambda run, line: line.update(odd="text")
    with pytest.raises(RunFailed, match="a callback gave the metric 'odd' as str: give a number"):
        make("sac", learning_starts=1000, log_every=10, eval_episodes=0).learn(20, out=tmp_path / "run", callback=add)


def test_what_is_no_callback_is_refused_before_training(tmp_path):
    with pytest.raises(BadInput, match="is no callback"):
        make("sac", eval_episodes=0).learn(5, out=tmp_path / "run", callback=3)
    assert not (tmp_path / "run").exists()
    for wrong in (3, object(), type("Odd", (), {"on_step": 4})()):
        with pytest.raises(BadInput, match="is no callback: give a function"):
            make("sac", eval_episodes=0).learn(5, callback=wrong)


# ------------------------------------------------------------ --stop-at


def test_stop_at_ends_a_run_that_is_finished_everywhere(tmp_path, capsys):
    out = str(tmp_path / "run")
    command = [*SMALL, "--steps", "60", "--stop-at", "-1000", "--learning-starts", "1000"]
    assert cli.main(["train", *command, "--out", out]) == 0
    settings = read_run(tmp_path / "run")[0]
    assert (tmp_path / "run/eval.csv").read_text().splitlines()[-1].startswith("0,")
    assert finished(tmp_path / "run", settings) and CheckpointStore(tmp_path / "run/checkpoints").steps() == [0]
    capsys.readouterr()
    assert cli.main(["resume", out]) == 0 and "it reached --stop-at -1000" in capsys.readouterr().out
    assert cli.main(["train", *command, "--out", out, "--resume"]) == 0
    shutil.rmtree(tmp_path / "run/checkpoints")  # as published results are
    assert finished(tmp_path / "run", settings)
    assert cli.main(["train", *SMALL, "--stop-at", "nan", "--out", str(tmp_path / "x")]) == 2
    assert cli.main(["train", *SMALL, "--stop-at", "1", "--eval-episodes", "0", "--out", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_seeds_that_train_together_stop_when_all_have_reached_it(tmp_path, monkeypatch):
    """Seed 1 gets there at step 20 only: until then seed 0 trains on."""
    from maxinforl.training.evaluate import Evaluation, Evaluator

    def played(self, act, index, watch=None):
        return Evaluation(np.full(1, 1.0 if index >= 2 * (self.seed % 2) else 0.0), np.ones(1))

    monkeypatch.setattr(Evaluator, "__call__", played)
    out = tmp_path / "runs"
    command = [*SMALL, "--steps", "60", "--stop-at", "1", "--learning-starts", "1000", "--seeds", "0-1"]
    assert cli.main(["train", *command, "--out", str(out)]) == 0
    steps = [CheckpointStore(out / f"seed-{seed}/checkpoints").steps()[-1] for seed in (0, 1)]
    assert steps == [20, 20]
    settings, _, table = read_run(out / "seed-0")
    assert finished(out / "seed-0", settings, table["together"])
    assert cli.main(["resume", str(out)]) == 0


@pytest.mark.slow
def test_a_run_that_is_killed_before_its_last_checkpoint_stops_at_the_same_step(tmp_path, monkeypatch):
    flags = [*SMALL, "--steps", "60", "--save-every", "15", "--learning-starts", "5"]
    assert cli.main(["train", *flags, "--out", str(tmp_path / "whole")]) == 0
    returns = [line.split(",") for line in (tmp_path / "whole/eval.csv").read_text().splitlines()[1:]]
    threshold = max(float(r[3]) for r in returns if int(r[0]) >= 30)
    first = next(int(r[0]) for r in returns if float(r[3]) >= threshold)
    flags += ["--stop-at", repr(threshold)]
    assert cli.main(["train", *flags, "--out", str(tmp_path / "twin")]) == 0
    with monkeypatch.context() as patch:
        interrupted(patch, max(first - 2, 1))
        with pytest.raises(MemoryError):
            cli.main(["train", *flags, "--out", str(tmp_path / "run")])
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    assert max(CheckpointStore(tmp_path / "run/checkpoints").steps()) == first
    assert (tmp_path / "run/eval.csv").read_text() == (tmp_path / "twin/eval.csv").read_text()


# ------------------------------------------------------------ the best agent


def returns_of(monkeypatch, by_index):
    """Evaluations give these returns, by which evaluation they are."""
    from maxinforl.training.evaluate import Evaluation, Evaluator

    monkeypatch.setattr(
        Evaluator, "__call__", lambda self, act, index, watch=None: Evaluation(np.full(1, by_index[index]), np.ones(1))
    )


def test_the_best_agent_is_a_saved_agent(tmp_path, monkeypatch):
    returns_of(monkeypatch, [0.0, 3.0, 7.0, 5.0, 7.0, 1.0, 2.0])
    out = tmp_path / "run"
    agent = make("sac", learning_starts=5, eval_every=10, eval_episodes=1, save_every=20)
    best = {}
    keep = type("Keep", (), {"on_evaluation": lambda self, run, e: best.update({run.step: saved_actions(run)})})()
    agent.learn(60, out=out, callback=keep)
    assert read_best(out) == (20, 7.0) and not list((out / EARLIER).iterdir())
    loaded = maxinforl.load(out / "best")
    np.testing.assert_array_equal(loaded.predict(GRID, deterministic=True)[0], best[20])
    assert cli.main(["export", str(out / "best"), "--out", str(tmp_path / "bundle")]) == 0
    assert cli.main(["train", *SMALL, "--steps", "10", "--out", str(out), "--overwrite"]) == 0


GRID = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)


def saved_actions(run):
    return run.predict(GRID)


def test_resuming_rolls_the_best_agent_back_with_its_evaluations(tmp_path, monkeypatch):
    """Killed at 38, after the best evaluation at 30 and with its last checkpoint at 20, where another was best."""
    returns_of(monkeypatch, [0.0, 3.0, 2.0, 9.0, 1.0, 1.0, 1.0])
    flags = [*SMALL, "--steps", "60", "--save-every", "20", "--learning-starts", "5"]
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupted(patch, 38)
        with pytest.raises(MemoryError):
            cli.main(["train", *flags, "--out", str(out)])
    assert read_best(out) == (30, 9.0) and [p.name for p in (out / EARLIER).iterdir()] == ["10.safetensors"]
    roll_back_best(out, 20)
    assert read_best(out) == (10, 3.0)
    assert cli.main(["resume", str(out)]) == 0
    assert read_best(out) == (30, 9.0)
    roll_back_best(out, -1)
    assert read_best(out) is None and not (out / "best/agent.safetensors").exists()


@pytest.mark.slow
def test_a_damaged_best_agent_costs_nothing_else(tmp_path, monkeypatch):
    returns_of(monkeypatch, [0.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    flags = [*SMALL, "--steps", "60", "--save-every", "20", "--learning-starts", "1000"]
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupted(patch, 38)
        with pytest.raises(MemoryError):
            cli.main(["train", *flags, "--out", str(out)])
    (out / "best/agent.safetensors").write_bytes(b"nothing")
    assert cli.main(["resume", str(out)]) == 0
    assert read_best(out) == (30, 1.0)


# ------------------------------------------------------------ learning on in the same directory


def test_learn_goes_on_in_its_directory(tmp_path):
    given = {"learning_starts": 5, "log_every": 10, "save_every": 10, "eval_every": 10, "eval_episodes": 1}
    out = tmp_path / "run"
    agent = make("sac", **given).learn(20, out=out)
    agent.learn(20, out=out)
    settings, _, table = read_run(out)
    assert settings.steps == 40 and table["history"][0]["setting"] == "steps"
    assert [line["step"] for line in metrics(out)] == [10, 20, 30, 40]
    steps = [line.split(",")[0] for line in (out / "eval.csv").read_text().splitlines()[1:]]
    assert steps == ["0", "10", "20", "30", "40"] and max(CheckpointStore(out / "checkpoints").steps()) == 40
    twin = make("sac", **given).learn(20)
    twin.learn(20)
    assert same(saved_weights(out), {f"agent/{k}": v for k, v in weights(twin).items()})
    with pytest.raises(BadInput, match="already holds a run: name another directory with out="):
        make("sac", **given).learn(20, out=out)


@pytest.mark.slow
def test_a_run_that_was_learned_on_resumes_exactly(tmp_path, monkeypatch):
    given = {"learning_starts": 5, "save_every": 10, "eval_episodes": 0}
    twin = make("sac", **given).learn(20, out=tmp_path / "twin")
    twin.learn(20, out=tmp_path / "twin")
    agent = make("sac", **given).learn(20, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        interrupted(patch, 33)
        with pytest.raises(MemoryError):
            agent.learn(20, out=tmp_path / "run")
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    assert same(saved_weights(tmp_path / "run"), saved_weights(tmp_path / "twin"))


def test_states_are_recorded_on_and_a_failed_learn_may_go_on(tmp_path):
    agent = make("sac", learning_starts=1000, eval_episodes=0, record_states=True, save_every=10)
    agent.learn(20, out=tmp_path / "run")

    def fails(run):
        raise KeyError if run.step == 25 else StopIteration

    with pytest.raises(RunFailed, match="callback Fails raised"):
        agent.learn(20, out=tmp_path / "run", callback=type("Fails", (), {"on_step": lambda self, run: fails(run)})())
    agent.learn(10, out=tmp_path / "run")
    with np.load(tmp_path / "run/states.npz") as states:
        assert states["step"].min() <= 1 and states["step"].max() == agent.trainer.step


def test_what_an_instance_cannot_do_is_refused():
    with pytest.raises(BadInput, match="max_faults is for environments that are made anew"):
        maxinforl.make("sac", Ramp(), max_faults=3)
    with pytest.raises(BadInput, match="stop_at and video need evaluations"):
        maxinforl.make("sac", Ramp(), stop_at=1.0).learn(5)


def test_a_resumed_run_on_an_instance_says_that_evaluation_is_skipped(tmp_path):
    given = {"learning_starts": 1000, "log_every": 10, "save_every": 10}
    with pytest.warns(UserWarning, match="evaluation is skipped"):
        make("sac", Ramp(), **given).learn(30, out=tmp_path / "run", callback=lambda run, line: run.step < 20)
    with pytest.warns(UserWarning, match="evaluation is skipped"):
        assert maxinforl.resume(tmp_path / "run", env=Ramp()).trainer.step == 30


def test_only_environments_that_the_agent_made_are_closed():
    class Closing(Ramp):
        closed = 0

        def close(self):
            type(self).closed += 1

    own, other = Closing(), Closing()
    agent = make("sac", own, eval_env=other, learning_starts=1000, eval_episodes=1).learn(10)
    with pytest.warns(UserWarning, match="replay"):
        agent.set_env(Closing)
    assert Closing.closed == 1  # the one that was made to look at its spaces
    agent.learn(10)
    before = Closing.closed
    with pytest.warns(UserWarning, match="replay"):
        agent.set_env("Ramp-v0")
    assert Closing.closed == before + 1


@pytest.mark.slow
def test_the_states_of_all_environments_are_visited():
    agent = make("sac", num_envs=2, learning_starts=1000, eval_episodes=0, capacity=None).learn(100)
    seed, replay = agent.trainer.seeds[0], agent.trainer.state.replay
    order, states = seed.visited()
    assert len(order) == len(states) == int(replay.head.sum()) + 2 and (np.diff(order) >= 0).all()
    newest = np.array(replay.latest())
    assert all((states == row).all(1).any() for row in newest)
    for most in (10, 60, len(order) - 1):
        assert most / 2 < len(seed.visited(most)[0]) <= most


def test_an_agent_that_moved_begins_a_new_run(tmp_path):
    agent = make("sac", learning_starts=1000, eval_episodes=0).learn(10, out=tmp_path / "run")
    with pytest.warns(UserWarning, match="replay"):
        agent.set_env("Corridor-v0")
    with pytest.raises(BadInput, match="already holds a run"):
        agent.learn(10, out=tmp_path / "run")


def test_a_directory_that_changed_meanwhile_is_refused(tmp_path):
    given = {"learning_starts": 1000, "eval_episodes": 0}
    agent = make("sac", **given).learn(20, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(BadInput, match="is not where this agent left it"):
        agent.learn(20, out=tmp_path / "run")


def test_learn_collects_the_steps_of_its_settings():
    agent = make("sac", steps=15, learning_starts=1000, eval_episodes=0).learn()
    assert agent.trainer.step == 15


# ------------------------------------------------------------ what a fault must not lose


@pytest.mark.slow
def test_a_loaded_agent_that_was_killed_before_its_first_checkpoint_is_not_started_afresh(tmp_path, monkeypatch):
    make("sac", learning_starts=5, eval_episodes=0).learn(20).save(tmp_path / "saved")
    agent = maxinforl.load(tmp_path / "saved")

    def killed(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("maxinforl.training.session.Session.save", killed)
        with pytest.raises(MemoryError):
            agent.learn(20, out=tmp_path / "run")
    assert (tmp_path / "run/config.toml").exists()
    with pytest.raises(BadInput, match="goes on with an agent that was trained before"):
        maxinforl.resume(tmp_path / "run")
    assert cli.main(["resume", str(tmp_path / "run")]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("at", [20, 60], ids=["on the way", "at the end"])
def test_an_evaluation_that_failed_is_made_up(tmp_path, monkeypatch, at):
    from maxinforl.envs import Fault
    from maxinforl.training.evaluate import Evaluator

    flags = [*SMALL, "--steps", "60", "--save-every", "30", "--learning-starts", "5"]
    assert cli.main(["train", *flags, "--out", str(tmp_path / "twin")]) == 0
    play = Evaluator.__call__

    def fails(self, act, index, watch=None):
        if index == at // 10:
            raise Fault("the evaluation broke")
        return play(self, act, index, watch)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "__call__", fails)
        assert cli.main(["train", *flags, "--out", str(tmp_path / "run")]) == 3
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/eval.csv").read_text() == (tmp_path / "twin/eval.csv").read_text()
    assert same(saved_weights(tmp_path / "run"), saved_weights(tmp_path / "twin"))
    assert read_best(tmp_path / "run") == read_best(tmp_path / "twin")


def test_assigning_an_environment_is_refused():
    agent = make("sac", eval_episodes=0)
    with pytest.raises(BadInput, match="set_env"):
        agent.env = "Pendulum-v1"


def test_information_gain_compiles_once(monkeypatch):
    agent = maxinforl.make("maxinfo-sac", "Corridor-v0", set={"base.hidden": (8, 8)})
    traces, score = [], type(agent.strategy.intrinsic).score
    monkeypatch.setattr(type(agent.strategy.intrinsic), "score", lambda *a: (traces.append(1), score(*a))[1])
    for _ in range(3):
        agent.information_gain(np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32))
    assert len(traces) == 1


@pytest.mark.slow
def test_agents_that_are_alike_are_traced_once(trace_anew):
    first, second = (make("sac", learning_starts=5, eval_episodes=0, seed=seed).learn(20) for seed in (0, 1))
    assert first.trainer.program is second.trainer.program and first.trainer.program.traces["step"] == 1
    other = make("sac", learning_starts=5, eval_episodes=0, batch_size=7).learn(20)
    assert other.trainer.program is not first.trainer.program
