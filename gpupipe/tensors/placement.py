"""Placement of a table for training: the first memory with enough free bytes."""

from __future__ import annotations

import torch

from gpupipe.backend.device.host_memory import free_host_memory
from gpupipe.support.validation import check_choice

__all__ = ["RESIDENCIES", "choose_residency", "get_free_bytes"]

RESIDENCIES = ("device", "host", "stream")
_SHARE = 0.8  # of the host's free memory that a table may take


def choose_residency(asked: str, table_bytes: int, device: torch.device, free_bytes: dict[str, int | None]) -> str:
    """Return the residency: as given, or the first of device, host and stream with enough free bytes.

    Args:
        asked: `"auto"` or one of `RESIDENCIES`.
        table_bytes: of the whole table.
        device: where batches are wanted.
        free_bytes: bytes that are free, by kind of device; None where that is not known and taken for enough.

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
        free = free_bytes.get(kind)
        if free is None or table_bytes <= free:
            return residency
    return "stream"


def get_free_bytes(device: torch.device) -> int | None:
    """Return the bytes a table may occupy there, besides what training needs; None where that is unknown.

    Example:
        >>> (get_free_bytes(torch.device("cpu")) or 1) > 0
        True
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # else the table of an earlier loader would take it
        free, total = torch.cuda.mem_get_info(device)
        return max(free - max(1 << 30, total // 10), 0)
    on_host = free_host_memory()
    return None if on_host is None else int(on_host * _SHARE)
