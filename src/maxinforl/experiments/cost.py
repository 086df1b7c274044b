"""Estimated cost of runs for --dry-run: hours from the FLOP of an update, memory from the size of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from maxinforl import envs
from maxinforl.algorithms import BASES, CATALOGUE
from maxinforl.core.encoders import States
from maxinforl.core.types import Spec, clock
from maxinforl.core.update import update
from maxinforl.envs.names import PIXELS
from maxinforl.errors import BadInput
from maxinforl.experiments.flops import products
from maxinforl.experiments.suite_runs import SuiteRun
from maxinforl.explore import Strategy
from maxinforl.replay import Replay, row_bytes
from maxinforl.settings import Settings, resolve
from maxinforl.spaces import Spaces
from maxinforl.training.trainer import rows_for

# Whole agent steps on two cores (docs/performance.md): 6.7 ms for SAC's 0.55 GFLOP, 21.0 for MaxInfoSAC's 1.79 with
# the paper's ensemble and 8.7 for 0.66 with the light one. Others are assumed to have SAC's time per FLOP.
MS_PER_GFLOP = 12.1


@dataclass(frozen=True)
class Cost:
    """Hours of one run on two cores, without environment and evaluation, and bytes of its replay."""

    hours: float
    memory: int


@cache
def gflop(agent: Strategy, spec: Spec, batch_size: int, updates: int) -> float:
    """GFLOP of the matrix products and convolutions of one agent step, from its jaxpr; nothing is compiled."""
    key = jax.random.key(0)
    dtype = jnp.uint8 if spec.pixels else jnp.float32
    shape = (updates, batch_size)

    def sample(key):
        return Replay.create(1, 64, spec.obs, dtype, spec.action).sample(key, shape, agent.base.gamma, agent.base.nstep)

    state = jax.eval_shape(lambda key: agent.init(key, spec), key)
    batches = jax.eval_shape(sample, key)
    found = products(lambda s, b, key: update(agent, s, b, key, clock()), state, batches, key)
    return sum(p.flop for p in found) / 1e9


Dimensions = tuple[tuple[int, ...], int]
_known: dict[tuple[str, str], Dimensions] = {}  # by name and arguments as text, which may hold lists and tables


def dimensions(env: str, args: tuple) -> Dimensions:
    """Shape of an observation, without pixels, and the number of actions."""
    key = (env.removeprefix(PIXELS), repr(args))
    if key not in _known:
        made = envs.make(key[0], env_args=args)
        try:
            if Spaces(made.observation_space, made.action_space).many:  # type: ignore[arg-type]
                raise BadInput(f"the cost of images and vectors together is not known: {key[0]}")
            _known[key] = made.observation_space.shape, made.action_space.shape[0]  # type: ignore[index,assignment]
        finally:
            made.close()
    return _known[key]


def cost(run: SuiteRun) -> Cost | None:
    """The cost of one run; None if its environment cannot be built here, or gives images and vectors together."""
    settings, agent = run.resolved
    try:
        shape, actions = dimensions(settings.env, settings.env_arg)
    except BadInput:
        return None
    pixels = settings.env.startswith(PIXELS)
    frame, itemsize = ((settings.image_size, settings.image_size, 3), 1) if pixels else (shape, 4)
    spec = Spec((*frame[:2], 3 * settings.frame_stack) if pixels else frame, actions)
    updates = int(settings.update_ratio or 1)
    work = gflop(agent, spec, settings.batch_size, updates)
    hours = settings.steps * work * MS_PER_GFLOP / 3.6e6
    return Cost(hours, settings.num_envs * rows_for(settings.steps, settings) * row_bytes(frame, itemsize, actions))


def step_cost(algo: str) -> float:
    """GFLOP of an agent step at catalogue defaults with the observations and actions of a walker (24 and 6)."""
    pixels = not isinstance(BASES[CATALOGUE[algo].base].encoder, States)
    env = f"{PIXELS if pixels else ''}dmc/walker-run"
    settings, agent = resolve(Settings(algo=algo, env=env))
    shape = (settings.image_size, settings.image_size, 3 * settings.frame_stack) if pixels else (24,)
    return gflop(agent, Spec(shape, 6), settings.batch_size, int(settings.update_ratio or 1))


def lines(runs: Sequence[SuiteRun]) -> list[str]:
    """One line per cell and one for the total, as `--dry-run` prints them."""
    cells: dict[tuple[str, str], list[SuiteRun]] = {}
    for run in runs:
        cells.setdefault((run.label, run.environment), []).append(run)
    text, total, largest, unknown_cells = [], 0.0, 0, 0
    for (label, env), group in cells.items():
        each, steps = cost(group[0]), group[0].settings.steps
        seeds = f"{len(group)} × {steps:,} steps".replace(",", " ")
        if each is None:
            unknown_cells += 1
            text.append(f"{label} on {env}: {seeds}, hours and memory unknown (the environment is not installed)")
            continue
        total, largest = total + len(group) * each.hours, max(largest, each.memory)
        text.append(f"{label} on {env}: {seeds}, {len(group) * each.hours:.1f} h, replay {each.memory / 1e9:.2f} GB")
    suffix = f", {unknown_cells} cells unknown" if unknown_cells else ""
    note = "on two cores one after the other, without environment and evaluation"
    return [*text, f"{len(runs)} runs: {total:.1f} h {note}; largest replay {largest / 1e9:.2f} GB{suffix}"]
