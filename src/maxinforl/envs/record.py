"""Which states a run visited, for phase plots and coverage."""

import io
from pathlib import Path

import numpy as np

from maxinforl import files
from maxinforl.errors import BadInput


class StateRecorder:
    """Keeps every stride-th observation; the stride doubles, and every second one is dropped, at `limit` rows."""

    def __init__(self, limit: int = 100_000):
        self.limit, self.stride, self.seen = limit, 1, 0
        self._steps: list[int] = []
        self._rows: list[np.ndarray] = []

    def add(self, step: int, obs: np.ndarray) -> None:
        """Takes the (N, d) observations that `step` transitions led to."""
        if obs.ndim != 2:
            raise BadInput("states can be recorded only where observations are vectors, not images")
        for row in obs:
            if self.seen % self.stride == 0:
                self._steps.append(step)
                self._rows.append(np.array(row, np.float32))
            self.seen += 1
        if len(self._rows) > self.limit:
            self._steps, self._rows = self._steps[::2], self._rows[::2]
            self.stride *= 2

    @property
    def steps(self) -> np.ndarray:
        return np.array(self._steps, np.int64)

    @property
    def states(self) -> np.ndarray:
        """The kept observations in the order they were met, (rows, d) float32."""
        return np.array(self._rows, np.float32)

    def save(self, path: str | Path) -> None:
        """Writes an .npz of plain arrays, atomically: step, obs, and the counts to continue from."""
        buffer = io.BytesIO()
        counts = np.array([self.limit, self.stride, self.seen])
        np.savez_compressed(buffer, step=self.steps, obs=self.states, counts=counts)
        files.write_atomic(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path, upto: int | None = None) -> "StateRecorder":
        """Continues from a saved file as if never stopped, cut back to `upto` transitions."""
        with np.load(path, allow_pickle=False) as file:
            recorder = cls(int(file["counts"][0]))
            recorder.stride, recorder.seen = (int(count) for count in file["counts"][1:])
            keep = np.ones(len(file["step"]), bool) if upto is None else file["step"] <= upto
            recorder._steps, recorder._rows = file["step"][keep].tolist(), list(file["obs"][keep])
        recorder.seen = min(recorder.seen, upto) if upto is not None else recorder.seen
        return recorder


def coverage(states: np.ndarray, low: np.ndarray, high: np.ndarray, bins: int) -> float:
    """The share of the bins^d equal cells of the box [low, high] that some state lies in; others do not count."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    inside = states[((states >= low) & (states <= high)).all(axis=1)]
    cell = np.minimum(((inside - low) / (high - low) * bins).astype(int), bins - 1)
    return len(np.unique(cell, axis=0)) / bins ** len(low)
