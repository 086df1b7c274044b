"""Reading run directories that other processes, machines and versions wrote: believed line by line.

A file that cannot be read costs one sentence and what it held, never the report. Nothing is unpickled, links are
not followed, and no size is trusted before it is checked.
"""

import itertools
import json
import math
import os
import stat
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxinforl.errors import BadInput
from maxinforl.files import MiB, inside, printable, read_npz, read_toml, reading
from maxinforl.training.store import CheckpointStore

TEXT_LIMIT = 64 * MiB
DEPTH = 8  # how far below a given directory runs are looked for
NAMES = 1000  # metrics a run may have
LAST_STEP = 1e15
LEFT_OUT, DAMAGED = "left out", "damaged"
Array = NDArray[np.float64]


class Problem(str):
    """A sentence about what is missing or odd, and the kind of thing that is; a plain one is about what is left out."""

    kind: str

    def __new__(cls, sentence: str, kind: str = LEFT_OUT):
        made = super().__new__(cls, sentence)
        made.kind = kind
        return made


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
    cut: bool = False  # it got to its last step, and eval.csv does not

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


def find_runs(
    paths: Iterable[str | os.PathLike[str]], problems: list[str] | None = None, names: Container[str] | None = None
) -> list[Run]:
    """Every run in or below `paths`, with the metrics in `names` (all if None).

    What could not be read is appended to `problems`, one sentence each.
    """
    problems = [] if problems is None else problems
    seen, runs = set(), []
    for given in paths:
        with reading(given):
            top = Path(given).resolve(strict=True)
        found = [folder for folder in run_folders(top) if folder not in seen]
        seen.update(found)
        for folder in found:
            with noting(problems):
                runs.append(read_run(folder, problems, names))
    return runs


def read_run(folder: Path, problems: list[str] | None = None, names: Container[str] | None = None) -> Run:
    """The run in `folder`; damaged metrics or evaluations are appended to `problems`, a damaged config is an error."""
    problems = [] if problems is None else problems
    config = _read_config(folder)
    damage: list[str] = []
    logs = _read_logs(folder, config, damage, names)
    problems += [Problem(sentence, DAMAGED) for sentence in damage]
    versions = config.get("versions", {})
    return Run(
        folder,
        *(config[name] for name in ("algo", "env", "seed", "steps")),
        command=str(config.get("command", "")),
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        config=config,
        **logs,
    )


def _read_logs(
    folder: Path, config: Mapping[str, Any], damage: list[str], names: Container[str] | None
) -> dict[str, Any]:
    """What a run's own files say of its training."""
    metrics, logged, evaluation = {}, 0.0, {}
    with noting(damage):
        evaluation = _read_evaluation(inside(folder, "eval.csv"), damage)
    told = bool(damage)
    with noting(damage):
        metrics, logged = _read_metrics(inside(folder, "metrics.jsonl"), damage, names)
    if (cut := _is_cut(folder, config, logged, evaluation)) and not told:
        last = f"its last evaluation is at step {evaluation['mean_return'].step[-1]:.0f}"
        damage.append(f"{printable(folder / 'eval.csv')} is incomplete: {last}, and the run got to {config['steps']}")
    return {"metrics": metrics, "evaluation": evaluation, "cut": cut}


def _is_cut(folder: Path, config: Mapping[str, Any], logged: float, evaluation: Mapping[str, Series]) -> bool:
    """Whether the last evaluations are gone: training ends with one, and without any it had no evaluator."""
    settings = config.get("settings")
    off = isinstance(settings, dict) and settings.get("eval_episodes") == 0
    if off or "mean_return" not in evaluation or evaluation["mean_return"].step[-1] >= config["steps"]:
        return False
    saved = []
    with suppress(BadInput, OSError):
        saved = CheckpointStore(inside(folder, "checkpoints")).steps()
    return max([logged, *saved]) >= config["steps"]


class noting(suppress):  # noqa: N801 - a context manager, named like the verb it is
    """Note the sentence of a BadInput and go on."""

    def __init__(self, problems: list[str]):
        super().__init__(BadInput)
        self.problems = problems

    def __exit__(self, kind, error, trace) -> bool:
        if isinstance(error, BadInput):
            self.problems.append(str(error))
        return super().__exit__(kind, error, trace)


def run_folders(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Folders of single runs: those with logs, else those with a config and no seeds below."""
    children = _subfolders(folder)
    names = {entry.name for entry in children}
    seeds = any(name.startswith("seed-") for name in names)
    try:
        has = {name: (folder / name).exists() for name in ("config.toml", "metrics.jsonl", "eval.csv")}
    except OSError:  # whoever reads it says why that cannot be
        yield folder
        return
    if has["metrics.jsonl"] or has["eval.csv"] or (has["config.toml"] and not seeds):
        yield folder
        children = [entry for entry in children if entry.name.startswith("seed-")]
    if depth:
        for entry in children:
            yield from run_folders(Path(entry.path), depth - 1)


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
            raise BadInput(f"{printable(where)} has no {name}: it is not a run of this version, run it again")
    return config


# --- logs -----------------------------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    """The lines of a plain text file of bounded size; an absent file has none."""
    with reading(path):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return []
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{printable(path)} is not a file")
        if status.st_size > TEXT_LIMIT:
            raise BadInput(f"{printable(path)} is too large: {status.st_size} bytes where {TEXT_LIMIT} are allowed")
        with path.open("rb") as file:
            text = file.read(TEXT_LIMIT).decode(errors="replace").removesuffix("\n")
            return text.split("\n") if text else []


class _Refused:
    """The lines of a file that were not understood."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def line(self, number: int, why: object) -> None:
        self.count += 1
        self.first = self.first or f"line {number}: {printable(str(why))}"

    def tell(self, path: Path, problems: list[str]) -> None:
        if self.count:
            lines = "a line" if self.count == 1 else f"{self.count} lines"
            problems.append(f"{printable(path)}: left out {lines} that cannot be read ({self.first})")


def _read_metrics(path: Path, problems: list[str], names: Container[str] | None) -> tuple[dict[str, Series], float]:
    """The metrics in `names`, and the last step that anything was logged at."""
    refused = _Refused()
    rows = _json_rows(_lines(path), refused)
    refused.tell(path, problems)
    known = dict.fromkeys(itertools.chain.from_iterable(rows))
    kept = [name for name in known if name not in ("step", "env_step") and (names is None or name in names)]
    if len(kept) > NAMES:
        raise BadInput(f"{printable(path)} has {len(kept)} metrics where at most {NAMES} are allowed")
    columns = {name: _column([row.get(name) for row in rows]) for name in kept}
    steps = _column([row["step"] for row in rows])
    env_steps = _column([row.get("env_step", row["step"]) for row in rows])
    return _series(path, steps, env_steps, columns, problems), float(steps.max(initial=0.0))


def _json_rows(lines: Sequence[str], refused: _Refused) -> list[dict[str, Any]]:
    """The objects with steps in range, one per line."""
    try:  # all lines at once are read several times faster than one by one
        rows = json.loads("[" + ",".join(lines) + "]")
        if len(rows) == len(lines) and _have_steps(rows):
            return rows
    except (ValueError, RecursionError):
        pass
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not _have_steps([row]):
                raise ValueError("it is not an object with a step")
            rows.append(row)
        except (ValueError, RecursionError) as error:
            refused.line(number, error)
    return rows


def _have_steps(rows: Sequence[Any]) -> bool:
    if not set(map(type, rows)) <= {dict}:
        return False
    counters = [row.get("step") for row in rows] + [row.get("env_step", 0) for row in rows]
    return set(map(type, counters)) <= {int, float} and all(map(LAST_STEP.__ge__, map(abs, counters)))


def _column(values: Sequence[Any]) -> Array:
    """Numbers as they are and NaN for anything else."""
    try:
        return np.array(values, float)
    except (ValueError, TypeError, OverflowError):
        number = lambda v: type(v) is float or (type(v) is int and abs(v) < 1 << 64)
        return np.array([v if number(v) else math.nan for v in values], float)


def read_table(path: Path, problems: list[str], needed: Sequence[str] = ("step", "mean_return")) -> dict[str, Array]:
    """The columns of an eval.csv, without the lines that cannot be read; none where it is empty."""
    lines = _lines(path)
    header = lines[0].strip().split(",") if lines else []
    if header in ([], [""]):
        return {}
    if not {*needed} <= set(header) or len(set(header)) < len(header) or len(header) > NAMES:
        listed = " and ".join(needed)
        raise BadInput(f"{printable(path)} has no columns {listed}: it is not an evaluation of this version")
    refused = _Refused()
    table = dict(zip(header, _csv_rows(lines[1:], header, refused).T))
    refused.tell(path, problems)
    return table


def _read_evaluation(path: Path, problems: list[str]) -> dict[str, Series]:
    table = read_table(path, problems)
    if not table:
        return {}
    steps, env_steps = table.pop("step"), table.pop("env_step", None)
    return _series(path, steps, steps if env_steps is None else env_steps, table, problems)


def _csv_rows(lines: Sequence[str], header: Sequence[str], refused: _Refused) -> Array:
    """The rows of numbers with steps in range, [rows, columns]."""
    width, rows = len(header), []
    if {line.count(",") for line in lines} == {width - 1}:
        with suppress(ValueError):  # all lines at once are read several times faster than one by one
            table = np.array(list(map(float, ",".join(lines).split(",")))).reshape(-1, width)
            if (np.abs(table[:, _counters(header)]) <= LAST_STEP).all():
                return table
    for number, line in enumerate(lines, 2):
        try:
            row = list(map(float, line.split(",")))
            if len(row) != width or not all(abs(row[i]) <= LAST_STEP for i in _counters(header)):
                raise ValueError(f"it does not hold {width} numbers with steps in range")
            rows.append(row)
        except ValueError as error:
            refused.line(number, error)
    return np.array(rows, float).reshape(-1, width)


def _counters(header: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(header) if name in ("step", "env_step")]


def _series(
    path: Path, steps: Array, env_steps: Array, columns: Mapping[str, Array], problems: list[str]
) -> dict[str, Series]:
    """Columns in the order of steps; of a step logged twice, as after a resume, the later entry."""
    if not len(steps):
        return {}
    last = np.arange(len(steps))
    if (np.diff(steps) <= 0).any():
        last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    steps, env_steps, series = steps[last], np.maximum.accumulate(env_steps[last]), {}
    for name, column in columns.items():
        there = np.isfinite(column := column[last])
        if name == "mean_return" and not there.all():
            problems.append(f"{printable(path)} has returns that are not finite: they were left out")
        if there.all():
            series[name] = Series(steps, env_steps, column)
        elif there.any():
            series[name] = Series(steps[there], env_steps[there], column[there])
    return series


# --- states ---------------------------------------------------------------------------------------------------


def _read_states(path: Path) -> tuple[Array, Array]:
    """`step` and `obs` of a states.npz."""
    step, obs = (array.astype(float) for array in read_npz(path, ("step", "obs")))
    if step.ndim != 1 or obs.ndim != 2 or len(step) != len(obs) or not np.isfinite(step).all():
        raise BadInput(f"{printable(path)} must hold step [M] and obs [M, d], got {step.shape} and {obs.shape}")
    return step, obs
