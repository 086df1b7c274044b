"""One sentence for whatever goes wrong with a file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maxinforl.errors import BadInput, RunFailed

PathLike = str | os.PathLike[str]
REASONS = {
    errno.ENOSPC: "the disk is full, free some space",
    errno.EDQUOT: "the disk quota is used up, free some space",
    errno.EFBIG: "the file grew beyond the size allowed here, raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only, choose another directory",
    errno.EACCES: "permission denied, choose another directory or change its permissions",
    errno.EPERM: "the operation is not permitted, choose another directory or change its permissions",
    errno.EIO: "the disk reports an input/output error, check the hardware",
    errno.ELOOP: "it is a symbolic link, put the file itself there",
    errno.ENAMETOOLONG: "its name is too long, choose a shorter one",
    errno.ENOTDIR: "a part of its path is not a directory, choose another",
}


class FileProblem(Exception):
    """What is wrong with the file being read, without its name: `reading` puts the name before it."""


class NestedTooDeep(FileProblem):
    """Code that walks such a value may recurse too deep."""


def os_error_reason(error: OSError) -> str:
    """What an operating system error means to a user, without the name of the file."""
    return REASONS.get(error.errno or 0) or (error.strerror or type(error).__name__).lower()


def os_error_message(error: OSError) -> str:
    """One sentence about an operating system error that no caller has explained.

    >>> os_error_message(OSError(errno.ENOSPC, "", "runs/a"))
    'runs/a cannot be used: the disk is full, free some space'
    """
    if error.errno is None:
        return printable(f"{type(error).__name__}: {error}")
    reason = os_error_reason(error)
    named = isinstance(error.filename, (str, bytes))
    return f"{printable(os.fsdecode(error.filename))} cannot be used: {reason}" if named else reason


def printable(text: PathLike) -> str:
    """Text from a file or the command line, safe to print on one line: escaped and shortened where needed."""
    text = os.fspath(text)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 300 else f"{text[:140]}...{text[-140:]}"


@contextmanager
def reading(path: PathLike) -> Iterator[None]:
    """Raise BadInput with one sentence for whatever goes wrong while `path` is read."""
    try:
        yield
    except FileProblem as problem:
        raise BadInput(f"{printable(path)} {problem}") from None
    except FileNotFoundError:
        raise BadInput(f"{printable(path)} does not exist") from None
    except OSError as error:
        raise BadInput(f"{printable(path)} cannot be read: {os_error_reason(error)}") from None
    except MemoryError:
        raise BadInput(f"{printable(path)} does not fit in memory") from None


@contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """Raise RunFailed with one sentence for whatever goes wrong while `path` is written."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"{printable(path)} cannot be written: {os_error_reason(error)}") from None


@contextmanager
def running() -> Iterator[None]:
    """Raise RunFailed with one sentence for an operating system error during a run."""
    try:
        yield
    except BrokenPipeError:  # the reader of standard output is gone
        raise
    except OSError as error:
        raise RunFailed(os_error_message(error)) from None


def check_format(version: Any, newest: int, path: Path, what: str) -> None:
    """Raise BadInput if a file is not `what` it should be, or if a later version wrote it."""
    if type(version) is not int or version < 1:
        raise BadInput(f"{path} is not {what}: name one, or restore it from a copy")
    if version > newest:
        raise BadInput(f"{path} is of a newer format: upgrade maxinforl to read it")
