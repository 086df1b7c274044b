"""Run directories: created whole or not at all, read without trusting what is in them."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from maxinforl import config, files
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.settings import Settings, read_settings, settings_table, title
from maxinforl.spaces import Spaces, read_spaces
from maxinforl.training.lock import LOCK, RunLock
from maxinforl.training.log import evaluated_step
from maxinforl.training.store import CheckpointStore, xla_threads

PACKAGES = ("maxinforl", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco", "dm-control")
FORMAT = 1
LOG_LIMIT = 64 * files.MiB  # of an eval.csv that is read whole
WRITTEN = re.compile(  # what runs put into their directories
    r"config\.toml|metrics\.jsonl|eval\.csv|checkpoints|states\.npz|(curve|phase)\.png|videos|tensorboard|wandb|best|"
    rf"bad-batch-\d+\.safetensors|{re.escape(LOCK)}|{re.escape(files.TEMPORARY)}\w+"
)
ENTRIES: dict[str, Callable[[Any], bool]] = {  # entries that a run may have, and what they must be
    "by_name": lambda value: isinstance(value, bool),
    "continues": lambda value: isinstance(value, bool),
    "planned": lambda value: type(value) is int and 0 < value < 2**31,
    "prior": lambda value: isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None,
    "together": lambda value: isinstance(value, list) and all(type(n) is int and 0 <= n < 2**32 for n in value),
    "history": lambda value: isinstance(value, list) and all(isinstance(entry, dict) for entry in value),
}


def next_directory(root: Path = Path("runs")) -> Path:
    """A new numbered directory under `root`."""
    taken = [int(m[1]) for p in root.glob("run-*") if (m := re.fullmatch(r"run-(\d+)", p.name))]
    return root / f"run-{max(taken, default=0) + 1:03d}"


def check_free(out: Path, overwrite: bool = False, hint: str = "") -> None:
    """Refuses a directory that already holds a run, or anything else; with `overwrite` only the latter."""
    hint = hint or f"continue it with `maxinforl resume {out}`, or add --overwrite"
    with files.reading(out):
        if out.exists() and not out.is_dir():
            raise BadInput(f"--out {files.printable(out)} is a file: name a directory")
        if above := next((p for p in out.parents if p.exists() and not p.is_dir()), None):
            raise BadInput(
                f"--out {files.printable(out)} lies below a file, {files.printable(above)}: name a directory"
            )
        if not out.exists() or holds_nothing(out):
            return
        own = is_run(out) or any(is_run(path.parent) for path in out.glob("seed-*/config.toml"))
    if not own:
        raise BadInput(
            f"{files.printable(out)} is not empty and holds no run: name another directory, or empty this one"
        )
    if not overwrite:
        raise BadInput(f"{out} already holds a run: {hint}")
    with files.reading(out):
        if found := next(foreign_files(out), None):
            raise BadInput(f"{files.printable(found)} was not written by a run: move it, or name another directory")


def holds_nothing(path: Path) -> bool:
    """Whether a directory is empty but for what a process killed before its first config.toml leaves."""
    seed = lambda entry: re.fullmatch(r"seed-\d+", entry.name) and entry.is_dir() and not entry.is_symlink()
    left = lambda entry: entry.name == LOCK or files.is_temporary(entry.name) or (seed(entry) and holds_nothing(entry))
    return all(map(left, path.iterdir()))


def complete_seeds(out: Path) -> None:
    """Writes the config.toml of seeds that train together, where a kill came between the first one and the last."""
    for known in sorted(out.glob("seed-*/config.toml")):
        table = files.read_toml(files.inside(out, f"{known.parent.name}/config.toml"))
        together = read_run(known.parent)[2].get("together", ())
        seeds = {seed: files.inside(out, f"seed-{seed}") for seed in together}
        absent = [seed for seed, path in seeds.items() if not os.path.lexists(path / "config.toml")]
        if not absent or any(map(last_step, seeds.values())):
            continue
        for seed in absent:
            own = table | {"seed": seed, "settings": table["settings"] | {"seed": seed}}
            with RunLock(files.make_directory(seeds[seed])):
                files.write_toml(seeds[seed] / "config.toml", own)


def holds_run(path: Path) -> bool:
    """Whether there is a configuration to read, be it good or not."""
    with files.reading(path):
        return (path / "config.toml").exists() or any(path.glob("seed-*/config.toml"))


def is_run(path: Path) -> bool:
    """Whether a directory's config.toml is that of a run; one that is damaged is, where a run's logs are beside it."""
    if not os.path.lexists(path / "config.toml"):
        return False
    try:
        table = files.read_toml(path / "config.toml")
    except BadInput:
        table = {}
    if table:
        return of_run(table)
    return (path / "metrics.jsonl").is_file() or bool(CheckpointStore(path / "checkpoints").steps())


def of_run(table: dict[str, Any]) -> bool:
    """Whether a table is one that some version writes to a run's config.toml."""
    version, tables = table.get("format"), (table.get("settings"), table.get("agent"))
    return type(version) is int and version > 0 and all(isinstance(part, dict) for part in tables)


def foreign_files(path: Path) -> Iterator[Path]:
    """What no run writes in a directory or in those of its seeds."""
    for entry in sorted(path.iterdir()):
        seed = re.fullmatch(r"seed-\d+", entry.name)
        if seed and entry.is_dir() and not entry.is_symlink():
            yield from foreign_files(entry)
        elif entry.name == "config.toml":
            yield from [] if is_run(path) else [entry]
        elif not WRITTEN.fullmatch(entry.name) and not (seed and entry.is_symlink()):  # of which only the link goes
            yield entry


def clear(out: Path) -> None:
    """Removes the run that a directory holds; refused while a process has it, or where anything else is there."""
    check_free(out, overwrite=True)
    for config_file in (*out.glob("config.toml"), *out.glob("seed-*/config.toml")):
        if config_file.parent == out or not config_file.parent.is_symlink():
            with RunLock(config_file.parent):
                pass
    with files.writing(out):
        for entry in out.iterdir():
            files.remove(entry)


def commit() -> str:
    """The commit of the checkout this package runs from, or nothing where it was installed."""
    try:
        here = Path(__file__).parent
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5)
        tracked = subprocess.run(["git", "ls-files", __file__], cwd=here, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip() if tracked.stdout.strip() else ""


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()} | ({"commit": c} if (c := commit()) else {})
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """The command that runs, as a shell would take it; 'python' where a script of the user's runs."""
    ours = Path(sys.argv[0]).name.startswith("maxinforl") or Path(sys.argv[0]).parts[-2:] == (
        "maxinforl",
        "__main__.py",
    )
    return shlex.join(["maxinforl", *sys.argv[1:]]) if ours else "python"


def open_run(
    out: Path,
    settings: Settings,
    strategy: Strategy,
    spaces: Spaces,
    by_name: bool = True,
    together: Sequence[int] = (),
    planned: int | None = None,
    continues: bool = False,
    prior: str | None = None,
) -> Path:
    """Creates a run directory with its config.toml.

    Args:
        out: the directory, new or empty.
        settings: resolved settings.
        strategy: the agent.
        spaces: what the agent observes and does.
        by_name: whether the environment can be made anew from its name.
        together: the seeds that train in one program, this one's among them.
        planned: steps that schedules are made for, where that is not how many there will be.
        continues: whether the agent was trained before, so that only a checkpoint holds what it has learned.
        prior: what tells its prior data from any other, where it has some.
    """
    check_free(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{files.printable(out)} cannot be made: {files.os_error_reason(error)}") from None
    table = {
        "format": FORMAT,
        "algo": title(settings),
        "env": settings.env,
        "seed": settings.seed,
        "steps": settings.steps,
        "command": command_line(),
        "cores": xla_threads(),
        "by_name": by_name,
        **({"together": list(together)} if together else {}),
        **({"planned": planned} if planned else {}),
        **({"continues": True} if continues else {}),
        **({"prior": prior} if prior else {}),
        "versions": versions(),
        "spaces": spaces.table(),
        "settings": settings_table(settings),
        "agent": config.to_plain(strategy),
    }
    with RunLock(out):
        check_free(out)  # another process may have begun here meanwhile
        files.write_toml(out / "config.toml", table)
    return out


def read_run(path: Path, custom: Iterable[type] = ()) -> tuple[Settings, Strategy, dict[str, Any]]:
    """Settings, agent and the whole table of a run directory."""
    table = files.read_toml(files.inside(path, "config.toml"))
    files.check_format(table.get("format"), FORMAT, path / "config.toml", "the configuration of a run")
    for name in ("settings", "agent", "spaces"):
        if not isinstance(table.get(name), dict):
            raise BadInput(f"{path / 'config.toml'} lacks its [{name}] table")
    for name, fits in ENTRIES.items():
        if name in table and not fits(table[name]):
            raise BadInput(f"{path / 'config.toml'} is damaged: '{name}' is not what a run writes, restore it")
    read_spaces(table["spaces"])
    strategy = config.from_file(table["agent"], custom)
    if not isinstance(strategy, Strategy):
        raise BadInput(f"{path / 'config.toml'}: [agent] is not an exploration strategy")
    return read_settings(table["settings"]), strategy, table


def last_step(directory: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max(CheckpointStore(files.inside(directory, "checkpoints")).steps(), default=0)


def finished(directory: Path, settings: Settings, together: Sequence[int] = ()) -> bool:
    """Whether a run is at its last step, or was ended by --stop-at.

    By its checkpoints; where they were not kept, as in published results, by its logs. `together` are the seeds that
    train in one program, this one's among them.
    """
    saved = CheckpointStore(directory / "checkpoints").steps()
    if not saved:
        step = logged_steps(directory)
        return step >= settings.steps or (settings.stop_at is not None and reached(directory, settings.stop_at, step))
    seeds = [directory.parent / f"seed-{seed}" for seed in together] or [directory]
    return all(ended_at(seed, settings, max(saved)) for seed in seeds)


def ended_at(directory: Path, settings: Settings, step: int) -> bool:
    """Whether a run with a checkpoint at this step has nothing left to do."""
    if step >= settings.steps:
        return settings.eval_episodes == 0 or not lacks_evaluation(directory, step)
    return settings.stop_at is not None and reached(directory, settings.stop_at, step)


def lacks_evaluation(directory: Path, step: int) -> bool:
    """Whether a run that evaluates did not write down the evaluation of a step."""
    steps = [at for at, _ in evaluations(directory)]
    return bool(steps) and step not in steps


def reached(directory: Path, threshold: float, step: int) -> bool:
    """Whether an evaluation of a run up to a step has at least this mean return."""
    return any(at <= step and mean >= threshold for at, mean in evaluations(directory))


def evaluations(directory: Path) -> Iterator[tuple[int, float]]:
    """Step and mean return of every whole line of a run's eval.csv."""
    path = files.inside(directory, "eval.csv")
    if not path.exists():
        return
    with (
        files.regular_file(path, LOG_LIMIT, follow=False) as (file, _),
        open(file, errors="replace", closefd=False) as f,
    ):
        for line in f:
            with suppress(ValueError):
                yield evaluated_step(line), float(line.split(",")[3])


def logged_steps(directory: Path) -> int:
    """The last step a run evaluated or logged; -1 where it did neither."""
    evaluated, logged = (last_line(directory / name) for name in ("eval.csv", "metrics.jsonl"))
    steps = [-1]
    if (first := evaluated.partition(",")[0]).isdecimal():
        steps.append(int(first))
    with suppress(ValueError, KeyError, TypeError):
        steps.append(int(json.loads(logged)["step"]))
    return max(steps)


def last_line(path: Path) -> str:
    """The last whole line of a text file; nothing where there is none."""
    try:
        with files.regular_file(path, 1 << 62, follow=False) as (file, size):
            lines = os.pread(file, 8192, max(0, size - 8192)).decode(errors="replace").split("\n")
    except BadInput:
        return ""
    return lines[-2] if len(lines) > 1 else ""
