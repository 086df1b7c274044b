"""Replay: closed forms, uniformity, growth, and a property test against a naive list of transitions."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_helpers import quick, same, shrink, transition
from maxinforl.algorithms import algorithm
from maxinforl.core.program import Program
from maxinforl.core.types import Spec, clock
from maxinforl.core.update import TrainState
from maxinforl.replay import Replay, row_bytes
from maxinforl.transition import Transition

KEY = jax.random.key(0)
LINE = Spec((1,), 1)


# ------------------------------------------------------------ closed forms


def line(rewards, ends=(), rows=16, gamma=0.5):
    """A lane whose observations are 0, 1, 2, ... (100, 101, ... after an end) and whose actions name the start."""
    replay = Replay.create(1, rows, (1,), jnp.float32, 1).begin(jnp.zeros((1, 1)))
    add = adder()
    at = 0.0
    for i, reward in enumerate(rewards):
        end = dict(ends).get(i, "")
        first = 100.0 * (i + 1) if end else at + 1
        one = lambda x, dtype=np.float32: np.asarray([x], dtype)
        t = Transition(
            one([at]),
            one(reward),
            one("term" in end, bool),
            one("trunc" in end, bool),
            one([at + 1]),
            one([first]),
            one(True, bool),
        )
        replay, at = add(replay, t), first
    return replay


@cache
def adder():
    return quick(lambda r, t: r.add(t))


@cache
def sampler(size, gamma, nstep):
    return quick(lambda r, k: r.sample(k, (size,), gamma, nstep))


def starting_at(replay, action, nstep, gamma=0.5):
    """(reward, discount, next observation) of the n-step backup of the transition with that action."""
    batch = sampler(64, gamma, nstep)(replay, KEY)
    backup = batch.task
    found = np.flatnonzero(np.asarray(batch.action)[:, 0] == action)
    assert len(found), "never sampled"
    i = found[0]
    return float(backup.reward[i]), float(backup.discount[i]), float(backup.next_obs[i, 0])


def test_three_steps_inside_an_episode():
    """R = r0 + g r1 + g**2 r2, bootstrap g**3 at the third successor."""
    assert starting_at(line([1, 2, 4, 8, 16]), 0.0, 3) == (1 + 1 + 1, 0.125, 3.0)


def test_a_termination_ends_the_return_and_the_bootstrap():
    """Terminated at the second transition."""
    assert starting_at(line([1, 2, 4, 8], [(1, "term")]), 0.0, 3) == (2.0, 0.0, 2.0)


def test_a_truncation_ends_the_return_and_bootstraps():
    """The shortened gamma**2 at the true last observation, not at the new episode's first."""
    assert starting_at(line([1, 2, 4, 8], [(1, "trunc")]), 0.0, 3) == (2.0, 0.25, 2.0)


def test_the_newest_transition_ends_the_return_and_bootstraps():
    """Nothing beyond what was seen."""
    assert starting_at(line([1, 2]), 0.0, 3) == (2.0, 0.25, 2.0)
    assert starting_at(line([1, 2]), 1.0, 3) == (2.0, 0.5, 2.0)


def test_the_newest_transition_after_a_full_turn():
    """The edge the authors' code misses, the write pointer back at the first row."""
    replay = line([1] * 8, rows=8)
    assert int(replay.head[0]) % 8 == 0
    assert starting_at(replay, 6.0, 3) == (1.5, 0.25, 8.0)
    assert starting_at(replay, 7.0, 3) == (1.0, 0.5, 8.0)


def test_one_step_is_the_transition_itself():
    """n = 1 reproduces the stored step."""
    replay = line([1, 2, 4], [(0, "term"), (1, "trunc")])
    assert starting_at(replay, 0.0, 1) == (1.0, 0.0, 1.0)
    assert starting_at(replay, 100.0, 1) == (2.0, 0.5, 101.0)
    assert starting_at(replay, 200.0, 1) == (4.0, 0.5, 201.0)


def test_both_flags_count_as_a_termination():
    assert starting_at(line([1, 2], [(0, "term trunc")]), 0.0, 1) == (1.0, 0.0, 1.0)


def test_the_endless_backup_bootstraps_whatever_ended():
    """What non-episodic intrinsic critics use."""
    batch = sampler(16, 0.5, 1)(line([1, 2], [(0, "term")]), KEY)
    np.testing.assert_array_equal(batch.non_episodic.discount, 0.5)
    np.testing.assert_array_equal(batch.non_episodic.next_obs, batch.one.next_obs)


# ------------------------------------------------------------ against a naive list


class Naive:
    """One environment's transitions, each with its own copies of everything."""

    def __init__(self, first, rows, stack):
        self.rows, self.stack, self.head = rows, stack, 0
        self.episode, self.starts = [first], []

    def stacked(self, upto):
        frames = self.episode[: upto + 1][-self.stack :]
        return [frames[0]] * (self.stack - len(frames)) + frames

    def add(self, action, reward, terminated, truncated, next_frame, frame):
        at = len(self.episode) - 1
        self.episode.append(next_frame)
        seen = {"obs": self.stacked(at), "next": self.stacked(at + 1), "action": action, "reward": reward}
        ended = terminated or truncated
        self.starts.append(seen | {"head": self.head, "end": ended, "terminated": terminated})
        self.head += 2 if ended else 1
        if ended:
            self.episode = [frame]

    def only_reset(self, frame):
        self.episode = [frame]

    def cut(self, frame):
        """The environment broke: what was open ends, truncated, with the observation it was last seen at."""
        if len(self.episode) > 1:
            self.starts[-1] |= {"end": True}
            self.head += 1
        self.episode = [frame]

    def valid(self):
        """A start leaves when its row, or the oldest frame its stack could need, is overwritten."""
        return [i for i, t in enumerate(self.starts) if t["head"] - (self.stack - 1) > self.head - self.rows]

    def backup(self, i, n, gamma):
        reward, discount = 0.0, 1.0
        for t in self.starts[i : i + n]:
            reward, discount, last = reward + discount * t["reward"], discount * gamma, t
            if t["end"]:
                break
        return reward, discount * (not last["terminated"]), last["next"]


LAYOUTS = [(1, 6, 1, 1), (2, 7, 1, 3), (1, 9, 3, 3), (2, 8, 2, 2)]
EVENTS = st.sampled_from(["go"] * 6 + ["terminate", "truncate", "both", "reset", "cut", "cut"])
GAMMA = 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "rows", "stack", "nstep"), LAYOUTS)
def test_replay_is_a_list_of_transitions(lanes, rows, stack, nstep):
    """Random episodes, wrap-around, truncation, lanes, stacks and resets: the same transitions, the same backups."""
    pixels = stack > 1
    frame_shape, dtype = ((2, 2, 1), np.uint8) if pixels else ((1,), np.float32)
    paint = lambda frame: np.full(frame_shape, frame, dtype)
    add, sample, latest = adder(), sampler(512, GAMMA, nstep), quick(lambda r: r.latest())
    read = lambda obs: obs[0, 0, :].tolist() if pixels else obs.tolist()

    def check(replay, naive):
        np.testing.assert_array_equal(
            [read(o) for o in np.asarray(latest(replay))], [n.stacked(len(n.episode)) for n in naive]
        )
        batch = jax.tree.map(np.asarray, sample(replay, KEY))
        ids = batch.action[:, 0].astype(int)
        known = {n.starts[i]["action"]: (n, i) for n in naive for i in n.valid()}
        assert set(ids.tolist()) == set(known)
        for row, action in enumerate(ids.tolist()):
            n, i = known[action]
            assert read(batch.obs[row]) == n.starts[i]["obs"]
            for backup, steps in ((batch.one, 1), (batch.task, nstep)):
                reward, discount, successor = n.backup(i, steps, GAMMA)
                assert (float(backup.reward[row]), float(backup.discount[row])) == (reward, discount)
                assert read(backup.next_obs[row]) == successor

    @settings(max_examples=30, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.tuples(*[EVENTS] * lanes), min_size=1, max_size=36))
    def follow(script):
        names = iter(range(1, 256))
        first = [next(names) for _ in range(lanes)]
        naive = [Naive(frame, rows, stack) for frame in first]
        replay = Replay.create(lanes, rows, frame_shape, dtype, 1, stack).begin(np.stack([paint(f) for f in first]))
        for step, events in enumerate(script):
            columns = []
            for lane, event in enumerate(events):
                n = naive[lane]
                terminated, truncated = event in ("terminate", "both"), event in ("truncate", "both")
                frame = successor = next(names)
                if terminated or truncated:
                    frame = next(names)
                # resetting happens where nothing has begun
                valid = not (event == "cut" or (event == "reset" and len(n.episode) == 1))
                action, reward = 1000 * lane + step, float((7 * step + lane) % 5)
                if event == "cut":
                    n.cut(frame)
                    truncated = True
                elif valid:
                    n.add(action, reward, terminated, truncated, successor, frame)
                else:
                    n.only_reset(frame)
                flags = (np.bool_(terminated), np.bool_(truncated), paint(successor), paint(frame), np.bool_(valid))
                columns.append(Transition(np.float32([action]), np.float32(reward), *flags))
            replay = add(replay, Transition(*(np.stack(c) for c in zip(*columns))))
            if step % 12 == 11 and any(n.valid() for n in naive):
                check(replay, naive)
        if any(n.valid() for n in naive):
            check(replay, naive)

    follow()


# ------------------------------------------------------------ sampling


def test_sampling_is_uniform_over_all_transitions_of_all_lanes():
    """With replacement, every transition alike, though lanes hold different numbers of them."""
    lanes, add = 3, adder()
    replay = Replay.create(lanes, 8, (1,), jnp.float32, 1).begin(jnp.zeros((lanes, 1)))
    for i in range(20):
        valid = np.asarray([True, i % 2 == 0, i == 7])
        action = np.asarray([[i], [100 + i], [200 + i]], np.float32)
        end = np.full(lanes, i % 5 == 4) & valid
        replay = add(replay, transition(lanes, i, LINE, action=action, valid=valid, truncated=end))
    count = np.asarray(replay.pushed - replay.popped)
    assert count[2] == 1 and len(set(count)) == 3
    drawn = np.concatenate(
        [np.asarray(sampler(2048, 0.9, 1)(replay, jax.random.key(i)).action)[:, 0] for i in range(10)]
    )
    names, times = np.unique(drawn, return_counts=True)
    assert len(names) == count.sum()
    expected = len(drawn) / len(names)
    chi2 = ((times - expected) ** 2 / expected).sum()
    assert chi2 < len(names) + 6 * (2 * len(names)) ** 0.5
    assert len(np.unique(drawn[:50])) < 50  # with replacement


def test_a_batch_has_the_shape_asked_for():
    batch = quick(lambda r: r.sample(KEY, (3, 5), 0.9, 2))(line([1, 2, 3]))
    assert batch.obs.shape == (3, 5, 1) and batch.nstep.reward.shape == (3, 5)
    assert batch.one.next_obs.shape == (3, 5, 1) and batch.gamma.shape == (3, 5)


# ------------------------------------------------------------ growth and size


def test_growing_keeps_everything():
    small, add = line([1, 2, 4, 8], [(1, "trunc")], rows=8), adder()
    large = small.grow(16)
    assert (small.rows, large.rows) == (8, 16)
    sample = sampler(64, 0.5, 3)
    assert same(sample(small, KEY), sample(large, KEY))
    assert same(small.latest(), large.latest())
    for i in range(8):  # past the old end of the ring
        large = add(large, transition(1, i, LINE, action=np.asarray([[1000.0 + i]], np.float32)))
    assert int((large.pushed - large.popped)[0]) == 12
    assert starting_at(large, 0.0, 3) == (2.0, 0.25, 2.0)


def test_a_ring_that_has_wrapped_does_not_grow():
    replay = line([1] * 9, rows=8)
    assert replay.grow(16) is replay
    assert line([1], rows=8).grow(8).rows == 8


@pytest.mark.parametrize(("frame", "dtype", "actions"), [((3,), np.float32, 2), ((8, 8, 3), np.uint8, 4)])
def test_the_memory_of_a_row_is_what_it_says(frame, dtype, actions):
    replay = Replay.create(2, 10, frame, dtype, actions)
    held = sum(x.nbytes for x in jax.tree.leaves(replay) if x.ndim > 1)
    assert row_bytes(frame, np.dtype(dtype).itemsize, actions) == held / 20


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_step_copies_no_column(lanes):
    """Insert, sample, update and act in one program: what it costs does not grow with the rows."""
    rows, agent = 1_000_003, shrink(algorithm("maxinfo-sac"))
    program = Program(agent, Spec((3,), 1), batch_size=8)
    like = lambda dtype, *shape: jax.ShapeDtypeStruct((lanes, *shape), dtype)
    obs, flag = like(jnp.float32, 3), like(jnp.bool_)
    t = Transition(like(jnp.float32, 1), like(jnp.float32), flag, flag, obs, obs, flag)
    replay = jax.eval_shape(lambda: Replay.create(lanes, rows, (3,), jnp.float32, 1))
    learner = jax.eval_shape(lambda: agent.init(jax.random.key(0), program.spec))
    state = TrainState(learner, replay, jax.eval_shape(clock), jax.ShapeDtypeStruct((), jnp.uint32))
    memory = jax.jit(program.train_step, donate_argnums=0).lower(state, t).compile().memory_analysis()
    assert memory.temp_size_in_bytes < rows * lanes / 4  # of the narrowest column
