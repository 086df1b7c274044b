"""Checkpoints: what is loaded is what was saved, whatever happened to the process, the disk or the files between."""

import errno
import itertools
import os
import random
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxinforl import files
from maxinforl.errors import BadInput, RunFailed
from maxinforl.training import lock, store
from maxinforl.training.lock import RunLock
from maxinforl.training.store import CheckpointStore, Lane, NewerFormat, Rows


class Ring:
    """A replay by hand: per lane a ring of rows; the head's row is provisional until the head has passed it."""

    def __init__(self, lanes: int, capacity: int, seed: int = 0):
        self.capacity, self.heads, self.random = capacity, [0] * lanes, np.random.default_rng(seed)
        self.columns = {
            "obs": np.zeros((lanes, capacity, 2), np.float32),
            "end": np.zeros((lanes, capacity), np.uint8),
            "age": np.zeros((lanes, capacity), np.int32),
        }
        self.write()

    def write(self) -> None:
        for lane, head in enumerate(self.heads):
            for column in self.columns.values():
                column[lane, head % self.capacity] = self.random.integers(1, 200, column.shape[2:])

    def add(self, moves: list[int]) -> None:
        """Move each lane's head by 0, 1 or 2 rows and rewrite what lies between."""
        for _ in range(max(moves, default=0)):
            self.write()
            self.heads = [head + (move > 0) for head, move in zip(self.heads, moves, strict=True)]
            moves = [move - 1 for move in moves]
        self.write()

    def rows(self, since: list[int]) -> Rows:
        firsts = [max(0, first, head - self.capacity + 1) for first, head in zip(since, self.heads, strict=True)]
        return Rows(self.capacity, [self.lane(e, first) for e, first in enumerate(firsts)])

    def lane(self, e: int, first: int) -> Lane:
        at = np.arange(first, self.heads[e] + 1) % self.capacity
        return Lane(first, {name: column[e, at] for name, column in self.columns.items()})

    def whole(self) -> Rows:
        return self.rows([0] * len(self.heads))


def same(a: Rows | None, b: Rows) -> bool:
    assert a is not None
    lanes = zip(a.lanes, b.lanes, strict=True)
    return a.capacity == b.capacity and all(
        p.first == q.first
        and p.columns.keys() == q.columns.keys()
        and all(
            p.columns[n].dtype == q.columns[n].dtype and np.array_equal(p.columns[n], q.columns[n]) for n in p.columns
        )
        for p, q in lanes
    )


def save(checkpoints: CheckpointStore, step: int, ring: Ring, **meta: object) -> None:
    state = {"weight": np.full((3, 2), step, np.float32), "step": np.array(step)}
    checkpoints.save(step, state, ring.rows(checkpoints.saved_upto(len(ring.heads))), {"at": step, **meta})


def history(directory: Path, saves: int, capacity: int = 20, keep: int = 2, lanes: int = 2) -> dict[int, Rows]:
    """Checkpoints every 10 steps, and what the replay was at each."""
    ring, was = Ring(lanes, capacity), {}
    with CheckpointStore(directory, keep) as checkpoints:
        for step in range(10, 10 * saves + 1, 10):
            ring.add([5] * lanes)
            save(checkpoints, step, ring)
            was[step] = ring.whole()
    return was


def sentence(text: str) -> str:
    assert text and "\n" not in text and len(text) < 900, text
    return text


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


class Failing:
    """A call that fails the `at`-th time it is made, or every time."""

    def __init__(self, code: int, real: Callable | None = None, at: int = 1):
        self.code, self.real, self.at, self.made = code, real, at, 0

    def __call__(self, *args, **kwargs):
        self.made += 1
        if self.real is None or self.made == self.at:
            raise OSError(self.code, os.strerror(self.code))
        return self.real(*args, **kwargs)


@pytest.fixture
def unsynced(monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


# --- what comes back ---------------------------------------------------------------------------------------------

MOVES = st.lists(st.integers(0, 2), min_size=3, max_size=3)
ACTS = st.lists(st.one_of(st.lists(MOVES, max_size=25), st.sampled_from(["save", "save", "resume"])), max_size=14)


@settings(deadline=None, max_examples=120, database=None)
@given(acts=ACTS, capacity=st.integers(2, 30), lanes=st.integers(1, 3), keep=st.integers(1, 3), seed=st.integers(0, 9))
def test_the_replay_comes_back_whatever_was_added_saved_and_resumed(acts, capacity, lanes, keep, seed):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        ring, step, was = Ring(lanes, capacity, seed), 0, {}
        checkpoints = CheckpointStore(place, keep)
        for act in [*acts, "save"]:
            if act == "save":
                step += 1
                save(checkpoints, step, ring)
                was[step] = ring.whole()
            elif act == "resume" and was:
                checkpoints.close()
                checkpoints = CheckpointStore(place, keep)
                assert same(checkpoints.load().rows, was[step])
            elif isinstance(act, list):
                for moves in act:
                    ring.add(moves[:lanes])
        checkpoints.close()
        assert checkpoints.steps() == sorted(was)[-keep:]
        for kept in checkpoints.steps():
            found = CheckpointStore(place).load(kept)
            assert same(found.rows, was[kept]) and found.state["weight"][0, 0] == kept and found.meta == {"at": kept}
            assert not found.warnings and not found.drift


def test_a_run_without_replay_has_checkpoints_too(tmp_path):
    with CheckpointStore(tmp_path, keep=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"a": np.arange(step)}, None, {})
    found = CheckpointStore(tmp_path).load()
    assert found.step == 2 and found.rows is None and found.state["a"].tolist() == [0, 1]
    assert names(tmp_path) == {"step-000000002/manifest.json", "step-000000002/state.safetensors"}


def test_only_what_the_kept_checkpoints_need_stays(tmp_path, unsynced):
    history(tmp_path, saves=12, capacity=20, keep=2)  # 5 rows a save: the last 20 rows span 4 segments
    segments = {f"replay/segment-{step:09d}.safetensors" for step in (80, 90, 100, 110, 120)}
    folders = {f"step-{step:09d}/{name}" for step in (110, 120) for name in ("manifest.json", "state.safetensors")}
    assert names(tmp_path) == segments | folders
    assert {path.name for path in tmp_path.iterdir()} == {"replay", "step-000000110", "step-000000120"}


def test_the_kill_benchmark_knows_every_stage_of_a_write(tmp_path, monkeypatch, unsynced):
    path = Path(__file__).parent.parent / "benchmarks/kills.py"
    kills, met = runpy.run_path(str(path)), set()
    monkeypatch.setattr(
        files.atomic, "crash_point", lambda name: met.add(re.sub(r"segment-\d+\.safetensors", "segment", name))
    )
    history(tmp_path, saves=6)
    assert met - {"old segment removed"} == set(kills["STAGES"])  # that one only once the replay is full
    inside = [kills["stage_of"](number, len(kills["KINDS"])) for number in range(100)]
    assert set(inside) == {None, kills["BEFORE"], *kills["STAGES"]} and inside.count(kills["BEFORE"]) >= 40


def test_a_ring_that_turned_over_since_the_last_save_stands_alone(tmp_path):
    ring = Ring(1, 8)
    with CheckpointStore(tmp_path, keep=1) as checkpoints:
        ring.add([3])
        save(checkpoints, 1, ring)
        ring.add([100])
        save(checkpoints, 2, ring)
    assert same(CheckpointStore(tmp_path).load().rows, ring.whole())
    assert len(list((tmp_path / "replay").iterdir())) == 1


def test_what_was_left_behind_makes_room_before_anything_is_written(tmp_path, monkeypatch):
    was = history(tmp_path, 3)
    left = [tmp_path / files.atomic.temporary_name(), tmp_path / "replay" / files.atomic.temporary_name()]
    left += [tmp_path / "replay/segment-000000035.safetensors"]
    for path in left:
        path.write_bytes(b"x")
    seen: list[bool] = []
    monkeypatch.setattr(files.atomic, "crash_point", lambda name: seen.append(any(path.exists() for path in left)))
    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.load()
        assert all(path.exists() for path in left)  # who only reads removes nothing
        checkpoints.save(40, {}, was[30], {})
    assert seen and not any(seen)


def test_the_cost_of_a_checkpoint_does_not_grow_with_the_replay(tmp_path, unsynced):
    """The 10th checkpoint of 1000 rows each and the 200th write the same number of bytes, but for some digits."""
    costs = []
    with CheckpointStore(tmp_path, keep=2) as checkpoints:
        for step in range(1000, 200_001, 1000):
            [first] = checkpoints.saved_upto(1)
            lane = Lane(first, {"obs": np.zeros((step - first + 1, 2), np.float32)})
            checkpoints.save(step, {"weight": np.zeros(100)}, Rows(10**6, [lane]), {})
            written = [path for path in tmp_path.rglob(f"*{step:09d}*") if path.is_file()]
            costs.append(sum(path.stat().st_size for path in [*written, *tmp_path.glob(f"step-{step:09d}/*")]))
    assert len(list((tmp_path / "replay").iterdir())) == 200
    assert max(costs[9:]) - min(costs[9:]) <= 16, costs


def test_rows_that_do_not_follow_are_refused(tmp_path):
    column = lambda length: {"obs": np.zeros((length, 2), np.float32)}
    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.save(1, {}, Rows(10, [Lane(0, column(5))]), {})
        for rows in [
            Rows(10, [Lane(5, column(3))]),  # the head's row, 4, is missing
            Rows(10, [Lane(0, column(4))]),  # ends before the head
            Rows(10, [Lane(4, column(11))]),  # more than the ring holds
            Rows(10, [Lane(-1, column(9))]),
            Rows(10, [Lane(4, column(3)), Lane(4, column(3))]),
            Rows(10, [Lane(4, {"obs": np.zeros((3, 3), np.float32)})]),
            Rows(10, [Lane(4, {"obs": np.zeros((3, 2))})]),
            Rows(10, [Lane(4, {"other": np.zeros((3, 2), np.float32)})]),
        ]:
            with pytest.raises(BadInput) as error:
                checkpoints.save(2, {}, rows, {})
            sentence(str(error.value))
        checkpoints.save(2, {}, Rows(10, [Lane(20, column(10))]), {})  # turned over
        assert checkpoints.saved_upto(1) == [29]


def test_columns_of_unequal_length_are_refused(tmp_path):
    with CheckpointStore(tmp_path) as checkpoints, pytest.raises(BadInput):
        checkpoints.save(1, {}, Rows(10, [Lane(0, {"a": np.zeros(3), "b": np.zeros(4)})]), {})


def test_steps_only_grow_and_a_step_is_saved_once(tmp_path):
    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.save(5, {"a": np.array(1)}, None, {})
        checkpoints.save(5, {"a": np.array(2)}, None, {})
        assert checkpoints.load(5).state["a"] == 1
        with pytest.raises(BadInput, match="cannot follow the one at step 5"):
            checkpoints.save(4, {}, None, {})
    with pytest.raises(BadInput, match="keep is 0"):
        CheckpointStore(tmp_path, keep=0)


def test_a_new_run_does_not_write_over_an_old_one(tmp_path):
    history(tmp_path, 2)
    with CheckpointStore(tmp_path) as checkpoints, pytest.raises(BadInput, match="up to step 20: resume"):
        checkpoints.save(30, {}, None, {})


def test_going_back_gives_up_what_came_after(tmp_path, unsynced):
    was = history(tmp_path, 4, capacity=100, keep=4)
    with CheckpointStore(tmp_path, keep=4) as checkpoints:
        found = checkpoints.load(20)
        assert same(found.rows, was[20]) and checkpoints.steps() == [10, 20, 30, 40]  # loading removes nothing
        checkpoints.save(30, {"new": np.array(1)}, was[20], {})
        assert checkpoints.steps() == [10, 20, 30]
    assert "new" in CheckpointStore(tmp_path).load().state
    assert len(list((tmp_path / "replay").iterdir())) == 3
    assert same(CheckpointStore(tmp_path).load(20).rows, was[20])


def test_wishes_that_cannot_be_met_say_what_there_is(tmp_path):
    with pytest.raises(BadInput, match="holds no checkpoint: it has none"):
        CheckpointStore(tmp_path / "absent").load()
    history(tmp_path, 3)
    with pytest.raises(BadInput, match="no checkpoint at step 10: it has 20, 30"):
        CheckpointStore(tmp_path).load(10)


# --- damage ------------------------------------------------------------------------------------------------------

NEWEST = ["step-000000030/manifest.json", "step-000000030/state.safetensors", "replay/segment-000000030.safetensors"]


def falls_back(directory: Path, name: str, was: dict[int, Rows]) -> None:
    found = CheckpointStore(directory).load()
    assert found.step == 20 and same(found.rows, was[20])
    [warning] = found.warnings
    assert Path(name).name in sentence(warning) and warning.endswith("going back to step 20")


@pytest.mark.parametrize("name", NEWEST)
@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_one_flipped_bit_or_cut_costs_one_checkpoint(tmp_path, name, every, unsynced):
    was = history(tmp_path, 3)
    path, chance = tmp_path / name, random.Random(name)
    whole = path.read_bytes()
    for place in range(0, len(whole), every):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
        falls_back(tmp_path, name, was)
    for size in range(0, len(whole), 7 * every):
        path.write_bytes(whole[:size])
        falls_back(tmp_path, name, was)


@pytest.mark.parametrize("name", NEWEST)
def test_missing_foreign_and_linked_files_cost_one_checkpoint(tmp_path, name, unsynced):
    was = history(tmp_path / "run", 3)
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    path.unlink()
    falls_back(tmp_path / "run", name, was)
    (tmp_path / "elsewhere").write_bytes(whole)
    path.symlink_to(tmp_path / "elsewhere")
    falls_back(tmp_path / "run", name, was)
    path.unlink()
    path.write_bytes(b"something else altogether")
    falls_back(tmp_path / "run", name, was)
    path.unlink()
    path.mkdir()
    falls_back(tmp_path / "run", name, was)


@pytest.mark.parametrize("name", NEWEST)
def test_good_files_in_the_wrong_place_cost_one_checkpoint(tmp_path, name, unsynced):
    was = history(tmp_path, 3)
    shutil.copy(tmp_path / name.replace("30", "20"), tmp_path / name)
    falls_back(tmp_path, name, was)


FORGERIES: dict[
    str, Callable[[dict, dict, dict], object]
] = {  # of a segment's arrays and meta, and the manifest's replay
    "claims more rows than there are": lambda a, m, r: r.update(heads=[10**9, 10**9], capacity=10**8),
    "rows after it are missing": lambda a, m, r: r.update(heads=[16, 15]),
    "rows before it are missing": lambda a, m, r: m.update(previous=None),
    "follows a later segment": lambda a, m, r: m["previous"].update(step=30),
    "does not say which file": lambda a, m, r: m["previous"].update(checksum=None),
    "impossible numbers": lambda a, m, r: a.update(first=-a["first"]),
    "lanes have impossible numbers": lambda a, m, r: a.update(length=a["length"].astype(np.int32)),
    "its replay has impossible numbers": lambda a, m, r: r.update(heads=[10**15, 0]),
    "does not describe its replay": lambda a, m, r: r.update(heads=[]),
    "columns differ in length": lambda a, m, r: a.update({"row/end": a["row/end"][1:]}),
    "of another replay": lambda a, m, r: a.update({"row/new": a.pop("row/end")}),
    "is of another replay": lambda a, m, r: r.update(heads=[15, 15, 15]),
}


@pytest.mark.parametrize("words", FORGERIES)
def test_forged_segments_are_refused_whatever_their_checksums(tmp_path, words):
    was = history(tmp_path, 3)
    manifest, segment = tmp_path / NEWEST[0], tmp_path / NEWEST[2]
    content, (arrays, meta) = files.read_sealed_json(manifest), files.load_arrays(segment)
    FORGERIES[words](arrays, meta, content["replay"])
    checksum = files.save_arrays(segment, arrays, meta)
    content["replay"]["newest"].update(checksum=checksum, bytes=segment.stat().st_size)
    files.write_sealed_json(manifest, content)
    tracemalloc.start()
    found = CheckpointStore(tmp_path).load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.step == 20 and same(found.rows, was[20]) and words in found.warnings[0] and peak < files.MiB


def test_a_run_goes_on_from_the_checkpoint_before_the_damage(tmp_path):
    was = history(tmp_path, 3)
    (tmp_path / NEWEST[1]).write_bytes(b"")
    with CheckpointStore(tmp_path, keep=2) as checkpoints:
        checkpoints.load()
        checkpoints.save(30, {"again": np.array(1)}, was[20], {})
        assert checkpoints.steps() == [20, 30]
    found = CheckpointStore(tmp_path).load()
    assert "again" in found.state and same(found.rows, was[20]) and not found.warnings


def test_when_nothing_is_good_the_newest_problem_is_named(tmp_path):
    history(tmp_path, 3)
    shared = tmp_path / "replay" / "segment-000000010.safetensors"
    shared.write_bytes(shared.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"no checkpoint can be loaded: .*segment-000000010.safetensors is cut short"):
        CheckpointStore(tmp_path).load()
    assert CheckpointStore(tmp_path).load(rows=False).step == 30  # the agent itself is not lost


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_older_segment_costs_its_rows_and_those_before(tmp_path, how, unsynced):
    ring = Ring(2, 100)
    with CheckpointStore(tmp_path, keep=2) as checkpoints:
        for step in (10, 20, 30, 40):
            ring.add([5, 5])
            save(checkpoints, step, ring)
    path = tmp_path / "replay" / "segment-000000020.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff") if how == "flipped" else path.unlink()
    with pytest.raises(BadInput, match="no checkpoint can be loaded"):
        CheckpointStore(tmp_path).load()
    with CheckpointStore(tmp_path, keep=2) as checkpoints:
        found = checkpoints.load(lossy=True)
        [warning] = found.warnings
        assert found.step == 40 and "segment-000000020" in sentence(warning)
        assert "without the 20 oldest rows of its replay" in warning and "no longer bit-identical" in warning
        check_end(found.rows, ring.whole(), 10)
        for step in (50, 60):
            ring.add([5, 5])
            save(checkpoints, step, ring)
    again = CheckpointStore(tmp_path).load(lossy=True)
    assert again.step == 60 and len(again.warnings) == 1 and not path.exists()
    check_end(again.rows, ring.whole(), 10)


def check_end(found: Rows | None, whole: Rows, first: int) -> None:
    """The rows from `first` on, and no others."""
    assert found is not None
    for lane, was in zip(found.lanes, whole.lanes, strict=True):
        assert lane.first == first and lane.head == was.head
        assert all(np.array_equal(column, was.columns[name][first:]) for name, column in lane.columns.items())


def test_later_formats_are_not_taken_for_damage(tmp_path):
    history(tmp_path, 3)
    path = tmp_path / "step-000000030" / "manifest.json"
    files.write_sealed_json(path, {**files.read_sealed_json(path), "format": 2})
    with pytest.raises(NewerFormat, match="has format 2 and this maxinforl reads 1: upgrade"):
        CheckpointStore(tmp_path).load()


def test_another_machine_is_mentioned(tmp_path, monkeypatch):
    history(tmp_path, 1)
    monkeypatch.setattr(
        store, "platform_info", lambda: {**files.read_sealed_json(manifest)["platform"], "XLA threads": 99}
    )
    manifest = tmp_path / "step-000000010" / "manifest.json"
    [warning] = CheckpointStore(tmp_path).load().drift
    assert "and resumed with 99" in sentence(warning)


@pytest.mark.parametrize(
    "name", ["step-0000000030", "step-30", "step-٠٠٠٠٠٠٠٤٠", "step-9999999999999999", "step-000000040x"]
)
def test_names_that_are_almost_those_of_checkpoints_are_left_alone(tmp_path, name):
    was = history(tmp_path, 3)
    (tmp_path / name).mkdir()
    with CheckpointStore(tmp_path) as checkpoints:
        assert checkpoints.load().step == 30
        checkpoints.save(50, {}, was[30], {})
        assert checkpoints.steps() == [20, 30, 50] and (tmp_path / name).exists()


def test_a_planted_link_is_not_written_through(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / "replay").symlink_to(tmp_path / "outside")
    with CheckpointStore(tmp_path / "run") as checkpoints, pytest.raises(BadInput, match="symbolic link"):
        save(checkpoints, 1, Ring(1, 5))
    assert not list((tmp_path / "outside").iterdir())


def test_links_in_the_way_of_a_checkpoint_are_removed_and_not_followed(tmp_path):
    was = history(tmp_path / "run", 2)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    for name in ["step-000000030", "step-000000040", ".tmp-left"]:
        (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    with CheckpointStore(tmp_path / "run") as checkpoints:
        assert checkpoints.load().step == 20
        checkpoints.save(30, {}, was[20], {})
        assert checkpoints.steps() == [10, 20, 30]
    assert (tmp_path / "outside" / "precious").exists() and len(list((tmp_path / "outside").iterdir())) == 1


def test_description(tmp_path):
    assert store.describe(tmp_path / "absent") == {"checkpoints": "none"}
    history(tmp_path, 3)
    facts = store.describe(tmp_path)
    assert facts["checkpoints"] == "step 20, step 30" and facts["replay"] == "32 rows of 2 x 20, 0.0 MiB"
    (tmp_path / "replay" / "dangling").symlink_to("nowhere")
    (tmp_path / NEWEST[1]).write_bytes(b"")
    assert "going back to step 20" in store.describe(tmp_path)["note 1"]
    (tmp_path / "step-000000020" / "manifest.json").unlink()
    assert "no checkpoint can be loaded" in store.describe(tmp_path)["problem"]


# --- the writer's thread -----------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """The writer stops at its first step until this is set."""
    event = threading.Event()
    monkeypatch.setattr(files.atomic, "crash_point", lambda name: event.wait(60) or None)
    return event


def test_writing_goes_on_beside_training_one_at_a_time(tmp_path, held):
    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.save_async(1, {"a": np.array(1)}, None, {})
        assert checkpoints.steps() == []
        began = time.monotonic()
        threading.Timer(1.0, held.set).start()
        checkpoints.save_async(2, {"a": np.array(2)}, None, {})
        assert time.monotonic() - began > 0.1 and checkpoints.steps()[:1] == [1]
        checkpoints.wait()
        assert checkpoints.load().step == 2


def test_rows_are_not_counted_as_saved_before_they_are(tmp_path, monkeypatch):
    ring = Ring(1, 50)
    with CheckpointStore(tmp_path) as checkpoints:
        ring.add([5])
        save(checkpoints, 1, ring)
        ring.add([5])
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", Failing(errno.EIO))
            with pytest.raises(RunFailed, match="the checkpoint at step 1 is kept"):
                save(checkpoints, 2, ring)
        assert checkpoints.saved_upto(1) == [5] and checkpoints.steps() == [1]
        ring.add([5])
        save(checkpoints, 3, ring)  # and once the disk is well again, nothing is missing
    assert same(CheckpointStore(tmp_path).load().rows, ring.whole())


def test_interrupting_the_wait_does_not_lose_the_checkpoint(tmp_path, held, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.save_async(1, {}, None, {})
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints._pending, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                checkpoints.wait()
        assert checkpoints.steps() == []
        held.set()
        checkpoints.wait()
        assert checkpoints.steps() == [1]


# --- disks that fail ---------------------------------------------------------------------------------------------


@contextmanager
def mounted(place: Path, options: str) -> Iterator[bool]:
    """A small file system of its own at `place`, where the system allows it."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", place], check=True)


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def no_room(checkpoints: CheckpointStore, words: str) -> None:
    with pytest.raises(RunFailed, match=words) as error:
        checkpoints.save(20, {"big": np.zeros(600_000, np.uint8)}, None, {})
    assert sentence(str(error.value)).endswith("the checkpoint at step 10 is kept")
    assert CheckpointStore(checkpoints.directory).load().step == 10
    assert not list(checkpoints.directory.glob(".tmp-*"))  # the half-written file does not keep the disk full
    checkpoints.save(30, {"small": np.zeros(10)}, None, {})
    assert checkpoints.load().step == 30


def test_a_full_disk_costs_one_checkpoint(tmp_path, unsynced):
    with mounted(tmp_path / "disk", "size=500k") as real, CheckpointStore(tmp_path / "disk") as checkpoints:
        checkpoints.save(10, {"small": np.zeros(10)}, None, {})
        if real:
            no_room(checkpoints, "the disk is full")
        else:
            with small_files(500_000):
                no_room(checkpoints, "size allowed")


def test_a_file_size_limit_costs_one_checkpoint(tmp_path):
    with CheckpointStore(tmp_path) as checkpoints:
        checkpoints.save(10, {"small": np.zeros(10)}, None, {})
        with small_files(500_000):
            no_room(checkpoints, "size allowed")


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, *(pytest.param(code, marks=pytest.mark.slow) for code in (errno.EIO, errno.EROFS))]
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "mkdir", "unlink"])
def test_a_failure_anywhere_in_a_checkpoint_costs_one_checkpoint(tmp_path, monkeypatch, unsynced, call, code):
    """Fail at the first such call, then at the second, and so on until there are no more."""
    for moment in itertools.count(1):
        place, failed = tmp_path / str(moment), ""
        was = history(place, 3, capacity=10, keep=2)
        fail = Failing(code, getattr(os, call), moment)
        with CheckpointStore(place, keep=2) as checkpoints:
            checkpoints.load()
            with monkeypatch.context() as patch:
                patch.setattr(os, call, fail)
                try:
                    checkpoints.save(40, {"new": np.array(1)}, was[30], {})
                except RunFailed as error:
                    failed = sentence(str(error))
            found = CheckpointStore(place).load()
            assert found.step in (30, 40) and same(found.rows, was[30]) and not found.warnings
            assert " is kept" in failed or (not failed and found.step == 40)
            checkpoints.save(50, {"newer": np.array(1)}, was[30], {})
        assert same(CheckpointStore(place).load().rows, was[30]) and not list(place.rglob(".tmp-*"))
        if fail.made < moment:
            assert moment > 1 and not failed
            return


def test_a_read_only_directory_is_named(tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "size=500k") as real:
        history(tmp_path / "disk", 2)
        if real:
            subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        elif os.geteuid() > 0:
            for folder in [tmp_path / "disk", tmp_path / "disk" / "replay"]:
                folder.chmod(0o555)
        else:
            monkeypatch.setattr(os, "mkdir", Failing(errno.EROFS))
        with CheckpointStore(tmp_path / "disk") as checkpoints:
            assert checkpoints.load().step == 20
            with pytest.raises(RunFailed, match=r"(read-only|permission denied).*; the checkpoint at step 20 is kept"):
                checkpoints.save(30, {}, None, {})
        for folder in [tmp_path / "disk", tmp_path / "disk" / "replay"]:
            if not real:
                folder.chmod(0o755)


# --- killed ------------------------------------------------------------------------------------------------------

DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_store import CheckpointStore, Ring, history, save
from maxinforl import files

os.fsync = lambda file: None  # a killed process does not take the system's memory with it

def killed(place, moment):
    seen = 0
    def stage(name):
        nonlocal seen
        seen += 1
        if seen == moment:
            print(moment, name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    with CheckpointStore(place, 2) as checkpoints:
        rows = checkpoints.load().rows
        files.atomic.crash_point = stage
        checkpoints.save(40, {"new": rows.lanes[0].columns["age"]}, rows, {})

for moment in range(1, 100):
    place = Path(sys.argv[2]) / str(moment)
    history(place, 3, 20, 2)
    child = os.fork()
    if child == 0:
        killed(place, moment)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_a_process_killed_anywhere_in_a_checkpoint_leaves_the_one_before(tmp_path, unsynced):
    run = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    moments = done.stdout.split("\n")[:-1]
    assert done.returncode == 0 and len(moments) >= 12, done
    for word in ["segment", "state", "manifest", "renamed", "unnamed", "removed"]:
        assert any(word in moment for moment in moments), moments
    was, steps = history(tmp_path / "reference", 3), set()
    for moment in moments:
        place = tmp_path / moment.split()[0]
        with CheckpointStore(place, keep=2) as checkpoints:
            found = checkpoints.load()
            steps.add(found.step)
            assert found.step in (30, 40) and same(found.rows, was[30]) and not found.warnings, moment
            checkpoints.save(50, {}, was[30], {})
            assert checkpoints.steps() == [found.step, 50]
        assert not list(place.rglob(".tmp-*")), moment
        needed = {"segment-000000010", "segment-000000020", "segment-000000030", "segment-000000050"}
        needed |= {"segment-000000040"} if found.step == 40 else set()
        assert {path.stem for path in (place / "replay").iterdir()} == needed, moment
    assert steps == {30, 40}


# --- the lock ----------------------------------------------------------------------------------------------------

HOLDER = """
import os, sys, time
from maxinforl.training.lock import RunLock
with RunLock(sys.argv[1]):
    child = os.fork() if sys.argv[2] == "fork" else 0
    if child == 0:
        print("held", flush=True)
    time.sleep(300)
"""


@contextmanager
def holding(directory: Path, how: str = "alone") -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory, how], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout and process.stdout.readline() == b"held\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the group was made for this process and its child
        process.wait()


def written(directory: Path, **changes: object) -> None:
    me = {"pid": os.getpid(), "host": lock.socket.gethostname(), "born": lock._born(os.getpid()), "since": "now"}
    files.write_json(directory / "lock.json", {**me, **changes})


def test_the_second_process_is_told_who_holds_the_run(tmp_path):
    with holding(tmp_path) as first:
        with pytest.raises(BadInput) as error, RunLock(tmp_path):
            pass
        assert f"pid {first.pid} on host {lock.socket.gethostname()}" in sentence(str(error.value))
    with RunLock(tmp_path):  # killed: taken over
        pass


def test_a_worker_that_outlives_the_run_does_not_hold_it(tmp_path):
    with holding(tmp_path, "fork") as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with RunLock(tmp_path):
            pass


def test_one_process_cannot_hold_a_run_twice(tmp_path):
    with RunLock(tmp_path):
        with pytest.raises(BadInput, match=f"pid {os.getpid()}"), RunLock(tmp_path):
            pass
        with pytest.raises(BadInput, match=f"pid {os.getpid()}"), RunLock(tmp_path):  # the first still has it
            pass
    with RunLock(tmp_path):
        pass
    assert (tmp_path / "lock.json").read_bytes() == b""


def test_a_recycled_pid_is_not_taken_for_the_holder(tmp_path):
    written(tmp_path, pid=1, born="another boot/5")
    with RunLock(tmp_path):
        pass


def test_the_dead_and_the_unreaped_hold_nothing(tmp_path):
    child = subprocess.Popen(["sleep", "300"])
    born = lock._born(child.pid)
    written(tmp_path, pid=child.pid, born=born)
    with pytest.raises(BadInput, match=f"pid {child.pid}"), RunLock(tmp_path):
        pass
    child.kill()
    deadline = time.monotonic() + 60
    while lock._born(child.pid) and time.monotonic() < deadline:  # until it is a zombie
        time.sleep(0.01)
    with RunLock(tmp_path):
        pass
    child.wait()
    written(tmp_path, pid=child.pid, born=born)
    with RunLock(tmp_path):
        pass


def test_the_kernels_lock_counts_before_the_holder_has_written_its_name(tmp_path):
    with open(tmp_path / "lock.json", "w") as file:
        lock.fcntl.flock(file, lock.fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="in use by another process"), RunLock(tmp_path):
            pass


def test_without_locks_in_the_file_system_the_content_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.fcntl, "flock", Failing(errno.ENOLCK))
    with RunLock(tmp_path), pytest.raises(BadInput, match=f"pid {os.getpid()}"), RunLock(tmp_path):
        pass
    written(tmp_path, born="another boot/5")
    with RunLock(tmp_path):
        pass


def test_another_host_is_never_presumed_dead(tmp_path):
    written(tmp_path, host="elsewhere", pid=1)
    with pytest.raises(BadInput, match=r"pid 1 on host elsewhere since now: if .* is gone, delete .*lock.json"):
        RunLock(tmp_path).__enter__()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff" * 9000])
def test_a_lock_file_that_says_nothing_holds_nothing(tmp_path, content):
    (tmp_path / "lock.json").write_bytes(content)
    with RunLock(tmp_path):
        assert lock.holder(tmp_path / "lock.json")


def test_a_linked_lock_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock.json").symlink_to(tmp_path / "outside")
    with pytest.raises(BadInput, match="symbolic link"):
        RunLock(tmp_path / "run").__enter__()
    assert not (tmp_path / "outside").exists()
