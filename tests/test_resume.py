"""Runs taken up again: what is repeated, what cannot be and is said, and who may do it."""

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import maxinforl
from maxinforl import cli, files, terminal
from maxinforl.envs import episode_seed, make_pool
from maxinforl.errors import BadInput, RunFailed
from maxinforl.experiments import figures
from maxinforl.replay import LAST, TRUNCATED, Replay
from maxinforl.spaces import read_spaces
from maxinforl.system import memory
from maxinforl.system.signals import STOPS, signals
from maxinforl.training import checkpoint, session, store
from maxinforl.training.arrays import agent_shapes
from maxinforl.training.compiled import make_trainer
from maxinforl.training.directory import clear, read_run
from maxinforl.training.lock import RunLock
from maxinforl.training.log import TensorBoard
from maxinforl.training.pictures import curve_picture
from maxinforl.training.session import Saved, SeedRun, Session, read_saved, restore
from maxinforl.training.store import CheckpointStore
from maxinforl.training.trainer import replay_bytes, tree_bytes
from test_run import FLAGS, Corridor, interrupted, make, metrics, same, saved_weights

IDLE = ["--algo", "sac", *FLAGS, "--eval-episodes", "0", "--learning-starts", "1000"]  # compiles in no time


class Drifting(Corridor):
    """Begins and ends as its seed says, and does what it likes in between."""

    def step(self, action):
        self.x += np.random.default_rng().normal()
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


class Uneven(Corridor):
    """The first episode of the first environment of seed 0 never ends."""

    def reset(self, *, seed=None, options=None):
        self.endless = seed == episode_seed(0, 0, 0)
        return super().reset(seed=seed)

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated and not self.endless, info


class Drawn(Corridor):
    """Counts the frames that it draws."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode, frames = "rgb_array", 0

    def __init__(self, render_mode=None):
        super().__init__()

    def render(self):
        Drawn.frames += 1
        return np.full((8, 8, 3), int(100 + 10 * self.x), np.uint8)


gym.register("Drifting-v0", lambda: Drifting())
gym.register("Uneven-v0", lambda: Uneven())
gym.register("Drawn-v0", lambda **kwargs: Drawn(**kwargs))


def broken_off(monkeypatch, arguments: list[str], out: Path, at: int = 45) -> Path:
    """A run that died at a step, with a checkpoint every 20."""
    with monkeypatch.context() as patch:
        interrupted(patch, at)
        with pytest.raises(MemoryError):
            cli.main(["train", *IDLE, *arguments, "--steps", "60", "--save-every", "20", "--out", str(out)])
    return out


def said(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


def lane_of(out: Path) -> Mapping[str, np.ndarray]:
    """The rows of a run's first environment in its newest checkpoint."""
    rows = CheckpointStore(out / "checkpoints").load().rows
    assert rows is not None
    return rows.lanes[0].columns


def make_trainer_like(out: Path):
    settings, strategy, _ = read_run(out)
    return make_trainer(strategy, [settings], settings.env, settings.steps)


def taken_up(directories: list[Path]):
    """The saved runs' actions, and the trainer and sentences once they are taken up."""
    saved = read_saved(directories)
    before = [c.state["host/action"] for c in saved.checkpoints]
    trainer = make_trainer(saved.strategy, saved.per_seed_settings, saved.settings.env, 60)
    sentences = restore(trainer, saved)
    assert trainer.action is not None
    return before, trainer, sentences, trainer.action


# ------------------------------------------------------------------ episodes that cannot be repeated


@pytest.mark.slow
def test_dynamics_that_do_not_follow_the_seed_are_found_by_what_they_lead_to(tmp_path, monkeypatch, capsys):
    out = broken_off(monkeypatch, ["--env", "Drifting-v0"], tmp_path / "run")
    open_age = lane_of(out)["age"][-1]
    assert open_age > 0  # an episode was under way
    assert cli.main(["resume", str(out)]) == 0
    text = said(capsys)
    assert "does not repeat an episode from its seed and actions" in text and "resuming" in text
    rows = lane_of(out)
    cut = [i for i in range(len(rows["end"]) - 1) if rows["end"][i] == TRUNCATED and rows["age"][i] == open_age - 1]
    assert cut and rows["end"][cut[0] + 1] == LAST


@pytest.mark.slow
def test_an_episode_longer_than_the_replay_begins_anew_and_is_said(tmp_path, monkeypatch, capsys):
    """Of three environments only the one whose first actions are gone; the other lanes go on as they were."""
    flags = ["--env", "Uneven-v0", "--num-envs", "3", "--capacity", "6"]
    out = broken_off(monkeypatch, flags, tmp_path / "run")
    (before,), trainer, sentences, action = taken_up([out])
    assert len(sentences) == 1 and "longer than the 10 rows" in sentences[0] and "raise --capacity" in sentences[0]
    pool, replay = trainer.pools[0], trainer.state.replay
    assert pool.episodes.tolist() == [1, 1, 1] and int(replay.age[0, int(replay.head[0]) % replay.rows]) == 0
    assert int(replay.end[0, (int(replay.head[0]) - 1) % replay.rows]) == LAST
    assert np.array_equal(action[1:], before[1:])
    assert np.array_equal(action[0], np.array(trainer.program.next_action(trainer.state, True))[0])
    assert cli.main(["resume", str(out)]) == 0
    assert "counts as truncated" in said(capsys)


@pytest.mark.slow
def test_a_seed_that_begins_anew_leaves_the_others_alone(tmp_path, monkeypatch):
    """And acts at random before learning starts."""
    broken_off(monkeypatch, ["--env", "Uneven-v0", "--seeds", "0-1", "--capacity", "20"], tmp_path / "runs")
    before, trainer, sentences, action = taken_up([tmp_path / "runs/seed-0", tmp_path / "runs/seed-1"])
    assert len(sentences) == 1 and "longer than the 28 rows" in sentences[0]
    assert np.array_equal(action[1], before[1]) and trainer.pools[1].episodes.tolist() == [3]
    uniform, greedy = (np.array(trainer.program.next_action(trainer.state, u))[0] for u in (True, False))
    assert np.array_equal(action[0], uniform) and not np.array_equal(uniform, greedy)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["first", "common"])
def test_seeds_without_a_step_in_common_start_again(tmp_path, monkeypatch, capsys, lost):
    """Killed between the first checkpoints of two seeds, or with the only step that both had gone."""
    flags = ["--env", "Corridor-v0", "--seeds", "0-1", "--keep", "2"]
    whole, out = tmp_path / "whole", tmp_path / "runs"
    done = ["train", *IDLE, *flags, "--steps", "60", "--save-every", "20", "--out", str(whole)]
    assert cli.main(done) == 0
    broken_off(monkeypatch, flags, out, at=25 if lost == "first" else 45)
    for step in (20,) if lost == "first" else (20, 40):
        seed = 1 if lost == "first" or step == 40 else 0
        shutil.rmtree(out / f"seed-{seed}/checkpoints/step-{step:09d}")
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 0
    assert "seed-0 has no checkpoint of a step that all seeds have one of: starting again from step 0" in said(capsys)
    for seed in ("seed-0", "seed-1"):
        assert same(saved_weights(whole / seed), saved_weights(out / seed))
        assert metrics(whole / seed) == metrics(out / seed)
        assert CheckpointStore(out / seed / "checkpoints").steps() == [40, 60]


@pytest.mark.parametrize("workers", [False, True])
def test_only_the_last_frame_of_a_replayed_episode_is_drawn(workers):
    if workers:
        pool = make_pool("pixels/pendulum-hanging", image_size=16, workers=True)
        seen = [pool.reset(), *(pool.step(np.full((1, 1), a, np.float32)).obs for a in (0.5, -1.0, 1.0))]
        past = [np.array([[0.5], [-1.0], [1.0]], np.float32)]
        assert np.array_equal(pool.restore(np.array([0]), past), seen[-1])
        return pool.close()
    pool = make_pool("pixels/Drawn-v0", image_size=8)
    pool.reset()
    actions = np.linspace(-0.5, 0.5, 9, dtype=np.float32)[:, None]
    last = [pool.step(a[None]) for a in actions][-1]
    Drawn.frames = 0
    assert np.array_equal(pool.restore(np.array([0]), [actions]), last.obs)
    assert Drawn.frames == 2  # of the reset and of the end
    assert pool._length == [9] and pool._return[0] == pytest.approx(float(last.reward[0]), abs=100)


# ------------------------------------------------------------------ from Python


@pytest.mark.slow
def test_a_run_on_ones_own_environment_resumes_exactly_from_python(tmp_path, monkeypatch, capsys):
    build = lambda: maxinforl.make(
        "sac",
        Corridor,
        save_every=20,
        eval_every=30,
        eval_episodes=2,
        log_every=20,
        batch_size=16,
        set={"base.hidden": (16, 16)},
    )
    build().learn(70, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted(patch, 55)
        with pytest.raises(MemoryError):
            build().learn(70, out=tmp_path / "broken")
    assert cli.main(["resume", str(tmp_path / "broken")]) == 2
    sentence = capsys.readouterr().err
    assert f"maxinforl.resume('{tmp_path / 'broken'}', env=...)" in sentence and sentence.count("\n") == 1
    with pytest.raises(BadInput, match="pass it as resume"):
        maxinforl.resume(tmp_path / "broken")
    with pytest.raises(BadInput, match="other observations or actions"):
        maxinforl.resume(tmp_path / "broken", env="Pendulum-v1")
    agent = maxinforl.resume(tmp_path / "broken", env=lambda: Corridor())
    assert agent.trainer is not None and agent.trainer.step == 70 and agent.evaluations
    assert (tmp_path / "whole/eval.csv").read_bytes() == (tmp_path / "broken/eval.csv").read_bytes()
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "broken")
    assert same(saved_weights(tmp_path / "whole"), saved_weights(tmp_path / "broken"))
    again = maxinforl.resume(tmp_path / "broken", env=lambda: Corridor())  # finished
    assert np.array_equal(
        again.predict(np.zeros(2), deterministic=True)[0], agent.predict(np.zeros(2), None, None, True)[0]
    )
    with pytest.raises(BadInput, match="holds no run"):
        maxinforl.resume(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["saved", "loaded run", "second directory"])
def test_an_agent_that_had_learned_is_there_from_the_first_step(tmp_path, monkeypatch, how):
    """Killed before a checkpoint was due, it goes on with what it knew and not with what its seed would give."""
    first = make("sac", save_every=1000, eval_every=15).learn(30, out=tmp_path / "first")
    first.save(tmp_path / "saved")

    def go_on(out: str) -> None:
        if how == "second directory":
            agent = make("sac", save_every=1000, eval_every=15).learn(30)
        else:
            agent = maxinforl.load(tmp_path / ("saved" if how == "saved" else "first"))
        agent.learn(40, out=tmp_path / out)

    go_on("whole")
    with monkeypatch.context() as patch:
        interrupted(patch, 55 if how == "second directory" else 25)
        with pytest.raises(MemoryError):
            go_on("broken")
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert same(saved_weights(tmp_path / "whole"), saved_weights(tmp_path / "broken"))
    assert (tmp_path / "whole/eval.csv").read_bytes() == (tmp_path / "broken/eval.csv").read_bytes()
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "broken")


def test_what_schedules_plan_for_is_kept_before_the_first_checkpoint(tmp_path, monkeypatch):
    agent = maxinforl.make("sac", "Corridor-v0", total_steps=500, learning_starts=1000, eval_episodes=0)
    with monkeypatch.context() as patch:
        interrupted(patch, 5)
        with pytest.raises(MemoryError):
            agent.learn(10, out=tmp_path / "run")
    assert read_run(tmp_path / "run")[2]["planned"] == 500
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    assert int(CheckpointStore(tmp_path / "run/checkpoints").load().state["clock/total"]) == 500


def test_a_directory_that_another_process_is_opening_is_left_alone(tmp_path):
    agent, out = make("sac", eval_episodes=0), tmp_path / "run"
    out.mkdir()
    with RunLock(out), pytest.raises(BadInput, match="in use by"):
        agent.learn(10, out=out)
    assert [path.name for path in out.iterdir()] == ["lock.json"]
    make("sac", learning_starts=1000, eval_episodes=0).learn(1, out=out)  # a lock alone is no run


def test_evaluations_come_as_often_as_learn_was_told(tmp_path):
    agent = make("sac", learning_starts=1000, eval_every=40).learn(40, eval_every=10, out=tmp_path / "run")
    assert [step for step, _ in agent.evaluations] == [0, 10, 20, 30, 40]
    assert read_run(tmp_path / "run")[0].eval_every == 10


def test_learn_holds_its_directory_and_nobody_clears_it_meanwhile(tmp_path, monkeypatch, capsys):
    out, train, met = tmp_path / "run", Session.train, []

    def during(self, last):
        with pytest.raises(BadInput, match=f"in use by pid {os.getpid()}"):
            RunLock(out).__enter__()
        met.append(cli.main(["train", *IDLE, "--env", "Corridor-v0", "--out", str(out), "--overwrite"]))
        return train(self, last)

    monkeypatch.setattr(Session, "train", during)
    make("sac", learning_starts=1000, eval_episodes=0).learn(20, out=out)
    assert met == [2] and "in use by" in capsys.readouterr().err
    assert CheckpointStore(out / "checkpoints").load().step == 20
    with RunLock(out):
        pass


# ------------------------------------------------------------------ what a checkpoint was made with


def edited(out: Path, old: str, new: str) -> None:
    text = (out / "config.toml").read_text()
    assert old in text
    (out / "config.toml").write_text(text.replace(old, new))


def test_a_configuration_that_is_not_the_checkpoints_is_said_or_refused(tmp_path, monkeypatch, capsys):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    edited(out, "gamma = 0.99", "gamma = 0.5")
    sentence = "the checkpoint at step 40 was made with base.gamma 0.99 and not 0.5"
    with pytest.warns(UserWarning, match=sentence):
        maxinforl.load(out)
    edited(out, "num_envs = 1", "num_envs = 2")
    assert cli.main(["resume", str(out)]) == 2
    refused = capsys.readouterr().err
    assert "--num-envs 1 and not 2" in refused and "restore its config.toml" in refused and refused.count("\n") == 1
    edited(out, "num_envs = 2", "num_envs = 1")
    assert cli.main(["resume", str(out)]) == 0
    assert sentence in said(capsys)
    assert cli.main(["resume", str(out)]) == 0 and CheckpointStore(out / "checkpoints").load().meta["base.gamma"] == 0.5


@pytest.mark.filterwarnings("ignore:the checkpoint at step 40 was made with")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden = [\n    16,\n    16,\n]", "hidden = [16, 100_000_000_000]"),
        ("hidden = [\n    16,\n    16,\n]", "hidden = [16, -1]"),
        ('kind = "ActorCritic"', 'kind = "Plain"'),
    ],
)
def test_a_configuration_that_makes_no_agent_or_a_huge_one_is_one_sentence(tmp_path, monkeypatch, capsys, old, new):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    edited(out, old, new)
    if "Plain" in new:  # whose settings are fewer
        text = (out / "config.toml").read_text()
        (out / "config.toml").write_text(text[: text.index(new)] + new + "\n")
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(BadInput):
        maxinforl.load(out)


def test_surroundings_that_decide_the_numbers_are_recorded_and_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("NPROC", "3")
    monkeypatch.setenv("XLA_FLAGS", "")
    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": np.zeros(1)}, None, {})
    found = store.platform_info()
    assert (found["XLA threads"], found["backend"], found["XLA_FLAGS"]) == (3, "cpu", "") and found["mujoco"]
    assert CheckpointStore(tmp_path).load().drift == ()
    monkeypatch.setenv("NPROC", "2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_other")
    threads, flags = CheckpointStore(tmp_path).load().drift
    assert "saved with XLA threads 3 and resumed with 2" in threads
    assert "saved with XLA_FLAGS nothing and resumed with --xla_other" in flags


# ------------------------------------------------------------------ while a run is taken up


def test_a_hang_while_a_run_is_taken_up_is_watched_too(tmp_path, monkeypatch):
    out, active = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run"), []

    class Watch:
        def __init__(self, seconds, callers):
            self.callers = callers

        def __enter__(self):
            active.append(self.callers)

        def __exit__(self, *_):
            active.pop()

    def hangs(trainer, saved):
        assert active and list(active[0]) == list(trainer.pools)
        return restore(trainer, saved)

    monkeypatch.setattr(session, "Watchdog", Watch)
    monkeypatch.setattr(session, "restore", hangs)
    assert cli.main(["resume", str(out)]) == 0


@pytest.mark.slow
def test_what_was_loaded_is_let_go_before_training_goes_on(tmp_path, monkeypatch):
    broken_off(monkeypatch, ["--env", "Corridor-v0", "--seeds", "0-1"], tmp_path / "runs")
    saved: Saved = read_saved([tmp_path / "runs/seed-0", tmp_path / "runs/seed-1"])
    held = [weakref.ref(c.rows.lanes[0].columns["obs"].base) for c in saved.checkpoints if c.rows]
    trainer = make_trainer(saved.strategy, saved.per_seed_settings, saved.settings.env, 60)
    fresh = weakref.ref(trainer.state.replay.obs)
    restore(trainer, saved)
    gc.collect()
    assert len(held) == 2 and not any(ref() is not None for ref in held) and fresh() is None
    assert saved.step == 40 and saved.checkpoints == []


def test_memory_is_asked_for_once_and_before_any_is_taken(tmp_path, monkeypatch, capsys):
    """What the replay takes is no longer free: to count it again would refuse a run that fits."""
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    settings, strategy, table = read_run(out)
    needed = replay_bytes(settings, settings.steps, spaces := read_spaces(table["spaces"]))
    needed += tree_bytes(agent_shapes(strategy, spaces.spec(settings)))
    loaded, load = [], CheckpointStore.load
    monkeypatch.setattr(CheckpointStore, "load", lambda self, *a, **k: (loaded.append(1), load(self, *a, **k))[1])
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    assert cli.main(["resume", str(out)]) == 2 and not loaded
    assert "the replay needs" in capsys.readouterr().err
    monkeypatch.setattr(memory, "available_memory", lambda: needed if loaded else 2 * needed)
    assert cli.main(["resume", str(out)]) == 0 and loaded


def test_a_replay_is_made_anew_a_column_at_a_time(tmp_path, monkeypatch):
    """At most one column is held twice, beside those that are done."""
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    rows, held = CheckpointStore(out / "checkpoints").load().rows, []
    assert rows is not None
    blank, array = make_trainer_like(out).state.replay, checkpoint.jnp.array
    columns = [weakref.ref(rows.lanes[0].columns[name].base) for name in checkpoint.COLUMNS]
    count = lambda *a: (held.append(sum(ref() is not None for ref in columns)), array(*a))[1]
    monkeypatch.setattr(checkpoint.jnp, "array", count)
    checkpoint.rebuilt(blank, rows)
    assert held[-len(columns) :] == [4, 3, 2, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eval.csv", "metrics.jsonl"])
def test_a_log_that_is_not_what_the_checkpoint_saw_is_said(tmp_path, monkeypatch, capsys, name):
    flags = ["--env", "Corridor-v0", "--log-every", "10", "--eval-episodes", "1", "--eval-every", "10"]
    out = broken_off(monkeypatch, flags, tmp_path / "run")
    text = (out / name).read_text()
    whole = shutil.copytree(out, tmp_path / "whole")
    (out / name).write_text("".join(line for i, line in enumerate(text.splitlines(keepends=True)) if i != 2))
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 0
    assert f"{out / name} is not what it was at step 40: lines of it were changed or lost" in said(capsys)
    assert cli.main(["resume", str(whole)]) == 0
    assert "is not what it was" not in said(capsys)


def test_what_a_later_version_adds_is_no_change(tmp_path, monkeypatch):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    settings, strategy, _ = read_run(out)
    saved = CheckpointStore(out / "checkpoints").load(rows=False)
    meta = {k: v for k, v in saved.meta.items() if k not in ("base.gamma", "--capacity")}
    assert checkpoint.changed_since(replace(saved, meta=meta), settings, strategy) == []
    with pytest.raises(BadInput, match="--capacity 7"):
        checkpoint.changed_since(replace(saved, meta=meta | {"--capacity": 7}), settings, strategy)


def test_the_pause_for_checkpoints_is_all_of_it(tmp_path, monkeypatch):
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *a: (time.sleep(0.2), save(*a))[1])
    make("sac", learning_starts=1000, eval_episodes=0, save_every=10, log_every=10).learn(20, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["time/checkpoint_wait"] >= 0.2 for line in lines] == [False, True]


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign"])
def test_damaged_states_are_one_sentence(tmp_path, monkeypatch, capsys, damage):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0", "--record-states"], tmp_path / "run")
    path = out / "states.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "foreign": b"PK\x03\x04"}[damage])
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 2
    sentence = capsys.readouterr().err
    assert str(path) in sentence and sentence.count("\n") == 1 and "remove it" in sentence
    path.unlink()
    assert cli.main(["resume", str(out)]) == 0


# ------------------------------------------------------------------ pictures and films

FILMED = ["--env", "Drawn-v0", "--video", "--eval-episodes", "1", "--eval-every", "60"]


def picture_of(chunk) -> str | None:
    """Which kind of picture begins with these bytes."""
    start = bytes(memoryview(chunk)[:12])
    return "phase.png" if start.startswith(b"\x89PNG") else ".mp4" if b"ftyp" in start else None


@pytest.mark.parametrize("name", ["curve.png", "phase.png", "videos"])
def test_nothing_is_written_through_a_link_in_a_run(tmp_path, monkeypatch, capsys, name):
    out, outside = broken_off(monkeypatch, FILMED, tmp_path / "run"), tmp_path / "outside"
    outside.mkdir() if name == "videos" else outside.write_text("untouched")
    (out / name).symlink_to(outside)
    assert cli.main(["resume", str(out)]) == 2
    sentence = capsys.readouterr().err
    assert f"{out / name} is a symbolic link" in sentence and sentence.count("\n") == 1
    assert not list(outside.iterdir()) if name == "videos" else outside.read_text() == "untouched"
    assert CheckpointStore(out / "checkpoints").steps()[-1] == 60  # before anything was drawn


def test_a_seed_that_is_a_link_is_refused_and_left_alone(tmp_path, monkeypatch, capsys):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0", "--seeds", "0-1"], tmp_path / "runs")
    (out / "seed-1").rename(tmp_path / "outside")
    (out / "seed-1").symlink_to(tmp_path / "outside")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "outside").rglob("*")}
    assert cli.main(["resume", str(out)]) == 2
    assert "seed-1 is a symbolic link" in capsys.readouterr().err
    clear(out)
    assert not any(out.iterdir())
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "outside").rglob("*")}


def test_tensorboard_logs_follow_no_link(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "outside").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "outside")
    with pytest.raises(BadInput, match="symbolic link"):
        TensorBoard(tmp_path)
    assert not any((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("kind", ["phase.png", ".mp4"])
def test_a_disk_that_is_full_when_pictures_are_written_is_one_sentence(tmp_path, monkeypatch, capsys, kind):
    write = files.atomic._write_all

    def full(file, chunk):
        if picture_of(chunk) == kind:
            raise OSError(errno.ENOSPC, "no space")
        write(file, chunk)

    out = broken_off(monkeypatch, FILMED, tmp_path / "run")
    monkeypatch.setattr(files.atomic, "_write_all", full)
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 3
    sentence = capsys.readouterr().err
    assert "the disk is full" in sentence and sentence.count("\n") == 1
    assert CheckpointStore(out / "checkpoints").steps()[-1] == 60


# ------------------------------------------------------------------ signals

STUCK = """
import ctypes, sys, threading
from maxinforl.system.signals import signals
from maxinforl.training.store import CheckpointStore
from maxinforl import files

def compiling():  # native code that never comes back, as XLA's compiler for a while
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def writing():
    files.atomic.crash_point = lambda name: threading.Event().wait()
    CheckpointStore(sys.argv[2]).save(1, {}, None, {})

with signals(ends_process=True) as asked:
    print("ready", flush=True)
    {"compiling": compiling, "writing": writing}[sys.argv[1]]()
"""


@pytest.mark.parametrize("where", ["compiling", "writing"])
def test_a_second_signal_ends_the_process_at_once(tmp_path, where):
    process = subprocess.Popen([sys.executable, "-c", STUCK, where, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(10) == 75
    finally:
        process.kill()
        process.stdout.close()


FORKING = """
import os, signal, time
from maxinforl.system.signals import signals

def forked(ignore):
    if os.fork() == 0:
        if ignore:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        os._exit(0)

with signals(ends_process=True) as asked:
    forked(ignore=False)
    forked(ignore=True)
    print("ready", flush=True)
    while not asked():
        time.sleep(0.01)
    time.sleep(0.5)  # a signal that is heard twice ends the process here
print("left", flush=True)
"""


def test_children_neither_repeat_a_signal_nor_hold_up_the_end():
    """Ctrl-C goes to the whole group; one of the children lives on."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKING], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    try:
        assert process.wait(20) == 0 and process.stdout.readline() == "left\n"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


@pytest.mark.parametrize("where", ["describe", "restore", "restored_run"])
def test_a_signal_while_a_run_is_made_ready_leaves_it_as_it_was(tmp_path, monkeypatch, capsys, where):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    room = terminal if where == "describe" else session
    inner = getattr(room, where)
    with monkeypatch.context() as patch:
        patch.setattr(room, where, lambda *a: (os.kill(os.getpid(), signal.SIGTERM), inner(*a))[1])
        assert cli.main(["resume", str(out)]) == 75
    assert (
        "stopped at the checkpoint of step 40: continue with" in said(capsys)
        and CheckpointStore(out / "checkpoints").steps()[-1] == 40
    )
    assert cli.main(["resume", str(out)]) == 0


def test_hours_change_without_being_asked_about(tmp_path, monkeypatch):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    assert cli.main(["resume", str(out), "--max-hours", "1", "--batch-size", "7"]) == 2
    assert cli.main(["resume", str(out), "--max-hours", "1"]) == 0
    assert read_run(out)[0].max_hours == 1


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_before_or_after_training_is_no_traceback(tmp_path, monkeypatch, capsys, number):
    before = signal.getsignal(signal.SIGTERM)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored
    monkeypatch.setattr(terminal, "resume", lambda *a: (os.kill(os.getpid(), number), time.sleep(5)))
    assert cli.main(["resume", str(tmp_path)]) == 75 and capsys.readouterr().err.count("\n") == 1
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGINT, interrupt)


def test_a_signal_while_a_run_is_closed_does_not_undo_it(tmp_path, monkeypatch):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    inner = SeedRun.close
    monkeypatch.setattr(SeedRun, "close", lambda self: (os.kill(os.getpid(), signal.SIGTERM), inner(self))[1])
    assert cli.main(["resume", str(out)]) == 0
    assert CheckpointStore(out / "checkpoints").steps()[-1] == 60


def test_in_ones_own_process_a_second_signal_only_interrupts():
    before = signal.getsignal(signal.SIGTERM)
    with signals() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_signal_asks_and_leaves_no_thread_or_handle_behind():
    count = len(os.listdir("/proc/self/fd"))
    with signals(ends_process=True) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
    assert len(os.listdir("/proc/self/fd")) == count and signal.set_wakeup_fd(-1) == -1


# ------------------------------------------------------------------ what a file may ask for


def forget() -> None:
    sys.modules.pop("evil_module", None)
    gym.registry.pop("Evil-v0", None)


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A run whose environment is in a module beside it, which says when it is imported."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    text = "import gymnasium as gym\nfrom test_run import Corridor\nopen({!r}, 'a').close()\n"
    text += "gym.register('Evil-v0', lambda: Corridor())\n"
    (tmp_path / "evil_module.py").write_text(text.format(str(tmp_path / "imported")))
    out = broken_off(monkeypatch, ["--env", "evil_module:Evil-v0"], tmp_path / "run")
    (tmp_path / "imported").unlink()
    forget()
    yield out
    forget()


@pytest.mark.filterwarnings("ignore:the checkpoint at step 40 was made with")
def test_no_file_has_a_module_imported(hostile, tmp_path, capsys):
    imported, named, run = tmp_path / "imported", ["--env", "evil_module:Evil-v0"], str(hostile)
    saved, bundle = str(tmp_path / "saved"), str(tmp_path / "bundle")
    maxinforl.load(hostile).save(saved)
    train = ["train", "--config", str(hostile / "config.toml"), "--out", str(tmp_path / "again")]
    for arguments in (["resume", run], ["eval", run], ["eval", saved], train):
        assert cli.main(arguments) == 2
        sentence = capsys.readouterr().err
        assert "would import a module" in sentence and "--env" in sentence and sentence.count("\n") == 1
    for learn in (lambda: maxinforl.resume(run), lambda: maxinforl.load(run).learn(1), maxinforl.load(run).evaluate):
        with pytest.raises(BadInput, match="would import a module"):
            learn()
    assert cli.main(["eval", run, "--env", "other:Evil-v0"]) == 2
    for arguments in (
        ["inspect", run],
        ["report", run, "--out", str(tmp_path / "r.html")],
        ["export", run, "--out", bundle],
    ):
        assert cli.main(arguments) == 0
    assert not imported.exists() and "evil_module" not in sys.modules
    assert cli.main(["eval", run, "--episodes", "1", *named]) == 0 and imported.exists()
    assert maxinforl.load(run, env=named[1]).evaluate(1).returns.shape == (1,)
    assert cli.main(["resume", run, *named]) == 0
    assert CheckpointStore(hostile / "checkpoints").steps()[-1] == 60


def test_names_with_brackets_are_printed_as_they_are(tmp_path, monkeypatch, capsys):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "d[" / "b]")
    edited(out, 'algo = "sac"', 'algo = "[/x]$$"')
    shutil.rmtree(out / "checkpoints")
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 0
    printed = said(capsys)
    assert "[/x]$$ on Corridor-v0" in printed and f"results in {out}" in printed
    assert cli.main(["eval", str(out)]) == 0
    assert "[/x]$$ on Corridor-v0" in said(capsys)


# ------------------------------------------------------------------ paths that cannot be used


def locked(monkeypatch, *paths: Path) -> None:
    """Directories that the system lets nobody look into; as root, permissions alone would not."""

    def guard(call):
        def asked(path, *args, **kwargs):
            at = path if isinstance(path, (str, Path)) else ""
            if any(inner in (Path(at), *Path(at).parents) and Path(at) != inner for inner in paths):
                raise PermissionError(errno.EACCES, "Permission denied", str(at))
            if call.__name__ in ("scandir", "listdir") and Path(at) in paths:
                raise PermissionError(errno.EACCES, "Permission denied", str(at))
            return call(path, *args, **kwargs)

        return asked

    for name in ("stat", "lstat", "open", "scandir", "listdir", "mkdir"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))


@pytest.mark.parametrize(
    "command",
    [["resume"], ["eval"], ["inspect"], ["export"], ["train", *IDLE, "--out"], ["report"]],
    ids=lambda c: c[0],
)
def test_a_directory_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch, capsys, command):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        locked(patch, out)
        assert cli.main([*command, str(out)]) == 2
    sentence = capsys.readouterr().err
    assert str(out) in sentence and "permission denied" in sentence and sentence.count("\n") == 1


def test_a_run_that_cannot_be_read_does_not_end_a_report(tmp_path, monkeypatch):
    for name in ("good", "locked"):
        broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "runs" / name)
    with monkeypatch.context() as patch:
        locked(patch, tmp_path / "runs/locked")
        assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html")]) == 0
    assert f"{tmp_path / 'runs/locked'}" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/x", "a" * 300, "b/" + "a" * 300])
def test_a_path_that_no_run_can_have_is_one_sentence(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["train", "--env", "Corridor-v0", *IDLE, "--steps", "5", "--out"],
        ["resume"],
        ["eval"],
        ["inspect"],
    ):
        assert cli.main([*arguments, out]) == 2
        sentence = capsys.readouterr().err
        assert out[:10] in sentence and sentence.count("\n") == 1


@pytest.mark.parametrize("where", ["config.toml/x.html", "config.toml/x/y.html", "a" * 300 + ".html"])
def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, capsys, where):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    capsys.readouterr()
    assert cli.main(["report", str(out), "--out", str(out / where)]) in (2, 3)
    sentence = capsys.readouterr().err
    assert str(out) in sentence and sentence.count("\n") == 1
    with pytest.raises(RunFailed, match="cannot be written"):
        figures.save(figures.canvas()[0], out / "config.toml/figure.png")


@pytest.mark.parametrize(("where", "code"), [("read_saved", 3), ("holds_run", 2)])
def test_an_error_of_the_system_is_one_sentence(tmp_path, monkeypatch, capsys, where, code):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    capsys.readouterr()

    def fails(*_):
        raise OSError(errno.EMFILE, "Too many open files", str(out / "eval.csv"))

    monkeypatch.setattr(terminal, where, fails)
    assert cli.main(["resume", str(out)]) == code
    assert capsys.readouterr().err == f"maxinforl: {out / 'eval.csv'} cannot be used: too many open files\n"


# ------------------------------------------------------------------ networks that do not fit


def test_networks_that_do_not_fit_are_refused_before_anything_is_taken(tmp_path, monkeypatch, capsys):
    huge = ["--set", "base.hidden=[60000,60000]"]
    assert cli.main(["train", "--env", "Corridor-v0", *IDLE, *huge, "--out", str(tmp_path / "huge")]) == 2
    assert "GB are free" in capsys.readouterr().err and not (tmp_path / "huge").exists()
    out = broken_off(monkeypatch, ["--env", "Corridor-v0"], tmp_path / "run")
    edited(out, "hidden = [\n    16,\n    16,\n]", "hidden = [60_000, 60_000]")
    shutil.rmtree(out / "checkpoints")
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 2
    sentence = capsys.readouterr().err
    assert "GB are free" in sentence and sentence.count("\n") == 1
    agent = maxinforl.make("sac", "Corridor-v0", set={"base.hidden": (60_000, 60_000)})
    for use in (lambda: agent.learn(1), lambda: agent.predict(np.zeros(2))):
        with pytest.raises(BadInput, match="GB are free"):
            use()


# ------------------------------------------------------------------ what is damaged


@pytest.mark.parametrize("flags", [[], ["--seeds", "0-1"]], ids=["alone", "together"])
def test_a_damaged_older_segment_costs_its_rows_and_not_the_run(tmp_path, monkeypatch, capsys, flags):
    out = broken_off(monkeypatch, ["--env", "Corridor-v0", *flags], tmp_path / "run", at=58)
    first = out / "seed-0" if flags else out
    segment = first / "checkpoints/replay/segment-000000020.safetensors"
    segment.write_bytes(segment.read_bytes()[:-1] + b"\xff")
    saved = read_saved(sorted(out.glob("seed-*")) or [out])
    trainer = make_trainer(saved.strategy, saved.per_seed_settings, saved.settings.env, 60)
    rows = saved.checkpoints[0].rows
    assert rows is not None
    lane = rows.lanes[0]
    number = np.arange(lane.first, lane.head)[lane.columns["end"][:-1] != LAST]
    restore(trainer, saved)
    replay = trainer.state.replay
    starts, pushed = (np.array(part)[(0, 0) if flags else (0,)] for part in (replay.starts, replay.pushed))
    assert saved.step == 40 and lane.first > 10 and starts[:pushed].tolist() == number.tolist()
    assert maxinforl.load(first).settings.steps == 60  # the agent needs no segment
    assert cli.main(["resume", str(out)]) == 0
    text = said(capsys)
    assert f"continues without the {lane.first} oldest rows of its replay, and is no longer bit-identical" in text


def test_starts_whose_frames_were_lost_are_left_out():
    """Of a stack of three frames, none may be a row that a damaged segment held."""
    columns = {"obs": np.ones((8, 4, 4, 1), np.uint8), "action": np.ones((8, 1), np.float32)}
    columns |= {"reward": np.ones(8, np.float32), "end": np.zeros(8, np.uint8), "age": np.arange(8, dtype=np.int32)}
    blank = Replay.create(1, 40, (4, 4, 1), np.uint8, 1, stack=3)
    begun = checkpoint.rebuilt(blank, store.Rows(40, [store.Lane(0, dict(columns))]))
    cut = checkpoint.rebuilt(blank, store.Rows(40, [store.Lane(20, dict(columns))]))
    assert np.array(begun.starts)[0, :7].tolist() == [0, 1, 2, 3, 4, 5, 6] and int(begun.pushed[0]) == 7
    assert np.array(cut.starts)[0, :5].tolist() == [22, 23, 24, 25, 26] and int(cut.pushed[0]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("line", ["40,40,0", "x", "40,40,0,1.0,é,1.0,1.0,5.0,2", "\x00" * 9])
def test_a_damaged_evaluation_is_one_sentence(tmp_path, monkeypatch, capsys, line):
    flags = ["--env", "Corridor-v0", "--eval-episodes", "1", "--eval-every", "10"]
    out = broken_off(monkeypatch, flags, tmp_path / "run")
    path = out / "eval.csv"
    whole = path.read_text()
    path.write_text(whole.replace("\n30,", f"\n{line}\n30,"))
    capsys.readouterr()
    assert cli.main(["resume", str(out)]) == 2
    assert "eval.csv has a damaged line 5: correct or remove that line" in capsys.readouterr().err
    path.write_text(whole)
    damage, close = lambda: path.write_text(path.read_text().replace("\n30,", f"\n{line}\n30,")), SeedRun.close
    monkeypatch.setattr(SeedRun, "close", lambda self: (close(self), damage()))
    assert cli.main(["resume", str(out)]) == 0
    text = said(capsys)
    assert "left out a line that cannot be read (line 5:" in text and (out / "curve.png").exists()
    assert cli.main(["resume", str(out)]) == 0 and "is finished" in said(capsys)


def test_evaluations_that_are_not_finite_are_not_drawn(tmp_path):
    curve_picture(tmp_path, "sac", "x", np.array([[0.0, 1.0, 0.0], [1.0, np.nan, 0.0], [2.0, np.inf, 1.0]]))
    assert (tmp_path / "curve.png").exists()
