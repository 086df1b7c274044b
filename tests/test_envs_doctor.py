"""The doctor: every line that is not green says what to do; only the default command's needs fail it."""

import io
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from rich.console import Console

from maxinforl import cli, doctor
from maxinforl.settings import Settings
from maxinforl.system import memory

RUN = subprocess.run


@pytest.fixture(autouse=True)
def no_rendering_process(monkeypatch):
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kwargs: done)


def report():
    console = Console(file=io.StringIO(), width=200)
    return doctor.main(console), console.file.getvalue()


def test_a_sound_machine_passes_and_every_bad_line_has_a_fix():
    code, text = report()
    assert code == 0 and "JAX" in text and Settings.env in text
    assert all(check.ok or check.fix for check in doctor.checks())


def test_missing_extras_do_not_fail_and_name_the_command(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    code, text = report()
    assert code == 0 and "pip install 'maxinforl[wandb]'" in text and "extra [video]" in text


def test_too_little_memory_fails(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * doctor.GIB)
    console = Console(file=io.StringIO(), width=200)
    assert doctor.main(console, lambda: 21 * doctor.GIB) == 1
    assert "smaller replay" in console.file.getvalue()
    assert doctor.main(console, lambda: doctor.GIB) == 0


def test_a_broken_default_environment_fails(monkeypatch):
    monkeypatch.setattr(Settings, "env", "Gone-v0")
    assert report()[0] == 1


def test_mujoco_4_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "4.0.0" if name == "mujoco" else "1.0.50")
    check = doctor.mujoco_pair()
    assert not check.ok and not check.required and "mujoco<4" in check.fix


def test_a_frame_that_cannot_be_drawn_names_the_packages(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no display")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kwargs: failed)
    check = doctor.rendering()
    assert not check.ok and "no display" in check.detail and "libegl1" in check.fix


def test_gpu_preallocation_is_reported(monkeypatch):
    import jax

    class Gpu:
        platform = "gpu"

    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    assert not doctor.preallocation().ok
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert doctor.preallocation().ok


def test_free_memory_is_positive_where_it_can_be_read():
    free = memory.available_memory()
    assert free is None or free > 0


def test_the_memory_of_a_configured_run(monkeypatch, capsys):
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * doctor.GIB)
    quick = lambda: [doctor.memory(seen[-1])]
    seen = []
    monkeypatch.setattr(doctor, "checks", lambda replay_bytes: seen.append(replay_bytes()) or quick())
    wide = ["--algo", "drq", "--env", "pixels/pendulum-hanging", "--steps", "250000"]
    assert cli.main(["doctor", *wide]) == 1 and 250_000 * 84 * 84 * 3 < seen[-1] < 1.06 * 250_001 * 84 * 84 * 3
    assert cli.main(["doctor", *wide, "--image-size", "32"]) == 0 and "4.0 GiB free" in capsys.readouterr().out
    assert cli.main(["doctor"]) == 0 and seen[-1] == 0
    assert cli.main(["doctor", "--env", "Pendulum-v1", "--algo", "drq"]) == 2
    assert cli.main(["doctor", "--env", "Pendulum-v1", "--env-arg", "g=abc"]) == 2
    said = capsys.readouterr().err
    assert "learns from images" in said and "takes a float" in said and said.count("\n") == 2


@pytest.mark.parametrize("word", ["doctor", "list"])
def test_a_jax_that_does_not_import_is_told_of(tmp_path, word):
    (tmp_path / "jax.py").write_text("raise ImportError('libcuda.so.1:\\ncannot open shared object file')")
    environ = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "COLUMNS": "300",
    }
    done = RUN([sys.executable, "-m", "maxinforl", word], capture_output=True, text=True, env=environ)
    said = done.stdout if word == "doctor" else done.stderr
    assert done.returncode == (1 if word == "doctor" else cli.BAD_INPUT) and "Traceback" not in done.stderr
    assert "ImportError: libcuda.so.1: cannot open shared object file" in said
    assert ("pip install --force-reinstall jax" if word == "doctor" else "maxinforl doctor") in said


def test_a_variable_that_is_to_blame_is_named(monkeypatch):
    import jax

    def broken():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", broken)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    check = doctor.jax_devices()
    assert check.detail == "AssertionError" and check.fix.startswith("unset JAX_PLATFORMS, which asks for cuda")
    failed = subprocess.CompletedProcess([], 1, "", "no such backend")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kwargs: failed)
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert doctor.rendering().fix.startswith("unset MUJOCO_GL")


@pytest.mark.skipif(find_spec("dm_control") is None, reason="dm_control is not installed")
def test_the_frame_is_really_drawn(monkeypatch):
    """Or what it says is what MuJoCo said, where this machine cannot draw."""
    monkeypatch.setattr(doctor.subprocess, "run", RUN)
    check = doctor.rendering()
    assert check.detail.endswith("drew a frame") if check.ok else "rendering failed" in check.detail
