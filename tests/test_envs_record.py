"""Recording visited states, and coverage."""

import numpy as np
import pytest

from maxinforl.envs.record import StateRecorder, coverage
from maxinforl.errors import BadInput


def stream(start, stop):
    return np.arange(start, stop, dtype=np.float64)[:, None].repeat(2, 1)


def test_rows_are_bounded_evenly_spread_and_in_order():
    recorder = StateRecorder(limit=100)
    for t in range(0, 1000, 4):
        recorder.add(stream(t, t + 4))
    kept = recorder.states[:, 0]
    assert recorder.states.dtype == np.float32 and len(kept) <= 100 and recorder.seen == 1000
    np.testing.assert_array_equal(kept, np.arange(0, 1000, recorder.stride))
    assert len(kept) > 50


def test_a_loaded_recorder_goes_on_as_if_never_stopped(tmp_path):
    whole, half = StateRecorder(30), StateRecorder(30)
    whole.add(stream(0, 100))
    half.add(stream(0, 100))
    half.save(tmp_path / "states.npz")
    half = StateRecorder.load(tmp_path / "states.npz")
    for t in range(100, 300):
        whole.add(stream(t, t + 1))
        half.add(stream(t, t + 1))
    np.testing.assert_array_equal(whole.states, half.states)


def test_files_hold_no_pickle(tmp_path):
    recorder = StateRecorder()
    recorder.add(stream(0, 3))
    recorder.save(tmp_path / "states.npz")
    with np.load(tmp_path / "states.npz", allow_pickle=False) as file:
        assert file["states"].shape == (3, 2)


def test_images_are_refused():
    with pytest.raises(BadInput, match="images"):
        StateRecorder().add(np.zeros((1, 8, 8, 3), np.uint8))


def test_coverage_counts_cells_once_and_ignores_what_is_outside():
    states = np.array([[0.1, 0.1], [0.2, 0.2], [0.9, 0.9], [1.0, 1.0], [5.0, 0.1]])
    assert coverage(states, [0, 0], [1, 1], bins=2) == 0.5
    assert coverage(states[:0], [0, 0], [1, 1], bins=2) == 0
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 50), np.linspace(0, 1, 50)), -1).reshape(-1, 2)
    assert coverage(grid, [0, 0], [1, 1], bins=10) == 1
