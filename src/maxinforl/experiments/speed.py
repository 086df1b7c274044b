"""The roofline: an update against one program of nothing but its matrix products and convolutions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from maxinforl.core.types import clock
from maxinforl.core.update import Program, update
from maxinforl.replay import Replay

PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class Product:
    """One matrix product or convolution of a program, and how often it happens."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    shapes: tuple[tuple[tuple[int, ...], Any], ...]
    times: int

    @property
    def flop(self) -> float:
        """Two per multiply-add."""
        params, (a, b) = dict(self.params), [shape for shape, _ in self.shapes]
        if self.primitive.name == "dot_general":
            (_, contracted), (_, batched) = params["dimension_numbers"]
            free = [n for i, n in enumerate(b) if i not in (*contracted, *batched)]
            return 2.0 * float(np.prod(a) * np.prod(free)) * self.times
        out = jax.eval_shape(self.run, *(jax.ShapeDtypeStruct(s, d) for s, d in self.shapes))
        kernel = np.prod(b) / b[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * float(np.prod(out.shape)) * kernel / params.get("batch_group_count", 1) * self.times

    def run(self, *operands: Any) -> Any:
        return self.primitive.bind(*operands, **dict(self.params))

    def operands(self, key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, len(self.shapes))
        return tuple(jax.random.normal(k, shape, dtype) for k, (shape, dtype) in zip(keys, self.shapes))


def products(function: Callable, *args: Any) -> list[Product]:
    """Every product of a function that its outputs depend on, scans counted as often as they run."""
    closed = jax.make_jaxpr(function)(*args)
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return list(_walk(live, 1))


def _walk(jaxpr: Any, times: int) -> Iterator[Product]:
    for equation in jaxpr.eqns:
        if equation.primitive.name in PRODUCTS:
            shapes = tuple((v.aval.shape, v.aval.dtype) for v in equation.invars)
            yield Product(equation.primitive, tuple(equation.params.items()), shapes, times)
        inside = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in _inner(equation.params):
            yield from _walk(inner, times * inside)


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def floor(found: list[Product]) -> tuple[Callable, list]:
    """One jitted program of the products alone, operands as arguments and results returned."""
    key = jax.random.key(0)
    operands = [p.operands(jax.random.fold_in(key, i)) for i, p in enumerate(found)]

    def run(operands):
        return [p.run(*o) for p, o in zip(found, operands)]

    return jax.jit(run), operands


@dataclass
class Row:
    """Times in ms, best of several; dispatches per agent step."""

    algo: str
    floor_ms: float
    update_ms: float
    step_ms: float
    gflop: float
    dispatches: int


def best(calls: dict[str, Callable[[], Any]], repeats: int, inner: int) -> dict[str, float]:
    """Best time of each call in ms, interleaved so that noise falls on all alike."""
    times = {name: float("inf") for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(inner):
                call()
            times[name] = min(times[name], (time.perf_counter() - began) / inner * 1e3)
    return times


def matmul_gflops() -> tuple[Callable[[], None], float]:
    x = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    return lambda: jax.block_until_ready(product(x, x)), 2 * 1024**3 / 1e9


def blank_batch(program: Program, count: int, key: jax.Array) -> Any:
    """A batch of random transitions, by way of a small replay."""
    spec = program.spec
    replay = Replay.create(1, 512, spec.obs, jnp.float32, spec.action)
    k_obs, k_action = jax.random.split(key)
    obs = jax.random.normal(k_obs, (1, 512, *spec.obs))
    action = jax.random.uniform(k_action, (1, 512, spec.action), minval=-1.0)
    starts = jnp.arange(512, dtype=jnp.int32)[None]
    full = Replay(
        obs,
        action,
        action[..., 0],
        replay.end,
        replay.age,
        replay.head + 511,
        starts,
        replay.pushed + 500,
        replay.popped,
        1,
    )
    return full.sample(key, (count, program.batch_size), program.agent.base.gamma, program.agent.base.nstep)


def measure(
    name: str, agent: Any, env: str = "Pendulum-v1", repeats: int = 10, inner: int = 30
) -> tuple[Row, dict[str, float]]:
    """Floor, update and whole agent step of one algorithm in one interleaved run."""
    from maxinforl import envs
    from maxinforl.settings import Settings
    from maxinforl.training.loop import Trainer

    settings = Settings(algo=None, env=env, steps=100_000, update_ratio=float(agent.base.utd), capacity=100_000)
    trainer = Trainer(agent, [replace(settings, action_repeat=1)], [envs.make_pool(env)], 100_000)
    program, state = trainer.program, trainer.state.agent
    batches = blank_batch(program, program.updates, jax.random.key(1))
    learn = lambda s, b, key: update(agent, s, b, key, clock())
    found = products(learn, state, batches, jax.random.key(2))
    only, operands = floor(found)
    jitted = jax.jit(learn, donate_argnums=0)
    held = [jax.tree.map(jnp.copy, state)]

    def one_update():
        held[0], metrics = jitted(held[0], batches, jax.random.key(3))
        jax.block_until_ready(metrics)

    matmul, gflop = matmul_gflops()
    calls = {
        "floor": lambda: jax.block_until_ready(only(operands)),
        "update": one_update,
        "step": trainer.advance,
        "matmul": matmul,
    }
    for call in calls.values():
        call()
        call()
    times = best(calls, repeats, inner)
    total = sum(p.flop for p in found) / 1e9
    row = Row(name, times["floor"], times["update"], times["step"], total, 1)
    return row, {"matmul_gflops": gflop / times["matmul"] * 1e3}
