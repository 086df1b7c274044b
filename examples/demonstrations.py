"""Demonstrations as prior data: a hand-written controller shows a sparse task, and SAC learns with half of every batch
from what it did.

python examples/demonstrations.py [STEPS [EPISODES]]
"""

import sys

import gymnasium as gym
import numpy as np

import maxinforl

ENV, SEED = "MountainCarContinuous-v0", 0


def controller(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pushes along the velocity, which pumps energy into the car; with noise, so that no two episodes are alike."""
    push = np.sign(obs[1]) if obs[1] else 1.0
    return np.clip([push + rng.normal(scale=0.3)], -1, 1).astype(np.float32)


def demonstrate(episodes: int) -> maxinforl.Prior:
    env, rng = gym.make(ENV), np.random.default_rng(SEED)
    rows, returns, reached = [], [], []
    for episode in range(episodes):
        (obs, _), ended, total = env.reset(seed=SEED + episode), False, 0.0
        while not ended:
            action = controller(obs, rng)
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, following, terminated, truncated))
            obs, ended, total = following, terminated or truncated, total + float(reward)
        returns.append(total)
        reached.append(terminated)
    print(f"{episodes} demonstrations: return {np.mean(returns):.1f} ± {np.std(returns):.1f}", end=", ")
    print(f"success {np.mean(reached):.0%}, {len(rows)} transitions")
    return maxinforl.Prior(*(np.array(column) for column in zip(*rows)))


def main(steps: int = 6_000, episodes: int = 10) -> None:
    demonstrate(episodes).save("demonstrations.npz")
    for prior in ({}, {"prior_data": "demonstrations.npz", "prior_share": 0.5}):
        agent = maxinforl.make("sac", ENV, seed=SEED, eval_episodes=5, **prior)
        agent.learn(steps, eval_every=max(1, steps // 3), progress=True)
        print("with" if prior else "without", "demonstrations:", end=" ")
        print("returns", [round(float(result.returns.mean()), 1) for _, result in agent.evaluations])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
