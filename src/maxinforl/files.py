"""Files that survive: written whole or not at all, checked before they are believed, refused in one sentence.

Nothing here runs code from a file, follows a symlink inside a run, or allocates by what a header merely claims.
"""

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import tokenize
import tomllib
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from maxinforl.errors import BadInput, RunFailed

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
TEMPORARY = ".tmp-"  # what a killed process may leave behind; never read, always safe to delete
DEPTH = 64  # no file of ours nests deeper, and whoever walks the value may recurse

PathLike = str | os.PathLike[str]
Arrays = dict[str, np.ndarray]
Expected = Mapping[str, tuple[tuple[int, ...], Any]]


def stage(name: str) -> None:
    """Called between the steps of every write; tests replace it to stop the process there."""


# --- sentences ---------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """What is wrong with the file being read; `reading` puts the file's name before it."""


MEANING = {
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


def meaning(error: OSError) -> str:
    """What an operating system error means to a user."""
    return MEANING.get(error.errno or 0) or (error.strerror or type(error).__name__).lower()


def told(error: OSError) -> str:
    """One sentence about an operating system error that nothing nearer to it explained."""
    if error.errno is None:
        return shown(f"{type(error).__name__}: {error}")
    named = isinstance(error.filename, (str, bytes))
    return f"{shown(os.fsdecode(error.filename))} cannot be used: {meaning(error)}" if named else meaning(error)


def shown(text: PathLike) -> str:
    """A name from a file or command line, safe to print on one line."""
    text = os.fspath(text)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 300 else f"{text[:140]}...{text[-140:]}"


@contextmanager
def reading(path: PathLike) -> Iterator[None]:
    """Turn whatever goes wrong while reading `path` into one sentence."""
    try:
        yield
    except _Refused as problem:
        raise BadInput(f"{shown(path)} {problem}") from None
    except FileNotFoundError:
        raise BadInput(f"{shown(path)} does not exist") from None
    except OSError as error:
        raise BadInput(f"{shown(path)} cannot be read: {meaning(error)}") from None
    except MemoryError:
        raise BadInput(f"{shown(path)} does not fit in memory") from None


@contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """Turn whatever goes wrong while writing `path` into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"{shown(path)} cannot be written: {meaning(error)}") from None


@contextmanager
def running() -> Iterator[None]:
    """Turn an operating system error that a run meets into the one sentence that ends it."""
    try:
        yield
    except BrokenPipeError:  # whoever read what it prints has left
        raise
    except OSError as error:
        raise RunFailed(told(error)) from None


# --- names -------------------------------------------------------------------------------------------------------


def inside(directory: PathLike, name: str) -> Path:
    """The path of `name` in `directory`; refuses names that lead out of it and symlinks on the way."""
    path, parts = Path(directory), PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable():
        raise BadInput(f"{shown(directory)} refers to {shown(repr(name))}, which is not a plain name inside it")
    for part in parts:
        path = path / part
        with reading(path), suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                raise _Refused("is a symbolic link: put the file itself there")
    return path


def make_directory(path: PathLike) -> Path:
    """Create a directory and its parents, or say why that cannot be."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def clear_temporary(directory: Path) -> None:
    """Remove what a killed process left half written; only for the holder of the run's lock."""
    for path in directory.glob(TEMPORARY + "*"):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link (not what it points to) or a directory with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


# --- writing -----------------------------------------------------------------------------------------------------


def write_atomic(path: PathLike, data: bytes | Iterable[Any]) -> None:
    """Replace `path` by `data` (bytes, or several buffers in order): after a crash it holds the old or the new."""
    path = Path(path)
    temporary = path.with_name(TEMPORARY + secrets.token_hex(8))
    with writing(path):
        try:
            with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                for chunk in [data] if isinstance(data, bytes) else data:
                    _write_all(file, chunk)
                    stage(f"{path.name} writing")
                os.fsync(file)
            stage(f"{path.name} written")
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        stage(f"{path.name} renamed")
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the renames and removals in a directory durable."""
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
        os.fsync(directory)


def append_line(path: PathLike, text: str) -> None:
    """Add one line to a log; a line that does not fit on the disk leaves no half behind."""
    with writing(path), _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW) as file:
        before = os.fstat(file).st_size
        try:
            _write_all(file, (text + "\n").encode())
        except OSError:
            os.ftruncate(file, before)
            raise


def sync(path: PathLike) -> None:
    """Make a log durable, before a checkpoint that is to follow its lines."""
    with writing(path), _opened(path, os.O_RDONLY | os.O_NOFOLLOW) as file:
        os.fsync(file)


class Summary(NamedTuple):
    """What tells whether a log is the same: its length and CRC-32, which go on with every line."""

    length: int = 0
    crc: int = 0

    def then(self, data: bytes) -> "Summary":
        return Summary(self.length + len(data), zlib.crc32(data, self.crc))


def summary(path: PathLike) -> Summary:
    """The summary of a log, which may not exist yet."""
    found = Summary()
    if os.path.lexists(path):
        with reading(path), _opened(path, os.O_RDONLY | os.O_NOFOLLOW) as file:
            while chunk := os.read(file, MiB):
                found = found.then(chunk)
    return found


def cut_lines(path: PathLike, keep: Callable[[str], bool]) -> None:
    """Keep the whole lines that `keep` accepts; a last line without its newline was cut by a crash and goes."""
    with reading(path), _opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd, open(fd, "rb", closefd=False) as file:
        write_atomic(path, _kept_lines(file, keep))


def _kept_lines(file: Iterable[bytes], keep: Callable[[str], bool]) -> Iterator[bytes]:
    for number, line in enumerate(file, 1):
        try:
            if line.endswith(b"\n") and keep(line[:-1].decode()):
                yield line
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _Refused(f"has a damaged line {number}: correct or remove that line") from None


@contextmanager
def _opened(path: PathLike, flags: int) -> Iterator[int]:
    """A file descriptor; O_NONBLOCK because a pipe put in place of a file must not hang us."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _write_all(file: int, chunk: Any) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(file, rest) :]


# --- reading -----------------------------------------------------------------------------------------------------


@contextmanager
def _regular(path: PathLike, limit: int) -> Iterator[tuple[int, int]]:
    """An open regular file of at most `limit` bytes, and its size."""
    with reading(path), _opened(path, os.O_RDONLY) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _Refused("is not a file")
        if status.st_size > limit:
            raise _Refused(f"is too large: {status.st_size} bytes where at most {limit} are allowed")
        yield file, status.st_size


def _read_exactly(file: int, size: int) -> np.ndarray:
    buffer = np.empty(size, np.uint8)
    view = buffer.data
    while view:
        count = os.readv(file, [view])
        if count == 0:
            raise _Refused("is cut short")
        view = view[count:]
    return buffer


def _read_bytes(path: PathLike, limit: int) -> bytes:
    with _regular(path, limit) as (file, size):
        return _read_exactly(file, size).tobytes()


def _checked(value: Any) -> Any:
    """The value, unless it nests too deep or holds numbers or text that nothing else could hold."""
    level = [value]
    for _ in range(DEPTH):
        for item in level:
            if isinstance(item, int) and abs(item) >= 1 << 64:
                raise ValueError("it holds a whole number of more than 64 bits")
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
        raise _Refused(f"is nested too deep: at most {DEPTH} levels are allowed") from None
    except UnicodeError:
        raise _Refused("is not UTF-8 text") from None
    except ValueError as error:  # the parsers' own errors, duplicates, non-finite and endless numbers
        raise _Refused(f"is not valid {language}: {shown(str(error))}") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{shown(text)} is not a finite number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {name!r} appears twice")
    return value


def _parse_json(data: bytes) -> Any:
    with _parsing("JSON"):
        text = data.decode()
        return _checked(json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite))


def dump_json(value: Any, indent: int | None = None) -> bytes:
    """A value as UTF-8 JSON, compact unless indented; refuses what `read_json` would refuse."""
    separators = None if indent else (",", ":")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators).encode()
    except ValueError as error:
        raise BadInput(f"what should be saved is not valid JSON: {error}") from None


def read_json(path: PathLike, limit: int = 16 * MiB) -> Any:
    """The value in a JSON file: UTF-8, finite numbers, no name twice, no deeper than `DEPTH`."""
    with reading(path):
        return _parse_json(_read_bytes(path, limit))


def write_json(path: PathLike, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, dump_json(value, indent=2) + b"\n")


# tomllib takes quadratic time over keys of very many parts, so they are refused before it sees them.
_TOML_TEXT = re.compile(
    r'''#[^\n]*|"""(?:[^\\]|\\.)*?(?:"""|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:[^"\\\n]|\\[^\n])*"?|'[^'\n]*'?''', re.DOTALL
)
_TOML_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEPTH}}}")


def read_toml(path: PathLike, limit: int = 1 * MiB) -> dict[str, Any]:
    """The table in a TOML file: finite numbers, no deeper than `DEPTH`."""
    with reading(path):
        data = _read_bytes(path, limit)
        with _parsing("TOML"):
            text = data.decode()
            if _TOML_LONG_KEY.search(_TOML_TEXT.sub("q", text)):
                raise RecursionError
            return _checked(tomllib.loads(text, parse_float=_finite))


def write_toml(path: PathLike, value: Mapping[str, Any]) -> None:
    """Write a TOML file atomically."""
    write_atomic(path, tomli_w.dumps(value).encode())


# --- sealed files ------------------------------------------------------------------------------------------------
# A sealed file carries, near its beginning, the SHA-256 of itself with that digest blanked: no bit is left out.

BLANK = b"0" * 64
JSON_START = b'{\n  "sha256": "'
ARRAYS_START = b'{"__metadata__":{"sha256":"'


def _digest(*chunks: Any) -> bytes:
    seal = sha256()
    for chunk in chunks:
        seal.update(chunk)
    return seal.hexdigest().encode()


def _check_seal(head: bytes, start: int, rest: Any = b"") -> str:
    """The digest at `start` in `head`, once it is known to be that of head and rest."""
    end = start + len(BLANK)
    if head[start:end] != _digest(head[:start], BLANK, head[end:], rest):
        raise _Refused("is damaged: its content does not match its checksum, restore it from a copy")
    return head[start:end].decode()


def write_sealed_json(path: PathLike, value: Any) -> None:
    """Write a JSON value atomically, with a checksum that `read_sealed_json` verifies."""
    text = dump_json({"sha256": BLANK.decode(), "content": value}, indent=2) + b"\n"
    write_atomic(path, text.replace(BLANK, _digest(text), 1))


def read_sealed_json(path: PathLike, limit: int = 16 * MiB) -> Any:
    """The value in a sealed JSON file; a single changed bit is refused."""
    with reading(path):
        data = _read_bytes(path, limit)
        if not data.startswith(JSON_START):
            raise _Refused("was not written by maxinforl, or its beginning is damaged")
        _check_seal(data, len(JSON_START))
        return _parse_json(data).get("content")


# --- arrays ------------------------------------------------------------------------------------------------------
# Files in the safetensors format, which any safetensors reader opens; written and read here by hand because the
# seal must cover the header, large arrays should go to the disk without a second copy, and nothing in a header may
# be believed before it is compared with the size of the file.

FORMAT = 1
HEADER_LIMIT = 1 * MiB
DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
CODES = {np.dtype(name): code for code, name in DTYPES.items()}


def save_arrays(path: PathLike, arrays: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> str:
    """Write arrays and a JSON object as a sealed safetensors file, atomically; returns its checksum."""
    blocks = {name: _little(name, array) for name, array in arrays.items()}
    blocks = dict(sorted(blocks.items(), key=lambda item: (-item[1].itemsize, item[0])))  # keeps each one aligned
    metadata = {"sha256": BLANK.decode(), "format": str(FORMAT), "meta": dump_json(meta or {}).decode()}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, block in blocks.items():
        begin, end = end, end + block.nbytes
        header[name] = {"dtype": CODES[block.dtype], "shape": block.shape, "data_offsets": (begin, end)}
    text = dump_json(header)
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise RunFailed(f"{shown(path)} would need a header of {len(text)} bytes: write fewer arrays or less meta")
    head = len(text).to_bytes(8, "little") + text
    data = [block.reshape(-1).view(np.uint8) for block in blocks.values()]
    seal = _digest(head, *data)
    write_atomic(path, [head.replace(BLANK, seal, 1), *data])
    return seal.decode()


def _little(name: str, array: Any) -> np.ndarray:
    """The array, contiguous and little-endian; np.ascontiguousarray would turn a scalar into a vector."""
    array = np.asarray(array, order="C")
    dtype = array.dtype.newbyteorder("<")
    if dtype not in CODES or name == "__metadata__":
        raise BadInput(f"the array {shown(repr(name))} of type {array.dtype} cannot be saved: convert or rename it")
    return array.astype(dtype, copy=False)


def load_arrays(
    path: PathLike, *, expect: Expected | None = None, seal: str | None = None, limit: int = 4 * GiB
) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and meta of a sealed file, if they are whole and as expected (`seal`: the checksum recorded of it)."""
    with _regular(path, limit) as (file, size):
        head, header = _read_header(file, size)
        meta = _read_meta(header.pop("__metadata__"))
        layout = _layout(header, size - len(head))
        data = _read_exactly(file, size - len(head))
        found = _check_seal(head, 8 + len(ARRAYS_START), data)
        if seal is not None and found != seal:
            raise _Refused("is not the file that was recorded here: restore it from a copy")
        arrays = {name: _block(data, *place) for name, place in layout.items()}
        if expect is not None:
            _check_expected(arrays, expect)
    return arrays, meta


def _read_header(file: int, size: int) -> tuple[bytes, dict[str, Any]]:
    """The bytes before the data, and the header in them."""
    first = _read_exactly(file, min(size, 8 + len(ARRAYS_START))).tobytes()
    length = int.from_bytes(first[:8], "little")
    if first[8:] != ARRAYS_START[: len(first[8:])] or length > HEADER_LIMIT:
        raise _Refused("is not an array file written by maxinforl, or its beginning is damaged")
    if not len(first) < 8 + length <= size:
        raise _Refused("is cut short: restore it from a copy")
    head = first + _read_exactly(file, 8 + length - len(first)).tobytes()
    return head, _parse_json(head[8:])


def _read_meta(metadata: dict[str, Any]) -> dict[str, Any]:
    version, text = metadata.get("format"), metadata.get("meta")
    if version != str(FORMAT):
        raise _Refused(f"has format {shown(repr(version))} where this maxinforl reads {FORMAT}: use a matching version")
    meta = _parse_json(text.encode()) if isinstance(text, str) else None
    if not isinstance(meta, dict):
        raise _Refused("is damaged: its header holds no meta, restore it from a copy")
    return meta


Place = tuple[np.dtype, tuple[int, ...], int, int]


def _layout(header: dict[str, Any], size: int) -> dict[str, Place]:
    """Where each array lies; together they must fill the data exactly, in order."""
    layout, end = {}, 0
    for name, entry in header.items():
        dtype, shape, begin, stop = _entry(name, entry)
        if begin != end or stop - begin != math.prod(shape) * dtype.itemsize:
            raise _Refused(f"is damaged: its header lies about the array {shown(repr(name))}, restore it from a copy")
        layout[name], end = (dtype, shape, begin, stop), stop
    if end != size:
        problem = "is cut short" if end > size else "is damaged"
        raise _Refused(f"{problem}: its header declares {end} bytes of data and it has {size}, restore it from a copy")
    return layout


def _entry(name: str, entry: Any) -> Place:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [begin, stop]}:
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, stop))
            # NumPy counts elements as if empty axes had length 1, and in 64 bits
            if code in DTYPES and whole and len(shape) <= 32 and math.prod(max(n, 1) for n in shape) < 1 << 56:
                return np.dtype(DTYPES[code]), tuple(shape), begin, stop
    raise _Refused(f"is damaged: its header is wrong about the array {shown(repr(name))}, restore it from a copy")


def _block(data: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], begin: int, end: int) -> np.ndarray:
    if dtype.kind == "b" and end > begin and data[begin:end].max() > 1:
        raise _Refused("is damaged: it holds truth values that are neither true nor false, restore it from a copy")
    return data[begin:end].view(dtype).reshape(shape)


def _check_expected(arrays: Arrays, expect: Expected) -> None:
    if absent := expect.keys() - arrays.keys():
        raise _Refused(f"lacks the array {shown(repr(min(absent)))}: it belongs to another configuration")
    if extra := arrays.keys() - expect.keys():
        raise _Refused(f"has an array {shown(repr(min(extra)))} too many: it belongs to another configuration")
    for name, (shape, dtype) in expect.items():
        found = arrays[name]
        if found.shape != tuple(shape) or found.dtype != np.dtype(dtype):
            wanted, given = f"{np.dtype(dtype)}{list(shape)}", f"{found.dtype}{list(found.shape)}"
            raise _Refused(f"holds {name!r} as {given} where {wanted} is needed: it belongs to another configuration")


# --- plain arrays for others to read ---------------------------------------------------------------------------------

_NPZ_PROBLEMS = (
    *(zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError),
    *(tokenize.TokenError, SyntaxError),  # NumPy reads headers of old files as Python literals
)


def read_npz(path: PathLike, names: Iterable[str], limit: int = 2 * GiB) -> list[np.ndarray]:
    """Arrays of numbers in an .npz file, none larger than the file itself: what is compressed may not blow up."""
    try:
        with (
            _regular(path, limit) as (file, size),
            open(file, "rb", closefd=False) as raw,
            zipfile.ZipFile(raw) as archive,
        ):
            return [_npz_member(archive, f"{name}.npy", size) for name in names]
    except BadInput:
        raise
    except _NPZ_PROBLEMS as error:
        raise BadInput(f"{shown(path)} is damaged: {shown(str(error))}, restore it from a copy or remove it") from None


def _npz_member(archive: zipfile.ZipFile, name: str, size: int) -> np.ndarray:
    found = archive.getinfo(name)
    if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others take memory as the file asks
        raise ValueError(f"{name} is compressed in a way that NumPy never writes")
    most = min(found.file_size, size)
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
        claimed = math.prod(shape) * dtype.itemsize
        if dtype.kind not in "fiu" or min(shape, default=0) < 0:
            raise ValueError(f"{name} is not a plain array of numbers")
        if claimed > most:
            raise ValueError(f"{name} claims {claimed} bytes where {most} are allowed")
        return np.frombuffer(file.read(claimed), dtype).reshape(shape, order="F" if fortran else "C")


def check_format(version: Any, newest: int, path: Path, what: str) -> None:
    """Refuses a file that is not `what` it should be, or that a later version wrote."""
    if type(version) is not int or version < 1:
        raise BadInput(f"{path} is not {what}: name one, or restore it from a copy")
    if version > newest:
        raise BadInput(f"{path} is of a newer format: upgrade maxinforl to read it")
