"""Agents to export, and a Python that has NumPy alone."""

from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

import maxinforl

TINY = {"base.hidden": (16, 16)}


class Camera(gym.Env):
    """Small images in, two actions of unequal ranges out."""

    observation_space = spaces.Box(0, 255, (21, 17, 3), np.uint8)
    action_space = spaces.Box(np.array([-0.3, 2.0], np.float32), np.array([0.1, 7.0], np.float32))


class Arm(gym.Env):
    """A dictionary of sensors in, two actions out."""

    dt = 0.01
    observation_space = spaces.Dict({"angle": spaces.Box(-3, 3, (2,)), "touch": spaces.Discrete(3)})
    action_space = spaces.Box(np.array([-0.3, 2.0], np.float32), np.array([0.1, 7.0], np.float32))


def scrambled(agent: maxinforl.Agent) -> maxinforl.Agent:
    """The agent with noise on every parameter, so that no bias is 0 and no scale 1."""
    program, state, now = agent.acting_state()
    leaves, tree = jax.tree.flatten(state)
    generator = np.random.default_rng(1)
    noisy = [
        leaf + generator.normal(0, 0.1, leaf.shape).astype(np.float32) if leaf.dtype == np.float32 else leaf
        for leaf in leaves
    ]
    agent._untrained = (program, jax.tree.unflatten(tree, noisy), now)
    return agent


def made(algo: str, env=lambda: Arm(), **options) -> maxinforl.Agent:
    return scrambled(maxinforl.make(algo, env, set=TINY, **options))


def only_numpy(folder: Path) -> Path:
    """A directory of packages in which nothing but NumPy can be found."""
    folder.mkdir()
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (folder / name).symlink_to(installed / name)
    return folder
