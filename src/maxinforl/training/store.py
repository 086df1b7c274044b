"""Checkpoints of one run: the last K, written in the background, each only what is new since the one before.

    checkpoints/step-000010000/manifest.json        what this checkpoint is, with the checksums of its files
    checkpoints/step-000010000/state.safetensors    the agent and everything else that is not replay
    checkpoints/replay/segment-000010000.safetensors

Replay rows no longer change once the head is two rows past them, so each checkpoint adds one segment with the rows from
the previous head on. A segment names its predecessor with its checksum and the manifest names only the newest, so the
size of a checkpoint does not grow with the replay. Whatever has its final name is complete; the next save removes
everything else.
"""

import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxinforl import files
from maxinforl.errors import BadInput, RunFailed
from maxinforl.files import Arrays, inside, printable

FORMAT = 1
NUMBER = "([0-9]{9}|[1-9][0-9]{9,14})"  # exactly what `_step_name` writes, so that number and name stand for each other
STEP = re.compile(f"step-{NUMBER}")
SEGMENT = re.compile(rf"segment-{NUMBER}\.safetensors")
COLUMN = "row/"  # keeps the names of columns apart from a segment's own arrays
COUNT_LIMIT = 10**15  # no step or row number reaches it; keeps sums of what a file claims within 64 bits


class Lane(NamedTuple):
    """Rows of one environment's ring: the absolute number of the first, and every column from there on."""

    first: int
    columns: dict[str, np.ndarray]

    @property
    def length(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def head(self) -> int:
        return int(self.first) + self.length - 1


class Rows(NamedTuple):
    """Rows of every lane of a replay that keeps the last `capacity` rows of each."""

    capacity: int
    lanes: Sequence[Lane]


@dataclass(frozen=True)
class Checkpoint:
    """A run at a step; `warnings` name newer checkpoints that are damaged, `drift` differences of the platform."""

    step: int
    state: Arrays
    rows: Rows | None
    meta: dict[str, Any]
    warnings: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()


class NewerFormat(BadInput):
    """A checkpoint of a later maxinforl. It is not damaged, so no older one is loaded in its place."""


# --- the platform --------------------------------------------------------------------------------------------------


def platform_info() -> dict[str, Any]:
    """Versions, processor and XLA settings: what decides whether a resumed run is bit-identical; None if unknown."""
    jax = sys.modules.get("jax")
    return {
        **_packages(),
        "processor": _processor(),
        "backend": jax.default_backend() if jax else None,
        "XLA threads": xla_threads(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def usable_cores() -> int:
    """Cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def xla_threads() -> int:
    """Threads of XLA's pool, which decide the order of sums: NPROC where it is set, else one per core."""
    asked = os.environ.get("NPROC", "")
    return int(asked) if asked.isdecimal() and int(asked) else usable_cores()


@cache
def _packages() -> dict[str, str | None]:
    return {name: _version(name) for name in ("maxinforl", "jax", "jaxlib", "numpy", "gymnasium", "mujoco")}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def drift(saved: Mapping[str, Any]) -> tuple[str, ...]:
    """One sentence for each way in which this platform differs from a recorded one."""
    here = platform_info()
    known = [name for name in here if saved.get(name) is not None and here[name] is not None]
    text = lambda value: printable(str(value)) or "nothing"
    return tuple(
        f"saved with {name} {text(saved[name])} and resumed with {text(here[name])}: the run may not be bit-identical"
        for name in known
        if saved[name] != here[name]
    )


# --- what the files say --------------------------------------------------------------------------------------------


class _Record(NamedTuple):
    """A reference from one file to another; file names are made from step numbers, never read from a file."""

    step: int
    bytes: int
    checksum: str


class _Replay(NamedTuple):
    capacity: int
    heads: list[int]  # the newest row of each lane
    oldest: int  # the step of the oldest segment needed
    newest: _Record


class _Manifest(NamedTuple):
    state: _Record
    replay: _Replay | None
    platform: dict[str, Any]
    meta: dict[str, Any]


class _Segment(NamedTuple):
    path: Path
    record: _Record
    first: np.ndarray  # per lane
    length: np.ndarray
    columns: Arrays  # all lanes, one after the other
    previous: _Record | None


def _require(condition: bool, path: Path, problem: str) -> None:
    if not condition:
        raise BadInput(f"{printable(path)} is damaged: {problem}, restore it from a copy")


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int and 0 <= value < COUNT_LIMIT for value in values)


def _record(value: Any, path: Path) -> _Record:
    match value:
        case {"step": step, "bytes": size, "checksum": str(checksum)} if _are_counts(step, size):
            return _Record(step, size, checksum)
    raise BadInput(f"{printable(path)} is damaged: it does not say which file it needs, restore it from a copy")


def _read_manifest(directory: Path, step: int) -> _Manifest:
    path = inside(directory, f"{_step_name(step)}/manifest.json")
    value = files.read_sealed_json(path)
    found = value.get("format") if isinstance(value, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise NewerFormat(f"{printable(path)} has format {found} and this maxinforl reads {FORMAT}: upgrade maxinforl")
    match value:
        case {"step": at, "state": state, "replay": replay, "platform": dict(where), "meta": dict(meta)}:
            record = _record(state, path)
            _require(found == FORMAT and at == record.step == step, path, "it is not the manifest of this step")
            return _Manifest(record, None if replay is None else _read_replay(replay, path), where, meta)
    raise BadInput(f"{printable(path)} is damaged: it lacks what a checkpoint needs, restore it from a copy")


def _read_replay(value: Any, path: Path) -> _Replay:
    match value:
        case {"capacity": size, "heads": list(heads), "oldest": oldest, "newest": newest} if heads:
            _require(_are_counts(size, oldest, *heads) and size > 0, path, "its replay has impossible numbers")
            return _Replay(size, heads, oldest, _record(newest, path))
    raise BadInput(f"{printable(path)} is damaged: it does not describe its replay, restore it from a copy")


def _read_segment(directory: Path, record: _Record) -> _Segment:
    path = inside(directory, _segment_name(record.step))
    arrays, meta = files.load_arrays(path, checksum=record.checksum, limit=record.bytes)
    columns = {name.removeprefix(COLUMN): arrays[name] for name in arrays if name.startswith(COLUMN)}
    first, length = (arrays.get(name, np.empty(0)) for name in ("first", "length"))
    per_lane = first.shape == length.shape == (first.size,) and first.dtype == length.dtype == np.int64
    _require(per_lane and _are_counts(*first.tolist(), *length.tolist()), path, "its lanes have impossible numbers")
    rows = sum(length.tolist())
    _require(
        bool(columns) and all(c.shape[:1] == (rows,) for c in columns.values()), path, "its columns differ in length"
    )
    previous = None if meta.get("previous") is None else _record(meta["previous"], path)
    _require(previous is None or previous.step < record.step, path, "it follows a later segment")
    return _Segment(path, record, first, length, columns, previous)


# --- names ---------------------------------------------------------------------------------------------------------


def _step_name(step: int) -> str:
    return f"step-{step:09d}"


def _segment_name(step: int) -> str:
    return f"replay/segment-{step:09d}.safetensors"


def _numbers(directory: Path, pattern: re.Pattern[str]) -> list[int]:
    """The step numbers of all that is named by `pattern`, in order."""
    if not directory.is_dir():
        return []
    with files.reading(directory):
        return sorted(int(found[1]) for name in os.listdir(directory) if (found := pattern.fullmatch(name)))


def _size(directory: Path) -> int:
    """Bytes in the files of a directory, from which a live run may be removing some."""
    total = 0
    with suppress(FileNotFoundError):
        for path in directory.iterdir():
            with suppress(FileNotFoundError):
                total += path.lstat().st_size
    return total


# --- rebuilding the replay -----------------------------------------------------------------------------------------


class _Rebuild:
    """The last rows of every lane, filled from the newest segment back, so that later segments win."""

    def __init__(self, replay: _Replay, newest: _Segment, lossy: bool):
        heads = np.array(replay.heads)
        self.capacity, self.row_types = replay.capacity, _row_types(newest.columns)
        self.low = _oldest_rows(heads, replay.capacity)
        self.missing = heads + 1  # of each lane, the rows from `low` up to here are still to be filled
        count = self.missing - self.low
        self.offset = np.cumsum(count) - count
        row = sum(dtype.itemsize * math.prod(shape) for shape, dtype in self.row_types.values())
        total = sum(count.tolist())
        held = 1 << 46 if lossy else _size(newest.path.parent)  # what segments lack is allocated but never touched
        _require(
            total < COUNT_LIMIT and total * row <= held, newest.path, "its manifest claims more rows than there are"
        )
        self.columns = {name: np.empty((total, *shape), dtype) for name, (shape, dtype) in self.row_types.items()}

    def fill(self, segment: _Segment) -> bool:
        """Take the missing rows that a segment has; True when none is missing any more."""
        same = _row_types(segment.columns) == self.row_types and segment.first.shape == self.low.shape
        _require(same, segment.path, "it is of another replay")
        reaches = (segment.first + segment.length >= self.missing) | (self.missing <= self.low)
        _require(bool(reaches.all()), segment.path, "rows after it are missing")
        begin = np.minimum(np.maximum(segment.first, self.low), self.missing)
        source = begin - segment.first + np.cumsum(segment.length) - segment.length
        target, count = begin - self.low + self.offset, self.missing - begin
        for lane in np.flatnonzero(count):
            s, t, n = source[lane], target[lane], count[lane]
            for name, column in segment.columns.items():
                self.columns[name][t : t + n] = column[s : s + n]
        self.missing = begin
        return bool((self.missing <= self.low).all())

    @property
    def lost(self) -> int:
        """How many rows no segment had."""
        return int((self.missing - self.low).sum())

    def rows(self) -> Rows:
        split = {name: np.split(column, self.offset[1:]) for name, column in self.columns.items()}
        cut = (self.missing - self.low).tolist()
        lanes = [Lane(int(n), {name: split[name][e][cut[e] :] for name in split}) for e, n in enumerate(self.missing)]
        return Rows(self.capacity, lanes)


def _row_types(columns: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of a row in each column."""
    return {name: (column.shape[1:], np.dtype(column.dtype)) for name, column in columns.items()}


def _oldest_rows(heads: np.ndarray, capacity: int) -> np.ndarray:
    """The oldest row of each lane that its ring still holds."""
    return np.maximum(heads - capacity + 1, 0)


# --- the store -----------------------------------------------------------------------------------------------------


class _Link(NamedTuple):
    """A segment on disk and the first row it holds of each lane."""

    record: _Record
    first: np.ndarray


class _History(NamedTuple):
    """What is durable of the checkpoints this process continues from; replaced as a whole when a save is durable."""

    good: Mapping[int, int] = {}  # step of each kept checkpoint -> step of the oldest segment it needs
    heads: tuple[int, ...] = ()
    chain: tuple[_Link, ...] = ()  # the segments of the latest checkpoint, oldest first
    row_types: Mapping[str, Any] = {}  # shape and type of a row in each column

    @property
    def latest(self) -> int | None:
        return max(self.good, default=None)

    def with_segment(self, rows: Rows, segment: _Link) -> "_History":
        """With one more segment, and without those whose rows were all overwritten."""
        heads, chain = tuple(lane.head for lane in rows.lanes), [*self.chain, segment]
        low = _oldest_rows(np.array(heads), rows.capacity)
        while len(chain) > 1 and (chain[1].first <= low).all():
            del chain[0]
        return self._replace(heads=heads, chain=tuple(chain), row_types=_row_types(rows.lanes[0].columns))

    def with_checkpoint(self, step: int, keep: int) -> "_History":
        """With one more checkpoint, and only the last `keep`."""
        good = {**self.good, step: self.chain[0].record.step if self.chain else step}
        return self._replace(good={s: good[s] for s in sorted(good)[-keep:]})


def _describe_replay(history: _History, capacity: int) -> dict[str, Any]:
    """What a manifest says of the replay, as `_read_replay` reads it."""
    oldest, newest = history.chain[0].record, history.chain[-1].record
    return {"capacity": capacity, "heads": history.heads, "oldest": oldest.step, "newest": newest._asdict()}


class CheckpointStore:
    """The checkpoints of a run. Loading changes no file; only the holder of the run's lock may save."""

    def __init__(self, directory: files.PathLike, keep: int = 3):
        if keep < 1:
            raise BadInput(f"keep is {keep} and must be at least 1 checkpoint")
        self.directory, self.keep = Path(directory), keep
        self._history = _History()
        self._swept = False
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def steps(self) -> list[int]:
        """The steps of the checkpoints on disk, good or not, oldest first."""
        return _numbers(self.directory, STEP)

    # saving

    def saved_upto(self, lanes: int) -> list[int]:
        """The row of each lane from which the next save must carry on: the last head, whose row was provisional."""
        self.wait()
        return list(self._history.heads) or [0] * lanes

    def save(self, step: int, state: Mapping[str, Any], rows: Rows | None, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint and return when it is durable; a step saved before stays as it is."""
        self.save_async(step, state, rows, meta)
        self.wait()

    def save_async(self, step: int, state: Mapping[str, Any], rows: Rows | None, meta: Mapping[str, Any]) -> None:
        """Begin to write a checkpoint once the previous one is done; the arrays must be copies that do not change."""
        self.wait()
        step = int(step)
        if step in self._history.good:
            return
        self._check_step(step)
        if rows is not None:
            self._check_rows(rows)
        self._writer = self._writer or ThreadPoolExecutor(1, "checkpoint")
        self._pending = self._writer.submit(self._write, step, dict(state), rows, dict(meta))

    def wait(self) -> None:
        """Wait for the checkpoint being written; RunFailed says why there is none, and the older ones are kept."""
        if self._pending is None:
            return
        try:
            self._pending.result()
        finally:
            self._pending = None if self._pending.done() else self._pending

    def close(self) -> None:
        """Wait for the last checkpoint and end the thread that writes."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
            self._writer = None

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restart(self) -> None:
        """Remove every checkpoint; the next save begins a new history and removes their segments."""
        with self._naming_what_is_kept():
            for step in self.steps():
                self._discard(self.directory / _step_name(step))
            self._history, self._swept = _History(), False

    def _check_step(self, step: int) -> None:
        latest, there = self._history.latest, self.steps()
        if latest is None and there:
            raise BadInput(
                f"{printable(self.directory)} holds checkpoints up to step {there[-1]}: resume or go elsewhere"
            )
        if not _are_counts(step) or step < (latest or 0):
            raise BadInput(f"a checkpoint at step {step} cannot follow the one at step {latest}")

    def _check_rows(self, rows: Rows) -> None:
        heads, row_types = (
            self._history.heads or (0,) * len(rows.lanes),
            self._history.row_types or _row_types(rows.lanes[0].columns),
        )
        if len(rows.lanes) != len(heads) or any(_row_types(lane.columns) != row_types for lane in rows.lanes):
            raise BadInput("the replay's lanes or columns are not those of the checkpoint before")
        for index, (lane, head) in enumerate(zip(rows.lanes, heads, strict=True)):
            full = lane.length == rows.capacity
            whole = 0 < lane.length <= rows.capacity and all(len(c) == lane.length for c in lane.columns.values())
            if not whole or lane.head < head or not (0 <= lane.first <= head or full):
                given = f"rows {lane.first} to {lane.head} of lane {index}"
                raise BadInput(f"{given} do not go on from row {head} in a replay of {rows.capacity} rows")

    @contextmanager
    def _naming_what_is_kept(self) -> Iterator[None]:
        """Add to every error which checkpoint is still there."""
        try:
            with files.writing(self.directory):
                yield
        except (RunFailed, MemoryError) as problem:
            self._swept = False
            latest = self._history.latest
            kept = "there is no older checkpoint" if latest is None else f"the checkpoint at step {latest} is kept"
            raise RunFailed(f"{problem or 'the checkpoint does not fit in memory'}; {kept}") from None

    def _write(self, step: int, state: Arrays, rows: Rows | None, meta: dict[str, Any]) -> None:
        with self._naming_what_is_kept():
            self._sweep()
            history = (
                self._history if rows is None else self._history.with_segment(rows, self._write_segment(step, rows))
            )
            history = history.with_checkpoint(step, self.keep)
            self._publish(step, state, meta, None if rows is None else _describe_replay(history, rows.capacity))
            self._history = history
            self._remove_old()

    def _sweep(self) -> None:
        """Remove what a killed process or a failed save left: half-written files, and segments nothing came to need."""
        inside(self.directory.parent, self.directory.name)  # not through a link that was put there meanwhile
        replay = files.make_directory(inside(self.directory, "replay"))
        if self._swept:
            return
        files.clear_temporary(self.directory)
        files.clear_temporary(replay)
        newest = max(self.steps(), default=-1)
        for step in _numbers(replay, SEGMENT):
            if step > newest:
                os.unlink(self.directory / _segment_name(step))
        self._swept = True

    def _write_segment(self, step: int, rows: Rows) -> _Link:
        names, lanes = rows.lanes[0].columns, rows.lanes
        first = np.array([lane.first for lane in lanes], np.int64)
        length = np.array([lane.length for lane in lanes], np.int64)
        columns = {COLUMN + name: np.concatenate([lane.columns[name] for lane in lanes]) for name in names}
        previous = self._history.chain[-1].record._asdict() if self._history.chain else None
        path = self.directory / _segment_name(step)
        checksum = files.save_arrays(path, {"first": first, "length": length, **columns}, {"previous": previous})
        return _Link(_Record(step, path.stat().st_size, checksum), first)

    def _publish(self, step: int, state: Arrays, meta: dict[str, Any], replay: dict[str, Any] | None) -> None:
        """Write a checkpoint under a temporary name and give it its own when it is whole."""
        folder = self.directory / files.temporary_name()
        final = self.directory / _step_name(step)
        try:
            folder.mkdir()
            path = folder / "state.safetensors"
            checksum = files.save_arrays(path, state)
            record = _Record(step, path.stat().st_size, checksum)._asdict()
            head = {"format": FORMAT, "step": step, "platform": platform_info()}
            files.write_sealed_json(folder / "manifest.json", {**head, "state": record, "replay": replay, "meta": meta})
            if os.path.lexists(final):  # damaged, or of a history that was given up when an older checkpoint was loaded
                self._discard(final)
            os.replace(folder, final)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        files.atomic.crash_point("checkpoint renamed")
        files.sync_directory(self.directory)

    def _remove_old(self) -> None:
        """Remove what no kept checkpoint needs, checkpoints before their segments."""
        history = self._history
        for step in set(self.steps()) - history.good.keys():
            self._discard(self.directory / _step_name(step))
        files.sync_directory(self.directory)
        files.atomic.crash_point("old checkpoints removed")
        oldest, chain = min(history.good.values()), {link.record.step for link in history.chain}
        for step in _numbers(self.directory / "replay", SEGMENT):
            given_up = step not in chain and step > min(chain, default=step)
            if step < oldest or given_up:
                os.unlink(self.directory / _segment_name(step))
                files.atomic.crash_point("old segment removed")

    def _discard(self, folder: Path) -> None:
        """Take a checkpoint's name away before its files, so that it is never seen half removed."""
        nameless = self.directory / files.temporary_name()
        os.replace(folder, nameless)
        files.atomic.crash_point("old checkpoint unnamed")
        files.remove(nameless)

    # loading

    def load(self, step: int | None = None, *, rows: bool = True, lossy: bool = False) -> Checkpoint:
        """The checkpoint at a step, or the newest good one; without `rows` only the agent, for a look.

        Where none is whole, `lossy` takes one without the rows up to a segment that is damaged or missing.
        """
        self.wait()
        there = self.steps()
        if not there or (step is not None and step not in there):
            wanted = "no checkpoint" if step is None else f"no checkpoint at step {step}"
            raise BadInput(
                f"{printable(self.directory)} holds {wanted}: it has " + (", ".join(map(str, there)) or "none")
            )
        problems: list[str] = []
        for without in (False, True) if lossy else (False,):
            problems.clear()
            for candidate in reversed(there) if step is None else [step]:
                try:
                    warnings = tuple(f"{p}; going back to step {candidate}" for p in problems)
                    return self._load(candidate, rows, warnings, without)
                except NewerFormat:
                    raise
                except BadInput as problem:
                    problems.append(str(problem))
        raise BadInput(f"no checkpoint can be loaded: {problems[0]}")

    def _load(self, step: int, rows: bool, warnings: tuple[str, ...], lossy: bool) -> Checkpoint:
        manifest = _read_manifest(self.directory, step)
        path = inside(self.directory, f"{_step_name(step)}/state.safetensors")
        state, _ = files.load_arrays(path, checksum=manifest.state.checksum, limit=manifest.state.bytes)
        replay = None
        if rows:
            replay, history, lost = (
                self._load_rows(manifest.replay, lossy) if manifest.replay else (None, _History(), ())
            )
            self._history, warnings = history._replace(good=self._readable(step)), (*warnings, *lost)
        return Checkpoint(step, state, replay, manifest.meta, warnings, drift(manifest.platform))

    def _load_rows(self, replay: _Replay, lossy: bool) -> tuple[Rows, _History, tuple[str, ...]]:
        """The rows, the history that later saves continue, and a warning if older rows are lost."""
        chain, rebuild, warnings = [], None, ()
        with files.reading(self.directory):
            try:
                for segment in self._segments(replay.newest):
                    rebuild = rebuild or _Rebuild(replay, segment, lossy)
                    whole = rebuild.fill(segment)
                    chain.insert(0, _Link(segment.record, segment.first))
                    if whole:
                        break
                else:
                    last = self.directory / _segment_name(chain[0].record.step)
                    raise BadInput(f"{printable(last)} is damaged: rows before it are missing, restore it from a copy")
            except BadInput as problem:
                if not lossy or not chain or rebuild is None or (rebuild.missing > replay.heads).any():
                    raise
                warnings = (
                    f"{problem}; the run continues without the {rebuild.lost} oldest rows of its replay, and is no "
                    "longer bit-identical to an uninterrupted run",
                )
        return rebuild.rows(), _History({}, tuple(replay.heads), tuple(chain), rebuild.row_types), warnings

    def _segments(self, record: _Record | None) -> Iterator[_Segment]:
        """A segment and those before it, newest first."""
        while record is not None:
            segment = _read_segment(self.directory, record)
            yield segment
            record = segment.previous

    def _readable(self, latest: int) -> dict[int, int]:
        """The checkpoints up to `latest` whose manifests are good, with the oldest segment each needs."""
        good = {}
        for step in self.steps():
            with suppress(BadInput):
                if step <= latest:
                    replay = _read_manifest(self.directory, step).replay
                    good[step] = replay.oldest if replay else step
        return good


# --- inspection ----------------------------------------------------------------------------------------------------


def describe(directory: files.PathLike) -> dict[str, str]:
    """A summary of a run's checkpoints for `maxinforl inspect`: label to text."""
    store = CheckpointStore(directory)
    steps = store.steps()
    facts = {"checkpoints": ", ".join(f"step {step}" for step in steps) or "none"}
    if not steps:
        return facts
    try:
        latest = store.load(rows=False)
        replay = _read_manifest(store.directory, latest.step).replay
    except BadInput as problem:
        return {**facts, "problem": str(problem)}
    size = sum(array.nbytes for array in latest.state.values())
    facts["state"] = f"{len(latest.state)} arrays, {size / files.MiB:.1f} MiB"
    if replay:
        lowest = _oldest_rows(np.array(replay.heads), replay.capacity)
        count = sum(head + 1 - low for head, low in zip(replay.heads, lowest.tolist(), strict=True))
        size = _size(store.directory / "replay") / files.MiB
        facts["replay"] = f"{count} rows of {len(replay.heads)} x {replay.capacity}, {size:.1f} MiB"
    for number, warning in enumerate(latest.warnings + latest.drift, 1):
        facts[f"note {number}"] = warning
    return facts
