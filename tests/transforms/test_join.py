"""Joins against pandas' merge: order kept, missing keys, duplicates refused, many-to-many."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.raising import raises

keys_of_text = st.one_of(st.none(), st.sampled_from(["JFK", "LGA", "EWR", "ü", ""]))
keys_of_number = st.one_of(st.none(), st.integers(-(2**62), 2**62), st.integers(0, 20))
hours = st.one_of(st.none(), st.datetimes(pd.Timestamp("2013-01-01"), pd.Timestamp("2013-01-03")))


def frame_of(text: list[str | None], number: list[int | None], hour: list[pd.Timestamp | None]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "text": pd.array(text, dtype="str"),
            "number": pd.array(number, dtype="Int64"),
            "hour": pd.array(hour, dtype="datetime64[us]"),
        }
    )


rows = st.lists(st.tuples(keys_of_text, keys_of_number, hours), max_size=12)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    rows,
    rows,
    st.sampled_from([["text"], ["number"], ["text", "number"], ["hour", "text"], ["text", "number", "hour"]]),
)
def test_left_lookup_equals_pandas(left_rows: list, right_rows: list, on: list[str]) -> None:
    left = frame_of(*(list(zip(*left_rows, strict=True)) or [[], [], []]))
    right = frame_of(*(list(zip(*right_rows, strict=True)) or [[], [], []])).dropna(subset=on).drop_duplicates(on)
    right = right[on].assign(value=np.arange(len(right), dtype="int64"), word=[f"w{i}" for i in range(len(right))])
    expected = left.merge(right, on=on, how="left")
    joined = T.Join(right, on=on).transform(left)
    assert joined["value"].isna().tolist() == expected["value"].isna().tolist()
    assert joined["value"].dropna().astype(int).tolist() == expected["value"].dropna().astype(int).tolist()
    assert joined["word"].astype(object).where(joined["word"].notna(), "-").tolist() == (
        expected["word"].astype(object).where(expected["word"].notna(), "-").tolist()
    )
    assert joined["text"].fillna("-").tolist() == left["text"].fillna("-").tolist()


def test_whole_floats_match_integers() -> None:
    left = pd.DataFrame({"year": [1999.0, np.nan, 2004.5, 2004.0]})
    right = pd.DataFrame({"year": [2004, 1999], "model": ["b", "a"]})
    assert T.Join(right, on="year").transform(left)["model"].fillna("-").tolist() == ["a", "-", "-", "b"]


def test_fractions_are_no_keys() -> None:
    with raises(errors.BadConfig, where="Join('x')", got=0.5):
        T.Join(pd.DataFrame({"x": [0.5], "y": [1]}), on="x").transform(pd.DataFrame({"x": [0.5]}))


def test_inner_drops_rows_and_keeps_order() -> None:
    left = pd.DataFrame({"k": ["b", "a", "c", "b"], "row": [0, 1, 2, 3]})
    joined = T.Join(pd.DataFrame({"k": ["c", "b"], "v": [1.0, 2.0]}), on="k", how="inner").transform(left)
    assert joined["row"].tolist() == [0, 2, 3]
    assert joined["v"].tolist() == [2.0, 1.0, 2.0]


def test_left_names_never_change() -> None:
    right = pd.DataFrame({"k": [1], "x": [9]})
    joined = T.Join(right, on="k", suffix="_r").transform(pd.DataFrame({"k": [1], "x": [5]}))
    assert joined.to_dict("list") == {"k": [1], "x": [5], "x_r": [9]}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("left", "right", "suffix", "message"),
    [
        (["x", "x_r"], ["x"], "_r", "the left column 'x_r' and the right column 'x' would both be called 'x_r'"),
        (["x"], ["x"], "", "the left column 'x' and the right column 'x' would both be called 'x'"),
        (["x"], ["x", "x_r"], "_r", "the right column 'x' and the right column 'x_r' would both be called 'x_r'"),
        (["x"], ["x_r", "x"], "_r", "the right column 'x_r' and the right column 'x' would both be called 'x_r'"),
    ],
)
def test_two_columns_never_get_one_name(
    left: list[str], right: list[str], suffix: str, message: str, many: bool
) -> None:
    table = pd.DataFrame({"k": [1]} | {name: [0.5] for name in right})
    frame = pd.DataFrame({"k": [1]} | {name: [7.5] for name in left})
    with pytest.raises(errors.BadConfig, match=message) as caught:
        T.Join(table, on="k", suffix=suffix, many=many).transform(frame)
    assert f"another suffix than {suffix!r}" in caught.value.remedy
    joined = T.Join(table, on="k", suffix="_of_the_right", many=many).transform(frame)
    assert len(joined.columns) == 1 + len(left) + len(right)


def test_columns_that_are_not_asked_for_need_no_name() -> None:
    table = pd.DataFrame({"k": [1], "x": [0.5], "x_right": [2.5]})
    joined = T.Join(table, on="k", columns="x").transform(pd.DataFrame({"k": [1], "x": [7.5]}))
    assert joined.to_dict("list") == {"k": [1], "x": [7.5], "x_right": [0.5]}


def test_a_repeated_key_names_it() -> None:
    right = pd.DataFrame({"origin": ["JFK", "JFK", "LGA"], "temp": [1.0, 2.0, 3.0]})
    with raises(errors.BadData, where="Join('origin')", match=r"in 1 row of .* \{'origin': 'JFK'\}") as caught:
        T.Join(right, on="origin").transform(pd.DataFrame({"origin": ["JFK"]}))
    assert "many=True" in caught.value.remedy


def test_many_gives_every_pair_in_left_order() -> None:
    right = pd.DataFrame({"k": ["a", "b", "a", None], "v": [1, 2, 3, 4]})
    left = pd.DataFrame({"k": ["b", "a", None, "z"], "row": [0, 1, 2, 3]})
    joined = T.Join(right, on="k", many=True).transform(left)
    assert joined["row"].tolist() == [0, 1, 1, 2, 3]
    assert joined["v"].fillna(-1).astype(int).tolist() == [2, 1, 3, -1, -1]


def test_another_type_of_key_is_named() -> None:
    with raises(errors.SchemaMismatch, where="Join('k')", match="string on the left and int64 on the right"):
        T.Join(pd.DataFrame({"k": [1], "v": [1]}), on="k").transform(pd.DataFrame({"k": ["1"]}))


def times_of_oslo() -> pd.DataFrame:
    at = pd.date_range("2020-07-01", periods=3, freq="h", tz="Europe/Oslo")
    return pd.DataFrame({"at": at, "x": [1, 2, 3]})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, 2]), pa.array([1, 2]).cast(pa.decimal128(21, 2))),
        (pa.array([1, 2]), pa.array([True, False])),
        (pa.array([True, False]), pa.array([1, 2])),
        (pa.array([1.0, 2.0]), pa.array([True, False])),
        (pa.array([1, 2]), pa.array([1, 2], pa.duration("us"))),
        (pa.array([True, False]), pa.array([1, 2]).cast(pa.decimal128(21, 2))),
        (pa.array([1, 2]), pa.array(["01", "2"])),
        (pa.array(["01", "2"]), pa.array([1, 2])),
        (pa.array(["1970-01-01 00:00:00.000001"]), pa.array([1, 2], pa.timestamp("us"))),
        (pa.array([1, 2], pa.timestamp("us")), pa.array(["1970-01-01T00:00:00.000001"])),
    ],
    ids=lambda value: str(value.type),
)
def test_the_remedy_for_two_types_of_keys_joins_them(left: pa.Array, right: pa.Array) -> None:
    tables = {"left": pa.table({"k": left}), "right": pa.table({"k": right, "v": range(len(right))})}
    sides = {side: gp.from_frame(table).compute() for side, table in tables.items()}
    with pytest.raises(errors.SchemaMismatch) as caught:
        T.Join(sides["right"], on="k").transform(sides["left"])
    remedy = str(caught.value.remedy).partition(", or, where texts are not all numbers, T.Cast({'k': 'string'})")[0]
    step = T.Cast(ast.literal_eval(remedy.partition("T.Cast(")[2].partition(")")[0]))
    made = {side: step.transform(table) if side in remedy else table for side, table in sides.items()}
    assert T.Join(made["right"], on="k").transform(made["left"])["v"][0] == 0
    seconds = "times in place of numbers: T.Derive(k='k * 1000000') if it holds seconds since 1970"
    for other, remedy in ((pa.array([1, 2], pa.date32()), seconds), (pa.array([[1], [2]]), "another key")):
        with pytest.raises(errors.SchemaMismatch) as caught:
            T.Join(pa.table({"k": other, "v": [1, 2]}), on="k").transform(pd.DataFrame({"k": [1, 2]}))
        assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("many", [False, True])
def test_keys_with_a_time_zone_join_no_keys_without(many: bool) -> None:
    left = times_of_oslo()
    right = left.assign(at=left["at"].dt.tz_localize(None), x=[7, 8, 9])
    for ours, theirs in ((left, right), (right, left)):
        with pytest.raises(errors.SchemaMismatch) as caught:
            T.Join(theirs, on="at", many=many).transform(ours)
        assert "Europe/Oslo" in str(caught.value.got) and "tz_localize('Europe/Oslo')" in caught.value.remedy
        with pytest.raises(errors.SchemaMismatch):
            gp.from_frame(ours).join(gp.from_frame(theirs), on="at", many=many)
    local = right.assign(at=right["at"].dt.tz_localize("Europe/Oslo").dt.tz_convert("America/New_York"))
    assert T.Join(local, on="at", many=many).transform(left)["x_right"].tolist() == [7, 8, 9]
    joined = gp.from_frame(left).join(gp.from_frame(local), on="at", many=many)
    assert joined.compute()["x_right"].tolist() == [7, 8, 9] and joined.schema["at"].zone == "Europe/Oslo"
    # What the remedy says of times in UTC: both as microseconds.
    utc = right.assign(at=left["at"].dt.tz_convert(None))
    casts = [gp.Pipeline([T.Cast({"at": "int64"})]).fit(table).transform(table) for table in (left, utc)]
    assert T.Join(casts[1], on="at", many=many).transform(casts[0])["x_right"].tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    "text", ["at > seen", "at - seen > 0", "where(x > 1, at, seen) > '2020-01-01'", "not (seen == at)"]
)
def test_times_with_a_zone_are_compared_with_such_alone(text: str) -> None:
    frame = times_of_oslo()
    frame["seen"] = frame["at"].dt.tz_localize(None)
    for data in (frame, gp.from_frame(frame)):
        with pytest.raises(errors.ExpressionError) as caught:
            gp.Pipeline([T.Filter(text)]).fit(data)
        assert "Europe/Oslo" in caught.value.problem
    with pytest.raises(errors.ExpressionError):
        gp.from_frame(frame).filter(text)
    with pytest.raises(errors.SchemaMismatch):
        gp.Pipeline([T.DateParts("at", since="seen")]).fit(frame)
    there = frame.assign(seen=frame["at"].dt.tz_convert("UTC"))
    assert gp.Pipeline([T.Filter("at == seen and at >= '2020-07-01 00:00+02:00'")]).fit(there).transform(
        there
    ).shape == (3, 3)


@pytest.mark.parametrize("text", ["'2020-07-01T00:00Z'", "timestamp('2020-07-01 02:00+02:00')"])
def test_times_without_a_zone_are_compared_with_no_offset(text: str, tmp_path: Path) -> None:
    zoned = times_of_oslo()
    frame = zoned.assign(at=zoned["at"].dt.tz_localize(None))
    frame.to_parquet(tmp_path / "naive.parquet")
    data, constant = gp.from_frame(frame), ast.literal_eval(text.removeprefix("timestamp"))
    tests = [
        f"at >= {text}",
        f"at in [{text}]",
        f"at - {text} > 0",
        f"minimum(at, at) < {text}",
        f"coalesce(at, {text}) > at",
    ]
    for test in [one for one in tests if "-" not in one.partition("'")[0] or text.startswith("timestamp")]:
        with pytest.raises(errors.ExpressionError) as caught:
            data.filter(test)
        assert text in caught.value.problem and "tz_localize" in str(caught.value.remedy)
        with pytest.raises(errors.ExpressionError):
            gp.read_parquet(tmp_path / "naive.parquet", filters=test)
        if "fillna" not in test:
            gp.from_frame(zoned).filter(test)
    ends = {"low": constant}
    for step in (
        T.Expect("at", min=constant),
        T.Expect("at", max=pd.Timestamp(constant)),
        T.Clip("at", **ends),
        T.Replace({"at": {None: constant}}),
        T.DateParts("at", since=constant),
    ):
        with pytest.raises(errors.SchemaMismatch) as refused:
            gp.Pipeline([step]).fit(frame)
        assert "without" in refused.value.expected and "2020-07-01 0" in str(refused.value.remedy)
        gp.Pipeline([step]).fit(zoned)
    for cut in (constant, pd.Timestamp(constant), [constant]):
        with pytest.raises(errors.SchemaMismatch):
            data.split(by="at", at=cut)
    assert gp.from_frame(pd.DataFrame({"text": [constant]})).filter(f"text == {constant!r}").compute().shape == (1, 1)


def test_joins_of_one_pipeline_have_names_of_their_own() -> None:
    flights = pd.DataFrame({"k": ["a", "b"]})
    prices, sizes = pd.DataFrame({"k": ["a"], "price": [1.0]}), pd.DataFrame({"k": ["a", "b"], "size": [2.0, 3.0]})
    with raises(errors.BadConfig, where="Pipeline", got=["k", "k"]) as caught:
        gp.Pipeline([T.Join(prices, on="k"), T.Drop("price"), T.Join(sizes, on="k")])
    assert caught.value.remedy == "Join(..., name='k_2')"
    steps = [T.Join(prices, on="k"), T.Join(sizes, on="k", name="k_2")]
    report = gp.Pipeline(steps, gp.Features((["size", "price"], pre.SimpleImputer()))).fit(flights).fit_report
    assert report is not None and report.unmatched == {"k": 0.5, "k_2": 0.0}


def test_a_missing_key_column_offers_the_closest() -> None:
    with raises(errors.ColumnNotFound, where="Join('orgin') left", column="orgin") as caught:
        T.Join(pd.DataFrame({"origin": ["a"], "v": [1]}), on="orgin").transform(pd.DataFrame({"origin": ["a"]}))
    assert "'origin'" in caught.value.remedy


def test_the_share_of_unmatched_rows() -> None:
    join = T.Join(pd.DataFrame({"k": [1, 2], "v": [1, 2]}), on="k")
    join.transform(pd.DataFrame({"k": [1, 3, 2, 9]}))
    assert join.unmatched_share == 0.5


def test_only_asked_columns_are_read_from_the_right() -> None:
    flights = pd.DataFrame({"k": ["a"]})
    joined = T.Join(pd.DataFrame({"k": ["a"], "x": [1], "y": [2]}), on="k", columns=["y"]).transform(flights)
    assert list(joined) == ["k", "y"]


def test_a_partition_that_lacks_a_value_an_empty_and_an_all_missing_one() -> None:
    join = T.Join(pd.DataFrame({"k": ["a", "b"], "v": [1.0, 2.0]}), on="k")
    for text, expected in ((["b"], [2.0]), ([], []), ([None, None], [None, None]), (["zz"], [None])):
        got = join.transform(pd.DataFrame({"k": pd.array(text, dtype="str")}))["v"]
        assert [None if np.isnan(v) else v for v in got] == expected


def test_the_weather_of_every_flight() -> None:
    flights = gp.read_parquet("data/flights.parquet").head(50_000)
    weather = gp.read_parquet("data/weather.parquet").compute()
    join = T.Join(weather, on=["origin", "time_hour"], columns=["temp", "wind_speed"])
    joined = join.transform(flights)
    expected = flights.merge(
        weather[["origin", "time_hour", "temp", "wind_speed"]], on=["origin", "time_hour"], how="left"
    )
    pd.testing.assert_series_equal(joined["temp"], expected["temp"])
    pd.testing.assert_series_equal(joined["wind_speed"], expected["wind_speed"])
    assert 0 < join.unmatched_share < 0.05


def test_days_of_a_zone_are_joined_to_days_without() -> None:
    flights = pd.DataFrame({"time": pd.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Berlin")})
    holidays = pd.DataFrame({"day": pd.to_datetime(["2024-03-31"]), "name": ["Easter"]})
    with raises(errors.SchemaMismatch, where="Join('day'), left and right") as caught:
        gp.Pipeline([T.Derive(day="floor(time, '1d')"), T.Join(holidays, on="day")]).fit(flights)
    remedy = caught.value.remedy
    assert "floor(time, '1d', 'Europe/Berlin') in place" in remedy and "frame['day'].dt.tz_localize(" in remedy
    zoned = holidays.assign(day=holidays["day"].dt.tz_localize("Europe/Berlin"))
    steps = [T.Derive(day="floor(time, '1d', 'Europe/Berlin')"), T.Join(zoned, on="day")]
    joined = gp.Pipeline(steps).fit(flights).transform(flights)
    assert (joined["name"].notna() == (flights["time"].dt.day == 31)).all()


NUMBERS = ["int8", "int64", "uint64", "float32", "float64"]


@pytest.mark.slow
@pytest.mark.parametrize("left", NUMBERS)
@pytest.mark.parametrize("right", NUMBERS)
@pytest.mark.parametrize("how", ["left", "inner"])
def test_many_matches_numbers_by_value_whatever_their_types(left: str, right: str, how: Any) -> None:
    def held(dtype: str) -> list[Any]:
        values = [0, 1, -1, 2, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 0.5, 1.5, None]
        fits = [v for v in values if v is None or (float(v).is_integer() or dtype.startswith("float"))]
        if dtype.startswith("float"):
            return [None if v is None else float(np.dtype(dtype).type(v)) for v in fits]
        return [v for v in fits if v is None or np.iinfo(dtype).min <= v <= np.iinfo(dtype).max]

    ours, theirs = held(left), held(right) * 2
    table = pa.table({"k": pa.array(theirs, getattr(pa, right)()), "v": range(len(theirs))})
    data = pa.table({"k": pa.array(ours, getattr(pa, left)()), "row": range(len(ours))})
    step = T.Join(gp.from_frame(table), on="k", many=True, how=how)
    result = gp.Pipeline([step]).fit(gp.from_frame(data)).transform(gp.from_frame(data)).to_pandas()
    expected = []
    for row, value in enumerate(ours):
        found = [v for v, key in enumerate(theirs) if key is not None and key == value]
        expected += [(row, v) for v in found] or ([(row, -1)] if how == "left" else [])
    assert list(zip(result["row"].tolist(), result["v"].fillna(-1).astype(int).tolist(), strict=True)) == expected
    assert list(result.columns) == ["k", "row", "v"]


def test_many_with_keys_of_which_one_has_other_types_and_names_that_collide() -> None:
    left = pd.DataFrame({"a": ["x", "y"], "k": np.array([1, 2], "int32"), "v": [0, 0]})
    right = pd.DataFrame({"a": ["x", "x", "y"], "k": [1.0, 1.0, 2.5], "v": [7, 8, 9]})
    joined = T.Join(right, on=["a", "k"], many=True).transform(left)
    assert list(joined.columns) == ["a", "k", "v", "v_right"]
    assert joined["k"].tolist() == [1, 1, 2] and joined["v"].tolist() == [0, 0, 0]
    assert joined["v_right"].fillna(-1).tolist() == [7, 8, -1]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_keys_of_other_names_are_those_of_pandas(many: bool, how: Any) -> None:
    left = pd.DataFrame({"dest": ["a", "b", None, "c"], "faa": [1, 2, 3, 4], "day": pd.array([1, 2, 1, None], "Int64")})
    right = pd.DataFrame({"faa": ["a", "b", "b"][: 3 if many else 2], "d": [1.0, 2.0, 2.0][: 3 if many else 2]})
    right["dest"] = ["x", "y", "z"][: len(right)]
    step = T.Join(right, left_on=["dest", "day"], right_on=["faa", "d"], how=how, many=many)
    found = gp.from_frame(left, num_partitions=2)
    found = gp.Pipeline([step], backend="cpu").fit(left).transform(found).compute()
    wanted = left.astype({"day": "Float64"}).merge(
        right, left_on=["dest", "day"], right_on=["faa", "d"], how=how, suffixes=("", "_right")
    )
    assert list(found) == ["dest", "faa", "day", "dest_right"]
    assert found["faa"].tolist() == wanted["faa"].tolist()
    assert found["dest_right"].fillna("").tolist() == wanted["dest_right"].fillna("").tolist()
    assert step.keys == ["dest", "day"] and step.name == "dest_day"


def test_keys_of_other_names_are_saved_and_asked_for(tmp_path: Path) -> None:
    airports = pd.DataFrame({"faa": ["JFK", "LGA"], "alt": [13.0, 22.0], "name": ["K", "L"]})
    flights = pd.DataFrame({"dest": ["LGA", "JFK", "EWR"], "x": [1.0, 2.0, 3.0]})
    features = gp.Features((["alt", "x"], pre.SimpleImputer()))
    pipeline = gp.Pipeline([T.Join(airports, left_on="dest", right_on="faa", columns="alt")], features).fit(flights)
    gp.save(tmp_path / "p", pipeline)
    for tables in ({}, {"dest": airports.drop(columns="name")}):
        loaded = gp.load(tmp_path / "p", tables=tables).pipeline
        assert (
            loaded.transform(flights)["alt"].tolist()
            == pipeline.transform(flights)["alt"].tolist()
            == [22.0, 13.0, 17.5]
        )
    step = T.Join(airports, on="faa").set_params(on=None, left_on="dest", right_on="faa")
    assert step.transform(flights)["alt"].tolist()[:2] == [22.0, 13.0]


@pytest.mark.parametrize("step", [T.Join, T.JoinAsOf])
@pytest.mark.parametrize("keys", [{}, {"on": "k", "left_on": "k"}, {"left_on": "k"}, {"right_on": "k"}])
def test_there_is_one_way_to_say_the_keys(step: Any, keys: dict[str, Any]) -> None:
    with raises(errors.BadConfig, where=step.__name__, match="not one way to say the keys"):
        step(pd.DataFrame({"k": [1], "v": [1]}), **keys)


def test_keys_come_in_pairs() -> None:
    with raises(errors.BadConfig, where="Join", got={"left": ["a", "b"], "right": ["k"]}):
        T.Join(pd.DataFrame({"k": [1]}), left_on=["a", "b"], right_on="k")
    with raises(errors.ColumnNotFound, where="Join('a') right", column="kk"):
        T.Join(pd.DataFrame({"k": [1]}), left_on="a", right_on="kk").transform(pd.DataFrame({"a": [1]}))
    with pytest.raises(errors.SchemaMismatch, match="key 'a' is int64 on the left and string on the right"):
        T.Join(pd.DataFrame({"k": ["x"]}), left_on="a", right_on="k").transform(pd.DataFrame({"a": [1]}))
