"""Files: what is written comes back bit for bit, and what was not written by us is refused in one sentence."""

import errno
import json
import os
import resource
import tracemalloc
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from maxinforl import files
from maxinforl.errors import BadInput, RunFailed

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">f4", ">i8"]
ANY_ARRAY = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
# what JSON and TOML can both hold
LEAF = st.text(st.characters(exclude_categories=["Cs"])) | st.booleans() | st.integers(-(2**63), 2**63 - 1)
TREE = st.recursive(LEAF | st.floats(allow_nan=False, allow_infinity=False), st.lists, max_leaves=8)
TABLE = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), TREE, max_size=6)


def sentence(error: pytest.ExceptionInfo) -> str:
    """The message, which must be one line and name no Python."""
    text = str(error.value)
    assert text and "\n" not in text and len(text) < 900 and "Traceback" not in text, text
    return text


def refused(path: Path, read, *parts: str) -> None:
    with pytest.raises(BadInput) as error:
        read(path)
    text = sentence(error)
    assert path.name in text and all(part in text for part in parts), text


def forge(header: object, data: bytes = b"", start: bytes = files.arrays.START) -> bytes:
    """An array file with a true checksum whatever its header says: only an attacker would write it."""
    metadata = {"sha256": "0" * 64, "format": "1", "meta": "{}"}
    text = header if isinstance(header, bytes) else json.dumps({"__metadata__": metadata, **header}).encode()  # type: ignore
    text = text.replace(b'{"__metadata__": {"sha256": "', start, 1)
    whole = len(text).to_bytes(8, "little") + text + data
    return whole.replace(b"0" * 64, sha256(whole).hexdigest().encode(), 1)


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {"weight": random.normal(size=(3, 4)), "step": np.array(7), "mask": random.random(5) < 0.5}


# --- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.dictionaries(st.text(max_size=9).filter(lambda n: n != "__metadata__"), ANY_ARRAY, max_size=4), TABLE)
def test_arrays_round_trip_bit_for_bit(tmp_path_factory, arrays, meta):
    path = tmp_path_factory.getbasetemp() / "arrays"
    arrays = {name.encode(errors="ignore").decode(): array for name, array in arrays.items()}
    files.save_arrays(path, arrays, meta)
    found, said = files.load_arrays(path)
    assert said == meta and found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape and found[name].dtype == array.dtype.newbyteorder("<")
        assert found[name].tobytes() == array.astype(found[name].dtype).tobytes()
        assert found[name].flags.aligned and found[name].flags.writeable


def test_other_programs_read_our_arrays(tmp_path, arrays):
    files.save_arrays(tmp_path / "a", {**arrays, "turned": arrays["weight"].T, "every": np.arange(9)[::2]})
    theirs = load_file(tmp_path / "a")
    np.testing.assert_array_equal(theirs["turned"], arrays["weight"].T)
    np.testing.assert_array_equal(theirs["every"], [0, 2, 4, 6, 8])
    assert theirs["step"].shape == () and theirs["mask"].dtype == bool


def test_every_flipped_bit_is_noticed(tmp_path, arrays):
    path = tmp_path / "arrays"
    files.save_arrays(path, arrays, {"name": "a"})
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            refused(path, files.load_arrays)


def test_every_cut_and_every_addition_is_noticed(tmp_path, arrays):
    path = tmp_path / "arrays"
    files.save_arrays(path, arrays)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path, files.load_arrays, "cut short")
    path.write_bytes(whole + b"\0")
    refused(path, files.load_arrays, "damaged")


def test_foreign_files_are_told_apart(tmp_path, arrays):
    save_file(arrays, tmp_path / "theirs")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + bytes(100))
    np.save(tmp_path / "numpy", arrays["weight"])
    for name in ["theirs", "zip", "numpy.npy"]:
        refused(tmp_path / name, files.load_arrays, "not an array file written by maxinforl")
    refused(tmp_path / "absent", files.load_arrays, "does not exist")
    refused(tmp_path, files.load_arrays, "is not a file")


HUGE = 1 << 40
LIES = {
    "huge shape": ({"a": entry(shape=[HUGE])}, 8),
    "huge shape and range": ({"a": entry(shape=[HUGE], offsets=[0, 4 * HUGE])}, 8),
    "shape beyond 64 bits": ({"a": entry(shape=[2**62, 2**62], offsets=[0, 8])}, 8),
    "empty but endless": ({"a": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}, 0),
    "too many axes": ({"a": entry(shape=[1] * 65, offsets=[0, 4])}, 4),
    "negative shape": ({"a": entry(shape=[-1, -2])}, 8),
    "shape of truths": ({"a": entry(shape=[True, 2])}, 8),
    "shape of text": ({"a": entry(shape="2")}, 8),
    "fractional shape": ({"a": entry(shape=[2.0])}, 8),
    "shape too small": ({"a": entry(shape=[1])}, 8),
    "backward range": ({"a": entry(offsets=[8, 0])}, 8),
    "negative range": ({"a": entry(offsets=[-8, 0])}, 8),
    "range of three": ({"a": entry(offsets=[0, 8, 8])}, 8),
    "range of truths": ({"a": entry(shape=[], dtype="U8", offsets=[False, True])}, 1),
    "overlap": ({"a": entry(), "b": entry()}, 8),
    "hole": ({"a": entry(), "b": entry(offsets=[16, 24])}, 24),
    "data nobody owns": ({"a": entry()}, 16),
    "unknown type": ({"a": entry(dtype="BF16", shape=[4])}, 8),
    "object type": ({"a": entry(dtype="|O", shape=[1])}, 8),
    "type of number": ({"a": entry(dtype=3)}, 8),
    "no entry": ({"a": None}, 0),
    "entry of list": ({"a": [1]}, 0),
    "entry without shape": ({"a": {"dtype": "F32"}}, 0),
    "meta missing": ({"__metadata__": {"sha256": "0" * 64, "format": "1"}}, 0),
    "meta not JSON": ({"__metadata__": {"sha256": "0" * 64, "format": "1", "meta": "{"}}, 0),
    "meta not a table": ({"__metadata__": {"sha256": "0" * 64, "format": "1", "meta": "[]"}}, 0),
    "metadata of list": ({"__metadata__": {"sha256": "0" * 64, "format": [1], "meta": "{}"}}, 0),
    "truths that are neither": ({"a": entry(dtype="BOOL", shape=[3], offsets=[0, 3])}, 3),
}


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie_are_refused_without_allocating(tmp_path, lie):
    header, size = LIES[lie]
    (tmp_path / "lie").write_bytes(forge(header, b"\7" * size))
    tracemalloc.start()
    refused(tmp_path / "lie", files.load_arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < files.MiB


def test_a_forged_header_that_tells_the_truth_loads(tmp_path):
    (tmp_path / "a").write_bytes(forge({"a": entry()}, bytes(8)))
    assert files.load_arrays(tmp_path / "a")[0]["a"].tolist() == [0, 0]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 2**20 + 1, 2**40, 2**63, 2**64 - 1])
def test_header_lengths_that_lie_are_refused(tmp_path, length):
    whole = forge({"a": entry()}, bytes(8))
    (tmp_path / "a").write_bytes(length.to_bytes(8, "little") + whole[8:])
    refused(tmp_path / "a", files.load_arrays)


def test_headers_beyond_a_mebibyte_are_neither_written_nor_read(tmp_path, arrays):
    (tmp_path / "a").write_bytes(forge({"a" * files.MiB: entry()}, bytes(8)))
    refused(tmp_path / "a", files.load_arrays)
    with pytest.raises(RunFailed, match="write fewer arrays"):
        files.save_arrays(tmp_path / "b", arrays, {"a": "a" * files.MiB})


def test_headers_with_a_name_twice_or_too_deep_are_refused(tmp_path):
    head = b'{"__metadata__":{"sha256":"' + b"0" * 64 + b'","format":"1","meta":"{}"}'
    (tmp_path / "twice").write_bytes(forge(head + b',"a":1,"a":2}'))
    refused(tmp_path / "twice", files.load_arrays, "appears twice")
    (tmp_path / "deep").write_bytes(forge(head + b',"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    refused(tmp_path / "deep", files.load_arrays, "nested too deep")


def test_other_formats_say_which_one_is_read(tmp_path):
    metadata = {"sha256": "0" * 64, "format": "2", "meta": "{}"}
    (tmp_path / "a").write_bytes(forge({"__metadata__": metadata}))
    refused(tmp_path / "a", files.load_arrays, "format '2'", "reads 1")


def test_expectations_name_what_differs(tmp_path, arrays):
    path, expect = tmp_path / "a", {name: (array.shape, array.dtype) for name, array in arrays.items()}
    checksum = files.save_arrays(path, arrays)
    files.load_arrays(path, expect=expect, checksum=checksum)
    refused(path, lambda p: files.load_arrays(p, expect={**expect, "bias": ((), "f4")}), "lacks the array 'bias'")
    refused(path, lambda p: files.load_arrays(p, expect={"step": ((), "i8")}), "'mask' too many")
    refused(path, lambda p: files.load_arrays(p, expect={**expect, "step": ((1,), "i8")}), "int64[], not int64[1]")
    refused(path, lambda p: files.load_arrays(p, expect={**expect, "step": ((), "i4")}), "int64[], not int32[]")
    refused(path, lambda p: files.load_arrays(p, checksum="0" * 64), "not the file that was recorded")
    refused(path, lambda p: files.load_arrays(p, limit=100), "too large")


def test_loading_allocates_little_more_than_the_file(tmp_path):
    files.save_arrays(tmp_path / "a", {"a": np.zeros(4 * files.MiB, np.uint8)})
    tracemalloc.start()
    files.load_arrays(tmp_path / "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * files.MiB


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([1j]), np.zeros(2, "f4,i4")])
def test_arrays_that_no_file_holds_are_refused(tmp_path, array):
    with pytest.raises(BadInput) as error:
        files.save_arrays(tmp_path / "a", {"odd": array})
    assert "'odd'" in sentence(error) and not list(tmp_path.iterdir())


# --- JSON and TOML -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(TABLE)
def test_tables_round_trip(tmp_path_factory, table):
    path = tmp_path_factory.getbasetemp() / "table"
    files.write_json(path, table)
    assert files.read_json(path) == table
    files.write_toml(path, table)
    assert files.read_toml(path) == table
    files.write_sealed_json(path, table)
    assert files.read_sealed_json(path) == table


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 2_000_000, "nested too deep"),
        (b'{"a":' * 2_000_000, "nested too deep"),
        (b"[" * 65 + b"]" * 65, "nested too deep"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' appears twice"),
        (b"NaN", "not a finite number"),
        (b"[1, -Infinity]", "not a finite number"),
        (b"1e999", "not a finite number"),
        (b"9" * 5000, "not valid JSON"),
        (b"9" * 30, "more than 64 bits"),
        (b'"\xff"', "not UTF-8"),
        (b'"\\ud800"', "not UTF-8"),
        (b'{"\\ud800": 1}', "not UTF-8"),
        (b"", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b" " * (16 * files.MiB + 1), "too large"),
    ],
)
def test_json_that_is_refused(tmp_path, text, why):
    (tmp_path / "value.json").write_bytes(text)
    refused(tmp_path / "value.json", files.read_json, why)


LONG = files.MiB // 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"a = " + b"[" * LONG, "nested too deep"),
        (b"a = " + b"{a=" * 70 + b"1" + b"}" * 70, "nested too deep"),
        (b"a." * LONG + b"a = 1", "nested too deep"),
        (b"[" + b"a." * LONG + b"a]", "nested too deep"),
        (b'"," . ' * LONG + b"a = 1", "nested too deep"),
        (b'"\\"".' * LONG + b"a = 1", "nested too deep"),
        (b"# '''\n" + b"'#'." * LONG + b"a = 1", "nested too deep"),
        (b'x = {b = """\n""", ' + b"a." * LONG + b"a = 1}", "nested too deep"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"a = nan", "not a finite number"),
        (b"a = -inf", "not a finite number"),
        (b"a = 0x" + b"f" * 20, "more than 64 bits"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = '\xff'", "not UTF-8"),
        (b"a = !!python/object:os.system", "not valid TOML"),
        (b"#" * (files.MiB + 1), "too large"),
    ],
)
def test_toml_that_is_refused(tmp_path, text, why):
    (tmp_path / "config.toml").write_bytes(text)
    refused(tmp_path / "config.toml", files.read_toml, why)


def test_toml_that_looks_deep_and_is_not(tmp_path):
    dots = ".".join("abc" for _ in range(100))
    text = f"# {dots}\na = \"{dots}\"\nb = '{dots}'\nc = '''\n{dots}'''\nd = [{'0.5, ' * 100}]\n"
    (tmp_path / "config.toml").write_text(text)
    assert files.read_toml(tmp_path / "config.toml")["d"] == [0.5] * 100


@pytest.mark.parametrize("value", [float("nan"), {"best": float("-inf")}, "\udcff"])
def test_json_that_could_not_be_read_back_is_not_written(tmp_path, value):
    with pytest.raises(BadInput) as error:
        files.write_json(tmp_path / "a", value)
    assert "not valid JSON" in sentence(error) and not list(tmp_path.iterdir())


def test_every_flipped_bit_of_sealed_json_is_noticed(tmp_path):
    path = tmp_path / "manifest.json"
    files.write_sealed_json(path, {"step": 1, "meta": {"name": "a"}})
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            refused(path, files.read_sealed_json)
        path.write_bytes(whole[:place])
        refused(path, files.read_sealed_json)


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["..", "../a", "a/../../b", "/etc/passwd", "", ".", "a\0b", "a\nb", "..\\a", "\udcff", "a" * 5000, "/"]
)
def test_names_that_lead_outside_are_refused(tmp_path, name):
    with pytest.raises(BadInput) as error:
        files.inside(tmp_path, name)
    sentence(error)


def test_names_inside_are_paths_inside(tmp_path):
    assert files.inside(tmp_path, "a/b.json") == tmp_path / "a" / "b.json"
    assert files.inside(tmp_path, "./a..b") == tmp_path / "a..b"


def test_symlinks_inside_are_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "run" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "run" / "folder").symlink_to(tmp_path)
    (tmp_path / "run" / "dangling").symlink_to(tmp_path / "absent")
    for name in ["file", "folder", "folder/secret", "dangling"]:
        with pytest.raises(BadInput) as error:
            files.inside(tmp_path / "run", name)
        assert "symbolic link" in sentence(error)


def test_logs_are_never_written_through_symlinks(tmp_path):
    (tmp_path / "outside").write_text("a\n")
    (tmp_path / "log").symlink_to(tmp_path / "outside")
    with pytest.raises(RunFailed, match="symbolic link"):
        files.append_line(tmp_path / "log", "b")
    with pytest.raises(RunFailed, match="symbolic link"):
        files.sync(tmp_path / "log")
    with pytest.raises(BadInput, match="symbolic link"):
        files.filter_lines(tmp_path / "log", lambda line: False)
    assert (tmp_path / "outside").read_text() == "a\n"
    files.write_atomic(tmp_path / "log", b"new")
    assert (tmp_path / "outside").read_text() == "a\n" and not (tmp_path / "log").is_symlink()


def test_pipes_and_devices_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in [files.read_json, files.read_toml, files.load_arrays, files.read_sealed_json]:
        refused(tmp_path / "pipe", read, "is not a file")
        refused(Path("/dev/zero"), read, "is not a file")


def test_control_characters_in_names_are_not_printed(tmp_path):
    with pytest.raises(BadInput) as error:
        files.read_json(tmp_path / "a\n\x1b[31mb")
    assert "\x1b" not in sentence(error)


# --- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["writing", "written"])
def test_a_write_that_stops_leaves_the_old_file(tmp_path, monkeypatch, moment):
    def stop(name: str) -> None:
        if name == f"a {moment}":
            raise KeyboardInterrupt

    files.write_atomic(tmp_path / "a", b"old")
    monkeypatch.setattr(files.atomic, "crash_point", stop)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls: list[str] = []
    for name in ["fsync", "replace"]:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, real=real, name=name: (calls.append(name), real(*args))[1])
    files.write_atomic(tmp_path / "a", b"new")
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")]
)
def test_failed_writes_name_the_reason(tmp_path, monkeypatch, code, words):
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    files.write_atomic(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(RunFailed, match=words) as error:
        files.write_atomic(tmp_path / "a", b"new")
    assert str(tmp_path / "a") in sentence(error)
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_a_line_that_does_not_fit_leaves_no_half(tmp_path):
    path = tmp_path / "log"
    files.append_line(path, "first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(RunFailed, match="size allowed"):
            files.append_line(path, "second, which is too long")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "first\n"
    files.append_line(path, "ünd")
    assert path.read_text() == "first\nünd\n"


def test_logs_are_cut_back(tmp_path):
    path = tmp_path / "log"
    path.write_text("1\n2\nü3\n2\n4")
    files.filter_lines(path, lambda line: line != "2")
    files.sync(path)
    assert path.read_text() == "1\nü3\n"  # the last line was cut by a crash
    refused(tmp_path / "absent", lambda p: files.filter_lines(p, bool), "does not exist")


@pytest.mark.parametrize("line", [b"x,1", b"{", b"\xff", b"[" * 9999])
def test_a_damaged_line_of_a_log_is_named_and_nothing_is_cut(tmp_path, line):
    path = tmp_path / "log"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    refused(path, lambda p: files.filter_lines(p, lambda text: json.loads(text)["step"] < 2), "damaged line 2")
    assert path.read_bytes().endswith(b'{"step": 2}\n') and os.listdir(tmp_path) == ["log"]
