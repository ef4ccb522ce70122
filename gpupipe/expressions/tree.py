"""Tree of an expression: columns, constants, comparisons and operations, each with its part of the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gpupipe.errors import ColumnNotFound, ExpressionError, GpupipeError
from gpupipe.schema import FLOATS
from gpupipe.support.times import parse_microseconds

_LINE_CHARACTERS = 100  # of the line that an error shows
_Error = TypeVar("_Error", bound=GpupipeError)
Value: TypeAlias = bool | int | float | str


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
        return self._point(ExpressionError(self.where, problem, expected=expected, remedy=remedy, **got), span)

    def no_column(self, span: Span, name: str, names: Iterable[str], offer: str | None = None) -> ColumnNotFound:
        """Build the error for a column that is not one of `names`; `offer` is the remedy where none is like it."""
        return self._point(ColumnNotFound.among(self.where, name, names, offer), span)

    def _point(self, error: _Error, span: Span) -> _Error:
        """Add to an error the line a part begins in, shortened around it, with carets below the part."""
        first = self.text.rfind("\n", 0, span.start) + 1
        last = self.text.find("\n", first)
        last = len(self.text) if last < 0 else last
        left = max(first, min(span.start - _LINE_CHARACTERS // 2, last - _LINE_CHARACTERS))
        right = min(last, left + _LINE_CHARACTERS)
        before, after = "..." * (left > first), "..." * (right < last)
        line = "".join(letter if letter.isprintable() else " " for letter in self.text[left:right])
        carets = " " * (len(before) + span.start - left) + "^" * max(1, min(span.end, right) - span.start)
        error.args = (f"{error}\n    {before}{line}{after}\n    {carets}",)
        return error


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant value; a timestamp is an integer, microseconds since 1970, of text that may have an offset from UTC."""

    value: Value
    dtype: str
    span: Span = field(compare=False)
    has_offset: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Null:
    """Missing value, `None`."""

    span: Span = field(compare=False)

    dtype = "null"


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


Node: TypeAlias = Constant | Null | Name | Comparison | Operation


def value_as(constant: Constant, dtype: str) -> Value:
    """Convert a constant to the dtype of a column; text compared with times is a time, or a ValueError."""
    value = constant.value
    if dtype in FLOATS:
        return float(value)
    if isinstance(value, str):
        return parse_microseconds(value) if dtype == "timestamp" else value
    return bool(value) if dtype == "bool" else int(value)


def iter_columns(node: Node) -> Iterator[Name]:
    """Yield the columns a tree reads, from left to right, with repeats."""
    if isinstance(node, Name):
        yield node
    for operand in getattr(node, "operands", ()):
        yield from iter_columns(operand)


def iter_names(node: Node) -> Iterator[str]:
    """Yield the names of the columns a tree reads, from left to right, with repeats."""
    return (column.name for column in iter_columns(node))


def iter_tested(node: Node) -> Iterator[str]:
    """Yield the columns of which a tree's value tells whether they are missing, with repeats."""
    if isinstance(node, Operation) and node.name in ("isnull", "notnull", "coalesce"):
        yield from iter_names(node)
    for operand in getattr(node, "operands", ()):
        yield from iter_tested(operand)
