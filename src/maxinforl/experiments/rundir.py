"""Reading run directories that other processes, machines and versions wrote: believed line by line.

A file that cannot be read costs one sentence and what it held, never the report. Nothing is unpickled, links are
not followed, and no size is trusted before it is checked.
"""

import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxinforl.errors import BadInput
from maxinforl.files import MiB, inside, read_toml, reading, shown

TEXT_LIMIT, LINE_LIMIT, STATES_LIMIT = 256 * MiB, 1 * MiB, 128 * MiB
DEPTH = 8  # how far below a given directory runs are looked for
NAMES = 1000  # metrics a run may have
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One metric of one run: values in the order of `step` (agent steps) and `env_step`, without repeats."""

    step: Array
    env_step: Array
    value: Array


@dataclass(frozen=True)
class Run:
    """What one seed of one algorithm on one task left behind."""

    path: Path
    algo: str
    env: str
    seed: int
    steps: int  # agent steps it was asked for
    command: str
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    metrics: Mapping[str, Series] = field(default_factory=dict)
    evaluation: Mapping[str, Series] = field(default_factory=dict)  # by column of eval.csv

    @property
    def returns(self) -> Series | None:
        """Evaluation returns; without any, the returns of the episodes it trained on."""
        return self.evaluation.get("mean_return") or self.metrics.get("rollout/ep_rew_mean")

    @property
    def videos(self) -> list[Path]:
        """The recordings of the run, plain files only."""
        folder = self.path / "videos"
        found = sorted(folder.glob("*.mp4")) if folder.is_dir() and not folder.is_symlink() else []
        return [path for path in found if path.is_file() and not path.is_symlink()]

    def states(self) -> tuple[Array, Array] | None:
        """Recorded states as (step [M], obs [M, d]), or None; BadInput if the file is damaged."""
        path = inside(self.path, "states.npz")
        return _read_states(path) if path.exists() else None


def find_runs(paths: Iterable[str | os.PathLike[str]], problems: list[str] | None = None) -> list[Run]:
    """Every run in or below `paths`; what could not be read is appended to `problems`, one sentence each."""
    problems = [] if problems is None else problems
    seen, runs = set(), []
    for given in paths:
        with reading(given):
            top = Path(given).resolve(strict=True)
        found = [folder for folder in _run_folders(top, DEPTH) if folder not in seen]
        seen.update(found)
        for folder in found:
            with _noting(problems):
                runs.append(read_run(folder, problems))
    return runs


def read_run(folder: Path, problems: list[str] | None = None) -> Run:
    """The run in `folder`; damaged metrics or evaluations are appended to `problems`, a damaged config is an error."""
    problems = [] if problems is None else problems
    config = _read_config(folder)
    metrics, evaluation = {}, {}
    with _noting(problems):
        metrics = _read_metrics(inside(folder, "metrics.jsonl"), problems)
    with _noting(problems):
        evaluation = _read_evaluation(inside(folder, "eval.csv"), problems)
    versions = config.get("versions", {})
    return Run(
        folder,
        *(config[name] for name in ("algo", "env", "seed", "steps")),
        command=str(config.get("command", "")),
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        config=config,
        metrics=metrics,
        evaluation=evaluation,
    )


class _noting(suppress):  # noqa: N801 - a context manager, named like the verb it is
    """Note the sentence of a BadInput and go on."""

    def __init__(self, problems: list[str]):
        super().__init__(BadInput)
        self.problems = problems

    def __exit__(self, kind, error, trace) -> bool:
        if isinstance(error, BadInput):
            self.problems.append(str(error))
        return super().__exit__(kind, error, trace)


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders of single runs: those with logs, else those with a config and no seeds below."""
    children = _subfolders(folder)
    names = {entry.name for entry in children}
    seeds = any(name.startswith("seed-") for name in names)
    has = {name: (folder / name).exists() for name in ("config.toml", "metrics.jsonl", "eval.csv")}
    if has["metrics.jsonl"] or has["eval.csv"] or (has["config.toml"] and not seeds):
        yield folder
        children = [entry for entry in children if entry.name.startswith("seed-")]
    if depth:
        for entry in children:
            yield from _run_folders(Path(entry.path), depth - 1)


def _subfolders(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted((e for e in entries if e.is_dir(follow_symlinks=False)), key=lambda e: _natural(e.name))
    return []


def _natural(name: str) -> tuple[str, int, str]:
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits and len(digits) < 19 else 0, name


def _read_config(folder: Path) -> dict[str, Any]:
    """The run's own configuration, or for `seed-N` that of the directory above with this seed."""
    own, shared = inside(folder, "config.toml"), folder.parent / "config.toml"
    seed = folder.name.removeprefix("seed-")
    if own.exists() or not (folder.name.startswith("seed-") and seed.isdecimal() and shared.exists()):
        config, where = read_toml(own), own
    else:
        config, where = {**read_toml(shared), "seed": int(seed[:18])}, shared
    for name, kind in (("algo", str), ("env", str), ("seed", int), ("steps", int)):
        if type(config.get(name)) is not kind:
            raise BadInput(f"{shown(where)} has no {name}: it is not a run of this version, run it again")
    return config


# --- logs -----------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[str]:
    """The lines of a plain text file of bounded size; an absent file has none."""
    with reading(path):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{shown(path)} is not a file")
        if status.st_size > TEXT_LIMIT:
            raise BadInput(f"{shown(path)} is too large: {status.st_size} bytes where {TEXT_LIMIT} are allowed")
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while line := file.readline(LINE_LIMIT):
                yield line


class _Columns:
    """Values by name with their steps, and the lines that were not understood."""

    def __init__(self, path: Path):
        self.path, self.bad, self.first = path, 0, ""
        self.columns: dict[str, tuple[list[float], list[float], list[float]]] = {}

    def add(self, step: float, env_step: float, name: str, value: float) -> None:
        if name not in self.columns and len(self.columns) >= NAMES:
            raise ValueError(f"more than {NAMES} metrics")
        steps, env_steps, values = self.columns.setdefault(name, ([], [], []))
        steps.append(step)
        env_steps.append(env_step)
        values.append(value)

    def refuse(self, number: int, why: object) -> None:
        self.bad += 1
        self.first = self.first or f"line {number}: {shown(str(why))}"

    def series(self, problems: list[str]) -> dict[str, Series]:
        if self.bad:
            lines = "a line" if self.bad == 1 else f"{self.bad} lines"
            problems.append(f"{shown(self.path)}: left out {lines} that cannot be read ({self.first})")
        return {name: _in_order(*map(np.array, columns)) for name, columns in self.columns.items()}


def _in_order(step: Array, env_step: Array, value: Array) -> Series:
    """Sorted by step; of a step logged twice, as after a resume, the later entry."""
    if len(step) > 1 and (np.diff(step) <= 0).any():
        last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
        step, env_step, value = step[last], env_step[last], value[last]
    return Series(step, np.maximum.accumulate(env_step), value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a step is not a number")
    if not math.isfinite(value) or abs(value) > 1e15:
        raise ValueError("a step is out of range")
    return float(value)


def _read_metrics(path: Path, problems: list[str]) -> dict[str, Series]:
    columns = _Columns(path)
    for number, line in enumerate(_lines(path), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            step = _number(row["step"])
            env_step = _number(row.get("env_step", step))
            for name, value in row.items():
                if type(value) in (float, int) and name not in ("step", "env_step"):
                    columns.add(step, env_step, name, float(value))
        except (ValueError, KeyError, RecursionError, OverflowError) as error:
            columns.refuse(number, "no step" if isinstance(error, KeyError) else error)
    return columns.series(problems)


def _read_evaluation(path: Path, problems: list[str]) -> dict[str, Series]:
    lines = _lines(path)
    header = next(lines, "").strip().split(",")
    if header == [""]:
        return {}
    if not {"step", "mean_return"} <= set(header) or len(set(header)) < len(header) or len(header) > NAMES:
        raise BadInput(f"{shown(path)} has no columns step and mean_return: it is not an evaluation of this version")
    columns = _Columns(path)
    step_at = header.index("step")
    env_at = header.index("env_step") if "env_step" in header else step_at
    names = [(i, name) for i, name in enumerate(header) if i not in (step_at, env_at)]
    for number, line in enumerate(lines, 2):
        try:
            row = [float(cell) for cell in line.strip().split(",")]
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells for {len(header)} columns")
            step, env_step = _number(row[step_at]), _number(row[env_at])
            for i, name in names:
                columns.add(step, env_step, name, row[i])
        except ValueError as error:
            columns.refuse(number, error)
    return columns.series(problems)


# --- states ---------------------------------------------------------------------------------------------------


def _read_states(path: Path) -> tuple[Array, Array]:
    """`step` and `obs` of a states.npz whose claims about sizes were checked before anything is allocated."""
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            step, obs = (_read_member(archive, name) for name in ("step.npy", "obs.npy"))
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{shown(path)} is damaged: {shown(str(error))}") from None
    if step.ndim != 1 or obs.ndim != 2 or len(step) != len(obs) or not np.isfinite(step).all():
        raise BadInput(f"{shown(path)} must hold step [M] and obs [M, d], got {step.shape} and {obs.shape}")
    return step, obs


def _read_member(archive: zipfile.ZipFile, name: str) -> Array:
    size = archive.getinfo(name).file_size
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
        claimed = math.prod(shape) * dtype.itemsize
        if dtype.kind not in "fiu":
            raise ValueError(f"{name} is not a plain array of numbers")
        if claimed > min(size, STATES_LIMIT):
            raise ValueError(f"{name} claims {claimed} bytes where {min(size, STATES_LIMIT)} are allowed")
        return np.frombuffer(file.read(claimed), dtype).reshape(shape, order="F" if fortran else "C").astype(float)
