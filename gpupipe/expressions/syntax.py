"""Python's parser applied to one expression, its errors converted to ours. Nothing is compiled or run."""

from __future__ import annotations

import ast
import re

from gpupipe.errors import ExpressionError
from gpupipe.expressions.source import Source, Span

__all__ = ["ALLOWED", "python_tree"]

ALLOWED = "columns, constants, + - * / // % **, comparisons, and or not, in [...] and functions"
_MAX_LENGTH = 100_000  # characters
_TYPOS = (
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"<>", "!="),
    (r"(?<![<>=!])=(?!=)", "=="),
    (r"\bAND\b", "and"),
    (r"\bOR\b", "or"),
    (r"\bNOT\b", "not"),
    (r"\bIN\b", "in"),
)


def python_tree(source: Source) -> ast.expr:
    """Parse the text with Python's parser.

    Raises:
        ExpressionError: no expression, or one that is too long or too deep to be read.
    """
    if len(source.text) > _MAX_LENGTH:
        raise source.error(
            Span(0, 1),
            f"{len(source.text)} characters are too many",
            expected=f"at most {_MAX_LENGTH}",
            remedy="several expressions in Derive, or a Join for a long list",
        )
    try:
        return ast.parse(source.text, mode="eval").body
    except SyntaxError as error:
        raise _syntax_error(source, error) from None
    except (ValueError, MemoryError, RecursionError):  # characters no source may hold; nested too deep
        raise source.error(Span(0, 1), "this cannot be read", expected=ALLOWED, remedy="a shorter expression") from None


def _syntax_error(source: Source, error: SyntaxError) -> ExpressionError:
    if not source.text:
        return source.error(Span(0, 1), "the text is empty", expected=ALLOWED, remedy="'distance > 200'")
    lines = source.text.split("\n")
    row = min((error.lineno or 1) - 1, len(lines) - 1)
    start = sum(len(line) + 1 for line in lines[:row]) + max(0, (error.offset or 1) - 1)
    length = (error.end_offset or 0) - (error.offset or 0) if error.end_lineno == error.lineno else 1
    return source.error(
        Span(start, start + max(1, length)),
        f"not an expression ({error.msg})",
        expected=ALLOWED,
        remedy=_without_typos(source.text)
        or "Python's signs: == and or not; names that are no identifiers as col('dep delay')",
    )


def _without_typos(text: str) -> str | None:
    """Return the text with other languages' operators replaced, or its lines in parentheses, if Python parses that."""
    mended = text
    for typo, sign in _TYPOS:
        mended = re.sub(typo, sign, mended)
    for candidate in (re.sub(" +", " ", mended), f"({mended})"):
        try:
            ast.parse(candidate, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        return candidate
    return None
