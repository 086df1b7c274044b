"""Whatever bytes a file holds, reading it gives a value or one sentence: no traceback, hang, flood of memory or write.

25 000 cases in all, of which an ordinary run tries every fortieth. Checksums would stop nearly every mutation at the
door, so files that carry one are sealed again after they were changed: what is tried is what an attacker would write,
not what a bad disk would.
"""

import json
import os
import random
import re
import shutil
import signal
import tomllib
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

import maxinforl
from maxinforl import cli, files
from maxinforl.errors import BadInput, RunFailed
from maxinforl.experiments.suite_file import read_suite
from maxinforl.settings import Settings, resolve
from maxinforl.training import checkpoint
from maxinforl.training.compiled import make_trainer
from maxinforl.training.directory import read_run
from maxinforl.training.lock import holder
from maxinforl.training.store import Checkpoint, CheckpointStore, Lane, Rows
from maxinforl.training.trainer import Trainer

MEMORY = 24 * files.MiB  # what any reader may take for files of at most a few kilobytes
Change = Callable[[random.Random, bytes], bytes]

ODD = [
    None, True, -1, 0, 1, 2, 0.5, 2**31, 2**40, 2**53, 10**15 - 1, 10**15, 2**63, 2**64 - 1, 1e308, "", "a", "..",
    "../../x", "/etc/passwd", "\0", "é", "U8", "F64", "BOOL", "1", "0" * 64, [], {}, [[]], [0], [0, 0], [2**62] * 3
]  # fmt: skip
TEXT = [*b'[ ] { } " \' """ \\ . , = # \0 \xff e nan inf 0x'.split(), b"\n"]


@pytest.fixture(params=[pytest.param(40, id="quick"), pytest.param(3, id="more", marks=pytest.mark.slow)])
def share(request) -> int:
    """One in how many cases is tried; benchmarks/fuzz.py tries tens of thousands."""
    return request.param


@pytest.fixture(autouse=True)
def guard(tmp_path, monkeypatch) -> Iterator[None]:
    """No test here may hang, or touch anything beside its own directory."""

    def hang(*_: object) -> None:
        raise AssertionError("it hangs")

    monkeypatch.setattr(os, "fsync", lambda file: None)
    (tmp_path / "outside").write_text("untouched")
    previous = signal.signal(signal.SIGALRM, hang)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
    assert (tmp_path / "outside").read_text() == "untouched"
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "inside"}


def attempt(read: Callable[[], object]) -> bool:
    """Whether the file was accepted; anything but a sentence, or too much memory, fails the test."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        read()
        accepted = True
    except (BadInput, RunFailed) as error:
        text, accepted = str(error), False
        assert text and "\n" not in text and text.isprintable() and len(text) < 1500, text
    assert tracemalloc.get_traced_memory()[1] - before < MEMORY
    return accepted


def fuzz(path: Path, seeds: list[bytes], change: Change, read: Callable[[], object], cases: int) -> int:
    """Try mutations of the seeds; returns how many were accepted."""
    chance, accepted, inside = random.Random(path.name), 0, set(os.listdir(path.parent))
    tracemalloc.start()
    try:
        for _ in range(cases):
            data = chance.choice(seeds)
            for _ in range(chance.choice([1, 1, 2, 4])):
                data = change(chance, data)
            path.write_bytes(data)
            accepted += attempt(read)
    finally:
        tracemalloc.stop()
    assert set(os.listdir(path.parent)) == inside | {path.name}
    return accepted


def noise(chance: random.Random, data: bytes) -> bytes:
    """Change, remove, repeat or insert some bytes."""
    at, size = chance.randrange(len(data) + 1), chance.choice([1, 1, 2, 8, 64])
    piece = chance.choice(
        [chance.randbytes(size), b"", data[at : at + size] * chance.choice([2, 2, 300]), chance.choice(TEXT) * size]
    )
    return (data[:at] + piece + data[at + chance.choice([0, size]) :])[:20_000]


def tree(chance: random.Random, value: object) -> object:
    """Put something odd somewhere into a JSON value."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        act = chance.random()
        if act < 0.8:
            value[key] = tree(chance, value[key])
        elif act < 0.9 or isinstance(value, list):
            del value[key]
        else:
            value[str(chance.choice(ODD))] = value[key]
        return value
    near = [value + chance.choice([-1, 1, 7])] if type(value) is int else []
    return chance.choice([*ODD, *near, *near, *near, *near])


def sealed(data: bytes, start: bytes, at: int) -> bytes:
    """The bytes with a true checksum, if they still have a place for one."""
    at += len(start)
    if data[at - len(start) : at] != start or not re.fullmatch(rb"[0-9a-f]{64}", data[at : at + 64]):
        return data
    blank = data[:at] + b"0" * 64 + data[at + 64 :]
    return data[:at] + sha256(blank).hexdigest().encode() + data[at + 64 :]


def header_tree(chance: random.Random, data: bytes) -> bytes:
    """Put something odd into the header of an array file, and seal it again."""
    end = 8 + int.from_bytes(data[:8], "little")
    text = json.dumps(tree(chance, json.loads(data[8:end])), separators=(",", ":")).encode()
    return sealed(len(text).to_bytes(8, "little") + text + data[end:], files.arrays.START, 8)


def manifest_tree(chance: random.Random, data: bytes) -> bytes:
    """Put something odd into a manifest, and seal it again."""
    return sealed(json.dumps(tree(chance, json.loads(data)), indent=2).encode(), files.tables.SEALED_START, 0)


def then_sealed(change: Change, start: bytes, at: int) -> Change:
    return lambda chance, data: sealed(change(chance, data), start, at)


# --- files on their own ------------------------------------------------------------------------------------------

CONFIGS = [
    b'name = "sac"\nsteps = 1_000\nrate = 3e-4\n[agent]\nhidden = [256, 256]\n[agent.intrinsic]\nkind = "info-gain"\n',
    b"[[task]]\nname = 'a'\nseeds = {from = 0, to = 4}\n[[task]]\nname = '''b'''\nwhen = 1979-05-27T07:32:00Z\n",
    b'"a b".c."d" = """\nx\\u00e4"""\n# comment\nx = [0x1f, 0b1, inf, -0.0, true]\n',
]
VALUES = [
    b'{"name": "sac", "steps": 1000, "rate": 3e-4, "agent": {"hidden": [256, 256], "on": true}, "none": null}',
    b'[1, [2, [3, [4, {"a": {"b": {"c": "\\u00e4\\n"}}}]]], -0.5e-3]',
    b'{"pid": 12, "host": "a", "born": "b", "since": "c"}',
]


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside" / "file"


def test_toml(path, share):
    assert fuzz(path, CONFIGS, noise, lambda: files.read_toml(path), 5000 // share) > 100 // share


def test_json(path, share):
    assert fuzz(path, VALUES, noise, lambda: (files.read_json(path), holder(path)), 5000 // share) > 100 // share


@pytest.fixture
def arrays(path) -> list[bytes]:
    seeds = []
    for content in [
        {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 4), np.uint8)},
        {"first": np.arange(3), "flag": np.array([True, False])},
    ]:
        files.save_arrays(path, content, {"step": 1, "previous": {"step": 0}})
        seeds.append(path.read_bytes())
    return seeds


def test_array_bytes(path, arrays, share):
    change = then_sealed(noise, files.arrays.START, 8)
    assert fuzz(path, arrays, change, lambda: files.load_arrays(path), 4500 // share) > 10 // share


def test_array_headers(path, arrays, share):
    assert fuzz(path, arrays, header_tree, lambda: files.load_arrays(path), 4500 // share) > 10 // share


# --- arrays for others to read -----------------------------------------------------------------------------------

HEADERS = [
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (3", b"{'descr': '<i8'", b"  {'a\n b", b"'''", b"(" * 40,
    b"1 + \\", b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n  x\n y", b"{'descr': [('a', '<i8')],",
]  # fmt: skip


def npz(compression: int, header: bytes | None = None) -> bytes:
    """An archive of two arrays, the first with another header where one is given."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", compression) as members:
        for name, array in (("step", np.arange(3)), ("obs", np.ones((3, 2), np.float32))):
            np.lib.format.write_array(member := BytesIO(), array)
            data = member.getvalue()
            own = header if name == "step" else None
            members.writestr(f"{name}.npy", data if own is None else data[:10] + own.ljust(117) + b"\n" + data[128:])
    return archive.getvalue()


@pytest.mark.filterwarnings("ignore:Reading `.npy`", "ignore:Duplicate name")
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_archives(path, compression, share):
    seeds = [npz(compression), *(npz(compression, header) for header in HEADERS)]
    read = lambda: files.read_npz(path, ("step", "obs"))

    def change(chance: random.Random, data: bytes) -> bytes:
        at = chance.randrange(len(data))
        return data[:at] + chance.randbytes(1) + data[at + 1 :] if chance.random() < 0.8 else noise(chance, data)

    taken = fuzz(path, seeds, lambda _, data: data, read, max(9, 50 // share))
    taken += fuzz(path, [*seeds[:1] * 9, *seeds], change, read, 500 // share)
    assert (taken == 0) is (compression == zipfile.ZIP_LZMA)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_take_memory_are_refused(path, compression):
    path.write_bytes(npz(compression))
    with pytest.raises(BadInput, match="compressed in a way that NumPy never writes"):
        files.read_npz(path, ("step", "obs"))


# --- the configuration of a run ----------------------------------------------------------------------------------


def plain(value: object) -> object:
    """What TOML can say of a value: there is no None in it."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return [plain(v) for v in value if v is not None] if isinstance(value, list) else value


def config_tree(chance: random.Random, data: bytes) -> bytes:
    """Put something odd somewhere into a configuration."""
    changed = plain(tree(chance, tomllib.loads(data.decode())))
    return tomli_w.dumps(changed if isinstance(changed, dict) else {}).encode() or data


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """A run with a checkpoint, and every table that a run's configuration may have."""
    out = tmp_path_factory.mktemp("learned") / "run"
    maxinforl.make(
        "maxinfo-sac",
        "Pendulum-v1",
        eval_episodes=0,
        learning_starts=1000,
        env_arg={"g": 9.0},
        set={"base.hidden": (8, 8), "intrinsic.hidden": (8, 8)},
    ).learn(1, out=out)
    path = out / "config.toml"
    history = [{"step": 0, "setting": "steps", "before": "1", "after": "2"}]
    files.write_toml(path, files.read_toml(path) | {"planned": 2, "together": [0, 1], "history": history})
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("read", "cases"), [(read_run, 300), (maxinforl.load, 50)], ids=["read_run", "load"])
@pytest.mark.filterwarnings("ignore:the checkpoint at step 1 was made with")
def test_configurations(learned, tmp_path, read, cases, share):
    run = tmp_path / "inside"
    shutil.copytree(learned, run)
    path = run / "config.toml"
    read(run)  # imports and caches are not the file's doing
    assert fuzz(path, [path.read_bytes()], config_tree, lambda: read(run), max(8, cases // share)) > 0


BAD = {
    "by_name = true": ["by_name = 3"],
    "observation_shape = [\n    3,\n]": [
        'observation_shape = ["a"]',
        *(f"observation_shape = [{n}]" for n in (-3, 10**11)),
    ],
    "observation_dtype": ["observation_type"],
    "planned = 2": ['planned = "x"', "planned = 0", "planned = 4294967296"],
    "together = [\n    0,\n    1,\n]": ["together = 3", 'together = ["../x"]'],
    "9.0,\n    ],": ["9.0,\n    ], 1, 2,"],
}


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in BAD for new in BAD[old]])
def test_what_no_run_writes_is_refused(learned, tmp_path, old, new):
    run = tmp_path / "inside"
    shutil.copytree(learned, run)
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    with pytest.raises(BadInput):
        maxinforl.load(run)
    assert cli.main(["resume", str(run)]) == 2


def test_a_run_that_does_not_say_whether_its_environment_has_a_name_has_one(learned, tmp_path):
    run = tmp_path / "inside"
    shutil.copytree(learned, run)
    table = files.read_toml(run / "config.toml")
    del table["by_name"]
    files.write_toml(run / "config.toml", table)
    assert maxinforl.load(run).env == "Pendulum-v1"


# --- suites ------------------------------------------------------------------------------------------------------

SUITES = [
    b'algorithms = ["sac"]\nenvironments = ["Pendulum-v1"]\nseeds = 2\n',
    b"""title = "a"
environments = ["Pendulum-v1"]
seeds = [0, 3]
[algorithms.sac]
[algorithms.ours]
algo = "maxinfo-sac"
set = {"base.lr" = 1e-3}
[settings]
steps = 100
update_ratio = 2.0
env_arg = {g = 9.0}
[overrides.slow]
action_repeat = 2
[[cells]]
algorithms = ["s*"]
skip = true
[resources]
cores = 2
hours = 1.5
[resources.slurm]
partition = "p"
""",
]


@pytest.mark.parametrize(("change", "cases"), [(config_tree, 400), (noise, 200)], ids=["tree", "noise"])
def test_suites(path, change, cases, share):
    read_suite_and_runs = lambda: read_suite(path).runs()
    path.write_bytes(SUITES[1])
    read_suite_and_runs()  # imports and caches are not the file's doing
    assert fuzz(path, SUITES, change, read_suite_and_runs, max(8, cases // share)) > 10 // share


# --- files of a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path) -> Path:
    with CheckpointStore(tmp_path / "inside", keep=2) as store:
        for step in (1, 2):
            lanes = [Lane(store.saved_upto(2)[e], {"obs": np.ones((3, 2)), "end": np.zeros(3, bool)}) for e in (0, 1)]
            store.save(step, {"weight": np.ones(3)}, Rows(4, lanes), {"config": {"name": "sac"}})
    return tmp_path / "inside"


def load(run: Path) -> object:
    return CheckpointStore(run).load(2)


def reseal(run: Path) -> None:
    """Make the manifest believe the segment that is there."""
    manifest, segment = run / "step-000000002" / "manifest.json", run / "replay" / "segment-000000002.safetensors"
    value = files.read_sealed_json(manifest)
    start = 8 + len(files.arrays.START)
    seal = segment.read_bytes()[start : start + 64].decode(errors="replace")
    value["replay"]["newest"].update(checksum=seal, bytes=segment.stat().st_size)
    files.write_sealed_json(manifest, value)


def test_manifests(run, share):
    path = run / "step-000000002" / "manifest.json"
    assert fuzz(path, [path.read_bytes()], manifest_tree, lambda: load(run), 1500 // share) > 10 // share


def test_segments(run, share):
    path = run / "replay" / "segment-000000002.safetensors"

    def change(chance: random.Random, data: bytes) -> bytes:
        if chance.random() < 0.5:
            return header_tree(chance, data)
        at = chance.randrange(len(data) - 120, len(data))  # lane numbers, mostly, and columns
        return sealed(data[:at] + chance.randbytes(1) + data[at + 1 :], files.arrays.START, 8)

    assert fuzz(path, [path.read_bytes()], change, lambda: (reseal(run), load(run)), 1000 // share) > 10 // share


def test_going_on_from_a_strange_run_writes_nothing_outside(run, share):
    """Load what still loads, and save: the next checkpoint must be sound and in its place."""
    manifest, chance, went_on = run / "step-000000002" / "manifest.json", random.Random(0), 0
    whole, kept = manifest.read_bytes(), {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def resume() -> None:
        with CheckpointStore(run) as store:
            rows = store.load().rows
            assert rows is not None
            store.save(5, {}, rows, {})
            assert store.load(5).step == 5

    tracemalloc.start()
    for _ in range(max(10, 150 // share)):
        for path, data in kept.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        manifest.write_bytes(manifest_tree(chance, whole))
        went_on += attempt(resume)
        files.remove(run / "step-000000005") if (run / "step-000000005").exists() else None
    tracemalloc.stop()
    assert went_on > 10 // share


# --- a run taken up ----------------------------------------------------------------------------------------------

ENVS = ["Pendulum-v1", "jax/mountain-car"]


@pytest.fixture(params=ENVS, scope="module")
def going(request, tmp_path_factory) -> tuple[Trainer, Checkpoint]:
    """A fresh trainer, and a checkpoint that fits it."""
    settings = Settings(
        algo="sac", env=request.param, steps=40, learning_starts=1000, set=(("base.hidden", (4, 4)),), num_envs=2
    )
    settings, strategy = resolve(settings)
    trainer = make_trainer(strategy, [settings], settings.env, 40)
    while trainer.step < 6:
        trainer.advance()
    with CheckpointStore(tmp_path_factory.mktemp("going")) as store:
        checkpoint.save(trainer.seeds[0], store, wait=True)
        return make_trainer(strategy, [settings], settings.env, 40), store.load()


def other(chance: random.Random, array: np.ndarray) -> np.ndarray:
    """An array that is not quite this one."""
    return chance.choice(
        [
            lambda: array.astype(chance.choice([np.float64, np.int32, np.uint8, np.int64, bool, np.float16])),
            lambda: np.stack([array] * chance.choice([1, 2])) if chance.random() < 0.9 else np.zeros(0),
            lambda: array.reshape(-1),
            lambda: array[..., :1] if array.ndim else array[None],
            lambda: array[: len(array) // 2] if array.ndim else array,
            lambda: np.full_like(array, chance.choice([-1, 0, 1, 7])),
        ]
    )()


def strange(chance: random.Random, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with one dropped, renamed, added, or of another shape, type or content."""
    arrays, name = dict(arrays), chance.choice(sorted(arrays))
    act = chance.random()
    if act < 0.6:
        arrays[name] = other(chance, arrays[name])
    elif act < 0.8:
        arrays[name + chance.choice(["x", "/x", "\n"])] = arrays[name] if act < 0.7 else arrays.pop(name)
    else:
        del arrays[name]
    return arrays


def strange_rows(chance: random.Random, rows: Rows) -> Rows:
    """A replay whose columns, the same in every lane, are not quite those of a run; or one of another size."""
    act, name = chance.random(), chance.choice(sorted(rows.lanes[0].columns))
    if act < 0.2:
        return rows._replace(capacity=chance.choice([2**30, 2**31, 10**14]))
    if act < 0.3:
        return rows._replace(lanes=[lane._replace(first=chance.choice([2**31, 10**14])) for lane in rows.lanes])
    if act < 0.4:
        return rows._replace(lanes=rows.lanes[:1])
    changes: list[Callable[[np.ndarray], dict[str, np.ndarray]]] = [
        lambda column: {},
        lambda column: {name: column, name + "x": column},
        lambda column: {name: column[..., None]},
        lambda column: {name: column[:, :1] if column.ndim > 1 else column.astype(np.float16)},
        lambda column: {name: np.full_like(column, 3 if column.dtype == np.uint8 else -5)},
    ]
    change = chance.choice(changes)
    left = lambda lane: {k: v for k, v in lane.columns.items() if k != name}
    return rows._replace(lanes=[Lane(lane.first, left(lane) | change(lane.columns[name])) for lane in rows.lanes])


@pytest.mark.slow
def test_what_a_run_is_taken_up_from(going, share):
    """Names, shapes and types of a checkpoint that is whole, but not of this run."""
    trainer, saved = going
    begun, chance, accepted = trainer.state, random.Random(0), 0
    assert saved.rows is not None

    def take_up(case: Checkpoint) -> None:
        trainer.state, trainer.step, trainer.action = jax.tree.map(jnp.copy, begun), 0, None
        checkpoint.restore(trainer, [case])
        trainer.advance()

    for i in range(300 // share):
        state, rows = saved.state, saved.rows._replace(lanes=[Lane(f, dict(c)) for f, c in saved.rows.lanes])
        if i % 3 == 0:
            rows = strange_rows(chance, rows)
        else:
            own = {k: v for k, v in state.items() if i % 3 == 1 or not k.startswith("agent/")}
            state = {k: v for k, v in state.items() if k not in own} | strange(chance, own)
        case = replace(saved, state=state, rows=rows)
        accepted += attempt(lambda case=case: take_up(case))
    assert 10 // share < accepted < 150 or share > 1
    with pytest.raises(BadInput, match="lacks the replay"):
        take_up(replace(saved, rows=None))


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("clock/foo", np.zeros(1), "'clock/foo' is not part of it"),
        ("clock/step", np.zeros(5, np.int32), r"'clock/step' as int32\[5\] where int32\[\] is needed"),
        ("host/action", None, "lacks 'host/action'"),
        ("window/numbers", None, "lacks 'window/numbers'"),
        ("row/age", None, "lacks 'row/age'"),
        ("row/obs", np.zeros((4, 2), np.float32), r"'row/obs' as float32\[4, 2\] where float32\[any, 3\] is needed"),
    ],
)
@pytest.mark.parametrize("going", ENVS[:1], indirect=True)
def test_an_array_that_does_not_fit_is_named(going, name, array, words):
    trainer, saved = going
    rows = saved.rows
    if name.startswith("row/"):
        swap = lambda columns: {k: v for k, v in {**columns, name[4:]: array}.items() if v is not None}
        rows = rows._replace(lanes=[Lane(first, swap(columns)) for first, columns in rows.lanes])
    state = saved.state if name.startswith("row/") else {**saved.state, name: array}
    state = {k: v for k, v in state.items() if v is not None}
    with pytest.raises(BadInput, match=words):
        checkpoint.restore(trainer, [replace(saved, state=state, rows=rows)])
