"""Arrays in safetensors files with a checksum, and in .npz files for others to read."""

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from maxinforl.errors import BadInput, RunFailed, UserError
from maxinforl.files.atomic import MiB, write_atomic
from maxinforl.files.problems import FileProblem, PathLike, printable
from maxinforl.files.tables import BLANK, digest, dump_json, parse_json, regular_file

GiB = 1 << 30
CHUNK = 1 << 18  # bytes read at once to compute a checksum
FORMAT = 1
HEADER_LIMIT = 1 * MiB  # the safetensors package allows 100 MB, which would take several times as much memory to parse
START = b'{"__metadata__":{"sha256":"'
CODES = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32",
    "<u8": "U64", "<i8": "I64", "<f2": "F16", "<f4": "F32", "<f8": "F64",
}  # fmt: skip

Arrays = dict[str, np.ndarray]
Expected = Mapping[str, tuple[tuple[int, ...], Any]]


# --- safetensors -------------------------------------------------------------------------------------------------
# Written here, because `safetensors.numpy.save_file` makes files that only their owner may read and leaves temporary
# files under names of its own when it is killed. Every file is sealed: its header begins with the SHA-256 of the file,
# computed with that digest blanked.


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
        _check_start(os.pread(file, 8 + len(START), 0), size)
        with _safetensors_errors(), safe_open(path, framework="np", backend="pread") as content:
            # not with mmap, which would end the process with SIGBUS if the file were cut while it is read
            meta = _read_meta(content.metadata() or {})
            _check_types(content)
            _check_seal(file, checksum)
            arrays = content.get_tensors()
        _check_booleans(arrays)
        if expect is not None:
            _check_expected(arrays, expect)
    return arrays, meta


def _check_start(first: bytes, size: int) -> None:
    length = int.from_bytes(first[:8], "little")
    if first[8:] != START[: len(first[8:])] or length > HEADER_LIMIT:
        raise FileProblem("is not an array file written by maxinforl, or its beginning is damaged")
    if not len(first) < 8 + length <= size:
        raise FileProblem("is cut short: restore it from a copy")


@contextmanager
def _safetensors_errors() -> Iterator[None]:
    """Errors of the package, and of NumPy for shapes that it cannot hold."""
    try:
        yield
    except (SafetensorError, ValueError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise FileProblem(f"is damaged or cut short: {printable(str(error))}, restore it from a copy") from None


def _check_types(content: safe_open) -> None:
    """Rejects what `save_arrays` never writes, such as bfloat16, for which the package would import other modules."""
    for name in content.offset_keys():
        if (code := content.get_slice(name).get_dtype()) not in CODES.values():
            raise FileProblem(f"is damaged: {printable(repr(name))} has the unknown type {printable(code)}")


def _check_seal(file: int, recorded: str | None) -> None:
    start, end = 8 + len(START), 8 + len(START) + len(BLANK)
    found = os.pread(file, len(BLANK), start)
    if found != digest(chain([os.pread(file, start, 0), BLANK], _chunks(file, end))):
        raise FileProblem("is damaged: its content does not match its checksum, restore it from a copy")
    if recorded not in (None, found.decode()):
        raise FileProblem("is not the file that was recorded here: restore it from a copy")


def _chunks(file: int, position: int) -> Iterator[bytes]:
    while chunk := os.pread(file, CHUNK, position):
        yield chunk
        position += len(chunk)


def _read_meta(metadata: dict[str, str]) -> dict[str, Any]:
    version, text = metadata.get("format"), metadata.get("meta")
    if version != str(FORMAT):
        raise FileProblem(
            f"has format {printable(repr(version))} where this maxinforl reads {FORMAT}: use a matching version"
        )
    meta = None if text is None else parse_json(text.encode())
    if not isinstance(meta, dict):
        raise FileProblem("is damaged: its header holds no meta, restore it from a copy")
    return meta


def _check_booleans(arrays: Arrays) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
            raise FileProblem(f"is damaged: {printable(repr(name))} has invalid boolean bytes, restore it from a copy")


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


def read_npz(path: PathLike, names: Iterable[str], limit: int = 2 * GiB) -> list[np.ndarray]:
    """The named arrays of numbers in an .npz file; none may be larger than the file, so compression cannot blow up.

    >>> step, obs = read_npz("runs/a/states.npz", ("step", "obs"))
    """
    try:
        with (
            regular_file(path, limit) as (file, size),
            open(file, "rb", closefd=False) as raw,
            zipfile.ZipFile(raw) as archive,
        ):
            return [_npz_member(archive, f"{name}.npy", size) for name in names]
    except BadInput:
        raise
    except _NPZ_PROBLEMS as error:
        reason = printable(str(error))
        raise BadInput(f"{printable(path)} is damaged: {reason}, restore it from a copy or remove it") from None


def _npz_member(archive: zipfile.ZipFile, name: str, size: int) -> np.ndarray:
    found = archive.getinfo(name)
    if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # the file decides the memory of others
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
