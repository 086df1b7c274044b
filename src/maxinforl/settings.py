"""What a run is asked to do: one frozen dataclass that the command line, config files and Python share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from itertools import chain
from typing import Any

from maxinforl import config
from maxinforl.algorithms import (
    ACTION_NOISES,
    algorithm,
    compose,
    recipe,
    with_action_noise,
    with_model_share,
    with_uncertainty,
    with_weight,
)
from maxinforl.core.actor_critic import ActorCritic, discount_of
from maxinforl.envs import default_action_repeat, episode_limit
from maxinforl.errors import BadInput, unknown
from maxinforl.explore import MaxInfo, Strategy, Tuned
from maxinforl.files import printable

MOST_EPISODES = 1000  # of an evaluation, each in an environment of its own
PRIOR_SHARE = 0.5  # of every batch, where there is prior data
MOST_ROWS = 2**24  # that the updates of one step draw from the replay


def option(default: Any, text: str, **known: Any) -> Any:
    """A setting with its help text and all else that is known about it, so that a new one touches this file alone.

    Args:
        default: the value where none is given; None where presets decide.
        text: what `--help` and the reference say.
        known: `least`, `most` and `positive` bound a number, `choices` a name. On resume `fixed` may not change, `free`
            changes without `--override`, and a change of `learning` is reported because it changes what is learned,
            and one of `told` because it changes what the run does.
            `silent` does not change the numbers of a run, `implied` shows in other settings or in the agent, `logged`
            changes what is measured but not what is learned. Reports label runs by what differs but those and
            `unlabelled`, say where runs that they compare differ in `unlike`, and take `task` as part of the task.
            `env` and `pool` are arguments of the environment and of its pool. `extra` is the module that must be
            installed, `directory` that there must be a run directory.
    """
    return field(default=default, metadata={"help": text} | known)


@dataclass(frozen=True)
class Settings:
    """Every setting of a training run; None means that the preset decides."""

    algo: str | None = option(
        None, "algorithm, a name from `maxinforl list` (default: maxinfo-sac)", fixed=True, implied=True
    )
    base: str | None = option(None, "compose freely: the base learner", fixed=True, implied=True)
    explore: str | None = option(
        None, "compose freely: none, maxinfo, sum, eipo, eps or then", fixed=True, implied=True
    )
    intrinsic: str | None = option(
        None, "compose freely: info-gain, disagreement, curiosity or rnd", fixed=True, implied=True
    )
    env: str = option(
        "MountainCarContinuous-v0", "environment: a Gymnasium id or a name from `maxinforl list --envs`", fixed=True
    )
    env_arg: tuple[tuple[str, Any], ...] = option(
        (), "argument of the environment, K=V; may be repeated", fixed=True, task=True
    )
    steps: int = option(6000, "transitions to collect over all environments", least=1, most=2**31 - 1, told=True)
    seed: int = option(0, "seed of everything random", least=0, most=2**32 - 1, fixed=True, pool=True)
    num_envs: int = option(
        1, "environments stepped side by side", least=1, most=16_384, fixed=True, pool=True, unlike=True
    )
    update_ratio: float | None = option(
        None,
        "critic updates per transition (default: the base's; 20 in REDQ and DroQ)",
        positive=True,
        learning=True,
        unlike=True,
    )
    learning_starts: int | None = option(
        None, "uniformly random transitions before learning", least=0, most=2**31 - 1, learning=True, unlike=True
    )
    batch_size: int | None = option(
        None, "transitions per update (default: the base's; 256, and 128 in BRO)",
        least=1, most=2**20, learning=True, unlike=True,
    )  # fmt: skip
    capacity: int | None = option(
        None, "most transitions the replay keeps (default: 1 000 000)", least=2, most=10**12, fixed=True, implied=True
    )
    uncertainty: str | None = option(
        None, "ensemble: paper (as wide as the actor) or light (an eighth of that)", fixed=True, implied=True
    )
    weight: str | float | None = option(
        None,
        "of MaxInfo's information gain: paper or paired (tuned), tied (the entropy's) or a number",
        fixed=True,
        implied=True,
    )
    action_noise: str | None = option(
        None, "of the behaviour: white, or correlated along an episode: pink or ou (Ornstein-Uhlenbeck)",
        choices=(None, *ACTION_NOISES), fixed=True, implied=True,
    )  # fmt: skip
    set: tuple[tuple[str, Any], ...] = option(
        (), "any setting of the agent, such as base.lr=1e-4; may be repeated", implied=True
    )
    preset: str | None = option(
        None, "hyperparameters: a name from `maxinforl list --preset`, or none", fixed=True, implied=True
    )
    prior_data: str | None = option(
        None,
        "file of transitions to learn from beside its own: .npz, or HDF5 of D4RL, Minari or robomimic",
        fixed=True,
    )
    prior_share: float | None = option(
        None, "share of every batch that comes from the prior data (default: 0.5)", learning=True
    )
    model_share: float | None = option(
        None, "share of every critic batch that the ensemble imagines (default: 0)", fixed=True, implied=True
    )
    image_size: int = option(84, "side of rendered images", least=1, most=2048, fixed=True, env=True, task=True)
    frame_stack: int = option(3, "frames per image observation", least=1, most=64, fixed=True, task=True)
    critic_only: str | None = option(
        None, "parts of a Dict observation, KEY[,KEY], that critics and intrinsic model see and the actor does not",
        fixed=True, env=True,
    )  # fmt: skip
    action_cost: float = option(
        0.0, "cost per unit of the action's norm, on every base step", fixed=True, env=True, task=True
    )
    action_repeat: int | None = option(
        None, "base steps per action (default: 2 on DMC, else 1)", least=1, most=1000, fixed=True, env=True, task=True
    )
    loop: str = option(
        "auto",
        "compiled (environment and learning in one program; jax/ and brax/ only), host, or auto",
        choices=("auto", "compiled", "host"),
        fixed=True,
        unlabelled=True,
    )
    eval_every: int = option(
        1000, "transitions between evaluations", least=1, most=2**31 - 1, logged=True, unlike=True, told=True
    )
    eval_episodes: int = option(
        5,
        "episodes per evaluation; 0 turns evaluation off",
        least=0,
        most=MOST_EPISODES,
        logged=True,
        unlike=True,
        told=True,
    )
    eval_limit: int | None = option(
        None,
        "most steps of an evaluation episode (default: what the environment allows, or 100 000 if it sets no limit)",
        least=1, most=2**31 - 1, logged=True, unlike=True, told=True,
    )  # fmt: skip
    stop_at: float | None = option(
        None, "end the run at an evaluation whose mean return is at least this", unlabelled=True, told=True
    )
    log_every: int = option(500, "transitions between log lines", least=1, most=2**31 - 1, silent=True)
    save_every: int = option(5000, "transitions between checkpoints", least=1, most=2**31 - 1, silent=True)
    keep: int = option(3, "checkpoints to keep", least=1, most=10_000, silent=True)
    max_hours: float | None = option(
        None, "stop cleanly, to be resumed, after this many hours", positive=True, silent=True, free=True
    )
    on_nan: str = option(
        "stop",
        "what a non-finite loss does: stop, or skip the update",
        choices=("stop", "skip"),
        learning=True,
        unlabelled=True,
    )
    max_faults: int = option(
        10,
        "environment faults survived in a run; 0: the first one ends it",
        least=0,
        most=2**31 - 1,
        silent=True,
        pool=True,
    )
    workers: bool = option(
        False, "each environment in a process of its own, restarted when it dies or hangs", silent=True, pool=True
    )
    env_timeout: float = option(
        60.0,
        "seconds after which an environment that does not answer counts as hung",
        positive=True, most=1e6, silent=True, pool=True,
    )  # fmt: skip
    video: bool = option(
        False, "write a video of one episode at the last evaluation",
        silent=True, extra="imageio_ffmpeg", directory=True,
    )  # fmt: skip
    record_states: bool = option(False, "keep the visited states in states.npz", silent=True, directory=True)
    tensorboard: bool = option(False, "log to TensorBoard too", silent=True, extra="tensorboardX", directory=True)
    wandb: bool = option(False, "log to Weights & Biases too", silent=True, extra="wandb", directory=True)

    def __post_init__(self):
        for f in fields(self):
            value, least = getattr(self, f.name), f.metadata.get("least")
            if least is not None and value is not None:
                check_count(flag(f.name), value, least, f.metadata.get("most"))
            if f.name in PAIRS:
                check_pairs(f.name, value)
            if value == "":
                raise BadInput(f"{flag(f.name)} is empty: give a name, or leave it out")
            if "choices" in f.metadata and value not in f.metadata["choices"]:
                raise unknown(flag(f.name), str(value), f.metadata["choices"])
            if f.metadata.get("positive") and value is not None:
                check_positive(flag(f.name), value, f.metadata.get("most"))
        if not 0 <= self.action_cost < float("inf"):
            raise BadInput(f"{flag('action_cost')} must be a number that is not negative, not {self.action_cost}")
        if self.prior_share is not None and not 0 <= self.prior_share <= 1:
            raise BadInput(f"{flag('prior_share')} must be a share from 0 to 1, not {self.prior_share}")
        if self.model_share is not None and not 0 <= self.model_share < 1:
            raise BadInput(f"{flag('model_share')} must be a share from 0 to below 1, not {self.model_share}")
        if self.stop_at is not None and not abs(self.stop_at) < float("inf"):
            raise BadInput(f"{flag('stop_at')} must be a finite return, not {self.stop_at}")
        if self.eval_episodes == 0 and (self.stop_at is not None or self.video):
            what = "--stop-at looks at" if self.stop_at is not None else "--video films"
            raise BadInput(f"{what} evaluations: give --eval-episodes of at least 1")
        if self.algo is not None and (self.base or self.explore or self.intrinsic):
            raise BadInput(
                "--algo names a whole algorithm: give either --algo, or --base with --explore and --intrinsic"
            )


def known_as(*kinds: str) -> tuple[str, ...]:
    """Names of the settings of which one of these is known, such as `fixed`."""
    return tuple(f.name for f in fields(Settings) if any(f.metadata.get(kind) for kind in kinds))


PAIRS = ("env_arg", "set")  # tables of names and values


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_count(name: str, value: Any, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise BadInput(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise BadInput(f"{name} must be at most {most}, not {value}")


def check_positive(name: str, value: float, most: float | None = None) -> None:
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} must be a finite number of more than 0, not {value}")
    if most is not None and value > most:
        raise BadInput(f"{name} must be at most {most:g}, not {value:g}")


def check_pairs(name: str, pairs: Any) -> None:
    """Refuses numbers that a file cannot hold, and tables in place of an environment's argument."""
    for key, value in pairs:
        for part in innermost(value):
            if isinstance(part, float) and not math.isfinite(part):
                raise BadInput(f"{flag(name)} {printable(key)} must be a finite number, not {part}")
            if isinstance(part, int) and abs(part) >= 2**63:
                raise BadInput(f"{flag(name)} {printable(key)} is a number of more than 64 bits")
            if name == "env_arg" and isinstance(part, dict):
                raise BadInput(f"{flag(name)} {printable(key)} must be a number, a text or a list of them, not a table")


def innermost(value: Any) -> Iterator[Any]:
    """What a value or a list, of lists too, is made of."""
    if not isinstance(value, (list, tuple)):
        yield value
    else:
        for part in value:
            yield from innermost(part)


@dataclass(frozen=True)
class Preset:
    """Differences for a family of tasks: settings, and entries of the agent where it has them."""

    name: str
    why: str
    algos: tuple[str, ...] = ("*",)
    envs: tuple[str, ...] = ("*",)
    settings: tuple[tuple[str, Any], ...] = ()
    agent: tuple[tuple[str, Any], ...] = ()
    change: Callable[[Strategy], Strategy] = lambda agent: agent
    by_name: bool = False  # applies only where it is named
    bases: tuple[str, ...] = ("*",)

    def fits(self, algo: str, env: str, base: str, agent: Strategy) -> bool:
        patterns = ((algo, self.algos), (env, self.envs), (base, self.bases))
        fits = all(any(fnmatch(name, pattern) for pattern in any_of) for name, any_of in patterns)
        return fits and not self.by_name and self.unknown_to(agent) is None

    def unknown_to(self, agent: Strategy) -> str | None:
        """The first entry of the base that the preset sets and the agent does not have, or does not read."""
        others = agent.base.critic_net is not None
        unread = (path for path, _ in self.agent if path == "base.hidden" and others)
        missing = (path for path, _ in self.agent if path.startswith("base.") and not has(agent, path))
        return next(chain(unread, missing), None)


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
    Preset(
        "one-critic",
        "SimBa has one critic where no episode terminates, as in the DeepMind Control Suite",
        envs=("dmc/*",),
        bases=("simba",),
        agent=(("base.num_min_critics", 1), ("base.critics", 1)),
    ),
    Preset(
        "simba-published",
        "the widths of SimBa's paper",
        bases=("simba",),
        settings=(("learning_starts", 5_000),),
        agent=(("base.critic_net.width", 512), ("base.actor_net.width", 128)),
        by_name=True,
    ),
    Preset(
        "crossq-published",
        "the critics' width of CrossQ's paper",
        bases=("crossq",),
        settings=(("learning_starts", 5_000),),
        agent=(("base.critic_net.width", 2048),),
        by_name=True,
    ),
    Preset(
        "bro-published",
        "the widths and quantiles of BRO's paper, in its fast form of 2 updates per step",
        bases=("bro",),
        settings=(("learning_starts", 2_500),),
        agent=(("base.critic_net.width", 512), ("base.actor_net.width", 256), ("base.head.quantiles", 100)),
        by_name=True,
    ),
    Preset(
        "xqc-published",
        "the widths, depths and atoms of XQC's paper",
        bases=("xqc",),
        settings=(("learning_starts", 5_000),),
        agent=(
            ("base.critic_net.width", 512),
            ("base.critic_net.layers", 4),
            ("base.actor_net.width", 256),
            ("base.actor_net.layers", 4),
            ("base.head.atoms", 101),
        ),
        by_name=True,
    ),
    Preset(
        "authors",
        "what the authors' code does where the default is another now: raw rewards of explorers, long memories",
        change=config.like_before,
        by_name=True,
    ),
)
DEFAULTS = {"capacity": 1_000_000, "uncertainty": "light"}


def presets(name: str | None, algo: str, env: str, base: str, agent: Strategy) -> list[Preset]:
    """The presets that apply: all that fit and the one named, or none."""
    if name == "none":
        return []
    if name is not None and name not in {p.name for p in PRESETS}:
        raise unknown("preset", name, [p.name for p in PRESETS] + ["none"])
    for asked in (p for p in PRESETS if p.name == name):
        if not any(fnmatch(base, pattern) for pattern in asked.bases):
            raise BadInput(f"the preset {name} is for {' '.join(asked.bases)}, and the base here is {base}")
        if path := asked.unknown_to(agent):
            raise BadInput(f"the preset {name} sets {path}, which the networks of {base} do not have")
    return [p for p in PRESETS if p.name == name or p.fits(algo, env, base, agent)]


def resolve(settings: Settings, parts: dict[str, Any] | None = None) -> tuple[Settings, Strategy]:
    """Settings with nothing left open, and the agent they describe; `parts` are objects that replace the agent's."""
    composed = settings.base is not None or settings.explore is not None or settings.intrinsic is not None
    algo = settings.algo or ("maxinfo-sac" if not composed else "")
    agent = (
        compose(settings.base or "sac", settings.explore or "none", settings.intrinsic) if composed else algorithm(algo)
    )
    base = settings.base or (recipe(algo).base if algo else "sac")
    applied = presets(settings.preset, algo, settings.env, base, agent)
    chosen = dict(DEFAULTS)
    for preset in applied:
        chosen |= dict(preset.settings)
        for path, value in preset.agent:
            agent = config.override(agent, path, value) if has(agent, path) else agent
        agent = preset.change(agent)
    agent = with_uncertainty(agent, settings.uncertainty or chosen["uncertainty"])
    agent = agent if settings.weight is None else with_weight(agent, settings.weight)
    agent = agent if settings.action_noise is None else with_action_noise(agent, settings.action_noise)
    for path, value in (parts or {}).items():
        if not hasattr(agent, path):
            raise BadInput(
                f"{algo or 'this composition'} has no {path}: choose an algorithm that has, such as maxinfo-sac"
            )
        agent = config.override(agent, path, value)
    for path, value in settings.set:
        if path == "base.hidden" and agent.base.critic_net is not None and agent.base.actor_net is not None:
            raise BadInput(f"base.hidden is of dense layers, and {base} has others: set base.critic_net.width")
        agent = config.override(agent, path, value)
    agent = agent if settings.model_share is None else with_model_share(agent, settings.model_share)
    chosen = from_base(agent.base, settings) | chosen
    settings = replace(settings, algo=algo or None, **{k: v for k, v in chosen.items() if getattr(settings, k) is None})
    if settings.prior_data is not None and settings.prior_share is None:
        settings = replace(settings, prior_share=PRIOR_SHARE)
    check_updates(settings)
    prior_rows(settings)
    check_batch(settings, agent)
    check_model_rows(settings, agent)
    return settings, with_start(with_discount(agent, settings), settings)


def from_base(base: ActorCritic, settings: Settings) -> dict[str, Any]:
    """Settings that the base decides where neither the run nor a preset does."""
    return {
        "action_repeat": default_action_repeat(settings.env),
        "update_ratio": float(base.update_ratio),
        "learning_starts": min(base.warm_up, settings.steps // 10),
        "batch_size": base.batch_size,
    }


def with_discount(agent: Strategy, settings: Settings) -> Strategy:
    """The agent with gamma from the length of an episode, where its base wants that and the run does not set it."""
    limit = episode_limit(settings.env)
    if not agent.base.gamma_by_length or limit is None or "base.gamma" in dict(settings.set):
        return agent
    return config.override(agent, "base.gamma", discount_of(limit / (settings.action_repeat or 1)))


def with_start(agent: Strategy, settings: Settings) -> Strategy:
    """Where rewards are divided, values are about 5 at most, and the gain's weight starts at 5(1 - gamma).

    In a critic of its own the gain is in the values' units already.
    """
    untouched = isinstance(agent, MaxInfo) and agent.weight == Tuned() and "weight.start" not in dict(settings.set)
    if not (untouched and agent.base.normalize_returns) or agent.own_critic:  # type: ignore[attr-defined]
        return agent
    return config.override(agent, "weight.start", 5 * (1 - agent.base.gamma))


def check_batch(settings: Settings, agent: Strategy) -> None:
    if settings.batch_size == 1 and (agent.base.of_critic.batch_norm or agent.base.of_actor.batch_norm):
        raise BadInput("batch norm needs more than one transition per update: raise --batch-size")


def check_model_rows(settings: Settings, agent: Strategy) -> None:
    """A share of the batch that is imagined is at least a row, and replaces the agent's own, but not all of them."""
    rows, size = getattr(getattr(agent, "intrinsic", None), "model_rows", None), settings.batch_size or 0
    if rows is None or not rows.share:
        return
    count, own = rows.rows(size), size - prior_rows(settings)
    if count == 0:
        raise BadInput(f"{flag('model_share')} {rows.share:g} of a batch of {size} is no row: raise one of them")
    if count >= own:
        shares = flag("model_share") + (f" or {flag('prior_share')}" if own < size else "")
        raise BadInput(f"{count} imagined rows would replace all {own} that the agent lived in a batch: lower {shares}")


def has(tree: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    return hasattr(tree, name) and (not rest or has(getattr(tree, name), rest))


def check_updates(settings: Settings) -> int:
    """Updates per dispatch: environments x update ratio, which must be whole."""
    updates = settings.num_envs * (1.0 if settings.update_ratio is None else settings.update_ratio)
    whole = max(1, round(updates))
    if abs(updates - whole) > 1e-6:
        raise BadInput(
            f"--update-ratio {settings.update_ratio:g} with {settings.num_envs} environments is {updates:g} updates "
            "per step of them all, which must be a whole number of at least 1: "
            f"try --update-ratio {whole / settings.num_envs:.7g}"
        )
    if whole * (settings.batch_size or 1) > MOST_ROWS:
        raise BadInput(
            f"{whole} updates of {settings.batch_size} transitions in one step are more than {MOST_ROWS} in all: lower "
            "--update-ratio, --batch-size or --num-envs"
        )
    return whole


def prior_rows(settings: Settings) -> int:
    """Rows of every batch that come from the prior data."""
    share, rows = settings.prior_share or 0.0, round((settings.prior_share or 0.0) * (settings.batch_size or 0))
    if share and not rows:
        raise BadInput(f"--prior-share {share:g} of a batch of {settings.batch_size} is no row: raise one of them")
    return rows


def env_options(settings: Settings) -> dict[str, Any]:
    """Arguments of `envs.make`."""
    own = {name: getattr(settings, name) for name in known_as("env")}
    return own | {"action_repeat": settings.action_repeat or 1, "env_args": settings.env_arg}


def pool_options(settings: Settings) -> dict[str, Any]:
    """Arguments of `envs.make_pool`."""
    return env_options(settings) | {name: getattr(settings, name) for name in known_as("pool")}


# ------------------------------------------------------------ to and from files


def settings_table(settings: Settings) -> dict[str, Any]:
    """Settings as a table of a file."""
    table = config.to_plain(settings)
    table.pop("kind")
    return table | {name: [[k, config.to_plain(v)] for k, v in getattr(settings, name)] for name in PAIRS}


def read_settings(table: Any) -> Settings:
    """Settings from a table of a file, with unknown names and wrong types refused."""
    if not isinstance(table, dict):
        raise BadInput("the settings are not a table")
    known = {f.name for f in fields(Settings)}
    for name in table:
        if name not in known:
            raise unknown("setting", str(name), known)
    hints = config.type_hints(Settings)
    values = {k: config.coerce(v, hints[k], k) for k, v in table.items() if k not in PAIRS}
    values |= {k: read_pairs(k, table[k]) for k in PAIRS if k in table}
    return Settings(**values)


def read_pairs(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    """A setting of names and values, from a table or a list of pairs."""
    items = list(value.items()) if isinstance(value, dict) else value
    pair = lambda p: isinstance(p, (list, tuple)) and len(p) == 2 and isinstance(p[0], str)
    if not isinstance(items, list) or not all(map(pair, items)):
        raise BadInput(f"{name} must be a table of names and values")
    return tuple((p[0], tuple(p[1]) if isinstance(p[1], list) else p[1]) for p in items)


def title(settings: Settings) -> str:
    """What to call the algorithm of resolved settings."""
    parts = (settings.base or "sac", settings.explore or "none", settings.intrinsic)
    return settings.algo or "+".join(p for p in parts if p and p != "none")
