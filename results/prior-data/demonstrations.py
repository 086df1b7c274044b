"""Demonstrations on the sparse maze: a controller that steers from corner to corner, with noise.

python results/prior-data/demonstrations.py [EPISODES]
"""

import sys
import tomllib
from pathlib import Path

import numpy as np

from maxinforl import Prior, envs

HERE, SEED = Path(__file__).parent, 0
CORNERS = np.array([[1.0, 1.0], [1.0, -1.0]])  # of the U, from start to goal
NEAR, STIFFNESS, DAMPING, NOISE = 0.4, 5.0, 1.0, 0.5


def maze():
    task = tomllib.loads((HERE / "suite.toml").read_text())["environments"]["maze"]
    return envs.make(task["env"], env_args=tuple(task["env_arg"].items()))


def episode(env, seed: int) -> list[tuple]:
    """One episode as rows; observations are achieved goal, desired goal, position and velocity, two numbers each."""
    rng, passed, rows = np.random.default_rng(seed), 0, []
    (obs, _), ended = env.reset(seed=seed), False
    while not ended:
        goal, place, velocity = obs[2:4], obs[4:6], obs[6:8]
        target = CORNERS[passed] if passed < len(CORNERS) else goal
        if passed < len(CORNERS) and np.linalg.norm(target - place) < NEAR:
            passed += 1
        force = STIFFNESS * (target - place) - DAMPING * velocity + rng.normal(scale=NOISE, size=2)
        action = np.clip(force, -1, 1).astype(np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, following, terminated, truncated))
        obs, ended = following, terminated or truncated
    return rows


def main(episodes: int = 20) -> None:
    env = maze()
    played = [episode(env, SEED + i) for i in range(episodes)]
    returns = np.array([sum(float(row[2]) for row in rows) for rows in played])
    reached, lengths = np.array([rows[-1][4] for rows in played]), np.array([len(rows) for rows in played])
    prior = Prior(*(np.array(column) for column in zip(*(row for rows in played for row in rows))))
    prior.save(HERE / "demonstrations.npz")
    print(f"{episodes} demonstrations, {len(prior)} transitions, length {lengths.mean():.0f} ± {lengths.std():.0f}")
    print(f"return {returns.mean():.2f} ± {returns.std():.2f}, success {reached.mean():.0%}, sha256 {prior.digest}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
