"""Parts of a time, in integer arithmetic on microseconds, so that both backends agree on every one."""

from __future__ import annotations

from gpupipe.backend.protocol import Array, Column

__all__ = ["date_part"]

_DAY = 86_400_000_000
_CLOCK = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}


def date_part(name: str, time: Column) -> Column:
    """`year`, `month`, `day`, `hour`, `minute`, `second`, `weekday` (Monday is 0) or `dayofyear` of a timestamp, int64.

    Memory: the result and up to six int32 per row.

    Example:
        >>> import numpy as np
        >>> date_part("weekday", Column("timestamp", np.array([0]))).data  # 1970-01-01, a Thursday
        array([3])
    """
    if name in _CLOCK:
        unit, count = _CLOCK[name]
        units = time.data // unit
        part = units - units // count * count
    else:
        days = (time.data // _DAY).astype("int32")
        part = days - (days + 3) // 7 * 7 + 3 if name == "weekday" else _calendar(name, days)
    return Column("int64", part.astype("int64", copy=False), time.valid)


def _calendar(name: str, days: Array) -> Array:
    """A part of the Gregorian date that lies `days` after 1970-01-01.

    Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days: years begin in March, so that
    the leap day is the last; eras are 400 years.
    """
    shifted = days + 719_468  # days since 0000-03-01
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    next_year = day_of_year >= 306  # January and February
    if name == "dayofyear":
        is_leap = (year_of_era % 4 == 0) & ((year_of_era % 100 != 0) | (year_of_era == 0))
        return day_of_year + 60 + is_leap - next_year * (365 + is_leap)
    if name == "year":
        return year_of_era + era * 400 + next_year
    month = (5 * day_of_year + 2) // 153  # since March
    if name == "day":
        return day_of_year - (153 * month + 2) // 5 + 1
    return month + 3 - next_year * 12
