"""What an attack on the library found, each as a test: wrong or lost data, hangs, tracebacks, too much memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
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


@pytest.mark.slow
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


# ------------------------------------------------------------ 11 and 12: what files may claim


ODD = {
    'kind = "ActorCritic"': ['kind = "InfoGain"', 'kind = "Tuned"', "kind = 3"],
    "lr = 0.0003": ["lr = {x = 1}", 'lr = {kind = "Tuned"}', "lr = [1]", 'lr = "fast"'],
    "critics = 2": ["critics = {x = 1}", "critics = 1000000", "critics = 2.5"],
    "hidden = [\n    8,\n    8,\n]": ["hidden = 8", f"hidden = {[8] * 4000}", "hidden = [[8]]", "hidden = [8000000]"],
    'kind = "States"': ['kind = "Tuned"', 'kind = "Plain"'],
    "nstep = 1": ["nstep = 100000000"],
    "num_envs = 1": ["num_envs = 1000000", "num_envs = {x = 1}"],
    "eval_episodes = 1": ["eval_episodes = 10000000", "eval_episodes = {x = 1}"],
    "batch_size = 8": ["batch_size = 1000000000000", "batch_size = [8]"],
}


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in ODD for new in ODD[old]], ids=lambda text: text[:40])
@pytest.mark.parametrize("command", ["resume", "eval", "inspect", "export"])
def test_a_configuration_of_the_wrong_kind_is_one_sentence(tmp_path, finished, capsys, command, old, new):

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new, 1))
    began = time.process_time()
    if (code := cli.main([command, str(run)])) == 0:  # inspect goes on without an agent
        assert command == "inspect" and "Traceback" not in capsys.readouterr().err
    else:
        said_once(capsys, "", 2, code)
    assert time.process_time() - began < 5


def test_a_sweep_goes_on_beside_a_configuration_of_the_wrong_kind(tmp_path, finished):
    from maxinforl.experiments.suite_runs import FinishedRuns

    bad = tmp_path / "bad"
    bad.mkdir()
    text = (finished / "config.toml").read_text()
    (bad / "config.toml").write_text(text.replace("lr = 0.0003", "lr = {x = 1}", 1))
    problems: list[str] = []
    library = FinishedRuns([tmp_path, finished.parent], problems)
    assert [p for found in library.found.values() for p in found] == [finished.resolve()]
    assert len(problems) == 1 and "kind" in problems[0]


def test_a_replay_larger_than_the_run_allows_is_refused(tmp_path, finished, capsys):

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    manifest = run / "checkpoints/step-000000020/manifest.json"
    value = files.read_sealed_json(manifest)
    value["replay"]["capacity"] = 10**8
    files.write_sealed_json(manifest, json.loads(json.dumps(value)))
    text = (run / "config.toml").read_text().replace("steps = 20", "steps = 40")
    (run / "config.toml").write_text(text)
    capsys.readouterr()
    assert cli.main(["resume", str(run)]) == 2
    assert "its replay has 100000000 rows where the run allows" in capsys.readouterr().err


def peak(function) -> int:
    import tracemalloc

    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_logs_take_no_more_memory_than_a_few_times_their_size(tmp_path):
    from maxinforl.experiments.log_files import read_metrics, read_table

    metrics, evals = tmp_path / "metrics.jsonl", tmp_path / "eval.csv"
    metrics.write_text("".join(f'{{"step":{i},"m{i % 500}":1}}\n' for i in range(40_000)))
    evals.write_text("step,mean_return\n" + "".join(f"{i},1\n" for i in range(80_000)))
    for path, read in ((metrics, lambda: read_metrics(metrics, [], None)), (evals, lambda: read_table(evals, []))):
        assert peak(read) < 8 * path.stat().st_size + 16 * files.MiB
    series, last = read_metrics(metrics, [], None)
    assert last == 39_999 and len(series) == 500 and series["m3"].step[:2].tolist() == [3, 503]
    assert len(read_table(evals, [])["step"]) == 80_000


def test_a_line_without_an_end_is_left_out(tmp_path):
    from maxinforl.experiments.log_files import read_metrics

    path, problems = tmp_path / "metrics.jsonl", []
    path.write_text('{"step": 1, "a": 2.0}\n' + '{"step": 2, "a": ' + "1" * (2 * files.MiB) + "}\n")
    series, _ = read_metrics(path, problems, None)
    assert series["a"].value.tolist() == [2.0] and "left out a line" in problems[0] and "line 2" in problems[0]


def test_an_archive_takes_its_own_size_once(tmp_path):
    path = tmp_path / "states.npz"
    np.savez(path, step=np.zeros(10), obs=np.zeros((4_000_000,)))
    assert peak(lambda: files.read_npz(path, ("obs",))) < 1.2 * path.stat().st_size


# ------------------------------------------------------------ 13: suspended workers


@pytest.mark.slow
def test_a_run_and_its_workers_that_were_suspended_have_not_hung():
    from test_faults import Halves

    pool = maxinforl.envs.make_pool(Halves("exception", lane=9), num_envs=1, workers=True, env_timeout=2.0)
    try:
        pool.reset()
        worker = pool.envs[0]
        polls = []
        poll = worker._pipe.poll

        class Suspended:  # the clock goes on while nothing runs, within one call
            def poll(self, timeout):
                polls.append(timeout)
                return False if len(polls) == 1 else poll(timeout)

            def __getattr__(self, name):
                return getattr(real, name)

        real, worker._pipe = worker._pipe, Suspended()
        pool.step(np.zeros((1, 1), np.float32))
        assert len(polls) >= 2 and max(polls) <= 1.0
    finally:
        pool.close()


# ------------------------------------------------------------ 14: two sweeps at once


def test_a_run_that_another_sweep_began_first_is_waited_for(tmp_path, monkeypatch):

    from maxinforl.experiments import launch

    out = tmp_path / "run"
    out.mkdir()
    code = f"import pathlib, sys; sys.exit(0 if pathlib.Path({str(out / 'done')!r}).exists() else 2)"
    job = launch.Job("one", (sys.executable, "-c", code), out, tmp_path / "logs/one.log")
    launcher, ends = launch.Local(1), []
    launcher.submit(job)
    launcher.poll()
    (out / "config.toml").touch()  # meanwhile the other one began
    busy = [True] * 3
    monkeypatch.setattr(launch, "in_use", lambda _: bool(busy) and busy.pop())
    deadline = time.monotonic() + 30
    while not ends and time.monotonic() < deadline:
        if not busy:
            (out / "done").touch()
        ends += launcher.poll()
        time.sleep(0.05)
    assert [done.code for done in ends] == [0]


# ------------------------------------------------------------ 16: tracebacks


def test_a_report_of_runs_beyond_each_others_end(tmp_path, capsys):
    from test_report import write_run

    write_run(tmp_path / "runs/a", "sac")  # finished before the first evaluation of the other
    write_run(tmp_path / "runs/b", "maxinfo-sac")
    path = tmp_path / "runs/b/eval.csv"
    head, *rows = path.read_text().splitlines()
    late = [",".join([str(10_000_000 + i), str(10_000_000 + i), *row.split(",")[2:]]) for i, row in enumerate(rows)]
    path.write_text("\n".join([head, *late]) + "\n")
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()


def test_an_environment_that_comes_back_with_another_shape_ends_the_evaluation_with_a_sentence():
    from maxinforl.training.evaluate import Evaluator

    class Wider(Line):
        observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)

        def observe(self):
            return np.zeros(3, np.float32)

    class Breaks(Line):
        def step(self, action):
            raise OSError("lost")

    make_env = maxinforl.envs.make
    evaluator = Evaluator([make_env(Breaks())], 0, makers=[lambda: make_env(Wider())])
    evaluator.report_fault = lambda sentence: None
    with pytest.raises(RunFailed, match="other observations or actions"):
        evaluator(lambda obs: np.zeros((1, 1), np.float32), 0)


def test_an_exception_that_cannot_be_printed_is_named():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    class Breaks(Line):
        def step(self, action):
            raise Mute

    pool = maxinforl.envs.make_pool(Breaks())
    pool.reset()
    with pytest.raises(RunFailed, match="raised Mute"):
        pool.step(np.zeros((1, 1), np.float32))


# ------------------------------------------------------------ 17: silent changes


@pytest.mark.slow
def test_steps_that_were_edited_in_a_configuration_are_told(tmp_path, finished, capsys):

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "config.toml").read_text()
    edited = text.replace("steps = 20", "steps = 30").replace("eval_episodes = 1", "eval_episodes = 2")
    (run / "config.toml").write_text(edited)
    assert cli.main(["resume", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--eval-episodes 1 and not 2" in said and "--steps 20 and not 30" in said


# ------------------------------------------------------------ 18: terminals and links


def test_what_files_say_does_not_act_on_a_terminal(tmp_path, finished, capsys, monkeypatch):

    from maxinforl import terminal
    from maxinforl.errors import plain

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "config.toml").read_text().replace('"Pendulum-v1"', r'"Pendulum\u001b[2J-v1"')
    (run / "config.toml").write_text(text)
    for command in (["resume", str(run)], ["eval", str(run)], ["inspect", str(run)]):
        cli.main(command)
        said = capsys.readouterr()
        assert "\x1b[2J" not in said.out + said.err
    terminal.say("a\x1b[2Jb\x07")
    assert capsys.readouterr().out == "a\\x1b[2Jb\\x07\n"
    assert plain("a\nb\tc", keep="\n") == "a\nb\\tc"


def test_a_link_above_a_seed_is_not_followed(tmp_path, finished):
    from maxinforl.experiments.read_runs import read_run_logs

    seed = tmp_path / "runs/seed-0"
    seed.mkdir(parents=True)
    (seed / "eval.csv").write_bytes((finished / "eval.csv").read_bytes())
    (tmp_path / "runs/config.toml").symlink_to(finished / "config.toml")
    with pytest.raises(BadInput, match="symbolic link"):
        read_run_logs(seed)


def test_a_link_in_place_of_checkpoints_or_of_a_log_is_not_written_through(tmp_path):

    from maxinforl.experiments import launch

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run/checkpoints")
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="symbolic link"), store:
        store.save(1, {"weight": np.ones(3)}, None, {})
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "one.log").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(RunFailed, match="symbolic link"):
        launch.start(launch.Job("one", (sys.executable, "-c", "print(3)"), tmp_path, tmp_path / "one.log"))
    assert list((tmp_path / "elsewhere").iterdir()) == [] and (tmp_path / "mine.txt").read_text() == "mine"


# ------------------------------------------------------------ 19: a reader that goes away


@pytest.mark.slow
def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path):

    out = tmp_path / "run"
    small = ["--algo", "sac", "--env", "Pendulum-v1", "--steps", "40", "--learning-starts", "100", *TINY]
    command = [sys.executable, "-m", "maxinforl", "train", *small, "--eval-every", "5", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 0
    assert "nobody reads the output" in process.stderr.read()
    assert CheckpointStore(out / "checkpoints").steps() == [40]


# ------------------------------------------------------------ 20: exported policies


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, finished) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "numpy"
    assert cli.main(["export", str(finished), "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    "seals",
    [{}, {"/dev/zero": ""}, {"../x": ""}, {"weights.npz": "0"}, [], 3, None, {"weights.npz": 3, "policy.py": 3}],
    ids=str,
)
def test_a_bundle_that_was_changed_is_refused_with_a_value_error(tmp_path, bundle, seals):

    from maxinforl.runner import Policy, checksum

    copy = tmp_path / "numpy"
    shutil.copytree(bundle, copy)
    Policy(copy)
    contract = json.loads((copy / "contract.json").read_text())
    contract["sha256"] = contract["sha256"] | seals if isinstance(seals, dict) and len(seals) == 1 else seals
    contract.pop("checksum")
    (copy / "contract.json").write_text(json.dumps(contract | {"checksum": checksum(contract)}))
    assert isinstance(in_time(lambda: Policy(copy)), ValueError)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", "null", '{"format": 1}', "[" * 100_000])
def test_a_contract_that_is_none_is_refused_with_a_value_error(tmp_path, bundle, text):
    from maxinforl.runner import Policy

    copy = tmp_path / "numpy"
    shutil.copytree(bundle, copy)
    (copy / "contract.json").write_text(text)
    with pytest.raises(ValueError):
        Policy(copy)


# ------------------------------------------------------------ 21: rewards of one element


@pytest.mark.parametrize(
    "reward", [np.array([1.5]), np.array([[1.5]]), np.array(1.5), [1.5], (1.5,), np.float32(1.5)], ids=repr
)
@pytest.mark.filterwarnings("error")
def test_a_reward_may_be_an_array_of_one_number(reward):
    from maxinforl.envs.wrapper import number

    assert number(reward) == 1.5


@pytest.mark.parametrize(
    "reward", [np.array([1, 2]), np.array([]), [], [1, 2], None, "much", np.array(["a"]), [[1, 2]], {}], ids=repr
)
def test_what_is_no_number_is_no_reward(reward):
    from maxinforl.envs.wrapper import number

    with pytest.raises(RunFailed, match="not a number"):
        number(reward)


# ------------------------------------------------------------ 22: a replay shorter than an episode


def test_a_replay_shorter_than_an_episode_is_told_at_the_start(tmp_path):
    gym.register("Long-v0", Endless, max_episode_steps=500)
    agent = make("Long-v0", capacity=100, learning_starts=1000, eval_episodes=0, steps=600)
    with pytest.warns(
        UserWarning, match=r"an episode may have 500 steps, and the replay keeps 108 .* raise --capacity"
    ):
        agent.learn(600, out=tmp_path / "run", callback=lambda run, metrics: False)
