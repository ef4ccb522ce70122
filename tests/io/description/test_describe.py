"""`Dataset.describe` against Polars and pandas, in any partitions, with a target and without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import BadConfig, ColumnNotFound, ExpressionError
from gpupipe.io.description import describe as module
from tests.io.tables import DATA, plain, tables
from tests.raising import raises


@pytest.mark.slow
def test_the_flights_as_polars_describes_them() -> None:
    report = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20).describe()
    whole = pl.read_parquet(DATA / "flights.parquet")
    expected = {row["statistic"]: row for row in whole.describe(interpolation="linear").to_dicts()}
    assert report.num_rows == whole.height and [column.name for column in report.columns] == whole.columns
    for column in report.columns:
        values = whole[column.name].drop_nulls()
        assert (column.num_missing, column.num_distinct) == (whole[column.name].null_count(), values.n_unique())
        ends = [value.item() if isinstance(value, np.datetime64) else value for value in (column.min, column.max)]
        assert ends == [values.min(), values.max()]
        if column.std is not None:
            row = {name: float(found[column.name]) for name, found in expected.items()}
            assert column.mean == pytest.approx(row["mean"], rel=1e-12)
            assert column.std == pytest.approx(row["std"], rel=1e-9)
            assert [column.q25, column.median, column.q75] == pytest.approx([row[q] for q in ("25%", "50%", "75%")])
        top = values.value_counts().sort(["count", column.name], descending=[True, False]).rows()[0]
        if values.dtype != pl.Datetime:
            assert column.top[0] == top
        if column.dtype != "string":
            assert sum(bar.size for bar in column.bars) == len(values)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(table=tables(), parts=st.sampled_from([2, 7]))
def test_any_table_in_any_partitions(table: pa.Table, parts: int) -> None:
    report = gp.from_frame(table, num_partitions=parts).describe()
    assert [column.name for column in report.columns] == table.column_names
    for column in report.columns:
        values = [row[column.name] for row in plain(table) if row[column.name] is not None]
        assert (column.num_rows, column.num_missing) == (table.num_rows, table.num_rows - len(values))
        assert column.num_distinct == len(set(values)) and column.is_exact
        if values and column.dtype != "timestamp":
            assert (column.min, column.max) == (min(values), max(values))
    whole = gp.from_frame(table).describe()
    for mine, theirs in zip(report.columns, whole.columns, strict=True):
        assert [(b.label, b.size) for b in mine.bars] == [(b.label, b.size) for b in theirs.bars]
        assert (mine.top, mine.notes) == (theirs.top, theirs.notes)


def test_more_values_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 512)
    random = np.random.default_rng(3)
    frame = pd.DataFrame({"id": random.permutation(20_000), "name": [f"n{i % 9000}" for i in range(20_000)]})
    report = gp.from_frame(frame, num_partitions=5).describe()
    assert not report["id"].is_exact and report["id"].num_distinct == pytest.approx(20_000, rel=0.2)
    assert report["name"].num_distinct == pytest.approx(9000, rel=0.2)
    assert report["id"].mean == pytest.approx(9999.5) and report["id"].median == pytest.approx(9999.5, rel=0.02)
    assert report["id"].distinct_text.startswith("~") and report["id"].top == ()


def test_every_type_with_missing_values_and_none_at_all() -> None:
    at = pa.array([0, None, 86_400_000_000], pa.timestamp("us"))
    table = pa.table(
        {
            "yes": pa.array([True, None, True]),
            "at": at,
            "day": at.cast(pa.date32()),
            "none": pa.array([None, None, None], pa.float64()),
            "words": pa.array([["a"], None, ["a", "b"]], pa.list_(pa.string())),
            "parcel": pa.array([{"x": 1}, None, {"x": 2}]),
        }
    )
    report = gp.from_frame(table).describe()
    assert (report["yes"].mean, report["yes"].std, report["yes"].top) == (1.0, None, ((True, 2),))
    assert (report["at"].median, report["at"].std) == (np.datetime64("1970-01-01T12:00", "us"), None)
    assert report["none"].notes == ("no value",) and report["none"].num_distinct == 0
    assert report["words"].notes == ("1 to 2 elements",) and report["words"].num_distinct == 2
    assert report["parcel"].num_distinct is None and report["parcel"].num_missing == 1
    assert "1970-01-02 " in repr(report)
    empty = gp.from_frame(table.slice(0, 0)).describe("yes")
    assert empty.num_rows == 0 and all(column.num_missing == 0 for column in empty.columns)


def test_infinite_values_are_said() -> None:
    column = gp.from_frame(pd.DataFrame({"x": [1.0, math.inf, 2.0, -math.inf]})).describe()["x"]
    assert (column.min, column.max, column.notes) == (-math.inf, math.inf, ("infinite values",))


def test_a_range_of_more_than_a_float_holds_has_its_bars() -> None:
    (column,) = gp.from_frame(pd.DataFrame({"x": np.linspace(-1, 1, 400) * 1.7e308})).describe().columns
    assert sum(bar.size for bar in column.bars) == 400 and len(column.bars) > 5


def test_what_is_remarkable_is_noted() -> None:
    rows = range(60)
    frame = pd.DataFrame(
        {
            "id": rows,
            "key": [f"k{row}" for row in rows],
            "same": 1,
            "sometimes": ["x", None] * 30,
            "price": [f"${row},000.50" for row in rows],
            "day": [f"2024-01-{row % 28 + 1:02}" for row in rows],
            "zip": ["01234", "04321"] * 30,
        }
    )
    notes = {column.name: column.notes for column in gp.from_frame(frame, num_partitions=3).describe().columns}
    assert notes["id"] == notes["key"] == ("an id: no value occurs twice",)
    assert notes["same"] == ("constant: 1",) and notes["sometimes"] == ("constant: x or missing",)
    assert notes["price"][1].startswith("texts of amounts of money: T.Derive(price=")
    assert notes["day"] == ("texts of times in ISO format: T.Cast({'day': 'timestamp'})",) and notes["zip"] == ()


@pytest.mark.parametrize("values", [[*map(str, range(1, 11))] * 300, [f"{number / 7:.4f}" for number in range(3000)]])
def test_one_mark_among_numbers_is_named_and_the_step_works(values: list[str]) -> None:
    frame = pd.DataFrame({"rooms": [*values[:5], "-", *values[5:]]})
    note = gp.from_frame(frame, num_partitions=3).describe()["rooms"].notes[-1]
    assert note.startswith("texts of numbers, but for '-' (1 row), which becomes missing: T.Cast(")
    parsed = eval(note.partition(": ")[2], {"T": T}).transform(frame)["rooms"]
    assert parsed.isna().sum() == 1 and parsed.isna()[5]


def test_rows_are_those_of_the_dataset() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet").filter("month == 2").select(["day", "origin"])
    report = flights.describe("origin == 'JFK'")
    assert (report.num_rows, report["day"].max) == (24_951, 28)


@pytest.mark.parametrize(
    ("target", "error", "where"),
    [
        ("delayy", ColumnNotFound, "describe(target=)"),
        ("delay >", ExpressionError, "describe(target=)"),
        ("2001", ColumnNotFound, "describe(target=)"),
        ("1 == 1", ColumnNotFound, "describe(target=)"),
        ("my.delay", ExpressionError, "describe(target=)"),
        (7, ExpressionError, "describe(target=)"),
        ("words", BadConfig, "describe(target=)"),
        (["delay"], ExpressionError, "describe(target=)"),
    ],
)
def test_a_target_that_is_none(target: Any, error: type[Exception], where: str) -> None:
    table = pa.table({"delay": [1.0, 2.0], "words": [["a"], ["b"]]})
    with raises(error, where=where):
        gp.from_frame(table).describe(target)


def test_one_pass_reads_each_row_group_once() -> None:
    data = gp.read_parquet(DATA / "flights.parquet")
    data.describe("arr_delay > 15")
    assert data.reads.passes == 1
