"""Lengths of time as users give them; every room reads them alike."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

__all__ = ["microseconds_of"]

_SECONDS = {"week": 604_800, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}
_TOLD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(week|day|hour|minute|second)s?\s*")
_LONGEST = 1 << 62  # 146,000 years: from no date on is the difference beyond int64


def microseconds_of(length: Any) -> int | None:
    """A timedelta (pandas' and NumPy's too) or text such as `"7 days"` in microseconds.

    None for what is no length of time, is not above 0, or is longer than times can lie apart.

    Example:
        >>> microseconds_of("36 hours"), microseconds_of("1.5 seconds"), microseconds_of(timedelta(days=1))
        (129600000000, 1500000, 86400000000)
        >>> microseconds_of("7 moons"), microseconds_of("0 days"), microseconds_of(7)
        (None, None, None)
    """
    if isinstance(length, str):
        told = _TOLD.fullmatch(length)
        found = float(told[1]) * _SECONDS[told[2]] * 1e6 if told else 0.0
    else:
        if hasattr(length, "astype"):  # NumPy's
            length = length.astype("timedelta64[us]").item()
        found = length // timedelta(microseconds=1) if isinstance(length, timedelta) else 0
    return round(found) if 0 < found < _LONGEST else None
