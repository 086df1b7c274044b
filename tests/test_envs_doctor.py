"""The doctor: every line that is not green says what to do; only the default command's needs fail it."""

import io
import subprocess

import pytest
from rich.console import Console

from maxinforl import cli, doctor


@pytest.fixture(autouse=True)
def no_rendering_process(monkeypatch):
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kwargs: done)


def report():
    console = Console(file=io.StringIO(), width=200)
    return doctor.main(console), console.file.getvalue()


def test_a_sound_machine_passes_and_every_bad_line_has_a_fix():
    code, text = report()
    assert code == 0 and "JAX" in text and doctor.DEFAULT_ENV in text
    assert all(check.ok or check.fix for check in doctor.checks())


def test_missing_extras_do_not_fail_and_name_the_command(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    code, text = report()
    assert code == 0 and "pip install 'maxinforl[wandb]'" in text and "extra [video]" in text


def test_too_little_memory_fails(monkeypatch):
    monkeypatch.setattr(doctor, "available_memory", lambda: 4 * doctor.GIB)
    console = Console(file=io.StringIO(), width=200)
    assert doctor.main(console, replay_bytes=21 * doctor.GIB) == 1
    assert "smaller replay" in console.file.getvalue()
    assert doctor.main(console, replay_bytes=doctor.GIB) == 0


def test_a_broken_default_environment_fails(monkeypatch):
    monkeypatch.setattr(doctor, "DEFAULT_ENV", "Gone-v0")
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
    free = doctor.available_memory()
    assert free is None or free > 0


def test_the_memory_of_a_configured_run(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "available_memory", lambda: 4 * doctor.GIB)
    quick = lambda: [doctor.memory(seen[-1])]
    seen = []
    monkeypatch.setattr(doctor, "checks", lambda replay_bytes=0: seen.append(replay_bytes) or quick())
    wide = ["--algo", "drq", "--env", "pixels/pendulum-hanging", "--steps", "250000"]
    assert cli.main(["doctor", *wide]) == 1 and 250_000 * 84 * 84 * 3 < seen[-1] < 1.06 * 250_001 * 84 * 84 * 3
    assert cli.main(["doctor", *wide, "--image-size", "32"]) == 0 and "4.0 GiB free" in capsys.readouterr().out
    assert cli.main(["doctor"]) == 0 and seen[-1] == 0
