"""Host memory: free bytes, settings of malloc; and out-of-memory errors of the host and the device, of any library."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pyarrow as pa

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_host_memory() -> int | None:
    """Measure the bytes that a process may still allocate; None if the system does not report them."""
    found = [free for free in (_read_meminfo(), _read_cgroup()) if free is not None]
    return min(found, default=None)


def _read_meminfo() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _read_cgroup() -> int | None:
    """Return the free bytes below the container's limit (cgroup 2)."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LEAST_KEPT, _MOST_KEPT, _SHARE_KEPT = 256 << 20, 1 << 30, 64  # bytes at the end of each heap; a 64th of all there are
_OF_ITS_OWN = 32 << 20  # bytes from which a buffer is mapped by itself; glibc takes no more than this
_THEIRS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "ARROW_DEFAULT_MEMORY_POOL")


def keep_freed_memory() -> bool:
    """Keep freed buffers of a few megabytes, which every partition needs again; return whether it was possible.

    By default each goes back to the system when it is freed and has to be cleared by it when it is asked for: half of
    all page faults of a job. Arrow's buffers come from glibc too: its own default, mimalloc, has huge pages cleared
    over and over, which was half of the CPU seconds of copying a Parquet file. Where the user has set one of glibc's
    own variables or `ARROW_DEFAULT_MEMORY_POOL`, or malloc is not glibc's, nothing is changed.

    Memory: a 64th of the machine's, between 256 MB and 1 GB, stays with the process. Source: mallopt(3).
    """
    if sys.platform != "linux" or any(name in os.environ for name in _THEIRS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kept = min(max(there // _SHARE_KEPT, _LEAST_KEPT), _MOST_KEPT)
    if mallopt is None or not (mallopt(_MMAP_THRESHOLD, _OF_ITS_OWN) and mallopt(_TRIM_THRESHOLD, kept)):
        return False
    pa.set_memory_pool(pa.system_memory_pool())
    return True


_CLASSES = {("torch", "OutOfMemoryError"), ("cupy", "OutOfMemoryError")}
_TEXTS = (
    "out_of_memory",
    "Exceeded memory limit",
    "RMM failure",
    "cudaErrorMemoryAllocation",
    "Out of memory allocating",
)
"""Texts of RMM after C++'s `std::bad_alloc`, which alone is the host's; of CUDA's runtime; and of CuPy."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the host or the device is out of memory."""
    if isinstance(error, MemoryError) or is_out_of_device_memory(error):
        return True
    return isinstance(error, RuntimeError) and "std::bad_alloc" in str(error)


def is_out_of_device_memory(error: BaseException) -> bool:
    """Return whether an error means that the device is out of memory."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    named = isinstance(error, (MemoryError, RuntimeError)) and any(text in str(error) for text in _TEXTS)
    return bool(kinds & _CLASSES) or named


def is_device_error(error: BaseException) -> bool:
    """Return whether an error is one of CUDA's: the device failed, whatever the data are."""
    return any(text in str(error) for text in ("CUDA error", "cudaError", "CUDA_ERROR", "CUDARuntimeError"))
