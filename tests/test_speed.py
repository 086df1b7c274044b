"""The roofline counts what it says it counts."""

import importlib
import json
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxinforl import cli, xla_flags
from maxinforl.experiments import flops, speed
from maxinforl.settings import Settings

TINY = Settings(algo="sac", env="Pendulum-v1", batch_size=8, set=(("base.hidden", (16,)),))


def test_products_are_counted_as_often_as_they_run():
    w = jnp.ones((3, 3))
    chain = lambda x: jax.lax.scan(lambda x, _: (x @ w, None), x, length=5)[0] @ w
    found = flops.products(chain, jnp.ones((7, 3)))
    assert sorted(p.times for p in found) == [1, 5]
    assert sum(p.flop for p in found) == 6 * 2 * 7 * 3 * 3


def test_a_product_written_twice_counts_once():
    inner = jax.jit(lambda x, y: x @ y)
    both = lambda x, y: inner(x, y) + jnp.dot(x, y) + inner(y, x)
    assert sum(p.flop for p in flops.products(both, jnp.ones((3, 3)), jnp.ones((3, 3)))) == 2 * 2 * 3**3


def test_a_product_whose_result_is_not_used_does_not_count():
    assert flops.products(lambda x: (x @ x, x + 1)[1], jnp.ones((3, 3))) == []


def test_a_branch_that_is_rarely_taken_does_not_count():
    rare = lambda x, now: jax.lax.cond(now % 100 == 99, lambda x: x @ x @ x, lambda x: x, x) @ x
    assert sum(p.flop for p in flops.products(rare, jnp.ones((3, 3)), 0)) == 2 * 3**3


def test_a_convolution_counts_its_windows():
    image, kernel = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 4))
    convolve = lambda x, k: jax.lax.conv_general_dilated(
        x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert sum(p.flop for p in flops.products(convolve, image, kernel)) == 2 * 2 * 4 * 4 * 4 * 27


@pytest.fixture(scope="module")
def subject() -> speed.TimedAgent:
    return speed.TimedAgent(TINY)


@pytest.mark.slow
def test_the_flop_of_sac_by_hand(subject):
    """Hidden layer 16, batch 8, Pendulum (3 -> 1): critics 4-16-1, actor 3-16-2; multiply-adds per sample and row."""
    critic_in, critic_out, actor_in, actor_out = 4 * 16, 16, 3 * 16, 16 * 2
    # actor: action at s (with its gradient) and at s'; critics: targets at s', regression at s, the actor's at s
    actor = 2 * (actor_in + actor_out) + (actor_in + actor_out) + actor_out
    regression = 2 * (2 * (critic_in + critic_out) + critic_out)
    target = 2 * (critic_in + critic_out)
    through = 2 * (critic_in + critic_out) + 2 * (critic_out + critic_in)
    assert subject.gflop * 1e9 == pytest.approx(2 * 8 * (actor + regression + target + through), rel=0.12)


def test_one_dispatch_per_agent_step_is_counted(subject):
    subject.step()
    assert subject.dispatches() == 1
    subject.step, step = lambda: (step(), step()), subject.step
    assert subject.dispatches() == 2
    subject.step = step


def test_the_best_of_interleaved_repeats():
    calls = []
    best = speed.best_times({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, seconds=0)
    assert calls == ["a", "b"] + ["a", "b"] * 3 and all(0 < ms < 10 for ms in best.values())


def test_bench_writes_what_it_prints(subject, tmp_path, monkeypatch, capsys):
    quick = speed.bench
    monkeypatch.setattr(speed, "TimedAgent", lambda settings: subject)
    monkeypatch.setattr(speed, "bench", lambda seeds: quick(seeds, repeats=1, seconds=0.001))
    assert cli.main(["bench", "speed", "--algos", "sac", "--no-start", "--json", str(tmp_path / "speed.json")]) == 0
    (row,) = json.loads((tmp_path / "speed.json").read_text())
    assert {"algo", "floor_ms", "update_ms", "step_ms", "gflop", "dispatches"} <= set(row)
    assert row["algo"] == "sac" and row["dispatches"] == 1 and 0 < row["floor_ms"] < row["update_ms"] * 10
    assert "update / floor" in capsys.readouterr().out
    assert np.isfinite(row["matmul_gflops"])


def test_images_are_also_held_against_the_rate_of_a_large_product():
    row = speed.Timing("drq", 140.0, 150.0, 160.0, gflop=8.0, dispatches=1, matmul_gflops=200.0, pixels=True)
    assert row.product_ms == pytest.approx(40)
    shown = {column.header: list(column.cells) for column in speed.table([row, replace(row, pixels=False)]).columns}
    assert shown["1024² ms"] == ["40.00", "-"] and shown["update / 1024²"] == ["3.75", "-"]


def test_an_unknown_algorithm_is_refused_before_anything_is_built(capsys):
    assert cli.main(["bench", "speed", "--algos", "sax"]) == 2
    assert "sac" in capsys.readouterr().err


def test_small_loops_are_one_kernel(monkeypatch):
    draw = jax.jit(lambda key: jax.random.bits(key, (256,)))
    assert "xla_cpu_small_call" in draw.lower(jax.random.key(0)).compile().as_text()
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    for _ in range(2):  # a user's own flags stay, ours come once
        importlib.reload(xla_flags)
        assert os.environ["XLA_FLAGS"] == f"--mine {xla_flags.SMALL_LOOPS}"
