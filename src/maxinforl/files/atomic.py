"""Files and logs that survive a crash: replaced as a whole or not at all, appended by whole lines."""

import os
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from maxinforl.errors import BadInput
from maxinforl.files.problems import FileProblem, PathLike, printable, reading, writing

MiB = 1 << 20
TEMPORARY = ".tmp-"  # begins what a killed process may leave behind; never read, always safe to delete
STALE = 3600.0  # seconds after which nobody is writing a temporary file any more
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{16}")


def crash_point(name: str) -> None:
    """Called between the steps of every write; tests replace it to stop the process there."""


# --- names -------------------------------------------------------------------------------------------------------


def inside(directory: PathLike, name: str) -> Path:
    """The path of `name` in `directory`; BadInput for names that lead out of it and for symbolic links on the way.

    >>> inside("runs/a", "videos/0.mp4")
    PosixPath('runs/a/videos/0.mp4')
    """
    path, parts = Path(directory), PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable():
        raise BadInput(f"{printable(directory)} refers to {printable(repr(name))}, which is not a plain name inside it")
    for part in parts:
        path = path / part
        with reading(path), suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                raise FileProblem("is a symbolic link: put the file itself there")
    return path


def make_directory(path: PathLike) -> Path:
    """Create a directory and its parents; RunFailed says why that is impossible."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def clear_temporary(directory: Path, older: float = 0.0) -> None:
    """Remove what a killed process left half written: what is `older` than so many seconds, or, for the holder of the
    run's lock, all of it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in filter(is_temporary, os.listdir(directory)):
            with suppress(FileNotFoundError):
                if time.time() - os.lstat(directory / name).st_mtime >= older:
                    remove(directory / name)


def temporary_name() -> str:
    """A name for a file or directory that is still being written."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Whether this is a name that `temporary_name` gives."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def remove(path: Path) -> None:
    """Remove a file, a link (not what it points to) or a directory with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


# --- whole files -------------------------------------------------------------------------------------------------


def write_atomic(path: PathLike, data: bytes | Iterable[Any]) -> None:
    """Replace the content of `path` by `data` (bytes, or several buffers): after a crash it holds the old or the new.

    >>> write_atomic("runs/a/notes.txt", b"text")
    """
    path = Path(path)
    temporary = path.with_name(temporary_name())
    with suppress(OSError):
        clear_temporary(path.parent, older=STALE)
    with writing(path):
        try:
            with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                for chunk in [data] if isinstance(data, bytes) else data:
                    _write_all(file, chunk)
                    crash_point(f"{path.name} writing")
                os.fsync(file)
            crash_point(f"{path.name} written")
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        crash_point(f"{path.name} renamed")
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the renames and removals in a directory durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
        os.fsync(directory)


@contextmanager
def opened(path: PathLike, flags: int) -> Iterator[int]:
    """A file descriptor; O_NONBLOCK because opening a pipe in place of a file must not block."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _write_all(file: int, chunk: Any) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(file, rest) :]


# --- logs --------------------------------------------------------------------------------------------------------


def append_line(path: PathLike, text: str) -> None:
    """Add one line to a log; a line that does not fit on the disk is removed again."""
    with writing(path), opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW) as file:
        before = os.fstat(file).st_size
        try:
            _write_all(file, (text + "\n").encode())
        except OSError:
            os.ftruncate(file, before)
            raise


def sync(path: PathLike) -> None:
    """Make a log durable, before a checkpoint that counts on its lines."""
    with writing(path), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as file:
        os.fsync(file)


class LogChecksum(NamedTuple):
    """Length and CRC-32 of a log; both can be updated with every line."""

    length: int = 0
    crc: int = 0

    def then(self, data: bytes) -> "LogChecksum":
        """The checksum after `data` was appended."""
        return LogChecksum(self.length + len(data), zlib.crc32(data, self.crc))


def log_checksum(path: PathLike) -> LogChecksum:
    """The checksum of a log, which may not exist yet."""
    found = LogChecksum()
    if os.path.lexists(path):
        with reading(path), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as file:
            while chunk := os.read(file, MiB):
                found = found.then(chunk)
    return found


def filter_lines(path: PathLike, keep: Callable[[str], bool]) -> None:
    """Remove the lines of a log that `keep` rejects, and a last line without a newline, which a crash cut off.

    >>> filter_lines("eval.csv", lambda line: int(line.split(",")[0]) <= 1000)
    """
    with reading(path), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd, open(fd, "rb", closefd=False) as file:
        write_atomic(path, _kept_lines(file, keep))


def _kept_lines(file: Iterable[bytes], keep: Callable[[str], bool]) -> Iterator[bytes]:
    for number, line in enumerate(file, 1):
        try:
            if line.endswith(b"\n") and keep(line[:-1].decode()):
                yield line
        except (ValueError, LookupError, TypeError, RecursionError):
            raise FileProblem(f"has a damaged line {number}: correct or remove that line") from None
