"""Every pixel base x strategy x intrinsic reward, and how often each agent encodes an image in one update."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import pytest

from core_helpers import cheap, fresh, quick
from maxinforl.algorithms import DEFAULT_INTRINSIC, INTRINSICS, compose
from maxinforl.config import from_plain, to_plain
from maxinforl.core import networks
from maxinforl.core.encoders import STRIDES
from maxinforl.core.types import clock
from maxinforl.core.update import update
from pixel_helpers import SPEC, batches, named, small

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
PAIRS = [("none", None)] + [
    (explore, intrinsic)
    for explore in DEFAULT_INTRINSIC
    for intrinsic in INTRINSICS
    if (explore, intrinsic) != ("maxinfo", "curiosity")
]


@pytest.fixture(autouse=True)
def _quick_to_trace(monkeypatch):
    monkeypatch.setattr(networks, "orthogonal", cheap)


def kinds(tree):
    """Shape, dtype and weak type of every leaf, by name."""
    return {
        jax.tree_util.keystr(path): (leaf.shape, leaf.dtype, leaf.weak_type)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


# Everything on DrQv2; on the two others every strategy, with its own intrinsic reward.
COMBINATIONS = [("drqv2", *pair) for pair in PAIRS] + [
    (base, *pair) for base in ("drq", "drm") for pair in [("none", None), *DEFAULT_INTRINSIC.items()]
]


@pytest.mark.parametrize(("base", "explore", "intrinsic"), COMBINATIONS)
def test_every_combination_is_traced_and_stays_what_it_was(base, explore, intrinsic):
    """An update, which a scan must be able to carry, and an action."""
    agent = small(compose(base, explore, intrinsic))
    assert from_plain(to_plain(agent)) == agent
    data = jax.eval_shape(lambda: batches(agent.base.nstep))
    state = jax.eval_shape(lambda: agent.init(KEY, SPEC))
    after, metrics = jax.eval_shape(lambda s, d: update(agent, s, d, KEY, clock()), state, data)
    assert kinds(after) == kinds(state)
    assert not any(weak for _, _, weak in kinds(state).values())
    assert all(m.shape == () for m in metrics.values())
    obs = jax.eval_shape(lambda: batches(1, None).obs)
    for explore_now in (True, False):
        action = jax.eval_shape(lambda s, o, e=explore_now: agent.act(s, o, KEY, clock(), explore=e), state, obs)
        assert (action.shape, action.dtype) == ((6, 2), "float32")


LAYERS = len(STRIDES)
BACKWARD = 2 * LAYERS - 1  # weights of every layer, and inputs of all but the first
# Images encoded forward in one update: s and s' (or s_n) before the critic's step, s again after it for the actor;
# a critic of the gain's own bootstraps one step on while the task's goes n: one more. Latents, embedding, target
# policy and dormant ratio are read off passes that happen anyway.
PASSES = {"drq": 3, "maxinfo-drq": 3, "drqv2": 3, "maxinfo-drqv2": 4, "drm": 3, "maxinfo-drm": 4}


@pytest.mark.parametrize("algo", PASSES)
def test_an_update_encodes_as_few_images_as_the_algorithm_allows(algo):
    agent = named(algo)
    if agent.base.plasticity is not None:  # a perturbation encodes nothing and takes long to compile
        agent = replace(agent, base=replace(agent.base, plasticity=replace(agent.base.plasticity, every=0)))
    program = quick(lambda s, d: update(agent, s, d, KEY, clock()))
    text = program.lower(fresh(agent, spec=SPEC), batches(agent.base.nstep)).compile().as_text()
    assert len(re.findall(r" convolution\(", text)) == PASSES[algo] * LAYERS + BACKWARD
