"""Zero-copy tensors: one column of a frame as a tensor in the same memory."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.backend import Frame, infer_backend
from gpupipe.errors import ColumnNotFound, CopyRequired
from gpupipe.schema import FLOATS, INTEGERS


def share(frame: Frame, column: str) -> Tensor:
    """Return a column of a pandas or cuDF frame as a tensor of n values, in the same memory.

    It is the frame's memory: read it only. PyTorch cannot mark a tensor read only, and an operation in place would
    change the frame, and every frame that shares with it. Masked values would be garbage: such a column is refused.

    Raises:
        ColumnNotFound: the frame has no such column.
        CopyRequired: the column cannot be shared as it is: text, times, numbers with a mask or stored backwards.

    Memory: shares; nothing is copied.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": [1.0, 2.0]})
        >>> share(frame, "x").data_ptr() == frame["x"].to_numpy().ctypes.data
        True
    """
    backend = infer_backend(frame)
    if column not in frame.columns:
        raise ColumnNotFound.among("share", column, frame.columns)
    found, again = (backend.column(backend.encode(frame[[column]]), column) for _ in range(2))
    if found.dtype not in (*FLOATS, *INTEGERS, "bool"):
        raise _make_error(column, f"a column of {found.dtype} cannot be shared")
    if found.valid is not None:
        raise _make_error(column, f"a column of {found.dtype} with missing values cannot be shared")
    if min(found.data.strides) < 0:  # torch would end the process
        raise _make_error(column, "a column that runs backwards through memory cannot be shared")
    tensor = from_dlpack(found.data)
    # The frame's own memory has the same address at each access; memory allocated for the access has not.
    if tensor.data_ptr() != from_dlpack(again.data).data_ptr():
        raise _make_error(column, f"a column of {found.dtype} is not stored as a tensor would be")
    return tensor


def _make_error(column: str, problem: str) -> CopyRequired:
    return CopyRequired(
        f"share({column!r})",
        problem,
        expected="numbers without a mask, one after the other",
        remedy="pipeline.loader(...), which writes every column into one table",
    )
