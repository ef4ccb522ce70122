"""The CPU twin: every kind of pandas column comes in, keeps what is missing, and goes out as users know it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gpupipe import errors
from gpupipe.backend import select
from gpupipe.backend.arrow import concat_tables
from gpupipe.schema import Field
from tests.raising import raises

CPU = select("cpu")
BIG = 2**53 + 1

KINDS: dict[str, tuple[Any, str]] = {
    "float64": (pd.array([1.5, None], dtype="float64"), "float64"),
    "float32": (pd.array([1.5, None], dtype="float32"), "float32"),
    "Float64": (pd.array([1.5, None], dtype="Float64"), "float64"),
    "arrow double": (pd.array([1.5, None], dtype=pd.ArrowDtype(pa.float64())), "float64"),
    "int64": (pd.array([BIG, 2], dtype="int64"), "int64"),
    "Int64": (pd.array([BIG, None], dtype="Int64"), "int64"),
    "arrow int64": (pd.array([BIG, None], dtype=pd.ArrowDtype(pa.int64())), "int64"),
    "UInt8": (pd.array([255, None], dtype="UInt8"), "uint8"),
    "bool": (pd.array([True, False], dtype="bool"), "bool"),
    "boolean": (pd.array([True, None], dtype="boolean"), "bool"),
    "arrow bool": (pd.array([True, None], dtype=pd.ArrowDtype(pa.bool_())), "bool"),
    "str": (pd.array(["\u00fc", None], dtype="str"), "string"),
    "object": (np.array(["\u00fc", None], dtype=object), "string"),
    "arrow string": (pd.array(["\u00fc", None], dtype=pd.ArrowDtype(pa.string())), "string"),
    "category": (pd.Categorical(["\u00fc", None], categories=["unused", "\u00fc"]), "string"),
    "time": (pd.array([pd.Timestamp("2013-01-01"), None], dtype="datetime64[ns]"), "timestamp"),
    "time with a zone": (pd.DatetimeIndex(["2013-01-01", None]).tz_localize("America/New_York"), "timestamp"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_column_keeps_its_values_and_gaps(kind: str) -> None:
    values, dtype = KINDS[kind]
    frame = pd.DataFrame({"x": values}, index=[5, 5])
    before = frame.copy(deep=True)
    coded = CPU.encode(frame)
    column = CPU.column(coded, "x")
    assert column.dtype == dtype and CPU.schema_of(coded)["x"].dtype == dtype
    missing = column.missing(np)
    assert ([False, False] if missing is None else missing.tolist()) == frame["x"].isna().tolist()
    assert dtype not in ("float32", "float64", "string") or column.valid is None
    assert CPU.decode(coded)["x"].isna().tolist() == frame["x"].isna().tolist()
    pd.testing.assert_frame_equal(frame, before)
    again = CPU.column(CPU.frame({"x": column}, 2), "x")
    assert again.data.tolist()[0] == column.data.tolist()[0]
    table = CPU.to_arrow(coded)
    assert table["x"].null_count == int(frame["x"].isna().sum())
    back = CPU.column(CPU.from_arrow(table, list(CPU.schema_of(coded))), "x")
    first = back.dictionary[int(back.data[0])] if back.dictionary is not None else back.data[0]
    assert first == (column.dictionary[int(column.data[0])] if column.dictionary is not None else column.data[0])


@pytest.mark.parametrize("values", [[object()], [1 + 2j], [["a"], ["b", 1]], [["a"], "b"], ["a", 1]])
def test_what_is_not_worked_with_is_named(values: list[object]) -> None:
    with raises(errors.SchemaMismatch, where="column 'x'"):
        CPU.encode(pd.DataFrame({"x": values}))


def test_names_have_to_be_strings_and_unique() -> None:
    with raises(errors.SchemaMismatch, where="frame", got=3):
        CPU.encode(pd.DataFrame({3: [1]}))
    with raises(errors.SchemaMismatch, where="frame", got=["x"]):
        CPU.encode(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    with raises(errors.SchemaMismatch, where="frame", got=["x"]):
        CPU.encode(CPU.select(pd.DataFrame([[1, 2]], columns=["x", "x"]), ["x"]))


def test_rows_of_frames_with_other_dictionaries() -> None:
    parts = [CPU.encode(pd.DataFrame({"s": pd.array(text, dtype="str")})) for text in (["a"], ["b", None], [])]
    joined = CPU.concat(parts)
    assert CPU.decode(joined)["s"].fillna("-").tolist() == ["a", "b", "-"]
    assert CPU.positions(joined).tolist() == [0, 1, 2]


def test_tables_of_coded_and_plain_text_are_one() -> None:
    """A GPU gives plain text, what was merged on the host is coded."""
    coded = pa.table({"s": pa.array(["b", None, "a"]).dictionary_encode(), "n": pa.array([1, None, 3], pa.int32())})
    made = concat_tables([coded, pa.table({"n": [4, 5], "s": ["a", "c"]})], [Field("s", "string"), Field("n", "int64")])
    assert made.to_pydict() == {"s": ["b", None, "a", "a", "c"], "n": [1, None, 3, 4, 5]}
    assert pa.types.is_dictionary(made.schema.field("s").type)


def test_positions_go_with_the_rows() -> None:
    frame = CPU.encode(pd.DataFrame({"x": [1, 2, 3, 4]}))
    kept = CPU.filter(frame, np.array([False, True, True, True]))
    assert CPU.positions(CPU.take(kept, np.array([2, 0]))).tolist() == [3, 1]


def test_a_decoded_frame_is_the_users_own() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "s": ["a", "b"]})
    given = CPU.decode(CPU.encode(frame))
    given.loc[0, "x"] = 9.0
    assert frame["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("nothing", [None, pd.NA, pd.NaT, np.nan])
def test_objects_without_a_value_are_numbers_as_arrows_nulls_are(nothing: object) -> None:
    frame = pd.DataFrame({"x": pd.Series([nothing, None], dtype=object)})
    column = CPU.column(CPU.encode(frame), "x")
    assert column.dtype == "float64" and np.isnan(column.data).all()
    assert CPU.encode(frame[:0])["x"].dtype == "category"
    assert CPU.schema_of(CPU.encode(frame))["x"].dtype == "float64"
