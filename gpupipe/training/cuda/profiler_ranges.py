"""Profiler ranges: names for the parts of an update (data, forward, backward, optimizer), free without a profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch.profiler import record_function

Range: TypeAlias = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()


def no_range(_name: str) -> AbstractContextManager[object]:
    """Return an empty context: no profiler."""
    return _NOTHING


def record_range(name: str) -> AbstractContextManager[object]:
    """Open a range of torch's profiler."""
    return record_function(name)


@contextmanager
def record_nvtx_range(name: str) -> Iterator[None]:
    """Open a range of torch's profiler and an NVTX range for Nsight Systems."""
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        with record_function(name):
            yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
