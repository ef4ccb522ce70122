"""What glibc does with memory that is freed: keep it, so that the next partition finds its pages there."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 256 << 20  # bytes at the end of each heap
_OF_ITS_OWN = 32 << 20  # bytes from which a buffer is mapped by itself; glibc takes no more than this
_THEIRS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let buffers of a few megabytes, which every partition needs again, stay with the process; whether that was done.

    By default each goes back to the system when it is freed and has to be cleared by it when it is asked for: half of
    all page faults of a job. Where the user has set one of glibc's own variables, or malloc is not glibc's, nothing is
    changed.

    Memory: up to 256 MB of what was freed stays with the process; its peak does not change.

    Source: mallopt(3).

    Example:
        >>> keep_freed_memory() in (True, False)
        True
    """
    if sys.platform != "linux" or any(name in os.environ for name in _THEIRS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _OF_ITS_OWN) and mallopt(_TRIM_THRESHOLD, _KEPT))
