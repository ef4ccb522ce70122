"""Date and time parts, by integer arithmetic on microseconds, so that both backends agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.expressions import DATE_FLAGS
from gpupipe.support.time_zones import REPEATS_EVERY, REPEATS_FROM, closest_zones, is_zone, transitions
from gpupipe.support.validation import refuse_argument

CYCLES = ("quarter", "month", "day", "dayofyear", "weekday", "hour", "minute", "second")
"""The cyclic parts; weeks are not among them, as their number differs from year to year."""

_DAY = 86_400_000_000
_CLOCK = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}


def check_zone(owner: object, zone: str | None) -> None:
    """Raise `BadConfig` unless a time zone is known, or None; offer the closest ones."""
    if zone is not None and not is_zone(zone):
        near = " or ".join(f"tz={one!r}" for one in closest_zones(zone))
        expected, remedy = "a time zone's name, or None", near or "tz='UTC', or pip install tzdata"
        raise refuse_argument(owner, "tz", zone, expected, remedy, problem="no time zone of this name")


def local_time(time: Column, zone: str | None, backend: Backend) -> Column:
    """Convert times in UTC to a zone's local time; without a zone return the times."""
    if zone is None:
        return time
    xp = backend.xp
    moments, offsets = (backend.to_device(np.array(part, dtype="int64")) for part in transitions(zone))
    periods = xp.maximum((time.data - REPEATS_FROM) // REPEATS_EVERY + 1, 0)
    place = xp.searchsorted(moments, time.data - periods * REPEATS_EVERY, side="right")
    return Column("timestamp", time.data + offsets[place], time.valid)


def date_part(name: str, time: Column) -> Column:
    """Compute a part of a timestamp, one of `DATE_PARTS` (int64) or `DATE_FLAGS` (bool)."""
    part = _Parts(time=time.data)[name]
    dtype = "bool" if name in DATE_FLAGS else "int64"
    return Column(dtype, part.astype(dtype, copy=False), time.valid)


def date_parts(names: list[str], time: Column) -> dict[str, Column]:
    """Compute several parts (int32, flags bool), with their common terms computed once."""
    parts = _Parts(time=time.data)
    dtypes = ["bool" if name in DATE_FLAGS else "int32" for name in names]
    return {n: Column(d, parts[n].astype(d, copy=False), time.valid) for n, d in zip(names, dtypes, strict=True)}


def compute_phase(name: str, time: Column) -> Array:
    """Compute the phase of a part in its cycle, of a day in its own month or year, float64 in [0, 1), or NaN."""
    parts = _Parts(time=time.data)
    value = parts[name]
    length = _CYCLE[name] if name in _CYCLE else parts["month_length"] if name == "day" else parts["leap"] + 365
    turned: Array = (value - _FIRST.get(name, 0)).astype("float64") / length
    if time.valid is not None:
        turned[~time.valid] = float("nan")
    return turned


_CYCLE = {"quarter": 4, "month": 12, "weekday": 7, "hour": 24, "minute": 60, "second": 60}
_FIRST = {"quarter": 1, "month": 1, "day": 1, "dayofyear": 1}


class _Parts(dict[str, Array]):
    """Date and time parts of n times by name, each computed on first use from `time` or from `days` since 1970.

    Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days: years begin in March, so that
    the leap day is the last; eras are 400 years.
    """

    def __missing__(self, name: str) -> Array:
        if name in _CLOCK:
            unit, count = _CLOCK[name]
            units = self["time"] // unit
            return units - units // count * count
        found = self[name] = _FORMULAS[name](self)
        return found


def _divide_era(parts: _Parts) -> Any:
    """Compute the year of the era, from March on, and the day in it."""
    day = parts["days"] + 719_468 - parts["era"] * 146_097
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    return year, day - (365 * year + year // 4 - year // 100)


def _count_days_of_year(parts: _Parts) -> Array:
    had_leap_day = parts["leap"] & ~parts["next_year"]
    return parts["march"][1] + 60 + had_leap_day - parts["next_year"].astype("int16") * 365


def _measure_month(parts: _Parts) -> Array:
    """Count the days of the month."""
    month = parts["month"]
    is_long, is_february = (month + month // 8) % 2 == 1, month == 2
    return is_long.astype("int8") + 30 - is_february.astype("int8") * (2 - parts["leap"].astype("int8"))


def _count_weeks(parts: _Parts) -> Array:
    """Compute the week by ISO 8601: it begins on Monday, and the first of a year has its fourth of January."""
    thursday = _Parts(days=parts["days"] - parts["weekday"] + 3)
    return (thursday["dayofyear"] - 1) // 7 + 1


_FORMULAS: dict[str, Callable[[_Parts], Array]] = {
    "days": lambda parts: (parts["time"] // _DAY).astype("int32"),
    "weekday": lambda parts: parts["days"] - (parts["days"] + 3) // 7 * 7 + 3,
    "week": _count_weeks,
    "era": lambda parts: (parts["days"] + 719_468) // 146_097,  # days since 0000-03-01
    "march": _divide_era,
    "next_year": lambda parts: parts["march"][1] >= 306,  # January and February
    "months": lambda parts: (5 * parts["march"][1] + 2) // 153,  # since March
    "year": lambda parts: parts["march"][0] + parts["era"] * 400 + parts["next_year"],
    "month": lambda parts: parts["months"] + 3 - parts["next_year"].astype("int8") * 12,
    "quarter": lambda parts: (parts["month"] + 2) // 3,
    "day": lambda parts: parts["march"][1] - (153 * parts["months"] + 2) // 5 + 1,
    "leap": lambda parts: (parts["year"] % 4 == 0) & ((parts["year"] % 100 != 0) | (parts["year"] % 400 == 0)),
    "dayofyear": _count_days_of_year,
    "month_length": _measure_month,
    "is_weekend": lambda parts: parts["weekday"] >= 5,
    "is_month_start": lambda parts: parts["day"] == 1,
    "is_month_end": lambda parts: parts["day"] == parts["month_length"],
    "is_quarter_start": lambda parts: parts["is_month_start"] & (parts["month"] % 3 == 1),
    "is_quarter_end": lambda parts: parts["is_month_end"] & (parts["month"] % 3 == 0),
    "is_year_start": lambda parts: parts["dayofyear"] == 1,
    "is_year_end": lambda parts: (parts["month"] == 12) & (parts["day"] == 31),
}
