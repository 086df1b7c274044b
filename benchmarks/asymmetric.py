"""Does a critic that sees a hidden velocity help an actor that does not?

    python benchmarks/asymmetric.py 3          # seeds; benchmarks/asymmetric.json, two minutes

A sled on ice is pushed to the middle; its velocity is drawn anew at random times, by gusts. The actor sees where it is.
`both blind`: so do the critics. `critics see`: they also see the velocity (--critic-only velocity). `both see`: all do.
"""

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import maxinforl

RESULTS = Path(__file__).parent / "asymmetric.json"
STEPS, EVERY, EPISODES = 3_000, 500, 20


class Sled(gym.Env):
    observation_space = spaces.Dict(
        {"place": spaces.Box(-2, 2, (2,), np.float32), "velocity": spaces.Box(-2, 2, (2,), np.float32)}
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def seen(self):
        return {"place": self.place.astype(np.float32), "velocity": self.velocity.astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.left = self.np_random.uniform(-1, 1, 2), 50
        self.velocity = self.np_random.uniform(-1, 1, 2)
        return self.seen(), {}

    def step(self, action):
        self.velocity = np.clip(0.7 * self.velocity + 0.3 * action, -2, 2)
        if self.np_random.random() < 0.1:
            self.velocity = self.np_random.uniform(-2, 2, 2)
        self.place = np.clip(self.place + 0.3 * self.velocity, -2, 2)
        self.left -= 1
        return self.seen(), -float(np.linalg.norm(self.place)), False, self.left == 0, {}


def blind() -> gym.Env:
    only = spaces.Dict({"place": Sled.observation_space["place"]})
    return gym.wrappers.TransformObservation(Sled(), lambda obs: {"place": obs["place"]}, only)


KINDS = {"both blind": (blind, {}), "critics see": (Sled, {"critic_only": "velocity"}), "both see": (Sled, {})}


def returns(kind: str, seed: int) -> list[float]:
    env, options = KINDS[kind]
    small = {"base.hidden": (64, 64), "base.gamma": 0.9, "base.lr": 1e-3}
    agent = maxinforl.make("sac", env, seed=seed, eval_episodes=EPISODES, batch_size=128, set=small, **options)
    agent.learn(STEPS, eval_every=EVERY)
    return [round(float(evaluation.returns.mean()), 2) for _, evaluation in agent.evaluations]


def main(seeds: int = 5) -> None:
    found = {kind: [returns(kind, seed) for seed in range(seeds)] for kind in KINDS}
    RESULTS.write_text(json.dumps({"steps": list(range(0, STEPS + 1, EVERY)), "returns": found}, indent=1) + "\n")
    for kind, curves in found.items():
        last = np.array(curves)[:, -3:].mean(1)
        print(f"{kind:12} last half {last.mean():.2f} ± {last.std(ddof=1) / len(last) ** 0.5:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
