"""The Python API: make an agent, let it learn, ask it for actions, save and load it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

import maxinforl
from maxinforl import config, envs, files
from maxinforl.algorithms import Algo
from maxinforl.core.program import Program
from maxinforl.core.types import Latents, Spec, clock
from maxinforl.core.update import INIT, stream
from maxinforl.envs.wrapper import rescale
from maxinforl.errors import BadInput, Told, unknown
from maxinforl.explore import Strategy
from maxinforl.settings import Settings, check_count, resolve, title
from maxinforl.training import checkpoint
from maxinforl.training.compiled import CompiledTrainer, is_pure
from maxinforl.training.evaluate import Evaluation, Evaluator
from maxinforl.training.lock import RunLock
from maxinforl.training.loop import Trainer, agent_arrays, agent_from, check_memory, spec_of
from maxinforl.training.progress import Progress
from maxinforl.training.run import Drive, Run
from maxinforl.training.store import CheckpointStore

EnvLike: TypeAlias = str | gym.Env | VectorEnv | Callable[..., gym.Env]
FORMAT = 1
SAVED = "agent.safetensors"
PREDICT = 2  # stream of random numbers
LARGEST = 2**24  # numbers in an observation that a file may claim
PARTS = {  # of an agent that `make` takes as objects
    "base": "a frozen dataclass, such as maxinforl.algorithms.BASES['redq']",
    "intrinsic": "a frozen dataclass on maxinforl.intrinsic.Ensemble with `score`",
    "weight": "a frozen dataclass, such as maxinforl.Fixed(0.5)",
    "target": "a function of the target policy's gains and the clock",
    "schedule": "a frozen dataclass, such as maxinforl.explore.Then(0.5)",
}


class Agent:
    """An agent as Stable-Baselines3 users know one: `learn`, `predict`, `save`."""

    def __init__(self, settings: Settings, strategy: Strategy, env: EnvLike | None, eval_env: EnvLike | None = None):
        self.settings, self.strategy, self.env, self.eval_env = settings, strategy, env, eval_env
        self.trainer: Trainer | None = None
        self._loaded: dict[str, Any] | None = None
        self._asked = 0
        self._given = True  # whether its environment is the caller's, and not what a file names

    def _environment(self) -> EnvLike | None:
        """What environments are made of; a file alone cannot have a module imported."""
        if not self._given:
            envs.check_name(self.env)
        return self.env

    # ------------------------------------------------------------ learning

    def learn(
        self, steps: int, *, out: str | Path | None = None, eval_every: int | None = None, progress: bool = False
    ) -> Agent:
        """Collects `steps` more transitions and learns from them; writes nothing unless `out` is given."""
        from maxinforl.training.directory import check_free, open_run

        steps = whole("steps", steps)
        begun = self._loaded is not None or self.trainer is not None
        if out is not None:
            check_free(Path(out), hint="name another directory with out=")
        trainer = self._trainer(steps)
        last, named = trainer.step + steps, isinstance(self.env, str)
        settings = replace(self.settings, steps=last, **({} if eval_every is None else {"eval_every": eval_every}))
        trainer.settings = trainer.members[0].settings = settings
        directory = None
        if out is not None:
            directory = open_run(Path(out), settings, self.strategy, *self._spaces(), named, planned=self.total_steps)
        with nullcontext() if directory is None else RunLock(directory):
            self._drive(Run(trainer.members[0], self._evaluator(settings), directory), last, progress, begun)
        return self

    def _drive(self, run: Run, last: int, progress: bool, begun: bool = False) -> None:
        """Trains until `last` transitions, or until a signal asks to stop.

        Where the agent has `begun` elsewhere, a first checkpoint keeps what its seed alone would not give back.
        """
        trainer = run.member.trainer
        drive = Drive(trainer, [run], Progress(last, trainer.step, quiet=not progress))
        try:
            if begun:
                if trainer.action is None:
                    trainer.begin()
                drive.save(wait=True)
            if not drive.until(last):
                warnings.warn(f"learning stopped at step {trainer.step} of {last}, before its end", stacklevel=3)
        finally:
            drive.close()
        self.evaluations = run.evaluations

    def _trainer(self, steps: int) -> Trainer:
        """The one trainer of this agent, made by the first `learn`."""
        if self.trainer is None:
            if (env := self._environment()) is None:
                raise BadInput("this agent has no environment: pass one to load(directory, env=...)")
            check_memory(self.settings, steps, *self._spaces(), like=self._outline())
            planned = self.total_steps or steps
            self.trainer = make_trainer(self.strategy, [self.settings], env, planned)
            self._act_in(self.trainer.observation_space, self.trainer.action_space)
            if self._loaded is not None:
                self.trainer.adopt(self._agent_state(self.trainer.program), self._clock())
            stay = self.trainer.planned != planned
        else:
            stay = self.trainer.step + steps > self.trainer.planned
        if stay and self.schedules:
            warnings.warn(
                f"schedules stay planned for {self.trainer.planned} steps: pass make(total_steps=...) to plan for more",
                stacklevel=3,
            )
        self.trainer.make_room(steps)
        return self.trainer

    total_steps: int | None = None

    @property
    def schedules(self) -> bool:
        return hasattr(self.strategy, "schedule")

    def _evaluator(self, settings: Settings) -> Evaluator | None:
        if settings.eval_episodes == 0:
            return None
        source = self.eval_env or self._environment()
        if not isinstance(source, str) and (isinstance(source, (gym.Env, VectorEnv)) or not callable(source)):
            if self.eval_env is None:
                warnings.warn(
                    "evaluation is skipped: it needs eval_env=, or a factory in place of the instance", stacklevel=4
                )
                return None
            own = Evaluator([envs.make(source, **env_options(settings))], settings.seed, self.stack)  # type: ignore[arg-type]
            return self._fitting(own)
        modes = ["rgb_array" if settings.video and lane == 0 else None for lane in range(settings.eval_episodes)]
        builds = [partial(envs.make, source, **env_options(settings), render_mode=mode) for mode in modes]  # type: ignore[arg-type]
        apart = settings.workers and not settings.video  # what is filmed renders here
        lanes, makers = envs.make_lanes(builds, settings.env_timeout if apart else None)
        return self._fitting(Evaluator(lanes, settings.seed, self.stack, makers))

    def _fitting(self, evaluator: Evaluator) -> Evaluator:
        """Refuses to evaluate where the agent would see something of another shape than it was made for."""
        mine, theirs = self.observation_space.shape, evaluator.envs[0].observation_space.shape
        if mine != theirs:
            evaluator.close()
            raise BadInput(f"this agent sees observations of shape {mine}, and the environment gives {theirs}")
        return evaluator

    def evaluate(self, episodes: int = 10) -> Evaluation:
        """Returns and lengths of deterministic episodes in environments of their own."""
        check_count("episodes", episodes, 1)
        evaluator = self._evaluator(replace(self.settings, eval_episodes=episodes))
        if evaluator is None:
            raise BadInput("evaluation needs an environment that can be made anew: pass eval_env= or a factory")
        program, state, now = self._acting()
        try:
            return evaluator(lambda obs: program.act(state, obs, now), index=1_000_000)
        finally:
            evaluator.close()

    # ------------------------------------------------------------ acting

    @property
    def observation_space(self) -> spaces.Box:
        return self._spaces()[0]

    @property
    def action_space(self) -> spaces.Box:
        return self._spaces()[1]

    def _spaces(self) -> tuple[spaces.Box, spaces.Box]:
        """What a frame and a native action look like."""
        if not hasattr(self, "_known_spaces"):
            if isinstance(self.env, VectorEnv):
                self._known_spaces = (self.env.single_observation_space, self.env.single_action_space)
            else:
                probe = envs.make(self._environment(), **env_options(self.settings))  # type: ignore[arg-type]
                self._known_spaces = (probe.observation_space, probe.action_space)
                if isinstance(self.env, str):
                    probe.close()
        return self._known_spaces  # type: ignore[return-value]

    def set_env(self, env: EnvLike, eval_env: EnvLike | None = None) -> None:
        """Moves the agent to another environment, whose action limits hold from here on; what the replay kept of the
        one before is dropped.

        Examples:
            >>> agent = make("sac", "Pendulum-v1", batch_size=32)
            >>> agent.set_env("pendulum-hanging")
            >>> agent.settings.env
            'pendulum-hanging'
        """
        before, there = self._spaces(), Agent(replace(self.settings, env=env_label(env)), self.strategy, env)
        check_same_shapes(before, there._spaces())
        if self.trainer is not None:
            _, state, now = self._acting()
            self._loaded = {"agent": agent_arrays(state), "clock": {k: int(v) for k, v in now._asdict().items()}}
            self.trainer.close()
            self.trainer = None
            warnings.warn(
                "the replay of the environment before is dropped: learning goes on with an empty one", stacklevel=2
            )
        self.settings, self.env, self.eval_env, self._given = there.settings, env, eval_env, True
        self._known_spaces = there._spaces()

    def _act_in(self, observation: spaces.Box, action: spaces.Box) -> None:
        """Takes over the limits of the environment at hand, which a file may not know."""
        check_same_shapes(self._spaces(), (observation, action))
        self._known_spaces = (observation, action)

    @property
    def stack(self) -> int:
        return self.settings.frame_stack if len(self.observation_space.shape) == 3 else 1

    @property
    def spec(self) -> Spec:
        return spec_of(self, self.stack)  # type: ignore[arg-type]

    def predict(
        self,
        observation: np.ndarray,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Native actions for one observation or a batch; the second value is `state`, as Stable-Baselines3 expects."""
        batch, single = self._batch(observation)
        program, agent, now = self._acting()
        if deterministic:
            action = program.act(agent, batch, now)
        else:
            self._asked += 1
            action = program.sample_act(agent, batch, stream(self.settings.seed, PREDICT, self._asked), now)  # type: ignore[arg-type]
        native = rescale(self.action_space)(np.array(action))
        return (native[0] if single else native), state

    def _batch(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations as a batch in the agent's type, and whether there was only one."""
        obs = np.asarray(observation)
        single = obs.ndim == len(self.spec.obs)
        batch = obs[None] if single else obs
        if batch.shape[1:] != self.spec.obs:
            stacked = f", the last {self.stack} frames on the last axis, oldest first" if self.stack > 1 else ""
            raise BadInput(f"an observation has shape {self.spec.obs}{stacked}, or a batch of them, not {obs.shape}")
        if self.spec.pixels and obs.dtype != np.uint8:
            raise BadInput(f"images are uint8 from 0 to 255, and these are {obs.dtype}")
        batch = np.array(batch, self.observation_space.dtype)
        if not np.isfinite(batch).all():
            raise BadInput("the observation holds a number that is not finite: look at where it comes from")
        return batch, single

    def information_gain(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """How much each of a batch of native actions would teach the agent's model, before standardisation."""
        intrinsic, (_, state, _) = getattr(self.strategy, "intrinsic", None), self._acting()
        if not self.strategy.can_score:
            raise BadInput(f"{title(self.settings)} has no model that can score an action: use a MaxInfo agent")
        base, box = self.strategy.base, self.action_space

        @jax.jit
        def score(explorer: Any, obs: jax.Array, unit: jax.Array) -> jax.Array:
            learner = explorer.learner
            z = base.encoder.trunk(learner.target.critic.trunk, base.features(learner, obs))
            return intrinsic.score(explorer.model, z, unit)  # type: ignore[union-attr]

        unit = (np.asarray(action, np.float32) - (box.high + box.low) / 2) / ((box.high - box.low) / 2)
        obs, single = self._batch(observation)
        gain = np.array(score(getattr(state, "mixed", state), obs, unit[None] if single else unit))  # type: ignore[arg-type]
        return gain[0] if single else gain

    def _acting(self) -> tuple[Program, Any, Any]:
        if self.trainer is not None:
            return self.trainer.program, self.trainer.state.agent, self.trainer.state.clock
        if not hasattr(self, "_idle"):
            program = Program(self.strategy, self.spec)
            state = self._agent_state(program)
            self._idle = (program, state, self._clock())
        return self._idle

    def _agent_state(self, program: Program) -> Any:
        if self._loaded is not None:
            return agent_from(self._loaded["agent"], self._outline())
        check_memory(self.settings, 0, *self._spaces(), like=self._outline())
        return jax.jit(lambda: program.agent.init(stream(self.settings.seed, INIT), program.spec))()  # type: ignore[arg-type]

    def _outline(self) -> Any:
        """The state of its strategy as shapes and types."""
        return outline(lambda: self.strategy.init(stream(0, INIT), self.spec))  # type: ignore[arg-type]

    def _clock(self) -> Any:
        return clock(**self._loaded["clock"]) if self._loaded else clock()

    # ------------------------------------------------------------ files

    def save(self, directory: str | Path) -> None:
        """Writes agent.safetensors: weights, optimisers, normalisers and the configuration. No pickle."""
        if (Path(directory) / "config.toml").exists():
            raise BadInput(f"{directory} is the directory of a run, which has checkpoints of its own: name another")
        _, state, now = self._acting()
        meta = {
            "format": FORMAT,
            "maxinforl": maxinforl.__version__,
            "settings": plain_settings(self.settings),
            "agent": config.to_plain(self.strategy),
            "spaces": plain_spaces(*self._spaces()),
            "clock": {k: int(v) for k, v in now._asdict().items()},
            "env": self.env if isinstance(self.env, str) else None,
        }
        files.save_arrays(files.make_directory(directory) / SAVED, agent_arrays(state), meta)


def whole(name: str, value: Any) -> int:
    """A count of at least 1, which 1e5 is too."""
    value = int(value) if isinstance(value, (float, np.number)) and float(value).is_integer() else value
    check_count(name, value, 1)
    return value


def outline(init: Callable[[], Any]) -> Any:
    """Shapes and types of what `init` would make of a configuration, which may be any."""
    try:
        return jax.eval_shape(init)
    except Told:
        raise
    except Exception as error:
        why = files.shown(f"{type(error).__name__}: {error}".split("\n")[0])
        raise BadInput(f"no agent can be made of the configuration ({why}): correct or restore it") from error


def make_trainer(
    strategy: Strategy, seeds: Sequence[Settings], env: EnvLike, total: int, restored: bool = False
) -> Trainer:
    """A trainer of one seed or several: compiled whole where the environment is a pure JAX task, else stepped here."""
    if compiles(seeds[0], env):
        return CompiledTrainer(strategy, seeds, (), total, restored)
    pools = [envs.make_pool(env, **pool_options(s)) for s in seeds]
    return Trainer(strategy, seeds, pools, total, restored)


def compiles(settings: Settings, env: EnvLike) -> bool:
    """Whether environment and learning run as one program."""
    pure = isinstance(env, str) and is_pure(env)
    if settings.loop == "compiled" and not pure:
        raise BadInput(f"--loop compiled needs a jax/ or brax/ environment, and {settings.env} is not one")
    return pure and settings.loop != "host"


def env_options(settings: Settings) -> dict[str, Any]:
    return {
        "action_repeat": settings.action_repeat or 1,
        "action_cost": settings.action_cost,
        "env_args": settings.env_arg,
        "image_size": settings.image_size,
    }


def pool_options(settings: Settings) -> dict[str, Any]:
    names = ("num_envs", "seed", "max_faults", "workers", "env_timeout")
    return env_options(settings) | {name: getattr(settings, name) for name in names}


def make(
    algo: Algo | str | None = None,
    env: EnvLike | None = None,
    *,
    eval_env: EnvLike | None = None,
    total_steps: int | None = None,
    set: dict[str, Any] | None = None,
    **overrides: Any,
) -> Agent:
    """An agent for an environment.

    `algo` is a catalogue name (`maxinforl list`), `env` a name, a gymnasium.Env or a function that makes one. In place
    of `algo`, the names `base=`, `explore=` and `intrinsic=` compose one. Schedules, such as that of ε, are planned for
    `total_steps`, by default for the steps of the first `learn`.
    Overrides are the settings of `maxinforl train` (`seed`, `num_envs`, `learning_starts`, ...), entries of the agent
    by path in `set` (`{"base.lr": 1e-4}`), or parts of it as objects: `base=`, `intrinsic=`, `weight=`, `target=`,
    `schedule=`.

    Examples:
        >>> agent = make("maxinfo-sac", "Pendulum-v1", seed=1, batch_size=32)
        >>> action, _ = agent.predict(agent.observation_space.sample(), deterministic=True)
        >>> action.shape
        (1,)
    """
    known = {f.name for f in fields(Settings)}
    named = lambda k, v: k in known and (k not in PARTS or v is None or isinstance(v, str))
    plain = {k: v for k, v in overrides.items() if named(k, v)}
    parts = {k: v for k, v in overrides.items() if k not in plain}
    for name, value in parts.items():
        if name not in PARTS:
            raise unknown("setting", name, known | PARTS.keys(), 'Entries of the agent go into set={"base.lr": ...}.')
        check_part(name, value)
    if env is None:
        raise BadInput("make needs an environment: a name, a gymnasium.Env or a function that makes one")
    name = env_label(env)
    pairs = tuple((set or {}).items())
    env_arg = tuple(dict(plain.pop("env_arg", ())).items())
    settings, strategy = resolve(Settings(algo=algo, env=name, set=pairs, env_arg=env_arg, **plain), parts)
    agent = Agent(settings, strategy, env, eval_env)
    agent.total_steps = None if total_steps is None else whole("total_steps", total_steps)
    check_fit(strategy, agent)
    if "intrinsic" in parts:
        check_bonus(strategy, agent.spec)
    return agent


def env_label(env: EnvLike) -> str:
    """What settings call an environment."""
    return env if isinstance(env, str) else envs.env_name(env) if isinstance(env, gym.Env) else "custom"


def check_same_shapes(agent: tuple[spaces.Box, spaces.Box], env: tuple[spaces.Box, spaces.Box]) -> None:
    """Refuses an environment whose observations or actions have another shape than the agent's."""
    for what, mine, theirs in zip(("observations", "actions"), agent, env):
        if mine.shape != theirs.shape:
            raise BadInput(f"this agent has {what} of shape {mine.shape}, and the environment {theirs.shape}")


def check_part(name: str, value: Any) -> None:
    """A part that is given as an object: it hashes, and a file can describe it."""
    whole = is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not (callable(value) if name == "target" else whole):
        raise BadInput(f"{name} must be {PARTS[name]}, not {files.shown(repr(value))}", "your-own.md")


def check_fit(strategy: Strategy, agent: Agent) -> None:
    """A pixel base wants images and the others vectors; looks at the environment, so that its errors come first."""
    pixels, images = strategy.base.encoder.pixels, len(agent.observation_space.shape) == 3
    if pixels and not images:
        raise BadInput(f"{title(agent.settings)} learns from images: use pixels/{agent.settings.env}", "pixels.md")
    if images and not pixels:
        raise BadInput(
            f"{title(agent.settings)} learns from vectors, and {agent.settings.env} gives images: use drq or drqv2",
            "pixels.md",
        )


def check_bonus(strategy: Any, spec: Spec) -> None:
    """A bonus of the user's own must give one number per transition."""
    bonus, of = strategy.intrinsic, strategy.base.encoder.latents(spec)
    called = f"{type(bonus).__name__}.{'score' if strategy.needs_score else 'reward'}"

    def ask() -> jax.Array:
        rows = lambda width: jnp.zeros((2, width))
        seen = Latents(rows(of.z), rows(of.action), jnp.zeros(2), rows(of.z), rows(of.extra))
        model = bonus.init(jax.random.key(0), of)
        return bonus.score(model, seen.z, seen.action) if strategy.needs_score else bonus.reward(model, seen)

    try:
        shape = jax.eval_shape(ask).shape
    except (NotImplementedError, AttributeError) as error:
        why = files.shown(str(error)) or "it is not there"
        raise BadInput(f"{called} cannot be asked ({why}): it gives a number per row", "your-own.md") from None
    if shape != (2,):
        raise BadInput(f"{called} must give a number per row, so [2] for two of them, not {list(shape)}", "your-own.md")


def load(directory: str | Path, *, env: EnvLike | None = None, custom: Iterable[type] = ()) -> Agent:
    """An agent from a run directory or from what `Agent.save` wrote; nothing in the files is executed."""
    path = Path(directory)
    with files.reading(path):
        if not path.is_dir():
            raise BadInput(f"{path} is not a directory: give a run directory or what Agent.save wrote")
        saved = (path / SAVED).exists()
    if saved:
        arrays, meta = files.load_arrays(path / SAVED)
        return _from_saved(arrays, meta, path / SAVED, env, custom)
    if (path / "config.toml").exists():
        return _from_run(path, env, custom)
    if seeds := sorted(path.glob("seed-*/config.toml")):
        raise BadInput(f"{path} holds several seeds: name one of them, such as {seeds[0].parent}")
    raise BadInput(f"{path} holds neither a run (config.toml) nor a saved agent ({SAVED})")


def _from_saved(arrays: dict, meta: dict, path: Path, env: EnvLike | None, custom: Iterable[type]) -> Agent:
    files.check_format(meta.get("format"), FORMAT, path, "a saved agent")
    try:
        strategy = config.from_plain(meta["agent"], custom=custom)
        settings = read_settings(meta["settings"])
        agent = Agent(settings, strategy, meta["env"])
        agent._known_spaces = read_spaces(meta["spaces"])
        agent._loaded = {"agent": arrays, "clock": read_clock(meta["clock"])}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a complete saved agent: {error!r} is missing or of the wrong kind") from error
    return _in_env(agent, env)


def _from_run(path: Path, env: EnvLike | None, custom: Iterable[type]) -> Agent:
    from maxinforl.training.directory import read_run

    settings, strategy, plain = read_run(path, custom)
    saved = CheckpointStore(files.inside(path, "checkpoints")).load(rows=False)
    for sentence in (*saved.warnings, *checkpoint.changed_since(saved, settings, strategy)):
        warnings.warn(sentence, stacklevel=3)
    agent = Agent(settings, strategy, settings.env if plain.get("by_name", True) else None)
    agent._known_spaces = read_spaces(plain["spaces"])
    arrays, counters = (checkpoint.part(saved, name) for name in ("agent/", "clock/"))
    agent._loaded = {"agent": arrays, "clock": read_clock(counters)}
    return _in_env(agent, env)


def _in_env(agent: Agent, env: EnvLike | None) -> Agent:
    """A loaded agent in the caller's environment, if there is one; a file that does not fit says so now."""
    agent._given = agent.env is None  # a name from a file imports no module
    agent._acting()
    if env is not None:
        agent.set_env(env)
    return agent


def plain_settings(settings: Settings) -> dict[str, Any]:
    table = config.to_plain(settings)
    table.pop("kind")
    return table | {k: [list(pair) for pair in getattr(settings, k)] for k in ("env_arg", "set")}


def read_settings(table: Any) -> Settings:
    """Settings from a table of a file, with unknown names and wrong types refused."""
    if not isinstance(table, dict):
        raise BadInput("the settings are not a table")
    hints = {f.name: f for f in fields(Settings)}
    for name in table:
        if name not in hints:
            raise unknown("setting", str(name), hints)
    values = {
        k: config.coerce(v, config._hints(Settings)[k], k) for k, v in table.items() if k not in ("env_arg", "set")
    }
    values |= {k: read_pairs(k, table[k]) for k in ("env_arg", "set") if k in table}
    return Settings(**values)


def read_pairs(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    items = list(value.items()) if isinstance(value, dict) else value
    pair = lambda p: isinstance(p, (list, tuple)) and len(p) == 2 and isinstance(p[0], str)
    if not isinstance(items, list) or not all(map(pair, items)):
        raise BadInput(f"{name} must be a table of names and values")
    return tuple((p[0], tuple(p[1]) if isinstance(p[1], list) else p[1]) for p in items)


def plain_spaces(observation: spaces.Box, action: spaces.Box) -> dict[str, Any]:
    return {
        "observation_shape": list(observation.shape),
        "observation_dtype": str(observation.dtype),
        "action_low": [float(x) for x in action.low],
        "action_high": [float(x) for x in action.high],
    }


def read_spaces(table: Any) -> tuple[spaces.Box, spaces.Box]:
    """Spaces from a table of a file, refused where no environment has such or a shape would take much memory."""
    names = ("observation_shape", "observation_dtype", "action_low", "action_high")
    found: list[Any] = [table.get(name) for name in names] if isinstance(table, dict) else [None] * 4
    shape, dtype, low, high = found
    if not (_is_shape(shape) and isinstance(dtype, str) and _is_range(low, high)):
        raise BadInput("the saved spaces are damaged: restore the file that holds them from a copy")
    shape, image = tuple(shape), dtype == "uint8"
    observation = spaces.Box(0, 255, shape, np.uint8) if image else spaces.Box(-np.inf, np.inf, shape, np.float32)
    return observation, spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)


def _is_shape(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) <= 32 and all(type(n) is int and n > 0 for n in value)
    return whole and math.prod(value) <= LARGEST


def _is_range(low: Any, high: Any) -> bool:
    """Whether they are the bounds of actions, as numbers that float32 holds."""
    if not (isinstance(low, list) and isinstance(high, list) and 0 < len(low) == len(high)):
        return False
    numbers = all(type(x) in (int, float) and abs(x) <= np.finfo(np.float32).max for x in (*low, *high))
    return numbers and all(a <= b for a, b in zip(low, high))


def read_clock(table: Any) -> dict[str, int]:
    """Counters from a table or the arrays of a file."""
    try:
        counts = {name: int(table[name]) for name in ("step", "update", "total")}
    except (KeyError, TypeError, ValueError, OverflowError):
        counts = {"step": -1}
    if not all(0 <= count < 2**31 for count in counts.values()):
        raise BadInput("the saved counters are damaged: restore the file that holds them from a copy")
    return counts
