"""Another library's agent on the tasks of the hard-exploration benchmark.

    pip install sbx-rl
    python examples/benchmark_sbx.py [OUT]
    maxinforl report OUT results/hard-exploration --out report.html

Not run in CI, because sbx needs PyTorch, which is several gigabytes.
"""

import sys

import gymnasium as gym
from sbx import SAC

import maxinforl


class Continued:
    """Stable-Baselines3 counts steps from 0 at every `learn` unless it is told not to."""

    def __init__(self, agent: SAC):
        self.agent, self.predict = agent, agent.predict

    def learn(self, steps: int) -> None:
        self.agent.learn(steps, reset_num_timesteps=False)


def make_agent(env: gym.Env, seed: int) -> Continued:
    return Continued(SAC("MlpPolicy", env, seed=seed))


def main(out: str = "runs/sbx") -> None:
    for run in maxinforl.benchmark(make_agent, "sbx sac", out, tasks=["mountain car", "pendulum-swingup"], seeds=[0]):
        print(run.env, run.returns.value if run.returns else "no evaluation")


if __name__ == "__main__":
    main(*sys.argv[1:])
