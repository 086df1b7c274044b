"""One compilation cache for the whole session: programs that recur are compiled once.

Set by environment variables, before anything imports JAX, so that processes started by tests share it.
Set JAX_COMPILATION_CACHE_DIR yourself to keep it between sessions (tests/mutations.py does).
"""

import os
import shutil
import tempfile

CACHE = "JAX_COMPILATION_CACHE_DIR"
_own = None
if CACHE not in os.environ:
    _own = os.environ[CACHE] = tempfile.mkdtemp(prefix="maxinforl-test-cache-")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # tests compile much and compute little


def pytest_unconfigure():
    if _own is not None:
        shutil.rmtree(_own, ignore_errors=True)
