"""Parts of times: pandas is the oracle, with leap years, time zones, years before 1970 and gaps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.backend.dates import DATE_FLAGS, DATE_PARTS
from gpupipe.schema import Field, Schema
from tests.raising import raises

MOMENTS = [
    "1969-12-31 23:59:59.999999",
    "1970-01-01",
    "1900-02-28 12:00",
    "2000-02-29 06:30:15",
    "2012-12-31",
    "2016-12-31 23:59:59",
    "2100-03-01",
    "1583-01-01",
    "2013-06-30 01:02:03",
]
PERIODS: dict[str, Any] = {
    "quarter": lambda t: (t.dt.quarter - 1) / 4,
    "month": lambda t: (t.dt.month - 1) / 12,
    "day": lambda t: (t.dt.day - 1) / t.dt.days_in_month,
    "dayofyear": lambda t: (t.dt.day_of_year - 1) / (365 + t.dt.is_leap_year),
    "dayofweek": lambda t: t.dt.day_of_week / 7,
    "hour": lambda t: t.dt.hour / 24,
    "minute": lambda t: t.dt.minute / 60,
    "second": lambda t: t.dt.second / 60,
}


def times_of(values: list[Any]) -> pd.Series:
    return pd.Series(np.array([np.datetime64("NaT" if v is None else v, "us") for v in values], "datetime64[us]"))


def in_pandas(part: str, times: pd.Series) -> list[Any]:
    if part == "week":
        found = times.dt.isocalendar().week
    elif part == "is_weekend":
        found = times.dt.day_of_week.isin([5, 6])
    else:
        found = getattr(times.dt, {"dayofyear": "day_of_year", "dayofweek": "day_of_week"}.get(part, part))
    return [None if pd.isna(t) else value for t, value in zip(times, found.tolist(), strict=True)]


def plain(series: pd.Series) -> list[Any]:
    return [None if pd.isna(value) else value for value in series.tolist()]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.datetimes() | st.sampled_from(MOMENTS), min_size=1, max_size=12))
def test_every_part_is_pandas(values: list[Any]) -> None:
    times = times_of(values)
    made = T.DateParts("t", [*DATE_PARTS, *DATE_FLAGS], cyclic=list(PERIODS)).transform(pd.DataFrame({"t": times}))
    for part in (*DATE_PARTS, *DATE_FLAGS):
        assert plain(made[f"t_{part}"]) == in_pandas(part, times), part
    for part, place in PERIODS.items():
        angle = 2 * np.pi * place(times).to_numpy("float64")
        np.testing.assert_allclose(made[f"t_{part}_sin"], np.sin(angle), atol=1e-6)
        np.testing.assert_allclose(made[f"t_{part}_cos"], np.cos(angle), atol=1e-6)


def test_times_of_a_zone_are_taken_in_utc() -> None:
    zoned = pd.date_range("2013-03-09 20:00", periods=60, freq="h", tz="America/New_York").to_series()
    made = T.DateParts("t", ["day", "hour"]).transform(pd.DataFrame({"t": zoned}))
    utc = zoned.dt.tz_convert("UTC").dt
    assert made["t_hour"].tolist() == utc.hour.tolist() and made["t_day"].tolist() == utc.day.tolist()


@pytest.mark.parametrize(("unit", "seconds"), [("seconds", 1), ("hours", 3600), ("days", 86400), ("weeks", 604800)])
def test_time_passed_is_pandas(unit: str, seconds: int) -> None:
    times = times_of([*MOMENTS, None])
    other = times.shift(1)
    frame = pd.DataFrame({"t": times, "before": other})
    for since, start in (("2013-01-01", pd.Timestamp("2013-01-01")), ("before", other)):
        made = T.DateParts("t", since=since, unit=unit).transform(frame)["t_since"]
        wanted = (times - start).dt.total_seconds() / seconds
        np.testing.assert_allclose(made, wanted, rtol=1e-15)
    zoned = frame.assign(t=times.dt.tz_localize("UTC"))
    aware = T.DateParts("t", since="2013-01-01T01:00:00+01:00").transform(zoned)["t_since"]
    assert aware.equals(T.DateParts("t", since="2013-01-01").transform(frame)["t_since"])


def test_what_makes_no_sense_is_refused() -> None:
    frame = pd.DataFrame({"t": pd.to_datetime(["2013-01-01"]), "x": [1.0], "t_hour": [1]})
    for options in (
        {},
        {"parts": "hours"},
        {"cyclic": "week"},
        {"since": "yesterday"},
        {"since": pd.Timestamp("2013-01-01")},
        {"since": "2013-01-01", "unit": "months"},
        {"parts": "hour"},
    ):
        with pytest.raises(errors.BadConfig, match="DateParts"):
            T.DateParts("t", **options).transform(frame)
    for step in (T.DateParts("x", "hour"), T.DateParts("t", since="x")):
        with raises(errors.SchemaMismatch, where="DateParts of column 'x'", got="float64"):
            step.transform(frame)


@pytest.mark.parametrize("values", [[1_000_000_000], [1_000_000_000.0]])
def test_the_remedy_for_unix_seconds_reads_seconds(values: list[Any]) -> None:
    frame = pd.DataFrame({"at": values})
    with pytest.raises(errors.SchemaMismatch, match="a cast reads microseconds") as caught:
        T.DateParts("at", "year").transform(frame)
    derive, cast = re.findall(r"T\.\w+\(.*?\)(?= if| before)", caught.value.remedy)
    frame = eval(cast).transform(eval(derive).transform(frame))
    assert T.DateParts("at", "year").transform(frame)["at_year"].tolist() == [2001]


def test_only_what_is_asked_for_is_worked_out() -> None:
    schema = Schema([Field("t", "timestamp"), Field("u", "timestamp"), Field("x", "float64")])
    step = T.DateParts("t", "hour", cyclic="month", since="u")
    assert step.needs({"x"}, schema) == {"x"}
    assert step.needs({"x", "t_month_cos"}, schema) == {"x", "t"}
    assert step.needs({"t_since"}, schema) == {"t", "u"}


def test_the_year_of_flights() -> None:
    flights = gp.read_parquet("data/flights.parquet", columns=["time_hour", "month", "day", "hour"]).head(2000)
    local = flights["time_hour"] - pd.Timedelta(hours=5)  # New York in January
    made = T.DateParts("local", ["month", "day", "hour"]).transform(flights.assign(local=local))
    for part in ("month", "day", "hour"):
        assert (made[f"local_{part}"] == flights[part]).all()
