"""Frames once: stacks and n-step returns as a pixel learner meets them, and memory."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import constant_critics, fresh, quick
from maxinforl.core.policies import constant
from maxinforl.core.program import Program
from maxinforl.core.types import Shaping, Spec, clock
from maxinforl.core.update import TrainState
from maxinforl.replay import Replay, row_bytes
from maxinforl.training.evaluate import Stack
from maxinforl.transition import Transition
from pixel_helpers import SPEC, named

KEY = jax.random.key(0)
GAMMA = 0.5
FRAME = (84, 84, 3)


def paint(numbers, side=1) -> jax.Array:
    """Frames of one colour each: the n-th of an episode e is 10 e + n."""
    return jnp.broadcast_to(jnp.asarray(numbers, jnp.uint8)[:, None, None, None], (len(numbers), side, side, 1))


@cache
def adder():
    return quick(lambda r, t: r.add(t))


def played(ends: list[str], stack=3, rows=32, side=1) -> Replay:
    """One environment; the reward of the transition from frame f is f, its action f / 100."""
    replay = Replay.create(1, rows, (side, side, 1), jnp.uint8, 2, stack).begin(paint([0], side))
    episode, at = 0, 0
    for end in ends:
        here, after = 10 * episode + at, 10 * episode + at + 1
        episode, at = (episode + 1, 0) if end else (episode, at + 1)
        flag = lambda name, end=end: jnp.asarray([end == name])
        t = Transition(
            jnp.full((1, 2), here / 100, jnp.float32),
            jnp.asarray([here], jnp.float32),
            flag("terminated"),
            flag("truncated"),
            paint([after], side),
            paint([10 * episode + at], side),
            jnp.asarray([True]),
        )
        replay = adder()(replay, t)
    return replay


# ------------------------------------------------------------ invariant 22: stacks


def test_a_stack_never_crosses_a_reset():
    replay = played(["", "", "truncated", "", "terminated", ""])
    head = jnp.asarray([0, 1, 2, 3, 4, 5, 6, 7, 8])  # the last frame of an episode has a row of its own
    stacks = replay.frames(jnp.zeros_like(head), head)[:, 0, 0]
    wanted = [
        [0, 0, 0],
        [0, 0, 1],
        [0, 1, 2],
        [1, 2, 3],
        [10, 10, 10],
        [10, 10, 11],
        [10, 11, 12],
        [20, 20, 20],
        [20, 20, 21],
    ]
    np.testing.assert_array_equal(stacks, wanted)
    np.testing.assert_array_equal(replay.latest()[0, 0, 0], [20, 20, 21])


def test_the_first_stack_is_the_first_frame_repeated():
    np.testing.assert_array_equal(played([]).latest()[0, 0, 0], [0, 0, 0])


# ------------------------------------------------------------ invariant 23: n-step returns, up to the learner's target

PLAYS = {  # from frame 1 of an episode whose third transition is its last: K = 2 rewards, 1 and 2
    "terminated": (["", "", "terminated", "", ""], 0.0, [1, 2, 3]),
    "truncated": (["", "", "truncated", "", ""], GAMMA**2, [1, 2, 3]),
    "the newest": (["", "", ""], GAMMA**2, [1, 2, 3]),
    "none": (["", "", "", "", ""], GAMMA**3, [2, 3, 4]),
}


@pytest.mark.parametrize("end", PLAYS)
def test_returns_stop_where_the_episode_or_the_buffer_does(end):
    ends, discount, successor = PLAYS[end]
    backup = played(ends).backup(jnp.asarray([0]), jnp.asarray([1]), GAMMA, 3)
    assert float(backup.reward[0]) == 1 + GAMMA * 2 + (GAMMA**2 * 3 if end == "none" else 0)
    assert float(backup.discount[0]) == discount
    np.testing.assert_array_equal(backup.next_obs[0, 0, 0], successor)


def test_one_step_is_the_batch_itself():
    replay = played(["", "", "terminated", "", "truncated", ""])
    one, three = (replay.sample(KEY, (64,), GAMMA, n) for n in (1, 3))
    assert one.nstep is None and all(np.array_equal(a, b) for a, b in zip(one.one, three.one))
    lane, row = replay.draw(KEY, (64,))
    assert all(np.array_equal(a, b) for a, b in zip(one.one, replay.backup(lane, row, GAMMA, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("algo", [pytest.param("drqv2", marks=pytest.mark.slow), "maxinfo-drqv2"])
def test_learners_regress_on_those_returns(algo):
    """Critics worth 3 and 5 (task) and 7 and 11 (gain): y = R + gamma**K M 3, and 0.5 + gamma 7 whatever ended."""
    agent = named(algo, noise=constant(0.0), gamma=GAMMA)
    learner = getattr(agent, "learner", agent.base)
    spec = Spec((16, 16, 3), 2)
    state = fresh(agent, spec=spec).learner
    state = constant_critics(state, [[3.0, 5.0], [7.0, 11.0]][: learner.channels])
    replay = played(["", "", "terminated", "", "truncated", "", ""], side=16)
    batch = replay.sample(KEY, (32,), GAMMA, 3)
    gain = batch.non_episodic._replace(reward=jnp.full(32, 0.5))
    shaping = Shaping() if learner.channels == 1 else Shaping((None, gain), (1.0, 1.0))
    y = quick(lambda s, b: learner.td_target(s, b, learner.latents(s, b), KEY, clock(), shaping))(state, batch)
    frame = np.rint(np.asarray(batch.action[:, 0]) * 100).astype(int)
    rewards = {
        0: ([0, 1, 2], 0),
        1: ([1, 2], 0),
        2: ([2], 0),
        10: ([10, 11], 1),
        11: ([11], 1),
        20: ([20, 21], 1),
        21: ([21], 1),
    }
    assert set(frame.tolist()) == set(rewards)
    for value, at in zip(np.asarray(y[0]), frame.tolist()):
        found, going = rewards[at]
        assert value == sum(GAMMA**j * r for j, r in enumerate(found)) + GAMMA ** len(found) * going * 3.0
    if learner.channels == 2:
        np.testing.assert_array_equal(y[1], 0.5 + GAMMA * 7.0)


# ------------------------------------------------------------ memory


def test_a_stored_step_costs_one_frame():
    """Within 2 % of the frame, action, reward and a byte of flags."""
    least = 84 * 84 * 3 + 4 * 6 + 4 + 1
    assert least <= row_bytes(FRAME, 1, 6) <= 1.02 * least
    shape = jax.eval_shape(lambda: Replay.create(1, 120_000, FRAME, jnp.uint8, 6, 3))
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shape))
    assert held > 2**31
    assert held / 120_000 == pytest.approx(row_bytes(FRAME, 1, 6), rel=1e-5)


def steps(count: int | None, seeds: int | None = None):
    lead = tuple(n for n in (seeds, count) if n is not None)
    like = lambda dtype, *shape: jax.ShapeDtypeStruct((*lead, 1, *shape), dtype)
    flag = like(jnp.bool_)
    frame = like(jnp.uint8, *FRAME)
    return Transition(like(jnp.float32, 6), like(jnp.float32), flag, flag, frame, frame, flag)


def buffer(rows: int, seeds: int | None = None):
    create = lambda: Replay.create(1, rows, FRAME, jnp.uint8, 6, 3)
    return jax.eval_shape(create if seeds is None else lambda: jax.vmap(lambda _: create())(jnp.zeros(seeds)))


def scanned(replay, transitions):
    return jax.lax.scan(lambda r, t: (r.add(t), None), replay, transitions)[0]


WRITES = {
    "alone": (lambda r, t: r.add(t), None, None),
    "in a scan": (scanned, 8, None),
    "for 3 seeds": (jax.vmap(lambda r, t: r.add(t)), None, 3),
    "in a scan for 3 seeds": (jax.vmap(scanned), 8, 3),
}


@pytest.mark.parametrize("how", WRITES)
def test_adding_writes_in_place(how):
    """Compiled for 2.5 GB (beyond 2**31 bytes) and given no room for a copy of it."""
    write, count, seeds = WRITES[how]
    replay = buffer(120_000 // (seeds or 1), seeds)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay))
    memory = jax.jit(write, donate_argnums=0).lower(replay, steps(count, seeds)).compile().memory_analysis()
    assert memory.alias_size_in_bytes == size > 2**31
    assert memory.temp_size_in_bytes < 2**24


@pytest.mark.slow
def test_a_whole_step_of_training_writes_in_place():
    """Insert, sample, update, act: room for activations, none for a second buffer."""
    agent = named("maxinfo-drqv2")
    program = Program(agent, SPEC._replace(obs=(16, 16, 9)), batch_size=4)
    replay = jax.eval_shape(lambda: Replay.create(1, 120_000, (16, 16, 3), jnp.uint8, 2, 3))
    init = lambda: agent.init(KEY, program.spec)
    state = TrainState(jax.eval_shape(init), replay, jax.eval_shape(clock), jax.ShapeDtypeStruct((), jnp.int32))
    like = lambda dtype, *shape: jax.ShapeDtypeStruct((1, *shape), dtype)
    frame, flag = like(jnp.uint8, 16, 16, 3), like(jnp.bool_)
    t = Transition(like(jnp.float32, 2), like(jnp.float32), flag, flag, frame, frame, flag)
    memory = jax.jit(program.train_step, donate_argnums=0).lower(state, t).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 120_000 * 16 * 16 * 3 / 4


def test_evaluation_stacks_as_the_replay_does():
    """Invariant 22 where nothing is stored: full of the first frame at a reset, then oldest first."""
    replay = Replay.create(1, 32, (1, 1, 1), jnp.uint8, 2, 3).begin(paint([7]))
    stack = Stack(np.array(paint([7])), 3)
    for frame, ended in ((8, False), (9, False), (10, True), (21, False), (22, False)):
        shown = paint([20 if ended else frame])
        yes = jnp.array([ended])
        step = Transition(jnp.zeros((1, 2)), jnp.zeros(1), yes, ~yes & yes, paint([frame]), shown, yes | ~yes)
        replay = adder()(replay, step)
        stack.fill(0, np.array(shown[0])) if ended else stack.push(0, np.array(shown[0]))
        np.testing.assert_array_equal(stack.frames, replay.latest())
    assert stack.frames.ravel().tolist() == [20, 21, 22]
