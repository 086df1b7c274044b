"""Stable-Baselines3's own evaluate_policy on an agent of this library.

    pip install stable-baselines3
    python examples/evaluate_with_sb3.py [STEPS]

Not run in CI, because Stable-Baselines3 needs PyTorch, which is several gigabytes. evaluate_like_sb3.py, which calls
`predict` in the same way, is.
"""

import sys

import gymnasium as gym
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import maxinforl


def main(steps: int = 5_000) -> None:
    agent = maxinforl.make("sac", "Pendulum-v1", batch_size=64)
    agent.learn(steps)
    mean, std = evaluate_policy(agent, Monitor(gym.make("Pendulum-v1")), n_eval_episodes=3)  # type: ignore[arg-type]
    print(f"return {mean:.1f} ± {std:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
