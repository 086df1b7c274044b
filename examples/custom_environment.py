"""MaxInfoSAC on a custom environment: any gymnasium.Env with bounded Box actions.

python examples/custom_environment.py [STEPS]
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import maxinforl


class Corridor(gym.Env):
    """A point on a line that starts at 0; only reaching the right end, ten units away, is rewarded."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)  # position, velocity
    action_space = spaces.Box(-1, 1, (1,), np.float32)  # force

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # equal seeds must give equal episodes: draw only from self.np_random
        self.state, self.left = self.np_random.uniform(-0.1, 0.1, 2), 200
        return self.state.astype(np.float32), {}

    def step(self, action):
        position, velocity = self.state
        velocity = np.clip(velocity + 0.1 * float(action[0]), -1, 1)
        position = np.clip(position + 0.2 * velocity, -10, 10)
        self.state, self.left = np.array([position, velocity]), self.left - 1
        arrived = bool(position >= 10)
        # a goal terminates, a time limit truncates: only a termination stops the bootstrap
        return self.state.astype(np.float32), float(arrived), arrived, self.left == 0, {}


def main(steps: int = 6_000) -> None:
    agent = maxinforl.make("maxinfo-sac", Corridor, seed=0, batch_size=64)  # the class serves as the factory
    agent.learn(steps, eval_every=max(1, steps // 3), progress=True)
    result = agent.evaluate(episodes=5)
    print(f"return {result.returns.mean():.2f}, mean length {result.lengths.mean():.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
