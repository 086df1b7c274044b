"""Five tiny problems whose values are known in closed form, learned by the compiled program from hand-fed steps."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import constant_critics, quick, shrink, train_state
from maxinforl.algorithms import algorithm
from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.program import Program
from maxinforl.core.types import Spec
from maxinforl.explore import Fixed, Plain
from maxinforl.replay import Replay
from maxinforl.transition import Transition

SPEC = Spec((1,), 1)
GAMMA = 0.5
QUICK = {"gamma": GAMMA, "lr": 3e-3, "tau": 0.05, "hidden": (32, 32)}
SAC = Plain(ActorCritic(alpha=Fixed(0.0), **QUICK))  # type: ignore[arg-type]


def experience(steps):
    """A replay of (action, reward, terminated, truncated, next observation, observation to act on next)."""
    replay = Replay.create(1, 256, (1,), jnp.float32, 1).begin(jnp.zeros((1, 1)))
    add = quick(lambda r, t: r.add(t))
    one = lambda x, dtype=np.float32: np.asarray([x], dtype)
    for action, reward, terminated, truncated, successor, obs in steps:
        flags = one(terminated, bool), one(truncated, bool)
        replay = add(
            replay, Transition(one([action]), one(reward), *flags, one([successor]), one([obs]), one(True, bool))
        )
    return replay


def learned(agent, steps, updates=1500, indifferent=False):
    """The learner after so many updates on those steps; its critics start at 0 everywhere if `indifferent`."""
    program = Program(agent, SPEC, batch_size=32)

    @quick
    def live(s):
        tick = lambda s: replace(s, clock=s.clock._replace(step=s.clock.step + 1))
        return jax.lax.scan(lambda s, _: (program.learn(tick(s))[0], None), s, length=updates)[0]

    s = train_state(program, replay=experience(steps))
    if indifferent:
        s = eqx.tree_at(lambda s: s.agent.learner, s, constant_critics(s.agent.learner, [[0.0, 0.0]]))
    return live(s).agent.learner


def values(learner, obs, actions):
    """What the first critic says of each action at the observation."""
    a = jnp.asarray(actions, jnp.float32)[:, None]
    return np.asarray(SAC.base.q(learner.params.critic, jnp.full_like(a, obs), a)[0, 0])


def mode(agent, learner, obs=0.0):
    return float(agent.base.policy.mode(agent.base.pi(learner.params.actor, jnp.asarray([[obs]])))[0, 0])


ACTIONS = np.linspace(-0.9, 0.9, 60)


@pytest.mark.slow
def test_probe_one_step_reward():
    """Episodes of one step that pay 1.5: Q = 1.5 whatever the action."""
    s = learned(SAC, [(a, 1.5, True, False, 0.5, 0.0) for a in ACTIONS])
    np.testing.assert_allclose(values(s, 0.0, [-0.8, 0.0, 0.8]), 1.5, atol=0.03)


@pytest.mark.slow
def test_probe_discounting_over_two_steps():
    """Nothing, then 1: Q(second) = 1, Q(first) = gamma."""
    steps = [s for a in ACTIONS for s in ((a, 0.0, False, False, 1.0, 1.0), (a, 1.0, True, False, 2.0, 0.0))]
    s = learned(SAC, steps)
    np.testing.assert_allclose(values(s, 1.0, [-0.5, 0.5]), 1.0, atol=0.03)
    np.testing.assert_allclose(values(s, 0.0, [-0.5, 0.5]), GAMMA, atol=0.03)


def test_probe_entropy_is_discounted_with_the_value():
    """The same with alpha = 0.5: the second policy becomes uniform, so Q(first) = gamma (1 + 0.5 ln 2)."""
    steps = [s for a in ACTIONS for s in ((a, 0.0, False, False, 1.0, 1.0), (a, 1.0, True, False, 2.0, 0.0))]
    s = learned(replace(SAC, base=replace(SAC.base, alpha=Fixed(0.5))), steps)
    np.testing.assert_allclose(values(s, 1.0, [-0.5, 0.5]), 1.0, atol=0.04)
    np.testing.assert_allclose(values(s, 0.0, [-0.5, 0.5]), GAMMA * (1 + 0.5 * np.log(2)), atol=0.04)


def test_probe_policy_choice():
    """The action decides the reward, best at 0.5 in one state and at -0.5 in the other: the policy finds both."""
    steps = []
    for i, a in enumerate(ACTIONS):
        at, then = (1.0, 0.0) if i % 2 else (0.0, 1.0)
        steps.append((a, -((a - 0.5 * (1 - 2 * at)) ** 2), True, False, 3.0, then))
    agent = replace(SAC, base=replace(SAC.base, alpha=Fixed(0.003)))
    s = learned(agent, steps, 2500)
    assert mode(agent, s, 0.0) == pytest.approx(0.5, abs=0.12)
    assert mode(agent, s, 1.0) == pytest.approx(-0.5, abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(("terminated", "value"), [(True, 1.0), (False, 1 / (1 - GAMMA))])
def test_probe_truncation_bootstraps_and_termination_does_not(terminated, value):
    """One state, reward 1, an end after every step: r / (1 - gamma) if it is a time limit, r if it is an end."""
    s = learned(SAC, [(a, 1.0, terminated, not terminated, 0.0, 0.0) for a in ACTIONS])
    np.testing.assert_allclose(values(s, 0.0, [-0.5, 0.5]), value, atol=0.04)


@pytest.mark.slow
def test_probe_only_information_gain_separates_the_arms():
    """A bandit that never pays; the left arm's outcome is known, the right arm was never tried: MaxInfo goes there.

    Critics that start at 0 stay there, since nothing pays: no extrapolation decides.
    """
    known = np.linspace(-1.0, -0.2, 60)
    steps = [(a, 0.0, True, False, 2.0 * a, 0.0) for a in known]
    plain = Plain(replace(SAC.base, alpha=Fixed(0.1)))
    maxinfo = shrink(algorithm("maxinfo-sac"), hidden=(32, 32), members=5)
    maxinfo = replace(maxinfo, base=plain.base, weight=Fixed(0.5), intrinsic=replace(maxinfo.intrinsic, lr=3e-3))
    indifferent, curious = (learned(agent, steps, indifferent=True) for agent in (plain, maxinfo))
    assert not values(indifferent, 0.0, [-0.8, 0.8]).any() and not values(curious, 0.0, [-0.8, 0.8]).any()
    assert abs(mode(plain, indifferent)) < 0.2
    assert mode(maxinfo, curious) > 0.5
