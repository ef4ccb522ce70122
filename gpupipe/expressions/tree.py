"""Expression tree: constants, columns, comparisons and operations, each with its place in the text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gpupipe.errors import ColumnNotFound, ExpressionError, GpupipeError
from gpupipe.schema import FLOATS

_WIDTH = 100
_Error = TypeVar("_Error", bound=GpupipeError)


class Span(NamedTuple):
    """Part of the text, in characters; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """Expression text, whose lines end in a line feed, and the step or parameter it was given to, for messages."""

    text: str
    where: str

    def slice(self, span: Span) -> str:
        """Return the text of a part."""
        return self.text[span.start : span.end]

    def error(self, span: Span, problem: str, expected: str, remedy: str, **got: Any) -> ExpressionError:
        """Build an error whose last lines show the text and mark the part."""
        return self._pointed(ExpressionError(self.where, problem, expected=expected, remedy=remedy, **got), span)

    def no_column(self, span: Span, name: str, names: Iterable[str]) -> ColumnNotFound:
        """Build the error for a column that is not one of `names`."""
        return self._pointed(ColumnNotFound.among(self.where, name, names), span)

    def _pointed(self, error: _Error, span: Span) -> _Error:
        """Add the line a part begins in, shortened around it, with carets below the part."""
        first = self.text.rfind("\n", 0, span.start) + 1
        last = self.text.find("\n", first)
        last = len(self.text) if last < 0 else last
        left = max(first, min(span.start - _WIDTH // 2, last - _WIDTH))
        right = min(last, left + _WIDTH)
        before, after = "..." * (left > first), "..." * (right < last)
        marked = max(1, min(span.end, right) - span.start)
        shown = self.text[left:right].replace("\t", " ")
        carets = " " * (len(before) + span.start - left) + "^" * marked
        error.args = (f"{error}\n    {before}{shown}{after}\n    {carets}",)
        return error


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


def value_as(constant: Constant, dtype: str) -> Value:
    """Convert a constant to the dtype of a column; text compared with times is a time, or a ValueError."""
    value = constant.value
    if dtype in FLOATS:
        return float(value)
    if isinstance(value, str):
        return microseconds(value) if dtype == "timestamp" else value
    return bool(value) if dtype == "bool" else int(value)


def has_offset(value: Any) -> bool:
    """Return whether a time, as text in ISO 8601 or a datetime, has an offset from UTC or a zone."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return getattr(moment, "tzinfo", None) is not None


def microseconds(text: str) -> int:
    """Parse an ISO 8601 date or time, UTC by default, to microseconds since 1970; a ValueError for other text."""
    moment = datetime.fromisoformat(text)
    since = moment.replace(tzinfo=None) - EPOCH - (moment.utcoffset() or timedelta())
    return since // timedelta(microseconds=1)
