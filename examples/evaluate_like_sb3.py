"""Evaluates an agent as Stable-Baselines3's evaluate_policy does, without installing it.

    python examples/evaluate_like_sb3.py [STEPS]

evaluate_with_sb3.py does the same with the original function.
"""

import sys

import gymnasium as gym
import numpy as np

import maxinforl


def evaluate_policy(model, env: gym.Env, n_eval_episodes: int = 10, deterministic: bool = True) -> tuple[float, float]:
    """Mean and standard deviation of episode returns."""
    returns = []
    for episode in range(n_eval_episodes):
        observation, _ = env.reset(seed=episode)
        state, episode_start, total, done = None, np.ones(1, bool), 0.0, False
        while not done:
            # the four arguments of Stable-Baselines3; agents here have no recurrent state and return it unchanged
            action, state = model.predict(observation, state, episode_start, deterministic)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done, episode_start = total + float(reward), terminated or truncated, np.zeros(1, bool)
        returns.append(total)
    return float(np.mean(returns)), float(np.std(returns))


def main(steps: int = 5_000) -> None:
    agent = maxinforl.make("sac", "Pendulum-v1", batch_size=64)
    agent.learn(steps)
    mean, std = evaluate_policy(agent, gym.make("Pendulum-v1"), n_eval_episodes=3)
    print(f"return {mean:.1f} ± {std:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
