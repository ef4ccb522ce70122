"""Backends, CPU and GPU: the only package that imports pandas, cuDF, CuPy, scikit-learn, cuML or RMM.

Also the free memory of the host, and which errors of all these libraries mean that memory is short or CUDA failed.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from gpupipe.backend.columns import Array, Backend, Column, Frame, Matrix, PCAResult, RawColumn
from gpupipe.backend.device.probe import choose_backend, this_machine
from gpupipe.config import settings
from gpupipe.errors import SchemaMismatch

__all__ = ["Array", "Backend", "Column", "Frame", "Matrix", "PCAResult", "RawColumn", "infer_backend", "select"]

_CLASSES = {"cpu": ("gpupipe.backend.cpu", "CpuBackend"), "gpu": ("gpupipe.backend.gpu", "GpuBackend")}
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_MEMORY_ERRORS = {("torch", "OutOfMemoryError"), ("cupy", "OutOfMemoryError")}
# Texts of RMM after C++'s `std::bad_alloc`, which alone is the host's; of CUDA's runtime; and of CuPy.
_MEMORY_TEXTS = re.compile(
    "out_of_memory|Exceeded memory limit|RMM failure|cudaErrorMemoryAllocation|Out of memory allocating"
)
_DEVICE_TEXTS = re.compile("CUDA error|cudaError|CUDA_ERROR|CUDARuntimeError")
_log = logging.getLogger("gpupipe")
# `lru_cache` lets two threads make the same at once; a second GPU backend would take the memory resource of the first.
_one_at_a_time = Lock()


def select(name: str = "auto") -> Backend:
    """Return the backend `"cpu"` or `"gpu"`; `"auto"` picks the best this machine can run, and logs the reason.

    Raises:
        BackendMissing: `"gpu"` where none can work; says what to install.

    Example:
        >>> select("cpu").name
        'cpu'
    """
    backend_name = resolve(name)
    with _one_at_a_time:
        return _make_backend(backend_name)


def select_for(tensor: Any) -> Backend:
    """Return the backend that shares a tensor's memory; the CPU's for one on a GPU where RAPIDS is not installed."""
    return select("gpu" if tensor.is_cuda and resolve() == "gpu" else "cpu")


def resolve(name: str = "auto") -> str:
    """Return the name of the backend that `select` would return; touches no device."""
    with _one_at_a_time:
        return _choose(settings().backend if name == "auto" else name)


@lru_cache
def _choose(name: str) -> str:
    backend_name, reason = choose_backend(name, this_machine())
    if name == "auto":
        _log.info("backend: %s (%s)", backend_name, reason)
    return backend_name


@lru_cache
def _make_backend(name: str) -> Backend:
    module, cls = _CLASSES[name]
    backend: Backend = getattr(importlib.import_module(module), cls)()
    return backend


def infer_backend(frame: Frame) -> Backend:
    """Return the backend of a frame, inferred from the frame's class; imports no library. Memory: none.

    Raises:
        SchemaMismatch: neither a pandas nor a cuDF frame.

    Example:
        >>> import pandas as pd
        >>> infer_backend(pd.DataFrame({"distance": [2475]})).name
        'cpu'
    """
    library = _find_library(frame)
    if library is not None:
        return select("gpu" if library == "cudf" else "cpu")
    remedy = frame_remedy(frame) or "gp.from_frame(data).compute() of another library's table"
    if hasattr(frame, "compute"):
        remedy = "data.compute(), or in a pipeline: gp.Pipeline([step]).fit(data).transform(data)"
    expected = "a pandas or cuDF DataFrame"
    raise SchemaMismatch("data", "not a frame", got=type(frame), expected=expected, remedy=remedy)


def frame_remedy(data: object) -> str | None:
    """Suggest how to convert an in-memory object to a frame, for an error's remedy; None if nothing is known."""
    kinds = {kind.__name__ for kind in type(data).__mro__}
    if isinstance(data, Mapping):
        record = any(isinstance(value, str) or not hasattr(value, "__len__") for value in data.values())
        return "pd.DataFrame([data])" if record else "pd.DataFrame(data)"
    if kinds & {"Series", "ChunkedArray"}:
        return "data.to_frame() of a column, data.to_frame().T of a row"
    if "LazyFrame" in kinds:
        return "data.collect()"
    is_array = hasattr(data, "__array__") and not hasattr(data, "__arrow_c_stream__")
    return "pd.DataFrame(data, columns=[...])" if isinstance(data, list | tuple) or is_array else None


def is_frame(obj: object) -> bool:
    """Return whether an object is a pandas or cuDF frame, or of a subclass (as GeoPandas' is)."""
    return _find_library(obj) is not None


def _find_library(obj: object) -> str | None:
    frames = (kind.__module__.partition(".")[0] for kind in type(obj).__mro__ if kind.__name__ == "DataFrame")
    return next((library for library in frames if library in ("pandas", "cudf")), None)


def to_pandas(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows of figures as a pandas frame."""
    return importlib.import_module("pandas").DataFrame(list(rows))


def free_host_memory() -> int | None:
    """Measure the bytes that a process may allocate, in a container below its limit; None if they are not reported."""
    sizes = []
    with suppress(OSError):
        lines = _MEMINFO.read_text().splitlines()
        sizes += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # the limit may be the word "max"
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        sizes.append(max(limit - used, 0))
    return min(sizes, default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the host or the device is out of memory."""
    on_host = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "std::bad_alloc" in str(error))
    return on_host or is_out_of_device_memory(error)


def is_out_of_device_memory(error: BaseException) -> bool:
    """Return whether an error means that the device is out of memory."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    named = isinstance(error, (MemoryError, RuntimeError)) and bool(_MEMORY_TEXTS.search(str(error)))
    return bool(kinds & _MEMORY_ERRORS) or named


def is_device_error(error: BaseException) -> bool:
    """Return whether an error is one of CUDA's: the device failed, whatever the data are."""
    return bool(_DEVICE_TEXTS.search(str(error)))
