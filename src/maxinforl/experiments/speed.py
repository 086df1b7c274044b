"""The roofline: an update against one program of nothing but its matrix products and convolutions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from maxinforl import files
from maxinforl.agent import make_trainer
from maxinforl.core.program import Program
from maxinforl.core.types import clock
from maxinforl.core.update import update
from maxinforl.errors import RunFailed
from maxinforl.replay import Replay
from maxinforl.settings import Settings, resolve, title

PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class Product:
    """One matrix product or convolution of a program, and how often it happens."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    shapes: tuple[tuple[tuple[int, ...], Any], ...]
    times: int = 1
    varying: tuple[bool, ...] = (True, True)  # which operands change from one time to the next

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

    def loop(self, *operands: Any) -> Any:
        """All times, as the program does them: one after the other."""
        if self.times == 1:
            return self.run(*operands)
        varying = [x for x, varies in zip(operands, self.varying) if varies]
        return jax.lax.map(lambda now: self.run(*_merged(operands, self.varying, list(now))), varying)

    def operands(self, key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, len(self.shapes))
        lead = [(self.times,) if varies and self.times > 1 else () for varies in self.varying]
        return tuple(jax.random.normal(k, (*n, *s), dtype) for k, n, (s, dtype) in zip(keys, lead, self.shapes))


def _merged(operands: tuple[Any, ...], varying: tuple[bool, ...], now: list[Any]) -> list[Any]:
    return [now.pop(0) if varies else x for x, varies in zip(operands, varying)]


def products(function: Callable, *args: Any) -> list[Product]:
    """Every product of a function that its outputs depend on, scans counted as often as they run.

    One that is written twice with the same operands counts once, as the compiler computes it once.
    """
    closed = jax.make_jaxpr(function)(*args)
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    count = Count()
    count.walk(
        live, [("input", i) for i in range(len(live.invars))], [("const", i) for i in range(len(live.constvars))]
    )
    return count.found


class Count:
    """Numbers the values of a program, so that equal ones have equal numbers, and collects its products."""

    def __init__(self, times: int = 1):
        self.times, self.found = times, list[Product]()
        self.known: dict[Any, tuple[Any, ...]] = {}
        self.varying = set[Any]()  # numbers of what changes from one turn of a loop to the next

    def walk(self, jaxpr: Any, inputs: list[Any], constants: list[Any]) -> list[Any]:
        """The numbers of the outputs, given those of the inputs."""
        names = dict(zip(jaxpr.invars, inputs)) | dict(zip(jaxpr.constvars, constants))
        number = lambda v: ("literal", str(v.val), str(v.aval)) if isinstance(v, core.Literal) else names[v]
        for equation in jaxpr.eqns:
            outputs = self.outputs(equation, [number(v) for v in equation.invars])
            names |= dict(zip(equation.outvars, outputs))
        return [number(v) for v in jaxpr.outvars]

    def outputs(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, inner = equation.primitive.name, list(_inner(equation.params))
        if len(inner) == 1 and name not in ("scan", "while", "cond") and len(inner[0][0].invars) == len(inputs):
            jaxpr, constants = inner[0]
            return self.walk(jaxpr, inputs, [("value", id(c)) for c in constants])
        key = (name, str(equation.params), *inputs)
        if key not in self.known:
            self.known[key] = tuple((len(self.known), i) for i in range(len(equation.outvars)))
            varying = tuple(x in self.varying for x in inputs)
            if any(varying):
                self.varying.update(self.known[key])
            if name in PRODUCTS:
                shapes = tuple((v.aval.shape, v.aval.dtype) for v in equation.invars)
                params = tuple(equation.params.items())
                self.found.append(Product(equation.primitive, params, shapes, self.times, varying))
            parts = [self.inside(jaxpr, equation.params if name == "scan" else {}, varying) for jaxpr, _ in inner]
            if name == "cond":  # the rare branch, such as DrM's perturbation, is no part of an update
                parts = [min(parts, key=lambda part: sum(product.flop for product in part))]
            self.found += [product for part in parts for product in part]
        return list(self.known[key])

    def inside(self, jaxpr: Any, scan: dict[str, Any], varying: tuple[bool, ...]) -> list[Product]:
        """The products of a program within this one; those of a scan happen once per turn."""
        body = Count(self.times * scan.get("length", 1))
        inputs, constants = [object() for _ in jaxpr.invars], [object() for _ in jaxpr.constvars]
        same = [x for x, varies in zip(inputs[: scan.get("num_consts", 0)], varying) if not varies]
        body.varying = set(inputs) - set(same) if scan or self.times > 1 else set()
        body.walk(jaxpr, inputs, constants)
        return body.found


def _inner(params: dict[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The programs inside an operation, with their constants."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr, item.consts
            elif isinstance(item, core.Jaxpr):
                yield item, [object() for _ in item.constvars]


def floor(found: list[Product]) -> tuple[Callable, list]:
    """One jitted program of the products alone, operands as arguments and results returned."""
    key = jax.random.key(0)
    operands = [p.operands(jax.random.fold_in(key, i)) for i, p in enumerate(found)]

    def run(operands):
        return [p.loop(*o) for p, o in zip(found, operands)]

    return jax.jit(run), operands


FEWEST = 8  # repeats of anything that is timed
MOVE = 10  # repeats after which what is timed moves elsewhere in memory


@dataclass
class Row:
    """Times in ms, best of several; dispatches per agent step."""

    algo: str
    floor_ms: float
    update_ms: float
    step_ms: float
    gflop: float
    dispatches: int
    matmul_gflops: float  # of a 1024 x 1024 product, in the same run
    cold_s: float | None = None  # from the command to the first training step, with an empty compilation cache
    warm_s: float | None = None  # with a full one


def best(
    calls: dict[str, Callable[[], Any]], repeats: int, seconds: float, moves: Sequence[Callable[[], None]] = ()
) -> dict[str, float]:
    """Best time of each call in ms, interleaved so that noise falls on all alike; `seconds` per call and repeat.

    Calls that take longer than that are repeated less often, but `FEWEST` times. One and the same program takes up to
    5 % longer with its arrays elsewhere in memory, so `moves` put them elsewhere from time to time.
    """
    times = {name: float("inf") for name in calls}
    inner = {name: max(1, int(seconds / max(timed(call, 1), 1e-6))) for name, call in calls.items()}
    over = time.perf_counter() + repeats * seconds * len(calls)
    for done in range(repeats):
        if done >= FEWEST and time.perf_counter() > over:
            break
        for move in moves if done % MOVE == 0 else ():
            move()
        for name, call in calls.items():
            times[name] = min(times[name], timed(call, inner[name]) * 1e3)
    return times


def timed(call: Callable[[], Any], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def matmul() -> Callable[[], Any]:
    x = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    return lambda: jax.block_until_ready(product(x, x))


def random_batch(program: Program, key: jax.Array) -> Any:
    """One batch of random transitions, by way of a small replay."""
    spec, rows = program.spec, 64
    replay = Replay.create(1, rows, spec.obs, jnp.uint8 if spec.pixels else jnp.float32, spec.action)
    k_obs, k_action = jax.random.split(key)
    noise = jax.random.normal(k_obs, replay.obs.shape)
    obs = (64 * noise + 128).clip(0, 255).astype(jnp.uint8) if spec.pixels else noise
    action = jax.random.uniform(k_action, replay.action.shape, minval=-1.0)
    starts = jnp.arange(rows, dtype=jnp.int32)[None]
    columns = (obs, action, action[..., 0], replay.end, replay.age)
    full = Replay(*columns, replay.head + rows - 1, starts, replay.pushed + rows - 8, replay.popped, 1)
    return full.sample(key, (1, program.batch_size), program.agent.base.gamma, program.agent.base.nstep)


class Subject:
    """One algorithm, ready to be timed; one update per agent step whatever the algorithm's own ratio."""

    def __init__(self, settings: Settings):
        settings = replace(settings, update_ratio=1.0, learning_starts=0, steps=2000, eval_episodes=0)
        self.settings, agent = resolve(settings)
        self.trainer = make_trainer(agent, [self.settings], self.settings.env, self.settings.steps)
        program, state = self.trainer.program, self.trainer.state.agent
        batch, key = random_batch(program, jax.random.key(1)), jax.random.key(2)
        learn = lambda s, b, key, now: update(agent, s, b, key, now)
        found = products(learn, state, batch, key, clock())
        self.gflop = sum(p.flop for p in found) / 1e9
        self._only, self._operands = floor(found)
        self._held, structure = jax.tree.flatten(jax.tree.map(jnp.copy, state))  # in pieces, as training holds it

        def in_pieces(leaves, batch, key, now):
            state, metrics = learn(jax.tree.unflatten(structure, leaves), batch, key, now)
            return jax.tree.leaves(state), metrics

        self._learn, self._args = jax.jit(in_pieces, donate_argnums=0), (batch, key, clock())

    def move(self) -> None:
        """The same numbers in other places of memory."""
        copied = lambda tree: jax.tree.map(jnp.copy, tree)
        self._operands, self._held = copied(self._operands), copied(self._held)
        self.trainer.state = copied(self.trainer.state)

    def floor(self) -> None:
        jax.block_until_ready(self._only(self._operands))

    def update(self) -> None:
        self._held, metrics = self._learn(self._held, *self._args)
        jax.block_until_ready(metrics)

    def step(self) -> None:
        self.trainer.advance()
        assert self.trainer.action is not None  # waited for

    def dispatches(self) -> int:
        """Compiled functions that one agent step calls, counted."""
        program, calls = self.trainer.program, []
        kept = {name: f for name, f in vars(program).items() if name in COMPILED}
        for name, f in kept.items():
            vars(program)[name] = lambda *a, f=f: calls.append(1) or f(*a)
        self.step()
        vars(program).update(kept)
        return len(calls)


COMPILED = ("begin", "collect", "step", "react", "act", "sample_act", "recent_error")


def bench(seeds: list[Settings], repeats: int = 150, seconds: float = 0.02) -> list[Row]:
    """Floor, update and whole agent step of every algorithm in one interleaved run."""
    subjects = {title(s): Subject(s) for s in seeds}
    calls: dict[str, Callable[[], Any]] = {"matmul": matmul()}
    for name, subject in subjects.items():
        calls |= {f"{name} {part}": getattr(subject, part) for part in ("floor", "update", "step")}
    for call in calls.values():
        call()
        call()
    ms = best(calls, repeats, seconds, [subject.move for subject in subjects.values()])
    speed = 2 * 1024**3 / 1e6 / ms["matmul"]
    rows = []
    for name, subject in subjects.items():
        floor_ms, update_ms, step_ms = (ms[f"{name} {part}"] for part in ("floor", "update", "step"))
        rows.append(Row(name, floor_ms, update_ms, step_ms, subject.gflop, subject.dispatches(), speed))
    return rows


def startup(settings: Settings, cache: Path) -> float:
    """Seconds from the command to the first line of its log after one training step, in a process of its own."""
    algo, env = settings.algo, settings.env
    given = {"algo": algo, "env": env, "uncertainty": settings.uncertainty, "batch-size": settings.batch_size}
    given |= {"steps": 100_000, "log-every": 1, "learning-starts": 0, "eval-episodes": 0}
    given |= {"image-size": settings.image_size} if env.startswith("pixels/") else {}
    flags = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    with TemporaryDirectory() as out:
        command = [sys.executable, "-m", "maxinforl.cli", "train", *flags, "--out", f"{out}/run"]
        environ = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not (log := Path(out, "run", "metrics.jsonl")).exists() or not log.stat().st_size:
            if process.poll() is not None:
                assert process.stderr is not None
                raise RunFailed(f"{algo} on {env} did not start: {process.stderr.read().decode().strip()[-300:]}")
            time.sleep(0.02)
        took = time.perf_counter() - began
        process.kill()
        process.wait()
        return took


def table(rows: list[Row]) -> Table:
    names = ("algorithm", "GFLOP", "floor ms", "update ms", "step ms", "update / floor", "step / update", "step / sac")
    shown = Table(*names, "GFLOP/s", "dispatches", "cold s", "warm s", box=None, pad_edge=False)
    sac = next((row.step_ms for row in rows if row.algo == "sac"), None)
    for r in rows:
        ratios = (r.update_ms / r.floor_ms, r.step_ms / r.update_ms, r.step_ms / sac if sac else None)
        seconds = (r.cold_s, r.warm_s)
        shown.add_row(
            r.algo,
            *(f"{x:.2f}" for x in (r.gflop, r.floor_ms, r.update_ms, r.step_ms)),
            *("-" if x is None else f"{x:.2f}" for x in ratios),
            f"{r.gflop / r.update_ms * 1e3:.0f}",
            str(r.dispatches),
            *("-" if x is None else f"{x:.1f}" for x in seconds),
        )
    return shown


def command(seeds: list[Settings], json_file: Path | None, start: bool, console: Console) -> None:
    """`maxinforl bench speed`."""
    with console.status("building and timing, interleaved"):
        rows = bench(seeds)
    for settings, row in zip(seeds, rows) if start else ():
        with console.status(f"starting {escape(row.algo)} in a process of its own"), TemporaryDirectory() as cache:
            row.cold_s = startup(settings, Path(cache))
            row.warm_s = startup(settings, Path(cache))
    if json_file is not None:  # first, so that nothing is lost where the reader of the table leaves early
        files.write_atomic(json_file, (json.dumps([asdict(row) for row in rows], indent=1) + "\n").encode())
        console.print(f"wrote {json_file}", highlight=False, markup=False, soft_wrap=True)
    console.print(table(rows))
    console.print(
        f"a 1024 x 1024 product: {rows[0].matmul_gflops:.0f} GFLOP/s; times are the best of up to 150 repeats"
    )
