"""Parts of a time: the calendar of Python and pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Backend, Column
from tests.expressions.evaluated import column, result_of, run

FLAGS = [f"is_{unit}_{end}" for unit in ("month", "quarter", "year") for end in ("start", "end")]
IN_PANDAS = {"weekday": "day_of_week", "dayofyear": "day_of_year"}


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
        "weekday": lambda t: t.weekday(),
        "dayofyear": lambda t: t.timetuple().tm_yday,
        "week": lambda t: t.isocalendar().week,
        "quarter": lambda t: (t.month + 2) // 3,
        "is_weekend": lambda t: t.weekday() in (5, 6),
    }
    for part, of in parts.items():
        wanted = [None if t is None else of(t) for t in times]
        assert result_of(backend, f"{part}(t)", t=column("timestamp", times)) == wanted


def test_every_day_of_eight_centuries(backend: Backend) -> None:
    days = np.arange(np.datetime64("1600-01-01"), np.datetime64("2400-03-02"))
    index = pd.DatetimeIndex(days.astype("datetime64[us]"))
    times = Column("timestamp", index.to_numpy().view("int64"))
    for part in ("year", "quarter", "month", "day", "weekday", "dayofyear", *FLAGS):
        wanted = np.asarray(getattr(index, IN_PANDAS.get(part, part)))
        assert (run(backend, f"{part}(t)", t=times).data == wanted).all(), part
    assert (run(backend, "week(t)", t=times).data == index.isocalendar().week.to_numpy()).all()
    assert (run(backend, "is_weekend(t)", t=times).data == (index.day_of_week >= 5)).all()


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
