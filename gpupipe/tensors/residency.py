"""Where a table lies while it is trained on: what fits decides."""

from __future__ import annotations

from pathlib import Path

import torch

from gpupipe.support.validation import check_choice

__all__ = ["RESIDENCIES", "choose_residency", "room_on"]

RESIDENCIES = ("device", "host", "stream")
_SHARE = 0.8  # of the host's free memory that a table may take
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def choose_residency(asked: str, table_bytes: int, device: torch.device, rooms: dict[str, int | None]) -> str:
    """Where the table goes: as asked, or the first of the device, the host and nowhere that has room.

    Args:
        asked: `"auto"` or one of `RESIDENCIES`.
        table_bytes: of the whole table.
        device: where batches are wanted.
        rooms: bytes that are free, by kind of device; None where that is not known and taken for enough.

    Raises:
        BadConfig: no such residency.

    Example:
        >>> gpu = torch.device("cuda")
        >>> [choose_residency("auto", size, gpu, {"cuda": 80, "cpu": 500}) for size in (50, 100, 1000)]
        ['device', 'host', 'stream']
    """
    check_choice("loader", ("auto", *RESIDENCIES), residency=asked)
    if asked != "auto":
        return asked
    for residency, kind in (("device", device.type), ("host", "cpu")):
        room = rooms.get(kind)
        if room is None or table_bytes <= room:
            return residency
    return "stream"


def room_on(device: torch.device) -> int | None:
    """Bytes a table may take there, beside what training needs; None where that cannot be told.

    Example:
        >>> (room_on(torch.device("cpu")) or 1) > 0
        True
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # else the table of an earlier loader would take it
        free, total = torch.cuda.mem_get_info(device)
        return max(free - max(1 << 30, total // 10), 0)
    found = [room for room in (_free_of_machine(), _free_of_container()) if room is not None]
    return int(min(found) * _SHARE) if found else None


def _free_of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _free_of_container() -> int | None:
    """What the container's limit leaves (cgroup 2)."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None
