"""The one learner. SAC, REDQ, OAC, DDPG, DroQ, SimBa, CrossQ, BRO, XQC, DrQ, DrQv2 and DrM are values of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.action_noise import CorrelatedNoise
from maxinforl.core.architectures import FeedForward, Network
from maxinforl.core.checks import check_learner
from maxinforl.core.encoders import States
from maxinforl.core.heads import Bellman, Categorical, Quantile, Scalar
from maxinforl.core.layout import Parts
from maxinforl.core.model_rows import critic_rows
from maxinforl.core.multiplier import Constant, Fixed, Multiplier, Tuned
from maxinforl.core.networks import RELU_GAIN, apply_gradients, stacked
from maxinforl.core.observers import BOUND, Moments, ReturnScale
from maxinforl.core.plasticity import Dormant, perturbed
from maxinforl.core.policies import Linear, NoisyDeterministic, Optimism, SquashedGaussian
from maxinforl.core.types import PLAIN, Backup, Batch, Clock, Improvement, Latents, Metrics, Shaping, ShapingFn, Spec

IMAGINED = 2  # folded into a critic step's key for the actions of imagined rows, beyond the keys it splits off


class Actor(eqx.Module):
    trunk: Any
    head: Any  # what its network's `init` gives: an MLP unless `actor_net` says otherwise
    spec: Spec = eqx.field(static=True)  # of what there is to see

    def view(self, inputs: Any) -> Any:
        """What it sees of the critics' inputs."""
        if isinstance(inputs, Parts):
            return Parts(inputs.images[: len(self.spec.seen.images)], inputs.vector[..., : self.spec.seen.vector])
        return inputs[..., : -self.spec.hidden] if self.spec.hidden else inputs


class Critic(eqx.Module):
    trunk: Any
    heads: Any  # as above, with leaves that lead with [channels, critics]


class Params(eqx.Module):
    encoder: Any
    critic: Critic
    actor: Actor


class TargetNetworks(eqx.Module):
    """Polyak averages of critic and actor. There is one encoder, never averaged."""

    critic: Critic
    actor: Actor


class Statistics(eqx.Module):
    """Running statistics of the networks' batch norms; () for networks without."""

    critic: Any  # leaves lead with [channels, critics]
    actor: Any
    target_actor: Any


class Observed(eqx.Module):
    """Statistics of what was inserted into the replay; () where they are not used."""

    observations: Any  # Moments
    returns: Any  # ReturnScale


class Successor(NamedTuple):
    """The next state as networks read it, the policy's action there and its log-probability."""

    inputs: Array
    action: Array
    logp: Array


class Learner(eqx.Module):
    params: Params
    target: TargetNetworks
    value_opt: Any
    actor_opt: Any
    alpha: Multiplier | Constant
    plastic: Any  # DormantState, or () without plasticity
    stats: Statistics
    observed: Observed


def polyak(target: Any, online: Any, tau: float) -> Any:
    """(1 - tau) * target + tau * online.

    `optax.incremental_update` sums in the other order, which rounds differently where XLA fuses multiply and add.
    """
    return jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, target, online)


@dataclass(frozen=True)
class ActorCritic:
    policy: SquashedGaussian | NoisyDeterministic = SquashedGaussian()
    encoder: Any = States()
    hidden: tuple[int, ...] = (256, 256)
    critics: int = 2
    num_min_critics: int = (
        2  # target critics whose minimum is bootstrapped: drawn at random where fewer than all (REDQ)
    )
    critic_reduction: str = "min"  # of the critics in the actor's loss: min (SAC) or mean (REDQ)
    layer_norm: bool = False  # in the critics (DroQ)
    dropout: float = 0.0  # in the critics (DroQ)
    channels: int = 1  # values per critic: 0 = task, 1 = intrinsic; strategies set it
    policy_delay: int = 1  # critic updates per actor step; see `StepFunctions.rounds` for where it does not divide them
    delay_across_steps: bool = False  # whether the delay counts all updates, and not those of one agent step (CrossQ)
    update_ratio: int = 1  # critic updates per transition, where the run does not set another
    nstep: int = 1
    gamma: float = 0.99
    tau: float = 0.005
    actor_tau: float | None = None  # of the target policy; None: `tau`
    lr: float = 3e-4
    lr_schedule: str = "constant"  # from `lr` to `lr_end` over the run: constant, linear or cosine
    lr_end: float = 0.0
    adam_b1: float = 0.9
    weight_decay: float = 0.0  # of every parameter, times the learning rate (AdamW)
    alpha: Tuned | Fixed = Tuned()
    target_entropy: float = -1.0  # per dimension of the action
    noise: Linear = Linear(0.0, 0.0, 1)  # of a deterministic policy, by critic updates and not by agent steps
    optimism: Optimism | None = None  # of the behaviour (OAC)
    action_noise: CorrelatedNoise | None = None  # of the behaviour; None: white
    plasticity: Dormant | None = None  # perturbations and noise that follow dormant neurons (DrM)
    actor_hidden: tuple[int, ...] | None = None  # None: `hidden`
    activation: str = "relu"  # of dense layers
    critic_net: Any = None  # a Network in place of dense layers of `hidden`
    actor_net: Any = None
    head: Scalar | Categorical | Quantile = Scalar()  # what a critic's outputs mean
    target_reduction: str = "min"  # of the critics in the target: min, or mean (BRO)
    normalize_observations: bool = False  # by mean and deviation of all that were acted on (SimBa)
    normalize_returns: bool = False  # divide rewards by the spread of discounted sums of them (XQC)
    reset_at: tuple[int, ...] = ()  # transitions at which networks, optimisers and alpha begin afresh (BRO)
    reset_every: int | None = None  # transitions between such resets
    # where the run sets no other
    gamma_by_length: bool = False  # gamma from the episode's length (`discount_of`)
    warm_up: int = 0  # random transitions before learning, at most a tenth of the run
    batch_size: int = 256

    def __post_init__(self):
        check_learner(self)

    @property
    def optimizer(self):
        if self.weight_decay:
            return optax.adamw(self.lr, b1=self.adam_b1, weight_decay=self.weight_decay)
        return optax.adam(self.lr, b1=self.adam_b1)

    def pace(self, clock: Clock) -> Array | None:
        """The learning rate now as a multiple of `lr`; None where it is constant."""
        if self.lr_schedule == "constant":
            return None
        progress = jnp.clip(clock.step / jnp.maximum(clock.total, 1), 0.0, 1.0)
        done = progress if self.lr_schedule == "linear" else 0.5 * (1 - jnp.cos(jnp.pi * progress))
        return 1 + (self.lr_end / self.lr - 1) * done

    @property
    def of_critic(self) -> Network:
        return self.critic_net or FeedForward(self.hidden, self.activation, self.layer_norm, self.dropout)

    @property
    def of_actor(self) -> Network:
        return self.actor_net or FeedForward(self.actor_hidden or self.hidden, self.activation)

    def init(self, key: Array, spec: Spec) -> Learner:
        k_encoder, k_critic_trunk, k_actor_trunk, k_critic, k_actor = jax.random.split(key, 5)
        z, seen = (self.encoder.latents(each).z for each in (spec, spec.seen))
        head = lambda k: self.of_critic.init(k, z + spec.action, self.head.outputs, RELU_GAIN)
        critic = Critic(
            self.encoder.trunk_init(k_critic_trunk, spec),
            stacked(lambda k: stacked(head, k, self.critics), k_critic, self.channels),
        )
        policy = self.of_actor.init(k_actor, seen, self.policy.outputs(spec.action), self.policy.out_gain)
        actor = Actor(self.encoder.trunk_init(k_actor_trunk, spec.seen), policy, spec)
        params = Params(self.encoder.init(k_encoder, spec), critic, actor)
        return Learner(
            params,
            jax.tree.map(jnp.copy, TargetNetworks(critic, actor)),
            self.optimizer.init((params.encoder, params.critic)),  # type: ignore[arg-type]
            self.optimizer.init(params.actor),  # type: ignore[arg-type]
            self.alpha.init(),
            () if self.plasticity is None else self.plasticity.init(),
            self.init_statistics(z, seen, spec.action),
            self.init_observed(spec),
        )

    def init_statistics(self, z: int, seen: int, actions: int) -> Statistics:
        each = lambda leaf: jnp.broadcast_to(leaf, (self.channels, self.critics, *leaf.shape))
        of_actor = self.of_actor.statistics(seen)
        critic = jax.tree.map(each, self.of_critic.statistics(z + actions))
        return Statistics(critic, of_actor, jax.tree.map(jnp.copy, of_actor))

    def init_observed(self, spec: Spec) -> Observed:
        observations = Moments(spec.obs) if self.normalize_observations else ()
        return Observed(observations, ReturnScale() if self.normalize_returns else ())

    # ------------------------------------------------------------ what was inserted, and beginning afresh

    @property
    def observes(self) -> bool:
        return self.normalize_observations or self.normalize_returns

    def observe(self, s: Learner, obs: Array, sums: Array | None = None, valid: Array | None = None) -> Learner:
        """Statistics with the observations that are acted on next and the discounted sums of rewards so far."""
        observations, returns = s.observed.observations, s.observed.returns
        if self.normalize_observations:
            observations = observations.update(obs)
        if self.normalize_returns and sums is not None and valid is not None:
            returns = returns.update(sums, valid)
        return replace(s, observed=Observed(observations, returns))

    @property
    def resets(self) -> bool:
        return bool(self.reset_at) or self.reset_every is not None

    def reset_due(self, clock: Clock, lanes: int) -> Array:
        """Whether one of the transitions at which networks begin afresh is among the newest, one per environment."""
        before = clock.step - lanes
        passed = [(before < at) & (at <= clock.step) for at in self.reset_at]
        if self.reset_every is not None:
            passed.append(clock.step // self.reset_every > before // self.reset_every)
        return jnp.stack(passed).any()

    def begin_afresh(self, s: Learner, key: Array, spec: Spec) -> Learner:
        """New networks, target networks, optimisers, alpha and batch norms; what was observed stays."""
        channels = jax.tree.leaves(s.params.critic.heads)[0].shape[0]  # as many as its strategy gave it
        return replace(replace(self, channels=channels).init(key, spec), observed=s.observed)

    # ------------------------------------------------------------ evaluating the networks

    def q(self, critic: Critic, inputs: Array, action: Array, key: Array | None = None, stats: Any = ()) -> Array:
        """Every critic's value in evaluation mode: [channels, critics, batch]."""
        return self.head.mean(self.evaluate(critic, stats, inputs, action, key)[0])

    def evaluate(
        self,
        critic: Critic,
        stats: Any,
        inputs: Array,
        action: Array,
        key: Array | None = None,
        joined: Successor | None = None,
    ) -> tuple[Array, Any]:
        """Outputs of every critic, [channels, critics, batch, outputs], and running statistics after the pass.

        With batch norm, `joined` are rows that share the batch's statistics: then it is a pass in training mode, and
        the outputs of those rows come last.
        """
        x = jnp.concatenate([self.encoder.trunk(critic.trunk, inputs), action], -1)
        if joined is not None:
            more = jnp.concatenate([self.encoder.trunk(critic.trunk, joined.inputs), joined.action], -1)
            x = jnp.concatenate([x, more])
        net, lead = self.of_critic, jax.tree.leaves(critic.heads)[0].shape[:2]
        flat, flat_stats = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (critic.heads, stats))
        if net.random and key is not None:
            keys = jax.random.split(key, lead[0] * lead[1])
            out = jax.vmap(lambda p, n, k: net.apply(p, n, x, joined is not None, k))(flat, flat_stats, keys)
        else:
            out = jax.vmap(lambda p, n: net.apply(p, n, x, joined is not None))(flat, flat_stats)
        return jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), out)

    def pi(self, actor: Actor, inputs: Array, stats: Any = ()) -> Array:
        """The policy's outputs in evaluation mode."""
        return self.of_actor.apply(actor.head, stats, self.actor_latent(actor, inputs))[0]

    def actor_latent(self, actor: Actor, inputs: Array) -> Array:
        return self.encoder.trunk(actor.trunk, actor.view(inputs))

    def features(self, s: Learner, obs: Array) -> Array:
        return self.encoder.features(s.params.encoder, obs)

    def inputs(self, s: Learner, features: Array) -> Array:
        """What actor and critics read: features, normalised where observations are. Intrinsic models read them raw."""
        return s.observed.observations(features) if self.normalize_observations else features

    def temperature(self, s: Learner) -> Array | float:
        return self.alpha.value(s.alpha) if self.policy.entropic else 0.0  # type: ignore[arg-type]

    def sigma(self, s: Learner, clock: Clock, use: str = "updates") -> Array:
        """Of a deterministic policy's noise, in `updates` or when `acting`."""
        if self.plasticity is None or self.plasticity.aware not in ("always", use):
            return self.noise(clock.update)
        return self.plasticity.sigma(s.plastic, self.noise, clock.update)

    def preprocess(self, batch: Batch, key: Array) -> Batch:
        return self.encoder.augment(batch, key)

    def latents(self, s: Learner, batch: Batch, features: Array | None = None) -> Latents:
        """What an intrinsic model may see of the batch, through the target critic's trunk."""
        features = self.features(s, batch.obs) if features is None else features
        z = self.encoder.trunk(s.target.critic.trunk, features)
        next_z = self.encoder.trunk(s.target.critic.trunk, self.features(s, batch.one.next_obs))
        extra, ended = self.encoder.extra(features), batch.one.discount < batch.gamma
        return stop_gradient(Latents(z, batch.action, batch.one.reward, next_z, extra, ended))

    # ------------------------------------------------------------ policy evaluation

    def backups(self, s: Learner, batch: Batch, shaping: Shaping) -> list[Backup]:
        """Of every channel: the task's with normalised returns, a strategy's in units that a support can hold."""
        task = batch.task
        if self.normalize_returns:
            task = task._replace(reward=task.reward / s.observed.returns.divisor(self.head.reach or BOUND))
        return [task if b is None else self.within_reach(b) for b in shaping.backup]

    def within_reach(self, backup: Backup) -> Backup:
        """A strategy's own rewards are about standardised: one of 2 at every step is as much as a support holds."""
        if self.head.reach is None:
            return backup
        return backup._replace(reward=backup.reward * (self.head.reach * (1 - self.gamma) / 2))

    def successor(self, s: Learner, next_obs: Array, key: Array, clock: Clock) -> Successor:
        inputs = self.inputs(s, self.features(s, next_obs))
        out = self.pi(s.params.actor, inputs, s.stats.actor)
        return Successor(inputs, *self.policy.sample(out, key, self.sigma(s, clock)))

    @property
    def targets_itself(self) -> bool:
        """Whether there is no target network, and the pass of the loss gives the target too (CrossQ)."""
        return self.of_critic.batch_norm and self.tau == 1

    def next_outputs(self, s: Learner, batch: Batch, after: Successor, key: Array, channels: slice) -> Array:
        """The target critics at the successors, of some channels: [channels, critics, batch, outputs].

        With batch norm the batch joins the pass, as successors join that of the loss.
        """
        critic = s.params.critic if self.targets_itself else s.target.critic
        heads, stats = jax.tree.map(lambda leaf: leaf[channels], (critic.heads, s.stats.critic))
        critic = replace(critic, heads=heads)
        if not self.of_critic.batch_norm:
            return self.evaluate(critic, stats, after.inputs, after.action, key)[0]
        inputs = self.inputs(s, self.features(s, batch.obs))
        return self.evaluate(critic, stats, inputs, batch.action, key, after)[0][:, :, batch.action.shape[0] :]

    def td_target(
        self,
        s: Learner,
        batch: Batch,
        latents: Latents,
        key: Array,
        clock: Clock,
        shaping: Shaping,
        outputs: Array | None = None,
    ) -> Array:
        """y = r + discount * (min Q(s', a') + bonus(s', a') - alpha log pi(a'|s')), a row per channel.

        `outputs` are those of the critics at (s', a'), where a pass that gives them was made already.
        """
        k_action, k_choice, k_dropout = jax.random.split(key, 3)
        backups = self.backups(s, batch, shaping)
        shared = all(b.next_obs is backups[0].next_obs for b in backups)

        def next_value(channels: slice, next_obs: Array, k_action: Array, k_dropout: Array):
            after = self.successor(s, next_obs, k_action, clock)
            raw = self.next_outputs(s, batch, after, k_dropout, channels) if outputs is None else outputs
            if self.num_min_critics < self.critics:
                raw = raw[:, jax.random.choice(k_choice, self.critics, (self.num_min_critics,), replace=False)]
            return self.head.combine(raw, self.target_reduction), after

        if shared:  # one action and one pass serve every channel
            value, after = next_value(slice(None), backups[0].next_obs, k_action, k_dropout)
            values, afters = list(value), [after] * len(backups)
        else:
            rows = [
                next_value(slice(c, c + 1), b.next_obs, own(k_action, c), own(k_dropout, c))
                for c, b in enumerate(backups)
            ]
            values, afters = [v[0] for v, _ in rows], [after for _, after in rows]
        bonus = None if shaping.bonus is None else shaping.bonus(latents.next_z, afters[0].action)[0]
        shifts = [self.shift(s, c, after, bonus, shaping) for c, after in enumerate(afters)]
        y = [self.head.target(v, bellman(b, shift)) for b, v, shift in zip(backups, values, shifts)]
        return stop_gradient(jnp.stack(y))

    def shift(self, s: Learner, channel: int, after: Successor, bonus: Array | None, shaping: Shaping) -> Bellman:
        """v + bonus(s', a') - alpha log pi(a'|s'): the bonus on channel 0, the entropy where the strategy wants it."""

        def shifted(v: Array) -> Array:
            v = v if bonus is None or channel != 0 else v + bonus
            entropic = self.policy.entropic and channel == shaping.entropy
            return v - self.temperature(s) * after.logp if entropic else v

        return shifted

    def critic_step(
        self, s: Learner, batch: Batch, key: Array, clock: Clock, shaping: ShapingFn = lambda _: PLAIN
    ) -> tuple[Learner, Metrics, Latents]:
        """One step of all critics and the encoder; one pass over the observations serves the loss and the latents.

        Where the shaping has an imagination, the last rows of what the critics learn from are imagined.
        """
        k_target, k_dropout = jax.random.split(key)
        features, to_encoder = jax.vjp(lambda encoder: self.encoder.features(encoder, batch.obs), s.params.encoder)
        latents = self.latents(s, batch, features)
        policy = lambda obs: self.successor(s, obs, jax.random.fold_in(key, IMAGINED), clock).action
        rows = critic_rows(batch, latents, shaping(latents), policy)
        target = partial(self.td_target, s, rows.batch, rows.latents, k_target, clock, rows.shaping)
        before = None if self.targets_itself else target()
        joined = self.joined(s, rows.batch, k_target, clock, rows.shaping)

        def loss(critic, features):
            inputs, action = self.inputs(s, features), rows.batch.action
            raw, stats = self.evaluate(critic, s.stats.critic, inputs, action, k_dropout, joined)
            y = target(stop_gradient(raw[:, :, len(action) :])) if before is None else before
            raw = raw if joined is None else raw[:, :, : len(action)]
            return rows.mean(self.head.loss(raw, y[:, None])), (raw[:, :, : rows.real], y[:, : rows.real], stats)

        value_and_grad = jax.value_and_grad(loss, (0, 1), has_aux=True)
        (error, (raw, y, stats)), (by_critic, by_features) = value_and_grad(s.params.critic, features)
        grads, value = (*to_encoder(by_features), by_critic), (s.params.encoder, s.params.critic)
        (encoder, critic), opt = apply_gradients(self.optimizer, grads, s.value_opt, value, self.pace(clock))
        critic = replace(critic, heads=self.of_critic.project(critic.heads))
        params = replace(s.params, encoder=encoder, critic=critic)
        slow = replace(s.target, critic=polyak(s.target.critic, critic, self.tau))
        metrics = {"train/critic_loss": error, "train/q": self.head.mean(raw)[0].mean()} | self.head.metrics(y)
        s = replace(s, params=params, target=slow, value_opt=opt, stats=replace(s.stats, critic=stats))
        return s, metrics | rows.metrics, latents

    def joined(self, s: Learner, batch: Batch, key: Array, clock: Clock, shaping: Shaping) -> Successor | None:
        """The successors of the target, which join the critics' own pass where batch norm wants both in one batch."""
        if not self.of_critic.batch_norm:
            return None
        next_obs = self.backups(s, batch, shaping)[0].next_obs
        return stop_gradient(self.successor(s, next_obs, jax.random.split(key, 3)[0], clock))

    # ------------------------------------------------------------ policy improvement

    def reduce_critics(self, q: Array) -> Array:
        return q.min(1) if self.critic_reduction == "min" else q.mean(1)

    def actor_step(
        self, s: Learner, batch: Batch, latents: Latents, key: Array, clock: Clock, shaping: Shaping = PLAIN
    ) -> tuple[Learner, Metrics, Improvement]:
        k_action, k_dropout = actor_keys(key)
        inputs, sigma = stop_gradient(self.inputs(s, self.features(s, batch.obs))), self.sigma(s, clock)
        alpha, pace = self.temperature(s), self.pace(clock)

        def loss(actor):
            latent = self.actor_latent(actor, inputs)
            out, stats = self.of_actor.apply(actor.head, s.stats.actor, latent, train=True)
            a, logp = self.policy.sample(out, k_action, sigma)
            value = self.reduce_critics(self.q(s.params.critic, inputs, a, k_dropout, s.stats.critic))
            objective, aux = reduce(add, (w * v for w, v in zip(shaping.weight, value))), ()
            if shaping.bonus is not None:
                bonus, aux = shaping.bonus(latents.z, a)
                objective = objective + bonus
            if shaping.entropy is not None and self.policy.entropic:
                objective = objective - shaping.weight[shaping.entropy] * alpha * logp
            if self.policy.edge:
                objective = objective - self.policy.edge * jnp.square(out).sum(-1)
            return -objective.mean(), (Improvement(a, value, aux), logp, stats)

        (error, (improvement, logp, stats)), grads = jax.value_and_grad(loss, has_aux=True)(s.params.actor)
        actor, opt = apply_gradients(self.optimizer, grads, s.actor_opt, s.params.actor, pace)
        s = replace(self.with_actor(s, replace(actor, head=self.of_actor.project(actor.head)), stats), actor_opt=opt)
        metrics = {"train/actor_loss": error}
        if shaping.entropy is not None and self.policy.entropic:
            s = replace(s, alpha=self.alpha_step(s, -logp, self.target_entropy * batch.action.shape[-1], pace))
            metrics |= {"train/entropy": -logp.mean(), "explore/alpha1": self.temperature(s)}
        if self.plasticity is not None:
            s = self.perturb_dormant(self.plasticity, s, inputs, batch, jax.random.fold_in(key, 3), clock)
            metrics |= {"train/dormant_ratio": s.plastic.ratio, "explore/noise": sigma}
        return s, metrics, stop_gradient(improvement)

    def with_actor(self, s: Learner, actor: Actor, stats: Any) -> Learner:
        """A learner with another actor, and a target policy that is a little nearer to it."""
        tau = self.actor_tau or self.tau
        target = replace(s.target, actor=polyak(s.target.actor, actor, tau))
        averaged = replace(s.stats, actor=stats, target_actor=polyak(s.stats.target_actor, stats, tau))
        return replace(s, params=replace(s.params, actor=actor), target=target, stats=averaged)

    def alpha_step(self, s: Learner, entropy: Array, target: float, pace: Array | None) -> Multiplier | Constant:
        """The temperature after one step towards the target entropy."""
        if not isinstance(self.alpha, Tuned):
            return s.alpha
        assert isinstance(s.alpha, Multiplier)
        fresh = self.alpha.step(s.alpha, entropy, target)
        return fresh if pace is None else replace(fresh, log=s.alpha.log + pace * (fresh.log - s.alpha.log))

    def perturb_dormant(
        self, plasticity: Dormant, s: Learner, features: Array, batch: Batch, key: Array, clock: Clock
    ) -> Learner:
        """Count the actor's dormant neurons; every so often draw all dense layers towards fresh ones."""
        actor, z = s.params.actor, self.actor_latent(s.params.actor, features)
        outputs = (*self.encoder.linear(actor.trunk, actor.view(features)), *actor.head.hidden(z)[1:], actor.head(z))
        s = replace(s, plastic=plasticity.observe(s.plastic, outputs, clock.update))

        def perturb(s: Learner) -> Learner:
            kappa = plasticity.kappa(s.plastic)
            fresh, other = (self.init(k, actor.spec) for k in jax.random.split(key))
            params, target = perturbed(s.params, fresh.params, kappa), perturbed(s.target, other.target, kappa)
            return replace(s, params=params, target=target, value_opt=fresh.value_opt, actor_opt=fresh.actor_opt)

        return jax.lax.cond(plasticity.due(clock.update), perturb, lambda s: s, s) if plasticity.every else s

    def target_action(self, s: Learner, obs: Array, key: Array, clock: Clock) -> Array:
        """An action of the target policy."""
        out = self.pi(s.target.actor, self.inputs(s, self.features(s, obs)), s.stats.target_actor)
        return stop_gradient(self.policy.sample(out, key, self.sigma(s, clock))[0])

    # ------------------------------------------------------------ behaviour

    def act(
        self, s: Learner, obs: Array, key: Array, clock: Clock, *, explore: bool, noise: Array | None = None
    ) -> Array:
        inputs = self.inputs(s, self.features(s, obs))
        out = self.pi(s.params.actor, inputs, s.stats.actor)
        if not explore:
            return self.policy.mode(out)
        if self.optimism is not None:
            out = self.optimism(self.policy, out, lambda a: self.q(s.params.critic, inputs, a, stats=s.stats.critic)[0])
        return self.policy.act(out, key, self.sigma(s, clock, "acting"), noise)


def actor_keys(key: Array) -> Array:
    """Of an actor step: the keys of its actions and of the critics' dropout."""
    return jax.random.split(key)


def discount_of(length: float) -> float:
    """gamma of tasks whose episodes have so many agent steps: 1 - 5 / length, between 0.95 and 0.995 (TD-MPC2)."""
    return float(min(max(1 - 5 / length, 0.95), 0.995))


def bellman(backup: Backup, shift: Bellman) -> Bellman:
    """v -> r + discount * shift(v)"""
    return lambda v: backup.reward + backup.discount * shift(v)


def own(key: Array, channel: int) -> Array:
    """Channel 0 keeps the key it would have alone, so that adding channels does not change it."""
    return key if channel == 0 else jax.random.fold_in(key, channel)
