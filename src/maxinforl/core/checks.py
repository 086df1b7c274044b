"""What a learner cannot be made of: one sentence each, before anything is trained."""

from __future__ import annotations

from typing import Any

from maxinforl.core.architectures import Network
from maxinforl.core.encoders import Pixels, States
from maxinforl.core.networks import ACTIVATIONS
from maxinforl.core.policies import NoisyDeterministic, SquashedGaussian
from maxinforl.errors import BadInput, unknown

COUNTS = ("critics", "num_min_critics", "channels", "policy_delay", "update_ratio", "nstep", "batch_size")
CHOICES = {
    "critic_reduction": ("min", "mean"),
    "target_reduction": ("min", "mean"),
    "lr_schedule": ("constant", "linear", "cosine"),
    "activation": tuple(ACTIVATIONS),
}


def check_learner(base: Any) -> None:
    """Raises BadInput for an `ActorCritic` whose numbers or parts make no sense."""
    counts = {name: getattr(base, name) for name in COUNTS}
    for name, count in counts.items() | {("hidden", width) for width in base.hidden}:
        if count < 1:
            raise BadInput(f"base.{name} must be at least 1, not {count}")
    for name, options in CHOICES.items():
        if getattr(base, name) not in options:
            raise unknown(f"base.{name}", getattr(base, name), options)
    check_numbers(base)
    check_optimizer(base)
    check_resets(base)
    check_networks(base)
    check_batch_norm(base)
    if base.optimism is not None and not isinstance(base.policy, SquashedGaussian):
        raise BadInput("optimism moves the mean of a random policy: it cannot join a deterministic one")


def check_numbers(base: Any) -> None:
    if base.num_min_critics > base.critics:
        raise BadInput(
            f"the minimum over {base.num_min_critics} of {base.critics} critics: first lower base.num_min_critics"
        )
    if not (0 <= base.gamma <= 1 and 0 <= base.dropout < 1 and 0 < base.tau <= 1 and base.lr > 0):
        raise BadInput("base.gamma, base.dropout and base.tau must lie between 0 and 1, and base.lr above 0")
    if base.actor_tau is not None and not 0 < base.actor_tau <= 1:
        raise BadInput(f"base.actor_tau must lie between 0 and 1, not {base.actor_tau}")
    if base.head.reach is not None and base.gamma == 1:
        raise BadInput("a support bounds returns that are discounted: set base.gamma below 1")


def check_optimizer(base: Any) -> None:
    if not 0 <= base.lr_end < float("inf"):
        raise BadInput(f"base.lr_end must be a finite number that is not negative, not {base.lr_end}")
    if not 0 <= base.weight_decay < float("inf"):
        raise BadInput(f"base.weight_decay must be a finite number that is not negative, not {base.weight_decay}")
    if not 0 <= base.adam_b1 < 1:
        raise BadInput(f"base.adam_b1 must be at least 0 and below 1, not {base.adam_b1}")
    if not abs(base.target_entropy) < float("inf"):
        raise BadInput(f"base.target_entropy must be a finite number per action, not {base.target_entropy}")


def check_resets(base: Any) -> None:
    if base.reset_every is not None and base.reset_every < 1:
        raise BadInput(f"base.reset_every must be at least 1 transition, not {base.reset_every}: leave it out for none")
    if min(base.reset_at, default=1) < 1:
        raise BadInput(f"base.reset_at counts transitions from 1 on, not from {min(base.reset_at)}")
    if base.warm_up < 0:
        raise BadInput(f"base.warm_up must not be negative, and it is {base.warm_up}")


def check_networks(base: Any) -> None:
    """Entries of dense layers where a base has other networks."""
    nets = {"critic_net": base.critic_net, "actor_net": base.actor_net}
    for name, net in nets.items():
        if net is not None and not isinstance(net, Network):
            raise BadInput(f"base.{name} must be a network such as SimbaNet, not {net!r}", "your-own.md")
    dense = {
        "layer_norm": base.critic_net is not None and base.layer_norm,
        "dropout": base.critic_net is not None and base.dropout > 0,
        "actor_hidden": base.actor_net is not None and base.actor_hidden is not None,
        "activation": any(net is not None for net in nets.values()) and base.activation != "relu",
    }
    for name in (name for name, unused in dense.items() if unused):
        raise BadInput(
            f"base.{name} is of dense layers, and this base has other networks: set base.critic_net and base.actor_net"
        )
    if base.plasticity is not None and base.actor_net is not None:
        raise BadInput("dormant neurons are counted in dense layers: leave out base.actor_net or base.plasticity")


def why_not_exported(base: Any) -> str | None:
    """Why the policy of an `ActorCritic` cannot be exported; None where it can."""
    if type(base.of_actor).operations is Network.operations:
        return f"a network of kind {type(base.of_actor).__name__} cannot be exported: give it operations()"
    if not isinstance(base.policy, (SquashedGaussian, NoisyDeterministic)):
        return f"a policy of kind {type(base.policy).__name__} cannot be exported: only tanh policies can"
    if not isinstance(base.encoder, (States, Pixels)):
        return f"an encoder of kind {type(base.encoder).__name__} cannot be exported: use States or Pixels"
    return None


def check_batch_norm(base: Any) -> None:
    batch_norm = base.of_critic.batch_norm or base.of_actor.batch_norm
    if base.encoder.pixels and (base.normalize_observations or batch_norm):
        raise BadInput("observation normalisers and batch norm read vectors: an agent of images has an encoder instead")
    if base.of_critic.batch_norm and base.nstep > 1 and base.channels > 1:
        raise BadInput("batch norm joins states and successors, which n-step and one-step values do not share")
