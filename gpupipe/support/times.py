"""Times as microseconds since 1970 in UTC."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  times are UTC and naive


def has_offset(value: Any) -> bool:
    """Return whether a time, as text in ISO 8601 or a datetime, has an offset from UTC or a zone."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return getattr(moment, "tzinfo", None) is not None


def parse_microseconds(text: str) -> int:
    """Parse an ISO 8601 date or time, UTC by default, to microseconds since 1970; a ValueError for other text."""
    return to_microseconds(datetime.fromisoformat(text))


def to_microseconds(value: date) -> int:
    """Convert a date or time, UTC by default, to microseconds since 1970."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    since = moment.replace(tzinfo=None) - EPOCH - (moment.utcoffset() or timedelta())
    return since // timedelta(microseconds=1)
