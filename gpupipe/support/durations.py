"""Durations as users give them: text and timedeltas."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

__all__ = ["parse_duration_us"]

_UNITS = {
    **dict.fromkeys(("week", "weeks", "w"), 604_800_000_000),
    **dict.fromkeys(("day", "days", "d"), 86_400_000_000),
    **dict.fromkeys(("hour", "hours", "h"), 3_600_000_000),
    **dict.fromkeys(("minute", "minutes", "min"), 60_000_000),
    **dict.fromkeys(("second", "seconds", "s"), 1_000_000),
    **dict.fromkeys(("millisecond", "milliseconds", "ms"), 1000),
    **dict.fromkeys(("microsecond", "microseconds", "us"), 1),
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_LONGEST = 1 << 62  # 146,000 years: from no date on is the difference beyond int64


def parse_duration_us(length: Any, *, least: int = 1) -> int | None:
    """Convert a timedelta (pandas' and NumPy's too) or text such as `"7 days"` or `"2h"` to microseconds.

    None for what is no length of time, is below `least`, or is longer than times can lie apart.

    Example:
        >>> parse_duration_us("36 hours"), parse_duration_us("1.5s"), parse_duration_us(timedelta(days=1))
        (129600000000, 1500000, 86400000000)
        >>> parse_duration_us("7 moons"), parse_duration_us("0 days"), parse_duration_us(7)
        (None, None, None)
    """
    if isinstance(length, str):
        text = _TEXT.fullmatch(length)
        if text is None or text[2] not in _UNITS:
            return None
        found = round(float(text[1]) * _UNITS[text[2]])
    else:
        if getattr(getattr(length, "dtype", None), "kind", None) == "m" and not length.ndim:  # NumPy's
            length = length.astype("timedelta64[us]").item()
        if not isinstance(length, timedelta):
            return None
        found = length // timedelta(microseconds=1)
    return found if least <= found < _LONGEST else None
