"""Local times: pandas and Python are the oracles, in many zones, at their changes and far from them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import Backend, Column
from gpupipe.backend.dates import DATE_FLAGS, DATE_PARTS, local_time
from gpupipe.errors import BadConfig, ExpressionError
from gpupipe.support.time_zones import transitions
from tests.expressions.evaluated import column, result_of, run, to_device, to_host

ZONES = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})
FEW = [
    *("UTC", "America/New_York", "Europe/London", "Europe/Dublin", "Asia/Kolkata", "Australia/Lord_Howe", "Asia/Gaza"),
    *(
        "Africa/Casablanca",
        "Africa/Freetown",
        "America/Sao_Paulo",
        "Pacific/Apia",
        "America/Scoresbysund",
        "Asia/Tokyo",
    ),
]


def moments_of(zone: str) -> np.ndarray:
    """Its changes and their neighbours, and times far from them, in microseconds; what pandas can hold."""
    found = np.array(transitions(zone)[0], dtype="int64")
    far = np.random.default_rng(0).integers(-2_208_988_800_000_000, 7_258_118_400_000_000, 300)  # 1900 to 2200
    around = [found + step for step in (-1, 0, 1, -3_600_000_000, 3_600_000_000, -1_800_000_000)]
    return np.concatenate([far, *around])


def locally(moments: np.ndarray, zone: str, backend: Backend) -> np.ndarray:
    local: np.ndarray = to_host(
        local_time(to_device(Column("timestamp", moments), backend), zone, backend), backend
    ).data
    return local


@pytest.mark.slow
def test_many_zones_are_pythons(backend: Backend) -> None:
    for zone in ZONES[::24]:  # all of them, and all moments, took three minutes once
        moments = moments_of(zone)
        info = ZoneInfo(zone)
        rows = np.random.default_rng(1).permutation(len(moments))[:200]
        for moment, local in zip(moments[rows].tolist(), locally(moments, zone, backend)[rows].tolist(), strict=True):
            seconds, rest = divmod(moment, 1_000_000)
            there = datetime.fromtimestamp(seconds, info).replace(tzinfo=UTC)
            assert local == int(there.timestamp()) * 1_000_000 + rest, (zone, moment)


@pytest.mark.slow
@pytest.mark.parametrize("zone", FEW)
def test_local_times_are_pandas(backend: Backend, zone: str) -> None:
    moments = moments_of(zone)
    index = pd.DatetimeIndex(moments.view("datetime64[us]"), tz="UTC").tz_convert(zone).tz_localize(None)
    assert (locally(moments, zone, backend) == index.asi8).all()
    times = Column("timestamp", moments)
    names = {"dayofweek": "day_of_week", "dayofyear": "day_of_year"}
    for part in {*DATE_PARTS, *DATE_FLAGS} - {"week", "is_weekend"}:
        wanted = np.asarray(getattr(index, names.get(part, part)))
        assert (run(backend, f"{part}(t, {zone!r})", t=times).data == wanted).all(), part
    assert (run(backend, f"week(t, {zone!r})", t=times).data == index.isocalendar().week.to_numpy()).all()
    assert (run(backend, f"is_weekend(t, {zone!r})", t=times).data == (index.day_of_week >= 5)).all()


@settings(deadline=None, max_examples=100)
@given(st.datetimes(datetime(2500, 1, 1), datetime(9998, 1, 1)), st.sampled_from(FEW))  # noqa: DTZ001 - in UTC
@pytest.mark.slow
def test_the_rules_go_on_after_the_last_century(backend: Backend, at: datetime, zone: str) -> None:
    local = at.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    moments = np.array([at], "datetime64[us]").view("int64")
    assert locally(moments, zone, backend).view("datetime64[us]").tolist() == [local]


def test_one_hour_that_is_there_twice_and_one_that_is_not(backend: Backend) -> None:
    t = column("timestamp", ["2013-11-03 05:30", "2013-11-03 06:30", "2013-03-10 06:59:59", "2013-03-10 07:00", None])
    assert result_of(backend, "hour(t, 'America/New_York')", t=t) == [1, 1, 1, 3, None]
    assert result_of(backend, "hour(t)", t=t) == [5, 6, 6, 7, None]
    assert result_of(backend, "day(timestamp('2013-01-01'), 'America/New_York')", 1) == [31]


def test_date_parts_of_a_zone() -> None:
    frame = pd.DataFrame({"at": pd.DatetimeIndex(["2013-01-01 03:00", "2013-07-01 03:00", pd.NaT])})
    made = T.DateParts("at", ["day", "hour"], cyclic="hour", since="2013-01-01", tz="America/New_York").transform(frame)
    assert made["at_day"].tolist()[:2] == [31, 30] and made["at_hour"].tolist()[:2] == [22, 23]
    assert np.allclose(made["at_hour_sin"][:2], np.sin(np.array([22, 23]) / 12 * np.pi))
    assert made["at_since"].tolist()[:2] == [0.125, 181.125]
    assert made["at"].tolist()[:2] == frame["at"].tolist()[:2]
    encoder = pre.DatetimeEncoder(["hour"], cyclic="hour", tz="America/New_York")
    encoded = encoder.fit_transform(frame[:2])
    assert encoded["at_hour"].tolist() == [22.0, 23.0]
    assert np.allclose(encoded["at_hour_cos"], np.cos(np.array([22, 23]) / 12 * np.pi))


def test_a_zone_is_saved_with_its_step(tmp_path: Path) -> None:
    frame = pd.DataFrame({"at": pd.to_datetime(["2013-01-01 03:00", "2013-07-01 03:00"]), "y": [0.0, 1.0]})
    steps = [
        T.DateParts("at", "hour", tz="Asia/Tokyo"),
        T.Derive(h="hour(at, 'Asia/Kolkata') + minute(at, 'Asia/Kolkata')"),
    ]
    pipeline = gp.Pipeline(steps, features=gp.Features(["at_hour", "h"], target="y")).fit(gp.from_frame(frame))
    gp.save(tmp_path / "saved", pipeline)
    made = gp.load(tmp_path / "saved").pipeline.transform(frame)
    assert made["at_hour"].tolist() == [12.0, 12.0] and made["h"].tolist() == [38.0, 38.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("America/NewYork", "America/New_York"),
        ("New York", "America/New_York"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Europe", None),
        ("../etc/passwd", None),
        ("/etc/localtime", None),
        ("", None),
        (7, None),
    ],
)
def test_an_unknown_zone_is_an_error_with_the_closest_names(name: object, near: str | None) -> None:
    table = gp.from_frame(pd.DataFrame({"t": pd.to_datetime(["2013"])}))
    for call in (
        lambda: T.DateParts("t", "hour", tz=name),  # type: ignore[arg-type]
        lambda: pre.DatetimeEncoder(tz=name).output_fields(list(table.schema)),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadConfig) as caught:
            call()
        assert caught.value.got == name and "tz=" in caught.value.remedy
        assert near is None or repr(near) in caught.value.remedy
    with pytest.raises(ExpressionError) as refused:
        table.filter(f"hour(t, {name!r}) > 1")
    assert near is None or repr(near) in refused.value.remedy


def test_a_zone_that_is_no_constant_and_too_many_arguments() -> None:
    table = gp.from_frame(pd.DataFrame({"t": pd.to_datetime(["2013"]), "z": ["UTC"]}))
    for text in ("hour(t, z) > 1", "hour(t, 'UTC', 'UTC') > 1", "hour() > 1"):
        with pytest.raises(ExpressionError):
            table.filter(text)
