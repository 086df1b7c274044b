"""Environment names, and how each is built."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from inspect import signature
from typing import Any

import gymnasium as gym

from maxinforl.envs import gl
from maxinforl.errors import BadInput, UserError, missing_extra, one_line, unknown
from maxinforl.files import printable

RENDER_SIZE = 256
PIXELS, DMC, BRAX, JAX = "pixels/", "dmc/", "brax/", "jax/"
PENDULUM = "pendulum-hanging"
H1 = {"h1-stand": "stand", "h1-walk": "walk", "h1-run": "run"}
ELSEWHERE = {  # how ids of known packages begin: the module that registers them
    "gymnasium_robotics": ("PointMaze", "AntMaze", "Fetch", "Hand", "Adroit", "FrankaKitchen", "MaMuJoCo"),
    "panda_gym": ("Panda",),
    "metaworld": ("Meta-World",),
    "minigrid": ("MiniGrid", "BabyAI"),
    "highway_env": ("highway", "parking", "racetrack"),
}


def build(name: str, render_mode: str | None, size: int, args: Mapping[str, Any]) -> gym.Env:
    """The bare environment of a name without the `pixels/` prefix; `size` is the side of what it renders."""
    if name.startswith(DMC):
        from maxinforl.envs.dmc import DMControl

        return construct(name, DMControl, args, name.removeprefix(DMC), render_mode=render_mode, size=size)
    if name in H1:
        from maxinforl.envs.humanoid import HumanoidH1

        return construct(name, HumanoidH1, args, H1[name], render_mode=render_mode, size=size)
    if name.startswith((JAX, BRAX)):
        from maxinforl.envs.jax_native import JaxEnv, task

        return construct(name, JaxEnv, args, task(name), render_mode=render_mode, size=size)
    if name == PENDULUM:
        from maxinforl.envs.pendulum import HangingPendulum

        return construct(name, HangingPendulum, args, render_mode=render_mode, size=size)
    return from_registry(name, render_mode, args)


def construct(name: str, build: Callable[..., gym.Env], args: Mapping[str, Any], *fixed: Any, **own: Any) -> gym.Env:
    """Builds with the user's arguments; BadInput with one sentence if they are wrong."""
    check_kinds(name, build, args)
    try:
        return build(*fixed, **own, **args)
    except (TypeError, ValueError, AssertionError) as error:
        if not args or isinstance(error, UserError):
            raise
        given = ", ".join(f"{key}={value}" for key, value in args.items())
        raise BadInput(f"{name} cannot be built with the environment arguments {given}: {one_line(error)}") from error


def check_kinds(name: str, build: Callable[..., gym.Env], args: Mapping[str, Any]) -> None:
    """BadInput for unknown arguments, and for those of another kind than their defaults."""
    parameters = signature(build).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        known = [key for key, p in parameters.items() if p.default is not p.empty]
        for key in args.keys() - parameters.keys():
            raise unknown(f"argument of {name}", key, [k for k in known if k not in ("render_mode", "size")])
    check_types(name, {key: p.default for key, p in parameters.items()}, args)


KINDS = {bool: (bool, int), int: (int, float), float: (int, float), str: (str,)}  # what may stand for a default


def check_types(name: str, defaults: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """BadInput for text such as 'false' where a bool is expected, and the like."""
    for key, value in args.items():
        kind = type(defaults.get(key))
        if kind in KINDS and (not isinstance(value, KINDS[kind]) or (kind is not bool and isinstance(value, bool))):
            raise BadInput(
                f"{name} takes a {kind.__name__} for the environment argument {key}, not {printable(repr(value))}"
            )


def registered_defaults(name: str) -> dict[str, Any]:
    """Default values of the arguments of a registered environment, as far as they can be seen."""
    with suppress(Exception):  # such as a module that is not there, which `gym.make` explains
        spec = gym.spec(name)
        creator = gym.envs.registration.load_env_creator(spec.entry_point) if spec.entry_point is not None else None  # type: ignore[arg-type]
        creator = spec.entry_point if callable(spec.entry_point) else creator
        return {key: p.default for key, p in signature(creator).parameters.items()} | spec.kwargs  # type: ignore[arg-type]
    return {}


def from_registry(name: str, render_mode: str | None, args: Mapping[str, Any]) -> gym.Env:
    """A Gymnasium id, without Gymnasium's own checker, because the pool checks each step at a lower cost."""
    own = {}
    if ":" in name and (name.count(":") > 1 or not all(name.split(":"))):
        raise BadInput(f"the environment '{printable(name)}' is not of the form MODULE:NAME", "environments.md#names")
    find_here(name)
    check_types(name, registered_defaults(name) if args else {}, args)
    if render_mode:
        gl.choose_backend()
        own["render_mode"] = render_mode
    try:
        env = construct(name, gym.make, args, name, disable_env_checker=True, **own)
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise unknown("environment", name, [*gym.registry, *catalogue()], registered_by(name)) from error
    except ModuleNotFoundError as error:
        raise no_module(name, error) from error
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        if "mujoco" in str(error).lower():
            raise missing_extra("mujoco", f"the environment '{name}'") from error
        raise BadInput(f"the environment '{name}' needs a package that is not installed: {error}") from error
    except gym.error.Error as error:
        raise BadInput(f"the environment '{name}' cannot be made: {error}") from error
    except Exception as error:
        if isinstance(error, TypeError) and "'render_mode'" in str(error):
            raise BadInput(f"the environment '{name}' cannot render: it takes no render_mode") from error
        if gl.raised(error):
            raise BadInput(
                f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} does not work ({error}): unset it, or {gl.FIX}"
            ) from error
        if isinstance(error, UserError):
            raise
        raise BadInput(f"the environment '{printable(name)}' cannot be made: it raised {one_line(error)}") from error
    if "mujoco" in sys.modules:
        gl.log_warnings(sys.modules["mujoco"])
    gl.check_camera(name, env, args)
    return env


def registered_by(name: str) -> str:
    """A hint for ids that a known package registers when it is imported."""
    for module, beginnings in ELSEWHERE.items():
        if ":" not in name and name.startswith(beginnings):
            package = module.replace("_", "-")
            return f"Ids like this are registered by {module}: pip install {package}, then name it {module}:{name}"
    return ""


def find_here(name: str) -> None:
    """Lets MODULE:NAME name a module of the current directory, which a console script does not search."""
    module, colon, _ = name.partition(":")
    if colon and os.getcwd() not in sys.path and find_spec(module.partition(".")[0]) is None:
        sys.path.append(os.getcwd())


def no_module(name: str, error: ModuleNotFoundError) -> BadInput:
    """The error for an environment whose module, or one that it imports, is not there."""
    module, name = printable(name.partition(":")[0]), printable(name)
    if ":" in name and f"'{module.partition('.')[0]}'" in str(error):
        return BadInput(
            f"the environment '{name}' names the module '{module}', which is neither installed nor in this directory",
            "environments.md#names",
        )
    if "mujoco" in str(error).lower():
        return missing_extra("mujoco", f"the environment '{name}'")
    return BadInput(f"the environment '{name}' needs a package that is not installed: {one_line(error)}")


def check_name(name: object, given: object = None) -> None:
    """BadInput if a name from a file would make Gymnasium import a module, unless the user gave the same name."""
    if isinstance(name, str) and ":" in name and name != given:
        raise BadInput(
            f"the environment '{printable(name)}' would import a module that a file names: if you trust it, repeat the "
            "name yourself, with --env or in Python env=",
            "reliability.md#files-that-others-wrote",
        )


def default_action_repeat(name: object) -> int:
    """How many base steps an action lasts by preset: 2 for the DeepMind Control Suite, else 1."""
    return 2 if isinstance(name, str) and name.removeprefix(PIXELS).startswith(DMC) else 1


def episode_limit(name: object) -> int | None:
    """Base steps after which an episode of an environment ends, as far as its name tells; nothing is built for it."""
    if not isinstance(name, str):
        return None
    name = name.removeprefix(PIXELS)
    if name.startswith(JAX):
        from maxinforl.envs.jax_native import TASKS

        return TASKS[name.removeprefix(JAX)].time_limit if name.removeprefix(JAX) in TASKS else None
    if name == PENDULUM:
        return 200
    if name in H1 or name.startswith((DMC, BRAX)):
        return 1000
    return gym.registry[name].max_episode_steps if name in gym.registry else None


def catalogue() -> dict[str, str]:
    """Every environment of this package, with a one-line description."""
    from maxinforl.envs import jax_native

    return {
        PENDULUM: "Pendulum-v1 that starts hanging at rest, 200 steps",
        **{name: f"Unitree H1 robot, HumanoidBench's {task} task without hands" for name, task in H1.items()},
        **{JAX + name: task.summary for name, task in jax_native.TASKS.items()},
        **dmc_catalogue(),
    }


def dmc_catalogue() -> dict[str, str]:
    from maxinforl.envs.dmc import tasks

    try:
        return {DMC + name: line for name, line in tasks().items()}
    except BadInput:  # the extra is not installed
        return {}
