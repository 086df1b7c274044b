"""Time per agent step of other implementations and of this one, measured in turn.

    python -m venv sbx && sbx/bin/pip install sbx-rl
    python benchmarks/rivals.py --sbx sbx/bin/python
    python -m venv torch && torch/bin/pip install torch numpy
    python benchmarks/rivals.py --torch torch/bin/python

States: Pendulum-v1, batches of 256, 256-wide networks, one update per step. Each turn is a new process that compiles,
warms up and times ten blocks of 100 steps; ms per agent step, the best block. Writes rivals.json.

Images: the encoder's forward pass and gradients, DrQv2's update and a 1024² product, 64 images of 48x48 and 84x84, in
turn with PyTorch (rivals_torch.py); ms, the best of a turn. Writes rivals-pixels.json.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SBX = """
import time
from sbx import SAC
model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=100, policy_kwargs={"net_arch": [256, 256]})
model.learn(400)
for _ in range(10):
    began = time.perf_counter()
    model.learn(100, reset_num_timesteps=False)
    print(10 * (time.perf_counter() - began))
"""
OURS = """
import time
from maxinforl.experiments.speed import TimedAgent
from maxinforl.settings import Settings
subject = TimedAgent(Settings(algo="{algo}", uncertainty="{uncertainty}", env="Pendulum-v1"))
for _ in range(300):
    subject.step()
for _ in range(10):
    began = time.perf_counter()
    for _ in range(100):
        subject.step()
    print(10 * (time.perf_counter() - began))
"""


IMAGES = """
import jax, jax.numpy as jnp
from maxinforl.core.encoders import Pixels
from maxinforl.core.types import Spec
from maxinforl.experiments.speed import TimedAgent, best_times, matmul
from maxinforl.settings import Settings
size, key, encoder = {size}, jax.random.key(0), Pixels()
settings = Settings(algo="drqv2", env="pixels/dmc/walker-walk", image_size=size, batch_size=64)
weights = encoder.init(key, Spec((size, size, 9), 6))
images = jax.random.randint(key, (64, size, size, 9), 0, 255).astype(jnp.uint8)
forward = jax.jit(encoder.features)
gradients = jax.jit(jax.value_and_grad(lambda w, x: (encoder.features(w, x) ** 2).sum()))
calls = dict(product=matmul(), forward=lambda: jax.block_until_ready(forward(weights, images)))
calls |= dict(gradients=lambda: jax.block_until_ready(gradients(weights, images)), update=TimedAgent(settings).update)
for _ in range(2):
    [call() for call in calls.values()]
for name, ms in best_times(calls, 13, 0.02).items():
    print(name, ms)
"""
SIZES = (48, 84)


def printed(*command: str) -> list[str]:
    """The lines that a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def states(sbx: str, turns: int) -> list[dict]:
    programs = {
        "sbx sac": (sbx, SBX),
        "sac": (sys.executable, OURS.format(algo="sac", uncertainty="light")),
        "maxinfo-sac light": (sys.executable, OURS.format(algo="maxinfo-sac", uncertainty="light")),
        "maxinfo-sac paper": (sys.executable, OURS.format(algo="maxinfo-sac", uncertainty="paper")),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(turns):
        for name, (python, code) in programs.items():
            times[name].append(min(map(float, printed(python, "-c", code))))
            print(f"turn {turn}: {name} {times[name][-1]:.2f} ms", flush=True)
    return [{"name": name, "step_ms": min(found), "turns_ms": found} for name, found in times.items()]


def images(torch: str, turns: int) -> list[dict]:
    rows = []
    for size in SIZES:
        ours = (sys.executable, "-c", IMAGES.format(size=size))
        theirs = (torch, str(HERE / "rivals_torch.py"), str(size))
        for turn in range(turns):
            for name, command in (("here", ours), ("torch", theirs)):
                ms = {part: round(float(found), 2) for part, found in map(str.split, printed(*command))}
                rows.append({"name": name, "size": size, "turn": turn, "ms": ms})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sbx", help="the Python of an environment with sbx-rl: times state-based agents")
    parser.add_argument("--torch", help="the Python of an environment with PyTorch: times pixel-based agents")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if not (args.sbx or args.torch):
        parser.error("give --sbx or --torch")
    for python, measure, file in ((args.sbx, states, "rivals.json"), (args.torch, images, "rivals-pixels.json")):
        if python:
            (HERE / file).write_text(json.dumps(measure(python, args.turns), indent=1) + "\n")


if __name__ == "__main__":
    main()
