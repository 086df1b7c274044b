"""One compilation cache for the whole session: programs that recur are compiled once.

Set by environment variables, before anything imports JAX, so that processes started by tests share it.
Set JAX_COMPILATION_CACHE_DIR yourself to keep it between sessions (tests/mutations.py does).
"""

import os
import re
import shutil
import sys
import tempfile
import types
from importlib.metadata import version

import pytest

CACHE = "JAX_COMPILATION_CACHE_DIR"
_own = None
if CACHE not in os.environ:
    _own = os.environ[CACHE] = tempfile.mkdtemp(prefix="maxinforl-test-cache-")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Tests compile much and compute little. The second flag halves what the first leaves, and XLA aborts on flags it does
# not know, hence the version.
_flags = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):
    _flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", _flags)


def forget_traces():
    """Agents that are alike share what was traced, which would outlive the functions that a test replaces."""
    if "maxinforl.core.program" in sys.modules:
        sys.modules["maxinforl.core.program"]._shared.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A module's programs go with it: hundreds of them would fill the memory, and the disk still has them."""
    yield
    forget_traces()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def trace_anew():
    """For tests that count traces, or change a program in another way than by `monkeypatch`."""
    forget_traces()
    yield
    forget_traces()


# Where functions may be part of a shared program; those of the host take effect in programs that were traced before,
# and the compiled loop and its environments are traced by every trainer.
HOST = "agent|cli|deploy|doctor|envs|experiments|files|settings|system|terminal|training"
TRACED = re.compile(rf"jax\b|maxinforl(?!\.({HOST})\b)")


class Patches(pytest.MonkeyPatch):
    """Agents are traced anew before and after a function is replaced that may be part of them."""

    anew = False

    def setattr(self, target, name, *value, **options):
        super().setattr(target, name, *value, **options)
        if isinstance(target, (str, types.ModuleType)):
            place = target if isinstance(target, str) else target.__name__
        else:
            place = getattr(target, "__module__", None) or type(target).__module__
        self.anew = self.anew or bool(TRACED.match(place))
        self._forget()

    def undo(self):
        super().undo()
        self._forget()

    def _forget(self):
        if self.anew:
            forget_traces()


@pytest.fixture
def monkeypatch():
    with Patches.context() as patches:
        yield patches


def pytest_unconfigure():
    if _own is not None:
        shutil.rmtree(_own, ignore_errors=True)
