"""The Python API: make an agent, let it learn, ask it for actions, save and load it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from maxinforl import config, envs, files, saved
from maxinforl.algorithms import Algo
from maxinforl.core.checks import why_not_exported
from maxinforl.core.encoders import Pixels, States
from maxinforl.core.program import Program, shared_program
from maxinforl.core.types import Latents, Spec, clock
from maxinforl.core.update import INIT, stream
from maxinforl.envs.observation import Encoder
from maxinforl.envs.wrapper import native_actions, rescale
from maxinforl.errors import BadInput, unknown
from maxinforl.explore import Strategy
from maxinforl.prior import EpisodeRecorder, Prior, check_npz, from_replay, in_units, part_names
from maxinforl.prior_files import find_prior
from maxinforl.settings import (
    MOST_EPISODES,
    PRIOR_SHARE,
    Settings,
    check_count,
    env_options,
    read_settings,
    resolve,
    title,
)
from maxinforl.spaces import Spaces, read_clock, read_spaces, with_before
from maxinforl.training import checkpoint
from maxinforl.training.arrays import agent_arrays, agent_from, agent_shapes
from maxinforl.training.callbacks import Callbacks
from maxinforl.training.compiled import make_trainer
from maxinforl.training.directory import check_free, open_run, read_run
from maxinforl.training.evaluate import Evaluation, Evaluator, make_evaluator
from maxinforl.training.lock import RunLock
from maxinforl.training.overrides import extend_run
from maxinforl.training.progress import Progress
from maxinforl.training.session import (
    OWN_ENVIRONMENT,
    SeedRun,
    Session,
    check_outputs,
    evaluators,
    read_saved,
    watched,
)
from maxinforl.training.store import CheckpointStore
from maxinforl.training.trainer import Trainer, check_memory

EnvLike: TypeAlias = str | gym.Env | VectorEnv | Callable[..., gym.Env]
PREDICT = 2  # stream of random numbers
PARTS = {  # of an agent that `make` takes as objects
    "base": "a frozen dataclass, such as maxinforl.algorithms.BASES['redq']",
    "intrinsic": "a frozen dataclass on maxinforl.intrinsic.Ensemble with `score`",
    "weight": "a frozen dataclass, such as maxinforl.Fixed(0.5)",
    "target": "a function of the target policy's gains and the clock",
    "schedule": "a frozen dataclass, such as maxinforl.explore.Then(0.5)",
}


class Agent:
    """An agent as Stable-Baselines3 users know one: `learn`, `predict`, `save`.

    `maxinforl.make` and `maxinforl.load` give one.
    """

    total_steps: int | None = None  # transitions that schedules are planned for

    prior_digest: str | None

    def __init__(
        self,
        settings: Settings,
        strategy: Strategy,
        env: EnvLike | None,
        eval_env: EnvLike | None = None,
        prior: Prior | None = None,
    ):
        self.settings, self.strategy, self.eval_env = settings, strategy, eval_env
        self.trainer: Trainer | None = None
        self.evaluations: list[tuple[int, Evaluation]] = []  # step and returns, of the last `learn`
        self.prior, self.prior_digest = prior, None  # prior data that no file holds; of whichever there is
        self._env = env
        self._parts: list[str] | None = None  # names of an observation's parts
        self._trusted = True  # whether its environment is the caller's, and not what a file names
        self._loaded: dict[str, Any] | None = None
        self._directory: Path | None = None  # of the run that its last `learn` wrote, with its checkpoints
        self._store: CheckpointStore | None = None
        self._sampled = 0

    @property
    def env(self) -> EnvLike | None:
        """What its environments are made of; `set_env` changes it."""
        return self._env

    @env.setter
    def env(self, env: EnvLike) -> None:
        raise BadInput("an agent's environment is not assigned: call agent.set_env(env)")

    def environment(self) -> EnvLike:
        """What environments are made of; the name in a file alone imports no module of the user's."""
        if self._env is None:
            raise BadInput("this agent has no environment: pass one to load(directory, env=...)")
        if not self._trusted:
            envs.check_name(self._env)
        return self._env

    def check(self) -> None:
        """Makes the environment once; a pixel-based agent needs images and the others vectors, and so does prior data.

        A file of prior data is read here and once more when learning begins, and not held between.
        """
        check_observations(self.strategy, self.settings, self.spaces)
        check_hidden(self.strategy, self.spec)
        found = find_prior(self.settings, self.prior, self._parts)
        if found is not None:
            in_units(found, self.spaces, self.settings.env)
            self.prior_digest = found.digest

    # ------------------------------------------------------------ learning

    def learn(
        self,
        steps: int | None = None,
        *,
        out: str | Path | None = None,
        eval_every: int | None = None,
        progress: bool = False,
        callback: Any = None,
    ) -> Agent:
        """Collects transitions and learns from them.

        Args:
            steps: how many more transitions, by default the `steps` of the settings.
            out: a directory for logs, evaluations and checkpoints; nothing is written without one. A second call with
                the same directory continues its run.
            eval_every: transitions between evaluations.
            progress: whether to show a progress bar.
            callback: a function of (run, metrics), an object with any of `on_step`, `on_log`, `on_evaluation` and
                `on_checkpoint`, or a list of them; see `maxinforl.training.callbacks`.

        Returns:
            The agent itself.

        Examples:
            >>> agent = make("sac", "Pendulum-v1", batch_size=32, eval_episodes=0, log_every=10)
            >>> agent.learn(20, callback=lambda run, metrics: run.step < 10).trainer.step
            10
        """
        steps = whole("steps", self.settings.steps if steps is None else steps)
        directory = None if out is None else Path(out).absolute()  # an environment may change the current one
        begun = self._loaded is not None or self.trainer is not None
        continued = self._continues(directory)
        callbacks = Callbacks(callback)
        check_outputs(self.settings, directory)
        if directory is not None and not continued:
            check_free(directory, hint="name another directory with out=")
        trainer = self._trainer(steps)
        last = trainer.step + steps
        settings = replace(self.settings, steps=last, **({} if eval_every is None else {"eval_every": eval_every}))
        trainer.settings = trainer.seeds[0].settings = settings
        if directory is not None:
            if continued:
                extend_run(directory, settings, self.strategy, trainer.step, trainer.planned)
            else:
                named = isinstance(self._env, str)
                facts = {"planned": self.total_steps, "continues": begun, "prior": trainer.prior_digest}
                open_run(directory, settings, self.strategy, self.spaces, named, **facts)
                self._directory, self._store = directory, None
        with nullcontext() if directory is None else RunLock(directory):
            self._train(settings, directory, Progress(last, trainer.step, quiet=not progress), callbacks, begun)
        return self

    def _continues(self, directory: Path | None) -> bool:
        """Whether a directory holds the run that the last `learn` of this agent wrote."""
        if directory is None or self.trainer is None or self._directory != directory:
            return False
        return (directory / "config.toml").exists()

    def _train(
        self, settings: Settings, directory: Path | None, progress: Progress, callbacks: Callbacks, begun: bool
    ) -> None:
        """Trains to the end of the settings, or until a signal or a callback ends it."""
        trainer = self.trainer
        assert trainer is not None
        name = self._env if isinstance(self._env, str) else None
        store = self._store if directory is not None else None
        run = SeedRun(trainer.seeds[0], self.make_evaluator(settings), directory, store)
        if directory is not None:
            self._store = run.store
        try:
            with watched(settings, [*trainer.pools], report_hang) as callers:
                callers += evaluators(settings, [run])
                session = Session(trainer, [run], name, callbacks, progress)
                if begun:  # its seed alone would not give it back
                    session.save(wait=True)
                if not session.train(settings.steps) and not session.callbacks.stopped_by:
                    warnings.warn(f"learning stopped at step {trainer.step} of {settings.steps}", stacklevel=3)
        finally:
            run.close()
        self.evaluations = run.evaluations

    def _trainer(self, steps: int) -> Trainer:
        """The one trainer of this agent, made by the first `learn`."""
        if self.trainer is None:
            env, planned = self.environment(), self.total_steps or steps
            check_memory(self.settings, steps, self.spaces, like=self.shapes())
            trainer = make_trainer(self.strategy, [self.settings], env, planned, prior=self.prior)
            try:
                self.spaces.check_shapes(trainer.spaces)
                if self._loaded is not None:
                    trainer.adopt(self._agent_state(trainer.program), self._clock())
            except BaseException:
                trainer.close()
                raise
            self.trainer = trainer
            self.spaces = trainer.spaces  # the limits of the environment at hand, which a file may not know
            stay = trainer.planned != planned
        else:
            stay = self.trainer.step + steps > self.trainer.planned
        if stay and hasattr(self.strategy, "schedule"):
            warnings.warn(
                f"schedules stay planned for {self.trainer.planned} steps: pass make(total_steps=...) to plan for more",
                stacklevel=3,
            )
        self.trainer.make_room(steps)
        return self.trainer

    def make_evaluator(self, settings: Settings) -> Evaluator | None:
        """Environments for evaluations; None, with a warning, where none can be made."""
        warn = lambda sentence: warnings.warn(sentence, stacklevel=6)
        return make_evaluator(settings, self.environment(), self.spaces, self.eval_env, warn)

    def evaluate(self, episodes: int = 10, *, save_episodes: str | Path | None = None) -> Evaluation:
        """Plays deterministic episodes in environments of their own.

        Args:
            episodes: how many.
            save_episodes: an .npz file to write them to, which `make(prior_data=...)` reads.

        Returns:
            `returns` and `lengths`, an entry for each episode.
        """
        check_count("episodes", episodes, 1, MOST_EPISODES)
        record = None if save_episodes is None else self._recorder(save_episodes)
        evaluator = self.make_evaluator(replace(self.settings, eval_episodes=episodes))
        if evaluator is None:
            raise BadInput("evaluation needs an environment that can be made anew: pass eval_env= or a factory")
        program, state, now = self.acting_state()
        try:
            result = evaluator(lambda obs: program.act(state, obs, now), index=1_000_000, record=record)
        finally:
            evaluator.close()
        if record is not None and save_episodes is not None:
            record.prior().save(save_episodes)
        return result

    def _recorder(self, path: str | Path) -> EpisodeRecorder:
        """Refuses what could not be written before anything is played."""
        check_npz(path)
        if self.spec.pixels:
            raise BadInput(f"episodes are saved as vectors, and {self.settings.env} gives images: leave the file out")
        return EpisodeRecorder()

    # ------------------------------------------------------------ acting

    @cached_property
    def spaces(self) -> Spaces:
        """What a frame and an action in the environment's own units look like."""
        if isinstance(self._env, VectorEnv):
            observation = Encoder(self._env.single_observation_space, self.settings.critic_only).space
            return Spaces(observation, native_actions(self._env.single_action_space)[0])
        probe = envs.make(self.environment(), **env_options(self.settings))  # type: ignore[arg-type]
        found = Spaces(probe.observation_space, probe.action_space)  # type: ignore[arg-type]
        self._parts = part_names(probe)
        if not isinstance(self._env, gym.Env):
            envs.close_quietly(probe)
        return found

    @property
    def observation_space(self) -> Box:
        return self.spaces.observation

    @property
    def action_space(self) -> Box:
        return self.spaces.action

    @property
    def stack(self) -> int:
        """Frames of an observation."""
        return self.spaces.stack(self.settings)

    @property
    def spec(self) -> Spec:
        """Shapes of what the agent observes, frames stacked, and does."""
        return self.spaces.spec(self.settings)

    def shapes(self) -> Any:
        """The state of its strategy as shapes and types."""
        return agent_shapes(self.strategy, self.spec)

    def set_env(self, env: EnvLike, eval_env: EnvLike | None = None) -> None:
        """Moves the agent to another environment, whose action limits hold from here on.

        Args:
            env: a name, an environment or a function that makes one, with observations and actions of the same shape.
            eval_env: what to evaluate on instead.

        What the replay kept of the environment before is dropped.

        Examples:
            >>> agent = make("sac", "Pendulum-v1", batch_size=32)
            >>> agent.set_env("pendulum-hanging")
            >>> agent.settings.env
            'pendulum-hanging'
        """
        moved = Agent(replace(self.settings, env=env_label(env)), self.strategy, env)
        self.spaces.check_shapes(moved.spaces)
        if self.trainer is not None:
            _, state, now = self.acting_state()
            self._loaded = {"agent": agent_arrays(state), "clock": {k: int(v) for k, v in now._asdict().items()}}
            self.trainer.close()
            self.trainer = None
            warnings.warn(
                "the replay of the environment before is dropped: learning goes on with an empty one", stacklevel=2
            )
            self.__dict__.pop("_untrained", None)  # what was loaded before is not what it has learned
        self._directory = self._store = None
        self.settings, self._env, self.eval_env, self._trusted = moved.settings, env, eval_env, True
        self.spaces = moved.spaces

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Actions in the environment's own units.

        Args:
            observation: one observation or a batch of them, as the environment or a Gymnasium vector environment gives
                it (Dict, Tuple and discrete ones too), or flat, as `observation_space` says. Images come stacked,
                or see `episode_start`.
            state: of single frames, what the call before returned: the frames before these. Otherwise it is returned as
                it is, as Stable-Baselines3 expects.
            episode_start: with it images may be single frames, as environments give them and Stable-Baselines3's
                evaluate_policy passes them on; true for the first of an episode.
            deterministic: the action of an evaluation; otherwise one of the behaviour, as in training. For most agents
                that is a sample of the policy. Optimistic agents (OAC) move its mean, and agents with a second policy
                to explore with (ε-switching, explore-then-exploit) follow that one wherever their schedule explores.

        Returns:
            An action or a batch of actions, and `state`.
        """
        frames = None if episode_start is None else self.spaces.frames(observation, self.settings)
        if frames is None:
            batch, single = self.spaces.batch(observation, self.settings)
        else:
            batch, single = with_before(frames[0], state, episode_start, self.stack), frames[1]
            state = batch
        program, agent, now = self.acting_state()
        if deterministic:
            action = program.act(agent, batch, now)
        else:
            self._sampled += 1
            action = program.sample_act(agent, batch, stream(self.settings.seed, PREDICT, self._sampled), now)  # type: ignore[arg-type]
        native = rescale(self.action_space)(np.array(action))
        return (native[0] if single else native), state

    def information_gain(self, observation: Any, action: np.ndarray) -> np.ndarray:
        """How much actions would teach the agent's model, before standardisation.

        Args:
            observation: one observation or a batch of them.
            action: as many actions in the environment's own units.

        Returns:
            A number for each pair.
        """
        if not self.strategy.can_score:
            raise BadInput(f"{title(self.settings)} has no model that can score an action: use a MaxInfo agent")
        box, (program, state, _) = self.action_space, self.acting_state()
        unit = (np.asarray(action, np.float32) - (box.high + box.low) / 2) / ((box.high - box.low) / 2)
        obs, single = self.spaces.batch(observation, self.settings, whole=True)
        gain = np.array(program.score(state, obs, unit[None] if single else unit))
        return gain[0] if single else gain

    def acting_state(self) -> tuple[Program, Any, Any]:
        """What acting needs: the compiled program, the state of the strategy and the clock."""
        if self.trainer is not None:
            return self.trainer.program, self.trainer.state.agent, self.trainer.state.clock
        return self._untrained

    @cached_property
    def _untrained(self) -> tuple[Program, Any, Any]:
        program = shared_program(self.strategy, self.spec)
        return program, self._agent_state(program), self._clock()

    def _agent_state(self, program: Program) -> Any:
        if self._loaded is not None:
            return agent_from(self._loaded["agent"], self.shapes())
        check_memory(self.settings, 0, self.spaces, like=self.shapes())
        return jax.jit(lambda: program.agent.init(stream(self.settings.seed, INIT), program.spec))()  # type: ignore[arg-type]

    def _clock(self) -> Any:
        return clock(**self._loaded["clock"]) if self._loaded else clock()

    # ------------------------------------------------------------ files

    def save(self, directory: str | Path) -> None:
        """Writes agent.safetensors: weights, optimisers, normalisers and the configuration. No pickle.

        Args:
            directory: where to; it is made if it is not there.
        """
        if (Path(directory) / "config.toml").exists():
            raise BadInput(f"{directory} is the directory of a run, which has checkpoints of its own: name another")
        _, state, now = self.acting_state()
        env = self._env if isinstance(self._env, str) else None
        path = files.make_directory(directory) / saved.FILE
        saved.write_agent(path, state, now, self.strategy, self.settings, self.spaces, env)

    def save_replay(self, path: str | Path) -> None:
        """Writes the transitions of the replay, in order, with actions in the environment's own units.

        Args:
            path: an .npz file, which `make(prior_data=...)` reads.
        """
        check_npz(path)
        if self.trainer is None:
            raise BadInput("the replay holds no transition yet: call learn() first")
        from_replay(self.trainer.state.replay, self.action_space).save(path)


def report_hang(sentence: str) -> None:
    """Says that an environment does not answer; the caller's process is not ours to end."""
    print(f"maxinforl: {sentence.partition(', so the run ends')[0]}", file=sys.stderr, flush=True)


def whole(name: str, value: Any) -> int:
    """A count of at least 1, which 1e5 is too."""
    value = int(value) if isinstance(value, (float, np.number)) and float(value).is_integer() else value
    check_count(name, value, 1)
    return value


def make(
    algo: Algo | str | None = None,
    env: EnvLike | None = None,
    *,
    eval_env: EnvLike | None = None,
    total_steps: int | None = None,
    prior: Prior | None = None,
    set: dict[str, Any] | None = None,
    **overrides: Any,
) -> Agent:
    """An agent for an environment.

    Args:
        algo: a catalogue name (`maxinforl list`); in its place `base=`, `explore=` and `intrinsic=` compose one.
        env: a name, a gymnasium.Env or a function that makes one.
        eval_env: what to evaluate on instead.
        total_steps: transitions that schedules, such as that of ε, are planned for; by default those of the first
            `learn`.
        prior: data to learn from beside its own, as an object; `prior_data` names a file. `prior_share` is its share
            of every batch.
        set: entries of the agent by path, such as `{"base.lr": 1e-4}`.
        overrides: the settings of `maxinforl train` (`seed`, `num_envs`, `learning_starts`, ...), or parts of the agent
            as objects: `base=`, `intrinsic=`, `weight=`, `target=`, `schedule=`.

    Returns:
        An agent that has not learned yet.

    Examples:
        >>> agent = make("maxinfo-sac", "Pendulum-v1", seed=1, batch_size=32)
        >>> action, _ = agent.predict(agent.observation_space.sample(), deterministic=True)
        >>> action.shape
        (1,)
    """
    known = {f.name for f in fields(Settings)}
    name_of = lambda k, v: isinstance(v, (str, float, int) if k == "weight" else str)
    named = lambda k, v: k in known and (k not in PARTS or v is None or name_of(k, v))
    plain = {k: v for k, v in overrides.items() if named(k, v)}
    parts = {k: v for k, v in overrides.items() if k not in plain}
    for name, value in parts.items():
        if name not in PARTS:
            raise unknown("setting", name, known | PARTS.keys(), 'Entries of the agent go into set={"base.lr": ...}.')
        check_part(name, value)
    if env is None:
        raise BadInput("make needs an environment: a name, a gymnasium.Env or a function that makes one")
    if isinstance(env, (gym.Env, VectorEnv)) and (useless := {"env_arg", "max_faults"} & plain.keys()):
        raise BadInput(f"{min(useless)} is for environments that are made anew: pass a name or a function as env")
    name = env_label(env)
    pairs = tuple((set or {}).items())
    env_arg = tuple(dict(plain.pop("env_arg", ())).items())
    if isinstance(keys := plain.get("critic_only"), (list, tuple)):
        plain["critic_only"] = ",".join(keys)
    plain |= prior_settings(prior, plain)
    settings, strategy = resolve(Settings(algo=algo, env=name, set=pairs, env_arg=env_arg, **plain), parts)
    agent = Agent(settings, strategy, env, eval_env, prior)
    agent.total_steps = None if total_steps is None else whole("total_steps", total_steps)
    agent.check()
    if "intrinsic" in parts:
        check_bonus(strategy, agent.spec)
    if (sentence := why_not_exported(strategy.base)) is not None:
        warnings.warn(sentence, stacklevel=2)
    return agent


def prior_settings(prior: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Settings about prior data, of which a file can hold the path and the share."""
    if prior is not None and not isinstance(prior, Prior):
        raise BadInput(f"prior must be a maxinforl.Prior, not {type(prior).__name__}: a file goes into prior_data=")
    path, share = given.get("prior_data"), given.get("prior_share")
    own = {} if path is None else {"prior_data": str(path)}
    return own | ({"prior_share": PRIOR_SHARE} if prior is not None and share is None else {})


def env_label(env: EnvLike) -> str:
    """What settings call an environment."""
    return env if isinstance(env, str) else envs.env_name(env) if isinstance(env, gym.Env) else "custom"


def check_part(name: str, value: Any) -> None:
    """A part that is given as an object: it hashes, and a file can describe it."""
    whole = is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not (callable(value) if name == "target" else whole):
        raise BadInput(f"{name} must be {PARTS[name]}, not {files.printable(repr(value))}", "your-own.md")


def check_observations(strategy: Strategy, settings: Settings, spaces: Spaces) -> None:
    """Refuses vectors for a pixel-based agent, and images for one that is not."""
    pixels, images = strategy.base.encoder.pixels, spaces.observation.dtype == np.uint8
    if pixels and not images:
        raise BadInput(f"{title(settings)} learns from images: use pixels/{settings.env}", "pixels.md")
    if images and not pixels:
        raise BadInput(
            f"{title(settings)} learns from vectors, and {settings.env} gives images: use drq or drqv2", "pixels.md"
        )


def check_hidden(strategy: Strategy, spec: Spec) -> None:
    """Parts for critics alone need an actor that can do without them."""
    hides = spec.seen.obs != spec.obs
    if hides and strategy.base.optimism is not None:
        raise BadInput(
            "an optimistic base asks its critics how to act, and they need what --critic-only hides: use sac"
        )
    if hides and not isinstance(strategy.base.encoder, (States, Pixels)):
        raise BadInput(
            "--critic-only needs the encoder States or Pixels: one of your own mixes in what the actor may not see"
        )
    if hides and spec.pixels and not spec.seen.images:
        raise BadInput("--critic-only hides every image: leave one for the actor, or train a state-based agent")


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
        why = files.printable(str(error)) or "it does not implement it"
        raise BadInput(f"{called} cannot be called ({why}): it gives a number per row", "your-own.md") from None
    if shape != (2,):
        raise BadInput(f"{called} must give a number per row, so [2] for two of them, not {list(shape)}", "your-own.md")


def load(
    directory: str | Path,
    *,
    env: EnvLike | None = None,
    custom: Iterable[type] = (),
    prior: Prior | None = None,
) -> Agent:
    """An agent from files; nothing in them is executed.

    Args:
        directory: what `Agent.save` wrote, a run directory, or its `best`.
        env: an environment to move the agent to, as `Agent.set_env` does.
        custom: classes of your own that the agent is made of.
        prior: its prior data, where no file holds it and it is to learn on.

    Returns:
        The agent, with an empty replay.
    """
    agent = _loaded_agent(Path(directory), env, custom)
    agent.prior = prior
    return agent


def _loaded_agent(path: Path, env: EnvLike | None, custom: Iterable[type]) -> Agent:
    with files.reading(path):
        if not path.is_dir():
            raise BadInput(f"{path} is not a directory: give a run directory or what Agent.save wrote")
        is_agent = (path / saved.FILE).exists()
    if is_agent:
        arrays, meta = files.load_arrays(path / saved.FILE)
        return _from_saved(arrays, meta, path / saved.FILE, env, custom)
    if (path / "config.toml").exists():
        return _from_run(path, env, custom)
    if seeds := sorted(path.glob("seed-*/config.toml")):
        raise BadInput(f"{path} holds several seeds: name one of them, such as {seeds[0].parent}")
    raise BadInput(f"{path} holds neither a run (config.toml) nor a saved agent ({saved.FILE})")


def _from_saved(arrays: dict, meta: dict, path: Path, env: EnvLike | None, custom: Iterable[type]) -> Agent:
    files.check_format(meta.get("format"), saved.FORMAT, path, "a saved agent")
    try:
        strategy = config.from_file(meta["agent"], custom)
        settings = read_settings(meta["settings"])
        agent = Agent(settings, strategy, meta["env"])
        agent.spaces = read_spaces(meta["spaces"])
        agent._loaded = {"agent": arrays, "clock": read_clock(meta["clock"])}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a complete saved agent: {error!r} is missing or of the wrong kind") from error
    return _in_env(agent, env)


def _from_run(path: Path, env: EnvLike | None, custom: Iterable[type]) -> Agent:
    settings, strategy, plain = read_run(path, custom)
    newest = CheckpointStore(files.inside(path, "checkpoints")).load(rows=False)
    for sentence in (*newest.warnings, *checkpoint.changed_since(newest, settings, strategy)):
        warnings.warn(sentence, stacklevel=3)
    agent = Agent(settings, strategy, settings.env if plain.get("by_name", True) else None)
    agent.spaces = read_spaces(plain["spaces"])
    arrays, counters = (checkpoint.part(newest, name) for name in ("agent/", "clock/"))
    agent._loaded = {"agent": arrays, "clock": read_clock(counters)}
    return _in_env(agent, env)


def _in_env(agent: Agent, env: EnvLike | None) -> Agent:
    """A loaded agent in the caller's environment, if there is one; a file that does not fit says so now."""
    agent._trusted = agent.env is None  # a name from a file imports no module
    agent.acting_state()
    if env is not None:
        agent.set_env(env)
    return agent


def resume(
    directory: str | Path,
    *,
    env: EnvLike | None = None,
    eval_env: EnvLike | None = None,
    custom: Iterable[type] = (),
    prior: Prior | None = None,
    progress: bool = False,
    callback: Any = None,
) -> Agent:
    """Takes a run to its end as if it had never stopped.

    Args:
        directory: what `learn(out=...)` or `maxinforl train --out` named.
        env: its environment, where that is one of your own or named `module:Name`, which imports the module.
        eval_env: what to evaluate on instead.
        custom: classes of your own that the agent is made of.
        prior: its prior data, where no file holds it.
        progress: whether to show a progress bar.
        callback: as for `Agent.learn`.

    Returns:
        The agent at the end of its run.
    """
    path = Path(directory).absolute()  # an environment may change the current one
    if not (path / "config.toml").exists():
        raise BadInput(f"{path} holds no run: give the directory that learn(out=...) or `train --out` named")
    with RunLock(path):
        found = read_saved([path], custom)
        settings, table = found.settings, found.tables[0]
        if table.get("together"):
            raise BadInput(f"{path} trains together with other seeds: use `maxinforl resume {path.parent}`")
        if env is None and not found.by_name:
            raise BadInput(
                f"{path} was trained on an environment of your own: pass it as resume(..., env=...)", OWN_ENVIRONMENT
            )
        if found.finished:
            agent = load(path, env=env, custom=custom, prior=prior)
            agent.eval_env = eval_env
            return agent
        if env is None:
            envs.check_name(settings.env)
        agent = Agent(settings, found.strategy, settings.env if env is None else env, eval_env, prior)
        if agent.spaces.differ_from(table["spaces"]):
            raise BadInput(f"the environment has other observations or actions than the one of {path}: pass that one")
        report = lambda sentence: warnings.warn(sentence, stacklevel=4)
        shown = Progress(settings.steps, found.step or 0, quiet=not progress)
        options: dict[str, Any] = {"env": agent.env, "eval_env": eval_env, "prior": prior, "end_hung": report_hang}
        with Session.restored(found, report, callbacks=Callbacks(callback), progress=shown, **options) as session:
            agent.trainer, agent._directory = session.trainer, path
            agent._store = session.runs[0].store
            if not session.train() and not session.callbacks.stopped_by:
                warnings.warn(f"learning stopped at step {session.trainer.step} of {settings.steps}", stacklevel=2)
            agent.evaluations = session.runs[0].evaluations
    return agent
