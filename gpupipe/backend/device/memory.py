"""Device memory: RMM, up to a limit, for frames and arrays; torch's allocator for blocks and training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from gpupipe.backend import is_out_of_device_memory
from gpupipe.config import settings
from gpupipe.errors import OutOfDeviceMemory

_ASKED = re.compile(r"(?i)(?:failed to allocate|allocating|tried to allocate)\s+([\d.,]+)\s*([KMGT]i?B|bytes)")


def etl_limit(free: int, total: int, block_bytes: int = 0) -> int:
    """Compute the bytes for frames and arrays, given the free and total ones and a block's; at most `device_memory`.

    Training keeps a tenth of the device, at least 1 GiB: weights, optimiser state, activations, captured graphs.
    """
    reserve = max(1 << 30, total // 10)
    limit = free - block_bytes - reserve
    if limit <= 0:
        raise _error("device memory", block_bytes + reserve, free, "no memory is left for frames")
    most = settings().device_memory
    return limit if most is None else min(limit, most)


def free_unused() -> None:
    """Empty torch's cache of device memory, which does not count as free."""
    torch.cuda.empty_cache()


@contextmanager
def explain_out_of_memory(where: str) -> Iterator[None]:
    """Convert any library's error for a full device to `OutOfDeviceMemory`; one for a full host passes unchanged."""
    try:
        yield
    except (MemoryError, RuntimeError) as cause:
        if isinstance(cause, OutOfDeviceMemory) or not is_out_of_device_memory(cause):
            raise
        free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
        match = _ASKED.search(str(cause))
        size = match and int(float(match[1].replace(",", "")) * 1024 ** "bkmgt".index(match[2][0].lower()))
        raise _error(where, size, free, "the device has not enough memory") from cause


def on_default_stream(device: int) -> AbstractContextManager[object]:
    """Set the current stream of torch and Triton to the device's default stream, which cuDF and CuPy use."""
    if not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.default_stream(device))


def _error(where: str, requested: int | None, free: int | None, problem: str) -> OutOfDeviceMemory:
    sizes = {"asked for": requested, "free": free}
    facts = [f"{size:,} bytes {what}" for what, size in sizes.items() if size is not None]
    expected, remedy = "room for one partition and its result", "gp.configure(partition_bytes=...) with a smaller value"
    error = OutOfDeviceMemory(where, ", ".join([problem, *facts]), expected=expected, remedy=remedy)
    error.requested, error.free = requested, free
    return error
