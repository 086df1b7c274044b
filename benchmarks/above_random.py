"""Do runs end above random? python benchmarks/above_random.py results/pixels --picture results/pixels/curves.png

Each run's last three evaluations against the untrained actor's and a uniformly random policy's mean + 3 standard
deviations over 200 episodes, on the task that the runs' config.toml names.
"""

import argparse
import tomllib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from maxinforl import envs

EPISODES, LAST = 200, 3


def random_returns(settings: dict[str, Any]) -> np.ndarray:
    """Returns of uniformly random actions; nothing is drawn where the same task exists on states."""
    name, given = settings["env"].removeprefix("pixels/"), settings.get("env_arg", ())
    env = envs.make(name, action_repeat=settings.get("action_repeat", 1), env_args=given)
    rng, returns = np.random.default_rng(0), np.zeros(EPISODES)
    for episode in range(EPISODES):
        env.reset(seed=episode)
        over = False
        while not over:
            action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
            _, reward, terminated, truncated, _ = env.step(action)
            returns[episode] += float(reward)
            over = terminated or truncated
    return returns


def curves(directory: Path) -> dict[str, np.ndarray]:
    """(steps, mean return) of every run, by its path."""
    paths = sorted(directory.glob("*/seed-*/eval.csv"))
    read = lambda path: np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(0, 3))
    return {str(path.parent.relative_to(directory)): read(path) for path in paths}


def picture(runs: dict[str, np.ndarray], limit: float, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    names = sorted({run.split("/")[0] for run in runs})
    for run, curve in runs.items():
        name, seed = run.split("/")
        color = f"C{names.index(name)}"
        axes.plot(*curve.T, color=color, label=name if seed == "seed-0" else None, lw=1.5)
    axes.axhline(limit, color="0.5", ls="--", lw=1, label="random mean + 3 sd")
    scale = "log" if min(curve[:, 1].min() for curve in runs.values()) > 0 else "linear"
    axes.set(xlabel="agent steps", ylabel="return", yscale=scale)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    with next(args.directory.glob("*/seed-*/config.toml")).open("rb") as file:
        config = tomllib.load(file)
    returns = random_returns(config | config["settings"])
    limit, runs = returns.mean() + 3 * returns.std(), curves(args.directory)
    print(f"random policy: {returns.mean():.0f} ± {returns.std():.0f}, mean + 3 sd {limit:.0f}\n")
    print("| run | untrained | mean of the last three evaluations | above both |\n|---|---|---|---|")
    for run, curve in runs.items():
        first, last = curve[0, 1], curve[-LAST:, 1].mean()
        print(f"| {run} | {first:.0f} | {last:.0f} | {'yes' if last > max(first, limit) else 'no'} |")
    if args.picture:
        picture(runs, limit, args.picture)


if __name__ == "__main__":
    main()
