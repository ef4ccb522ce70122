"""Telling that memory did not suffice from any other failure, whichever library says it; imports none of them."""

from __future__ import annotations

__all__ = ["is_out_of_memory"]

_CLASSES = {("torch", "OutOfMemoryError"), ("cupy", "OutOfMemoryError")}
_TEXTS = ("std::bad_alloc", "cudaErrorMemoryAllocation")
"""What C++ says of the host's and RMM's memory, and CUDA's runtime of its own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the host or the device has not enough memory.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("std::bad_alloc: out_of_memory"))
        (True, True)
        >>> is_out_of_memory(RuntimeError("an illegal memory access was encountered"))
        False
    """
    if isinstance(error, MemoryError):
        return True
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return bool(kinds & _CLASSES) or (isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS))
