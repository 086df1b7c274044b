"""Worker processes stay small: they import the environment and nothing of the learner."""

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs import make_pool

HEAVY = ("jax", "jaxlib", "equinox", "optax", "matplotlib", "rich")


class Witness(gym.Env):
    """Observes how many heavy modules its process has imported, and whether it may use an accelerator."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return self._obs(), {}

    def step(self, action):
        return self._obs(), 0.0, False, False, {}

    def _obs(self):
        found = sum(name in sys.modules for name in HEAVY)
        return np.array([found, os.environ.get("JAX_PLATFORMS") != "cpu"], np.float32)


def test_a_worker_imports_no_jax():
    pool = make_pool(Witness, workers=True)
    obs = pool.step(np.zeros((1, 1), np.float32)).next_obs
    pool.close()
    assert obs.tolist() == [[0, 0]]


def test_the_command_line_can_be_imported_without_jax():
    """Worker processes of the `maxinforl` script import what the script imports."""
    code = "import sys, maxinforl.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
