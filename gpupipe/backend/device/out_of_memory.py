"""Detection of out-of-memory errors of the host and the device, of any library; imports none of them."""

from __future__ import annotations

__all__ = ["is_device_error", "is_out_of_device_memory", "is_out_of_memory"]

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
    """Return whether an error means that the host or the device is out of memory.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("std::bad_alloc: out_of_memory"))
        (True, True)
        >>> is_out_of_memory(RuntimeError("an illegal memory access was encountered"))
        False
    """
    if isinstance(error, MemoryError) or is_out_of_device_memory(error):
        return True
    return isinstance(error, RuntimeError) and "std::bad_alloc" in str(error)


def is_out_of_device_memory(error: BaseException) -> bool:
    """Return whether an error means that the device is out of memory.

    Example:
        >>> is_out_of_device_memory(MemoryError("std::bad_alloc: out_of_memory: (failed to allocate 8 bytes)"))
        True
        >>> is_out_of_device_memory(MemoryError("Unable to allocate 8.00 GiB for an array"))
        False
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    named = isinstance(error, (MemoryError, RuntimeError)) and any(text in str(error) for text in _TEXTS)
    return bool(kinds & _CLASSES) or named


def is_device_error(error: BaseException) -> bool:
    """Return whether an error is one of CUDA's: the device failed, whatever the data are.

    Example:
        >>> is_device_error(RuntimeError("CUDA error encountered at: a.cu:9: 700 cudaErrorIllegalAddress"))
        True
        >>> is_device_error(RuntimeError("JSON Parser encountered an invalid format at location 7"))
        False
    """
    return any(text in str(error) for text in ("CUDA error", "cudaError", "CUDA_ERROR", "CUDARuntimeError"))
