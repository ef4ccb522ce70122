"""One column as a tensor: the same memory, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gpupipe import errors
from gpupipe.backend import Backend, Column
from gpupipe.schema import FLOATS, INTEGERS
from gpupipe.tensors import share
from tests.raising import raises


def frame_of(dtype: str, values: Any, backend: Backend) -> Any:
    """A user's frame with one column."""
    made = backend.frame({"x": Column(dtype, backend.to_device(np.asarray(values, dtype=dtype)))}, len(values))
    return backend.decode(made)


def pointer(array: Any) -> int:
    """Where the values of a NumPy or CuPy array lie."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, "bool"])
def test_a_column_is_shared_by_pointer(dtype: str, backend: Backend) -> None:
    frame = frame_of(dtype, [1, 0, 1], backend)
    on_device = torch.cuda.memory_allocated() if backend.name == "gpu" else 0
    tensor = share(frame, "x")
    assert tensor.data_ptr() == pointer(frame["x"].values)
    assert str(tensor.dtype) == f"torch.{dtype}" and str(tensor.device) == backend.device
    assert tensor.tolist() == [1, 0, 1]
    assert (torch.cuda.memory_allocated() if backend.name == "gpu" else 0) == on_device


def test_it_is_the_frames_own_memory_and_therefore_to_be_read_only() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    share(frame, "x")[0] = 7.0
    assert frame["x"].tolist() == [7.0, 2.0]


def test_the_tensor_outlives_the_frame() -> None:
    tensor = share(pd.DataFrame({"x": np.arange(1000.0)}), "x")
    assert tensor.sum().item() == 499_500


def test_columns_of_another_layout(backend: Backend) -> None:
    assert share(frame_of("float64", np.arange(10), backend)[::2], "x").tolist() == [0, 2, 4, 6, 8]
    assert share(frame_of("float64", [], backend), "x").tolist() == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["a"], "a column of string cannot"),
        (pd.to_datetime(["2013-01-01"]), "a column of timestamp cannot"),
        (pd.array([1, None], dtype="Int64"), "a column of int64 with missing values cannot"),
        (np.arange(5.0)[::-1], "a column that runs backwards through memory cannot"),
        (np.arange(3, dtype=">i4"), "a column of int32 is not stored"),
    ],
)
def test_what_cannot_be_shared(values: Any, problem: str) -> None:
    with pytest.raises(errors.CopyRequired, match=rf"share\('x'\): {problem}"):
        share(pd.DataFrame({"x": values}, copy=False), "x")


def test_what_the_backend_has_to_make_is_not_shared(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    frame = frame_of("float64", [1, 2], backend)
    twin = type(backend)
    column = twin.column
    monkeypatch.setattr(twin, "column", lambda self, *given: column(self, *given).take(slice(None)))
    assert share(frame, "x").tolist() == [1, 2], "a slice is the same memory"
    monkeypatch.setattr(twin, "column", lambda self, *given: column(self, *given).take(self.xp.arange(2)))
    with raises(errors.CopyRequired, where="share('x')", match="not stored as a tensor"):
        share(frame, "x")


def test_a_column_that_is_not_there() -> None:
    with raises(errors.ColumnNotFound, where="share", column="xx"):
        share(pd.DataFrame({"x": [1]}), "xx")
