"""Columns, their keys and their types: small cases by hand."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gpupipe.backend import Column, Matrix, frame_remedy, is_frame
from gpupipe.backend.arrow import (
    arrow_type,
    get_file_type,
    holds_fields,
    is_list,
    open_stream,
    parquet_path,
    plain_table,
    read_as,
    read_stream,
    with_distinct_values,
)
from gpupipe.backend.columns import (
    ParquetLayout,
    as_floats,
    as_key,
    chain_columns,
    convert_distance,
    floats,
    key_dtype,
    locate_values,
    one_key_type,
    order_dtype,
    split_parts,
    whole_numbers,
)
from gpupipe.backend.dictionaries import make_dictionary, parse_values, value_type
from gpupipe.backend.kernels import sort_unique
from gpupipe.errors import SchemaMismatch
from gpupipe.schema import Field


def test_numbers_become_floats() -> None:
    found = floats(Column("int64", np.array([7, 0]), np.array([True, False])), np)
    np.testing.assert_array_equal(found, [7.0, np.nan])
    assert as_floats(np.array([0.5, 1e39]), "float32").tolist() == [0.5, np.inf]


def test_a_key_is_compared_in_a_type_of_both_sides() -> None:
    found = [key_dtype(dtypes) for dtypes in ({"int8", "float64"}, {"int64", "uint64"}, {"string"})]
    assert found == ["int64", "uint64", "string"]
    values, there = whole_numbers(Column("float64", np.array([2.0, 2.5, np.nan, 1e300])), np.dtype("int64"), np)
    assert values[0] == 2 and there.tolist() == [True, False, False, False]
    assert as_key(Column("float64", np.array([2.0, 2.5])), "int64", np).valid.tolist() == [True, False]
    assert one_key_type(Field("id", "int64"), Field("key", "bool")) == (
        "T.Cast({'key': 'int64'}) of the right table before the join"
    )


def test_a_chain_keeps_a_matrix() -> None:
    flag = {"y": Column("bool", np.ones(2, dtype=bool))}
    columns = chain_columns(Matrix(["x"], np.ones((1, 2))), flag, {"z": flag["y"]})
    assert list(columns) == ["x", "y", "z"]
    assert [type(part) for part in split_parts(columns)] == [Matrix, dict]


@pytest.mark.parametrize(
    ("left", "right", "dtype", "distance", "converted"),
    [
        ("int32", "int64", "int64", 10, 10),
        ("uint64", "uint8", "uint64", 10, 10),
        ("float32", "int16", "float64", 10, 10.0),
        ("timestamp", "timestamp", "timestamp", "2h", 7_200_000_000),
    ],
)
def test_both_sides_of_an_as_of_join_have_one_order(
    left: str, right: str, dtype: str, distance: object, converted: float
) -> None:
    assert order_dtype(Field("t", left), Field("t", right), "join_asof") == dtype
    assert convert_distance(distance, dtype, "join_asof(tolerance=)") == converted


@pytest.mark.parametrize(("left", "right", "side"), [("timestamp", "int64", "right"), ("int32", "timestamp", "left")])
def test_numbers_beside_times_may_be_seconds_or_digits(left: str, right: str, side: str) -> None:
    number = {"left": "l", "right": "r"}[side]
    with pytest.raises(SchemaMismatch) as caught:
        order_dtype(Field("l", left), Field("r", right), "join_asof")
    assert caught.value.remedy.startswith(f"times on the {side}: T.Derive({number}='{number} * 1000000') if it holds")
    assert f"digits like 20240131 gp.read_csv(..., timestamp_formats={{'{number}': '%Y%m%d'}})" in caught.value.remedy
    assert one_key_type(Field("l", left), Field("r", right)).startswith(
        f"times in place of numbers: T.Derive({number}="
    )


def test_types_and_their_text() -> None:
    assert read_as(pa.date32()).written_as == "date32[day]" and read_as(pa.float16()).change == "read as float32"
    assert arrow_type("struct<city: string>") == pa.struct({"city": pa.string()})
    assert arrow_type("date32[day]") == pa.date32() and arrow_type("int64") == pa.int64()
    zoned = "timestamp[us, tz=Europe/Oslo]"
    assert get_file_type(Field("at", "timestamp", written_as=zoned)) == pa.timestamp("us", "Europe/Oslo")
    assert is_list(pa.list_(pa.int8(), 3)) and not is_list(pa.struct([]))
    one, two = pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int8(), "b": pa.int8()})
    assert holds_fields(two, one) and not holds_fields(one, two)
    assert parquet_path(Field("words", "list<string>")) == "words.list.element"


def test_tables_of_others() -> None:
    table = pa.table({"flight": [1], "x": [np.nan]})
    assert open_stream(table).schema.names == ["flight", "x"]
    assert [item.dtype for item in read_stream(table, "Join")[1]] == ["int64", "float64"]
    assert plain_table(table).column("x").null_count == 1
    twice = pa.DictionaryArray.from_arrays([0, 1], ["JFK", "JFK"])
    assert with_distinct_values(twice).indices.to_pylist() == [0, 0]


def test_values_of_a_list() -> None:
    assert [str(value_type(dtype)) for dtype in ("int8", "bool", "string")] == ["int64", "int64", "large_string"]
    assert make_dictionary([True], "bool").to_pylist() == [1]
    values, has_missing = parse_values(["LGA", None, "JFK"], "string")
    assert values.to_pylist() == ["LGA", "JFK"] and has_missing
    places, offsets = locate_values(np.array([5, 0]), np.array([2, 1]), np)
    assert places.tolist() == [5, 6, 0] and offsets.tolist() == [0, 2, 3]


def test_many_pages_have_a_hundredth_of_the_rows() -> None:
    layout = ParquetLayout(10_000_000, "snappy", frozenset(), has_many_pages=True)
    assert [layout.page_rows(rows) for rows in (1_200_000, 1000, 10**9)] == [12_000, 5_000, 20_000]


def test_what_is_no_frame_has_a_remedy() -> None:
    assert [frame_remedy(given) for given in ({"x": [1]}, {"x": 1}, 7)] == [
        "pd.DataFrame(data)",
        "pd.DataFrame([data])",
        None,
    ]
    assert "to_frame" in (frame_remedy(pd.Series([1])) or "")


def test_a_frame_is_known_by_its_class() -> None:
    assert [is_frame(given) for given in (pd.DataFrame(), pd.Series([1]), pd.DataFrame)] == [True, False, False]


@pytest.mark.slow
def test_distinct_values_are_sorted() -> None:
    """NumPy's `unique` without counts or places has a hash table for integers: a second for a million of them."""
    assert sort_unique(np.array([3, 1, 3, 2], "uint64"), np).tolist() == [1, 2, 3]
    assert sort_unique(np.array([], "int64"), np).tolist() == []
    package = Path(__file__).parents[2] / "gpupipe"
    calls = (node for path in package.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    arrays = {"np", "xp", "backend.xp"}
    for call in calls:
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {f"{name}.unique" for name in arrays}:
            assert any(str(option.arg).startswith("return_") for option in call.keywords), ast.unparse(call)
