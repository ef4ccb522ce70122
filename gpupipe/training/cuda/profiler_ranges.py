"""Names for the parts of an update (data, forward, backward, optimizer), seen by profilers, free where none looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch.profiler import record_function

__all__ = ["Range", "named", "named_for_nsight", "unnamed"]

Range: TypeAlias = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()


def unnamed(_name: str) -> AbstractContextManager[object]:
    """No range: nobody looks."""
    return _NOTHING


def named(name: str) -> AbstractContextManager[object]:
    """A range of torch's profiler."""
    return record_function(name)


@contextmanager
def named_for_nsight(name: str) -> Iterator[None]:
    """The same, and an NVTX range for Nsight Systems."""
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        with record_function(name):
            yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
