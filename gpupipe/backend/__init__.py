"""Below every room: the only folder that imports pandas, cuDF, CuPy, scikit-learn, cuML or RMM.

`select` makes a backend once; it is a value that is passed down, never a global.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock

from gpupipe.backend.device.probe import choose_backend, this_machine
from gpupipe.backend.protocol import Array, Backend, Column, Frame, Matrix, PCAResult, Stored, Transfers
from gpupipe.config import settings
from gpupipe.errors import SchemaMismatch

__all__ = [
    "Array",
    "Backend",
    "Column",
    "Frame",
    "Matrix",
    "PCAResult",
    "Stored",
    "Transfers",
    "backend_of",
    "frame_remedy",
    "is_frame",
    "resolve",
    "select",
]

_TWINS = {"cpu": ("gpupipe.backend.cpu", "CpuBackend"), "gpu": ("gpupipe.backend.gpu", "GpuBackend")}
_log = logging.getLogger("gpupipe")
# `lru_cache` lets two threads make the same at once; a second GPU backend would take the memory resource of the first.
_one_at_a_time = Lock()


def select(name: str = "auto") -> Backend:
    """The backend `"cpu"`, `"gpu"`, or with `"auto"` the best this machine can run, which is logged with the reason.

    Raises:
        BackendMissing: `"gpu"` where none can work; says what to install.
        BadConfig: another name.

    Example:
        >>> select("cpu").name
        'cpu'
    """
    chosen = resolve(name)
    with _one_at_a_time:
        return _made(chosen)


def resolve(name: str = "auto") -> str:
    """The name of the backend that `select` would give; touches no device.

    Example:
        >>> resolve("cpu")
        'cpu'
    """
    with _one_at_a_time:
        return _chosen(settings().backend if name == "auto" else name)


@lru_cache
def _chosen(name: str) -> str:
    chosen, reason = choose_backend(name, this_machine())
    if name == "auto":
        _log.info("backend: %s (%s)", chosen, reason)
    return chosen


@lru_cache
def _made(name: str) -> Backend:
    module, cls = _TWINS[name]
    backend: Backend = getattr(importlib.import_module(module), cls)()
    return backend


def backend_of(frame: Frame) -> Backend:
    """The backend whose frames `frame` is one of, told by its module without importing any library.

    Raises:
        SchemaMismatch: neither a pandas nor a cuDF frame.

    Memory: neither copies nor keeps the frame.

    Example:
        >>> import pandas as pd
        >>> backend_of(pd.DataFrame({"distance": [2475]})).name
        'cpu'
    """
    library = _library_of(frame)
    if library is not None:
        return select("gpu" if library == "cudf" else "cpu")
    raise SchemaMismatch(
        "data",
        "not a frame",
        got=type(frame),
        expected="a pandas or cuDF DataFrame",
        remedy="data.compute(), or in a pipeline: gp.Pipeline([step]).fit(data).transform(data)"
        if hasattr(frame, "compute")
        else frame_remedy(frame) or "gp.from_frame(data).compute() of another library's table",
    )


def frame_remedy(given: object) -> str | None:
    """What makes a frame of something in memory that is none, for an error's remedy; None where nothing is known.

    Example:
        >>> frame_remedy({"distance": [2475]}), frame_remedy(7)
        ('pd.DataFrame(data)', None)
    """
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
    """Whether it is a pandas or a cuDF frame, or of a class made of theirs (as GeoPandas' is).

    Memory: looks at its class alone.

    Example:
        >>> import pandas as pd
        >>> is_frame(pd.DataFrame()), is_frame(pd.Series([1])), is_frame(pd.DataFrame)
        (True, False, False)
    """
    return _library_of(obj) is not None


def _library_of(obj: object) -> str | None:
    frames = (kind.__module__.partition(".")[0] for kind in type(obj).__mro__ if kind.__name__ == "DataFrame")
    return next((library for library in frames if library in ("pandas", "cudf")), None)
