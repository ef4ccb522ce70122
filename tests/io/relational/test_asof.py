"""As-of joins against pandas and Polars: any order of rows, ties, missing keys and times, partitions and buckets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, GpupipeError, SchemaMismatch
from gpupipe.io.relational.join import AsOfSpec
from gpupipe.schema import ROW
from tests.examples import examples
from tests.io.meeting import PARTITIONS, few_bytes
from tests.raising import raises

DAY = pd.Timestamp("2013-01-01")
ROWS = st.lists(
    st.tuples(st.none() | st.integers(-5, 5), st.sampled_from(["a", "a", "b", None]), st.sampled_from([1, 1, 2, None])),
    min_size=5,
    max_size=20,
)
MANY = examples(50, suppress_health_check=[HealthCheck.too_slow])
DIRECTIONS = ("backward", "forward", "nearest")


def table_of(rows: list[tuple[Any, ...]], kind: str) -> pd.DataFrame:
    on, key, number = zip(*rows, strict=True)
    times = {
        "integer": pd.array(on, dtype="Int64"),
        "float": np.array(on, dtype=float),
        "time": pd.Series([pd.NaT if n is None else DAY + pd.Timedelta(days=n) for n in on]).astype("datetime64[us]"),
    }
    frame = {"on": times[kind], "k": pd.array(key, dtype="str"), "n": pd.array(number, dtype="Int64")}
    return pd.DataFrame({**frame, "row": range(len(rows))})


def matches(left: pd.DataFrame, right: pd.DataFrame, by: list[str], **options: Any) -> pd.Series:
    """The right row of each left one, by pandas: of what has no gaps, sorted."""
    sides = []
    for side in (left, right):
        known = side.dropna(subset=["on", *by]).sort_values("on", kind="stable")
        known["on"] = known["on"].astype({"I": "int64"}.get(str(known["on"].dtype)[0], known["on"].dtype))
        sides.append(known.astype(dict.fromkeys(set(by) & {"n"}, "int64")))
    if not len(sides[0]) or not len(sides[1]):
        return pd.Series(np.nan, left["row"])
    found = pd.merge_asof(*sides, on="on", by=by or None, suffixes=("", "_right"), **options)
    return found.set_index("row")["row_right"].reindex(left["row"])


@pytest.mark.slow
@MANY
@given(
    left=ROWS,
    right=ROWS,
    by=st.sampled_from([[], ["k"], ["k", "n"]]),
    kind=st.sampled_from(["integer", "float", "time"]),
    direction=st.sampled_from(DIRECTIONS),
    tolerance=st.sampled_from([None, 0, 1, 3]),
    exact=st.booleans(),
    parts=st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(PARTITIONS)),
    num_bytes=st.sampled_from([None, 500]),
)
def test_rows_match_as_in_pandas(
    left: Any,
    right: Any,
    by: Any,
    kind: str,
    direction: Any,
    tolerance: Any,
    exact: bool,
    parts: tuple[int, int],
    num_bytes: int | None,
) -> None:
    frames = table_of(left, kind), table_of(right, kind)
    if tolerance is not None and kind == "time":
        tolerance = pd.Timedelta(days=tolerance)
    options = {"direction": direction, "tolerance": tolerance, "allow_exact_matches": exact}
    wanted = matches(*frames, by, **options)
    data = [gp.from_frame(frame, num_partitions=number) for frame, number in zip(frames, parts, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        if num_bytes:
            few_bytes(patch, num_bytes)
        found = data[0].join_asof(data[1], on="on", by=by, columns=["row", "on"], **options).compute()
    np.testing.assert_array_equal(found["row_right"].astype("Float64").to_numpy(float, na_value=np.nan), wanted)
    times = frames[1]["on"].reindex(wanted).reset_index(drop=True)
    assert found["on_right"].isna().equals(times.isna())
    assert (found["on_right"] == times).sum() == times.notna().sum()
    assert found["row"].tolist() == list(range(len(left)))


@pytest.mark.slow
@MANY
@given(left=ROWS, right=ROWS, by=st.sampled_from([[], ["k"], ["k", "n"]]), direction=st.sampled_from(DIRECTIONS))
def test_the_plan_of_a_gpu_finds_the_same(left: Any, right: Any, by: Any, direction: str) -> None:
    """Run by the engine of a CPU, which keeps to what both say of order."""
    data = [gp.from_frame(table_of(rows, "time")) for rows in (left, right)]
    frames = [one.to_polars().with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.UInt64)) for one in data]
    for tolerance, exact in ((None, True), (timedelta(days=2), False)):
        schemas = [one.schema for one in data]
        asof = AsOfSpec.of(*schemas, ("on", "on"), (by, by), ["row"], direction, tolerance, exact, "_right")  # type: ignore[call-arg]
        sides = [asof.select_side(frame, side) for side, frame in enumerate(frames)]
        cpu, gpu = (asof.plan(*sides, backend=name).collect().select(ROW, "row_right") for name in ("cpu", "gpu"))
        polars.testing.assert_frame_equal(cpu, gpu)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_flights_find_the_weather_as_polars_does(direction: Any) -> None:
    folder = Path(__file__).parents[3] / "data"
    flights = gp.read_parquet(folder / "flights.parquet", partition_bytes=1 << 22, backend="cpu")
    weather = gp.read_parquet(folder / "weather.parquet", backend="cpu").shuffle(3)
    options: dict[str, Any] = {"on": "time_hour", "by": "origin"}
    found = flights.join_asof(weather, direction=direction, tolerance="3h", columns=["temp", "visib"], **options)
    assert found.num_partitions == flights.num_partitions and len(found) == len(flights)
    left, right = (data.to_polars().with_row_index("place").sort("time_hour") for data in (flights, weather))
    right = right.select("origin", "time_hour", "temp", "visib")
    wanted = left.join_asof(right, strategy=direction, tolerance="3h", **options).sort("place").drop("place").collect()
    same = found.to_polars().collect().select(wanted.columns)
    polars.testing.assert_frame_equal(same, wanted)
    assert same["temp"].null_count() < len(same) / 10


def test_far_numbers_are_as_far_as_they_are() -> None:
    """Differences beyond int64, and between neighbours beyond 2^53."""
    for low, high in ((-(2**63), 2**63 - 1), (0, 2**64 - 1)):
        kind = "int64" if low else "uint64"
        left = gp.from_frame(pd.DataFrame({"n": np.array([low, high, high - 2**60], kind)}))
        right = gp.from_frame(pd.DataFrame({"n": np.array([high - 1, low], kind), "x": [0, 1]}))
        for direction, tolerance, wanted in [
            ("backward", None, [1, 0, 1]),
            ("forward", None, [1, None, 0]),
            ("nearest", None, [1, 0, 0]),
            ("nearest", 1, [1, 0, None]),
            ("backward", 0, [1, None, None]),
            ("backward", 2**62, [1, 0, None]),
        ]:
            found = left.join_asof(right, on="n", direction=direction, tolerance=tolerance).compute()  # type: ignore[arg-type]
            assert found["x"].astype(object).where(found["x"].notna(), None).tolist() == wanted


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
def test_ties_are_decided_by_rule(engine: str) -> None:
    """The earlier of two that are equally near; of several alike the last one backwards, the first one forwards."""
    data = [pd.DataFrame({"t": [5, 9]}), pd.DataFrame({"t": [7, 3, 7, 3, 9, 9], "x": range(6)})]
    schemas = [gp.from_frame(frame).schema for frame in data]
    frames = [pl.from_pandas(frame).lazy().with_row_index(ROW) for frame in data]
    for direction, wanted in (("backward", [3, 5]), ("forward", [0, 4]), ("nearest", [3, 5])):
        asof = AsOfSpec.of(*schemas, ("t", "t"), ([], []), None, direction, None, True, "_right")  # type: ignore[call-arg]
        sides = [asof.select_side(frame, side) for side, frame in enumerate(frames)]
        assert asof.plan(*sides, backend=engine).collect()["x"].to_list() == wanted


def test_numbers_match_by_value_and_columns_have_names_of_their_own() -> None:
    left = gp.from_frame(pd.DataFrame({"t": pd.array([3, 1], "Int8"), "k": [1.0, -0.0], "x": [0, 0]}))
    right = gp.from_frame(pd.DataFrame({"time": [0, 2], "key": [0, 1], "x": [5, 6], "word": ["é", None]}))
    found = left.join_asof(right, left_on="t", right_on="time", left_by="k", right_by="key", suffix="_then")
    assert found.columns == ["t", "k", "x", "x_then", "word"]
    assert found.compute()["x_then"].tolist() == [6, 5]
    assert found.compute()["word"].isna().tolist() == [True, False]
    dates = pa.table({"d": pa.array([1, 3], pa.date32()), "at": pa.array([86_400_000_000, 0], pa.timestamp("us"))})
    days = gp.from_frame(dates)
    assert (
        days.join_asof(days, left_on="d", right_on="at", columns="d").compute()["d_right"].tolist()
        == [pd.Timestamp("1970-01-02")] * 2
    )


@pytest.mark.slow
def test_the_result_is_a_dataset_like_others(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    frame = pd.DataFrame({"t": random.permutation(3000), "k": random.integers(0, 5, 3000), "x": random.random(3000)})
    for name, part in (("a", frame[:2000]), ("b", frame[2000:])):
        part.to_parquet(tmp_path / f"{name}.parquet", index=False, row_group_size=300)
    data = gp.read_parquet(tmp_path, partition_bytes=4000, backend="cpu")
    joined = data.filter("x > 0.5").join_asof(data, on="t", by="k", allow_exact_matches=False, columns="x")
    whole = joined.compute()
    assert joined.num_partitions > 3
    pd.testing.assert_frame_equal(joined.filter("t < 1000").compute(), whole[whole["t"] < 1000].reset_index(drop=True))
    pd.testing.assert_frame_equal(joined.sort("t").compute(), whole.sort_values("t", ignore_index=True))
    assert joined.write_parquet(tmp_path / "_out").num_done == 0
    again = data.filter("x > 0.5").join_asof(data, on="t", by="k", allow_exact_matches=False, columns="x")
    assert again.write_parquet(tmp_path / "_out").num_done == joined.num_partitions
    written = pd.concat([pd.read_parquet(path) for path in sorted((tmp_path / "_out").glob("*.parquet"))])
    pd.testing.assert_frame_equal(written.reset_index(drop=True), whole, check_dtype=False)


def test_a_job_is_not_resumed_with_another_right_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"t": range(10), "x": range(10)})
    frame.to_parquet(tmp_path / "in.parquet", index=False)
    data = gp.read_parquet(tmp_path / "in.parquet", backend="cpu")
    for factor in (1, 10):
        right = gp.from_frame(frame.assign(x=frame["x"] * factor))
        data.join_asof(right, on="t", columns="x").write_parquet(tmp_path / "out", overwrite=factor > 1)
        written = pd.read_parquet(next((tmp_path / "out").glob("*.parquet")))
        assert written["x_right"].tolist() == [n * factor for n in range(10)]
    for factor in (1, 10):
        frame.assign(x=frame["x"] * factor).to_parquet(tmp_path / "right.parquet", index=False)
        joined = data.join_asof(gp.read_parquet(tmp_path / "right.parquet", backend="cpu"), on="t", columns="x")
        if factor == 1:
            joined.write_parquet(tmp_path / "again")
            assert joined.write_parquet(tmp_path / "again").num_done == 1
        else:
            with pytest.raises(GpupipeError):
                joined.write_parquet(tmp_path / "again")
    right = gp.from_frame(frame.assign(x=0))
    data.join_asof(gp.from_frame(frame), on="t", columns="x").write_parquet(tmp_path / "memory")
    with pytest.raises(GpupipeError):
        data.join_asof(right, on="t", columns="x").write_parquet(tmp_path / "memory")


BAD: list[tuple[dict[str, Any], type[GpupipeError], str]] = [
    ({"on": "missing"}, ColumnNotFound, "join_asof"),
    ({"on": "t", "by": "missing"}, ColumnNotFound, "join_asof"),
    ({"on": "k"}, SchemaMismatch, "join_asof, column 'k'"),
    ({"on": "t", "left_by": "k", "right_by": "x"}, SchemaMismatch, "join_asof"),
    ({"left_on": "t", "right_on": "x"}, SchemaMismatch, "join_asof"),
    ({"left_on": "big", "right_on": "x"}, SchemaMismatch, "join_asof"),
    ({"on": "t", "tolerance": 3}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "t", "tolerance": "3 moons"}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "t", "tolerance": timedelta(-1)}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "big", "tolerance": -1}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "big", "tolerance": 0.5}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "big", "tolerance": "2h"}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "x", "tolerance": float("nan")}, BadConfig, "join_asof(tolerance=)"),
    ({"on": "t", "direction": "sideways"}, BadConfig, "join_asof(direction=)"),
    ({"on": "t", "left_on": "t"}, BadConfig, "join_asof"),
    ({"on": ["t", "x"]}, BadConfig, "join_asof(on=)"),
    ({"left_by": "k", "on": "t"}, BadConfig, "join_asof"),
    ({"on": "t", "suffix": ""}, BadConfig, "join_asof"),
    ({}, BadConfig, "join_asof"),
]


@pytest.mark.parametrize(("options", "error", "where"), BAD)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[GpupipeError], where: str) -> None:
    frame = pd.DataFrame({"t": [DAY], "k": ["a"], "x": [1.0], "big": [1]})
    data = gp.from_frame(frame)
    with pytest.raises(error) as caught:
        data.join_asof(data, **options)
    assert caught.value.where == where
    assert caught.value.expected and caught.value.remedy


def test_a_right_side_without_rows_is_refused(tmp_path: Path) -> None:
    data = gp.from_frame(pd.DataFrame({"t": [1, 2]}))
    data.compute().to_csv(tmp_path / "t.csv", index=False)
    data.compute().to_parquet(tmp_path / "t.parquet")
    for right in (data, gp.read_csv(tmp_path / "t.csv"), gp.read_parquet(tmp_path / "t.parquet")):
        with raises(BadData, where="join_asof, right table"):
            data.join_asof(right.filter("t > 2"), on="t")
        assert len(data.join_asof(right.filter("t > 1"), on="t").compute()) == 2
    with pytest.raises(BadConfig) as refused:
        data.join_asof(data.compute(), on="t")
    assert refused.value.got == "DataFrame"
