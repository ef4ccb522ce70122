"""Free host memory of the machine and its container."""

from __future__ import annotations

from pathlib import Path

__all__ = ["free_host_memory"]

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_host_memory() -> int | None:
    """Measure the bytes that a process may still allocate; None if the system does not report them.

    Example:
        >>> (free_host_memory() or 1) > 0
        True
    """
    found = [free for free in (_read_meminfo(), _read_cgroup()) if free is not None]
    return min(found) if found else None


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
