"""The catalogue: every algorithm is a value of base x strategy x intrinsic reward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from maxinforl.core.action_noise import ORNSTEIN_UHLENBECK, PINK
from maxinforl.core.actor_critic import ActorCritic
from maxinforl.core.architectures import BatchNormNet, BroNet, SimbaNet
from maxinforl.core.encoders import Pixels
from maxinforl.core.heads import Categorical, Quantile
from maxinforl.core.multiplier import Fixed, Paired, Tied, Tuned
from maxinforl.core.plasticity import Dormant
from maxinforl.core.policies import Linear, NoisyDeterministic, Optimism, SquashedGaussian, constant
from maxinforl.errors import BadInput, unknown
from maxinforl.explore import Eipo, Epsilon, IntrinsicSum, MaxInfo, Plain, Strategy, Switch, Then
from maxinforl.intrinsic import RND, Curiosity, Disagreement, Ensemble, InfoGain

# The noise of a deterministic policy: DrQv2's schedules for medium and hard tasks, and the paper's ablations.
NOISES: dict[str, Linear] = {
    "linear": Linear(1.0, 0.1, 500_000),
    "linear-long": Linear(1.0, 0.1, 2_000_000),
    "constant": constant(0.2),
    "zero": constant(0.0),
}
DRQV2 = ActorCritic(
    policy=NoisyDeterministic(clip=0.3), encoder=Pixels(), nstep=3, tau=0.01, lr=1e-4, noise=NOISES["linear"]
)
# The modern bases at the sizes of a CPU; the presets <name>-published have the widths of their papers.
SIMBA = ActorCritic(
    critic_net=SimbaNet(width=128, blocks=2),
    actor_net=SimbaNet(width=64, blocks=1),
    policy=SquashedGaussian(log_std="tanh"),
    normalize_observations=True,
    lr=1e-4,
    weight_decay=1e-2,
    alpha=Tuned(0.01, lr=1e-4),
    target_entropy=-0.5,
    update_ratio=2,
    gamma_by_length=True,
    warm_up=5_000,
)
RENORMED = BatchNormNet(width=256, layers=2, after=True, renorm=100_000)
CROSSQ = ActorCritic(
    critic_net=RENORMED,
    actor_net=RENORMED,
    policy=SquashedGaussian(least=-20.0),
    tau=1.0,  # no target network
    actor_tau=0.005,  # of MaxInfo's target policy
    lr=1e-3,
    adam_b1=0.5,
    alpha=Tuned(lr=1e-3),
    policy_delay=3,
    delay_across_steps=True,
    warm_up=5_000,
)
BRO = ActorCritic(
    critic_net=BroNet(width=256, blocks=2),
    actor_net=BroNet(width=128, blocks=1),
    policy=SquashedGaussian(log_std="tanh"),
    head=Quantile(32),
    target_reduction="mean",
    critic_reduction="mean",
    weight_decay=1e-4,
    alpha=Tuned(b1=0.5),
    target_entropy=-0.5,
    update_ratio=2,
    reset_at=(15_001,),
    warm_up=2_500,
    batch_size=128,
)
XQC = ActorCritic(
    critic_net=BatchNormNet(width=256, layers=2, unit=True),
    actor_net=BatchNormNet(width=128, layers=2, unit=True),
    head=Categorical(51),
    normalize_returns=True,
    lr_schedule="linear",
    lr_end=3e-5,
    alpha=Tuned(0.01),
    target_entropy=-0.5,
    policy_delay=3,
    delay_across_steps=True,
    update_ratio=2,
    gamma_by_length=True,
    warm_up=5_000,
)

BASES: dict[str, ActorCritic] = {
    "sac": ActorCritic(),
    "redq": ActorCritic(critics=10, num_min_critics=2, critic_reduction="mean", policy_delay=20, update_ratio=20),
    "oac": ActorCritic(optimism=Optimism()),
    "ddpg": ActorCritic(policy=NoisyDeterministic(clip=0.5), noise=constant(0.2)),
    "droq": ActorCritic(critic_reduction="mean", layer_norm=True, dropout=0.01, policy_delay=20, update_ratio=20),
    "simba": SIMBA,
    "crossq": CROSSQ,
    "bro": BRO,
    "xqc": XQC,
    "drq": ActorCritic(encoder=Pixels()),
    "drqv2": DRQV2,
    "drm": replace(DRQV2, plasticity=Dormant()),
}

INTRINSICS: dict[str, Ensemble] = {
    "info-gain": InfoGain(),
    "disagreement": Disagreement(),
    "curiosity": Curiosity(),
    "rnd": RND(),
}

STRATEGIES: dict[str, Strategy] = {
    "none": Plain(),
    "maxinfo": MaxInfo(),
    "sum": IntrinsicSum(),
    "eipo": Eipo(),
    "eps": Switch(schedule=Epsilon()),
    "then": Switch(schedule=Then()),
}

DEFAULT_INTRINSIC = {"maxinfo": "info-gain", "sum": "info-gain", "eipo": "info-gain"} | dict.fromkeys(
    ("eps", "then"), "disagreement"
)
WEIGHTS: dict[str, Tuned | Tied] = {  # of MaxInfo's information gain
    "paper": Tuned(),
    "paired": Paired(),
    "tied": Tied(),
}
ACTION_NOISES = {"white": None, "pink": PINK, "ou": ORNSTEIN_UHLENBECK}
LIGHT = 8  # how many times narrower than the actor the members of the light ensemble are

Algo = Literal[
    "sac", "redq", "oac", "ddpg", "droq", "simba", "crossq", "bro", "xqc",
    "maxinfo-sac", "maxinfo-redq", "maxinfo-oac", "maxinfo-ddpg", "maxinfo-droq",
    "maxinfo-simba", "maxinfo-crossq", "maxinfo-bro", "maxinfo-xqc",
    "maxinfo-rnd-sac", "eps-maxinfo-sac", "eps-maxinfo-curiosity-sac",
    "disagreement-sac", "curiosity-sac", "intrinsic-sac", "eipo-sac",
    "drq", "drqv2", "drm", "maxinfo-drq", "maxinfo-drqv2", "maxinfo-drm",
]  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What a catalogue name stands for."""

    base: str
    explore: str = "none"
    intrinsic: str | None = None
    summary: str = ""
    section: str = ""  # of the paper


CATALOGUE: dict[str, Recipe] = {
    "sac": Recipe("sac", summary="soft actor-critic", section="2"),
    "redq": Recipe("redq", summary="ten critics, many updates per step", section="appendix"),
    "oac": Recipe("oac", summary="optimistic behaviour policy", section="appendix"),
    "ddpg": Recipe("ddpg", summary="deterministic actor with clipped noise, twin critics", section="-"),
    "droq": Recipe("droq", summary="dropout and layer-norm critics, many updates per step", section="-"),
    "simba": Recipe("simba", summary="residual blocks, normalised observations, weight decay", section="-"),
    "crossq": Recipe("crossq", summary="batch norm in place of target networks", section="-"),
    "bro": Recipe("bro", summary="residual blocks with layer norm, quantile critics, a reset", section="-"),
    "xqc": Recipe("xqc", summary="batch norm, weights of norm 1, categorical critics, scaled rewards", section="-"),
    "maxinfo-sac": Recipe("sac", "maxinfo", "info-gain", "SAC with self-tuned information gain", "3"),
    "maxinfo-redq": Recipe("redq", "maxinfo", "info-gain", "REDQ with self-tuned information gain", "appendix"),
    "maxinfo-oac": Recipe("oac", "maxinfo", "info-gain", "OAC with self-tuned information gain", "appendix"),
    "maxinfo-ddpg": Recipe("ddpg", "maxinfo", "info-gain", "DDPG with self-tuned information gain", "-"),
    "maxinfo-droq": Recipe("droq", "maxinfo", "info-gain", "DroQ with self-tuned information gain", "-"),
    "maxinfo-simba": Recipe("simba", "maxinfo", "info-gain", "SimBa with self-tuned information gain", "-"),
    "maxinfo-crossq": Recipe("crossq", "maxinfo", "info-gain", "CrossQ with self-tuned information gain", "-"),
    "maxinfo-bro": Recipe("bro", "maxinfo", "info-gain", "BRO with self-tuned information gain", "-"),
    "maxinfo-xqc": Recipe("xqc", "maxinfo", "info-gain", "XQC with a critic for the information gain", "-"),
    "maxinfo-rnd-sac": Recipe("sac", "maxinfo", "rnd", "MaxInfoSAC with random network distillation", "appendix"),
    "eps-maxinfo-sac": Recipe("sac", "eps", "disagreement", "rounds of pure exploration with falling odds", "3.1"),
    "eps-maxinfo-curiosity-sac": Recipe("sac", "eps", "curiosity", "the same, driven by curiosity", "appendix"),
    "disagreement-sac": Recipe("sac", "then", "disagreement", "explore by disagreement, then exploit", "4"),
    "curiosity-sac": Recipe("sac", "then", "curiosity", "explore by curiosity, then exploit", "4"),
    "intrinsic-sac": Recipe("sac", "sum", "info-gain", "task and intrinsic value summed", "4"),
    "eipo-sac": Recipe("sac", "eipo", "info-gain", "the sum, constrained to a greedy agent's return", "4"),
    "drq": Recipe("drq", summary="SAC from images, randomly shifted", section="4"),
    "drqv2": Recipe("drqv2", summary="deterministic actor from images, n-step returns, falling noise", section="4"),
    "drm": Recipe("drm", summary="DrQv2 that perturbs networks as neurons go dormant", section="appendix"),
    "maxinfo-drq": Recipe("drq", "maxinfo", "info-gain", "DrQ with self-tuned information gain", "4"),
    "maxinfo-drqv2": Recipe("drqv2", "maxinfo", "info-gain", "DrQv2 with a critic for the information gain", "4"),
    "maxinfo-drm": Recipe("drm", "maxinfo", "info-gain", "DrM with a critic for the information gain", "appendix"),
}
assert set(CATALOGUE) == set(get_args(Algo))

# What a recipe changes beyond its parts: the information gain replaces the falling noise of DrQv2 and DrM.
DIRECTED = {"intrinsic": InfoGain(lr=DRQV2.lr), "weight": Tuned(lr=DRQV2.lr)}
TWEAKS: dict[str, dict[str, Any]] = {
    "maxinfo-oac": {"base": replace(BASES["oac"], optimism=Optimism(beta=1.0, shift=2.0))},
    "maxinfo-ddpg": {"base": replace(BASES["ddpg"], policy=NoisyDeterministic(clip=0.5, edge=0.1))},
    "maxinfo-rnd-sac": {"weight": Tuned(clip=0.5)},
    "maxinfo-drqv2": DIRECTED | {"base": replace(BASES["drqv2"], noise=NOISES["constant"])},
    "maxinfo-drm": DIRECTED | {"base": replace(BASES["drm"], noise=NOISES["constant"])},
}


def compose(base: str, explore: str = "none", intrinsic: str | None = None) -> Strategy:
    """Any base x strategy x intrinsic reward that makes sense; one that cannot is refused with the reason."""
    if base not in BASES:
        raise unknown("base", base, BASES)
    if explore not in STRATEGIES:
        raise unknown("exploration strategy", explore, STRATEGIES)
    if explore == "none":
        if intrinsic is not None:
            raise BadInput(f"--intrinsic {intrinsic} has no effect without a strategy: add --explore maxinfo")
        return Plain(BASES[base])
    name = intrinsic or DEFAULT_INTRINSIC[explore]
    if name not in INTRINSICS:
        raise unknown("intrinsic reward", name, INTRINSICS)
    own = {"separate": not BASES[base].policy.entropic} if explore == "maxinfo" else {}
    return replace(STRATEGIES[explore], base=BASES[base], intrinsic=INTRINSICS[name], **own)  # type: ignore[call-arg]


def recipe(algo: str) -> Recipe:
    if algo not in CATALOGUE:
        raise unknown("algorithm", algo, CATALOGUE, "`maxinforl list` shows them all.")
    return CATALOGUE[algo]


def algorithm(algo: str) -> Strategy:
    """The agent a catalogue name stands for."""
    found = recipe(algo)
    return replace(compose(found.base, found.explore, found.intrinsic), **TWEAKS.get(algo, {}))


def with_uncertainty(agent: Strategy, uncertainty: str) -> Strategy:
    """The agent with the paper's ensemble, its members as wide as the actor, or a light one, narrower `LIGHT` times."""
    if uncertainty not in ("paper", "light"):
        raise unknown("uncertainty", uncertainty, ("paper", "light"))
    if not isinstance(getattr(agent, "intrinsic", None), Ensemble):
        return agent
    narrower = LIGHT if uncertainty == "light" else 1
    hidden = tuple(width // narrower for width in agent.base.hidden)
    return replace(agent, intrinsic=replace(agent.intrinsic, hidden=hidden))  # type: ignore[attr-defined,call-arg]


def with_weight(agent: Strategy, weight: str | float) -> Strategy:
    """A MaxInfo agent with another weight of the information gain; a tuned one keeps its learning rate and clip."""
    if not isinstance(agent, MaxInfo):
        raise BadInput("--weight is that of MaxInfo's information gain: choose a maxinfo- algorithm, or leave it out")
    if not isinstance(weight, str):
        return replace(agent, weight=Fixed(float(weight)))
    if weight not in WEIGHTS:
        raise unknown("weight", weight, WEIGHTS, "A number fixes it.")
    fresh, own = WEIGHTS[weight], agent.weight
    kept = {"lr": own.lr, "clip": own.clip} if isinstance(fresh, Tuned) and isinstance(own, Tuned) else {}
    return replace(agent, weight=replace(fresh, **kept))


def with_model_share(agent: Strategy, share: float) -> Strategy:
    """The agent whose ensemble imagines so much of every critic batch."""
    ensemble = getattr(agent, "intrinsic", None)
    if isinstance(ensemble, Ensemble):
        rows = replace(ensemble.model_rows, share=float(share))
        return replace(agent, intrinsic=replace(ensemble, model_rows=rows))  # type: ignore[call-arg]
    if share:
        raise BadInput(
            "--model-share is imagined by the ensemble of an intrinsic reward, and this agent has none: choose one "
            "such as maxinfo-sac, or leave it out"
        )
    return agent


def with_action_noise(agent: Strategy, noise: str) -> Strategy:
    """The agent with white or correlated noise in its behaviour."""
    return replace(agent, base=replace(agent.base, action_noise=ACTION_NOISES[noise]))


def with_noise(agent: Strategy, noise: str) -> Strategy:
    """The agent with another exploration noise, by name."""
    if noise not in NOISES:
        raise unknown("noise", noise, NOISES)
    if agent.base.policy.entropic:
        raise BadInput(f"the noise {noise!r} has no effect on a policy that is random itself: it is for drqv2 and drm")
    return replace(agent, base=replace(agent.base, noise=NOISES[noise]))
