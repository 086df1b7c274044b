"""Arrays in safetensors files with a checksum, and in .npz files for others to read."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from maxinforl.errors import BadInput, RunFailed
from maxinforl.files.atomic import MiB, write_atomic
from maxinforl.files.problems import FileProblem, PathLike, printable
from maxinforl.files.tables import BLANK, digest, dump_json, parse_json, read_exactly, regular_file

GiB = 1 << 30
FORMAT = 1
HEADER_LIMIT = 1 * MiB
START = b'{"__metadata__":{"sha256":"'
DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
CODES = {name: code for code, name in DTYPES.items()}

Arrays = dict[str, np.ndarray]
Expected = Mapping[str, tuple[tuple[int, ...], Any]]


# --- safetensors -------------------------------------------------------------------------------------------------
# Read and written without the safetensors package. Its `save_file` makes files that only their owner may read, leaves
# temporary files under names of its own when it is killed, and reports a full disk as text. Its reader would save no
# line, because limits, types, booleans and the seal must be checked in any case. Every file is sealed: its header
# begins with the SHA-256 of the file, computed with that digest blanked.


def save_arrays(path: PathLike, arrays: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> str:
    """Write arrays and a JSON object as a sealed safetensors file, atomically and without a copy of the arrays.

    Returns the checksum, which `load_arrays` verifies.

    >>> save_arrays("weights.safetensors", {"w": np.zeros((3, 2))}, {"step": 100})
    """
    blocks = {name: _block(name, array) for name, array in arrays.items()}
    blocks = dict(sorted(blocks.items(), key=lambda item: (-item[1].itemsize, item[0])))  # keeps each one aligned
    metadata = {"sha256": BLANK.decode(), "format": str(FORMAT), "meta": dump_json(meta or {}).decode()}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, block in blocks.items():
        begin, end = end, end + block.nbytes
        header[name] = {"dtype": CODES[block.dtype.str], "shape": block.shape, "data_offsets": (begin, end)}
    text = dump_json(header)
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise RunFailed(f"{printable(path)} would need a header of {len(text)} bytes: write fewer arrays or less meta")
    head = len(text).to_bytes(8, "little") + text
    data = [block.reshape(-1).view(np.uint8) for block in blocks.values()]
    checksum = digest([head, *data])
    write_atomic(path, [head.replace(BLANK, checksum, 1), *data])
    return checksum.decode()


def _block(name: str, array: Any) -> np.ndarray:
    """The array, contiguous and little-endian (np.ascontiguousarray would turn a scalar into a vector)."""
    array = np.asarray(array, order="C")
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in CODES or name == "__metadata__":
        raise BadInput(f"the array {printable(repr(name))} of type {array.dtype} cannot be saved: convert or rename it")
    return array.astype(dtype, copy=False)


def load_arrays(
    path: PathLike, *, expect: Expected | None = None, checksum: str | None = None, limit: int = 4 * GiB
) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the JSON object that `save_arrays` wrote.

    Args:
        path: the file, of at most `limit` bytes.
        expect: names with shapes and types; anything else is rejected.
        checksum: what `save_arrays` returned, if it was recorded elsewhere.

    BadInput if the file is damaged or not as expected. No more memory is allocated than the file has bytes.

    >>> arrays, meta = load_arrays("weights.safetensors")
    """
    with regular_file(path, limit) as (file, size):
        head, header = _read_header(file, size)
        meta = _read_meta(header.pop("__metadata__"))
        layout = _layout(header, size - len(head))
        data = read_exactly(file, size - len(head))
        found = _check_seal(head, data)
        if checksum not in (None, found):
            raise FileProblem("is not the file that was recorded here: restore it from a copy")
        arrays = {name: _array(data, *place) for name, place in layout.items()}
        if expect is not None:
            _check_expected(arrays, expect)
    return arrays, meta


def _read_header(file: int, size: int) -> tuple[bytes, dict[str, Any]]:
    """The bytes before the data, and the header in them."""
    first = read_exactly(file, min(size, 8 + len(START))).tobytes()
    length = int.from_bytes(first[:8], "little")
    if first[8:] != START[: len(first[8:])] or length > HEADER_LIMIT:
        raise FileProblem("is not an array file written by maxinforl, or its beginning is damaged")
    if not len(first) < 8 + length <= size:
        raise FileProblem("is cut short: restore it from a copy")
    head = first + read_exactly(file, 8 + length - len(first)).tobytes()
    return head, parse_json(head[8:])


def _check_seal(head: bytes, data: np.ndarray) -> str:
    """The checksum in the header, once it is known to be that of the file."""
    start, end = 8 + len(START), 8 + len(START) + len(BLANK)
    if head[start:end] != digest([head[:start], BLANK, head[end:], data]):
        raise FileProblem("is damaged: its content does not match its checksum, restore it from a copy")
    return head[start:end].decode()


def _read_meta(metadata: dict[str, Any]) -> dict[str, Any]:
    version, text = metadata.get("format"), metadata.get("meta")
    if version != str(FORMAT):
        raise FileProblem(
            f"has format {printable(repr(version))} where this maxinforl reads {FORMAT}: use a matching version"
        )
    meta = parse_json(text.encode()) if isinstance(text, str) else None
    if not isinstance(meta, dict):
        raise FileProblem("is damaged: its header holds no meta, restore it from a copy")
    return meta


Place = tuple[np.dtype, tuple[int, ...], int, int]


def _layout(header: dict[str, Any], size: int) -> dict[str, Place]:
    """Where each array lies; together they must fill the data exactly, in order."""
    layout, end = {}, 0
    for name, entry in header.items():
        dtype, shape, begin, stop = _entry(name, entry)
        if begin != end or stop - begin != math.prod(shape) * dtype.itemsize:
            raise FileProblem(f"is damaged: wrong size of the array {printable(repr(name))}, restore it from a copy")
        layout[name], end = (dtype, shape, begin, stop), stop
    if end != size:
        problem = "is cut short" if end > size else "is damaged"
        raise FileProblem(f"{problem}: its header declares {end} bytes of data, not {size}, restore it from a copy")
    return layout


def _entry(name: str, entry: Any) -> Place:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [begin, stop]}:
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, stop))
            # NumPy counts elements as if empty axes had length 1, and in 64 bits
            if code in DTYPES and whole and len(shape) <= 32 and math.prod(max(n, 1) for n in shape) < 1 << 56:
                return np.dtype(DTYPES[code]), tuple(shape), begin, stop
    raise FileProblem(f"is damaged: wrong entry for the array {printable(repr(name))}, restore it from a copy")


def _array(data: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], begin: int, end: int) -> np.ndarray:
    if dtype.kind == "b" and end > begin and data[begin:end].max() > 1:
        raise FileProblem("is damaged: it has invalid boolean bytes, restore it from a copy")
    return data[begin:end].view(dtype).reshape(shape)


def _check_expected(arrays: Arrays, expect: Expected) -> None:
    if absent := expect.keys() - arrays.keys():
        raise FileProblem(f"lacks the array {printable(repr(min(absent)))}: it belongs to another configuration")
    if extra := arrays.keys() - expect.keys():
        raise FileProblem(f"has an array {printable(repr(min(extra)))} too many: it belongs to another configuration")
    for name, (shape, dtype) in expect.items():
        found = arrays[name]
        if found.shape != tuple(shape) or found.dtype != np.dtype(dtype):
            wanted, given = f"{np.dtype(dtype)}{list(shape)}", f"{found.dtype}{list(found.shape)}"
            raise FileProblem(f"holds {name!r} as {given}, not {wanted}: it belongs to another configuration")


# --- .npz --------------------------------------------------------------------------------------------------------

_NPZ_PROBLEMS = (
    *(zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError),
    *(tokenize.TokenError, SyntaxError),  # NumPy reads headers of old files as Python literals
)


def read_npz(
    path: PathLike, names: Iterable[str], limit: int = 2 * GiB, *, rows: int | None = None, inflate: bool = False
) -> list[np.ndarray]:
    """The named arrays of numbers in an .npz file; none may be larger than the file, so compression cannot blow up.

    Args:
        path: the file, of at most `limit` bytes.
        names: of the arrays.
        limit: in bytes.
        rows: the most to read of each array, from the first on.
        inflate: whether compressed arrays, and flags, are welcome: the caller has looked at `npz_shapes`.

    >>> step, obs = read_npz("runs/a/states.npz", ("step", "obs"))
    """
    with _npz(path, limit) as (archive, size):
        most = 1 << 62 if inflate else size
        return [_npz_member(archive, f"{name}.npy", most, "fiub" if inflate else "fiu", rows) for name in names]


def npz_shapes(path: PathLike, limit: int = 1 << 62) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Names, shapes and types of the arrays in an .npz file, as it claims them."""
    with _npz(path, limit) as (archive, _):
        found = {}
        for entry in archive.namelist():
            with archive.open(entry) as file:
                shape, _, dtype = _npz_header(file)
                found[entry.removesuffix(".npy")] = (shape, dtype)
        return found


@contextmanager
def _npz(path: PathLike, limit: int) -> Iterator[tuple[zipfile.ZipFile, int]]:
    """The archive and its size; whatever is wrong with it is one sentence."""
    try:
        with (
            regular_file(path, limit) as (file, size),
            open(file, "rb", closefd=False) as raw,
            zipfile.ZipFile(raw) as archive,
        ):
            yield archive, size
    except BadInput:
        raise
    except _NPZ_PROBLEMS as error:
        reason = printable(str(error))
        raise BadInput(f"{printable(path)} is damaged: {reason}, restore it from a copy or remove it") from None


def _npz_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it is in Fortran's order, and type of an array."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    return read(file)


def _npz_member(archive: zipfile.ZipFile, name: str, size: int, kinds: str, rows: int | None = None) -> np.ndarray:
    found = archive.getinfo(name)
    if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # the file decides the memory of others
        raise ValueError(f"{name} is compressed in a way that NumPy never writes")
    most = min(found.file_size, size)
    with archive.open(name) as file:
        shape, fortran, dtype = _npz_header(file)
        claimed = math.prod(shape) * dtype.itemsize
        if dtype.kind not in kinds or min(shape, default=0) < 0:
            raise ValueError(f"{name} is not a plain array of numbers")
        if claimed > most:
            raise ValueError(f"{name} claims {claimed} bytes where {most} are allowed")
        if rows is not None and shape and not fortran:  # which has no rows one after the other
            shape = (min(rows, shape[0]), *shape[1:])
        array = _npz_bytes(file, math.prod(shape) * dtype.itemsize, name).view(dtype)
        return array.reshape(shape, order="F" if fortran else "C")


def _npz_bytes(file: Any, count: int, name: str) -> np.ndarray:
    buffer = np.empty(count, np.uint8)
    for begin in range(0, count, MiB):  # never a second copy
        part = file.read(min(MiB, count - begin))
        if len(part) < min(MiB, count - begin):
            raise EOFError(f"{name} is cut short")
        buffer[begin : begin + len(part)] = np.frombuffer(part, np.uint8)
    return buffer
