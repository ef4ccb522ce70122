"""Date and time parts, by integer arithmetic on microseconds, so that both backends agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.expressions.dtypes import DATE_FLAGS, DATE_PARTS
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
    part = _Parts(time.data).get(name)
    dtype = "bool" if name in DATE_FLAGS else "int64"
    return Column(dtype, part.astype(dtype, copy=False), time.valid)


def date_parts(names: list[str], time: Column) -> dict[str, Column]:
    """Compute several parts (int32, flags bool), with their common terms computed once."""
    parts = _Parts(time.data)
    dtypes = ["bool" if name in DATE_FLAGS else "int32" for name in names]
    return {n: Column(d, parts.get(n).astype(d, copy=False), time.valid) for n, d in zip(names, dtypes, strict=True)}


def compute_phase(name: str, time: Column) -> Array:
    """Compute the phase of a part in its cycle, of a day in its own month or year, float64 in [0, 1), or NaN."""
    parts = _Parts(time.data)
    value = parts.get(name)
    length = _CYCLE[name] if name in _CYCLE else parts.month_length if name == "day" else parts.leap + 365
    turned: Array = (value - _FIRST.get(name, 0)).astype("float64") / length
    if time.valid is not None:
        turned[~time.valid] = float("nan")
    return turned


_CYCLE = {"quarter": 4, "month": 12, "weekday": 7, "hour": 24, "minute": 60, "second": 60}
_FIRST = {"quarter": 1, "month": 1, "day": 1, "dayofyear": 1}


class _Parts:
    """Date and time parts of n times, each computed on first use.

    Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days: years begin in March, so that
    the leap day is the last; eras are 400 years.
    """

    def __init__(self, microseconds: Array, days: Array | None = None) -> None:
        self._time = microseconds
        if days is not None:
            self.days = days

    def get(self, name: str) -> Array:
        """Return a part by its name."""
        assert name in (*DATE_PARTS, *DATE_FLAGS)
        if name in _CLOCK:
            unit, count = _CLOCK[name]
            units = self._time // unit
            return units - units // count * count
        found: Array = _FLAGS[name](self) if name in _FLAGS else getattr(self, name)
        return found

    @cached_property
    def days(self) -> Array:
        return (self._time // _DAY).astype("int32")

    @cached_property
    def weekday(self) -> Array:
        return self.days - (self.days + 3) // 7 * 7 + 3

    @cached_property
    def _era(self) -> Array:
        return (self.days + 719_468) // 146_097  # days since 0000-03-01

    @cached_property
    def _march_year(self) -> tuple[Array, Array]:
        """The year of the era, and the day in it, from March on."""
        day = self.days + 719_468 - self._era * 146_097
        year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
        return year, day - (365 * year + year // 4 - year // 100)

    @cached_property
    def _months_from_march(self) -> Array:
        return (5 * self._march_year[1] + 2) // 153

    @cached_property
    def _next_year(self) -> Array:
        return self._march_year[1] >= 306  # January and February

    @cached_property
    def year(self) -> Array:
        return self._march_year[0] + self._era * 400 + self._next_year

    @cached_property
    def month(self) -> Array:
        return self._months_from_march + 3 - self._next_year.astype("int8") * 12

    @cached_property
    def quarter(self) -> Array:
        return (self.month + 2) // 3

    @cached_property
    def day(self) -> Array:
        return self._march_year[1] - (153 * self._months_from_march + 2) // 5 + 1

    @cached_property
    def leap(self) -> Array:
        return (self.year % 4 == 0) & ((self.year % 100 != 0) | (self.year % 400 == 0))

    @cached_property
    def dayofyear(self) -> Array:
        before = self.leap & ~self._next_year  # whether the leap day of the year has been
        return self._march_year[1] + 60 + before - self._next_year.astype("int16") * 365

    @cached_property
    def month_length(self) -> Array:
        """Days of the month."""
        month = self.month
        is_long, is_february = (month + month // 8) % 2 == 1, month == 2
        return is_long.astype("int8") + 30 - is_february.astype("int8") * (2 - self.leap.astype("int8"))

    @cached_property
    def week(self) -> Array:
        """ISO 8601: weeks begin on Monday, and the first of a year is the one with its fourth of January."""
        thursday = _Parts(self._time, self.days - self.weekday + 3)
        return (thursday.dayofyear - 1) // 7 + 1


_FLAGS: dict[str, Callable[[_Parts], Array]] = {
    "is_weekend": lambda parts: parts.weekday >= 5,
    "is_month_start": lambda parts: parts.day == 1,
    "is_month_end": lambda parts: parts.day == parts.month_length,
    "is_quarter_start": lambda parts: (parts.day == 1) & (parts.month % 3 == 1),
    "is_quarter_end": lambda parts: (parts.day == parts.month_length) & (parts.month % 3 == 0),
    "is_year_start": lambda parts: parts.dayofyear == 1,
    "is_year_end": lambda parts: (parts.month == 12) & (parts.day == 31),
}
