"""Rows of the critics' batches that the ensemble imagines: what they are, when they count, and what never sees them."""

from __future__ import annotations

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import maxinforl
from core_helpers import NOW, SPEC, batches, close, descending, fresh, leaves, quick, run, same, small
from maxinforl.algorithms import algorithm
from maxinforl.core.actor_critic import IMAGINED
from maxinforl.core.model_rows import CriticRows, critic_rows, row_weights
from maxinforl.core.multiplier import Fixed
from maxinforl.core.policies import constant
from maxinforl.core.types import PLAIN, Backup, Imagination, Imagined, Latents, Shaping, clock
from maxinforl.errors import BadInput
from maxinforl.experiments.inspection import why_unused
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs
from maxinforl.intrinsic import InfoGain
from maxinforl.intrinsic.ensemble import block_means
from maxinforl.intrinsic.model_rows import ModelRows, TrackRecord
from maxinforl.settings import Settings, resolve
from maxinforl.training.callbacks import RunView, TellUnused

KEY, GAMMA, SIZE = jax.random.key(0), 0.9, 8
RNG = np.random.default_rng(0)
OPEN = ModelRows(share=0.25, start=0, most_error=9.0, most_disagreement=99.0, most_terminated=1.0, batch_norm=True)
COUNT = OPEN.rows(SIZE)


def normal(*shape, scale=1.0):
    return jnp.asarray(scale * RNG.normal(size=shape), jnp.float32)


def imagining(agent, rows=OPEN, **intrinsic):
    return replace(agent, intrinsic=replace(agent.intrinsic, model_rows=rows, **intrinsic))


def gates(**changes):
    return replace(OPEN, **changes)


# ------------------------------------------------------------ a model that is right


# s' = s + s A + a B and r = s c + a d, as one matrix of (s, a) -> (s' - s, r)
TRUTH = normal(SPEC.obs[0] + SPEC.action, SPEC.obs[0] + 1, scale=0.3)


def exact(model, truth=TRUTH):
    """A linear model whose members all know the truth, through normalisers that are not the identity."""
    inputs = eqx.tree_at(lambda n: (n.mean, n.std), model.inputs, (0.1 + model.inputs.mean, 2 * model.inputs.std))
    outputs = eqx.tree_at(lambda n: (n.mean, n.std), model.outputs, (model.outputs.mean - 0.2, 3 * model.outputs.std))
    weight = inputs.std[:, None] * truth / outputs.std
    bias = (inputs.mean @ truth - outputs.mean) / outputs.std
    (layer,) = model.members.layers
    same_for_all = lambda new, old: jnp.broadcast_to(new, old.shape)
    known = (same_for_all(weight, layer.weight), same_for_all(bias, layer.bias))
    members = eqx.tree_at(lambda m: (m.layers[0].weight, m.layers[0].bias), model.members, known)
    record = eqx.tree_at(lambda r: (r.low, r.high), model.record, (jnp.float32(-99), jnp.float32(99)))
    return replace(model, members=members, inputs=inputs, outputs=outputs, record=record)


def exact_state(agent):
    state = fresh(agent)
    return eqx.tree_at(lambda s: s.model, state, exact(state.model))


def lived(agent, state, data):
    """The batch in which the policy's fresh actions were really taken in the last states."""
    obs = data.obs[-COUNT:]
    action = agent.base.successor(state.learner, obs, jax.random.fold_in(KEY, IMAGINED), NOW).action
    outcome = jnp.concatenate([obs, action], -1) @ TRUTH
    real = Backup(outcome[:, -1], jnp.full(COUNT, GAMMA), obs + outcome[:, :-1])
    last = lambda old, new: old.at[-COUNT:].set(new)
    backup = lambda b: None if b is None else Backup(*map(last, b, real))
    return data._replace(action=last(data.action, action), one=backup(data.one), nstep=backup(data.nstep))


def going_on(data):
    """The same transitions, none of which terminated."""
    backup = lambda b, k: None if b is None else b._replace(discount=jnp.full(SIZE, GAMMA**k))
    return data._replace(one=backup(data.one, 1), nstep=backup(data.nstep, 3))


def agent_of(*names, **base):
    """A small agent that descends plainly, with a linear ensemble and an information gain that weighs nothing."""
    agent = descending(*names)
    agent = replace(agent, base=replace(agent.base, dropout=0.0, **base))
    agent = replace(agent, weight=Fixed(0.0)) if hasattr(agent, "episodic") else agent
    return imagining(agent, hidden=())


SLOW = [
    pytest.param(("bro", "maxinfo"), {}, marks=pytest.mark.slow),
    pytest.param(("xqc", "maxinfo"), {}, marks=pytest.mark.slow),
    pytest.param(("crossq", "maxinfo"), {}, marks=pytest.mark.slow),
    pytest.param(("simba", "sum"), {}, marks=pytest.mark.slow),
    pytest.param(("sac", "eipo"), {}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("names", "base"), [(("sac", "maxinfo"), {}), (("sac", "eps"), {"nstep": 3}), *SLOW])
def test_a_perfect_model_teaches_what_was_lived(names, base):
    """Imagined rows give the task's critics the step that the same rows give them when they really happened: every
    head, normaliser and kind of backup; an n-step base bootstraps after one step there."""
    agent = agent_of(*names, **base)
    state, data = exact_state(agent), going_on(batches(size=SIZE, nstep="nstep" in base))
    plain = imagining(agent, gates(share=0.0))
    imagined, metrics, _ = quick(lambda s, d: agent.critic_step(s, d, KEY, NOW))(state, data)
    real, _, _ = quick(lambda s, d: plain.critic_step(s, d, KEY, NOW))(state, lived(agent, state, data))
    assert metrics["model/used"] == 1 and metrics["model/disagreement"] == 0  # members that agree have weight 1
    task = lambda s: jax.tree.map(lambda leaf: leaf[0], s.learner.params.critic.heads)
    close(task(imagined), task(real), rtol=1e-4, atol=1e-5)
    without, _, _ = quick(lambda s, d: plain.critic_step(s, d, KEY, NOW))(state, data)
    differ = lambda a, b: not all(np.allclose(x, y, atol=1e-4) for x, y in zip(*map(jax.tree.leaves, (a, b))))
    assert differ(task(real), task(without))
    if hasattr(state, "greedy"):  # EIPO's other learner, whose policy takes other actions
        assert differ(imagined.greedy.params.critic, without.greedy.params.critic)


# ------------------------------------------------------------ when rows count


def test_weights_fall_with_disagreement_and_every_gate_shuts():
    trusted = eqx.tree_at(lambda r: r.error, TrackRecord(), jnp.asarray([0.1, 0.05]))
    rows, u = ModelRows(share=0.1, start=7), jnp.asarray([0.0, 0.25, 0.3, 0.31])
    np.testing.assert_allclose(rows.weight(trusted, u, jnp.int32(7)), [1, 1 / 1.25, 1 / 1.3, 0], rtol=1e-6)
    terminating = eqx.tree_at(lambda r: r.terminated, trusted, jnp.float32(0.011))
    poor = [eqx.tree_at(lambda r: r.error, trusted, jnp.asarray(error)) for error in ([0.11, 0.0], [0.0, 0.11])]
    for record, update in ((trusted, 6), (terminating, 9), (poor[0], 9), (poor[1], 9), (TrackRecord(), 9)):
        assert not rows.weight(record, u, jnp.int32(update)).any()


@pytest.mark.parametrize("clip", [None, 0.1])  # what a bound on the targets hides from the loss is still an error
def test_the_record_is_of_batches_before_the_members_train_on_them(clip):
    gain = InfoGain(members=3, hidden=(8,), model_rows=OPEN, clip=clip)
    model = gain.init(KEY, small("sac").base.encoder.latents(SPEC))
    e = small("sac").base.latents(fresh(small("sac")).learner, batches(size=SIZE))
    train = quick(gain.update)
    after, metrics = train(model, e)
    x, y = jnp.concatenate([e.z, e.action], -1), gain.target(model, model.inputs, e)
    before = jnp.square(gain.predict(model.members, after.inputs(x))[0] - after.outputs(y)).mean((0, 1))
    want = 0.99 * 1.0 + 0.01 * block_means((3, 1), before)
    np.testing.assert_allclose(after.record.error, want, rtol=1e-6)
    np.testing.assert_allclose([metrics["model/state_error"], metrics["model/reward_error"]], want, rtol=1e-6)
    assert after.record.terminated == metrics["model/terminated"]
    np.testing.assert_allclose(after.record.terminated, 0.01 * float(e.ended.mean()), rtol=1e-6)
    assert 0 < float(e.ended.mean()) < 1 and after.record.low == e.reward.min() and after.record.high == e.reward.max()
    again, _ = train(after, e._replace(reward=jnp.full(SIZE, 0.5)))
    assert again.record.low == after.record.low and again.record.high == after.record.high  # of all rewards, not these


def test_rows_whose_real_transition_ended_and_intrinsic_channels_are_left_out():
    ended = jnp.asarray([False, True, False, True])
    e = Latents(normal(4, 1), normal(4, 1), normal(4), normal(4, 1), normal(4, 0), ended)
    own = Backup(normal(4), normal(4), normal(4, 1))
    got = row_weights(Shaping((None, own), (1.0, 1.0)), e, jnp.asarray([0.5, 0.25]))
    np.testing.assert_array_equal(got, [[[1, 1, 0.5, 0]], [[1, 1, 0, 0]]])


def test_the_loss_is_the_weighted_mean_of_the_rows():
    loss, weight = normal(2, 3, 4), jnp.abs(normal(2, 1, 4))
    rows = lambda weight: CriticRows(None, None, None, 4, weight, {})  # type: ignore[arg-type]
    want = sum(float(np.average(loss[c], axis=1, weights=weight[c, 0]).mean()) for c in range(2))
    np.testing.assert_allclose(rows(weight).mean(loss), want, rtol=1e-5)
    np.testing.assert_allclose(rows(jnp.ones((2, 1, 4))).mean(loss), rows(None).mean(loss), rtol=1e-5)


def test_behind_a_shut_gate_the_critics_learn_from_the_real_rows_alone():
    agent = descending("ddpg", "eps")
    agent = replace(agent, base=replace(agent.base, noise=constant(0.0)))  # so that fewer rows draw nothing else
    shut, data = imagining(agent, gates(start=int(NOW.update) + 1)), batches(size=SIZE)
    state = fresh(shut)
    imagined, metrics, _ = quick(lambda s, d: shut.critic_step(s, d, KEY, NOW))(state, data)
    fewer = jax.tree.map(lambda x: x[:-COUNT], data)
    real, alone, _ = quick(lambda s, d: agent.critic_step(s, d, KEY, NOW))(state, fewer)
    assert metrics["model/used"] == 0
    close(imagined.task, real.task)
    for name in ("train/critic_loss", "train/q"):  # metrics are of the real rows, too
        np.testing.assert_allclose(metrics[name], alone[name], rtol=1e-5)


# ------------------------------------------------------------ bounds


def test_rewards_and_bonuses_beyond_the_real_ones_are_clipped():
    gain = InfoGain(members=2, hidden=(), model_rows=OPEN)
    model = gain.init(KEY, small("sac").base.encoder.latents(SPEC))
    e = Latents(normal(SIZE, 3), normal(SIZE, 2), normal(SIZE), normal(SIZE, 3), normal(SIZE, 0), jnp.zeros(SIZE, bool))
    model = replace(exact(model, 100 * TRUTH), record=model.record.after(jnp.ones(2), e._replace(reward=e.reward - 1)))
    rows, outcome = gain.imagination(model, e, clock(update=1))
    found = outcome(e.z, e.action)
    assert rows == COUNT and found.reward.max() <= e.reward.max() and found.reward.min() >= e.reward.min() - 1
    assert {float(found.reward.max()), float(found.reward.min())} == {
        float(e.reward.max()),
        float((e.reward - 1).min()),
    }

    data = batches(size=SIZE)
    far = Imagined(*(jnp.full(COUNT, 50.0), jnp.full((COUNT, 3), 50.0)), jnp.ones(COUNT), jnp.zeros(COUNT))
    shaping = Shaping(bonus=lambda z, a: (z[:, 0], "aux"), imagination=Imagination(COUNT, lambda z, a: far))
    mixed = critic_rows(data, e, shaping, lambda obs: obs[:, :2])
    bonus, aux = mixed.shaping.bonus(mixed.latents.next_z, mixed.latents.action)
    real = data.one.next_obs[:-COUNT, 0]
    assert aux == "aux" and (bonus[-COUNT:] == real.max()).all()
    np.testing.assert_array_equal(bonus[:-COUNT], real)


# ------------------------------------------------------------ what never sees them


def test_everything_but_the_critic_learns_from_the_batch_as_it_was_sampled():
    agent = small("sac", "maxinfo")
    taught, data = imagining(agent), batches(1, size=SIZE)
    state, plain = fresh(taught), fresh(agent)
    with_rows, without = run(taught, state, data), run(agent, plain, data)
    unseen = lambda s: (s.model.members, s.model.opt, s.model.inputs, s.model.outputs, s.scale, s.weight)
    assert same(unseen(with_rows), unseen(without)) and same(with_rows.learner.alpha, without.learner.alpha)
    assert not same(with_rows.learner.params.critic, without.learner.params.critic)


def test_the_actor_depends_on_imagined_rows_through_the_critic_alone():
    agent = small("sac", "maxinfo")
    taught, data = imagining(agent), batches(size=SIZE)
    steps = [quick(lambda s, d, a=a: a.critic_step(s, d, KEY, NOW)) for a in (taught, agent)]
    (s, _, seen), (plain, _, latents) = (step(fresh(a), data) for step, a in zip(steps, (taught, agent)))
    assert same(seen, latents)
    s = eqx.tree_at(lambda s: s.learner, s, plain.learner)
    act = quick(lambda s, e: agent.actor_step(s, data, e, KEY, NOW)[0].learner)
    assert same(act(s, seen), act(plain, latents))


def test_a_share_of_nothing_adds_nothing():
    agent, off = small("sac", "maxinfo"), imagining(small("sac", "maxinfo"), gates(share=0.0))
    data = batches(size=SIZE)
    latents = agent.base.latents(fresh(agent).learner, data)
    rows = critic_rows(data, latents, PLAIN, lambda obs: obs)
    assert rows.batch is data and rows.latents is latents and rows.weight is None and not rows.metrics
    assert off.imagination(fresh(off), latents, NOW) is None and off.most_terminated is None
    assert same(fresh(agent), fresh(off)) and not any("record" in name for name in leaves(fresh(off)))


def test_a_model_that_is_not_finite_is_not_hidden_by_a_gate():
    agent = imagining(small("ddpg", "eps"), gates(start=99))
    state = fresh(agent)
    broken = jax.tree.map(lambda x: x * jnp.nan, state.model.members)
    state = eqx.tree_at(lambda s: s.model.members, state, broken)
    metrics = quick(lambda s, d: agent.critic_step(s, d, KEY, NOW)[1])(state, batches(size=SIZE))
    assert metrics["model/used"] == 0 and jnp.isnan(metrics["train/critic_loss"])


# ------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"algo": "sac"}, "this agent has none"),
        ({"algo": "maxinfo-rnd-sac"}, "RND does not predict the next state"),
        ({"algo": "maxinfo-drq", "env": "pixels/pendulum-hanging"}, "this base has an encoder"),
        ({"algo": "maxinfo-crossq"}, "batch norm of this base's critics"),
        ({"algo": "maxinfo-sac", "model_share": 1.0}, "from 0 to below 1"),
        ({"algo": "maxinfo-sac", "model_share": -0.1}, "from 0 to below 1"),
        ({"algo": "maxinfo-sac", "model_share": 0.001}, "is no row"),
        ({"algo": "maxinfo-sac", "model_share": 0.999}, "replace all 256"),
        ({"algo": "maxinfo-sac", "prior_data": "x.npz", "prior_share": 0.95}, "replace all 13 .* or --prior-share"),
        ({"base": "sac", "explore": "eps", "intrinsic": "curiosity", "set": (("intrinsic.members", 1),)}, "one member"),
        ({"algo": "maxinfo-sac", "set": (("intrinsic.model_rows.share", 2.0),)}, "from 0 to below 1"),
        ({"algo": "maxinfo-sac", "set": (("intrinsic.model_rows.start", -1),)}, "model_rows.start"),
        ({"algo": "maxinfo-sac", "set": (("intrinsic.model_rows.most_error", -1.0),)}, "model_rows.most_error"),
    ],
)
def test_what_cannot_imagine_is_refused(given, sentence):
    with pytest.raises(BadInput, match=sentence):
        resolve(Settings(**{"env": "Pendulum-v1", "model_share": 0.05} | given))


def test_the_flag_and_the_gates_reach_the_agent():
    asked = (("intrinsic.model_rows.start", 5), ("intrinsic.model_rows.batch_norm", True))
    for algo in ("maxinfo-crossq", "eps-maxinfo-curiosity-sac"):
        _, agent = resolve(Settings(algo=algo, env="Pendulum-v1", model_share=0.05, set=asked))
        assert agent.intrinsic.model_rows == ModelRows(share=0.05, start=5, batch_norm=True)
    assert resolve(Settings(algo="sac", env="Pendulum-v1", model_share=0.0))[1] == algorithm("sac")


# ------------------------------------------------------------ what a run says


def test_a_task_that_terminates_is_told_once():
    said, told = [], TellUnused(0.01, lambda sentence: said.append(sentence))
    run = RunView(None, None)  # type: ignore[arg-type]
    for share in (0.01, 0.04, 0.05):
        told.on_log(run, {"model/terminated": share})
    told.on_log(run, {})
    assert len(said) == 1 and said[0].startswith("4.0% of the transitions terminate")


def test_advice_names_the_gate_that_is_shut():
    def advice(updates=100.0, **seen):
        shown = {"terminated": 0.0, "state_error": 0.05, "reward_error": 0.05} | seen
        one = np.ones(1)
        metrics = {f"model/{name}": Series(one, one, value * one) for name, value in shown.items()}
        logs = RunLogs(None, "a", "b", 0, 1, "", {}, {}, metrics)  # type: ignore[arg-type]
        return why_unused(logs, ModelRows(share=0.1, start=50), updates)

    assert "2.0% of the transitions terminate" in advice(terminated=0.02)
    assert "begin after 50 updates" in advice(updates=49)
    assert "error of the state is 0.200" in advice(state_error=0.2)
    assert "error of the reward is 0.200" in advice(reward_error=0.2)
    assert "members disagree" in advice()


GIVEN = {"batch_size": SIZE, "learning_starts": 4, "model_share": 0.25, "eval_episodes": 0, "log_every": 10}
GATES = {f"intrinsic.model_rows.{n}": getattr(OPEN, n) for n in ("start", "most_error", "most_disagreement")}


@pytest.mark.slow
def test_a_run_logs_explains_and_resumes_bit_for_bit(tmp_path):
    sets = {"base.hidden": (8, 8), "intrinsic.members": 2} | GATES
    make = lambda: maxinforl.make("maxinfo-sac", "Pendulum-v1", set=sets, save_every=20, **GIVEN)
    make().learn(40, out=tmp_path / "whole")
    stop = lambda run, metrics: run.step < 20
    make().learn(40, out=tmp_path / "part", callback=stop)
    maxinforl.resume(tmp_path / "part")
    agents = [maxinforl.load(tmp_path / name).acting_state()[1] for name in ("whole", "part")]
    assert same(*agents) and leaves(agents[0].model.record)[".error"][0] != 1
    last = json.loads((tmp_path / "part" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["model/used"] == 1 and last["model/recent_error_of_mean"] > 0
    text = maxinforl.experiments.inspection.inspect(tmp_path / "part")
    assert "imagined rows of the critics' batches" in text and "imagined rows counted lately" not in text
