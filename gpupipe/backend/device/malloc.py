"""Settings of glibc's malloc: freed memory is kept, so that the next partition reuses its pages."""

from __future__ import annotations

import ctypes
import os
import sys

import pyarrow as pa

__all__ = ["keep_freed_memory"]

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

    Memory: of what was freed a 64th of the machine's memory stays with the process, at least 256 MB and at most 1 GB;
    its peak does not change.

    Source: mallopt(3).

    Example:
        >>> keep_freed_memory() in (True, False)
        True
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
