from __future__ import annotations

import pickle
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
from gpupipe.errors import BadConfig, ColumnNotFound, ExpressionError, GpupipeError, LeakageError
from gpupipe.io.planning.table import identify_job, map_frames
from gpupipe.schema import Field, Schema
from tests.io.tables import DATA, arrow, flights, plain, tables, values
from tests.raising import raises

several = settings(deadline=None, max_examples=25)


@pytest.fixture
def dataset() -> gp.Dataset:
    return gp.from_frame(flights(), num_partitions=7)


def test_it_is_what_it_was_made_of(dataset: gp.Dataset) -> None:
    expected = pl.from_arrow(flights())
    assert isinstance(expected, pl.DataFrame)
    assert (len(dataset), dataset.num_partitions, dataset.columns) == (336_776, 7, expected.columns)
    assert pl.DataFrame(arrow(dataset.compute())).cast(expected.schema).equals(expected)
    assert all(item.lineage == {item.name} for item in dataset.schema)


@pytest.mark.parametrize("name", ["x", "y", "z", 1, None])
def test_a_name_is_in_it_as_in_a_frame(name: object) -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": [1, 2]})
    assert (name in gp.from_frame(frame)) == (name in frame)
    assert (name in gp.from_frame(frame).select("y").filter("y > 5")) == (name == "y")


@pytest.mark.slow
@several
@given(table=tables(), parts=st.sampled_from([1, 2, 7]))
def test_to_pandas_is_compute_on_the_cpu(table: pa.Table, parts: int) -> None:
    dataset = gp.from_frame(table, num_partitions=parts, backend="cpu")
    pd.testing.assert_frame_equal(dataset.to_pandas(), dataset.compute())


@pytest.mark.slow
@several
@given(table=tables(), parts=st.sampled_from([1, 2, 7]), n=st.integers(0, 40))
def test_head_is_the_first_rows(table: pa.Table, parts: int, n: int) -> None:
    dataset = gp.from_frame(table, num_partitions=parts)
    assert plain(dataset.head(n)) == plain(table)[:n]
    assert dataset.head(n).columns.to_list() == table.column_names


def test_head_reads_no_more_than_it_shows() -> None:
    dataset = gp.read_parquet(DATA / "flights.parquet")
    assert dataset.num_partitions == 1
    assert len(dataset.head(10)) == 10
    assert set(dataset.reads.row_groups) == {(0, 0)}
    found = dataset.filter("dest == 'LEX'").head()
    assert values(found, "dest") == ["LEX"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("dep_delay > 60", pl.col("dep_delay") > 60),
        ("origin == 'JFK' and month in [1, 7]", (pl.col("origin") == "JFK") & pl.col("month").is_in([1, 7])),
        ("not (dep_time < 600)", ~(pl.col("dep_time") < 600)),
        ("isnull(tailnum) or distance == 17", pl.col("tailnum").is_null() | (pl.col("distance") == 17)),
        ("time_hour >= '2013-12-31'", pl.col("time_hour") >= pl.datetime(2013, 12, 31)),
        ("dep_delay < 0 and dep_delay > 0", pl.lit(value=False)),
    ],
)
def test_a_filter_keeps_what_polars_keeps(ours: str, theirs: pl.Expr) -> None:
    expected = pl.read_parquet(DATA / "flights.parquet").filter(theirs)
    for limit in (1 << 20, 1 << 30):
        kept = gp.read_parquet(DATA / "flights.parquet", partition_bytes=limit).filter(ours)
        assert len(kept) == expected.height
        assert pl.DataFrame(arrow(kept.compute())).cast(expected.schema).equals(expected)


@pytest.mark.slow
@several
@given(table=tables(), parts=st.sampled_from([1, 2, 7]), bound=st.integers(-5, 5))
def test_filters_do_not_depend_on_partitions(table: pa.Table, parts: int, bound: int) -> None:
    kept = gp.from_frame(table, num_partitions=parts).filter(f"x > {bound}").filter("notnull(col('名'))")
    expected = [r for r in plain(table) if r["x"] is not None and r["x"] > bound and r["名"] is not None]
    assert plain(kept.compute()) == expected
    assert len(kept) == len(expected)
    assert plain(kept.select(["tiny"]).compute()) == [{"tiny": r["tiny"]} for r in expected]


def test_assigned_columns_are_those_of_derive() -> None:
    dataset = gp.read_parquet(DATA / "flights.parquet", partition_bytes=1 << 20)
    named = {"speed": "distance / air_time * 60", "origin": "lower(origin)", "fast": "speed > 480 and origin == 'jfk'"}
    assigned, step = dataset.assign(**named), T.Derive(**named)
    expected = step.transform(flights().to_pandas())
    assert (assigned.columns, len(assigned), dataset.reads.passes) == ([*dataset.columns, "speed", "fast"], 336_776, 0)
    assert [item.dtype for item in assigned.schema][-2:] == ["float64", "bool"]
    is_fast = expected["fast"].fillna(False).astype(bool) & (expected["month"] == 1)
    assert (
        values(assigned.filter("fast and month == 1").select("speed"), "speed") == expected["speed"][is_fast].tolist()
    )
    assert set(dataset.reads.columns) == {"distance", "air_time", "origin", "month"}
    pruned = dataset.filter("month == 1").num_partitions
    assert assigned.filter("month == 1").num_partitions == pruned < dataset.num_partitions
    assert len(dataset.assign(month="13 - month").filter("month == 1")) == (expected["month"] == 12).sum()
    groups = pickle.loads(pickle.dumps(assigned)).group_by("origin").agg(mean=("speed", "mean")).compute()
    assert groups["mean"].tolist() == pytest.approx(expected.groupby("origin")["speed"].mean().tolist())
    assert identify_job(assigned) != identify_job(dataset) and identify_job(assigned) is not None
    with pytest.raises(LeakageError):
        gp.Pipeline([], gp.Features(["twice"], target="arr_delay")).fit(dataset.assign(twice="arr_delay * 2"))


@pytest.mark.parametrize(
    ("arguments", "named", "error", "remedy"),
    [
        ([{"y": "x + 1"}], {}, BadConfig, "assign(**{'y': 'x + 1'})"),
        (["x + 1"], {}, BadConfig, "assign(night='hour < 6')"),
        ([], {"y": "dep_dely + 1"}, ColumnNotFound, "'dep_delay' (the closest name)"),
        ([], {"y": lambda frame: frame["dep_delay"]}, ExpressionError, "'dep_delay > 15'"),
    ],
)
def test_what_cannot_be_assigned_is_named(
    arguments: list[Any], named: dict[str, Any], error: type[GpupipeError], remedy: str
) -> None:
    with pytest.raises(error) as caught:
        gp.from_frame(pd.DataFrame({"dep_delay": [1.0]})).assign(*arguments, **named)
    assert caught.value.remedy == remedy


def test_counting_reads_the_predicate_alone_and_once() -> None:
    dataset = gp.read_parquet(DATA / "flights.parquet")
    assert len(dataset) == len(dataset.select(["origin"])) == 336_776
    assert dataset.reads.passes == 0
    kept = dataset.filter("distance > 1000")
    assert len(kept) == len(kept)
    assert (dataset.reads.passes, set(dataset.reads.columns)) == (1, {"distance"})


def test_errors_are_there_before_anything_is_read(dataset: gp.Dataset) -> None:
    with raises(ColumnNotFound, where="select", column="distnce"):
        dataset.select(["distnce"])
    with raises(ColumnNotFound, where="filter", column="distnce"):
        dataset.filter("distnce > 3")
    with raises(ColumnNotFound, where="filter", column="origin"):
        dataset.select(["distance"]).filter("origin == 'JFK'")
    with raises(ExpressionError, where="filter('distance + 1')"):
        dataset.filter("distance + 1")
    with pytest.raises(ExpressionError, match="Expected `and`"):
        dataset.filter("distance > 100 & distance < 200")
    assert dataset.reads.passes == 0


def test_a_dataset_is_never_changed(dataset: gp.Dataset) -> None:
    narrowed = dataset.select(["origin", "distance"]).filter("distance > 1000")
    assert len(dataset.columns) == 19
    assert len(dataset) == 336_776
    assert narrowed.columns == ["origin", "distance"]
    with pytest.raises(AttributeError):
        dataset.schema = narrowed.schema  # type: ignore[misc]


def test_what_a_user_gets_is_the_users_own() -> None:
    mine = pd.DataFrame({"x": [1.0, 2.0], "n": pd.array([1, None], "Int64"), "t": pd.to_datetime(["2013-01-01"] * 2)})
    before = mine.copy(deep=True)
    dataset = gp.from_frame(mine, backend="cpu")
    for frame in (dataset.compute(), dataset.head(), *dataset):
        frame.loc[0, "x"] = 9.0
        frame.loc[0, "n"] = 9
        frame.loc[0, "t"] = pd.NaT
    pd.testing.assert_frame_equal(mine, before)
    frame = gp.read_parquet(DATA / "flights.parquet", columns=["distance", "flight"], backend="cpu").compute()
    frame.loc[0, "distance"] = 1.5
    assert frame.loc[0, "distance"] == 1.5


def test_map_frames_reads_what_the_function_needs() -> None:
    dataset = gp.read_parquet(DATA / "flights.parquet", partition_bytes=1 << 20)

    def speed(frame: pd.DataFrame, backend: object) -> pd.DataFrame:
        assert sorted(frame.columns) == ["air_time", "distance"]
        return frame.assign(speed=frame["distance"] / frame["air_time"])[["speed"]]

    schema = Schema([Field("speed", "float64")])
    fast = map_frames(dataset, speed, schema, ["distance", "air_time"], keeps_rows=True)
    assert (fast.columns, len(fast), dataset.reads.passes) == (["speed"], 336_776, 0)
    expected = flights().to_pandas()
    expected = (expected["distance"] / expected["air_time"]).dropna()
    kept = fast.filter("speed > 8")
    assert values(kept, "speed") == expected[expected > 8].tolist()
    assert set(dataset.reads.columns) == {"distance", "air_time"}
    assert kept.num_partitions == dataset.num_partitions
    with raises(ColumnNotFound, where="select", column="distance"):
        fast.select(["distance"])


def test_a_map_that_drops_rows_is_counted() -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": np.arange(10)}), num_partitions=3)
    odd = map_frames(
        dataset, lambda f, backend: backend.filter(f, backend.column(f, "n").data % 2 == 1), dataset.schema, ["n"]
    )
    assert len(odd) == 5
    assert values(odd, "n") == [1, 3, 5, 7, 9]


def test_it_shows_itself() -> None:
    dataset = gp.from_frame(pd.DataFrame({"größe": [1.5, None], "<b>": ["x", "y"]}), num_partitions=2)
    assert repr(dataset).startswith("Dataset of 2 rows, 2 columns, 2 partitions\ncolumn  dtype    kind")
    assert repr(dataset.filter("col('größe') > 1")).startswith("Dataset of at most 2 rows")
    shown = dataset._repr_html_()
    assert ">größe</td>" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    lines = pa.table(
        {"a\nb": ["x\x1b[31m", None], "self": [["y\x07"], []], "of": [{"k": "z\u202e"}, None], "n": [1, 2]}
    )
    shown = gp.from_frame(lines)._repr_html_()
    assert all(text in shown for text in (r"<th>a\nb</th>", r">x\x1b[31m<", "y\\x07", "z\\u202e"))
    assert shown.replace("\n", "").isprintable()
