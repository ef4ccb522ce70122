"""Where the host would wait for a device: told on a CPU, where nothing waits and no profiler could tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

OPERATIONS = {
    "_local_scalar_dense",
    "_to_sparse",
    "_unique2",
    "allclose",
    "bincount",
    "coalesce",
    "_coalesce",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
# What a tensor on the CPU answers without an operation, or with one that does not tell what was asked for.
CALLS = {
    *("cpu", "item", "numpy", "tolist"),
    *("__array__", "__bool__", "__complex__", "__dlpack__", "__float__", "__index__", "__int__"),
    *("__format__", "__repr__"),
}


@contextmanager
def no_host_wait() -> Iterator[None]:
    """Inside, what would make the host wait is an error that names it.

    Of a backward pass only operations are seen: it is one call to Python, which does not tell those within it.
    """
    with Operations(), Calls():
        yield


class Operations(TorchDispatchMode):
    """Raises at operations whose result, or its shape, the host has to wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name in OPERATIONS:
            raise RuntimeError(f"the host waits at {func}")
        indices = args[1] if name in ("index", "index_put_") else ()
        if any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices):
            raise RuntimeError(f"the host waits at {func} with a mask")
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            raise RuntimeError(f"the host waits at {func} without output_size")
        if kwargs.get("device") not in (None, torch.device("cpu")):
            raise RuntimeError(f"the host waits at {func} to another device")
        return func(*args, **kwargs)


class Calls(TorchFunctionMode):
    """Raises at what Python asks a tensor for: its values, its text, a copy on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        to_host = name == "to" and "cpu" in [value for value in (*args[1:], *kwargs.values()) if isinstance(value, str)]
        read = (
            name in ("tensor", "as_tensor") and isinstance(args[0], list | tuple) and any(map(torch.is_tensor, args[0]))
        )
        if name in CALLS or to_host or read:
            raise RuntimeError(f"the host waits at {resolve_name(func)}")
        return func(*args, **kwargs)
