"""What the tests of the core share: small agents, batches, plain gradient descent and quick compilation."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from maxinforl.algorithms import algorithm, compose
from maxinforl.core import networks
from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.heads import Categorical, Quantile
from maxinforl.core.multiplier import Tuned
from maxinforl.core.program import Program
from maxinforl.core.types import Backup, Batch, Spec, clock
from maxinforl.core.update import TrainState, update
from maxinforl.intrinsic import InfoGain
from maxinforl.replay import Replay
from maxinforl.transition import Transition

SPEC = Spec((3,), 2)
HIDDEN = (16, 16)
jit = jax.jit
NOW = clock(step=5, update=5, total=100)


@cache
def options() -> dict:
    """Compiler options that shorten compilation five-fold; none where this XLA does not know them."""
    wanted = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x + 1, compiler_options=wanted)(jnp.zeros(()))
    except Exception:
        return {}
    return wanted


def quick(function, **more):
    """jit for programs that run a few times only."""
    return jit(function, **more | {"compiler_options": options()})


# ------------------------------------------------------------ small agents


def shrink(agent, hidden=HIDDEN, members=3, policy_delay=2, critics=3):
    """The same agent with small networks."""
    base = replace(
        agent.base,
        hidden=hidden,
        policy_delay=min(policy_delay, agent.base.policy_delay),
        critics=min(critics, agent.base.critics),
        **narrow(agent.base),
    )
    agent = replace(agent, base=base)
    if not hasattr(agent, "intrinsic"):
        return agent
    return replace(agent, intrinsic=replace(agent.intrinsic, hidden=hidden, members=members))


def narrow(base: ActorCritic) -> dict:
    """Small networks and heads of a modern base."""
    nets = {name: getattr(base, name) for name in ("critic_net", "actor_net")}
    found = {name: replace(net, width=8) for name, net in nets.items() if net is not None}
    heads = {Categorical: {"atoms": 5}, Quantile: {"quantiles": 4}}
    return found | {"head": replace(base.head, **heads.get(type(base.head), {}))}


def small(*names: str):
    """A small agent by base, strategy and intrinsic reward."""
    return shrink(compose(*names))


def named(algo: str):
    return shrink(algorithm(algo))


def cheap(key, fan_in, fan_out):
    """A stand-in for the orthogonal initialiser that compiles in no time."""
    return jax.random.normal(key, (fan_in, fan_out)) / fan_in**0.5


@cache
def fresh(agent, seed=0, spec=SPEC):
    """A state of the agent without compiling its initialisation as a whole; never to be donated."""
    kept, networks.orthogonal = networks.orthogonal, cheap
    try:
        return agent.init(jax.random.key(seed), spec)
    finally:
        networks.orthogonal = kept


# ------------------------------------------------------------ plain gradient descent: a step shows its gradient


@dataclass(frozen=True)
class Descent(ActorCritic):
    hidden: tuple[int, ...] = HIDDEN
    lr: float = 0.1

    @property
    def optimizer(self):
        return optax.sgd(self.lr)


@dataclass(frozen=True)
class DescentWeight(Tuned):
    lr: float = 0.1

    @property
    def optimizer(self):
        return optax.sgd(self.lr)


@dataclass(frozen=True)
class DescentGain(InfoGain):
    members: int = 3
    hidden: tuple[int, ...] = HIDDEN
    lr: float = 0.1

    @property
    def optimizer(self):
        return optax.sgd(self.lr)


DESCENT = Descent(alpha=DescentWeight(start=0.5))


def descending(*names: str):
    """A small agent by its parts, whose learner descends plainly."""
    agent = small(*names)
    parts = {f.name: getattr(agent.base, f.name) for f in fields(ActorCritic)}
    return replace(agent, base=Descent(**parts | {"lr": DESCENT.lr, "alpha": DESCENT.alpha}))


# ------------------------------------------------------------ data


def batches(count=None, size=8, seed=0, gamma=0.9, nstep=False, spec=SPEC) -> Batch:
    """Random transitions, some of them terminations; `count` of them on a leading axis."""
    rng = np.random.default_rng(seed)
    lead = (size,) if count is None else (count, size)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32)

    def backup(discount):
        going = jnp.asarray(rng.random(lead) > 0.25, jnp.float32)
        return Backup(draw(), discount * going, draw(*spec.obs))

    later = backup(gamma**3) if nstep else None
    action = jnp.tanh(draw(spec.action))
    return Batch(draw(*spec.obs), action, backup(gamma), later, jnp.full(lead, gamma, jnp.float32))


def transition(lanes=1, seed=0, spec=SPEC, **fields) -> Transition:
    """One step of every environment."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(lanes, *spec.obs)).astype(np.float32)
    action = np.tanh(rng.normal(size=(lanes, spec.action))).astype(np.float32)
    no = np.zeros(lanes, bool)
    whole = Transition(action, rng.normal(size=lanes).astype(np.float32), no, no, obs, obs, ~no)
    return whole._replace(**fields)


@cache
def filled(lanes=1, rows=32, steps=12, seed=0, spec=SPEC) -> Replay:
    """A replay that holds `steps` transitions per lane, with a termination and a truncation among them."""
    replay = Replay.create(lanes, rows, spec.obs, jnp.float32, spec.action)
    replay = replay.begin(jnp.zeros((lanes, *spec.obs)))
    add = quick(lambda r, t: r.add(t))
    for i in range(steps):
        ends = np.full(lanes, True)
        end = {4: {"terminated": ends}, 8: {"truncated": ends}}.get(i, {})
        replay = add(replay, transition(lanes, seed * 1000 + i, spec, **end))
    return replay


def train_state(program: Program, seed=0, replay: Replay | None = None, total=100) -> TrainState:
    replay = jax.tree.map(jnp.copy, filled(spec=program.spec) if replay is None else replay)
    agent = jax.tree.map(jnp.copy, fresh(program.agent, seed, program.spec))
    return TrainState(agent, replay, clock(total=total), jnp.asarray(seed, jnp.int32))


# ------------------------------------------------------------ running and comparing


@cache
def updater(agent):
    """One compiled `update` per agent: (state, batches, key, clock) -> (state, metrics)."""
    return quick(partial(update, agent))


def run(agent, state, data=None, seed=0, now=NOW, key=None):
    """The state after one update."""
    data = batches(1 if agent.base.delay_across_steps else agent.base.policy_delay) if data is None else data
    return updater(agent)(state, data, jax.random.key(seed) if key is None else key, now)[0]


def leaves(tree) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def same(a, b) -> bool:
    """Bit for bit."""
    a, b = leaves(a), leaves(b)
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)


def close(a, b, rtol=1e-5, atol=1e-6):
    """Every leaf, with the name of the first that differs."""
    a, b = leaves(a), leaves(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=atol, err_msg=name)


def finite(tree) -> bool:
    return all(np.isfinite(x).all() for x in leaves(tree).values() if np.issubdtype(x.dtype, np.floating))


def constant_critics(learner, values):
    """The learner with critic k of every channel, target and online, worth values[channel][k] everywhere."""
    values = jnp.asarray(values, jnp.float32)
    outputs = lambda s: [c.heads.layers[-1] for c in (s.params.critic, s.target.critic)]
    flat = lambda layer: eqx.tree_at(
        lambda d: (d.weight, d.bias), layer, (jnp.zeros_like(layer.weight), values.reshape(layer.bias.shape))
    )
    return eqx.tree_at(outputs, learner, [flat(layer) for layer in outputs(learner)])


def constant_actor(actor, mean, log_std=None):
    """The actor with outputs that do not depend on the observation."""
    out = jnp.asarray(mean if log_std is None else [*mean, *log_std], jnp.float32)
    layer = lambda a: (a.head.layers[-1].weight, a.head.layers[-1].bias)
    return eqx.tree_at(layer, actor, (jnp.zeros_like(layer(actor)[0]), out))
