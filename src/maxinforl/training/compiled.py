"""The compiled loop: a pure task, its replay and all learning in one program, a chunk of steps per dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from maxinforl.core.program import PER_SEED
from maxinforl.core.update import TrainState
from maxinforl.envs import episode_seed, make_pool
from maxinforl.envs.jax_native import JaxEnv, Task, task
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.prior import Prior
from maxinforl.settings import Settings, pool_options
from maxinforl.spaces import Spaces
from maxinforl.training import nonfinite
from maxinforl.training.arrays import agent_arrays, agent_from, named
from maxinforl.training.trainer import SeedView, Trainer
from maxinforl.transition import Transition

CHUNK = 100  # most steps per dispatch: a signal waits for the end of one


def runs_compiled(settings: Settings, env: Any) -> bool:
    """Whether environment and learning run as one program."""
    pure = isinstance(env, str) and env.startswith(("jax/", "brax/"))
    if settings.loop == "compiled" and not pure:
        raise BadInput(f"--loop compiled needs a jax/ or brax/ environment, and {settings.env} is not one")
    return pure and settings.loop != "host"


def make_trainer(
    strategy: Strategy,
    per_seed_settings: Sequence[Settings],
    env: Any,
    total: int,
    restored: bool = False,
    prior: Prior | None = None,
) -> Trainer:
    """A trainer of one seed or several: the compiled loop where the environment is a pure JAX task, else the host's.

    Args:
        strategy: the agent.
        per_seed_settings: resolved settings that differ in the seed alone.
        env: a name, an environment or a function that makes one.
        total: transitions to have room for, and that schedules are planned for.
        restored: whether the replay will come from a checkpoint.
        prior: prior data that no file holds.
    """
    if runs_compiled(per_seed_settings[0], env):
        return CompiledTrainer(strategy, per_seed_settings, (), total, restored, prior)
    pools = [make_pool(env, **pool_options(settings)) for settings in per_seed_settings]
    return Trainer(strategy, per_seed_settings, pools, total, restored, prior)


class Lanes(eqx.Module):
    """Where each environment is."""

    state: Any
    elapsed: Array  # base steps of the episode
    ret: Array
    length: Array  # agent steps of the episode
    episode: Array


class Seen(NamedTuple):
    """What a step leaves for the host."""

    metrics: Any
    ended: Any
    ret: Any
    length: Any
    obs: Any


@dataclass(frozen=True)
class Simulation:
    """Environments as pure functions, with the action repeat and action cost of `envs.make`."""

    task: Task
    repeat: int = 1
    cost: float = 0.0

    def reset(self, seeds: Array) -> Lanes:
        zero = jnp.zeros(seeds.shape, jnp.int32)
        state = jax.vmap(lambda seed: self.task.reset(jax.random.key(seed)))(seeds)
        return Lanes(state, zero, jnp.zeros(seeds.shape, jnp.float32), zero, zero)

    def observe(self, lanes: Lanes) -> Array:
        return jax.vmap(self.task.observe)(lanes.state)

    def held(self, state: Any, elapsed: Array, action: Array) -> tuple[Any, Array, Array, Array, Array]:
        """One action on every base step of a repeat, until the episode ends."""
        price = self.cost * self.task.action_bound * jnp.sqrt(jnp.square(action).sum())

        def once(carry, _):
            state, elapsed, reward, terminated, truncated = carry
            over = terminated | truncated
            moved, more, end = self.task.step(state, action)
            keep = lambda new, old: jnp.where(over, old, new)
            time = elapsed + 1
            limit = (time >= self.task.time_limit) & ~end
            fresh = (moved, time, reward + more.astype(jnp.float32) - price, end, limit)
            return jax.tree.map(keep, fresh, carry), None

        carry = (state, elapsed, jnp.float32(0), jnp.array(False), jnp.array(False))
        return once(carry, None)[0] if self.repeat == 1 else jax.lax.scan(once, carry, length=self.repeat)[0]

    def step(self, lanes: Lanes, action: Array, seeds: Array, first: Array) -> tuple[Lanes, Transition, Seen]:
        """One action for every lane; `seeds` are those of the episodes after `first`, for lanes that end."""
        action = jnp.clip(action, -1, 1)
        state, elapsed, reward, terminated, truncated = jax.vmap(self.held)(lanes.state, lanes.elapsed, action)
        ended = terminated | truncated
        ret, length = lanes.ret + reward, lanes.length + 1
        going = Lanes(state, elapsed, ret, length, lanes.episode)
        next_obs = self.observe(going)

        def anew() -> Lanes:
            which = jnp.clip(lanes.episode - first, 0, seeds.shape[1] - 1)
            fresh = self.reset(jnp.take_along_axis(seeds, which[:, None], 1)[:, 0])
            fresh = eqx.tree_at(lambda new: new.episode, fresh, lanes.episode + 1)
            pick = lambda new, old: jnp.where(ended.reshape(ended.shape + (1,) * (new.ndim - 1)), new, old)
            return jax.tree.map(pick, fresh, going)

        lanes = jax.lax.cond(ended.any(), anew, lambda: going)
        obs = self.observe(lanes)
        t = Transition(action, reward, terminated, truncated, next_obs, obs, jnp.ones(ended.shape, bool))
        return lanes, t, Seen(jnp.zeros(0), ended, ret, length, next_obs)


@dataclass
class CompiledTrainer(Trainer):
    """A trainer whose environments live on the device."""

    def __post_init__(self):
        s = self.per_seed_settings[0]
        if s.env_arg:
            raise BadInput(f"{s.env} takes no --env-arg")
        self.simulation = Simulation(task(s.env), s.action_repeat or 1, s.action_cost)
        self._outside = JaxEnv(self.simulation.task)
        self.lanes: Lanes | None = None
        super().__post_init__()

    @property
    def spaces(self) -> Spaces:
        return Spaces(self._outside.observation_space, self._outside.action_space)  # type: ignore[arg-type]

    def episode_seeds(self, first: np.ndarray, count: int) -> np.ndarray:
        """The seeds of the next episodes of every lane, the same that a pool would use: [seeds, lanes, count]."""
        lanes = range(self.num_envs)
        return np.array(
            [
                [[episode_seed(s.seed, lane, int(first[i, lane]) + k) for k in range(count)] for lane in lanes]
                for i, s in enumerate(self.per_seed_settings)
            ],
            np.uint32,
        )

    @cached_property
    def reset(self) -> Any:
        def reset(seeds: Array) -> tuple[Lanes, Array]:
            lanes = self.simulation.reset(seeds)
            return lanes, self.simulation.observe(lanes)

        return jax.jit(reset if self.alone else jax.vmap(reset))

    def begin(self) -> None:
        first = self.episode_seeds(np.zeros((len(self.per_seed_settings), self.num_envs), np.int64), 1)[..., 0]
        self.lanes, obs = self.reset(first[0] if self.alone else first)
        self.state, action = self.program.begin(self.state, obs, self.warming_up)
        self.action = np.array(action)

    @cached_property
    def chunks(self) -> dict[bool, Any]:
        """By whether it learns: (state, lanes, action, seeds of coming episodes, steps) -> all of it after them."""
        axes = (PER_SEED, 0, 0, 0, None)

        def chunk(learning: bool, s: TrainState, lanes: Lanes, action: Array, seeds: Array, steps: Array):
            first = lanes.episode

            def move(s: TrainState, lanes: Lanes, action: Array):
                lanes, t, seen = self.simulation.step(lanes, action, seeds, first)
                s, action, *values = (self.program.train_step if learning else self.program.warmup_step)(s, t)
                return s, lanes, action, seen._replace(metrics=values[0]) if learning else seen

            def body(i, carry):
                *now, log = carry
                *after, seen = move(*now)
                return (*after, jax.tree.map(lambda column, x: column.at[i].set(x), log, seen))

            shapes = jax.eval_shape(move, s, lanes, action)[3]
            log = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)
            return jax.lax.fori_loop(0, steps, body, (s, lanes, action, log))

        compiled = self.program.compiled
        return {
            learning: compiled(
                "chunk", lambda *a, learning=learning: chunk(learning, *a), axes, (PER_SEED, 0, 0, 0), (0, 1)
            )
            for learning in (False, True)
        }

    def advance(self, most: int = 1) -> list[tuple[int, np.ndarray]]:
        """As many steps as one dispatch makes, up to `most`."""
        if self.action is None:
            self.begin()
        assert self.action is not None and self.lanes is not None
        idle = max(0, (self.settings.learning_starts or 0) - 1 - self.step) // self.num_envs
        count = min(most, CHUNK, idle) if idle else min(most, CHUNK)
        episodes = np.array(self.lanes.episode).reshape(len(self.seeds), self.num_envs)
        seeds = self.episode_seeds(episodes + 1, min(count, CHUNK))
        seeds = np.pad(seeds, ((0, 0), (0, 0), (0, CHUNK - seeds.shape[-1])))
        args = (self.action, seeds[0] if self.alone else seeds, count)
        self.state, self.lanes, action, log = self.chunks[not idle](self.state, self.lanes, *args)
        self.action = np.array(action)
        if not idle:
            values = np.array(log.metrics)[..., :count, :]
            log = log._replace(metrics=nonfinite.checked(self.program, self.state, values, self.action))
        log = [Seen(*(np.array(x)[(*seed.at, slice(count))] for x in log)) for seed in self.seeds]
        for seed, seen in zip(self.seeds, log):
            note(seed, seen, learning=not idle)
        before, self.step = self.step, self.step + count * self.num_envs
        numbers = [before + (i + 1) * self.num_envs for i in range(count)]
        return list(zip(numbers, np.stack([seen.obs for seen in log], 1)))

    def env_state(self, seed: SeedView) -> dict[str, np.ndarray]:
        assert self.action is not None
        lanes = jax.tree.map(lambda leaf: leaf[seed.at], self.lanes)
        here = {f"lanes/{name}": leaf for name, leaf in agent_arrays(lanes).items()}
        return {"action": self.each(self.action)[seed.index]} | here

    @property
    def _lanes_like(self) -> Lanes:
        return jax.eval_shape(self.simulation.reset, jax.ShapeDtypeStruct((self.num_envs,), jnp.uint32))

    def env_state_kinds(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        kinds = {"action": ((self.num_envs, *self.spaces.action.shape), np.dtype(np.float32))}
        return kinds | {f"lanes/{name}": (leaf.shape, leaf.dtype) for name, leaf in named(self._lanes_like)}

    def restore_env_state(self, states: Sequence[dict[str, np.ndarray]]) -> list[str]:
        """Their states are the environments: nothing has to be played again."""
        like = self._lanes_like
        part = lambda state: {k.removeprefix("lanes/"): v for k, v in state.items() if k.startswith("lanes/")}
        self.lanes = self.joined([agent_from(part(state), like) for state in states], jnp.stack)
        self.action = np.array(self.joined([state["action"] for state in states]))
        return []


def note(seed: SeedView, seen: Seen, learning: bool) -> None:
    """Metrics and finished episodes in the order they happened."""
    for values, ended, ret, length in zip(seen.metrics, seen.ended, seen.ret, seen.length):
        if learning:
            seed.window.add(values)
        for lane in np.flatnonzero(ended):
            seed.window.episode(float(ret[lane]), int(length[lane]))
