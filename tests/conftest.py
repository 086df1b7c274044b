"""One compilation cache for the whole session: programs that recur are compiled once.

Set by environment variables, before anything imports JAX, so that processes started by tests share it.
Set JAX_COMPILATION_CACHE_DIR yourself to keep it between sessions (tests/mutations.py does).
"""

import os
import shutil
import sys
import tempfile
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
    _flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _flags)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A module's programs go with it: hundreds of them would fill the memory, and the disk still has them."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(autouse=True)
def trace_anew():
    """Agents that are alike share what was traced, which would outlive the functions that a test replaces."""
    yield
    if "maxinforl.core.program" in sys.modules:
        sys.modules["maxinforl.core.program"]._shared.cache_clear()


def pytest_unconfigure():
    if _own is not None:
        shutil.rmtree(_own, ignore_errors=True)
