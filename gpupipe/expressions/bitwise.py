"""Errors for & and | without parentheses: in Python `a < 6 | b > 2` means `a < (6 | b) > 2`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gpupipe.errors import ExpressionError
from gpupipe.expressions.source import Source, Span

__all__ = ["bitwise_error"]

_SIGNS: dict[type[ast.operator], tuple[str, str]] = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or")}


def bitwise_error(item: ast.expr, source: Source, span_of: Callable[[ast.expr], Span]) -> ExpressionError | None:
    """Build the error for & | ^ ~ in a node or between a comparison's operands, with corrected text; None without them.

    Example:
        >>> text = "a < 6 | b > 2"
        >>> node = ast.parse(text, mode="eval").body
        >>> bitwise_error(node, Source(text, "Filter"), lambda part: Span(part.col_offset, part.end_col_offset)).remedy
        '(a < 6) or (b > 2)'
    """
    if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Invert):
        span = span_of(item)
        negated = f"not {source.slice(span_of(item.operand))}"
        if isinstance(item.operand, ast.Compare | ast.BoolOp | ast.BinOp):
            negated = f"not ({negated[4:]})"
        return source.error(
            span, "`~` is no negation here", expected="`not`", remedy=_replace_part(source, span, negated)
        )
    operands = [item]
    if isinstance(item, ast.Compare):
        operands = [part for part in (item.left, *item.comparators) if not _is_wrapped(source.text, span_of(part))]
    signs = [sign for operand in operands for sign in _list_operations(operand)]
    if not signs:
        return None
    first = signs[0]
    if isinstance(first.op, ast.BitXor):
        return source.error(
            span_of(first),
            "`^` is not allowed",
            expected="`!=` between conditions, `**` for powers",
            remedy="(a) != (b)",
        )
    sign, word = _SIGNS[type(first.op)]
    start = source.text.index(sign, span_of(first.left).end)
    trapped = isinstance(item, ast.Compare)
    problem = f"`{sign}` binds tighter than comparisons" if trapped else f"`{sign}` does not join conditions"
    remedy = _replace_part(source, span_of(item), _correct_part(source, span_of(item), signs, span_of))
    return source.error(Span(start, start + 1), problem, expected=f"`{word}`", remedy=remedy)


def _is_wrapped(text: str, span: Span) -> bool:
    return text[: span.start].rstrip().endswith("(") and text[span.end :].lstrip().startswith(")")


def _list_operations(item: ast.expr) -> list[ast.BinOp]:
    """List the operations joined by & | ^ in a node, from left to right."""
    if isinstance(item, ast.BinOp) and isinstance(item.op, ast.BitAnd | ast.BitOr | ast.BitXor):
        return [*_list_operations(item.left), item, *_list_operations(item.right)]
    return []


def _correct_part(source: Source, span: Span, signs: list[ast.BinOp], span_of: Callable[[ast.expr], Span]) -> str:
    """Rewrite the part: cut at the operators, pieces in parentheses, joined by words."""
    pieces, start = [], span.start
    for item in signs:
        sign, word = _SIGNS.get(type(item.op), ("^", "!="))
        end = source.text.index(sign, span_of(item.left).end)
        pieces += [_parenthesize(source.text[start:end].strip()), word]
        start = end + 1
    return " ".join([*pieces, _parenthesize(source.text[start : span.end].strip())])


def _parenthesize(text: str) -> str:
    """Put the text in parentheses, unless it has them or is a single word."""
    return text if text.isidentifier() or (text[:1] == "(" and text[-1:] == ")") else f"({text})"


def _replace_part(source: Source, span: Span, part: str) -> str:
    """Return the whole text with the corrected part if Python parses it; else only the advice."""
    whole = f"{source.text[: span.start]}{part}{source.text[span.end :]}"
    try:
        ast.parse(whole, mode="eval")
    except SyntaxError:
        return "(a < 6) or (b > 2), with `and`, `or`, `not` in place of & | ~"
    return whole
