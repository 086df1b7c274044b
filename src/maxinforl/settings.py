"""What a run is asked to do: one frozen dataclass that the command line, config files and Python share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from typing import Any

from maxinforl import config
from maxinforl.algorithms import algorithm, compose, with_uncertainty
from maxinforl.envs import default_action_repeat
from maxinforl.errors import BadInput, unknown
from maxinforl.explore import Strategy


def option(default: Any, text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": text} | extra)


@dataclass(frozen=True)
class Settings:
    """Every setting of a training run; None means that the preset decides."""

    algo: str | None = option(None, "algorithm, a name from `maxinforl list` (default: maxinfo-sac)")
    base: str | None = option(None, "compose freely: the base learner")
    explore: str | None = option(None, "compose freely: none, maxinfo, sum, eipo, eps or then")
    intrinsic: str | None = option(None, "compose freely: info-gain, disagreement, curiosity or rnd")
    env: str = option("MountainCarContinuous-v0", "environment: a Gymnasium id or a name from `maxinforl list --envs`")
    env_arg: tuple[tuple[str, Any], ...] = option((), "argument of the environment, K=V; may be repeated")
    steps: int = option(6000, "transitions to collect over all environments", least=1, most=2**31 - 1)
    seed: int = option(0, "seed of everything random", least=0, most=2**32 - 1)
    num_envs: int = option(1, "environments stepped side by side", least=1)
    update_ratio: float | None = option(
        None, "critic updates per transition (default: base.update_ratio; 20 in REDQ and DroQ)"
    )
    learning_starts: int | None = option(None, "uniformly random transitions before learning", least=0)
    batch_size: int = option(256, "transitions per update", least=1)
    capacity: int | None = option(None, "most transitions the replay keeps (default: 1 000 000)", least=2)
    uncertainty: str | None = option(None, "ensemble: paper (as wide as the actor) or light (an eighth of that)")
    set: tuple[tuple[str, Any], ...] = option((), "any setting of the agent, such as base.lr=1e-4; may be repeated")
    preset: str | None = option(None, "hyperparameters: a name from `maxinforl list --preset`, or none")
    image_size: int = option(84, "side of rendered images", least=1, most=2048)
    frame_stack: int = option(3, "frames per image observation", least=1, most=64)
    action_cost: float = option(0.0, "cost per unit of the action's norm, on every base step")
    action_repeat: int | None = option(None, "base steps per action (default: 2 on DMC, else 1)", least=1)
    loop: str = option(
        "auto",
        "compiled (environment and learning in one program; jax/ and brax/ only), host, or auto",
        choices=("auto", "compiled", "host"),
    )
    eval_every: int = option(1000, "transitions between evaluations", least=1)
    eval_episodes: int = option(5, "episodes per evaluation; 0 turns evaluation off", least=0)
    log_every: int = option(500, "transitions between log lines", least=1)
    save_every: int = option(5000, "transitions between checkpoints", least=1)
    keep: int = option(3, "checkpoints to keep", least=1)
    max_hours: float | None = option(None, "stop cleanly, to be resumed, after this many hours")
    on_nan: str = option("stop", "what a non-finite loss does: stop, or skip the update", choices=("stop", "skip"))
    max_faults: int = option(10, "environment faults survived in a run; 0: the first one ends it", least=0)
    workers: bool = option(False, "each environment in a process of its own, restarted when it dies or hangs")
    env_timeout: float = option(60.0, "seconds after which an environment that does not answer counts as hung")
    video: bool = option(False, "write a video of one episode at the last evaluation")
    record_states: bool = option(False, "keep the visited states in states.npz")
    tensorboard: bool = option(False, "log to TensorBoard too")
    wandb: bool = option(False, "log to Weights & Biases too")

    def __post_init__(self):
        for f in fields(self):
            value, least = getattr(self, f.name), f.metadata.get("least")
            if least is not None and value is not None:
                check_count(flag(f.name), value, least, f.metadata.get("most"))
            if "choices" in f.metadata and value not in f.metadata["choices"]:
                raise unknown(flag(f.name), str(value), f.metadata["choices"])
        if not 0 <= self.action_cost < float("inf"):
            raise BadInput(f"{flag('action_cost')} must be a number that is not negative, not {self.action_cost}")
        for name in ("max_hours", "env_timeout"):
            if (value := getattr(self, name)) is not None and not 0 < value < float("inf"):
                raise BadInput(f"{flag(name)} must be a finite number of more than 0, not {value}")
        if self.algo is not None and (self.base or self.explore or self.intrinsic):
            raise BadInput(
                "--algo names a whole algorithm: give either --algo, or --base with --explore and --intrinsic"
            )


FIXED = (
    *("algo", "base", "explore", "intrinsic", "env", "env_arg", "seed", "num_envs", "capacity", "uncertainty"),
    *("loop", "preset", "image_size", "frame_stack", "action_cost", "action_repeat"),
)  # what the agent's arrays, the replay's rows or the task itself are made of
FREE = ("max_hours",)  # no part of the experiment: changes without being asked about


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_count(name: str, value: Any, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise BadInput(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise BadInput(f"{name} must be at most {most}, not {value}")


@dataclass(frozen=True)
class Preset:
    """Differences for a family of tasks: settings, and entries of the agent where it has them."""

    name: str
    why: str
    algos: tuple[str, ...] = ("*",)
    envs: tuple[str, ...] = ("*",)
    settings: tuple[tuple[str, Any], ...] = ()
    agent: tuple[tuple[str, Any], ...] = ()

    def fits(self, algo: str, env: str) -> bool:
        return any(fnmatch(algo, a) for a in self.algos) and any(fnmatch(env, e) for e in self.envs)


def learning_rates(lr: float) -> tuple[tuple[str, Any], ...]:
    return tuple((path, lr) for path in ("base.lr", "base.alpha.lr", "intrinsic.lr", "weight.lr"))


TORCH_FAMILY = ("*oac", "maxinfo-rnd-sac", "eps-*", "disagreement-sac", "curiosity-sac", "intrinsic-sac", "eipo-sac")
PRESETS = (
    Preset(
        "torch-warm-up",
        "the figures made with the authors' PyTorch code begin with 500 random steps",
        algos=TORCH_FAMILY,
        settings=(("learning_starts", 500),),
    ),
    Preset(
        "dmc-large",
        "humanoid and quadruped from states use 1024-wide networks",
        envs=("dmc/humanoid-*", "dmc/quadruped-*"),
        settings=(("uncertainty", "paper"),),
        agent=(("base.hidden", (1024, 1024)),),
    ),
    Preset(
        "humanoid-bench",
        "HumanoidBench: 512-wide networks and the paper's 5e-5, not the 5e-4 of the authors' code (conflict C3)",
        envs=("h1-*",),
        settings=(("capacity", 2_500_000), ("uncertainty", "paper")),
        agent=(("base.hidden", (512, 512)), *learning_rates(5e-5)),
    ),
    Preset(
        "pixels",
        "images: the paper's ensemble, which costs little beside convolutions (the light one was judged on states)",
        envs=("pixels/*",),
        settings=(("uncertainty", "paper"),),
    ),
    Preset(
        "pixels-large",
        "humanoid and dog from pixels: wide networks, a larger latent, 8e-5 for baseline and method (conflict C18)",
        envs=("pixels/dmc/humanoid-*", "pixels/dmc/dog-*"),
        agent=(
            ("base.hidden", (1024, 1024)),
            ("base.encoder.latent", 100),
            ("base.noise", {"kind": "Linear", "start": 1.0, "end": 0.1, "steps": 2_000_000}),
            *learning_rates(8e-5),
        ),
    ),
)
DEFAULTS = {"learning_starts": 0, "capacity": 1_000_000, "uncertainty": "light"}


def presets(name: str | None, algo: str, env: str) -> list[Preset]:
    """The presets that apply: all that fit, the one named, or none."""
    if name == "none":
        return []
    if name is None:
        return [p for p in PRESETS if p.fits(algo, env)]
    named = [p for p in PRESETS if p.name == name]
    if not named:
        raise unknown("preset", name, [p.name for p in PRESETS] + ["none"])
    return named


def resolve(settings: Settings, parts: dict[str, Any] | None = None) -> tuple[Settings, Strategy]:
    """Settings with nothing left open, and the agent they describe; `parts` are objects that replace the agent's."""
    composed = settings.base is not None or settings.explore is not None or settings.intrinsic is not None
    algo = settings.algo or ("maxinfo-sac" if not composed else "")
    agent = (
        compose(settings.base or "sac", settings.explore or "none", settings.intrinsic) if composed else algorithm(algo)
    )
    applied = presets(settings.preset, algo, settings.env)
    chosen = dict(DEFAULTS)
    for preset in applied:
        chosen |= dict(preset.settings)
        for path, value in preset.agent:
            agent = config.override(agent, path, value) if has(agent, path) else agent
    agent = with_uncertainty(agent, settings.uncertainty or chosen["uncertainty"])
    for path, value in [*settings.set, *(parts or {}).items()]:
        if path in (parts or {}) and not hasattr(agent, path):
            raise BadInput(
                f"{algo or 'this composition'} has no {path}: choose an algorithm that has, such as maxinfo-sac"
            )
        agent = config.override(agent, path, value)
    chosen |= {"action_repeat": default_action_repeat(settings.env), "update_ratio": float(agent.base.update_ratio)}
    settings = replace(settings, algo=algo or None, **{k: v for k, v in chosen.items() if getattr(settings, k) is None})
    check_updates(settings)
    return settings, agent


def has(tree: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    return hasattr(tree, name) and (not rest or has(getattr(tree, name), rest))


def check_updates(settings: Settings) -> int:
    """Updates per dispatch: environments x update ratio, which must be whole."""
    updates = settings.num_envs * (settings.update_ratio or 1.0)
    whole = max(1, round(updates))
    if abs(updates - whole) > 1e-6:
        raise BadInput(
            f"--update-ratio {settings.update_ratio:g} with {settings.num_envs} environments is {updates:g} updates "
            "per step of them all, which must be a whole number of at least 1: "
            f"try --update-ratio {whole / settings.num_envs:.7g}"
        )
    return whole


def title(settings: Settings) -> str:
    """What to call the algorithm of resolved settings."""
    parts = (settings.base or "sac", settings.explore or "none", settings.intrinsic)
    return settings.algo or "+".join(p for p in parts if p and p != "none")
