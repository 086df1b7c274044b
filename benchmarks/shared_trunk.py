"""A light ensemble that was rejected: one shared trunk with a head per member, each with a fixed random prior.

    python benchmarks/shared_trunk.py --out results/light-paper/mountain-car/shared-trunk --seeds 3

Trains it on MountainCarContinuous-v0 with the settings of results/light-paper and prints the cost of its update.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

import maxinforl
from maxinforl.core.networks import MLP, stacked
from maxinforl.core.types import LatentSpec
from maxinforl.intrinsic import InfoGain
from maxinforl.intrinsic.ensemble import Model


class Heads(eqx.Module):
    net: MLP  # all members' outputs side by side
    prior: MLP  # a small network per member that is never trained


@dataclass(frozen=True)
class SharedTrunk(InfoGain):
    hidden: tuple[int, ...] = (64, 64)
    prior: int = 32

    def init(self, key: Array, spec: LatentSpec) -> Model:
        model = super().init(key, spec)
        inputs, outputs = spec.z + spec.action, sum(model.blocks)
        k_net, k_prior = jax.random.split(key)
        heads = Heads(
            MLP(k_net, (inputs, *self.hidden, self.members * outputs), activation=self.activation),
            stacked(lambda k: MLP(k, (inputs, self.prior, outputs), activation=self.activation), k_prior, self.members),
        )
        return eqx.tree_at(lambda m: (m.members, m.opt), model, (heads, self.optimizer.init(heads)))  # type: ignore

    def predict(self, members: Heads, x: Array) -> tuple[Array, None]:  # type: ignore[override]
        learned = members.net(x).reshape(*x.shape[:-1], self.members, -1)
        prior = jax.vmap(lambda net: net(x))(jax.lax.stop_gradient(members.prior))
        return jnp.moveaxis(learned, -2, 0) + prior, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8000)
    args = parser.parse_args()
    for seed in range(args.seeds):
        options = {"seed": seed, "eval_every": 500, "eval_episodes": 3}
        agent = maxinforl.make("maxinfo-sac", "MountainCarContinuous-v0", intrinsic=SharedTrunk(), **options)
        agent.learn(args.steps, out=args.out / f"seed-{seed}")


if __name__ == "__main__":
    main()
