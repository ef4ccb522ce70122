"""Expression tree: constants, columns, comparisons and operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from gpupipe.expressions.source import Span
from gpupipe.schema import FLOATS

__all__ = [
    "EPOCH",
    "Comparison",
    "Constant",
    "Name",
    "Node",
    "Operation",
    "has_offset",
    "iter_names",
    "microseconds",
    "value_as",
]

Value: TypeAlias = bool | int | float | str
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  times are UTC and naive


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant value; a timestamp is an integer, microseconds since 1970, of text that may have an offset from UTC."""

    value: Value
    dtype: str
    span: Span = field(compare=False)
    has_offset: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """Column name."""

    name: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of neighbouring operands; true when all pairs are. One operator less than operands."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """An arithmetic sign, `negative`, `and`, `or`, `not`, `in` (a value, then constants) or a function's name."""

    name: str
    operands: tuple[Node, ...]
    span: Span = field(compare=False)


Node: TypeAlias = Constant | Name | Comparison | Operation


def iter_names(node: Node) -> Iterator[str]:
    """Yield the columns a tree reads, from left to right, with repeats."""
    if isinstance(node, Name):
        yield node.name
    elif isinstance(node, Comparison | Operation):
        for operand in node.operands:
            yield from iter_names(operand)


def value_as(constant: Constant, dtype: str) -> Value:
    """Convert a constant to the dtype of a column; text compared with times is a time.

    Raises:
        ValueError: text that is no time.
    """
    value = constant.value
    if dtype in FLOATS:
        return float(value)
    if isinstance(value, str):
        return microseconds(value) if dtype == "timestamp" else value
    return bool(value) if dtype == "bool" else int(value)


def has_offset(value: Any) -> bool:
    """Report whether a time, as text in ISO 8601 or a datetime, has an offset from UTC or a zone.

    Example:
        >>> has_offset("2013-10-01 06:00+02:00"), has_offset("2013-10-01 06:00"), has_offset("JFK")
        (True, False, False)
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return getattr(moment, "tzinfo", None) is not None


def microseconds(text: str) -> int:
    """Parse an ISO 8601 date or time to microseconds since 1970; UTC by default.

    Raises:
        ValueError: the text is something else.

    Example:
        >>> microseconds("1970-01-01T01:00:00+01:00"), microseconds("1970-01-02")
        (0, 86400000000)
    """
    moment = datetime.fromisoformat(text)
    since = moment.replace(tzinfo=None) - EPOCH - (moment.utcoffset() or timedelta())
    return since // timedelta(microseconds=1)
