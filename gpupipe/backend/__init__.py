"""Backends, CPU and GPU: the only package that imports pandas, cuDF, CuPy, scikit-learn, cuML or RMM.

`select` makes a backend once; it is a value that is passed down, never a global.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock

from gpupipe.backend.device.probe import choose_backend, this_machine
from gpupipe.backend.protocol import Array, Backend, Column, Frame, Matrix, PCAResult, RawColumn
from gpupipe.config import settings
from gpupipe.errors import SchemaMismatch

__all__ = ["Array", "Backend", "Column", "Frame", "Matrix", "PCAResult", "RawColumn", "infer_backend", "select"]

_CLASSES = {"cpu": ("gpupipe.backend.cpu", "CpuBackend"), "gpu": ("gpupipe.backend.gpu", "GpuBackend")}
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
    chosen = resolve(name)
    with _one_at_a_time:
        return _make_backend(chosen)


def resolve(name: str = "auto") -> str:
    """Return the name of the backend that `select` would return; touches no device."""
    with _one_at_a_time:
        return _choose(settings().backend if name == "auto" else name)


@lru_cache
def _choose(name: str) -> str:
    chosen, reason = choose_backend(name, this_machine())
    if name == "auto":
        _log.info("backend: %s (%s)", chosen, reason)
    return chosen


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


def frame_remedy(given: object) -> str | None:
    """Suggest how to convert an in-memory object to a frame, for an error's remedy; None if nothing is known."""
    kinds = {kind.__name__ for kind in type(given).__mro__}
    if isinstance(given, Mapping):
        record = any(isinstance(value, str) or not hasattr(value, "__len__") for value in given.values())
        return "pd.DataFrame([data])" if record else "pd.DataFrame(data)"
    if kinds & {"Series", "ChunkedArray"}:
        return "data.to_frame() of a column, data.to_frame().T of a row"
    if "LazyFrame" in kinds:
        return "data.collect()"
    is_array = hasattr(given, "__array__") and not hasattr(given, "__arrow_c_stream__")
    return "pd.DataFrame(data, columns=[...])" if isinstance(given, list | tuple) or is_array else None


def is_frame(obj: object) -> bool:
    """Return whether an object is a pandas or cuDF frame, or of a subclass (as GeoPandas' is)."""
    return _find_library(obj) is not None


def _find_library(obj: object) -> str | None:
    frames = (kind.__module__.partition(".")[0] for kind in type(obj).__mro__ if kind.__name__ == "DataFrame")
    return next((library for library in frames if library in ("pandas", "cudf")), None)
