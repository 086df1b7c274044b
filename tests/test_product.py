"""The product of bases, strategies and intrinsic rewards: every one traced, those that cover all pairs compiled."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import permutations, product
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import NOW, SPEC, batches, finite, fresh, leaves, named, quick, shrink, small
from maxinforl import listing
from maxinforl.algorithms import BASES, CATALOGUE, INTRINSICS, STRATEGIES, Algo, algorithm, compose, with_uncertainty
from maxinforl.config import from_plain, override, to_plain
from maxinforl.core.plasticity import Dormant
from maxinforl.core.policies import Linear, Optimism
from maxinforl.core.types import Clock
from maxinforl.core.update import update
from maxinforl.errors import BadInput
from maxinforl.experiments.cost import step_cost
from maxinforl.explore import Epsilon, Fixed, IntrinsicSum, MaxInfo, Plain, Switch, Then, Tied, Tuned
from maxinforl.intrinsic import RND, Disagreement, InfoGain
from maxinforl.settings import PRESETS

VECTORS = [name for name, base in BASES.items() if not base.encoder.pixels]  # images: tests/test_pixels_*.py
GUIDED = [name for name in STRATEGIES if name != "none"]
REFUSED = {("maxinfo", "curiosity")}
PRODUCT = [(b, "none", None) for b in VECTORS] + [
    (b, e, i) for b in VECTORS for e in GUIDED for i in INTRINSICS if (e, i) not in REFUSED
]


def known(parts, **size):
    return shrink(compose(*(p for p in parts if p is not None)), **size)


# ------------------------------------------------------------ traced


def shapes(tree):
    return {
        jax.tree_util.keystr(p): (x.shape, x.dtype, x.weak_type) for p, x in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.slow
def test_every_state_is_stable_under_scan():
    """Shape, dtype and weak type of every leaf are the same after an update, for all that SAC combines with; all can
    act. The other bases are compiled below, where a state that changes is traced twice."""
    for parts in [p for p in PRODUCT if p[0] == "sac"]:
        agent = known(parts, hidden=(8,))  # the shorter, the quicker to trace
        data = batches(agent.base.policy_delay, size=4)
        s = jax.eval_shape(lambda k, agent=agent: agent.init(k, SPEC), jax.random.key(0))
        after, metrics = jax.eval_shape(
            lambda s, k, agent=agent, data=data: update(agent, s, data, k, NOW), s, jax.random.key(0)
        )
        assert shapes(after) == shapes(s), parts
        assert not any(weak for *_, weak in shapes(s).values()), parts
        assert all(m.shape == () for m in metrics.values()) and "train/critic_loss" in metrics, parts
        action = jax.eval_shape(
            lambda s, k, agent=agent, data=data: agent.act(s, data.obs[0], k, NOW, explore=True), s, jax.random.key(0)
        )
        assert (action.shape, action.dtype) == ((4, 2), jnp.float32), parts


# ------------------------------------------------------------ compiled


CLASSES = ("maxinfo", "sum", "eipo", "eps")  # `then` is `eps` with another schedule


def pairwise():
    """Every base with every strategy, each of them with another intrinsic reward: for each base the order of rewards
    that makes most strategies meet one that they have not met yet."""
    rows = [list(zip(CLASSES, order)) for order in permutations(INTRINSICS)]
    rows = [row for row in rows if not REFUSED & set(row)]
    chosen, met = [(b, "none", None) for b in VECTORS], set()
    for base in VECTORS:
        row = max(rows, key=lambda row: len(set(row) - met))
        chosen += [(base, *pair) for pair in row]
        met |= set(row)
    return chosen


COVER = pairwise()


def test_the_cover_covers():
    """All pairs of base x strategy, base x intrinsic and strategy x intrinsic but those that are refused."""
    guided = [c for c in COVER if c[1] != "none"]
    assert {c[:2] for c in COVER} == set(product(VECTORS, ("none", *CLASSES)))
    assert {(base, intrinsic) for base, _, intrinsic in guided} == set(product(VECTORS, INTRINSICS))
    assert {c[1:] for c in guided} == set(product(CLASSES, INTRINSICS)) - REFUSED
    assert len(COVER) == 5 * len(VECTORS)


@pytest.mark.slow
@pytest.mark.parametrize("parts", COVER, ids=lambda p: "-".join(x for x in p if x))
def test_a_combination_learns_and_acts_with_finite_numbers(parts):
    """Compiled once for two updates, on which every trained part moves, and an action in the box."""
    agent, traces = known(parts), []

    @quick
    def live(s, data, key, now):
        traces.append(parts)
        s, metrics = update(agent, s, data, key, now)
        return s, metrics, agent.act(s, data.obs[0], key, now, explore=True)

    s = before = fresh(agent)
    data, now = batches(agent.base.policy_delay, size=8), NOW._replace(update=NOW.update - 1)  # a delay of 2 is through
    for i in range(2):
        s, metrics, action = live(s, data, jax.random.key(i), now)
        now = now._replace(update=now.update + agent.base.policy_delay)
    assert len(traces) == 1
    assert finite(s) and finite(metrics) and finite(action)
    assert (np.abs(action) <= 1).all()
    still = {k for k, x in leaves(s).items() if np.array_equal(x, leaves(before)[k])}
    moving = [k for k in still if "params" in k or "target" in k or "members" in k]
    assert not moving, moving


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: compose("sacc"), "did you mean 'sac'"),
        (lambda: compose("sac", "maxinf"), "did you mean 'maxinfo'"),
        (lambda: compose("sac", "maxinfo", "info"), "unknown intrinsic reward 'info'"),
        (lambda: compose("sac", "maxinfo", "curiosity"), "Curiosity does not implement score"),
        (lambda: compose("sac", "none", "rnd"), "no effect without a strategy"),
        (lambda: algorithm("max-info-sac"), "did you mean 'maxinfo-sac'"),
        (lambda: MaxInfo(BASES["ddpg"], weight=Tied()), "deterministic policy"),
        (lambda: Tuned(start=0.0), "use Fixed for 0"),
        (lambda: Tuned(lr=0.0), "finite number above 0"),
        (lambda: Tuned(lr=float("inf")), "finite number above 0"),
        (lambda: Tuned(clip=-1.0), "bound on the gradient"),
        (lambda: IntrinsicSum(weight=Fixed(0.0)), "which must be at least 1e-08"),
        (lambda: replace(algorithm("eipo-sac"), weight=Fixed(0.0)), "which must be at least 1e-08"),
        (lambda: Then(period=0), "schedule.period must be at least 1"),
        (lambda: Then(fraction=1.5), "schedule.fraction must lie between 0 and 1"),
        (lambda: Epsilon(period=-1), "schedule.period must be at least 1"),
        (lambda: Epsilon(at=1.0), "`at` below 1"),
        (lambda: Epsilon(start=float("nan")), "schedule.start"),
        (lambda: Linear(1.0, 0.1, 0), "at least 1 step"),
        (lambda: Dormant(start=1.5), "`start` from 0 to 1"),
        (lambda: Dormant(threshold=-0.1), "no negative `threshold`"),
        (lambda: Dormant(sharpness=-1.0), "no negative `threshold`"),
        (lambda: Dormant(factor=-1.0), "no negative `threshold`"),
        (lambda: replace(BASES["sac"], critics=1), "first lower base.num_min_critics"),
        (lambda: replace(BASES["ddpg"], optimism=Optimism()), "deterministic"),
        (lambda: replace(BASES["sac"], critics=0), "base.critics must be at least 1"),
        (lambda: replace(BASES["sac"], hidden=(16, 0)), "base.hidden must be at least 1"),
        (lambda: replace(BASES["sac"], gamma=1.5), "base.gamma"),
        (lambda: replace(BASES["sac"], lr=float("nan")), "base.lr"),
        (lambda: replace(BASES["sac"], critic_reduction="max"), "unknown base.critic_reduction 'max'"),
        (lambda: Disagreement(members=1), "at least 2 members"),
        (lambda: InfoGain(noise=0.0), "noise"),
        (lambda: InfoGain(aggregate="avg"), "unknown aggregate 'avg'"),
        (lambda: RND(activation="relo"), "did you mean 'relu'"),
        (lambda: Fixed(-1.0), "not negative"),
        (lambda: with_uncertainty(algorithm("maxinfo-sac"), "heavy"), "unknown uncertainty"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(ask, sentence):
    with pytest.raises(BadInput) as error:
        ask()
    assert sentence in str(error.value) and "\n" not in str(error.value)


# ------------------------------------------------------------ the catalogue


@pytest.mark.parametrize("algo", CATALOGUE)
def test_a_catalogue_name_is_a_value(algo):
    """It hashes, equals itself built anew, survives the round trip through plain tables, and shrinks."""
    agent = algorithm(algo)
    again = from_plain(to_plain(agent))
    assert again == agent and hash(again) == hash(agent) == hash(algorithm(algo))
    assert type(again) is type(agent) and _plain(to_plain(agent))
    assert named(algo) != agent


def _plain(value):
    if isinstance(value, dict):
        return all(isinstance(k, str) and _plain(v) for k, v in value.items())
    return all(_plain(v) for v in value) if isinstance(value, list) else isinstance(value, (str, int, float, bool))


def test_the_catalogue_is_the_papers():
    """What each name adds to its parts."""
    assert set(CATALOGUE) == set(get_args(Algo))
    assert algorithm("sac") == Plain(BASES["sac"])
    oac = algorithm("maxinfo-oac").base.optimism
    assert (oac.beta, oac.shift) == (1.0, 2.0)
    rnd = algorithm("maxinfo-rnd-sac")
    assert (rnd.weight.clip, rnd.intrinsic.embedding, rnd.intrinsic.target_hidden) == (0.5, 1, (32, 32))
    assert algorithm("eps-maxinfo-sac").schedule.period == 32
    assert algorithm("disagreement-sac").schedule == Then(0.25, 1)
    assert isinstance(algorithm("curiosity-sac"), Switch)
    assert algorithm("intrinsic-sac").weight == Fixed(1.0)
    assert algorithm("eipo-sac").weight == Tuned(start=1.0, lr=3e-4)
    light = with_uncertainty(algorithm("maxinfo-sac"), "light")
    assert light.intrinsic.hidden == (32, 32) and with_uncertainty(light, "paper").intrinsic.hidden == (256, 256)


def test_the_lists_are_printed_whole(capsys):
    """`maxinforl list` with the section of the paper that each name is from, and `maxinforl list --preset`."""
    sections = {
        "2": "sac",
        "3": "maxinfo-sac",
        "3.1": "eps-maxinfo-sac",
        "4": "disagreement-sac curiosity-sac intrinsic-sac eipo-sac drq drqv2 maxinfo-drq maxinfo-drqv2",
        "appendix": "redq maxinfo-redq oac maxinfo-oac maxinfo-rnd-sac eps-maxinfo-curiosity-sac drm maxinfo-drm",
        "-": "ddpg droq maxinfo-ddpg maxinfo-droq simba crossq bro xqc"
        " maxinfo-simba maxinfo-crossq maxinfo-bro maxinfo-xqc",
    }
    listing.show_algorithms()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    printed = {row[0]: row[4] for row in rows if row and row[0] in CATALOGUE}
    assert printed == {name: section for section, names in sections.items() for name in names.split()}
    listing.show_presets()
    said = capsys.readouterr().out
    assert all(f"\n{preset.name} " in said for preset in PRESETS)
    assert "learning_starts=500" in said and "base.hidden=(1024, 1024)" in said and "flags win" in said


@pytest.mark.slow
def test_the_listed_costs_are_those_of_the_updates():
    sac = step_cost("sac")
    assert {name: float(f"{step_cost(name) / sac:.2g}") for name in CATALOGUE} == listing.STEP_COST


def test_every_part_round_trips():
    """Every value the product is made of, and one with every field changed."""
    for agent in (compose(*(p for p in parts if p)) for parts in PRODUCT):
        assert from_plain(to_plain(agent)) == agent
    odd = override(override(algorithm("maxinfo-sac"), "base.lr", 1e-4), "weight", {"kind": "Fixed", "number": 0.25})
    odd = override(odd, "intrinsic.hidden", [8, 8, 8])
    assert (odd.base.lr, odd.weight, odd.intrinsic.hidden) == (1e-4, Fixed(0.25), (8, 8, 8))
    assert from_plain(to_plain(odd)) == odd


def test_none_survives_the_round_trip():
    """A field that is None is left out and comes back as None, not as the default."""
    agent = algorithm("oac")
    agent = replace(agent, base=replace(agent.base, optimism=None))
    assert from_plain(to_plain(agent)).base.optimism is None


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"kind": "Plain", "base": {"kind": "Evil"}}, "unknown kind in [agent.base]"),
        ({"kind": "Plain", "bas": {}}, "did you mean 'base'"),
        ({"kind": "Tuned", "start": "one"}, "must be a finite number"),
        ({"kind": "Tuned", "start": True}, "must be a finite number"),
        ({"kind": "InfoGain", "members": 2.5}, "must be a whole number"),
        ({"kind": "InfoGain", "hidden": [8, "x"]}, "must be a whole number"),
        ({"start": 1.0}, "unknown kind"),
    ],
)
def test_a_wrong_table_is_refused_with_a_sentence(table, sentence):
    with pytest.raises(BadInput) as error:
        from_plain(table)
    assert sentence in str(error.value)


def test_configurations_hold_names_and_numbers_only():
    """So that they hash stably and can be written down."""

    def walk(value):
        assert isinstance(value, (str, int, float, bool, type(None), tuple)) or is_dataclass(value), value
        for part in value if isinstance(value, tuple) else ():
            walk(part)
        if is_dataclass(value):
            for f in fields(value):
                walk(getattr(value, f.name))

    for algo in CATALOGUE:
        walk(algorithm(algo))


def test_a_users_own_bonus_is_one_small_class():
    """A frozen dataclass on `Ensemble` with `score` joins every strategy; under MaxInfo it replaces the gain."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Bold(InfoGain):
        def score(self, model, z, action):
            return jnp.square(action).sum(-1)

    agent = replace(small("sac", "maxinfo"), intrinsic=Bold(members=2, hidden=(8,)))
    s = jax.eval_shape(lambda k: agent.init(k, SPEC), jax.random.key(0))
    after, _ = jax.eval_shape(lambda s: update(agent, s, batches(1), jax.random.key(0), NOW), s)
    assert shapes(after) == shapes(s)
    assert from_plain(to_plain(agent), custom=[Bold]) == agent


def test_clock_counts_in_whole_numbers():
    assert isinstance(NOW, Clock) and all(x.dtype == jnp.int32 and not x.weak_type for x in NOW)
