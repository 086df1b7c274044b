"""Prior data: files of every layout, a second replay, its share of every batch, and a run that resumes with it."""

import sys
from dataclasses import replace

import gymnasium as gym
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import maxinforl
from core_helpers import SPEC, filled, named, small, train_state
from maxinforl import BadInput, Prior, cli, load_prior
from maxinforl.core.program import Program
from maxinforl.prior import NPZ, as_replay, from_replay, in_units
from maxinforl.replay import TERMINATED, TRUNCATED, Replay
from maxinforl.spaces import Spaces
from maxinforl.training.directory import read_run
from maxinforl.transition import Transition
from test_run import FLAGS, interrupted, make, metrics, same, saved_weights, weights

COLUMNS = [*NPZ]
UNIT = Box(-1, 1, (1,), np.float32)


def episodes(lengths=(4, 3, 5), ends=("truncated", "terminated", "truncated"), width=2, seed=0) -> Prior:
    """Random episodes that end in these ways."""
    rng = np.random.default_rng(seed)
    parts = {name: [] for name in COLUMNS}
    for length, end in zip(lengths, ends):
        obs = rng.normal(size=(length + 1, width)).astype(np.float32)
        last = np.arange(length) == length - 1
        rows = (obs[:-1], rng.uniform(-2, 2, (length, 1)), rng.normal(size=length), obs[1:])
        rows = (*rows, last & (end == "terminated"), last & (end == "truncated"))
        for name, value in zip(COLUMNS, rows):
            parts[name].append(value)
    return Prior(**{name: np.concatenate(column) for name, column in parts.items()})


def equal(a: Prior, b: Prior, but=()) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS if name not in but)


def split(prior: Prior) -> list[dict[str, np.ndarray]]:
    ended = np.flatnonzero(prior.ends)
    spans = [slice(a, b + 1) for a, b in zip([0, *(ended[:-1] + 1)], ended)]
    return [{name: getattr(prior, name)[span] for name in COLUMNS} for span in spans]


# ------------------------------------------------------------ files


def write_d4rl(path, prior, successors=True):
    with h5py.File(path, "w") as file:
        for ours, theirs in NPZ.items():
            if successors or ours != "next_obs":
                file[theirs] = getattr(prior, ours)


def write_minari(path, prior, order=None):
    with h5py.File(path, "w") as file:
        for k, e in enumerate(split(prior)):
            group = file.create_group(f"episode_{k}")
            obs = np.concatenate([e["obs"], e["next_obs"][-1:]])
            if order is None:
                group["observations"] = obs
            else:
                for name, columns in order.items():
                    group[f"observations/{name}"] = obs[:, columns]
            names = ("actions", "rewards", "terminations", "truncations")
            for name, ours in zip(names, ("action", "reward", "terminated", "truncated")):
                group[name] = e[ours]


def write_robomimic(path, prior, successors=True):
    with h5py.File(path, "w") as file:
        for k, e in enumerate(split(prior)):
            group = file.create_group(f"data/demo_{k}")
            for name, columns in (("b", slice(1, None)), ("a", slice(0, 1))):
                group[f"obs/{name}"] = e["obs"][:, columns]
                if successors:
                    group[f"next_obs/{name}"] = e["next_obs"][:, columns]
            group["actions"], group["rewards"] = e["action"], e["reward"]
            group["dones"] = e["terminated"] | e["truncated"]


def test_every_layout_gives_the_same_rows(tmp_path):
    prior = episodes(lengths=(4, 3) + (2,) * 10, ends=("truncated", "terminated") + ("truncated",) * 10)
    prior.save(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "c.npz", **{theirs: getattr(prior, ours) for ours, theirs in NPZ.items()})
    write_d4rl(tmp_path / "d.hdf5", prior)
    write_minari(tmp_path / "m.hdf5", prior)
    write_robomimic(tmp_path / "r.hdf5", prior)
    for name in ("a.npz", "c.npz", "d.hdf5", "m.hdf5"):
        assert equal(load_prior(tmp_path / name), prior), name
        assert load_prior(tmp_path / name).digest == prior.digest
    found = load_prior(tmp_path / "r.hdf5", obs_keys=("a", "b"))
    assert equal(found, prior, but=("terminated", "truncated"))
    assert not found.terminated.any()  # what `dones` means is not known
    assert np.array_equal(found.ends > 0, prior.ends > 0)
    for name in ("a.npz", "d.hdf5", "m.hdf5"):
        assert equal(load_prior(tmp_path / name, limit=7), Prior(*(getattr(prior, c)[:7] for c in COLUMNS)))


def test_d4rl_without_successors_drops_time_outs_and_keeps_terminals(tmp_path):
    prior = episodes()
    write_d4rl(tmp_path / "d.hdf5", prior, successors=False)
    found, kept = load_prior(tmp_path / "d.hdf5"), ~prior.truncated
    assert len(found) == 12 - 2 and not found.truncated.any()
    assert equal(found, Prior(*(getattr(prior, name)[kept] for name in COLUMNS)), but=("next_obs",))
    assert np.array_equal(found.next_obs[~found.terminated], prior.next_obs[kept & ~prior.terminated])
    assert found.ends.tolist() == [0, 0, TRUNCATED, 0, 0, TERMINATED, 0, 0, 0, TRUNCATED]
    write_robomimic(tmp_path / "r.hdf5", prior, successors=False)
    assert len(load_prior(tmp_path / "r.hdf5", obs_keys=("a", "b"))) == 12 - 3


def test_rewards_of_ones_own(tmp_path):
    prior = episodes()
    prior.save(tmp_path / "a.npz")
    found = load_prior(tmp_path / "a.npz", reward=lambda obs, action, next_obs: next_obs[:, 0] - action[:, 0])
    assert np.allclose(found.reward, prior.next_obs[:, 0] - prior.action[:, 0])
    with h5py.File(tmp_path / "r.hdf5", "w") as file:
        file["data/demo_0/obs"], file["data/demo_0/actions"] = prior.obs, prior.action
    with pytest.raises(BadInput, match="has no rewards: pass load_prior"):
        load_prior(tmp_path / "r.hdf5")
    assert len(load_prior(tmp_path / "r.hdf5", reward=lambda *_: np.zeros(11))) == 11


class Reach(gym.Env):
    """A goal-conditioned point, with a Dict of parts."""

    observation_space = Dict({"point": Box(-9, 9, (1,), np.float32), "goal": Box(-9, 9, (2,), np.float32)})
    action_space = Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return {"goal": np.ones(2, np.float32), "point": np.zeros(1, np.float32)}, {}

    def step(self, action):
        self.time += 1
        seen = {"goal": np.ones(2, np.float32), "point": np.asarray(action, np.float32)}
        return seen, 0.0, False, self.time >= 5, {}


@pytest.mark.parametrize("flip", [False, True])
def test_parts_of_a_file_come_in_the_order_of_the_environment(tmp_path, flip):
    prior = episodes(width=3)
    begins = next(iter(Reach.observation_space.spaces))
    point, goal = (slice(0, 1), slice(1, 3)) if begins == "point" else (slice(2, 3), slice(0, 2))
    order = {"goal": goal, "point": point}
    order = dict(reversed(order.items())) if flip else order
    write_minari(tmp_path / "m.hdf5", prior, order)
    agent = maxinforl.make(
        "sac", Reach, eval_episodes=0, batch_size=4, prior_data=tmp_path / "m.hdf5", set={"base.hidden": (8, 8)}
    )
    agent.learn(6)
    rows = agent.trainer.state.prior
    assert np.array_equal(from_replay(rows, UNIT).obs, prior.obs)
    with pytest.raises(BadInput, match="observations of the parts goal, point: name them in the environment's order"):
        load_prior(tmp_path / "m.hdf5")
    with pytest.raises(BadInput, match="and not 'nose'"):
        load_prior(tmp_path / "m.hdf5", obs_keys=("nose",))


def test_files_that_cannot_be_used_get_a_sentence(tmp_path, monkeypatch):
    prior = episodes()
    prior.save(tmp_path / "a.npz")
    plain = {theirs: getattr(prior, ours) for ours, theirs in NPZ.items()}
    wrong = {
        "lacks the array 'observations'": plain | {"observations": None},
        "lacks the array 'terminals' or 'terminations'": plain | {"terminals": None},
        "neither 'next_observations' nor 'timeouts'": plain | {"next_observations": None, "timeouts": None},
        "have 11 and 12 rows": plain | {"rewards": prior.reward[1:]},
        "action of the prior data is not finite in row 3": plain | {"actions": np.where(np.arange(12) == 3, np.nan, 0)},
        "terminated of the prior data must be true or false": plain | {"terminals": np.full(12, 0.5)},
        "a single number where an array of rows": plain | {"terminals": np.array(1.0)},
        "is not a plain array of numbers": plain | {"rewards": np.array(["a"] * 12)},
    }
    for sentence, arrays in wrong.items():
        np.savez(tmp_path / "w.npz", **{k: v for k, v in arrays.items() if v is not None})
        with pytest.raises(BadInput, match=sentence):
            load_prior(tmp_path / "w.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(BadInput, match=r"neither an .npz nor an HDF5 file"):
        load_prior(tmp_path / "text.npz")
    for path, sentence in ((tmp_path / "absent.npz", "does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(BadInput, match=sentence):
            load_prior(path)
    for options, sentence in (({"format": "csv"}, "unknown format"), ({"format": "minari"}, "is not of the format")):
        with pytest.raises(BadInput, match=sentence):
            load_prior(tmp_path / "a.npz", **options)
    with pytest.raises(BadInput, match="leave obs_keys= out"):
        load_prior(tmp_path / "a.npz", obs_keys=("a",))
    with pytest.raises(BadInput, match=r"is not the name of an .npz file"):
        prior.save(tmp_path / "a.txt")
    monkeypatch.setattr("maxinforl.prior_files.available_memory", lambda: 1000)
    write_minari(tmp_path / "m.hdf5", prior)
    for name in ("a.npz", "m.hdf5"):
        with pytest.raises(BadInput, match=r"needs .* GB of memory, and .* GB are free: use a smaller file"):
            load_prior(tmp_path / name)


def test_hdf5_needs_its_extra_and_reads_no_other_file(tmp_path, monkeypatch):
    write_d4rl(tmp_path / "d.hdf5", episodes())
    with h5py.File(tmp_path / "l.hdf5", "w") as file:
        for name in NPZ.values():
            file[name] = h5py.ExternalLink(str(tmp_path / "d.hdf5"), name)
    with pytest.raises(BadInput, match="is a link to elsewhere"):
        load_prior(tmp_path / "l.hdf5")
    with h5py.File(tmp_path / "l.hdf5", "w") as file:
        file["data"] = h5py.ExternalLink(str(tmp_path / "d.hdf5"), "/")
    with pytest.raises(BadInput, match="is a link to elsewhere"):
        load_prior(tmp_path / "l.hdf5")
    with h5py.File(tmp_path / "o.hdf5", "w") as file:
        file["other"] = np.zeros(3)
    with pytest.raises(BadInput, match="neither as D4RL"):
        load_prior(tmp_path / "o.hdf5")
    with h5py.File(tmp_path / "s.hdf5", "w") as file:
        file["data/demo_0/states"], file["data/demo_0/actions"] = np.zeros((3, 2)), np.zeros((3, 1))
    with pytest.raises(BadInput, match="only simulator states"):
        load_prior(tmp_path / "s.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BadInput, match=r"pip install 'maxinforl\[hdf5\]'"):
        load_prior(tmp_path / "d.hdf5")


# ------------------------------------------------------------ in an environment


def test_native_actions_come_back_after_rescaling():
    box, prior = Box(np.array([-2.0], np.float32), np.array([5.0], np.float32)), episodes()
    spaces = Spaces(Box(-9, 9, (2,), np.float32), box)
    unit = in_units(prior, spaces, "here")
    assert np.abs(unit.action).max() <= 1
    assert np.allclose(from_replay(as_replay(unit), box).action, prior.action, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"obs": np.zeros((12, 3)), "next_obs": np.zeros((12, 3))}, "observations of 3 numbers, and Corridor-v0 has 2"),
        ({"action": np.zeros((12, 2))}, "actions of 2 numbers, and Corridor-v0 has 1"),
        ({"action": np.full((12, 1), 2.5)}, "action of 2.5 in row 0 where Corridor-v0 allows -2 to 2"),
    ],
)
def test_data_of_another_environment_is_refused_by_make(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        make("sac", prior=replace(episodes(), **change))


def test_settings_of_prior_data_that_make_no_sense_are_refused(tmp_path):
    prior = episodes()
    prior.save(tmp_path / "a.npz")
    for given, sentence in (
        ({"prior_share": 0.5}, "and there is none: name a file with --prior-data"),
        ({"prior_data": tmp_path / "a.npz", "prior_share": 1.5}, "must be a share from 0 to 1"),
        ({"prior_data": tmp_path / "a.npz", "prior_share": 0.01}, "of a batch of 16 is no row"),
        ({"prior_data": tmp_path / "a.npz", "prior": prior}, "two sources"),
        ({"prior": "a.npz"}, "a file goes into prior_data="),
        ({"prior_data": tmp_path / "b.npz"}, "does not exist"),
    ):
        with pytest.raises(BadInput, match=sentence):
            make("sac", **given)
    with pytest.raises(BadInput, match="gives images"):
        maxinforl.make("drq", "pixels/pendulum-hanging", prior=prior, image_size=16)
    with pytest.raises(BadInput, match="holds no transition"):
        Prior(*(getattr(prior, name)[:0] for name in COLUMNS))


# ------------------------------------------------------------ a second replay


def live(prior: Prior) -> Replay:
    """The same episodes, stepped into a replay one by one."""
    replay = Replay.create(1, 40, prior.obs.shape[1:], jnp.float32, prior.action.shape[1])
    replay = replay.begin(jnp.asarray(prior.obs[:1]))
    add = jax.jit(lambda r, t: r.add(t))
    for i in range(len(prior)):
        cut = not prior.terminated[i] and prior.ends[i] > 0
        after = prior.obs[i + 1] if i + 1 < len(prior) else prior.obs[0]
        row = [prior.action[i], prior.reward[i], prior.terminated[i], cut, prior.next_obs[i], after, True]
        replay = add(replay, Transition(*(jnp.asarray(x)[None] for x in row)))
    return replay


@pytest.mark.parametrize("nstep", [1, 3, 9])
def test_returns_are_those_of_the_same_episodes_stepped_live(nstep):
    prior = episodes(lengths=(4, 3, 1, 5), ends=("truncated", "terminated", "terminated", "none"))
    one, two = as_replay(prior), live(prior)
    rows = [replay.starts[0, : len(prior)] for replay in (one, two)]
    assert np.array_equal(*rows)
    for a, b in zip(*(r.backup(jnp.zeros(len(prior), int), row, 0.9, nstep) for r, row in zip((one, two), rows))):
        assert np.allclose(a, b)
    for name in ("end", "age"):
        columns = [np.array(getattr(r, name))[0, : int(r.head[0])] for r in (one, two)]
        assert np.array_equal(*columns)


def test_terminal_rows_do_not_bootstrap_and_time_outs_do():
    prior = episodes()
    batch = as_replay(prior).sample(jax.random.key(0), (200,), 0.9, 3)
    of = {float(r): i for i, r in enumerate(prior.reward)}
    row = np.array([of[float(r)] for r in batch.one.reward])
    assert set(row) == set(range(12))
    assert np.array_equal(np.array(batch.one.discount) == 0, prior.terminated[row])
    assert np.allclose(batch.one.next_obs, prior.next_obs[row])
    reaches = np.isin(row, [4, 5, 6])  # the second episode's end, within three steps
    assert np.array_equal(np.array(batch.nstep.discount) == 0, reaches)
    assert np.allclose(np.array(batch.nstep.next_obs)[reaches], prior.next_obs[6])


def test_an_episode_ends_where_the_next_row_does_not_go_on():
    prior = episodes(lengths=(3, 3), ends=("none", "none"))
    assert prior.ends.tolist() == [0, 0, TRUNCATED, 0, 0, TRUNCATED]
    far = as_replay(prior).backup(jnp.zeros(1, int), jnp.array([1]), 1.0, 9)
    assert np.allclose(far.reward, prior.reward[1:3].sum()) and np.allclose(far.next_obs, prior.next_obs[2])


@pytest.mark.slow
def test_every_batch_has_exactly_its_share():
    rows = filled()
    marked = replace(from_replay(rows, UNIT), reward=np.full(12, 1e6))
    program = Program(small("sac"), SPEC, batch_size=8, updates=6, prior_rows=2)
    state = replace(train_state(program), prior=as_replay(marked))
    for i in range(program.rounds):
        batches, _ = program.sample_round(state, i)
        assert batches.action.shape[:2] == (6 // program.rounds, 8)
        assert (
            np.array(batches.one.reward)[:, :2] == 1e6
        ).all()  # first: imagined rows take the place of the last ones
        assert (np.array(batches.one.reward)[:, 2:] != 1e6).all()


def test_a_prior_that_copies_the_replay_leaves_the_distribution_of_batches():
    rows, size = filled(), 24_000
    copy = as_replay(from_replay(rows, UNIT))
    program = Program(small("sac"), SPEC, batch_size=size, prior_rows=size // 2)
    batches, _ = program.sample_round(replace(train_state(program), prior=copy), 0)
    plain, _ = Program(small("sac"), SPEC, batch_size=size).sample_round(train_state(program), 0)
    seen = [np.unique(np.array(b.one.reward), return_counts=True) for b in (batches, plain)]
    assert np.array_equal(seen[0][0], seen[1][0])
    spread = np.sqrt(size * (1 / 12) * (11 / 12))
    for _, counts in seen:
        assert np.abs(counts - size / 12).max() < 5 * spread
    halves = np.array(batches.one.reward)[0].reshape(2, -1)
    assert not np.array_equal(*halves)  # each is drawn for itself


def test_statistics_begin_with_those_of_the_prior_data():
    prior = episodes(lengths=(40, 30), ends=("truncated", "terminated"), width=SPEC.obs[0])
    prior = replace(prior, action=np.zeros((70, SPEC.action)))
    agent = named("sac")
    agent = replace(agent, base=replace(agent.base, normalize_observations=True, normalize_returns=True, gamma=0.9))
    program = Program(agent, SPEC, batch_size=8)
    seen = program.observe_prior(train_state(program).agent, as_replay(prior)).learner.observed
    sums, total = [], 0.0
    for reward, end in zip(prior.reward, prior.ends):
        total = 0.9 * total + reward
        sums.append(total)
        total = 0.0 if end else total
    assert np.allclose(seen.observations.mean, prior.obs.mean(0), atol=1e-4)
    assert np.allclose(seen.observations.var, prior.obs.var(0), atol=1e-3)
    assert np.allclose(seen.returns.moments.mean, np.mean(sums), atol=1e-4)
    assert np.allclose(seen.returns.peak, np.abs(sums).max(), atol=1e-4)
    two = Program(agent, SPEC, batch_size=8, seeds=2)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), train_state(program).agent)
    both = two.observe_prior(stacked, as_replay(prior)).learner.observed
    assert np.allclose(both.observations.mean, np.stack([seen.observations.mean] * 2))


# ------------------------------------------------------------ runs


@pytest.mark.slow
def test_no_share_is_the_agent_without_and_a_share_is_another(tmp_path):
    make("sac").learn(40).save_replay(tmp_path / "a.npz")
    none, zero, half = (
        weights(make("sac", seed=1, eval_episodes=0, **given).learn(30))
        for given in ({}, {"prior_data": tmp_path / "a.npz", "prior_share": 0.0}, {"prior_data": tmp_path / "a.npz"})
    )
    assert same(none, zero) and not same(none, half)


@pytest.mark.slow
def test_a_share_of_one_learns_from_the_prior_data_alone():
    program = Program(small("sac"), SPEC, batch_size=8, prior_rows=8)
    prior = replace(from_replay(filled(), UNIT), reward=np.full(12, 1e6))
    batches, _ = program.sample_round(replace(train_state(program), prior=as_replay(prior)), 0)
    assert batches.action.shape == (1, 8, SPEC.action) and (np.array(batches.one.reward) == 1e6).all()


@pytest.mark.slow
def test_prior_data_moves_to_the_limits_of_another_environment():
    prior = episodes(lengths=(20, 30), ends=("terminated", "truncated"))
    agent = make("sac", prior=prior, eval_episodes=0)
    agent.set_env(lambda: gym.wrappers.RescaleAction(gym.make("Corridor-v0"), -4.0, 4.0))
    assert np.allclose(agent.learn(5).trainer.state.prior.action[0, :20, 0], prior.action[:20, 0] / 4, atol=1e-6)
    agent.set_env(lambda: gym.wrappers.RescaleAction(gym.make("Corridor-v0"), -1.0, 1.0))
    with pytest.raises(BadInput, match="where custom allows -1 to 1"):
        agent.learn(5)


@pytest.mark.slow
def test_a_replay_that_is_saved_comes_back_as_prior_data(tmp_path):
    """From two environments and a ring that has wrapped, with ends of both kinds and open episodes."""
    agent = make("sac", num_envs=2, capacity=50, eval_episodes=0).learn(120)
    agent.save_replay(tmp_path / "a.npz")
    rows = from_replay(agent.trainer.state.replay, agent.action_space)
    assert int(agent.trainer.state.replay.popped.min()) > 0
    again = make("sac", prior_data=tmp_path / "a.npz", eval_episodes=0).learn(20)
    back = from_replay(again.trainer.state.prior, again.action_space)
    assert equal(back, rows, but=("action",)) and np.allclose(back.action, rows.action, atol=1e-6)
    assert rows.truncated.sum() > 2
    # the time is a part of the observation here, so successors can be checked
    step = np.round(13 * (rows.next_obs[:, 1] - rows.obs[:, 1]))
    assert (step == 1).all() and np.allclose(rows.next_obs[:, 0] - rows.obs[:, 0], 0.2 * rows.action[:, 0], atol=1e-5)
    timed_out = np.isclose(rows.next_obs[:, 1], 1.0) & ~rows.terminated
    assert timed_out.any() and rows.truncated[timed_out].all()
    with pytest.raises(BadInput, match="holds no transition yet"):
        make("sac").save_replay(tmp_path / "b.npz")


@pytest.mark.slow
def test_evaluation_episodes_are_saved_in_the_same_layout(tmp_path, capsys):
    make("sac").learn(20, out=tmp_path / "run")
    file = tmp_path / "demos.npz"
    assert cli.main(["eval", str(tmp_path / "run"), "--episodes", "3", "--save-episodes", str(file)]) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    prior, result = load_prior(file), maxinforl.load(tmp_path / "run").evaluate(3)
    played = split(prior)
    assert [len(e["reward"]) for e in played] == list(result.lengths)
    assert np.allclose([e["reward"].sum() for e in played], result.returns, atol=1e-4)
    assert np.allclose(prior.next_obs[:, 0] - prior.obs[:, 0], 0.2 * prior.action[:, 0], atol=1e-5)
    make("sac", prior_data=file, eval_episodes=0).learn(20)
    assert cli.main(["eval", str(tmp_path / "run"), "--save-episodes", "demos.txt"]) == 2
    assert "is not the name of an .npz file" in capsys.readouterr().err
    cut = maxinforl.load(tmp_path / "run")
    cut.settings = replace(cut.settings, eval_limit=4)
    with pytest.warns(UserWarning, match="cut after 4"):
        cut.evaluate(1, save_episodes=file)
    assert load_prior(file).truncated.tolist() == [False] * 3 + [True]


COMMAND = ["train", "--algo", "sac", "--env", "Corridor-v0", "--steps", "60", *FLAGS, "--save-every", "20"]
COMMAND += ["--eval-every", "30", "--log-every", "15", "--eval-episodes", "1"]


def whole_and_broken(command, tmp_path, monkeypatch):
    """The same run twice, the second killed between two checkpoints and resumed."""
    assert cli.main([*command, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        interrupted(patch, at=46)
        with pytest.raises(MemoryError):
            cli.main([*command, "--out", str(tmp_path / "broken")])
    assert cli.main(["resume", str(tmp_path / "broken")]) == 0


@pytest.fixture
def file(tmp_path):
    prior = episodes(lengths=(20, 30), ends=("terminated", "truncated"))
    prior.save(tmp_path / "prior.npz")
    return tmp_path / "prior.npz"


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        ["--num-envs", "2", "--set", "base.nstep=3"],
        ["--seeds", "3-4"],
        ["--algo", "maxinfo-sac", "--set", "base.normalize_observations=true", "--prior-share", "0.25"],
    ],
)
def test_resumed_equals_never_stopped(tmp_path, monkeypatch, file, extra):
    command = [*COMMAND, "--prior-data", str(file), *extra]
    whole_and_broken(command, tmp_path, monkeypatch)
    for seed in ("seed-3", "seed-4") if "--seeds" in extra else ("",):
        whole, broken = tmp_path / "whole" / seed, tmp_path / "broken" / seed
        assert metrics(whole) == metrics(broken)
        assert same(saved_weights(whole), saved_weights(broken))


@pytest.mark.slow
def test_the_compiled_loop_and_seeds_share_the_prior_data(tmp_path, monkeypatch):
    prior = episodes(lengths=(20, 30), ends=("terminated", "truncated"), width=3)
    prior.save(tmp_path / "p.npz")
    command = [*COMMAND, "--env", "jax/pendulum-hanging", "--prior-data", str(tmp_path / "p.npz"), "--seeds", "3-4"]
    whole_and_broken(command, tmp_path, monkeypatch)
    for seed in ("seed-3", "seed-4"):
        assert same(saved_weights(tmp_path / "whole" / seed), saved_weights(tmp_path / "broken" / seed))
    alone = maxinforl.make(
        "sac", "jax/pendulum-hanging", seed=4, batch_size=16, eval_episodes=0, set={"base.hidden": (16, 16)},
        prior_data=tmp_path / "p.npz", steps=60, loop="host",
    )  # fmt: skip
    together, one = saved_weights(tmp_path / "whole/seed-4"), weights(alone.learn(60))
    floats = [k for k, v in one.items() if v.dtype == np.float32]
    assert floats and all(np.allclose(together[f"agent/{k}"], one[k], atol=1e-4) for k in floats)


@pytest.mark.slow
def test_a_run_goes_on_only_with_the_data_it_began_with(tmp_path, monkeypatch, capsys, file):
    command = [*COMMAND, "--prior-data", str(file), "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        interrupted(patch, at=25)
        with pytest.raises(MemoryError):
            cli.main(command)
    assert f"50% of every batch from {file}" in capsys.readouterr().out
    settings, _, table = read_run(tmp_path / "run")
    assert (settings.prior_data, settings.prior_share) == (str(file), 0.5)
    assert table["prior"] == load_prior(file).digest
    kept = file.read_bytes()
    episodes(seed=1).save(file)
    assert cli.main(["resume", str(tmp_path / "run")]) == 2
    assert f"was trained with other prior data than {file} holds now" in capsys.readouterr().err
    config = tmp_path / "run/config.toml"
    written = config.read_text()
    config.write_text(written.replace(table["prior"], load_prior(file).digest))  # the checkpoint knows it, too
    assert cli.main(["resume", str(tmp_path / "run")]) == 2
    config.write_text(written)
    file.unlink()
    assert cli.main(["resume", str(tmp_path / "run")]) == 2
    assert "does not exist" in capsys.readouterr().err
    file.write_bytes(kept)
    assert cli.main(["resume", str(tmp_path / "run"), "--prior-data", "other.npz"]) == 2
    assert "cannot change within a run" in capsys.readouterr().err
    assert cli.main(["resume", str(tmp_path / "run")]) == 0


def test_a_run_with_data_of_no_file_is_resumed_with_that_data(tmp_path, monkeypatch):
    prior = episodes(lengths=(20, 30), ends=("terminated", "truncated"))
    options = {"save_every": 20, "steps": 40, "eval_episodes": 0, "prior": prior}
    whole = make("sac", **options).learn(40, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted(patch, at=25)
        with pytest.raises(MemoryError):
            make("sac", **options).learn(40, out=tmp_path / "run")
    with pytest.raises(BadInput, match="pass what was given before as prior="):
        maxinforl.resume(tmp_path / "run")
    with pytest.raises(BadInput, match="other prior data than the prior data that was passed"):
        maxinforl.resume(tmp_path / "run", prior=episodes(seed=1))
    assert same(weights(maxinforl.resume(tmp_path / "run", prior=prior)), weights(whole))
    again = maxinforl.load(tmp_path / "whole", env="Corridor-v0", prior=prior).learn(5)
    assert len(from_replay(again.trainer.state.prior, UNIT)) == 50
