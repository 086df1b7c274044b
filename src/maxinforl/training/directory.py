"""Run directories: created whole or not at all, read without trusting what is in them."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from gymnasium.spaces import Box

from maxinforl import config, files
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.settings import Settings, title
from maxinforl.training.lock import LOCK, RunLock
from maxinforl.training.store import xla_threads

PACKAGES = ("maxinforl", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco", "dm-control")
FORMAT = 1
OWN: dict[str, Callable[[Any], bool]] = {  # entries that a run may have, and what they must be
    "by_name": lambda value: isinstance(value, bool),
    "planned": lambda value: type(value) is int and 0 < value < 2**31,
    "together": lambda value: isinstance(value, list) and all(type(n) is int and 0 <= n < 2**32 for n in value),
    "history": lambda value: isinstance(value, list) and all(isinstance(entry, dict) for entry in value),
}


def next_directory(root: Path = Path("runs")) -> Path:
    """A new numbered directory under `root`."""
    taken = [int(m[1]) for p in root.glob("run-*") if (m := re.fullmatch(r"run-(\d+)", p.name))]
    return root / f"run-{max(taken, default=0) + 1:03d}"


def check_free(out: Path, overwrite: bool = False) -> None:
    """Refuses a directory that already holds a run, or anything else."""
    if out.is_file():
        raise BadInput(f"--out {out} is a file: name a directory")
    if overwrite or not out.exists() or all(entry.name == LOCK for entry in out.iterdir()):
        return
    if holds_run(out):
        raise BadInput(f"{out} already holds a run: continue it with `maxinforl resume {out}`, or add --overwrite")
    raise BadInput(f"{out} is not empty and holds no run: name another directory")


def holds_run(path: Path) -> bool:
    return (path / "config.toml").exists() or any(path.glob("seed-*/config.toml"))


def clear(out: Path) -> None:
    """Removes the run that a directory holds, and nothing that is not a run's; refused while a process has it."""
    if holds_run(out):
        for config_file in (*out.glob("config.toml"), *out.glob("seed-*/config.toml")):
            if config_file.parent == out or not config_file.parent.is_symlink():  # a link is removed, not what it names
                with RunLock(config_file.parent):
                    pass
        for entry in out.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


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
    observation: Box,
    action: Box,
    by_name: bool = True,
    together: Sequence[int] = (),
    planned: int | None = None,
) -> Path:
    """Creates a run directory with its config.toml.

    `together` are the seeds of one program, this one's among them; `planned` are the steps that schedules are made for,
    where that is not how many there will be.
    """
    from maxinforl.agent import plain_settings, plain_spaces

    check_free(out)
    files.make_directory(out)
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
        "versions": versions(),
        "spaces": plain_spaces(observation, action),
        "settings": plain_settings(settings),
        "agent": config.to_plain(strategy),
    }
    with RunLock(out):
        check_free(out)  # another process may have begun here meanwhile
        files.write_toml(out / "config.toml", table)
    return out


def read_run(path: Path, custom: Iterable[type] = ()) -> tuple[Settings, Strategy, dict[str, Any]]:
    """Settings, agent and the whole table of a run directory."""
    from maxinforl.agent import read_settings, read_spaces

    table = files.read_toml(files.inside(path, "config.toml"))
    if not isinstance(table.get("format"), int) or table["format"] > FORMAT:
        raise BadInput(f"{path / 'config.toml'} is of a newer format: upgrade maxinforl to read it")
    for name in ("settings", "agent", "spaces"):
        if not isinstance(table.get(name), dict):
            raise BadInput(f"{path / 'config.toml'} lacks its [{name}] table")
    for name, fits in OWN.items():
        if name in table and not fits(table[name]):
            raise BadInput(f"{path / 'config.toml'} is damaged: '{name}' is not what a run writes, restore it")
    read_spaces(table["spaces"])
    strategy = config.from_plain(table["agent"], custom=custom)
    if not isinstance(strategy, Strategy):
        raise BadInput(f"{path / 'config.toml'}: [agent] is not an exploration strategy")
    return read_settings(table["settings"]), strategy, table
