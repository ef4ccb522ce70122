"""Statistics: minimum and maximum of a file's values, and constants compared with them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeAlias

import numpy as np

from gpupipe.errors import BadConfig
from gpupipe.schema import Field

Bounds: TypeAlias = tuple[Any, Any]
"""The lowest and the highest present value of some rows, as rows are compared."""

Condition: TypeAlias = tuple[str, str, Any]
"""A column, a comparison and a constant, such as `("month", ">=", 10)`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def excludes(condition: Condition, bounds: Bounds, item: Field) -> bool:
    """Return whether no value within `bounds` can satisfy the condition, so that its rows need not be read."""
    _, sign, constant = condition
    if sign == "in":
        return all(excludes((item.name, "==", one), bounds, item) for one in constant)
    try:
        wanted = comparable(constant, item, "")
    except BadConfig:
        return False
    low, high = bounds
    return _is_outside(sign, low, high, wanted)


def _is_outside(sign: str, low: Any, high: Any, wanted: Any) -> bool:
    match sign:
        case "<":
            return bool(low >= wanted)
        case "<=":
            return bool(low > wanted)
        case ">":
            return bool(high <= wanted)
        case ">=":
            return bool(high < wanted)
        case "==":
            return bool(wanted < low or wanted > high)
    return False


def comparable(value: Any, item: Field, where: str) -> Any:
    """Convert a constant to the form in which the column's values compare: times to microseconds.

    Raises:
        BadConfig: it cannot be compared with them.
    """
    if isinstance(value, np.generic):
        value = (value.astype("datetime64[us]") if isinstance(value, np.datetime64) else value).item()
    if item.dtype == "timestamp":
        expected = "a date or a time, as text in ISO format or as datetime"
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            moment = None
        if isinstance(moment, date) and str(moment) != "NaT":
            return microseconds(moment)
    elif item.dtype == "string":
        expected = "text"
        if isinstance(value, str):
            return value
    else:
        expected = "a number"
        if isinstance(value, int | float) and not math.isnan(value):
            return value
    raise BadConfig(
        where,
        f"column {item.name!r} is {item.dtype}",
        got=value,
        expected=expected,
        remedy=f"at={_EXAMPLES.get(item.dtype, 10)!r}",
    )


_EXAMPLES = {"timestamp": "2013-10-01", "string": "M"}


def exactly(value: Any) -> Bounds | None:
    """Return the bounds of rows that all have this value; None where it is missing.

    Example:
        >>> exactly("JFK"), exactly(date(1970, 1, 2)), exactly(None)
        (('JFK', 'JFK'), (86400000000, 86400000000), None)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    compared = microseconds(value) if isinstance(value, date) else value
    return compared, compared


def microseconds(value: date) -> int:
    """Convert a date or time to a stored timestamp: microseconds since 1970 in UTC; without a zone it is UTC.

    Example:
        >>> microseconds(date(1970, 1, 2))
        86400000000
    """
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)
