"""A custom intrinsic reward; MaxInfo tunes its weight like that of the information gain.

python examples/custom_bonus.py [STEPS]
"""

import sys
import tempfile
from dataclasses import dataclass

import jax.numpy as jnp

import maxinforl
from maxinforl.intrinsic import Ensemble


@dataclass(frozen=True)
class WorstMember(Ensemble):
    """The largest difference between two members, in normalised outputs.

    `Ensemble` provides the models, their training and the normalisers. `score` takes any action, must be differentiable
    in it, and never trains. Fields of the dataclass are settings and are saved with the agent.
    """

    power: float = 1.0

    def score(self, model, z, action):
        members, _ = self.outcome(model, z, action)  # [members, batch, outputs]
        apart = (members.max(0) - members.min(0)).mean(-1)
        return jnp.power(apart + 1e-6, self.power)


def main(steps: int = 5_000) -> None:
    bonus = WorstMember(hidden=(64, 64), power=0.5)
    agent = maxinforl.make("maxinfo-sac", "Pendulum-v1", intrinsic=bonus, batch_size=64)
    agent.learn(steps, eval_every=max(1, steps // 3), progress=True)
    with tempfile.TemporaryDirectory() as folder:
        agent.save(folder)  # the file only names the class, so `load` needs it
        again = maxinforl.load(folder, custom=[WorstMember])
    print(again.strategy.intrinsic)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
