"""`maxinforl bench speed`: times of an update and an agent step against a roofline, the update's products alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from maxinforl import files
from maxinforl.core.program import Program
from maxinforl.core.types import clock
from maxinforl.core.update import update
from maxinforl.errors import RunFailed
from maxinforl.experiments.flops import Product, products
from maxinforl.replay import Replay
from maxinforl.settings import Settings, resolve, title
from maxinforl.training.compiled import make_trainer

FEWEST = 8  # repeats of every call
MOVE = 10  # repeats after which the arrays are copied to other addresses


def roofline(found: list[Product]) -> tuple[Callable, list]:
    """The roofline: one jitted program of the products alone, and its operands."""
    key = jax.random.key(0)
    operands = [p.operands(jax.random.fold_in(key, i)) for i, p in enumerate(found)]

    def run(operands):
        return [p.loop(*o) for p, o in zip(found, operands)]

    return jax.jit(run), operands


@dataclass
class Timing:
    """Times in ms, the best of several repeats; dispatches per agent step."""

    algo: str
    floor_ms: float
    update_ms: float
    step_ms: float
    gflop: float
    dispatches: int
    matmul_gflops: float  # of a 1024 x 1024 product, in the same run
    pixels: bool = False
    cold_s: float | None = None  # from the command to the first training step, with an empty compilation cache
    warm_s: float | None = None  # with a full one

    @property
    def product_ms(self) -> float | None:
        """Of images: the update's FLOP at the rate of a 1024² product, since the floor's convolutions are our own."""
        return self.gflop / self.matmul_gflops * 1e3 if self.pixels else None


def best_times(
    calls: dict[str, Callable[[], Any]], repeats: int, seconds: float, moves: Sequence[Callable[[], None]] = ()
) -> dict[str, float]:
    """Best time of each call in ms, interleaved so that noise affects all alike.

    Args:
      calls: functions by name.
      repeats: of each call; fewer, but at least `FEWEST`, if the calls take longer than `seconds`.
      seconds: per call and repeat.
      moves: called every `MOVE` repeats to copy the arrays; one program takes up to 5 % longer with its arrays at other
        addresses.
    """
    times = {name: float("inf") for name in calls}
    inner = {name: max(1, int(seconds / max(seconds_per_call(call, 1), 1e-6))) for name, call in calls.items()}
    over = time.perf_counter() + repeats * seconds * len(calls)
    for done in range(repeats):
        if done >= FEWEST and time.perf_counter() > over:
            break
        for move in moves if done % MOVE == 0 else ():
            move()
        for name, call in calls.items():
            times[name] = min(times[name], seconds_per_call(call, inner[name]) * 1e3)
    return times


def seconds_per_call(call: Callable[[], Any], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def matmul() -> Callable[[], Any]:
    """A call that multiplies two 1024 x 1024 matrices."""
    x = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    return lambda: jax.block_until_ready(product(x, x))


def random_batch(program: Program, key: jax.Array) -> Any:
    """One batch of random transitions, sampled from a small replay."""
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


class TimedAgent:
    """One algorithm to be timed, with one update per agent step whatever its own ratio."""

    def __init__(self, settings: Settings):
        settings = replace(settings, update_ratio=1.0, learning_starts=0, steps=2000, eval_episodes=0)
        self.settings, agent = resolve(settings)
        self.trainer = make_trainer(agent, [self.settings], self.settings.env, self.settings.steps)
        program, state = self.trainer.program, self.trainer.state.agent
        batch, key = random_batch(program, jax.random.key(1)), jax.random.key(2)
        learn = lambda s, b, key, now: update(agent, s, b, key, now)
        found = products(learn, state, batch, key, clock())
        self.gflop = sum(p.flop for p in found) / 1e9
        self._only, self._operands = roofline(found)
        self._held, structure = jax.tree.flatten(jax.tree.map(jnp.copy, state))  # a flat list, as in training

        def flat_update(leaves, batch, key, now):
            state, metrics = learn(jax.tree.unflatten(structure, leaves), batch, key, now)
            return jax.tree.leaves(state), metrics

        self._learn, self._args = jax.jit(flat_update, donate_argnums=0), (batch, key, clock())

    def move(self) -> None:
        """Copy all arrays to other addresses."""
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
        """The number of compiled functions that one agent step calls."""
        program, calls = self.trainer.program, []
        kept = {name: f for name, f in vars(program).items() if name in COMPILED}
        for name, f in kept.items():
            vars(program)[name] = lambda *a, f=f: calls.append(1) or f(*a)
        self.step()
        vars(program).update(kept)
        return len(calls)


COMPILED = ("begin", "collect", "step", "react", "act", "sample_act", "recent_error")


def bench(seeds: list[Settings], repeats: int = 150, seconds: float = 0.02) -> list[Timing]:
    """Time roofline, update and whole agent step of every algorithm, interleaved.

    Args:
      seeds: the settings of each algorithm.
      repeats: see `best_times`.
      seconds: see `best_times`.
    """
    subjects = {title(s): TimedAgent(s) for s in seeds}
    calls: dict[str, Callable[[], Any]] = {"matmul": matmul()}
    for name, subject in subjects.items():
        calls |= {f"{name} {part}": getattr(subject, part) for part in ("floor", "update", "step")}
    for call in calls.values():
        call()
        call()
    ms = best_times(calls, repeats, seconds, [subject.move for subject in subjects.values()])
    speed = 2 * 1024**3 / 1e6 / ms["matmul"]
    rows = []
    for name, subject in subjects.items():
        floor_ms, update_ms, step_ms = (ms[f"{name} {part}"] for part in ("floor", "update", "step"))
        pixels = subject.trainer.program.spec.pixels
        rows.append(Timing(name, floor_ms, update_ms, step_ms, subject.gflop, subject.dispatches(), speed, pixels))
    return rows


def startup(settings: Settings, cache: Path) -> float:
    """Seconds from starting `maxinforl train` in a new process to the first line of its metrics.jsonl."""
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


def table(rows: list[Timing]) -> Table:
    """The timings as a table for the console."""
    names = ("algorithm", "GFLOP", "floor ms", "1024² ms", "update ms", "step ms")
    ratios = ("update / floor", "update / 1024²", "step / update", "step / sac")
    result = Table(*names, *ratios, "GFLOP/s", "dispatches", "cold s", "warm s", box=None, pad_edge=False)
    sac = next((row.step_ms for row in rows if row.algo == "sac"), None)
    written = lambda values, digits: ("-" if x is None else f"{x:.{digits}f}" for x in values)
    for r in rows:
        over_product = r.update_ms / r.product_ms if r.product_ms else None
        over_sac = r.step_ms / sac if sac else None
        result.add_row(
            r.algo,
            *written((r.gflop, r.floor_ms, r.product_ms, r.update_ms, r.step_ms), 2),
            *written((r.update_ms / r.floor_ms, over_product, r.step_ms / r.update_ms, over_sac), 2),
            f"{r.gflop / r.update_ms * 1e3:.0f}",
            str(r.dispatches),
            *written((r.cold_s, r.warm_s), 1),
        )
    return result


def command(seeds: list[Settings], json_file: Path | None, start: bool, console: Console) -> None:
    """`maxinforl bench speed`."""
    with console.status("building and timing, interleaved"):
        rows = bench(seeds)
    for settings, row in zip(seeds, rows) if start else ():
        with console.status(f"starting {escape(row.algo)} in a new process"), TemporaryDirectory() as cache:
            row.cold_s = startup(settings, Path(cache))
            row.warm_s = startup(settings, Path(cache))
    if json_file is not None:  # first: a broken pipe while printing must not lose it
        files.write_atomic(json_file, (json.dumps([asdict(row) for row in rows], indent=1) + "\n").encode())
        console.print(f"wrote {json_file}", highlight=False, markup=False, soft_wrap=True)
    console.print(table(rows))
    console.print(
        f"a 1024 x 1024 product: {rows[0].matmul_gflops:.0f} GFLOP/s; times are the best of up to 150 repeats"
    )
