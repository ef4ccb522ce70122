from __future__ import annotations

import pickle
import sys

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.io import inspect
from tests.io.tables import DATA, plain, tables


def test_the_flights_as_polars_sees_them() -> None:
    report = inspect(gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20))
    expected = pl.read_parquet(DATA / "flights.parquet")
    assert report.num_rows == expected.height
    for found in report.columns:
        column = expected[found.field.name]
        assert found.num_missing == column.null_count()
        assert found.num_distinct == column.drop_nulls().n_unique()
        low, high = (
            (found.low.item(), found.high.item()) if found.field.dtype == "timestamp" else (found.low, found.high)
        )
        assert (low, high) == (column.min(), column.max())


@settings(deadline=None, max_examples=25)
@given(table=tables(), parts=st.sampled_from([1, 2, 7]))
def test_any_table_in_any_partitions(table: pa.Table, parts: int) -> None:
    report = inspect(gp.from_frame(table, num_partitions=parts))
    for found in report.columns:
        values = [row[found.field.name] for row in plain(table) if row[found.field.name] is not None]
        assert found.num_missing == table.num_rows - len(values)
        assert found.num_distinct == len(set(values))
        if values and found.field.dtype != "timestamp":
            assert (found.low, found.high) == (min(values), max(values))
    assert len(report.columns) == len(table.column_names)


def test_more_distinct_values_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["gpupipe.io.inspect"], "MAX_DISTINCT", 10)
    report = inspect(gp.from_frame(pa.table({"n": range(40), "m": [1, 2] * 20}), num_partitions=4))
    n, m = report.columns
    assert (n.num_distinct, n.is_capped, n.low, n.high) == (10, True, 0, 39)
    assert (m.num_distinct, m.is_capped) == (2, False)
    assert ">= 10" in repr(report)


def test_a_report_keeps_no_values() -> None:
    report = inspect(gp.from_frame(pa.table({"text": [f"value {row}" for row in range(10_000)]})))
    assert report.columns[0].num_distinct == 10_000
    assert len(pickle.dumps(report.columns)) < 1_000


def test_it_shows_itself() -> None:
    report = inspect(gp.from_frame(pa.table({"<x>": [1.5, None, 2.5, 1.5]}), num_partitions=2))
    assert repr(report) == (
        "4 rows, 1 column, 2 partitions\n\n"
        "column  dtype    missing  distinct  min  max\n"
        "<x>     float64  25.00%   2         1.5  2.5\n\n"
        "0: 2 rows, rows 0 to 2 of a frame\n1: 2 rows, rows 2 to 4 of a frame"
    )
    assert ">&lt;x&gt;</td>" in report._repr_html_()


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(
    ("lists", "kind", "expected"),
    [
        ([["a", "b"], ["c"], None, []], pa.string(), (1, 3, "a", "c", (0, 2), 0)),
        ([["a", "b"], ["c"], ["zz"], []], pa.string(), (0, 4, "a", "zz", (0, 2), 0)),
        ([[1.5, None], [], [1.5, -2.0], [float("nan")]], pa.float64(), (0, 2, -2.0, 1.5, (0, 2), 2)),
        ([[2**64 - 1], None, None, [1, 1, None]], pa.uint64(), (2, 2, 1, 2**64 - 1, (1, 3), 1)),
        ([None, None, None, None], pa.int8(), (4, 0, None, None, None, 0)),
        ([[], [], [], []], pa.int8(), (0, 0, None, None, (0, 0), 0)),
    ],
)
def test_lists(lists: list[list[object] | None], kind: pa.DataType, expected: tuple[object, ...], parts: int) -> None:
    table = pa.table({"w": pa.array(lists, pa.list_(kind))})
    report = inspect(gp.from_frame(table, num_partitions=parts))
    (found,) = report.columns
    seen = found.num_missing, found.num_distinct, found.low, found.high, found.lengths, found.num_missing_elements
    assert seen == expected


def test_lists_show_their_lengths() -> None:
    table = pa.table({"w": pa.array([["a", None], None], pa.list_(pa.string())), "n": [1, 2]})
    assert repr(inspect(gp.from_frame(table))).splitlines()[2:5] == [
        "column  dtype         missing  distinct  min  max  lengths",
        "w       list<string>  50.00%   1         a    a    2 to 2, 1 missing",
        "n       int64         0.00%    2         1    2",
    ]


def test_lists_of_times() -> None:
    at = pa.array([[0, 3_600_000_000], None], pa.list_(pa.timestamp("us")))
    (found,) = inspect(gp.from_frame(pa.table({"at": at}))).columns
    assert (str(found.low), str(found.high)) == ("1970-01-01T00:00:00.000000", "1970-01-01T01:00:00.000000")
