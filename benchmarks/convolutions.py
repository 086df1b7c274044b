"""The encoder on chunks of images against the whole batch, forward and backward; writes convolutions.json.

    python benchmarks/convolutions.py

64 images of each size, three stacked frames, ms, interleaved, best of several.
"""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from maxinforl.core.encoders import Pixels, _features
from maxinforl.core.types import Spec
from maxinforl.experiments.speed import best_times
from maxinforl.system.memory import keep_freed_memory


def calls(size: int) -> dict:
    key, encoder = jax.random.key(0), Pixels()
    weights = encoder.init(key, Spec((size, size, 9), 1))
    images = jax.random.randint(key, (64, size, size, 9), 0, 255).astype(jnp.uint8)
    made = {}
    for name, function in (("few", encoder.features), ("whole", _features)):
        squares = lambda w, x, function=function: (function(w, x) ** 2).sum()
        programs = {f"{name} pass": jax.jit(function), f"{name} gradients": jax.jit(jax.value_and_grad(squares))}
        made |= {label: partial(run, program, weights, images) for label, program in programs.items()}
    for call in made.values():
        call()
    return made


def run(program, *args) -> None:
    jax.block_until_ready(program(*args))


def main() -> None:
    keep_freed_memory()
    results = {}
    for size in (32, 48, 84):
        results[size] = {name: round(ms, 1) for name, ms in best_times(calls(size), 5, 0.1).items()}
        print(size, results[size], flush=True)
    Path(__file__).with_name("convolutions.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
