"""Expression text, and errors that point into it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from gpupipe.errors import ColumnNotFound, ExpressionError, GpupipeError

__all__ = ["Source", "Span"]

_WIDTH = 100
_Error = TypeVar("_Error", bound=GpupipeError)


class Span(NamedTuple):
    """Part of the text, in characters; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """Expression text and its owner, for messages.

    Args:
        text: lines end in a line feed.
        where: the step or parameter the expression was given to.
    """

    text: str
    where: str

    def slice(self, span: Span) -> str:
        """Return the text of a part."""
        return self.text[span.start : span.end]

    def error(self, span: Span, problem: str, *, expected: str, remedy: str, **got: Any) -> ExpressionError:
        """Build an error whose last lines show the text and mark the part."""
        return self._pointed(ExpressionError(self.where, problem, expected=expected, remedy=remedy, **got), span)

    def no_column(self, span: Span, name: str, names: Iterable[str]) -> ColumnNotFound:
        """Build the error for a column that is not one of `names`."""
        return self._pointed(ColumnNotFound.among(self.where, name, names), span)

    def _pointed(self, error: _Error, span: Span) -> _Error:
        error.args = (f"{error}\n{self._pointer(span)}",)
        return error

    def _pointer(self, span: Span) -> str:
        """Format the line a part begins in, shortened around it, with carets below the part."""
        first = self.text.rfind("\n", 0, span.start) + 1
        last = self.text.find("\n", first)
        last = len(self.text) if last < 0 else last
        left = max(first, min(span.start - _WIDTH // 2, last - _WIDTH))
        right = min(last, left + _WIDTH)
        before, after = "..." * (left > first), "..." * (right < last)
        marked = max(1, min(span.end, right) - span.start)
        shown = self.text[left:right].replace("\t", " ")
        return f"    {before}{shown}{after}\n    {' ' * (len(before) + span.start - left)}{'^' * marked}"
