"""Date and time parts, from a table of the days of 400 years, so that both backends agree."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd

from gpupipe.backend.columns import Array, Backend, Column, get_array_module
from gpupipe.support.time_zones import REPEATS_EVERY, REPEATS_FROM, closest_zones, is_zone, transitions
from gpupipe.support.validation import refuse_argument

DATE_PARTS = ("year", "quarter", "month", "week", "day", "dayofyear", "dayofweek", "hour", "minute", "second")
DATE_FLAGS = ("is_weekend", *(f"is_{unit}_{end}" for unit in ("month", "quarter", "year") for end in ("start", "end")))
CYCLES = ("quarter", "month", "day", "dayofyear", "dayofweek", "hour", "minute", "second")
"""The cyclic parts; weeks are not among them, as their number differs from year to year."""

_DAY = 86_400_000_000
_DAYS = REPEATS_EVERY // _DAY
_CLOCK = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}
_LENGTHS = {"quarter": 4, "month": 12, "dayofweek": 7, "hour": 24, "minute": 60, "second": 60}
_COUNTED_FROM_1 = ("quarter", "month", "day", "dayofyear")


def check_zone(owner: object, zone: str | None) -> None:
    """Raise `BadConfig` unless a time zone is known, or None; offer the closest ones."""
    if zone is not None and not is_zone(zone):
        near = " or ".join(f"tz={name!r}" for name in closest_zones(zone))
        expected, remedy = "a time zone's name, or None", near or "tz='UTC', or pip install tzdata"
        raise refuse_argument(owner, "tz", zone, expected, remedy, problem="no time zone of this name")


def local_time(time: Column, zone: str | None, backend: Backend) -> Column:
    """Convert times in UTC to a zone's local time; without a zone return the times."""
    if zone is None:
        return time
    xp = backend.xp
    moments, offsets = (backend.to_device(np.array(part, dtype="int64")) for part in transitions(zone))
    periods = xp.maximum((time.data - REPEATS_FROM) // REPEATS_EVERY + 1, 0)
    positions = xp.searchsorted(moments, time.data - periods * REPEATS_EVERY, side="right")
    return Column("timestamp", time.data + offsets[positions], time.valid)


def utc_time(local: Column, zone: str, backend: Backend) -> Column:
    """Convert a zone's local times to UTC: the first of two that are alike, the next there is of one left out."""
    xp = backend.xp
    moments, offsets = (np.array(part, dtype="int64") for part in transitions(zone))
    ends = backend.to_device(moments + np.maximum(offsets[:-1], offsets[1:]))  # of the old offset, in local time
    periods = xp.maximum((local.data - REPEATS_FROM) // REPEATS_EVERY + 1, 0)
    positions = xp.searchsorted(ends, local.data - periods * REPEATS_EVERY, side="right")
    return Column("timestamp", local.data - backend.to_device(offsets)[positions], local.valid)


def date_parts(names: list[str], time: Column, dtype: str = "int32") -> dict[str, Column]:
    """Compute several of `DATE_PARTS` (as `dtype`) and `DATE_FLAGS` (bool), with their common terms computed once."""
    calendar, columns = _Calendar(time.data), {}
    for name in names:
        stored = "bool" if name in DATE_FLAGS else dtype
        columns[name] = Column(stored, calendar.part(name).astype(stored, copy=False), time.valid)
    return columns


def compute_phase(name: str, time: Column) -> Array:
    """Compute the phase of a part in its cycle, of a day in its own month or year, float64 in [0, 1), or NaN."""
    calendar = _Calendar(time.data)
    length = _LENGTHS[name] if name in _LENGTHS else calendar.part(f"{name}s")
    turned: Array = (calendar.part(name) - (name in _COUNTED_FROM_1)).astype("float64") / length
    if time.valid is not None:
        turned[~time.valid] = float("nan")
    return turned


class _Calendar:
    """Calendar of n times; the year, month, week and so on of their days are gathered from `_list_days`."""

    def __init__(self, time: Array) -> None:
        self._time = time

    def part(self, name: str) -> Array:
        """Return n integers or flags; `days` are those of the month, `dayofyears` those of the year."""
        if name in _CLOCK:
            unit, count = _CLOCK[name]
            units = self._time // unit
            return units - units // count * count
        period, day = self._day
        values = get_array_module(day).asarray(_list_days()[name])[day]
        return values + 400 * period if name == "year" else values

    @cached_property
    def _day(self) -> tuple[Array, Array]:
        """The number of each time's 400 years, and the day in them."""
        days = (self._time // _DAY).astype("int32")
        period = days // _DAYS
        return period, days - period * _DAYS


@cache
def _list_days() -> dict[str, Any]:
    """List the parts of the days of the 400 years from 1970 on, after which the calendar and the weekdays repeat."""
    days = pd.DatetimeIndex(np.arange(_DAYS).astype("datetime64[D]").astype("datetime64[s]"))
    plain = ("year", "quarter", "month", "day", *(flag for flag in DATE_FLAGS if flag != "is_weekend"))
    parts: dict[str, Any] = {name: getattr(days, name) for name in plain}
    parts |= {"week": days.isocalendar().week, "dayofweek": days.day_of_week, "is_weekend": days.day_of_week >= 5}
    parts |= {"dayofyear": days.day_of_year, "days": days.days_in_month, "dayofyears": 365 + days.is_leap_year}
    return {name: np.asarray(part, dtype="bool" if name in DATE_FLAGS else "int32") for name, part in parts.items()}
