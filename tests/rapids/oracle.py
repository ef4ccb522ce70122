"""The CPU twin as the oracle of the GPU twin: tables that hypothesis makes, on both, and what counts as the same."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from gpupipe.backend.columns import Backend, Column
from gpupipe.backend.cpu import CpuBackend
from gpupipe.schema import Field

CPU = CpuBackend()


def year(number: int) -> dt.datetime:
    return dt.datetime(number, 1, 1)  # noqa: DTZ001 - naive, as timestamps are here


FIELDS = [
    Field("byte", "int8"),
    Field("count", "int64"),
    Field("small", "float32"),
    Field("price", "float64"),
    Field("open", "bool"),
    Field("città", "string"),
    Field("at", "timestamp"),
    Field("words", "list<string>"),
    Field("counts", "list<int64>"),
    Field("prices", "list<float64>"),
]
TYPES = {
    "byte": pa.int8(),
    "count": pa.int64(),
    "small": pa.float32(),
    "price": pa.float64(),
    "open": pa.bool_(),
    "città": pa.large_string(),
    "at": pa.timestamp("us"),
    "words": pa.large_list(pa.large_string()),
    "counts": pa.large_list(pa.int64()),
    "prices": pa.large_list(pa.float64()),
}
VALUES = {
    "byte": st.integers(-128, 127),
    "count": st.sampled_from([0, -1, 2**53 + 1, -(2**63), 2**63 - 1]),
    "small": st.floats(width=32),
    "price": st.floats(),
    "open": st.booleans(),
    "città": st.sampled_from(["", "a", "Ω", "zz", "straße"]),
    "at": st.datetimes(year(1700), year(2200)),
}
VALUES |= {
    name: st.lists(st.none() | VALUES[of], max_size=3)
    for name, of in [("words", "città"), ("counts", "count"), ("prices", "price")]
}


@st.composite
def tables(draw: Any, max_rows: int = 8, nulls: bool = True) -> pa.Table:
    rows = draw(st.integers(0, max_rows))
    columns = {}
    for name, values in VALUES.items():
        choice = st.one_of(st.none(), values) if nulls else values
        columns[name] = pa.array(draw(st.lists(choice, min_size=rows, max_size=rows)), TYPES[name], from_pandas=False)
    return pa.table(columns)


def same(found: pa.Table, wanted: pa.Table) -> None:
    """Equal values, column by column; one missing value, not two."""
    assert found.column_names == wanted.column_names
    for name in wanted.column_names:
        left, right = found.column(name).combine_chunks(), wanted.column(name).combine_chunks()
        assert left.type == right.type, name
        assert left.equals(right), (name, left, right)


def both(backend: Backend, table: pa.Table) -> tuple[Any, Any]:
    fields = [item for item in FIELDS if item.name in table.column_names]
    return backend.from_arrow(table, fields), CPU.from_arrow(table, fields)


def host(array: Any) -> Any:
    return getattr(array, "host", array)


def columns_equal(found: Column, wanted: Column) -> None:
    """The same values; what lies under a missing one, and how codes are numbered, is each backend's own."""
    assert found.dtype == wanted.dtype and len(found) == len(wanted)
    if wanted.elements is not None:
        assert found.elements is not None
        columns_equal(found.elements, wanted.elements)
        np.testing.assert_array_equal(host(found.data), wanted.data)
    if wanted.dictionary is not None:
        assert (
            found.dictionary is not None
            and found.dictionary.null_count == 0
            and found.dictionary.type == pa.large_string()
        )
        decoded = [
            pa.DictionaryArray.from_arrays(pa.array(host(c.data), mask=host(c.data) < 0), c.dictionary).to_pylist()
            for c in (found, wanted)
        ]
        assert decoded[0] == decoded[1]
        return
    assert (found.valid is None) == (wanted.valid is None)
    there = slice(None) if wanted.valid is None or wanted.elements is not None else wanted.valid
    np.testing.assert_array_equal(host(found.data)[there], wanted.data[there])
    assert host(found.data).dtype == wanted.data.dtype
    if wanted.valid is not None:
        np.testing.assert_array_equal(host(found.valid), wanted.valid)
