"""The pendulum swing-up task that starts hanging down."""

import math

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from maxinforl.envs.draw import Rod, draw

TIME_LIMIT = 200


class HangingPendulum(PendulumEnv):
    """Pendulum-v1's dynamics and cost (angle^2 + 0.1 speed^2 + 0.001 torque^2), reset to hang at rest.

    A reset draws (angle, speed) from (pi, 0) + U(-0.1, 0.1)^2. An episode is 200 steps; `time_limit_is_terminal` ends
    it by termination instead of truncation (no bootstrap), as the authors' runs did. `squared_cost` subtracts that
    constant times torque^2, the other published form of the action cost. `g` is gravity; the motor alone can lift the
    pendulum where it is below 4.
    """

    def __init__(
        self,
        render_mode: str | None = None,
        size: int = 256,
        time_limit_is_terminal: bool = False,
        squared_cost: float = 0.0,
        g: float = 10.0,
    ):
        super().__init__(render_mode, g)
        self.size, self.time_limit_is_terminal, self.squared_cost = size, time_limit_is_terminal, squared_cost

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.state = np.array([np.pi, 0.0]) + self.np_random.uniform(-0.1, 0.1, 2)
        self.elapsed = 0
        return self._get_obs(), {}

    def step(self, u):
        obs, reward, _, _, info = super().step(u)
        self.elapsed += 1
        over = self.elapsed >= TIME_LIMIT
        if self.squared_cost:
            reward -= self.squared_cost * min(max(float(u[0]), -self.max_torque), self.max_torque) ** 2
        return obs, reward, over and self.time_limit_is_terminal, over and not self.time_limit_is_terminal, info

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return draw(self.size, pendulum_rods(float(self.state[0])))


def pendulum_rods(angle: float) -> list[Rod]:
    """A pendulum whose angle is 0 upright and grows anticlockwise."""
    tip = (-0.8 * math.sin(angle), 0.8 * math.cos(angle))
    return [Rod((0, 0), tip, 0.08, (204, 77, 77)), Rod((0, 0), (0, 0), 0.03, (0, 0, 0))]
