"""Recording visited states, and coverage."""

import zipfile

import numpy as np
import pytest

from maxinforl import files
from maxinforl.envs.record import StateRecorder, coverage
from maxinforl.errors import BadInput


def feed(recorder, start, stop, lanes=1):
    """Steps that end at start + lanes, start + 2 lanes, ... with the number of each transition as its state."""
    for t in range(start, stop, lanes):
        recorder.add(t + lanes, np.arange(t, t + lanes, dtype=np.float64)[:, None].repeat(2, 1))
    return recorder


def test_rows_are_bounded_evenly_spread_and_in_order():
    recorder = feed(StateRecorder(limit=100), 0, 1000, lanes=4)
    kept = recorder.states[:, 0]
    assert recorder.states.dtype == np.float32 and len(kept) <= 100 and recorder.seen == 1000
    np.testing.assert_array_equal(kept, np.arange(0, 1000, recorder.stride))
    np.testing.assert_array_equal(recorder.steps, kept // 4 * 4 + 4)
    assert len(kept) > 50


def test_a_loaded_recorder_goes_on_as_if_never_stopped(tmp_path):
    whole = feed(StateRecorder(30), 0, 300)
    feed(StateRecorder(30), 0, 100).save(tmp_path / "states.npz")
    half = feed(StateRecorder.load(tmp_path / "states.npz"), 100, 300)
    np.testing.assert_array_equal(whole.states, half.states)
    np.testing.assert_array_equal(whole.steps, half.steps)


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path):
    feed(StateRecorder(1000), 0, 100).save(tmp_path / "states.npz")
    again = feed(StateRecorder.load(tmp_path / "states.npz", upto=60), 60, 100)
    np.testing.assert_array_equal(again.states[:, 0], np.arange(100))


def test_a_recorder_that_began_late_keeps_its_rhythm_when_it_is_cut_back(tmp_path):
    whole = feed(StateRecorder(16), 70, 300)
    feed(StateRecorder(16), 70, 139).save(tmp_path / "states.npz")
    again = feed(StateRecorder.load(tmp_path / "states.npz", upto=137), 137, 300)
    np.testing.assert_array_equal(whole.states, again.states)
    assert StateRecorder.load(tmp_path / "states.npz", upto=50).seen == 0


@pytest.mark.slow
def test_states_may_be_large_but_not_larger_than_their_file(tmp_path):
    path = tmp_path / "states.npz"
    recorder = feed(StateRecorder(), 0, 3)
    recorder._rows = np.zeros((3, 12 * 2**20), np.float32)  # 144 MiB
    recorder.save(path)
    assert StateRecorder.load(path).states.shape == (3, 12 * 2**20)
    np.savez_compressed(path, step=np.arange(3), obs=np.zeros((3, 10**6), np.float32), counts=np.array([9, 1, 3, 0]))
    with pytest.raises(BadInput, match="claims"):
        StateRecorder.load(path)


def test_files_hold_no_pickle(tmp_path):
    feed(StateRecorder(), 0, 3).save(tmp_path / "states.npz")
    with np.load(tmp_path / "states.npz", allow_pickle=False) as file:
        assert file["obs"].shape == (3, 2) and file["step"].tolist() == [1, 2, 3]


def test_a_file_that_claims_what_it_has_not_is_refused(tmp_path):
    """A negative axis would read on to the end of a compression bomb."""
    for shape, words in (("(-1,)", "plain array"), ("(99999999999,)", "claims"), ("(2,)", "does not hold")):
        head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
        member = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head + b"\n" + bytes(16)
        with zipfile.ZipFile(tmp_path / "states.npz", "w") as archive:
            for name in ("step.npy", "obs.npy", "counts.npy"):
                archive.writestr(name, member)
        with pytest.raises(BadInput, match=words):
            StateRecorder.load(tmp_path / "states.npz")
    with pytest.raises(BadInput, match="too large"):
        files.read_npz(tmp_path / "states.npz", ["step"], limit=100)


def test_images_are_refused():
    with pytest.raises(BadInput, match="images"):
        StateRecorder().add(1, np.zeros((1, 8, 8, 3), np.uint8))


def test_coverage_counts_cells_once_and_ignores_what_is_outside():
    states = np.array([[0.1, 0.1], [0.2, 0.2], [0.9, 0.9], [1.0, 1.0], [5.0, 0.1]])
    assert coverage(states, [0, 0], [1, 1], bins=2) == 0.5
    assert coverage(states[:0], [0, 0], [1, 1], bins=2) == 0
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 50), np.linspace(0, 1, 50)), -1).reshape(-1, 2)
    assert coverage(grid, [0, 0], [1, 1], bins=10) == 1
