"""The one learner. SAC, REDQ, OAC, DDPG, DroQ, DrQ, DrQv2 and DrM are values of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.action_noise import CorrelatedNoise
from maxinforl.core.encoders import States
from maxinforl.core.multiplier import Multiplier, Tuned
from maxinforl.core.networks import MLP, apply_gradients, stacked
from maxinforl.core.plasticity import Dormant, perturbed
from maxinforl.core.policies import Linear, NoisyDeterministic, Optimism, SquashedGaussian
from maxinforl.core.types import PLAIN, Batch, Clock, Improvement, Latents, Metrics, Shaping, ShapingFn, Spec
from maxinforl.errors import BadInput, unknown


class Actor(eqx.Module):
    trunk: Any
    head: MLP


class Critic(eqx.Module):
    trunk: Any
    heads: MLP  # leaves lead with [channels, critics]


class Params(eqx.Module):
    encoder: Any
    critic: Critic
    actor: Actor


class TargetNetworks(eqx.Module):
    """Polyak averages of critic and actor. There is one encoder, never averaged."""

    critic: Critic
    actor: Actor


class Learner(eqx.Module):
    params: Params
    target: TargetNetworks
    value_opt: Any
    actor_opt: Any
    alpha: Multiplier
    plastic: Any  # DormantState, or () without plasticity


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
    update_ratio: int = 1  # critic updates per transition, where the run does not set another
    nstep: int = 1
    gamma: float = 0.99
    tau: float = 0.005
    actor_tau: float | None = None  # of the target policy; None: `tau`
    lr: float = 3e-4
    alpha: Tuned = Tuned()
    noise: Linear = Linear(0.0, 0.0, 1)  # of a deterministic policy, by critic updates and not by agent steps
    optimism: Optimism | None = None  # of the behaviour (OAC)
    action_noise: CorrelatedNoise | None = None  # of the behaviour; None: white
    plasticity: Dormant | None = None  # perturbations and noise that follow dormant neurons (DrM)

    def __post_init__(self):
        counts = {
            n: getattr(self, n)
            for n in ("critics", "num_min_critics", "channels", "policy_delay", "update_ratio", "nstep")
        }
        for name, count in counts.items() | {("hidden", width) for width in self.hidden}:
            if count < 1:
                raise BadInput(f"base.{name} must be at least 1, not {count}")
        if self.num_min_critics > self.critics:
            raise BadInput(
                f"the minimum over {self.num_min_critics} of {self.critics} critics: first lower base.num_min_critics"
            )
        if not (0 <= self.gamma <= 1 and 0 <= self.dropout < 1 and 0 < self.tau <= 1 and self.lr > 0):
            raise BadInput("base.gamma, base.dropout and base.tau must lie between 0 and 1, and base.lr above 0")
        if self.actor_tau is not None and not 0 < self.actor_tau <= 1:
            raise BadInput(f"base.actor_tau must lie between 0 and 1, not {self.actor_tau}")
        if self.critic_reduction not in ("min", "mean"):
            raise unknown("base.critic_reduction", self.critic_reduction, ("min", "mean"))
        if self.optimism is not None and not isinstance(self.policy, SquashedGaussian):
            raise BadInput("optimism moves the mean of a random policy: it cannot join a deterministic one")

    @property
    def optimizer(self):
        return optax.adam(self.lr)

    def init(self, key: Array, spec: Spec) -> Learner:
        k_encoder, k_critic_trunk, k_actor_trunk, k_critic, k_actor = jax.random.split(key, 5)
        z = self.encoder.latents(spec).z
        head = partial(MLP, sizes=(z + spec.action, *self.hidden, 1), layer_norm=self.layer_norm, dropout=self.dropout)
        critic = Critic(
            self.encoder.trunk_init(k_critic_trunk, spec),
            stacked(lambda k: stacked(head, k, self.critics), k_critic, self.channels),
        )
        sizes = (z, *self.hidden, self.policy.outputs(spec.action))
        actor = Actor(self.encoder.trunk_init(k_actor_trunk, spec), MLP(k_actor, sizes, out_gain=self.policy.out_gain))
        params = Params(self.encoder.init(k_encoder, spec), critic, actor)
        return Learner(
            params,
            jax.tree.map(jnp.copy, TargetNetworks(critic, actor)),
            self.optimizer.init((params.encoder, params.critic)),  # type: ignore[arg-type]
            self.optimizer.init(params.actor),  # type: ignore[arg-type]
            self.alpha.init(),
            () if self.plasticity is None else self.plasticity.init(),
        )

    # ------------------------------------------------------------ evaluating the networks

    def q(self, critic: Critic, features: Array, action: Array, key: Array | None = None) -> Array:
        """Every critic's value: [channels, critics, batch]."""
        return self.heads(critic, critic.heads, features, action, key)

    def heads(self, critic: Critic, heads: MLP, features: Array, action: Array, key: Array | None) -> Array:
        x = jnp.concatenate([self.encoder.trunk(critic.trunk, features), action], -1)
        lead = heads.layers[0].bias.shape[:-1]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(lead) :]), heads)
        if self.dropout and key is not None:
            keys = jax.random.split(key, flat.layers[0].bias.shape[0])
            out = jax.vmap(lambda net, k: net(x, k))(flat, keys)
        else:
            out = jax.vmap(lambda net: net(x))(flat)
        return out[..., 0].reshape(*lead, -1)

    def pi(self, actor: Actor, features: Array) -> Array:
        return actor.head(self.encoder.trunk(actor.trunk, features))

    def features(self, s: Learner, obs: Array) -> Array:
        return self.encoder.features(s.params.encoder, obs)

    def temperature(self, s: Learner) -> Array | float:
        return self.alpha.value(s.alpha) if self.policy.entropic else 0.0

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
        return stop_gradient(Latents(z, batch.action, batch.one.reward, next_z, self.encoder.extra(features)))

    # ------------------------------------------------------------ policy evaluation

    def td_target(
        self, s: Learner, batch: Batch, latents: Latents, key: Array, clock: Clock, shaping: Shaping
    ) -> Array:
        """y = r + discount * (min Q(s', a') + bonus(s', a') - alpha log pi(a'|s')), a row per channel."""
        k_action, k_choice, k_dropout = jax.random.split(key, 3)
        backups = [batch.task if b is None else b for b in shaping.backup]
        shared = all(b.next_obs is backups[0].next_obs for b in backups)

        def next_value(channels: slice, next_obs: Array, k_action: Array, k_dropout: Array):
            features = self.features(s, next_obs)
            a, logp = self.policy.sample(self.pi(s.params.actor, features), k_action, self.sigma(s, clock))
            heads = jax.tree.map(lambda leaf: leaf[channels], s.target.critic.heads)
            q = self.heads(s.target.critic, heads, features, a, k_dropout)
            if self.num_min_critics < self.critics:
                q = q[:, jax.random.choice(k_choice, self.critics, (self.num_min_critics,), replace=False)]
            return q.min(1), a, logp

        if shared:  # one action and one pass serve every channel
            value, action, logp = next_value(slice(None), backups[0].next_obs, k_action, k_dropout)
            values, actions, logps = list(value), [action] * len(backups), [logp] * len(backups)
        else:
            rows = [
                next_value(slice(c, c + 1), b.next_obs, own(k_action, c), own(k_dropout, c))
                for c, b in enumerate(backups)
            ]
            values, actions, logps = [v[0] for v, _, _ in rows], [a for _, a, _ in rows], [p for _, _, p in rows]
        if shaping.bonus is not None:
            values[0] = values[0] + shaping.bonus(latents.next_z, actions[0])[0]
        if shaping.entropy is not None and self.policy.entropic:
            values[shaping.entropy] = values[shaping.entropy] - self.temperature(s) * logps[shaping.entropy]
        return stop_gradient(jnp.stack([b.reward + b.discount * v for b, v in zip(backups, values)]))

    def critic_step(
        self, s: Learner, batch: Batch, key: Array, clock: Clock, shaping: ShapingFn = lambda _: PLAIN
    ) -> tuple[Learner, Metrics, Latents]:
        """One step of all critics and the encoder; one pass over the observations serves the loss and the latents."""
        k_target, k_dropout = jax.random.split(key)
        features, to_encoder = jax.vjp(lambda encoder: self.encoder.features(encoder, batch.obs), s.params.encoder)
        latents = self.latents(s, batch, features)
        y = self.td_target(s, batch, latents, k_target, clock, shaping(latents))

        def loss(critic, features):
            q = self.q(critic, features, batch.action, k_dropout)
            return jnp.square(q - y[:, None]).mean((1, 2)).sum(), q

        (error, q), (by_critic, by_features) = jax.value_and_grad(loss, (0, 1), has_aux=True)(s.params.critic, features)
        grads, value = (*to_encoder(by_features), by_critic), (s.params.encoder, s.params.critic)
        (encoder, critic), opt = apply_gradients(self.optimizer, grads, s.value_opt, value)
        params = replace(s.params, encoder=encoder, critic=critic)
        target = replace(s.target, critic=polyak(s.target.critic, critic, self.tau))
        metrics = {"train/critic_loss": error, "train/q": q[0].mean()}
        return replace(s, params=params, target=target, value_opt=opt), metrics, latents

    # ------------------------------------------------------------ policy improvement

    def reduce_critics(self, q: Array) -> Array:
        return q.min(1) if self.critic_reduction == "min" else q.mean(1)

    def actor_step(
        self, s: Learner, batch: Batch, latents: Latents, key: Array, clock: Clock, shaping: Shaping = PLAIN
    ) -> tuple[Learner, Metrics, Improvement]:
        k_action, k_dropout = actor_keys(key)
        features, sigma, alpha = stop_gradient(self.features(s, batch.obs)), self.sigma(s, clock), self.temperature(s)

        def loss(actor):
            a, logp = self.policy.sample(self.pi(actor, features), k_action, sigma)
            value = self.reduce_critics(self.q(s.params.critic, features, a, k_dropout))
            objective, aux = reduce(add, (w * v for w, v in zip(shaping.weight, value))), ()
            if shaping.bonus is not None:
                bonus, aux = shaping.bonus(latents.z, a)
                objective = objective + bonus
            if shaping.entropy is not None and self.policy.entropic:
                objective = objective - shaping.weight[shaping.entropy] * alpha * logp
            return -objective.mean(), (Improvement(a, value, aux), logp)

        (error, (improvement, logp)), grads = jax.value_and_grad(loss, has_aux=True)(s.params.actor)
        actor, opt = apply_gradients(self.optimizer, grads, s.actor_opt, s.params.actor)
        params = replace(s.params, actor=actor)
        target = replace(s.target, actor=polyak(s.target.actor, actor, self.actor_tau or self.tau))
        s = replace(s, params=params, target=target, actor_opt=opt)
        metrics = {"train/actor_loss": error}
        if shaping.entropy is not None and self.policy.entropic:
            s = replace(s, alpha=self.alpha.step(s.alpha, -logp, -float(batch.action.shape[-1])))
            metrics |= {"train/entropy": -logp.mean(), "explore/alpha1": self.alpha.value(s.alpha)}
        if self.plasticity is not None:
            s = self.perturb_dormant(self.plasticity, s, features, batch, jax.random.fold_in(key, 3), clock)
            metrics |= {"train/dormant_ratio": s.plastic.ratio, "explore/noise": sigma}
        return s, metrics, stop_gradient(improvement)

    def perturb_dormant(
        self, plasticity: Dormant, s: Learner, features: Array, batch: Batch, key: Array, clock: Clock
    ) -> Learner:
        """Count the actor's dormant neurons; every so often draw all dense layers towards fresh ones."""
        actor, z = s.params.actor, self.encoder.trunk(s.params.actor.trunk, features)
        outputs = (*self.encoder.linear(actor.trunk, features), *actor.head.hidden(z)[1:], actor.head(z))
        s = replace(s, plastic=plasticity.observe(s.plastic, outputs, clock.update))

        def perturb(s: Learner) -> Learner:
            spec, kappa = Spec(batch.obs.shape[1:], batch.action.shape[-1]), plasticity.kappa(s.plastic)
            fresh, other = (self.init(k, spec) for k in jax.random.split(key))
            params, target = perturbed(s.params, fresh.params, kappa), perturbed(s.target, other.target, kappa)
            return replace(s, params=params, target=target, value_opt=fresh.value_opt, actor_opt=fresh.actor_opt)

        return jax.lax.cond(plasticity.due(clock.update), perturb, lambda s: s, s) if plasticity.every else s

    def target_action(self, s: Learner, obs: Array, key: Array, clock: Clock) -> Array:
        """An action of the target policy."""
        out = self.pi(s.target.actor, self.features(s, obs))
        return stop_gradient(self.policy.sample(out, key, self.sigma(s, clock))[0])

    # ------------------------------------------------------------ behaviour

    def act(
        self, s: Learner, obs: Array, key: Array, clock: Clock, *, explore: bool, noise: Array | None = None
    ) -> Array:
        features = self.features(s, obs)
        out = self.pi(s.params.actor, features)
        if not explore:
            return self.policy.mode(out)
        if self.optimism is not None:
            out = self.optimism(self.policy, out, lambda a: self.q(s.params.critic, features, a)[0])
        return self.policy.act(out, key, self.sigma(s, clock, "acting"), noise)


def actor_keys(key: Array) -> Array:
    """Of an actor step: the keys of its actions and of the critics' dropout."""
    return jax.random.split(key)


def own(key: Array, channel: int) -> Array:
    """Channel 0 keeps the key it would have alone, so that adding channels does not change it."""
    return key if channel == 0 else jax.random.fold_in(key, channel)
