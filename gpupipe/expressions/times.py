"""Functions of times."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from gpupipe.backend.columns import Column
from gpupipe.backend.dates import date_parts, local_time, utc_time
from gpupipe.expressions.operands import Call, Operand, as_numbers, both_valid
from gpupipe.support.validation import parse_duration_us


def get_part(call: Call) -> Column:
    """Compute a part of each time, in UTC or in a zone's local time."""
    zone = str(call.constants[0].value) if call.constants else None
    return date_parts([call.name], local_time(call.first, zone, call.backend), "int64")[call.name]


def floor_time(call: Call) -> Column:
    """Compute the beginning of the length of time that each time is in, counted from 1970 in UTC or in a zone."""
    length, *zones = (str(constant.value) for constant in call.constants)
    unit, zone = parse_duration_us(length), zones[0] if zones else None
    time = local_time(call.first, zone, call.backend)
    start = Column("timestamp", time.data // unit * unit, time.valid)
    return start if zone is None else utc_time(start, zone, call.backend)


def subtract_times(call: Call) -> Column:
    """Compute a time minus a time."""
    later, earlier = call.values
    return seconds_between(later, earlier, call.xp)


def seconds_between(later: Operand, earlier: Operand, xp: ModuleType) -> Column:
    """Compute the seconds from one time to another, float64."""
    (a, a_valid), (b, b_valid) = as_numbers(later, "timestamp", xp), as_numbers(earlier, "timestamp", xp)
    valid = both_valid(a_valid, b_valid)
    seconds = xp.subtract(a, b) / np.float64(1e6)
    return Column("float64", seconds if valid is None else xp.where(valid, seconds, np.float64(np.nan)))
