"""JSON and TOML files: small, checked while they are parsed, rejected with one sentence."""

import json
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import numpy as np
import tomli_w

from maxinforl.errors import BadInput
from maxinforl.files.atomic import MiB, opened, write_atomic
from maxinforl.files.problems import FileProblem, NestedTooDeep, PathLike, printable, reading

DEPTH = 64  # no file of ours nests deeper, and code that walks the value may recurse


# --- reading bounded files ---------------------------------------------------------------------------------------


@contextmanager
def regular_file(path: PathLike, limit: int, follow: bool = True) -> Iterator[tuple[int, int]]:
    """An open regular file of at most `limit` bytes, and its size; `follow` is whether it may be a symbolic link."""
    with reading(path), opened(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise FileProblem("is not a file")
        if status.st_size > limit:
            raise FileProblem(f"is too large: {status.st_size} bytes where at most {limit} are allowed")
        yield file, status.st_size


def read_exactly(file: int, size: int) -> np.ndarray:
    """The next `size` bytes, without a second copy."""
    buffer = np.empty(size, np.uint8)
    view = buffer.data
    while view:
        count = os.readv(file, [view])
        if count == 0:
            raise FileProblem("is cut short")
        view = view[count:]
    return buffer


def _read_bytes(path: PathLike, limit: int) -> bytes:
    with regular_file(path, limit) as (file, size):
        return read_exactly(file, size).tobytes()


# --- parsing -----------------------------------------------------------------------------------------------------


def _checked(value: Any) -> Any:
    """The value, unless it nests too deep or holds integers or text that no other format could hold."""
    level = [value]
    for _ in range(DEPTH):
        for item in level:
            if isinstance(item, int) and abs(item) >= 1 << 64:
                raise ValueError("it holds an integer of more than 64 bits")
            if isinstance(item, str) and not item.isascii():
                item.encode()
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise RecursionError


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    return item if isinstance(item, list) else ()


@contextmanager
def _parsing(language: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise NestedTooDeep(f"is nested too deep: at most {DEPTH} levels are allowed") from None
    except UnicodeError:
        raise FileProblem("is not UTF-8 text") from None
    except ValueError as error:  # of the parsers, and of the checks here
        raise FileProblem(f"is not valid {language}: {printable(str(error))}") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{printable(text)} is not a finite number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {name!r} appears twice")
    return value


# --- JSON --------------------------------------------------------------------------------------------------------


def parse_json(data: bytes) -> Any:
    """The value of JSON text; FileProblem if it is not valid."""
    with _parsing("JSON"):
        text = data.decode()
        return _checked(json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite))


def dump_json(value: Any, indent: int | None = None) -> bytes:
    """A value as UTF-8 JSON, compact unless indented; BadInput for what `read_json` would reject."""
    separators = None if indent else (",", ":")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators).encode()
    except ValueError as error:
        raise BadInput(f"what should be saved is not valid JSON: {error}") from None


def read_json(path: PathLike, limit: int = 16 * MiB) -> Any:
    """The value in a JSON file of at most `limit` bytes: UTF-8, finite numbers, unique names, nested up to `DEPTH`."""
    with reading(path):
        return parse_json(_read_bytes(path, limit))


def write_json(path: PathLike, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, dump_json(value, indent=2) + b"\n")


# --- TOML --------------------------------------------------------------------------------------------------------

# tomllib takes quadratic time for keys of very many parts, so they are rejected before it parses them.
_TOML_TEXT = re.compile(
    r'''#[^\n]*|"""(?:[^\\]|\\.)*?(?:"""|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:[^"\\\n]|\\[^\n])*"?|'[^'\n]*'?''', re.DOTALL
)
_TOML_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEPTH}}}")


def read_toml(path: PathLike, limit: int = 1 * MiB) -> dict[str, Any]:
    """The table in a TOML file of at most `limit` bytes: finite numbers, nested up to `DEPTH`."""
    with reading(path):
        data = _read_bytes(path, limit)
        return parse_toml(data)


def parse_toml(data: bytes) -> dict[str, Any]:
    """The table of TOML text; FileProblem if it is not valid."""
    with _parsing("TOML"):
        text = data.decode()
        if _TOML_LONG_KEY.search(_TOML_TEXT.sub("q", text)):
            raise RecursionError
        return _checked(tomllib.loads(text, parse_float=_finite))


def write_toml(path: PathLike, value: Mapping[str, Any]) -> None:
    """Write a TOML file atomically."""
    write_atomic(path, tomli_w.dumps(value).encode())


# --- sealed JSON -------------------------------------------------------------------------------------------------
# A sealed file begins with the SHA-256 of itself, computed with that digest blanked: every bit is covered.

BLANK = b"0" * 64
SEALED_START = b'{\n  "sha256": "'


def digest(chunks: Iterable[Any]) -> bytes:
    """The SHA-256 of several buffers, as hexadecimal digits."""
    found = sha256()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest().encode()


def write_sealed_json(path: PathLike, value: Any) -> None:
    """Write a JSON value atomically, with a checksum that `read_sealed_json` verifies."""
    text = dump_json({"sha256": BLANK.decode(), "content": value}, indent=2) + b"\n"
    write_atomic(path, text.replace(BLANK, digest([text]), 1))


def read_sealed_json(path: PathLike, limit: int = 16 * MiB) -> Any:
    """The value in a sealed JSON file; a single changed bit is rejected."""
    with reading(path):
        data = _read_bytes(path, limit)
        if not data.startswith(SEALED_START):
            raise FileProblem("was not written by maxinforl, or its beginning is damaged")
        start, end = len(SEALED_START), len(SEALED_START) + len(BLANK)
        if data[start:end] != digest([data[:start], BLANK, data[end:]]):
            raise FileProblem("is damaged: its content does not match its checksum, restore it from a copy")
        return parse_json(data).get("content")
