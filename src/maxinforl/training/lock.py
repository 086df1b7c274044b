"""One process per run directory: `with RunLock(directory): ...`.

The kernel's lock on `lock.json` ends with the process, however it dies. The file names its owner (pid, host, start
time), which also protects the run where the kernel cannot: on file systems without locks or shared between hosts.
The `filelock` package would replace only `_lock`: it raises on file systems without locks, and knows no owner.
"""

import fcntl
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from maxinforl import files
from maxinforl.errors import BadInput
from maxinforl.files import inside, printable

LOCK = "lock.json"
WRITTEN_IN = (
    "",
    "best",
    "best/earlier",
    "videos",
)  # directories of a run that have temporary files, beside checkpoints
_held: set[int] = set()


def _close_in_child() -> None:
    """A forked process that outlives the run must not keep its lock."""
    for file in _held:
        with suppress(OSError):
            os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """Holds a run directory for this process; entering raises BadInput if another one has it."""

    def __init__(self, directory: files.PathLike):
        self.directory = Path(directory)
        self._file: int | None = None

    def __enter__(self) -> "RunLock":
        path = inside(self.directory, LOCK)
        with files.writing(path):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            try:
                _claim(path, file)
            except BaseException:
                os.close(file)
                raise
        self._file = file
        _held.add(file)
        for name in WRITTEN_IN:  # nobody else writes here now
            with suppress(OSError):
                files.clear_temporary(self.directory / name)
        return self

    def __exit__(self, *_: object) -> None:
        """Release; the empty file stays, because removing it could let two processes lock two files of one name."""
        if self._file in _held:
            os.ftruncate(self._file, 0)
            _held.discard(self._file)
            os.close(self._file)
        self._file = None


def _claim(path: Path, file: int) -> None:
    free = _lock(file)
    owner = holder(path)
    if owner and owner["host"] != socket.gethostname():
        raise BadInput(f"{_in_use_message(path, owner)}: if that process is gone, delete {printable(path)}")
    if not free or (owner and _alive(owner)):
        raise BadInput(f"{_in_use_message(path, owner)}: wait for it, stop it, or use another directory")
    pid, since = os.getpid(), time.strftime("%FT%T%z")
    me = {"pid": pid, "host": socket.gethostname(), "born": _born(pid), "since": since}
    os.ftruncate(file, 0)
    os.pwrite(file, files.dump_json(me) + b"\n", 0)
    os.fsync(file)


def _lock(file: int) -> bool:
    """Take the kernel's lock; True also where there are none and the content of the file must decide."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def holder(path: Path) -> dict[str, Any] | None:
    """The owner that a lock file names; None if there is none, or if its process was killed while writing it."""
    with suppress(BadInput):
        match files.read_json(path, limit=4 * files.KiB):
            case {"pid": int(pid), "host": str(host), "born": str(born), "since": str(since)}:
                return {"pid": pid, "host": host, "born": born, "since": since}
    return None


def in_use(directory: files.PathLike) -> bool:
    """Whether a living process of this host holds the run."""
    owner = holder(Path(directory) / LOCK)
    return owner is not None and owner["host"] == socket.gethostname() and _alive(owner)


def _in_use_message(path: Path, owner: dict[str, Any] | None) -> str:
    if owner is None:
        return f"{printable(path.parent)} is in use by another process"
    who = f"pid {owner['pid']} on host {printable(owner['host'])} since {printable(owner['since'])}"
    return f"{printable(path.parent)} is in use by {who}"


def _alive(owner: dict[str, Any]) -> bool:
    """Whether that process still runs, not a later one with the same pid."""
    return owner["born"] != "" and _born(owner["pid"]) == owner["born"]


def _born(pid: int) -> str:
    """The boot and clock tick at which a process started; empty if it is gone (or the system does not say)."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # the name in brackets may hold anything; the state follows it, and the start time is 19 fields on
        state, *fields = re.sub(r".*\)", "", Path(f"/proc/{pid}/stat").read_text(), flags=re.DOTALL).split()
        if state not in "ZX":
            return f"{boot}/{fields[18]}"
    return ""
