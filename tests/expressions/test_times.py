"""Parts of a time: the calendar of Python and pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.backend import Backend, Column
from gpupipe.errors import ExpressionError
from gpupipe.expressions import parse
from gpupipe.schema import Field, Schema
from tests.examples import examples
from tests.expressions.evaluated import column, result_of, run

FLAGS = [f"is_{unit}_{end}" for unit in ("month", "quarter", "year") for end in ("start", "end")]
IN_PANDAS = {"dayofweek": "day_of_week", "dayofyear": "day_of_year"}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.none(), st.datetimes()), max_size=6))
def test_parts_of_a_time_are_pythons(backend: Backend, times: list[Any]) -> None:
    parts = {
        "year": lambda t: t.year,
        "month": lambda t: t.month,
        "day": lambda t: t.day,
        "hour": lambda t: t.hour,
        "minute": lambda t: t.minute,
        "second": lambda t: t.second,
        "dayofweek": lambda t: t.weekday(),
        "dayofyear": lambda t: t.timetuple().tm_yday,
        "week": lambda t: t.isocalendar().week,
        "quarter": lambda t: (t.month + 2) // 3,
        "is_weekend": lambda t: t.weekday() in (5, 6),
    }
    for part, of in parts.items():
        wanted = [None if t is None else of(t) for t in times]
        assert result_of(backend, f"{part}(t)", t=column("timestamp", times)) == wanted


@pytest.mark.slow
def test_every_day_of_eight_centuries(backend: Backend) -> None:
    days = np.arange(np.datetime64("1600-01-01"), np.datetime64("2400-03-02"))
    index = pd.DatetimeIndex(days.astype("datetime64[us]"))
    times = Column("timestamp", index.to_numpy().view("int64"))
    for part in ("year", "quarter", "month", "day", "dayofweek", "dayofyear", *FLAGS):
        wanted = np.asarray(getattr(index, IN_PANDAS.get(part, part)))
        assert (run(backend, f"{part}(t)", t=times).data == wanted).all(), part
    assert (run(backend, "week(t)", t=times).data == index.isocalendar().week.to_numpy()).all()
    assert (run(backend, "is_weekend(t)", t=times).data == (index.day_of_week >= 5)).all()


LENGTHS = {"1h": "1h", "15min": "15min", "1D": "1D", "7 days": "7D", "30s": "30s", "250ms": "250ms", "90 min": "90min"}


@pytest.mark.parametrize("length", LENGTHS)
@examples(60)
@given(st.lists(st.one_of(st.none(), st.datetimes()), max_size=6))
def test_floor_is_pandas(backend: Backend, length: str, times: list[Any]) -> None:
    wanted = pd.Series(times, dtype="datetime64[us]").dt.floor(LENGTHS[length])
    found = result_of(backend, f"floor(t, {length!r})", t=column("timestamp", times))
    assert found == [
        None if at is pd.NaT else at.to_datetime64().astype("datetime64[us]").view("int64") for at in wanted
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "UTC"])
@pytest.mark.parametrize("length", ["1D", "6h", "7 days"])
@pytest.mark.slow
def test_floor_in_a_zone_is_pandas(backend: Backend, zone: str, length: str) -> None:
    """Two years by the half hour, over four changes of summer time."""
    times = pd.date_range("2023-01-01", "2024-12-31", freq="30min", tz="UTC", unit="us")
    wanted = times.tz_convert(zone).floor(LENGTHS.get(length, length)).tz_convert("UTC").tz_localize(None)
    floors = run(backend, f"floor(t, {length!r}, {zone!r})", t=Column("timestamp", times.asi8))
    np.testing.assert_array_equal(backend.to_host(floors.data), wanted.asi8)


def test_floor_where_the_beginning_is_left_out_or_comes_twice(backend: Backend) -> None:
    def floor(length: str, zone: str, *times: str) -> list[Any]:
        moments = pd.DatetimeIndex(times, tz="UTC").as_unit("us").asi8
        floors = run(backend, f"floor(t, {length!r}, {zone!r})", t=Column("timestamp", moments))
        starts = pd.DatetimeIndex(backend.to_host(floors.data).view("datetime64[us]"), tz="UTC").tz_convert(zone)
        return [start.isoformat() for start in starts]

    # In Beirut the clocks go from 0:00 to 1:00, in Havana from 1:00 back to 0:00, in Berlin from 3:00 to 2:00.
    assert floor("1d", "Asia/Beirut", "2022-03-27 10:00") == ["2022-03-27T01:00:00+03:00"]
    havana = floor("1d", "America/Havana", "2024-11-03 04:30", "2024-11-03 05:30", "2024-11-03 20:00")
    assert havana == ["2024-11-03T00:00:00-04:00"] * 3
    assert floor("1h", "Europe/Berlin", "2024-10-27 00:30", "2024-10-27 01:30") == ["2024-10-27T02:00:00+02:00"] * 2
    assert floor("1d", "Europe/Berlin", "2924-07-01 12:00") == ["2924-07-01T00:00:00+02:00"]


def test_floor_of_no_rows_and_of_none_that_is_there(backend: Backend) -> None:
    assert result_of(backend, "floor(t, '1h')", 0, t=column("timestamp", [])) == []
    assert result_of(backend, "floor(t, '1h') == '2013-10-01'", t=column("timestamp", [None, "2013-10-01 00:59"])) == [
        None,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("floor(t, 'month')", r"no length of time, got 'month'[\s\S]*year\(time\) \* 12"),
        ("floor(t, '1 moon')", "no length of time, got '1 moon'"),
        ("floor(t, '0h')", "no length of time, got '0h'"),
        ("floor(t, '1d', 'Europe/Berln')", "no time zone of this name, got 'Europe/Berln'[\\s\\S]*'Europe/Berlin'"),
        ("floor(t, '1d', 'UTC', 2)", "floor is called with 4 arguments.\nExpected 1 to 3 arguments"),
        ("floor(t, 5)", r"`floor` is given 5 \(int64\)[\s\S]*'1h'"),
        ("floor(s, '1h')", "given column 's'"),
        ("floor(s)", r"given column 's' \(string\)"),
        ("ceil(t)", r"given column 't' \(timestamp\)"),
        ("weekday(t)", r"dayofweek\(t\)"),
    ],
)
def test_what_is_no_part_of_a_time(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text).check(Schema([Field("t", "timestamp"), Field("s", "string")]))


def test_floor_keeps_the_zone_apart() -> None:
    schema = Schema([Field("t", "timestamp", written_as="timestamp[us, tz=Europe/Paris]"), Field("u", "timestamp")])
    with pytest.raises(ExpressionError, match="times with a time zone beside times without"):
        parse("floor(t, '1h') < u").check(schema)
    assert parse("floor(t, '1h') == floor(t, '1D')").check(schema) == "bool"


def test_a_computed_time_keeps_its_zone() -> None:
    times = pd.to_datetime(["2013-10-01 05:40", "2013-10-27 00:10"]).tz_localize("UTC").tz_convert("Europe/Paris")
    made = T.Derive(hour="floor(t, '1h')", same="where(True, t, None)").transform(pd.DataFrame({"t": times}))
    assert (
        made["hour"].tolist() == list(times.tz_convert("UTC").floor("1h").tz_convert("Europe/Paris"))
        and str(made["hour"].dt.tz) == "Europe/Paris"
    )
    assert made["same"].tolist() == list(times)
    dates = Schema([Field("d", "timestamp", written_as="date32[day]")])
    assert T.Derive(e="d", f="floor(d, '1h')", n="year(d)").output_schema(dates).names == ["d", "e", "f", "n"]
    assert [item.written_as for item in T.Derive(e="d", f="floor(d, '1h')").output_schema(dates)] == [
        "date32[day]"
    ] * 2 + [""]


def test_times_against_text_and_each_other(backend: Backend) -> None:
    t = column("timestamp", ["2013-10-01 05:00", None, "2013-09-30 23:59:59.999999"])
    assert result_of(backend, "t >= '2013-10-01'", t=t) == [True, None, False]
    assert result_of(backend, "'2013-10-01T05:00' == t", t=t) == [True, None, False]
    assert result_of(backend, "t in ['2013-10-01 05:00']", t=t) == [True, None, False]
    assert result_of(backend, "t - timestamp('2013-10-01')", t=t) == [18000.0, None, -1e-6]
    assert result_of(backend, "timestamp('2013-10-01 06:00') - t > 3600", t=t) == [False, None, True]
    assert result_of(backend, "hour(coalesce(t, '2000-01-01 07:00'))", t=t) == [5, 7, 23]
    assert result_of(backend, "maximum('2013-10-01', t) == timestamp('2013-10-01')", t=t) == [False, None, True]
    assert result_of(backend, "'2013-09-01' < timestamp('2013-10-01')", 2) == [True, True]
    assert result_of(backend, "'2013-10-01' in [timestamp('2013-10-01')]", 1) == [True]


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("t - dayofweek(t) * 86400", [0, 0]),
        ("x * 86400 + t", [2, 0.5]),
        ("86400 + floor(t, '1us')", [2, 2]),
        ("t - x", [1 - 1 / 86400, 1 + 0.5 / 86400]),
        ("t - 86400", [0, 0]),
    ],
)
@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
def test_a_time_and_a_number_are_offered_a_shift(text: str, days: list[float], zone: str | None) -> None:
    start = pd.Timestamp("2024-01-01 07:00:00.123457")  # a Monday
    times = pd.Series([start, start]) + pd.Timedelta(days=1)
    data = gp.from_frame(pd.DataFrame({"t": times.dt.tz_localize("UTC").dt.tz_convert(zone), "x": [1.0, -0.5]}))
    with pytest.raises(ExpressionError) as caught:
        data.assign(made=text)
    steps = eval(f"[{caught.value.remedy.partition(' before')[0]}]", {"T": T})
    made = gp.Pipeline(steps).fit(data).transform(data).compute()["made"]
    assert made.tolist() == [start + pd.Timedelta(days=number) for number in days]
    assert ("1970 (*" in caught.value.remedy) == (text == "t - x")  # x may hold times itself


@pytest.mark.parametrize("text", ["'2024-03-01' - t", "t - '2024-03-01'"])
def test_a_date_beside_minus_is_offered_as_a_time(text: str) -> None:
    data = gp.from_frame(pd.DataFrame({"t": pd.date_range("2024-01-01", periods=3)}))
    with pytest.raises(ExpressionError) as caught:
        data.assign(seconds=text)
    assert caught.value.remedy == "timestamp('2024-03-01')"
    seconds = data.assign(seconds=text.replace("'2024-03-01'", caught.value.remedy)).compute()["seconds"]
    assert seconds.abs().tolist() == [60 * 86400.0, 59 * 86400.0, 58 * 86400.0]
