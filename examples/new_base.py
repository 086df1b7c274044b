"""MaxInfo on a new base: a learner is a value, so a new one is a few numbers.

python examples/new_base.py [STEPS]
"""

import sys
from dataclasses import replace

import maxinforl
from maxinforl.algorithms import BASES

# SAC with five critics of which two are bootstrapped, read by their mean, with layer norm and two updates per step.
BASE = replace(
    BASES["sac"], critics=5, num_min_critics=2, critic_reduction="mean", layer_norm=True, policy_delay=2, update_ratio=2
)


def main(steps: int = 5_000) -> None:
    for algo in ("sac", "maxinfo-sac"):  # the base alone, then with information gain
        agent = maxinforl.make(algo, "pendulum-hanging", base=BASE, batch_size=64, seed=0)
        agent.learn(steps, eval_every=max(1, steps // 3))
        print(f"{algo:12s} return {agent.evaluate(episodes=3).returns.mean():8.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
