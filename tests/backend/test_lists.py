"""Columns of lists in coded frames: in, out, gathered, put together; pyarrow is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend.arrow import arrow_type, conform, dtype_from_arrow, split_list
from gpupipe.backend.columns import Backend, missing_column, with_missing_row
from gpupipe.backend.cpu import CpuBackend
from gpupipe.schema import Field, Kind, Schema
from tests.raising import raises

CPU = CpuBackend()
CHECKS = settings(deadline=None, max_examples=60)
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", "a", "ß", "zz"]),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int8": st.integers(-128, 127),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "timestamp": st.datetimes(),
}


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """An element type and rows of lists, some missing, with missing elements."""
    element = draw(st.sampled_from(list(ELEMENTS)))
    rows = st.none() | st.lists(st.none() | ELEMENTS[element], max_size=4)
    return element, draw(st.lists(rows, max_size=8))


def coded(backend: Backend, element: str, rows: list[Any]) -> Any:
    table = pa.table({"x": pa.array(rows, arrow_type(f"list<{element}>"))})
    return backend.from_arrow(table, [Field("x", f"list<{element}>")])


def back(backend: Backend, frame: Any) -> list[Any]:
    return backend.to_arrow(frame)["x"].to_pylist()


@pytest.mark.slow
@CHECKS
@given(data=st.data(), given=lists())
def test_rows_go_in_and_come_out(backend: Backend, data: st.DataObject, given: tuple[str, list[Any]]) -> None:
    element, rows = given
    frame = coded(backend, element, rows)
    column = backend.column(frame, "x")
    assert (column.dtype, len(column), column.data.dtype) == (f"list<{element}>", len(rows), "int64")
    assert back(backend, frame) == rows
    assert back(backend, backend.frame({"x": column}, len(rows))) == rows
    assert back(backend, backend.encode(backend.decode(frame))) == rows
    assert backend.schema_of(frame)["x"].dtype == f"list<{element}>"

    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9) if rows else st.just([]))
    wanted = [rows[place] for place in places]
    at = backend.to_device(np.array(places, dtype=np.int64))
    assert back(backend, backend.frame({"x": column.take(at)}, len(places))) == wanted
    assert back(backend, backend.take(frame, at)) == wanted
    extended = with_missing_row(column, backend.xp).take(backend.xp.append(at, -1))
    assert back(backend, backend.frame({"x": extended}, len(places) + 1)) == [*wanted, None]
    cut = len(rows) // 2
    assert back(backend, backend.frame({"x": backend.column(frame.iloc[cut:], "x")}, len(rows) - cut)) == rows[cut:]
    assert back(backend, backend.concat([backend.take(frame, at), frame])) == wanted + rows
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    mask = backend.to_device(np.array(keep, dtype=bool))
    assert back(backend, backend.filter(frame, mask)) == [row for row, kept in zip(rows, keep, strict=True) if kept]
    assert back(backend, backend.frame({"x": column.take(mask)}, sum(keep))) == back(
        backend, backend.filter(frame, mask)
    )


def test_frames_of_other_dictionaries_are_put_together(backend: Backend) -> None:
    parts = [coded(backend, "string", rows) for rows in ([["a", "b"]], [["b"], None], [])]
    assert back(backend, backend.concat(parts)) == [["a", "b"], ["b"], None]


def test_numbers_are_shared_with_arrow() -> None:
    table = pa.table({"x": pa.array([[1, 2], [], [3]], pa.large_list(pa.int32()))})
    column = CPU.column(CPU.from_arrow(table, [Field("x", "list<int32>")]), "x")
    held = table["x"].chunk(0)
    assert column.elements is not None
    assert np.shares_memory(column.elements.data, held.flatten().to_numpy())
    assert np.shares_memory(column.data, held.offsets.to_numpy())


def test_what_lies_under_a_missing_list_does_not_count() -> None:
    array = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    assert conform(array, Field("x", "list<int64>")).to_pylist() == [None, [3]]
    assert split_list(array)[1].to_pylist() == [3]


@pytest.mark.parametrize(
    "values",
    [[["a", None], None, []], [("a", None), None, ()], [np.array(["a", None], object), None, np.array([], object)]],
)
def test_a_users_objects_are_lists(values: list[Any]) -> None:
    frame = CPU.encode(pd.DataFrame({"x": pd.Series(values, index=[5, 5, 0], dtype=object)}))
    assert CPU.schema_of(frame)["x"].dtype == "list<string>"
    assert back(CPU, frame) == [["a", None], None, []]


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, lambda kind: pa.list_(kind, 2)])
def test_every_kind_of_list_that_arrow_has(kind: Any) -> None:
    array = pa.array([[1, 2], None], kind(pa.int16()))
    assert dtype_from_arrow(array.type) == "list<int16>"
    assert conform(array, Field("x", "list<int16>")).to_pylist() == [[1, 2], None]


def test_lists_of_lists_are_carried() -> None:
    assert dtype_from_arrow(pa.list_(pa.list_(pa.int8()))) == "list<item: list<item: int8>>"
    coded = CPU.encode(pd.DataFrame({"x": [[[1]]]}))
    assert CPU.schema_of(coded)["x"].kind == Kind.PASSENGER
    assert CPU.to_arrow(coded).to_pylist() == [{"x": [[1]]}]


def test_a_column_of_missing_lists(backend: Backend) -> None:
    column = missing_column("list<string>", 2, backend.xp)
    assert back(backend, backend.frame({"x": column}, 2)) == [None, None]


def test_the_schema_tells_of_lists() -> None:
    field = Field("x", "list<int32>", cardinality=7)
    assert field.kind == Kind.LIST
    assert Schema.from_json(Schema([field]).to_json()) == Schema([field])
    assert "list<int32>  list" in repr(Schema([field]))
    with raises(errors.BadConfig, where="column 'x'", got="list<list<int32>>"):
        Field("x", "list<list<int32>>")
