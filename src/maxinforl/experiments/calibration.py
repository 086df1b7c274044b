"""The ensemble of a checkpoint on its own replay: where information gain is high, and whether it is calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from maxinforl.agent import Agent, load
from maxinforl.deploy.policy_weights import learner_of
from maxinforl.errors import BadInput
from maxinforl.experiments.arrays import BoolArray, FloatArray
from maxinforl.intrinsic import Ensemble
from maxinforl.replay import Replay
from maxinforl.training.checkpoint import rebuilt
from maxinforl.training.store import CheckpointStore

MAX_TRANSITIONS = 4096  # drawn from the replay
TOP_SHARE = 0.05  # of the transitions, those with the highest intrinsic rewards


@dataclass(frozen=True)
class Calibration:
    """Transitions drawn from the replay of a checkpoint, with the model's intrinsic reward and error on each."""

    step: int
    obs: FloatArray  # [rows, width]; empty for images
    action: FloatArray
    recency: FloatArray  # position in the replay, from 0 (oldest) to 1 (newest)
    gain: FloatArray  # the intrinsic reward
    disagreement: FloatArray  # standard deviation of the members' means, in normalised outputs
    error: FloatArray  # of the mean over members, in the same units

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation of disagreement and error; 0 if one of them is constant."""
        if np.ptp(self.disagreement) == 0 or np.ptp(self.error) == 0:
            return 0.0
        found: Any = stats.spearmanr(self.disagreement, self.error)
        return float(found.statistic)

    @property
    def high(self) -> BoolArray:
        """The transitions with the highest intrinsic rewards."""
        return self.gain >= np.quantile(self.gain, 1 - TOP_SHARE)

    def bins(self, count: int = 4) -> list[tuple[float, float]]:
        """Mean disagreement and mean error of groups of equal size, in order of disagreement."""
        groups = np.array_split(np.argsort(self.disagreement, kind="stable"), count)
        return [(float(self.disagreement[g].mean()), float(self.error[g].mean())) for g in groups]


def read_calibration(path: Path) -> Calibration:
    """Evaluate the ensemble of a run's newest checkpoint on its own replay; raises `BadInput` if it has neither."""
    agent, saved = load(path), CheckpointStore(path / "checkpoints").load()
    intrinsic = getattr(agent.strategy, "intrinsic", None)
    if not isinstance(intrinsic, Ensemble):
        raise BadInput("this agent has no ensemble of models")
    if saved.rows is None:
        raise BadInput("the checkpoint holds no replay")
    shape, dtype = agent.observation_space.shape, agent.observation_space.dtype
    spec = agent.spec
    blank = Replay.create(len(saved.rows.lanes), 1, shape, dtype, spec.action, agent.stack, spec.layout)
    return evaluate_ensemble(agent, intrinsic, rebuilt(blank, saved.rows), saved.step)


def evaluate_ensemble(agent: Agent, intrinsic: Ensemble, replay: Replay, step: int) -> Calibration:
    """Draw transitions from `replay` and evaluate the agent's ensemble on them."""
    count = min(int(np.asarray(replay.pushed - replay.popped).sum()), 256 if agent.spec.pixels else MAX_TRANSITIONS)
    if not count:
        raise BadInput("the replay is empty")
    base = agent.strategy.base

    @jax.jit
    def evaluate(state: Any, replay: Replay) -> dict[str, Any]:
        key = jax.random.key(0)
        lane, row = replay.draw(key, (count,))
        batch = replay.sample(key, (count,), base.gamma)
        model, latents = getattr(state, "mixed", state).model, base.latents(learner_of(state), batch)
        mean = intrinsic.outcome(model, latents.z, latents.action)[0]
        truth = model.outputs(intrinsic.target(model, model.inputs, latents))
        return {
            "obs": jnp.zeros((count, 0)) if agent.spec.pixels else batch.obs,
            "action": batch.action,
            "recency": 1 - (replay.head[lane] - row) / jnp.maximum(jnp.minimum(replay.head[lane], replay.rows), 1),
            "gain": intrinsic.reward(model, latents),
            "disagreement": jnp.sqrt(mean.var(0).mean(-1)),
            "error": jnp.sqrt(jnp.square(mean.mean(0) - truth).mean(-1)),
        }

    found = evaluate(agent.acting_state()[1], replay)
    return Calibration(step, **{name: np.array(value, np.float64) for name, value in found.items()})
