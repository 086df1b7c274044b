"""How the cost of an agent step scales with each setting; writes scaling.json and docs/images/scaling.png.

    python benchmarks/scaling.py [--only batch width ...]

Every sweep is interleaved in one process, best of several repeats, and compared with its own first entry: batch size,
width of actor and critics, members of the ensemble, observation size, rows of the replay, seeds in one program, and the
compiled loop against the host loop.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from maxinforl.core.program import unpack
from maxinforl.experiments.speed import best_times
from maxinforl.settings import Settings, resolve
from maxinforl.training.compiled import make_trainer
from maxinforl.training.trainer import Trainer

BASE = Settings(algo="maxinfo-sac", env="Pendulum-v1", steps=5000, capacity=5000, learning_starts=0, eval_episodes=0)
HERE = Path(__file__).parent


class Wide(gym.Env):
    """Nothing but a large observation."""

    def __init__(self, size: int):
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        return self.obs, 0.0, False, False, {}


def trainer(seeds: int = 1, env: Any = "Pendulum-v1", **changes: Any) -> Trainer:
    changes |= {"env": env if isinstance(env, str) else "wide"}
    settings, agent = resolve(replace(BASE, **changes))
    return make_trainer(agent, [replace(settings, seed=s) for s in range(seeds)], env, settings.steps)


def filled(rows: int) -> Trainer:
    """A trainer whose replay has `rows` rows, all of them used."""
    made = trainer(steps=rows, capacity=rows)
    made.advance()
    replay = made.state.replay
    noise = jax.random.normal(jax.random.key(0), replay.obs.shape)
    starts = jax.numpy.arange(replay.rows, dtype=np.int32)[None]
    full = replace(replay, obs=noise, starts=starts, pushed=replay.pushed + rows - 8, head=replay.head + rows - 8)
    made.state = replace(unpack(made.state), replay=full)
    return made


SWEEPS = {
    "batch": {n: lambda n=n: trainer(batch_size=n) for n in (64, 128, 256, 512, 1024)},
    "width": {n: lambda n=n: trainer(set=(("base.hidden", (n, n)),)) for n in (64, 128, 256, 512)},
    "members": {n: lambda n=n: trainer(set=(("intrinsic.members", n),)) for n in (2, 5, 10, 20)},
    "members, paper": {
        n: lambda n=n: trainer(uncertainty="paper", set=(("intrinsic.members", n),)) for n in (2, 5, 10)
    },
    "observation": {n: lambda n=n: trainer(env=lambda: Wide(n)) for n in (3, 30, 100, 300)},
    "replay rows": {n: lambda n=n: filled(n) for n in (1000, 100_000, 1_000_000)},
    "environments": {n: lambda n=n: trainer(num_envs=n, update_ratio=1 / n) for n in (1, 4, 16)},
    "seeds": {n: lambda n=n: trainer(seeds=n) for n in (1, 2, 5)},
    "seeds, sac": {n: lambda n=n: trainer(seeds=n, algo="sac") for n in (1, 5)},
    "loop": {kind: lambda kind=kind: trainer(env="jax/pendulum-hanging", loop=kind) for kind in ("host", "compiled")},
    "loop, small": {
        kind: lambda kind=kind: trainer(
            env="jax/pendulum-hanging", loop=kind, batch_size=32, set=(("base.hidden", (32, 32)),)
        )
        for kind in ("host", "compiled")
    },
}


def sweep(builders: dict, repeats: int = 8, seconds: float = 0.4) -> dict[str, float]:
    """ms per agent step of each entry, interleaved."""
    made = {str(name): build() for name, build in builders.items()}
    steps = {name: len(t.advance(100)) for name, t in made.items()}  # compiles, and says how many steps a call makes
    times = best_times({name: lambda t=t: (t.advance(100), t.action) for name, t in made.items()}, repeats, seconds)
    return {name: ms / steps[name] for name, ms in times.items()}


def draw(results: dict[str, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grown = {k: v for k, v in results.items() if not k.startswith("loop")}
    figure, axes = plt.subplots(3, 3, figsize=(9, 7.5), constrained_layout=True)
    for axis, (name, ms) in zip(axes.flat, grown.items()):
        x, y = [float(n) for n in ms], list(ms.values())
        per = [v / float(n) for n, v in ms.items()] if name.startswith("seeds") else y
        axis.plot(x, per, "o-", color="tab:blue")
        axis.set(xscale="log", ylim=(0, max(per) * 1.15), title=name)
        axis.set_xticks(x, [f"{n:,.0f}".replace(",", " ") for n in x])
        axis.minorticks_off()
        axis.set_ylabel("ms per step and seed" if name.startswith("seeds") else "ms per agent step")
    for axis in axes.flat[len(grown) :]:
        axis.remove()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(SWEEPS), choices=list(SWEEPS))
    args = parser.parse_args()
    path = HERE / "scaling.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in args.only:
        results[name] = sweep(SWEEPS[name])
        print(f"{name:16} " + "  ".join(f"{k}: {ms:.2f} ms" for k, ms in results[name].items()), flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, HERE.parent / "docs/images/scaling.png")


if __name__ == "__main__":
    main()
