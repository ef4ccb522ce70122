"""One column of a frame as a tensor that shares its memory."""

from __future__ import annotations

import torch
from torch.utils.dlpack import from_dlpack

from gpupipe.backend import Frame, backend_of
from gpupipe.errors import CopyRequired, DeviceMismatch
from gpupipe.schema import FLOATS, INTEGERS

__all__ = ["share"]


def share(frame: Frame, column: str) -> torch.Tensor:
    """A column of a pandas or cuDF frame as a tensor of n values, in the same memory.

    It is the frame's memory: read it only. PyTorch cannot mark a tensor read only, and an operation in place would
    change the frame, and every frame that shares with it.

    Raises:
        CopyRequired: the column cannot be shared as it is: text, times, booleans or integers with missing values.

    Memory: shares; nothing is copied.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": [1.0, 2.0]})
        >>> share(frame, "x").data_ptr() == frame["x"].to_numpy().ctypes.data
        True
    """
    backend = backend_of(frame)
    found = backend.column(backend.encode(frame[[column]]), column)
    if found.dtype not in (*FLOATS, *INTEGERS, "bool") or found.valid is not None:
        raise CopyRequired(
            f"share({column!r})",
            f"a column of {found.dtype} {'with missing values ' if found.valid is not None else ''}cannot be shared",
            expected="numbers without a mask",
            remedy="pipeline.loader(...), which writes every column into one block",
        )
    tensor = from_dlpack(found.data)
    if str(tensor.device) != backend.device:
        where, there = f"share({column!r})", str(tensor.device)
        raise DeviceMismatch(where, "another device", got=there, expected=backend.device, remedy="CUDA_VISIBLE_DEVICES")
    return tensor
