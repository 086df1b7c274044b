"""Where a run's numbers go: metrics.jsonl and eval.csv always, TensorBoard and W&B on request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from maxinforl import files
from maxinforl.errors import missing_extra
from maxinforl.training.evaluate import Evaluation

SKIPPED, SKIPPED_TOTAL = "train/skipped", "train/skipped_total"  # the share of updates undone, and in agent steps
EVAL_COLUMNS = "step,env_step,seed,mean_return,std_return,min_return,max_return,mean_length,episodes"


class Sink(Protocol):
    def write(self, step: int, metrics: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class RunFiles:
    """metrics.jsonl and eval.csv of a run directory."""

    def __init__(self, directory: Path):
        self.metrics, self.evals = directory / "metrics.jsonl", directory / "eval.csv"
        self.sums = {path.name: files.log_checksum(path) for path in (self.metrics, self.evals)}
        if not self.evals.exists():
            self._append(self.evals, EVAL_COLUMNS)

    def _append(self, path: Path, line: str) -> None:
        files.append_line(path, line)
        self.sums[path.name] = self.sums[path.name].then(f"{line}\n".encode())

    def write(self, step: int, metrics: dict[str, float]) -> None:
        finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        self._append(self.metrics, json.dumps(finite))

    def evaluation(self, step: int, env_step: int, seed: int, result: Evaluation) -> None:
        r = result.returns
        numbers = (r.mean(), r.std(), r.min(), r.max(), result.lengths.mean())
        self._append(
            self.evals,
            ",".join([str(step), str(env_step), str(seed), *(f"{float(n)!r}" for n in numbers), str(len(r))]),
        )

    def sync(self) -> None:
        """Makes the lines durable, before a checkpoint that is to follow them."""
        for path in (self.metrics, self.evals):
            if path.exists():
                files.sync(path)

    def arrays(self) -> dict[str, np.ndarray]:
        """The length and checksum of each file, for a checkpoint to keep."""
        return {name: np.array(found, np.int64) for name, found in self.sums.items()}

    def truncate(self, step: int, saved: Mapping[str, np.ndarray] = {}) -> list[str]:
        """Drops what was logged after a step, so that a resumed run continues its own files; a sentence for each that
        is not what a checkpoint there `saved` of it."""
        files.filter_lines(self.evals, lambda line: line.startswith("step") or evaluated_step(line) <= step)
        if self.metrics.exists():
            files.filter_lines(self.metrics, lambda line: json.loads(line)["step"] <= step)
        return [
            f"{files.printable(path)} is not what it was at step {step}: lines of it were changed or lost, check it"
            for path in (self.metrics, self.evals)
            if path.name in saved and saved[path.name].tolist() != [*files.log_checksum(path)]
        ]

    def close(self) -> None:
        pass


def evaluated_step(line: str) -> int:
    """The step of a line of eval.csv; ValueError where it is not a whole one."""
    step, *numbers = line.split(",")
    if len([float(n) for n in numbers]) != EVAL_COLUMNS.count(","):
        raise ValueError
    return int(step)


class TensorBoard:
    def __init__(self, directory: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise missing_extra("tensorboard", "--tensorboard") from error
        self.writer = SummaryWriter(str(files.inside(directory, "tensorboard")))

    def write(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    def __init__(self, directory: Path, settings: dict[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("wandb", "--wandb") from error
        files.inside(directory, "wandb")
        self.run = wandb.init(project="maxinforl", dir=str(directory), config=settings, name=directory.name)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


class Window:
    """Means since the last log line, and the returns of the last 100 episodes; arrays only, so that it can be saved."""

    episodes = 100

    def __init__(self):
        self.total, self.count, self.skipped = np.zeros(0), 0, 0.0
        self.returns, self.lengths, self.finished = np.zeros(0), np.zeros(0), 0

    def add(self, metrics: np.ndarray) -> None:
        if self.count == 0 or self.total.shape != metrics.shape:  # other metrics, since a setting changed on resume
            self.total, self.count = np.zeros(metrics.shape), 0
        self.total = self.total + metrics
        self.count += 1

    def episode(self, ret: float, length: int) -> None:
        self.returns = np.append(self.returns, ret)[-self.episodes :]
        self.lengths = np.append(self.lengths, float(length))[-self.episodes :]
        self.finished += 1

    def drain(self, names: list[str]) -> dict[str, float]:
        """Everything a log line says, and a fresh window."""
        line = {"rollout/episodes": float(self.finished)}
        if len(self.returns):
            line |= {
                "rollout/ep_rew_mean": float(self.returns.mean()),
                "rollout/ep_len_mean": float(self.lengths.mean()),
            }
        if self.count:
            line |= self._means(dict(zip(names, map(float, self.total))))
        self.count = 0
        return line

    def _means(self, totals: dict[str, float]) -> dict[str, float]:
        """Means over the updates that were made; where all were skipped there are none."""
        skipped = totals.pop(SKIPPED, None)
        made = self.count - (skipped or 0.0)
        means = {name: total / made for name, total in totals.items()} if made > 0 else {}
        if skipped is not None:
            self.skipped += skipped
            means |= {SKIPPED: skipped / self.count, SKIPPED_TOTAL: self.skipped}
        return means

    def arrays(self) -> dict[str, np.ndarray]:
        numbers = np.array([self.count, self.finished], np.int64)
        skipped = np.array(self.skipped)
        own = {"total": self.total, "returns": self.returns, "lengths": self.lengths}
        return own | {"numbers": numbers, "skipped": skipped}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self.total, self.returns, self.lengths = (arrays[k].copy() for k in ("total", "returns", "lengths"))
        self.count, self.finished = (int(n) for n in arrays["numbers"])
        self.skipped = float(arrays.get("skipped", 0.0))
