"""Runs that meet trouble: faults and numbers that are not finite, and settings that change on the way."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import maxinforl
from core_helpers import transition
from maxinforl import cli, files
from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.program import Program
from maxinforl.core.types import Spec
from maxinforl.envs import episode_seed
from maxinforl.envs.fault import finite
from maxinforl.errors import BadInput, RunFailed
from maxinforl.replay import Replay
from maxinforl.settings import Settings
from maxinforl.training import nonfinite, overrides
from maxinforl.training import trainer as host_loop
from maxinforl.training.arrays import agent_arrays
from maxinforl.training.directory import read_run
from maxinforl.training.log import Window
from maxinforl.training.session import SeedRun, Session
from maxinforl.training.store import CheckpointStore
from test_faults import Brittle
from test_run import FLAGS, interrupted, metrics, same, saved_weights

pytestmark = pytest.mark.slow

BAD_EPISODES = [episode_seed(0, lane, e) for lane in range(2) for e in (3, 8, 11, 15)]
gym.register("Brittle-v0", lambda: Brittle(BAD_EPISODES, "nan_observation"))
gym.register("Hanging-v0", lambda: Brittle([episode_seed(0, 0, 2)], "hang"))
SHORT = ["--algo", "sac", *FLAGS, "--eval-episodes", "0"]
IDLE = ["--learning-starts", "1000"]  # only acts at random, which compiles in no time


# ------------------------------------------------------------------ environment faults in a run


@pytest.mark.slow
def test_resumed_equals_never_stopped_across_faults(tmp_path, monkeypatch, capsys):
    command = ["train", *SHORT, "--env", "Brittle-v0", "--num-envs", "2", "--steps", "120", "--log-every", "20"]
    command += [
        "--save-every",
        "2",
        "--keep",
        "40",
        "--capacity",
        "1000",
    ]  # a checkpoint before, at and after each fault
    assert cli.main([*command, "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    assert said.count("the observation is nan at entry 0; its episode was cut") == 6
    assert metrics(tmp_path / "whole")[-1]["rollout/faults"] == 6
    with monkeypatch.context() as patch:
        interrupted(patch, at=96)
        with pytest.raises(MemoryError):
            cli.main([*command, "--out", str(tmp_path / "broken")])
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "broken")
    assert same(saved_weights(tmp_path / "whole"), saved_weights(tmp_path / "broken"))
    assert same(replay_of(tmp_path / "whole"), replay_of(tmp_path / "broken"))


def replay_of(directory: Path) -> dict[str, np.ndarray]:
    rows = CheckpointStore(directory / "checkpoints").load().rows
    assert rows is not None
    return {f"{lane}/{name}": column for lane, part in enumerate(rows.lanes) for name, column in part.columns.items()}


@pytest.mark.slow
def test_a_saved_row_whose_episode_a_fault_cut_is_saved_again(tmp_path):
    """The end of the row before the head changes after the head has passed it."""
    agent = maxinforl.make(
        "sac", "Brittle-v0", set={"base.hidden": (8, 8)}, batch_size=4, eval_episodes=0, save_every=1
    )
    with pytest.warns(UserWarning, match="fault 1 of at most 10"):
        agent.learn(30, out=tmp_path / "run")
    assert agent.trainer is not None
    replay, saved = agent.trainer.state.replay, replay_of(tmp_path / "run")
    head = int(replay.head[0])
    np.testing.assert_array_equal(saved["0/end"], np.array(replay.end)[0, : head + 1])
    cut = [i for i in range(head) if saved["0/end"][i] == 1 and saved["0/age"][i] == 1]
    assert len(cut) == 1 and saved["0/end"][cut[0] + 1] == 3


def test_a_fault_that_ends_the_run_is_not_in_its_checkpoint(tmp_path):
    """The step did not happen: neither its faults nor the episodes that ended in it."""
    given = {"num_envs": 2, "learning_starts": 1000, "eval_episodes": 0, "save_every": 1000}
    agent = maxinforl.make("sac", "Brittle-v0", max_faults=1, **given)  # both lanes break at once
    with pytest.raises(RunFailed), pytest.warns(UserWarning, match="fault 1 of at most 1"):
        agent.learn(100, out=tmp_path / "run")
    state = CheckpointStore(tmp_path / "run/checkpoints").load().state
    assert state["host/faults"] == 0 and agent.trainer.pools[0].finished == []


HANGS = """
import sys
import test_endurance
from maxinforl import cli

sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_hang_ends_the_run_with_code_3_and_the_run_goes_on_later(tmp_path):
    """No workers: nothing can end the call, so the process ends."""
    out = tmp_path / "run"
    flags = ["train", *SHORT, *IDLE, "--env", "Hanging-v0", "--steps", "40", "--save-every", "5", "--env-timeout", "2"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", HANGS, *flags, "--out", str(out)], capture_output=True, text=True, env=env, timeout=120
    )
    assert ran.returncode == 3 and ran.stderr.count("\n") == 1
    assert "episode 2, step 3 has hung for 2 s" in ran.stderr and "maxinforl resume" in ran.stderr
    assert CheckpointStore(out / "checkpoints").load().step == 10
    gym.register("Hanging-v0", lambda: Brittle())
    assert cli.main(["resume", str(out)]) == 0


# ------------------------------------------------------------------ numbers that are not finite


def test_a_loss_that_is_not_finite_names_its_tensor_and_keeps_its_batch(tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", *SHORT, "--env", "Corridor-v0", "--steps", "60", "--save-every", "1", "--learning-starts", "20"]
    assert cli.main([*command, "--set", "base.lr=1e30", "--out", str(out)]) == 3
    said = capsys.readouterr().err
    (path,) = out.glob("bad-batch-*.safetensors")
    batch, keys, facts = nonfinite.load_bad_batch(path)
    step, good = facts["step"], CheckpointStore(out / "checkpoints").load().step
    assert path.name == f"bad-batch-{step}.safetensors" and 20 <= step < 30 and good == step - 1
    assert f"{facts['tensor']} is {facts['value']} at step {step}" in said and str(path) in said
    assert f"checkpoint at step {good} is kept" in said and said.count("\n") == 1
    assert all(np.isfinite(v).all() for v in saved_weights(out).values() if v.dtype == np.float32)
    assert batch.obs.shape == (1, 1, 16, 2) and batch.nstep is None and keys.shape[0] == 1
    again = nonfinite.replay_bad_batch(maxinforl.load(out), path)
    if facts["tensor"].startswith("train/"):
        assert str(again[facts["tensor"]]) == facts["value"]
    files.save_arrays(tmp_path / "other", {"x": np.zeros(3)})
    with pytest.raises(BadInput, match="lacks"):
        nonfinite.load_bad_batch(tmp_path / "other")


@pytest.mark.parametrize("ask", ["evaluation", "window"])
def test_whoever_asks_for_what_a_step_led_to_is_told_that_it_went_wrong(ask):
    """The dispatch of a step is not waited for, so that its own call cannot tell."""
    agent = maxinforl.make("sac", "Corridor-v0", set={"base.hidden": (8, 8), "base.lr": 1e30}, batch_size=4)
    trainer = agent._trainer(60)

    def live() -> None:
        while trainer.step < 60:
            trainer.advance()
            getattr(trainer.seeds[0], ask)

    with pytest.raises(nonfinite.NotFinite) as caught:
        live()
    assert caught.value.step == trainer.step < 60


def odd(monkeypatch, at: int) -> None:
    """One metric is NaN at one step, and nothing else ever is."""
    learn = Program.learn

    def with_odd(self: Program, s: Any) -> Any:
        s, measured = learn(self, s)
        return s, measured | {"train/odd": jnp.where(s.clock.step == at, jnp.nan, 0.0)}

    monkeypatch.setattr(Program, "learn", with_odd)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["host", "compiled"])
def test_one_bad_number_is_told_once_and_spoils_nothing_else(monkeypatch, kind):
    odd(monkeypatch, at=10)
    changes = {"set": {"base.hidden": (8, 8)}, "batch_size": 8, "eval_episodes": 0, "loop": kind}
    agent = maxinforl.make("sac", "jax/pendulum-hanging", **changes)
    with pytest.raises(nonfinite.NotFinite, match="train/odd is nan at step 10"):
        agent.learn(20)
    agent.learn(20)
    assert agent.trainer is not None and np.isfinite(agent.trainer.state.replay.obs).all()
    assert all(np.isfinite(leaf).all() for leaf in agent_arrays(agent.trainer.state.agent).values())


def test_who_stops_at_a_bad_step_is_told_of_it(monkeypatch):
    """Without a directory nothing is saved, which would have looked."""
    odd(monkeypatch, at=10)
    agent = maxinforl.make("sac", "Corridor-v0", set={"base.hidden": (8, 8)}, batch_size=4, eval_episodes=0)
    trainer = agent._trainer(20)
    session = Session(trainer, [SeedRun(trainer.seeds[0])], stop_requested=lambda: trainer.step >= 10)
    with pytest.raises(nonfinite.NotFinite, match="train/odd is nan at step 10"):
        session.train(20)


@pytest.mark.parametrize("size", [3, 1000])
def test_finite_is_not_confused_by_large_and_small_numbers(size):
    with np.errstate(all="raise"):
        for value, expected in ((3e38, True), (1e-40, True), (-0.0, True), (np.inf, False), (np.nan, False)):
            array = np.zeros(size, np.float32)
            array[-1] = value
            assert finite(array) is expected


def test_what_is_logged_and_kept_does_not_depend_on_when_metrics_are_read(tmp_path, monkeypatch):
    command = ["train", *SHORT, "--env", "Corridor-v0", "--steps", "60", "--save-every", "35", "--log-every", "20"]
    kept = []
    for unread in (1, 7, 1000):
        monkeypatch.setattr(host_loop, "UNREAD", unread)
        out = tmp_path / str(unread)
        assert cli.main([*command, "--out", str(out)]) == 0
        windows = {k: v for k, v in CheckpointStore(out / "checkpoints").load(35).state.items() if "window" in k}
        assert windows["window/numbers"][0] == 15
        kept.append((metrics(out), windows))
    assert all(lines == kept[0][0] and same(windows, kept[0][1]) for lines, windows in kept)


class Witness:
    """An agent that learns nothing but which actions it was given, in the order of its updates."""

    base = ActorCritic(policy_delay=2, gamma=0.9, nstep=2)

    def observe(self, state, *seen):
        return state

    def init(self, key, spec):
        return {"seen": jnp.zeros((6, 4)), "weight": jnp.ones((2, 2))}

    def preprocess(self, batch, key):
        return batch

    def critic_step(self, state, batch, key, now):
        return state | {"seen": state["seen"].at[now.update].set(batch.action[:, 0])}, {}, None

    def actor_step(self, state, batch, latents, key, now):
        return state, {"train/loss": batch.action.sum()}

    def model_step(self, state, latents):
        return state, {}


def small_program(rows=32, agent=None, **options):
    """Ten transitions of known actions, and a step to learn from them."""
    program = Program(agent or Witness(), Spec((2,), 1), 4, **options)
    replay = Replay.create(1, rows, (2,), jnp.float32, 1)
    for i in range(10):
        replay = replay.add(transition(1, i, program.spec, action=np.array([[i / 10]], np.float32)))
    seed = jnp.uint32(3)
    if program.seeds:
        seed = jnp.arange(program.seeds, dtype=jnp.uint32)
        replay = jax.tree.map(lambda x: jnp.stack([x] * program.seeds), replay)
    return program, program.init(seed, replay, 100)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [2, 6])
def test_the_batches_drawn_again_are_those_that_were_learned_from(updates):
    program, state = small_program(updates=updates)
    state, _ = program.learn(state)
    again = nonfinite.drawn(program, state)["batch/action"]
    assert again.shape == (updates // 2, 2, 4, 1)
    np.testing.assert_array_equal(again.reshape(updates, 4), state.agent["seen"][:updates])
    assert len(np.unique(again)) > 3


def test_the_first_bad_tensor_is_named_in_order():
    program, state = small_program()
    program.metric_names[:] = ["train/actor_loss", "train/critic_loss"]
    fine, nan = np.zeros(2, np.float32), np.array([0.0, np.nan], np.float32)
    action = np.zeros((1, 1), np.float32)
    nonfinite.checked(program, state, fine[None], action)
    with pytest.raises(nonfinite.NotFinite, match="train/critic_loss is nan at step 0"):
        nonfinite.checked(program, state, nan[None], action)
    with pytest.raises(nonfinite.NotFinite, match="the next action is inf"):
        nonfinite.checked(program, state, fine[None], action + np.inf)
    poisoned = jax.tree.map(lambda x: x * jnp.nan if x.dtype == jnp.float32 else x, state.replay)
    bad_rows = type(state)(state.agent, poisoned, state.clock, state.seed)
    with pytest.raises(nonfinite.NotFinite, match="batch/obs is nan"):
        nonfinite.checked(program, bad_rows, nan[None], action)
    leaves = {f"agent/{k}": np.array(v) for k, v in state.agent.items()}
    nonfinite.check_weights(program, state, leaves)
    weight = state.agent["weight"].at[1, 1].set(jnp.nan)
    bad_weight = type(state)(state.agent | {"weight": weight}, state.replay, state.clock, state.seed)
    with pytest.raises(nonfinite.NotFinite, match="agent/weight is nan"):
        nonfinite.check_weights(program, bad_weight, leaves | {"agent/weight": np.array(weight)})


@pytest.mark.parametrize("rows", [32, 16])
def test_a_step_in_the_middle_of_a_chunk_gets_the_batch_it_drew(rows):
    """As in the compiled loop, where the host sees the metrics of many steps at once; unless rows were overwritten."""
    program, state = small_program(rows, updates=2)
    program.metric_names[:] = ["train/loss"]
    states, values = [], np.zeros((6, 1), np.float32)
    for i in range(6):
        ends = {"truncated": np.array([i % 2 == 1])}
        state = program.insert(state, transition(1, i, program.spec, action=np.array([[i]], np.float32), **ends))
        states.append(state)
    values[2:] = np.nan
    with pytest.raises(nonfinite.NotFinite, match="train/loss is nan at step 3") as caught:
        nonfinite.checked(program, state, values, np.zeros((1, 1), np.float32))
    expected = nonfinite.drawn(program, states[2]) if rows == 32 else {}
    assert expected.keys() == caught.value.arrays.keys()
    assert all(np.array_equal(expected[k], caught.value.arrays[k]) for k in expected)


def test_one_seed_of_several_is_the_one_that_is_named():
    program, states = small_program(seeds=3)
    program.metric_names[:] = ["train/critic_loss"]
    values = np.array([[0.0], [0.0], [np.inf]], np.float32)
    with pytest.raises(nonfinite.NotFinite, match="train/critic_loss is inf") as caught:
        nonfinite.checked(program, states, values[:, None], np.zeros((3, 1, 1), np.float32))
    expected = nonfinite.drawn(program, nonfinite.alone(states, program, 2))
    assert all(np.array_equal(expected[k], caught.value.arrays[k]) for k in expected)
    assert not np.array_equal(expected["key"], nonfinite.drawn(program, nonfinite.alone(states, program, 1))["key"])


class Doomed(Witness):
    """One of its moments overflows at update 5, and nothing that it reports or does shows it."""

    def init(self, key, spec):
        return {"weight": jnp.ones((2, 2)), "moment": jnp.ones(3)}

    def critic_step(self, state, batch, key, now):
        return state | {"moment": state["moment"].at[1].set(jnp.where(now.update >= 5, jnp.inf, 1.0))}, {}, None

    def act(self, state, obs, key, now, explore, noise):
        return jnp.zeros((1, 1))


@pytest.mark.parametrize("seeds", [None, 2])
def test_a_weight_that_no_loss_shows_is_found_named_and_its_batch_kept(seeds):
    program, state = small_program(agent=Doomed(), seeds=seeds)
    step = transition(1, 3, program.spec)
    step = step if seeds is None else jax.tree.map(lambda x: np.stack([x] * seeds), step)
    for _ in range(15):
        state, action, values = program.step(state, step)
        metrics = nonfinite.checked(program, state, np.array(values)[..., None, :], np.array(action))
    assert metrics.shape[-1] == 1 and not np.isfinite(state.agent["moment"]).all()
    assert np.isfinite(action).all()
    state, action, values = program.step(state, step)
    assert np.isnan(action).all()  # all that the host looks at
    with pytest.raises(nonfinite.NotFinite, match="agent/moment is inf at step 16") as caught:
        nonfinite.checked(program, state, np.array(values)[..., None, :], np.array(action))
    assert caught.value.arrays["batch/action"].shape == (1, 1, 4, 1) and program.traces["step"] == 1


def test_means_are_over_the_updates_that_were_made():
    window, names = Window(), ["train/loss", "train/skipped"]
    for loss, skipped in ((2.0, 0.0), (0.0, 1.0), (2.0, 0.5)):  # half of two rounds that would have been 4 each
        window.add(np.array([loss, skipped], np.float32))
    assert window.drain(names) == window_line(pytest.approx(4.0 / 1.5), 0.5, 1.5)
    window.add(np.array([0.0, 1.0], np.float32))
    assert "train/loss" not in window.drain(names)


def window_line(loss: Any, skipped: float, total: float) -> dict[str, float]:
    return {"rollout/episodes": 0.0, "train/loss": loss, "train/skipped": skipped, "train/skipped_total": total}


def test_skipped_updates_are_counted_over_the_whole_run():
    window, names = Window(), ["train/loss", "train/skipped"]
    totals = []
    for _ in range(2):
        for skipped in (0.0, 1.0, 0.5):
            window.add(np.array([1.0, skipped], np.float32))
        totals.append(window.drain(names)["train/skipped_total"])
        again = Window()
        again.restore(window.arrays())
        window = again
    assert totals == [1.5, 3.0]


# ------------------------------------------------------------------ settings that change


def test_resume_lists_differences_and_changes_them_only_when_told(tmp_path, capsys):
    out = str(tmp_path / "run")
    begun = ["train", *SHORT, *IDLE, "--env", "Corridor-v0", "--steps", "20", "--set", "base.gamma=0.9", "--out", out]
    assert cli.main(begun) == 0
    before = (tmp_path / "run/config.toml").read_bytes()
    assert cli.main(["resume", out, "--steps", "20", "--env", "Corridor-v0"]) == 0
    asked = ["resume", out, "--steps", "45", "--set", "base.lr=1e-5", "--save-every", "10"]
    capsys.readouterr()
    assert cli.main(asked) == 2
    said = capsys.readouterr().err
    assert "--steps is 20 and would become 45" in said and "base.lr=1e-05" in said and "--override" in said
    assert said.count("\n") == 1 and (tmp_path / "run/config.toml").read_bytes() == before
    assert cli.main([*asked, "--override"]) == 0
    settings, strategy, table = read_run(tmp_path / "run")
    assert (settings.steps, settings.save_every, strategy.base.lr, strategy.base.gamma) == (45, 10, 1e-5, 0.9)
    assert [(h["step"], h["setting"], h["before"]) for h in table["history"]][:1] == [(20, "steps", "20")]
    saved = CheckpointStore(tmp_path / "run/checkpoints").load()
    assert saved.step == 45 and int(saved.state["clock/total"]) == 45 and saved.rows is not None
    assert saved.rows.lanes[0].first == 0  # nothing was overwritten: the replay grew
    assert "is finished" not in capsys.readouterr().out
    assert cli.main(["resume", out]) == 0
    assert "is finished" in capsys.readouterr().out


FIXED = [
    ({"env": "Pendulum-v1"}, "--env is Corridor-v0 and would become Pendulum-v1"),
    ({"algo": "redq"}, "cannot change within a run"),
    ({"num_envs": 4}, "--num-envs"),
    ({"seed": 1}, "--seed"),
    ({"loop": "host"}, "--loop"),
    ({"capacity": 7}, "--capacity"),
    ({"image_size": 7}, "--image-size"),
    ({"frame_stack": 7}, "--frame-stack"),
]


@pytest.mark.parametrize(("given", "words"), FIXED, ids=[next(iter(g)) for g, _ in FIXED])
def test_what_cannot_change_within_a_run_is_refused(given, words):
    with pytest.raises(BadInput, match=words):
        overrides.changes(Settings(algo="sac", env="Corridor-v0"), given)


def test_a_change_of_shape_is_refused_before_anything_is_written(tmp_path, capsys):
    agent = maxinforl.make("sac", "Corridor-v0", learning_starts=1000, eval_episodes=0)
    agent.learn(1, out=tmp_path / "run")
    before = (tmp_path / "run/config.toml").read_bytes()
    assert cli.main(["resume", str(tmp_path / "run"), "--set", "base.hidden=[9,9]", "--override"]) == 2
    assert "shape of the agent" in capsys.readouterr().err
    assert (tmp_path / "run/config.toml").read_bytes() == before


def test_a_window_of_other_metrics_begins_anew():
    """As after `resume --on-nan skip --override`, which adds a metric in the middle of a window."""
    window = Window()
    window.add(np.ones(2, np.float32))
    window.add(np.full(3, 4.0, np.float32))
    window.add(np.full(3, 6.0, np.float32))
    assert window.count == 2 and window.total.tolist() == [10.0, 10.0, 10.0]


# ------------------------------------------------------------------ files


def test_a_run_whose_checkpoints_are_a_link_is_refused(tmp_path, capsys):
    maxinforl.make("sac", "Corridor-v0", learning_starts=1000, eval_episodes=0).learn(1, out=tmp_path / "run")
    (tmp_path / "run/checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere")
    assert cli.main(["resume", str(tmp_path / "run")]) == 2
    assert "symbolic link" in capsys.readouterr().err
    with pytest.raises(BadInput, match="symbolic link"):
        maxinforl.load(tmp_path / "run")
