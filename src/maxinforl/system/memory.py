"""How much memory is free, and how the allocator keeps what XLA frees."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def available_memory() -> int | None:
    """Bytes that the system and this process's control group leave, or None where neither says."""
    limits = [_system_free(), _group_free()]
    return min((limit for limit in limits if limit is not None), default=None)


def _system_free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
    except (OSError, ValueError):
        return None


def _group_free() -> int | None:
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        return int(limit) - int(used)
    except (OSError, ValueError):  # no group, or the limit is the word "max"
        return None


def keep_freed_memory() -> None:
    """Lets glibc keep what XLA frees: by default blocks above 32 MB go back to the system after every dispatch, and
    faulting their pages in again takes up to a third of the time of large updates."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for parameter, value in ((-3, 2**30), (-1, 2**31 - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, value)
