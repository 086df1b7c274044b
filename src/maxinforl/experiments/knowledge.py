"""What the intrinsic model of a checkpoint knows: where information gain is high, and whether it is calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from maxinforl.agent import Agent, load
from maxinforl.deploy.policy_weights import learner_of
from maxinforl.errors import BadInput
from maxinforl.intrinsic import Ensemble
from maxinforl.replay import Replay
from maxinforl.training.checkpoint import rebuilt
from maxinforl.training.store import CheckpointStore

Array = NDArray[np.float64]
ROWS = 4096  # transitions of the replay that are looked at
HIGH = 0.05  # share of them that counts as high


@dataclass(frozen=True)
class Knowledge:
    """Transitions drawn from the replay of a checkpoint, and what the model says about each of them."""

    step: int
    obs: Array  # [rows, width]; empty for images
    action: Array
    when: Array  # how far back in the replay, 0 the oldest and 1 the newest
    gain: Array  # the intrinsic reward
    spread: Array  # disagreement of the members, in normalised outputs
    error: Array  # of the members' mean, in the same units

    @property
    def correlation(self) -> float:
        """Rank correlation of disagreement and error."""
        return rank_correlation(self.spread, self.error)

    @property
    def high(self) -> NDArray[np.bool_]:
        """The transitions with the highest intrinsic rewards."""
        return self.gain >= np.quantile(self.gain, 1 - HIGH)

    def bins(self, count: int = 4) -> list[tuple[float, float]]:
        """Mean disagreement and mean error of equal groups, from the least disagreement to the most."""
        groups = np.array_split(np.argsort(self.spread, kind="stable"), count)
        return [(float(self.spread[g].mean()), float(self.error[g].mean())) for g in groups]


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's; 0 where one of them does not vary."""
    a, b = average_rank(x), average_rank(y)
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def average_rank(v: Array) -> Array:
    """Ranks with the mean where values are equal."""
    _, inverse, count = np.unique(v, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[inverse]


def know(path: Path) -> Knowledge:
    """Asks the newest checkpoint of a run about its own replay; BadInput says why it cannot be asked."""
    agent, saved = load(path), CheckpointStore(path / "checkpoints").load()
    intrinsic = getattr(agent.strategy, "intrinsic", None)
    if not isinstance(intrinsic, Ensemble):
        raise BadInput("this agent has no ensemble of models")
    if saved.rows is None:
        raise BadInput("the checkpoint holds no replay")
    shape, dtype = agent.observation_space.shape, agent.observation_space.dtype
    blank = Replay.create(len(saved.rows.lanes), 1, shape, dtype, agent.spec.action, agent.stack)
    return ask(agent, intrinsic, rebuilt(blank, saved.rows), saved.step)


def ask(agent: Agent, intrinsic: Ensemble, replay: Replay, step: int) -> Knowledge:
    count = min(int(np.asarray(replay.pushed - replay.popped).sum()), 256 if agent.spec.pixels else ROWS)
    if not count:
        raise BadInput("the replay is empty")
    base = agent.strategy.base

    @jax.jit
    def numbers(state: Any, replay: Replay) -> dict[str, Any]:
        key = jax.random.key(0)
        lane, row = replay.draw(key, (count,))
        batch = replay.sample(key, (count,), base.gamma)
        model, latents = getattr(state, "mixed", state).model, base.latents(learner_of(state), batch)
        mean = intrinsic.outcome(model, latents.z, latents.action)[0]
        truth = model.outputs(intrinsic.target(model, model.inputs, latents))
        return {
            "obs": jnp.zeros((count, 0)) if agent.spec.pixels else batch.obs,
            "action": batch.action,
            "when": 1 - (replay.head[lane] - row) / jnp.maximum(jnp.minimum(replay.head[lane], replay.rows), 1),
            "gain": intrinsic.reward(model, latents),
            "spread": jnp.sqrt(mean.var(0).mean(-1)),
            "error": jnp.sqrt(jnp.square(mean.mean(0) - truth).mean(-1)),
        }

    found = numbers(agent._acting()[1], replay)
    return Knowledge(step, **{name: np.array(value, np.float64) for name, value in found.items()})
