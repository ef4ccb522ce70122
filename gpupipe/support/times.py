"""Times as microseconds since 1970 in UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  times are UTC and naive


def has_offset(value: Any) -> bool:
    """Return whether a time, as text in ISO 8601 or a datetime, has an offset from UTC or a zone."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return getattr(moment, "tzinfo", None) is not None


def from_microseconds(value: int, zone: str = "") -> datetime:
    """Convert microseconds since 1970 to a time: in a zone, by its name or offset from UTC, else a naive one in UTC.

    Example:
        >>> print(from_microseconds(0), from_microseconds(0, "Europe/Berlin"), from_microseconds(0, "-03:30"))
        1970-01-01 00:00:00 1970-01-01 01:00:00+01:00 1969-12-31 20:30:00-03:30
    """
    moment = EPOCH + timedelta(microseconds=value)
    if not zone:
        return moment
    offset = re.fullmatch(r"([+-])(\d\d):(\d\d)", zone)
    if offset is None:
        return moment.replace(tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo(zone))
    east = timedelta(hours=int(offset[2]), minutes=int(offset[3])) * (-1 if offset[1] == "-" else 1)
    return moment.replace(tzinfo=UTC).astimezone(timezone(east))


def parse_microseconds(text: str) -> int:
    """Parse an ISO 8601 date or time, UTC by default, to microseconds since 1970; a ValueError for other text."""
    return to_microseconds(datetime.fromisoformat(text))


def to_microseconds(value: date) -> int:
    """Convert a date or time, UTC by default, to microseconds since 1970."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    since = moment.replace(tzinfo=None) - EPOCH - (moment.utcoffset() or timedelta())
    return since // timedelta(microseconds=1)
