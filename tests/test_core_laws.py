"""Laws that keep the design honest: what must be equal to what, bit for bit or within a stated tolerance."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import (
    DESCENT,
    NOW,
    SPEC,
    DescentGain,
    DescentWeight,
    batches,
    cheap,
    close,
    descending,
    filled,
    fresh,
    quick,
    run,
    same,
    small,
    train_state,
    transition,
)
from maxinforl.algorithms import BASES
from maxinforl.core import networks
from maxinforl.core.program import Program
from maxinforl.core.types import Backup, Batch, clock
from maxinforl.core.update import STEP, TrainState, stream, update
from maxinforl.explore import Fixed, MaxInfo, Plain
from maxinforl.replay import Replay

KEY = jax.random.key(0)


def learner_of(s):
    return s.mixed.learner if hasattr(s, "mixed") else s.task if hasattr(s, "task") else s.learner


# ------------------------------------------------------------ special cases are the general one
#
# Two programs that compute the same may be compiled to add in another order, which shows in the last bit of a
# gradient and nowhere else; plain descent does not magnify it as Adam would. Hence 1e-6, and once op by op.


def alike(a, b):
    close(a, b, 1e-6, 1e-6)


@pytest.mark.slow
def test_maxinfo_without_weight_is_sac_bit_for_bit():
    """alpha2 fixed to exactly 0, computed op by op; the two agents draw their noise at the same places."""
    plain, maxinfo = small("sac"), replace(small("sac", "maxinfo"), weight=Fixed(0.0))
    a, b = (update(agent, fresh(agent), batches(1), KEY, NOW)[0] for agent in (plain, maxinfo))
    assert same(a.learner, b.learner)
    assert not same(a.learner, fresh(plain).learner)


SLOW = [pytest.param(base, marks=pytest.mark.slow) for base in ("redq", "ddpg", "droq")]


@pytest.mark.slow
@pytest.mark.parametrize("base", ["sac", *SLOW])
def test_maxinfo_without_weight_is_its_base(base):
    """Compiled, on every base, two updates long."""
    plain, maxinfo = descending(base), replace(descending(base, "maxinfo"), weight=Fixed(0.0), separate=False)
    a, b = fresh(plain), fresh(maxinfo)
    assert same(a.learner, b.learner)
    for i in range(2):
        a, b = run(plain, a, seed=i), run(maxinfo, b, seed=i)
    alike(a.learner, b.learner)


@pytest.mark.slow
def test_with_a_critic_of_its_own_a_gain_without_weight_changes_nothing_of_the_task():
    plain, maxinfo = descending("ddpg"), replace(descending("ddpg", "maxinfo"), weight=Fixed(0.0))
    assert maxinfo.own_critic
    a, b = fresh(plain), fresh(maxinfo)
    b = replace(b, learner=with_task_of(a.learner, b.learner))
    for i in range(2):
        a, b = run(plain, a, seed=i), run(maxinfo, b, seed=i)
    alike(a.learner.params.actor, b.learner.params.actor)
    alike(a.learner.params.critic.heads, jax.tree.map(lambda leaf: leaf[:1], b.learner.params.critic.heads))


def with_task_of(one, two):
    """A learner of two channels whose first, and whose actor, are those of a learner of one."""
    pick = lambda x, y: x if x.shape == y.shape else jnp.concatenate([x, y[1:]])
    return jax.tree.map(pick, one, two)


def test_redq_with_two_of_two_critics_is_sac():
    """REDQ is two integers and a reduction: without them the value itself is SAC's."""
    assert (
        replace(BASES["redq"], critics=2, num_min_critics=2, policy_delay=1, update_ratio=1, critic_reduction="min")
        == BASES["sac"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("base", ["sac", "redq"])
def test_eipo_with_lambda_one_is_the_intrinsic_sum(base):
    alone, pair = descending(base, "sum"), replace(descending(base, "eipo"), weight=Fixed(1.0))
    assert alone.weight == Fixed(1.0)
    a, b = fresh(alone), fresh(pair)
    assert same(a, b.mixed)
    for i in range(2):
        a, b = run(alone, a, seed=i), run(pair, b, seed=i)
    alike((a.learner, a.scale), (b.mixed.learner, b.mixed.scale))


@pytest.mark.slow
def test_the_first_row_of_a_switch_is_the_base():
    plain, switch = descending("sac"), descending("sac", "eps")
    a, b = fresh(plain), fresh(switch)
    assert same(a.learner, b.task)
    for i in range(2):
        a, b = run(plain, a, seed=i), run(switch, b, seed=i)
    alike(a.learner, b.task)


def test_one_step_is_nstep_one():
    """A learner with n > 1 fed one-step backups is the one-step learner, and sampling with n = 1 is one step."""
    one, many = Plain(DESCENT), Plain(replace(DESCENT, nstep=3))
    data = batches(1)
    assert same(run(one, fresh(one), data), run(many, fresh(many), data._replace(nstep=data.one)))
    replay = filled()
    batch = replay.sample(KEY, (16,), 0.9, 1)
    assert batch.nstep is None and batch.task is batch.one
    three = replay.sample(KEY, (16,), 0.9, 3)
    assert same((batch.obs, batch.one), (three.obs, three.one)) and three.task is three.nstep


# ------------------------------------------------------------ the program


@pytest.mark.slow
def test_scanned_updates_are_single_ones():
    """`updates=4` in rounds of two critic steps: four critic, two actor and four model steps, each with its key."""
    base = replace(DESCENT, critics=3, critic_reduction="mean", policy_delay=2)
    agent = MaxInfo(base, DescentGain(), DescentWeight())
    program = Program(agent, SPEC, batch_size=8, updates=4)
    s = train_state(program)
    after, metrics = quick(program.learn)(s)
    k_sample, k_update = jax.random.split(jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 1))
    one = quick(lambda a, b, k, now: update(agent, a, b, k, now))
    state, seen = s.agent, []
    for i in range(2):
        data = s.replay.sample(jax.random.fold_in(k_sample, i), (2, 8), base.gamma)
        now = s.clock._replace(update=jnp.asarray(2 * i, jnp.int32))
        state, m = one(state, data, jax.random.fold_in(k_update, i), now)
        seen.append(m)
    close(after.agent, state, 1e-5, 1e-6)
    assert int(after.clock.update) == 4 and int(after.clock.step) == 0
    for name in metrics:
        np.testing.assert_allclose(metrics[name], np.mean([m[name] for m in seen]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("updates", "policy_delay", "rounds"),
    [(1, 1, 1), (4, 1, 4), (1, 20, 1), (4, 20, 1), (40, 20, 2), (5, 2, 1), (6, 4, 1), (9, 2, 3)],
)
def test_every_update_asked_for_happens(updates, policy_delay, rounds):
    program = Program(small("sac"), SPEC, updates=updates)
    program = replace(
        program, agent=replace(program.agent, base=replace(program.agent.base, policy_delay=policy_delay))
    )
    assert program.rounds == rounds and updates % program.rounds == 0


AGENT = MaxInfo(DESCENT, DescentGain(), DescentWeight())


@pytest.fixture(scope="module")
def program():
    return Program(AGENT, SPEC, batch_size=8)


def play(program, s, first, feed):
    """Begin, one warm-up step, two learning ones: states, actions and metrics as NumPy copies."""
    s, action = program.begin(s, first, True)
    taken, told = [np.array(action)], []
    s, action = program.collect(s, feed(0))
    taken.append(np.array(action))
    for i in (1, 2):
        s, action, values = program.step(s, feed(i))
        taken.append(np.array(action))
        told.append(np.array(values))
    return s, np.stack(taken), np.stack(told)


@pytest.fixture(scope="module")
def lives(program):
    """The same life twice for seed 1, and once for seeds 0 and 1 together."""
    first = lambda *lead: jnp.zeros((*lead, 1, 3))
    empty = lambda: Replay.create(1, 8, SPEC.obs, jnp.float32, SPEC.action)
    alone = [
        play(program, train_state(program, 1, empty()), first(), lambda i: transition(seed=10 + i)) for _ in range(2)
    ]
    both = replace(program, seeds=2)
    rows = [train_state(program, seed, empty()) for seed in (0, 1)]
    pile = lambda *x: jax.tree.map(lambda *y: jnp.stack(y), *x)
    state = TrainState(
        *(pile(getattr(rows[0], n), getattr(rows[1], n)) for n in ("agent", "replay")), clock(total=100), jnp.arange(2)
    )
    together = play(both, state, first(2), lambda i: pile(transition(seed=i), transition(seed=10 + i)))
    return alone, together, both


@pytest.mark.slow
def test_the_same_seed_lives_the_same_life(lives):
    (one, two), _, _ = lives
    assert same(one, two)


@pytest.mark.slow
def test_a_seed_among_others_is_that_seed_alone(lives):
    """Within 1e-5: a product of matrices with a seed axis may add in another order."""
    (alone, _), (state, actions, metrics), _ = lives
    row = jax.tree.map(lambda x: x[1], (state.agent, state.replay))
    close(row, (alone[0].agent, alone[0].replay), 1e-4, 1e-5)
    np.testing.assert_allclose(actions[:, 1], alone[1], atol=1e-5)
    np.testing.assert_allclose(metrics[:, 1], alone[2], rtol=1e-3, atol=1e-4)
    assert not np.allclose(actions[:, 0], actions[:, 1])


def test_every_program_is_traced_once(lives, program):
    """One trace per agent and function, however often it is called."""
    assert dict(program.traces) == {"begin": 1, "collect": 1, "step": 1}
    assert dict(lives[2].traces) == {"begin": 1, "collect": 1, "step": 1}


def test_clocks_metrics_and_warm_up(lives, program):
    (s, actions, metrics), _ = lives[0]
    assert (int(s.clock.step), int(s.clock.update), int(s.clock.total)) == (3, 2, 100)
    assert metrics.shape == (2, len(program.metric_names) + 1)  # the last says whether all weights are finite
    assert program.metric_names == sorted(program.metric_names) and not metrics[:, -1].any()
    assert {"train/critic_loss", "explore/info_gain", "explore/alpha2", "explore/alpha1"} <= set(program.metric_names)
    assert np.isfinite(metrics).all() and (np.abs(actions) <= 1).all()
    assert len(np.unique(actions.round(6))) == actions.size  # every step has noise of its own


@pytest.mark.slow
def test_a_step_inserts_then_learns_then_acts():
    """In this order: from an empty replay the first batch is copies of the first transition."""
    agent = Plain(DESCENT)
    program = Program(agent, SPEC, batch_size=8)
    s = train_state(program, replay=Replay.create(1, 8, SPEC.obs, jnp.float32, SPEC.action))
    s, _ = program.begin(s, jnp.zeros((1, 3)), True)
    t = transition(seed=3)
    _, k_update = jax.random.split(jax.random.fold_in(stream(s.seed, STEP, 1), 1))
    one = lambda x: jnp.broadcast_to(jnp.asarray(x), (1, 8, *jnp.shape(x)[1:]))
    gamma = jnp.full((1, 8), DESCENT.gamma)
    data = Batch(jnp.zeros((1, 8, 3)), one(t.action), Backup(one(t.reward), gamma, one(t.next_obs)), None, gamma)
    want = run(agent, s.agent, data, now=clock(step=1), key=jax.random.fold_in(k_update, 0))
    s, action, _ = program.step(s, t)
    close(s.agent, want, 1e-4, 1e-5)
    key = jax.random.fold_in(stream(s.seed, STEP, 1), 0)
    np.testing.assert_allclose(action, agent.act(want, t.obs, key, s.clock, explore=True), atol=1e-5)


def test_acting_for_others(program, lives):
    (s, _, _), _ = lives[0]
    obs = batches().obs
    deterministic = program.act(s.agent, obs, s.clock)
    np.testing.assert_array_equal(deterministic, program.act(s.agent, obs, s.clock._replace(step=s.clock.step + 7)))
    out = AGENT.base.pi(s.agent.learner.params.actor, obs)
    np.testing.assert_allclose(deterministic, np.tanh(out[:, :2]), rtol=1e-5, atol=1e-6)
    assert program.traces["act"] == 1


@pytest.mark.parametrize("names", [("sac", "eipo"), pytest.param(("sac", "eps"), marks=pytest.mark.slow)])
def test_no_two_leaves_of_a_fresh_state_share_a_buffer(names, monkeypatch):
    """Or donating the state would fail; target networks start as copies."""
    monkeypatch.setattr(networks, "orthogonal", cheap)
    monkeypatch.setattr(jax, "jit", quick)
    agent = small(*names)
    agent = replace(agent, base=replace(agent.base, hidden=(4,)))
    if hasattr(agent, "intrinsic"):
        agent = replace(agent, intrinsic=replace(agent.intrinsic, hidden=(4,)))
    replay = Replay.create(2, 8, SPEC.obs, jnp.float32, SPEC.action)
    s = Program(agent, SPEC).init(jnp.asarray(3, jnp.int32), replay, total=50)
    whole = jax.tree_util.tree_leaves_with_path(s)
    pointers = {}
    for path, x in whole:
        name = jax.tree_util.keystr(path)
        assert isinstance(x, jax.Array) and not x.weak_type, name
        if x.size:
            shared = pointers.setdefault(x.unsafe_buffer_pointer(), name)
            assert shared == name, f"{shared} and {name} share a buffer"
    assert int(s.clock.total) == 50 and int(s.seed) == 3
    assert same(learner_of(s.agent).target.actor, learner_of(s.agent).params.actor)


def test_streams_of_random_numbers_are_apart():
    """All randomness is a function of (seed, stream, step)."""
    keys = [stream(jnp.asarray(seed), name, step) for seed in (0, 1) for name in (0, 1) for step in (0, 1)]
    assert len({jax.random.key_data(k).tobytes() for k in keys}) == 8


def test_scores_of_actions_are_compiled_once():
    agent, batch = small("sac", "maxinfo"), batches()
    program, s = Program(agent, SPEC), fresh(agent)
    scores = [program.score(s, batch.obs, batch.action) for _ in range(2)][-1]
    np.testing.assert_allclose(scores, agent.intrinsic.score(s.model, batch.obs, batch.action), rtol=1e-4, atol=1e-5)
    assert program.traces["score"] == 1 and agent.can_score and not small("sac").can_score
