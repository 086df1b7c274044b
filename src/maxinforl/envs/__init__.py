"""Environments: `make` builds one from a name, an instance or a factory; a pool steps several."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from maxinforl.envs.fault import EnvCaller, Fault, Watchdog, close_quietly, most_steps
from maxinforl.envs.names import (
    PIXELS,
    RENDER_SIZE,
    build,
    catalogue,
    check_name,
    construct,
    default_action_repeat,
    episode_limit,
)
from maxinforl.envs.pixels import Frames
from maxinforl.envs.pool import EnvPool, Finished, Transition, env_name, episode_seed
from maxinforl.envs.vector import VectorPool
from maxinforl.envs.worker import Worker
from maxinforl.envs.wrapper import AdaptedEnv, NormalizedActions
from maxinforl.errors import BadInput

__all__ = [
    "AdaptedEnv",
    "EnvCaller",
    "EnvPool",
    "Fault",
    "Finished",
    "NormalizedActions",
    "Transition",
    "VectorPool",
    "Watchdog",
    "catalogue",
    "check_name",
    "close_quietly",
    "default_action_repeat",
    "env_name",
    "episode_limit",
    "episode_seed",
    "make",
    "make_lanes",
    "make_pool",
    "most_steps",
]

EnvArgs = Mapping[str, Any] | Iterable[tuple[str, Any]]


def make(
    env: str | gym.Env | Callable[..., gym.Env],
    *,
    action_repeat: int = 1,
    action_cost: float = 0.0,
    env_args: EnvArgs = (),
    render_mode: str | None = None,
    image_size: int = 84,
    critic_only: str | None = None,
) -> AdaptedEnv:
    """One environment from a name, an instance or a factory, ready for a pool.

    Observations are rank-1 float32, or HxWxC uint8 for images (always image_size x image_size x 3 for `pixels/` names).
    Actions are rank-1 float32 in the environment's own units. Rewards are summed over the action repeat, less
    `action_cost` times the norm of the action on each base step. Parts of the observation that `critic_only` names,
    with commas, come last in the vector.

    >>> env = make("dmc/walker-run", action_repeat=2)
    """
    args, observe = dict(env_args), None
    if isinstance(env, str):
        pixels = env.startswith(PIXELS)
        mode, size = ("rgb_array", image_size) if pixels else (render_mode, RENDER_SIZE)
        bare = build(env.removeprefix(PIXELS), mode, size, args)
        observe = Frames(bare, image_size) if pixels else None
    else:
        bare = (
            env if isinstance(env, (gym.Env, VectorEnv)) or not callable(env) else construct("the factory", env, args)
        )
        bare = single(bare)
    how: dict[str, Any] = {"action_repeat": action_repeat, "action_cost": action_cost, "critic_only": critic_only}
    adapted = AdaptedEnv(bare, observe=observe, **how)
    adapted.name = env if isinstance(env, str) else env_name(bare)
    return adapted


def single(env: Any) -> gym.Env:
    if isinstance(env, VectorEnv):
        raise BadInput("a vector environment already holds its lanes: give it to make_pool on its own")
    if not isinstance(env, gym.Env):
        raise BadInput(f"expected a gymnasium.Env, but got {type(env).__module__}.{type(env).__name__}")
    return env


def make_pool(
    env: str | gym.Env | VectorEnv | Callable[..., gym.Env],
    *,
    num_envs: int = 1,
    seed: int = 0,
    max_faults: int = 0,
    workers: bool = False,
    env_timeout: float = 60.0,
    **options: Any,
) -> EnvPool:
    """A pool of `num_envs` environments; `options` are those of `make`. A vector environment brings its own lanes.

    Environments from a name or a function are replaced when they fail, at most `max_faults` times in all. With
    `workers` each has its own process, which also counts as failed if it does not answer within `env_timeout` seconds.

    >>> pool = make_pool("Pendulum-v1", num_envs=4, workers=True)
    >>> obs = pool.reset()
    >>> transition = pool.step(np.zeros((4, 1), np.float32))
    """
    if isinstance(env, (gym.Env, VectorEnv)) and workers:
        raise BadInput("an environment that exists cannot move to a worker process: pass a name or a function")
    if isinstance(env, VectorEnv):
        if options.get("action_repeat", 1) != 1 or options.get("action_cost", 0.0):
            raise BadInput("put action repeat and action cost inside the vector environment with maxinforl.envs.make")
        return VectorPool(env, seed, options.get("critic_only"))
    if num_envs < 1:
        raise BadInput(f"{num_envs} environments were asked for, but a run needs at least 1")
    if isinstance(env, gym.Env):
        if num_envs > 1:
            raise BadInput(f"one environment cannot fill {num_envs} lanes: pass a function that makes it")
        return EnvPool([make(env, **options)], seed, borrowed=True)
    build = partial(make, env, **options)
    lanes, makers = make_lanes([build] * num_envs, env_timeout if workers else None)
    return EnvPool(lanes, seed, remake=makers[0], max_faults=max_faults)


def make_lanes(
    builds: Sequence[Callable[[], gym.Env]], timeout: float | None = None
) -> tuple[list[gym.Env], Sequence[Callable[[], gym.Env]]]:
    """The environments, and what makes each of them again; with a timeout each has its own process."""
    if timeout is None:
        return [build() for build in builds], builds
    started = [Worker(build, timeout) for build in builds]  # in parallel
    return [worker.wait_ready() for worker in started], [partial(_ready_worker, build, timeout) for build in builds]


def _ready_worker(build: Callable[[], gym.Env], timeout: float) -> Worker:
    return Worker(build, timeout).wait_ready()
