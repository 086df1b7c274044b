"""The agent step lowers for CUDA and TPU on a machine that has neither; the text shows what differs per platform."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import core_helpers as core
import pixel_helpers as images
from maxinforl.core.program import Program
from maxinforl.core.types import Spec, clock
from maxinforl.core.update import TrainState
from maxinforl.replay import Replay
from maxinforl.transition import Transition

IMAGES = Spec((40, 40, 3), 2)  # few enough pixels for several slices of a batch on a CPU
BATCH = 32
PLATFORMS = ("cuda", "tpu", "cpu")
AGENTS = {
    "maxinfo-sac": (core.named("maxinfo-sac"), core.SPEC),
    "crossq": (core.named("crossq"), core.SPEC),
    "drqv2": (images.named("drqv2"), IMAGES),
}


def abstract(shape: tuple[int, ...], dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def lowered(name: str, platform: str, seeds: int | None = None) -> str:
    """The text of one agent step for a platform; nothing is compiled and no array is made."""
    agent, spec = AGENTS[name]
    program = Program(agent, spec, BATCH)
    dtype = jnp.uint8 if spec.pixels else jnp.float32

    def state(seed) -> TrainState:
        replay = Replay.create(1, 64, spec.obs, dtype, spec.action)
        return TrainState(agent.init(jax.random.key(0), spec), replay, clock(total=100), seed)

    def step(seed, transition: Transition):
        return program.train_step(state(seed), transition)

    flag, obs = abstract((1,), jnp.bool), abstract((1, *spec.obs), dtype)
    moved = Transition(abstract((1, spec.action), jnp.float32), abstract((1,), jnp.float32), flag, flag, obs, obs, flag)
    given = abstract((), jnp.int32) if seeds is None else abstract((seeds,), jnp.int32)
    mapped = step if seeds is None else jax.vmap(step, in_axes=(0, None))
    return jax.jit(mapped).trace(given, moved).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", AGENTS)
def test_a_step_lowers_for_every_platform_without_a_device(name, platform):
    text = lowered(name, platform)
    assert "stablehlo.dot_general" in text
    assert ("stablehlo.convolution" in text) == AGENTS[name][1].pixels


def convolved(text: str) -> set[str]:
    """The types of what XLA's own convolutions return."""
    return set(re.findall(r"stablehlo\.convolution.*-> (tensor<\S+>)", text))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_only_a_cpu_convolves_a_batch_in_slices(platform):
    whole = f"tensor<{BATCH}x19x19x32xf32>"
    assert (whole in convolved(lowered("drqv2", platform))) == (platform != "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_only_a_cpu_convolves_seeds_one_after_the_other(platform):
    grouped = "feature_group_count = 2" in lowered("drqv2", platform, seeds=2)
    assert grouped == (platform != "cpu")
