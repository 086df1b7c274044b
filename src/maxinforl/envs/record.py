"""The states that a run visited, for phase plots and coverage."""

import io
from pathlib import Path

import numpy as np

from maxinforl import files
from maxinforl.errors import BadInput

LIMIT = 100_000  # rows kept at most


class StateRecorder:
    """Keeps every stride-th observation; the stride doubles, and every second one is dropped, at `limit` rows."""

    def __init__(self, limit: int = LIMIT):
        self.limit, self.stride, self.seen = limit, 1, 0
        self.began: int | None = None  # transitions before the first that was seen
        self._steps, self._rows, self._count = np.zeros(0, np.int64), np.zeros((0, 0), np.float32), 0

    def add(self, step: int, obs: np.ndarray) -> None:
        """Takes the (N, d) observations that `step` transitions led to."""
        if obs.ndim != 2 or obs.dtype == np.uint8:
            raise BadInput("states can be recorded only where observations are vectors, not images")
        self.began = step - len(obs) if self.began is None else self.began
        kept = obs[-self.seen % self.stride :: self.stride]
        self.seen += len(obs)
        self._make_room(len(kept), obs.shape[1])
        end = self._count + len(kept)
        self._steps[self._count : end], self._rows[self._count : end] = step, kept
        self._count = end
        if end > self.limit:
            self._keep(self.steps[::2], self.states[::2])
            self.stride *= 2

    def _make_room(self, more: int, width: int) -> None:
        """Twice the room where it is used up, so that adding takes constant time."""
        if self._count + more > len(self._steps):
            steps, rows, room = self.steps, self.states, 2 * (self._count + more)
            self._steps, self._rows = np.zeros(room, np.int64), np.zeros((room, width), np.float32)
            self._steps[: len(steps)], self._rows[: len(rows)] = steps, rows.reshape(len(rows), width)

    def _keep(self, steps: np.ndarray, rows: np.ndarray) -> None:
        self._steps, self._rows, self._count = steps.copy(), rows.copy(), len(steps)

    @property
    def steps(self) -> np.ndarray:
        return self._steps[: self._count]

    @property
    def states(self) -> np.ndarray:
        """The kept observations in the order they were met, (rows, d) float32."""
        return self._rows[: self._count]

    def save(self, path: str | Path) -> None:
        """Writes an .npz of plain arrays, atomically: step, obs, and the counts to continue from.

        All of it, but never more than `limit` rows, and not compressed: that would take ten times as long.
        """
        buffer = io.BytesIO()
        counts = np.array([self.limit, self.stride, self.seen, self.began or 0])
        np.savez(buffer, step=self.steps, obs=self.states, counts=counts)
        files.write_atomic(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path, upto: int | None = None) -> "StateRecorder":
        """Continues from a saved file as if never stopped, cut back to `upto` transitions."""
        steps, rows, counts = files.read_npz(path, ("step", "obs", "counts"))
        kinds = steps.dtype.kind == counts.dtype.kind == "i" and rows.dtype == np.float32
        shapes = rows.ndim == 2 and steps.shape == rows.shape[:1] and counts.shape in ((3,), (4,))
        if not (kinds and shapes and counts[:3].min() > 0 and counts.min() >= 0):
            raise BadInput(f"{files.printable(path)} does not hold a run's states: restore it from a copy or remove it")
        recorder = cls(int(counts[0]))
        recorder.stride, recorder.seen = int(counts[1]), int(counts[2])
        recorder.began = int(counts[3]) if len(counts) > 3 else 0  # older files hold runs from step 0
        keep = slice(None) if upto is None else steps <= upto
        recorder._keep(steps[keep], rows[keep])
        recorder.seen = min(recorder.seen, max(0, upto - recorder.began)) if upto is not None else recorder.seen
        return recorder


def coverage(states: np.ndarray, low: np.ndarray, high: np.ndarray, bins: int) -> float:
    """The share of the bins^d equal cells of the box [low, high] that some state lies in; others do not count."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    inside = states[((states >= low) & (states <= high)).all(axis=1)]
    cell = np.minimum(((inside - low) / (high - low) * bins).astype(int), bins - 1)
    return len(np.unique(cell, axis=0)) / bins ** len(low)
