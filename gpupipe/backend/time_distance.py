"""Order types and tolerances of as-of joins: the common type of both sides, and distances in its units."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.backend.columns import require_comparable_times
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, OF_A_DATASET, Field, is_passenger, suggest_conversion
from gpupipe.support.validation import is_integer, is_number, parse_duration_us

Distance = int | float
"""Microseconds between times, or the difference of numbers."""


def order_dtype(left: Field, right: Field, where: str) -> str:
    """Choose the type in which both sides of an as-of join are ordered by value.

    Raises:
        SchemaMismatch: text and the like, whose values have no distance; types of which none holds both; or times of
            which only one side has a zone.

    Example:
        >>> order_dtype(Field("t", "int32"), Field("t", "int64"), "join_asof")
        'int64'
    """
    for item, side in ((left, "left"), (right, "right")):
        if item.dtype not in (*INTEGERS, *FLOATS, "timestamp"):
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                f"values on the {side} have no distance from each other",
                got=item.dtype,
                expected="numbers, dates or times",
                remedy=_suggest_cast(item),
            )
    require_comparable_times(left, right, f"{where}, left and right")
    both = {left.dtype, right.dtype}
    if both == {"timestamp"}:
        return "timestamp"
    if "timestamp" not in both:
        if both <= {*INTEGERS}:
            found = np.promote_types(left.dtype, right.dtype).name
            if found in INTEGERS:
                return "uint64" if found == "uint64" else "int64"
        elif not both & {"int64", "uint64"}:
            return "float64"
    raise SchemaMismatch(
        where,
        f"{left.name!r} is {left.dtype} on the left and {right.name!r} {right.dtype} on the right",
        expected="times on both sides, or numbers of which one type holds both",
        remedy=f"T.Cast({{{right.name!r}: {left.dtype!r}}}) on the right before it",
    )


def _suggest_cast(item: Field) -> str:
    """Suggest a cast to a type whose values have a distance, for an error's remedy."""
    if is_passenger(item.dtype):
        return suggest_conversion(item.name, item.dtype)
    made = {"string": "timestamp", "bool": "int8"}.get(item.dtype)
    return "another column" if made is None else f"T.Cast({{{item.name!r}: {made!r}}}) before it, {OF_A_DATASET}"


def check_distance(value: Any, where: str) -> None:
    """Raise `BadConfig` unless a value is a number >= 0, a duration, or None.

    Example:
        >>> check_distance("2h", "join_asof(tolerance=)")
    """
    if value is None or (is_number(value) and value >= 0) or parse_duration_us(value, least=0) is not None:
        return
    raise _make_error(value, where, "a number from 0 on, or a length of time", "'2h' for times, 10 for numbers")


def convert_distance(value: Any, dtype: str, where: str) -> Distance | None:
    """Convert a distance to the units of a type that orders rows.

    Raises:
        BadConfig: a number for times, a duration or a fraction for integers; or see `check_distance`.

    Example:
        >>> convert_distance("2h", "timestamp", "join_asof(tolerance=)")
        7200000000
    """
    check_distance(value, where)
    if value is None:
        return None
    if dtype == "timestamp":
        found = parse_duration_us(value, least=0)
        if found is None:
            raise _make_error(value, where, "a length of time, for the order is one of times", "'2h'")
        return found
    if dtype == "float64" and is_number(value):
        return float(value)
    if dtype != "float64" and is_integer(value):
        return int(value)
    expected = "a number" if dtype == "float64" else "an integer"
    raise _make_error(value, where, f"{expected}, for the order is one of {dtype}", "10")


def _make_error(value: Any, where: str, expected: str, example: str) -> BadConfig:
    name = where.rpartition("(")[2].removesuffix("=)")
    return BadConfig(where, "makes no sense", got=value, expected=expected, remedy=f"{name}={example}")
