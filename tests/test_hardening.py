"""What an attack on the library found, each as a test: wrong or lost data, hangs, tracebacks, too much memory."""

import os
import signal
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import maxinforl
from maxinforl import cli, files
from maxinforl.errors import BadInput, RunFailed
from maxinforl.training.directory import check_free
from maxinforl.training.lock import RunLock
from maxinforl.training.store import CheckpointStore


class Line(gym.Env):
    """A point on a line for `length` steps; subclasses break something."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    length = 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 0)), 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.x, self.t / 10], np.float32)

    def step(self, action):
        self.x, self.t = self.x + 0.1 * float(action[0]), self.t + 1
        return self.observe(), self.reward(), False, self.t >= self.length, {}

    def reward(self):
        return -abs(self.x)


gym.register("Line-v0", Line)
TINY = ["--batch-size", "8", "--set", "base.hidden=[8,8]", "--eval-episodes", "1", "--log-every", "10"]


def flags(out, env="Line-v0", algo="sac", steps=30, *more):
    return ["train", "--algo", algo, "--env", env, "--steps", str(steps), *TINY, "--out", str(out), *more]


def make(env=Line, algo="sac", **settings):
    small = {"base.hidden": (8, 8)} | ({"intrinsic.hidden": (8, 8)} if algo != "sac" else {})
    settings = {"batch_size": 8, "eval_episodes": 1, "log_every": 10} | settings
    return maxinforl.make(algo, env, set=small, **settings)


def said_once(capsys, words, code, got):
    """One sentence on standard error, with these words."""
    said = capsys.readouterr().err
    assert got == code and words in said and said.count("\n") == 1, said
    assert said.startswith("maxinforl: ")


def weights(directory: Path) -> dict[str, bytes]:
    state = CheckpointStore(directory / "checkpoints").load().state
    return {name: array.tobytes() for name, array in state.items() if name.startswith("agent/")}


# ------------------------------------------------------------ 3: kills around the first config.toml


class Killed(BaseException):
    pass


def kill_at(monkeypatch, stage, count=1):
    """Ends a write at the count-th call of a stage, as SIGKILL would: what is written stays."""
    left = [count]

    def crash(name):
        left[0] -= name == stage
        if left[0] == 0 and name == stage:
            raise Killed

    monkeypatch.setattr(files.atomic, "crash_point", crash)
    monkeypatch.setattr(os, "unlink", lambda *_, **__: None)


@pytest.mark.parametrize("again", [[], ["--resume"], ["--overwrite"]], ids=["train", "resume", "overwrite"])
def test_a_kill_before_the_first_configuration_leaves_a_directory_that_is_free(tmp_path, monkeypatch, again):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, "config.toml written")
        with pytest.raises(Killed):
            cli.main(flags(out))
    assert [p.name for p in out.glob(".tmp-*")] and not (out / "config.toml").exists()
    with monkeypatch.context() as patch:
        patch.setattr("maxinforl.terminal.carry_on", lambda *_: 0)
        assert cli.main([*flags(out), *again]) == 0
    assert (out / "config.toml").exists() and not list(out.glob(".tmp-*"))


@pytest.mark.parametrize("stage", ["config.toml written", "config.toml renamed"])
def test_a_kill_between_the_configurations_of_seeds_starts_again_from_step_0(tmp_path, monkeypatch, stage):
    out, begun = tmp_path / "run", []
    with monkeypatch.context() as patch:
        kill_at(patch, stage, count=2)
        with pytest.raises(Killed):
            cli.main([*flags(out), "--seeds", "0-2"])
    assert (out / "seed-0/config.toml").exists() and not (out / "seed-2/config.toml").exists()
    monkeypatch.setattr("maxinforl.terminal.carry_on", lambda directories, env=None: begun.append(directories) or 0)
    assert cli.main([*flags(out), "--seeds", "0-2", "--resume"]) == 0
    assert cli.main(["resume", str(out)]) == 0
    assert begun == [[out / f"seed-{seed}" for seed in range(3)]] * 2
    for seed in range(3):
        table = files.read_toml(out / f"seed-{seed}/config.toml")
        assert table["seed"] == table["settings"]["seed"] == seed


def test_a_seed_that_was_taken_away_after_a_checkpoint_is_not_made_up(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    monkeypatch.setattr("maxinforl.terminal.carry_on", lambda *_: 0)
    assert cli.main([*flags(out), "--seeds", "0-1"]) == 0
    (out / "seed-0/checkpoints/step-000000010").mkdir(parents=True)
    (out / "seed-1/config.toml").unlink()
    capsys.readouterr()
    said_once(capsys, "seed-1 is missing", 2, cli.main(["resume", str(out)]))


def test_the_holder_of_a_run_sweeps_what_a_killed_process_left(tmp_path):
    left = [tmp_path / name / (files.TEMPORARY + "0123456789abcdef") for name in ("", "best", "best/earlier", "videos")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    mine = tmp_path / ".tmp-notes"
    mine.write_text("mine")
    with RunLock(tmp_path):
        assert not any(path.exists() for path in left) and mine.exists()


def test_what_others_call_temporary_is_foreign(tmp_path):
    (tmp_path / ".tmp-notes").touch()
    with pytest.raises(BadInput, match="is not empty and holds no run"):
        check_free(tmp_path)


def test_a_save_sweeps_the_stale_temporary_files_beside_it(tmp_path):
    stale, fresh = (tmp_path / (files.TEMPORARY + digit * 16) for digit in "ab")
    stale.touch()
    fresh.touch()
    os.utime(stale, (1e9, 1e9))
    files.write_atomic(tmp_path / "notes.txt", b"text")
    assert not stale.exists() and fresh.exists()


# ------------------------------------------------------------ 5: one huge reward where updates are skipped


class OneHugeReward(Line):
    total = 0

    def reward(self):
        self.total += 1
        return 1e25 if self.total == 15 else -abs(self.x)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["maxinfo-sac"])
def test_skipping_survives_one_huge_reward_where_there_is_an_ensemble(tmp_path, algo):
    agent = make(OneHugeReward, algo, on_nan="skip", eval_episodes=0)
    agent.learn(60, out=tmp_path / "run")
    assert agent.trainer.step == 60
    text = (tmp_path / "run/metrics.jsonl").read_text()
    assert "Infinity" not in text and "NaN" not in text


# ------------------------------------------------------------ 6: files of runs that are no files


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A tiny run that is finished, to be copied and not changed."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert cli.main(flags(out, "Pendulum-v1", "sac", 20, "--learning-starts", "5")) == 0
    return out


def in_time(function, seconds=20.0):
    """What a function returns or raises, within a time."""
    result = []

    def call():
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert result, f"no answer in {seconds} s"
    return result[0]


@pytest.mark.parametrize("name", ["eval.csv", "metrics.jsonl"])
@pytest.mark.parametrize("odd", ["fifo", "zero", "directory"])
def test_a_log_that_is_no_file_neither_hangs_nor_fills_the_memory(tmp_path, finished, name, odd):
    from maxinforl.training.directory import evaluations, last_line, logged_steps

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    {"fifo": os.mkfifo, "zero": lambda p: p.symlink_to("/dev/zero"), "directory": Path.mkdir}[odd](run / name)
    for ask in (lambda: last_line(run / name), lambda: logged_steps(run), lambda: list(evaluations(run))):
        found = in_time(ask)
        assert found in ("", -1, []) or isinstance(found, BadInput)


def test_a_sweep_that_reuses_a_directory_with_a_pipe_goes_on(tmp_path, finished):
    from maxinforl.experiments.suite_runs import FinishedRuns

    run = tmp_path / "old/run"
    run.mkdir(parents=True)
    (run / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    os.mkfifo(run / "eval.csv")
    library = FinishedRuns([tmp_path / "old", finished.parent])
    assert [p for found in in_time(lambda: library.found).values() for p in found] == [finished.resolve()]


# ------------------------------------------------------------ 7: episodes that never end


class Endless(Line):
    length = 10**12


def test_an_evaluation_of_endless_episodes_ends_at_a_limit_and_says_so_once(tmp_path):
    agent = make(Endless, eval_limit=30, learning_starts=100, eval_every=5)
    with pytest.warns(UserWarning, match="cut after 30 steps.*eval-limit") as told:
        agent.learn(10)
    assert [result.lengths.tolist() for _, result in agent.evaluations] == [[30]] * 3
    assert sum("eval-limit" in str(w.message) for w in told) == 1


def test_the_limit_of_evaluations_is_the_environments_own_where_it_has_one():
    from maxinforl.training.evaluate import MOST_STEPS, Evaluator, episode_limit

    gym.register("Limited-v0", Endless, max_episode_steps=20)
    assert episode_limit(maxinforl.envs.make("Limited-v0")) is None  # it ends by itself
    assert episode_limit(maxinforl.envs.make(Endless())) == MOST_STEPS
    assert episode_limit(maxinforl.envs.make(Endless()), 7) == 7
    evaluator = Evaluator([maxinforl.envs.make("Limited-v0")], 0)
    assert evaluator(lambda obs: np.zeros((1, 1), np.float32), 0).lengths.tolist() == [20]


@pytest.mark.slow
def test_a_signal_ends_an_evaluation_within_the_step_and_resume_makes_it_up(tmp_path, monkeypatch):
    from maxinforl.training import evaluate

    out, twin = tmp_path / "run", tmp_path / "twin"
    run = lambda out: flags(out, "Line-v0", "sac", 30, "--eval-every", "10", "--learning-starts", "5")
    assert cli.main(run(twin)) == 0
    begin, counted = evaluate.Evaluator._begin, []

    def signalled(self, lane, index):
        if index == 2:
            self.envs[0].unwrapped.length = 10**12
            os.kill(os.getpid(), signal.SIGTERM)
        return begin(self, lane, index)

    with monkeypatch.context() as patch:
        patch.setattr(evaluate.Evaluator, "_begin", signalled)
        began = time.monotonic()
        counted.append(cli.main(run(out)))
    assert counted == [75] and time.monotonic() - began < 30
    assert CheckpointStore(out / "checkpoints").steps() == [20]
    assert cli.main(["resume", str(out)]) == 0
    assert (out / "eval.csv").read_bytes() == (twin / "eval.csv").read_bytes() and weights(out) == weights(twin)


# ------------------------------------------------------------ 8: environments that change the directory


class Wanders(Line):
    to: str

    def reset(self, **kwargs):
        os.chdir(self.to)
        return super().reset(**kwargs)


gym.register("Wanders-v0", Wanders)


@pytest.mark.slow
@pytest.mark.parametrize("python", [False, True], ids=["command line", "python"])
def test_an_environment_that_changes_the_directory_does_not_move_the_run(tmp_path, monkeypatch, python):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(Wanders, "to", str(tmp_path / "there"), raising=False)
    if python:
        make(Wanders, learning_starts=100).learn(20, out="run")
    else:
        assert cli.main(flags("run", "Wanders-v0", "sac", 20, "--learning-starts", "100")) == 0
    assert list((tmp_path / "there").iterdir()) == []
    assert CheckpointStore(tmp_path / "here/run/checkpoints").steps() == [20]
    assert (tmp_path / "here/run/eval.csv").read_text().count("\n") >= 2


# ------------------------------------------------------------ 9: a run directory that goes away


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "renamed", "emptied"])
def test_a_run_whose_directory_goes_away_ends_with_a_sentence(tmp_path, how):
    import shutil

    out, other = tmp_path / "run", tmp_path / "other"

    def on_step(run):
        if run.step == 12:
            if how == "renamed":
                out.rename(other)
            else:
                shutil.rmtree(out)
                out.mkdir() if how == "emptied" else None

    watcher = type("Watcher", (), {"on_step": staticmethod(on_step)})()
    with pytest.raises(RunFailed, match=r"run was moved, emptied or removed while its run was writing"):
        make(learning_starts=100).learn(40, out=out, callback=watcher)
    left = sorted(p.name for p in out.iterdir()) if out.exists() else []
    assert left == [] and (how != "renamed" or CheckpointStore(other / "checkpoints").steps() == [])


# ------------------------------------------------------------ 10: environments that cannot be closed


class Sticky(Line):
    def close(self):
        raise OSError("the window does not close")


class Leaves(Line):
    def close(self):
        raise SystemExit("gone")


gym.register("Sticky-v0", Sticky)
gym.register("Leaves-v0", Leaves)


@pytest.mark.parametrize("env", ["Sticky-v0", "Leaves-v0"])
def test_an_environment_that_cannot_be_closed_trains(tmp_path, env, capfd):
    agent = make(env, learning_starts=100).learn(10, out=tmp_path / "run")
    agent.evaluate(1)
    agent.set_env(Line)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("env", [Sticky, Leaves])
def test_a_worker_whose_environment_cannot_be_closed_prints_nothing(env, capfd):
    pool = maxinforl.envs.make_pool(env, workers=True)
    pool.reset()
    process = pool.envs[0]._process
    pool.close()
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(ValueError, match="closed"):
        process.is_alive()
