"""ListSlice against Python's own slices, and against what NVTabular's operator says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.schema import Field
from tests.raising import raises

PLACES = st.integers(-4, 4)


def wanted(row: list[Any] | None, start: int, end: int | None, length: int, pad: bool, value: Any) -> Any:
    """One row; with `pad`, `length` is that of NVTabular's documentation."""
    if start > 0 and end is None:
        start, end = 0, start
    if row is None:
        return [value] * length if pad else None
    part = row[start:end]
    return part + [value] * (length - len(part)) if pad else part


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=5), max_size=6),
    start=PLACES,
    end=st.none() | PLACES,
    pad=st.booleans(),
    value=st.none() | st.integers(-9, 9),
)
def test_rows_are_sliced_as_in_python(rows: list[Any], start: int, end: int | None, pad: bool, value: Any) -> None:
    frame = pd.DataFrame({"x": pd.array(rows, pd.ArrowDtype(pa.list_(pa.int64())))})
    step = pre.ListSlice(start, end, pad=pad, pad_value=value)
    first, last = (0, start) if start > 0 and end is None else (start, end)
    if first >= 0:
        length = -1 if last is None else last - first
    else:
        length = -first if last is None or last >= 0 else last - first
    if pad and length < 1:
        with raises(errors.BadConfig, where="ListSlice(pad=True)", expected="a number of elements"):
            step.fit(frame)
        return
    found = pa.array(step.fit_transform(frame)["x"].array).to_pylist()
    assert found == [wanted(row, start, end, length, pad, value) for row in rows]


def test_the_examples_of_nvtabular() -> None:
    frame = pd.DataFrame({"x": [list(range(20)), [1, 2, 3]]})
    for step, first, second in [
        (pre.ListSlice(10), list(range(10)), [1, 2, 3]),
        (pre.ListSlice(1, 11), list(range(1, 11)), [2, 3]),
        (pre.ListSlice(-10), list(range(10, 20)), [1, 2, 3]),
        (pre.ListSlice(5, pad=True), list(range(5)), [1, 2, 3, 0, 0]),
    ]:
        assert step.fit_transform(frame)["x"].tolist() == [first, second]


def test_arrays_of_a_file_are_padded_too() -> None:
    frame = pd.DataFrame({"x": [np.array([1, 2]), np.array([], np.int64)]})
    assert pre.ListSlice(3, pad=True).fit_transform(frame)["x"].tolist() == [[1, 2, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("dtype", "cardinality", "value"),
    [
        ("list<string>", None, 0),
        ("list<uint8>", None, -1),
        ("list<int8>", None, 200),
        ("list<int64>", None, 0.5),
        ("list<int32>", 5, 5),
        ("list<int32>", 5, None),
        ("list<timestamp>", None, 0),
    ],
)
def test_a_value_that_elements_cannot_be(dtype: str, cardinality: int | None, value: Any) -> None:
    step = pre.ListSlice(3, pad=True, pad_value=value)
    with raises(errors.BadConfig, where="ListSlice(pad_value=), column 'x'", got=value):
        step.output_fields([Field("x", dtype, cardinality=cardinality)])


def test_places_are_integers() -> None:
    for start, end in ((1.5, None), ("2", None), (0, 2.5)):
        with pytest.raises(errors.BadConfig, match=r"\((start|end)=\)"):
            pre.ListSlice(start, end)
    with raises(errors.BadConfig, where="ListSlice(pad_value=)", got="a"):
        pre.ListSlice(3, pad=True, pad_value="a")
    with raises(errors.BadConfig, where="ListSlice(pad_value=), column 'x'", got=np.inf):
        pre.ListSlice(3, pad=True, pad_value=np.inf).output_fields([Field("x", "list<float64>")])


def test_ids_stay_ids() -> None:
    (made,) = pre.ListSlice(3, pad=True).output_fields([Field("x", "list<int32>", cardinality=5)])
    assert (made.cardinality, made.nullable) == (5, False)
