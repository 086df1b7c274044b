"""Finding and reading run directories that other processes, machines and versions wrote.

A damaged file is reported in one sentence and left out; it never fails the whole report. Symbolic links are not
followed.
"""

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl.errors import BadInput
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.log_files import Series, collect_problems, read_evaluation, read_metrics, read_states
from maxinforl.files import inside, printable, read_toml, reading
from maxinforl.training.directory import reached
from maxinforl.training.store import CheckpointStore

DEPTH = 8  # levels below a given directory that are searched for runs
CARRIED = 1000  # most points that are added to a curve that ends early
LEFT_OUT, DAMAGED = "left out", "damaged"


class Problem(str):
    """A sentence about something missing or inconsistent, with its kind; a plain string is about something left out."""

    kind: str

    def __new__(cls, sentence: str, kind: str = LEFT_OUT):
        made = super().__new__(cls, sentence)
        made.kind = kind
        return made


@dataclass(frozen=True)
class RunLogs:
    """The configuration and logs of one run (one algorithm, task and seed)."""

    path: Path
    algo: str
    env: str
    seed: int
    steps: int  # agent steps requested
    command: str
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    metrics: Mapping[str, Series] = field(default_factory=dict)
    evaluation: Mapping[str, Series] = field(default_factory=dict)  # by column of eval.csv
    cut: bool = False  # training reached its last step, but eval.csv ends before it
    ended: bool = False  # by --stop-at: it is finished, though before its last step

    @property
    def returns(self) -> Series | None:
        """Evaluation returns; if there are none, returns of training episodes."""
        return self.evaluation.get("mean_return") or self.metrics.get("rollout/ep_rew_mean")

    @property
    def curve(self) -> Series | None:
        """The returns up to the last step requested: of a run that --stop-at ended, the last one carried forward."""
        return carried(self.returns, self.steps) if self.returns is not None and self.ended else self.returns

    @property
    def videos(self) -> list[Path]:
        """The recorded videos, regular files only."""
        folder = self.path / "videos"
        found = sorted(folder.glob("*.mp4")) if folder.is_dir() and not folder.is_symlink() else []
        return [path for path in found if path.is_file() and not path.is_symlink()]

    def states(self) -> tuple[FloatArray, FloatArray] | None:
        """Recorded states as (step [M], obs [M, d]), or None if the run recorded none."""
        path = inside(self.path, "states.npz")
        return read_states(path) if path.exists() else None


def carried(series: Series, steps: int) -> Series:
    """A series whose last value stays until `steps`, at points as far apart as its own."""
    last = series.step[-1]
    if last >= steps:
        return series
    every = float(np.median(np.diff(series.step))) if len(series.step) > 1 else float(last or steps)
    after = np.append(np.arange(last, steps, max(every, (steps - last) / CARRIED))[1:], float(steps))
    repeat = series.env_step[-1] / last if last else 1.0
    added = (after, after * repeat, np.full(len(after), series.value[-1]))
    own = (series.step, series.env_step, series.value)
    return Series(*(np.concatenate(pair) for pair in zip(own, added)))


def find_runs(
    paths: Iterable[str | os.PathLike[str]], problems: list[str] | None = None, names: Container[str] | None = None
) -> list[RunLogs]:
    """Find and read every run in or below some directories.

    Args:
      paths: directories of runs, of seeds, or of any of those up to `DEPTH` levels deeper.
      problems: a sentence about each thing that could not be read is appended here.
      names: the metrics to keep; all if None.

    Returns:
      The runs, each once, in the order of their paths.

    Example:
      >>> find_runs(["results/mountain-car"])  # doctest: +SKIP
    """
    problems = [] if problems is None else problems
    seen, runs = set(), []
    for given in paths:
        with reading(given):
            top = Path(given).resolve(strict=True)
        found = [folder for folder in run_folders(top) if folder not in seen]
        seen.update(found)
        for folder in found:
            with collect_problems(problems):
                runs.append(read_run_logs(folder, problems, names))
    return runs


def read_run_logs(folder: Path, problems: list[str] | None = None, names: Container[str] | None = None) -> RunLogs:
    """Read one run; damaged logs are appended to `problems`, a damaged config.toml raises `BadInput`."""
    problems = [] if problems is None else problems
    config = _read_config(folder)
    damage: list[str] = []
    logs = _read_logs(folder, config, damage, names)
    problems += [Problem(sentence, DAMAGED) for sentence in damage]
    versions = config.get("versions", {})
    return RunLogs(
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
    """The fields of `RunLogs` that come from metrics.jsonl and eval.csv."""
    metrics, logged, evaluation = {}, 0.0, {}
    with collect_problems(damage):
        evaluation = read_evaluation(inside(folder, "eval.csv"), damage)
    reported = bool(damage)
    with collect_problems(damage):
        metrics, logged = read_metrics(inside(folder, "metrics.jsonl"), damage, names)
    if (cut := _is_cut(folder, config, logged, evaluation)) and not reported:
        last = f"its last evaluation is at step {evaluation['mean_return'].step[-1]:.0f}"
        damage.append(f"{printable(folder / 'eval.csv')} is incomplete: {last}, but the run reached {config['steps']}")
    ended = not cut and "mean_return" in evaluation and _ended(folder, config)
    return {"metrics": metrics, "evaluation": evaluation, "cut": cut, "ended": ended}


def _ended(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether --stop-at ended a run: it and all seeds that train with it had an evaluation as good."""
    settings, together = config.get("settings"), config.get("together", ())
    threshold = settings.get("stop_at") if isinstance(settings, dict) else None
    if not isinstance(threshold, (int, float)) or not isinstance(together, (list, tuple)):
        return False
    seeds = [folder.parent / f"seed-{seed}" for seed in together if type(seed) is int] or [folder]
    return all(reached(seed, threshold, config["steps"]) for seed in seeds)


def _is_cut(folder: Path, config: Mapping[str, Any], logged: float, evaluation: Mapping[str, Series]) -> bool:
    """Whether the last evaluations are missing: training ends with one, unless evaluation was off."""
    settings = config.get("settings")
    off = isinstance(settings, dict) and settings.get("eval_episodes") == 0
    if off or "mean_return" not in evaluation or evaluation["mean_return"].step[-1] >= config["steps"]:
        return False
    saved = []
    with suppress(BadInput, OSError):
        saved = CheckpointStore(inside(folder, "checkpoints")).steps()
    return max([logged, *saved]) >= config["steps"]


def run_folders(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Directories of single runs: those with logs, else those with a config.toml and no seed-N below."""
    children = _subfolders(folder)
    names = {entry.name for entry in children}
    seeds = any(name.startswith("seed-") for name in names)
    try:
        has = {name: (folder / name).exists() for name in ("config.toml", "metrics.jsonl", "eval.csv")}
    except OSError:  # reading the run will report why
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
    """The config.toml of the run or, for `seed-N`, of the directory above, with this seed."""
    own, shared = inside(folder, "config.toml"), inside(folder.parent, "config.toml")
    seed = folder.name.removeprefix("seed-")
    if own.exists() or not (folder.name.startswith("seed-") and seed.isdecimal() and shared.exists()):
        config, where = read_toml(own), own
    else:
        config, where = {**read_toml(shared), "seed": int(seed[:18])}, shared
    for name, kind in (("algo", str), ("env", str), ("seed", int), ("steps", int)):
        if type(config.get(name)) is not kind:
            raise BadInput(f"{printable(where)} has no {name}: it is not a run of this version, run it again")
    return config
