"""Expressions: Python's syntax tree converted to ours by an allow list; anything else is an error that points at it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any

from gpupipe.errors import ExpressionError
from gpupipe.expressions.dtypes import FUNCTIONS, closest, find_zones, infer_dtype
from gpupipe.expressions.tree import (
    EPOCH,
    Comparison,
    Constant,
    Name,
    Node,
    Operation,
    Source,
    Span,
    has_offset,
    microseconds,
)
from gpupipe.schema import FLOATS, INTEGERS, Schema
from gpupipe.support.text import format_count

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


def _python_tree(source: Source) -> ast.expr:
    """Parse the text with Python's parser."""
    if len(source.text) > _MAX_LENGTH:
        problem, remedy = f"{len(source.text)} characters are too many", "several expressions in Derive, or a Join"
        raise source.error(Span(0, 1), problem, f"at most {_MAX_LENGTH}", f"{remedy} for a long list")
    try:
        return ast.parse(source.text, mode="eval").body
    except SyntaxError as error:
        raise _syntax_error(source, error) from None
    except (ValueError, MemoryError, RecursionError):  # characters no source may hold; nested too deep
        raise source.error(Span(0, 1), "this cannot be read", ALLOWED, "a shorter expression") from None


def _syntax_error(source: Source, error: SyntaxError) -> ExpressionError:
    if not source.text:
        return source.error(Span(0, 1), "the text is empty", ALLOWED, "'distance > 200'")
    lines = source.text.split("\n")
    row = min((error.lineno or 1) - 1, len(lines) - 1)
    start = sum(len(line) + 1 for line in lines[:row]) + max(0, (error.offset or 1) - 1)
    length = (error.end_offset or 0) - (error.offset or 0) if error.end_lineno == error.lineno else 1
    remedy = "Python's signs: == and or not; names that are no identifiers as col('dep delay')"
    mended = source.text
    for typo, sign in _TYPOS:
        mended = re.sub(typo, sign, mended)
    for candidate in (f"({mended})", re.sub(" +", " ", mended)):
        remedy = candidate if _is_python(candidate) else remedy
    return source.error(Span(start, start + max(1, length)), f"not an expression ({error.msg})", ALLOWED, remedy)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


_SIGNS: dict[type[ast.operator], tuple[str, str]] = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or")}


def _bitwise_error(item: ast.expr, source: Source, span_of: Callable[[ast.expr], Span]) -> ExpressionError | None:
    """Build the error for & | ^ ~ in a node or between a comparison's operands, with corrected text; None without."""
    span, trapped = span_of(item), isinstance(item, ast.Compare)
    if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Invert):
        inner = source.slice(span_of(item.operand))
        negated = f"not ({inner})" if isinstance(item.operand, ast.Compare | ast.BoolOp | ast.BinOp) else f"not {inner}"
        return source.error(span, "`~` is no negation here", "`not`", _replace_part(source, span, negated))
    operands = [item]
    if isinstance(item, ast.Compare):
        operands = [part for part in (item.left, *item.comparators) if not _is_wrapped(source.text, span_of(part))]
    signs = [sign for operand in operands for sign in _list_operations(operand)]
    if not signs:
        return None
    first = signs[0]
    if isinstance(first.op, ast.BitXor):
        expected = "`!=` between conditions, `**` for powers"
        return source.error(span_of(first), "`^` is not allowed", expected, "(a) != (b)")
    sign, word = _SIGNS[type(first.op)]
    start = source.text.index(sign, span_of(first.left).end)
    problem = f"`{sign}` binds tighter than comparisons" if trapped else f"`{sign}` does not join conditions"
    remedy = _replace_part(source, span, _correct_part(source, span, signs, span_of))
    return source.error(Span(start, start + 1), problem, f"`{word}`", remedy)


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
    return text if text.isidentifier() or (text[:1] == "(" and text[-1:] == ")") else f"({text})"


def _replace_part(source: Source, span: Span, part: str) -> str:
    """Return the whole text with the corrected part if Python parses it; else only the advice."""
    whole = f"{source.text[: span.start]}{part}{source.text[span.end :]}"
    return whole if _is_python(whole) else "(a < 6) or (b > 2), with `and`, `or`, `not` in place of & | ~"


_MAX_DEPTH = 100  # operations inside one another; each costs a few frames of Python's stack, and there are 1000

_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_ARITHMETIC |= {ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
_COMPARISONS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<="}
_COMPARISONS |= {ast.Gt: ">", ast.GtE: ">="}
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    **dict.fromkeys(
        (ast.DictComp, ast.GeneratorExp, ast.ListComp, ast.SetComp), ("a comprehension", "in [...] with constants")
    ),
    ast.Attribute: ("a dot", "col('a.b') for a column with a dot in its name"),
    ast.BinOp: ("this sign", "+ - * / // % **"),
    ast.Dict: ("{...}", "where(condition, x, y)"),
    ast.IfExp: ("if ... else", "where(condition, x, y)"),
    ast.JoinedStr: ("an f-string", "a plain string"),
    ast.Lambda: ("a lambda", "Map(fn, reads=..., adds=...)"),
    ast.List: ("a list", "x in [...]"),
    ast.NamedExpr: ("an assignment", "another column in Derive"),
    ast.Set: ("{...}", "x in [...]"),
    ast.Starred: ("a star", "the values one by one"),
    ast.Subscript: ("[...] behind a value", "one column per value"),
    ast.Tuple: ("a comma", "one expression per column"),
    ast.UnaryOp: ("unary +", "the value itself"),
}


class _Reader:
    """Converter of `ast` nodes to ours; raises for others."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: list[tuple[int, list[int] | None]] = []
        start = 0
        for line in source.text.split("\n"):
            # `ast` counts columns in bytes of UTF-8.
            chars = None if line.isascii() else [i for i, char in enumerate(line) for _ in char.encode()] + [len(line)]
            self._lines.append((start, chars))
            start += len(line) + 1

    def node(self, item: ast.expr, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            expected = f"{_MAX_DEPTH} levels at most"
            raise self._error(item, "nested too deep", expected, "several expressions in Derive")
        match item:
            case ast.Constant():
                return self._constant(item, item.value)
            case ast.Name():
                span = self._span(item)
                return Name(self._source.slice(span), span)  # `ast` would normalise its characters
            case ast.BoolOp():
                return self._operation("and" if isinstance(item.op, ast.And) else "or", item.values, item, depth)
            case ast.UnaryOp():
                return self._unary(item, depth)
            case ast.BinOp() if type(item.op) in _ARITHMETIC:
                return self._operation(_ARITHMETIC[type(item.op)], [item.left, item.right], item, depth)
            case ast.Compare():
                return self._compare(item, depth)
            case ast.Call():
                return self._call(item, depth)
        raise self._refusal(item)

    def _operation(self, name: str, operands: list[ast.expr], item: ast.expr, depth: int) -> Operation:
        return Operation(name, tuple(self.node(operand, depth + 1) for operand in operands), self._span(item))

    def _constant(self, item: ast.expr, value: object) -> Constant:
        span = self._span(item)
        match value:
            case bool():
                return Constant(value, "bool", span)
            case int() if -(2**63) <= value < 2**63:
                return Constant(value, "int64", span)
            case int() if 0 < value < 2**64:
                return Constant(value, "uint64", span)
            case float() if abs(value) < float("inf"):
                return Constant(value, "float64", span)
            case str():
                return Constant(value, "string", span)
            case None:
                error = "None is no value", "a test for missing values", "isnull(x) or notnull(x)"
            case int() | float():
                error = (
                    "the number is too large",
                    "an int64, a uint64 or a float64",
                    "a smaller one, or 1e19 for a float",
                )
            case _:
                error = "not a constant of this language", "numbers, strings, True, False", '"text" or 1.5'
        raise self._error(item, *error)

    def _unary(self, item: ast.UnaryOp, depth: int) -> Node:
        match item.op, item.operand:
            case ast.Not(), operand:
                return self._operation("not", [operand], item, depth)
            case ast.USub(), ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._constant(item, -value)
            case ast.USub(), operand:
                return self._operation("negative", [operand], item, depth)
        raise self._refusal(item)

    def _compare(self, item: ast.Compare, depth: int) -> Node:
        operands = [item.left, *item.comparators]
        if any(isinstance(op, ast.Is | ast.IsNot) for op in item.ops):
            raise self._error(item, "`is` is not allowed", "a comparison", "isnull(x), notnull(x) or x == y")
        if (trap := _bitwise_error(item, self._source, self._span)) is not None:
            raise trap
        if isinstance(item.ops[0], ast.In | ast.NotIn) and len(item.ops) == 1:
            return self._is_in(item, depth)
        if any(type(op) not in _COMPARISONS for op in item.ops):
            raise self._error(item, "`in` inside a chain", "one comparison each", "(a < b) and (b in [...])")
        read = tuple(self.node(operand, depth + 1) for operand in operands)
        return Comparison(tuple(_COMPARISONS[type(op)] for op in item.ops), read, self._span(item))

    def _is_in(self, item: ast.Compare, depth: int) -> Node:
        values, expected, left = item.comparators[0], "constants in [...]", self._text(item.left)
        if not isinstance(values, ast.List | ast.Tuple | ast.Set):
            remedy = f"contains({self._text(values)}, {left}) for a part of a text"
            raise self._error(values, "`in` without a list", expected, remedy)
        read = [self.node(value, depth + 1) for value in values.elts]
        for value in read:
            if not isinstance(value, Constant):
                raise self._source.error(value.span, "not a constant", expected, f"{left} == ... or ...")
        span = self._span(item)
        found_in = Operation("in", (self.node(item.left, depth + 2), *read), span)
        return found_in if isinstance(item.ops[0], ast.In) else Operation("not", (found_in,), span)

    def _call(self, item: ast.Call, depth: int) -> Node:
        known = ", ".join([*FUNCTIONS, "col", "timestamp"])
        if isinstance(item.func, ast.Attribute):
            given = ", ".join(map(self._text, [item.func.value, *item.args]))
            remedy = f"{item.func.attr}({given})" if item.func.attr in FUNCTIONS else closest(item.func.attr)
            raise self._error(item.func, "methods cannot be called", f"a function: {known}", remedy)
        if not isinstance(item.func, ast.Name):
            raise self._error(item.func, "this cannot be called", f"a function: {known}", "its name, then (...)")
        name = self._text(item.func)
        if item.keywords:
            problem, first = f"{name} is called with a keyword", item.keywords[0].arg
            raise self._error(item, problem, "positions", closest(name), got=first)
        if name in ("col", "timestamp"):
            return self._special(name, item)
        if name not in FUNCTIONS:
            raise self._error(item.func, f"no function is called {name!r}", f"one of {known}", closest(name))
        least = len(FUNCTIONS[name].takes)
        most = least + len(FUNCTIONS[name].may_take)
        if not least <= len(item.args) <= most:
            problem = f"{name} is called with {format_count(len(item.args), 'argument')}"
            expected = format_count(least, "argument") if least == most else f"{least} or {most} arguments"
            raise self._error(item, problem, expected, f"{name}({FUNCTIONS[name].arguments})")
        return self._operation(name, item.args, item, depth)

    def _special(self, name: str, item: ast.Call) -> Node:
        span, remedy = self._span(item), closest(name)
        match item.args:
            case [ast.Constant(value=str() as text)] if name == "col":
                return Name(text, span)
            case [ast.Constant(value=str() as text)]:
                try:
                    return Constant(microseconds(text), "timestamp", span, has_offset(text))
                except ValueError:
                    remedy = 'timestamp("2013-10-01 06:00")'
                    raise self._error(item, "not a date or time", "ISO 8601", remedy, got=text) from None
            case [one] if name == "timestamp" and isinstance(column := self.node(one, 0), Name):
                remedy = f"T.Cast({{{column.name!r}: 'timestamp'}}) before"
        expected = "one string" + (", a column's name" if name == "col" else ", a date or time")
        raise self._error(item, f"{name} is called with something else", expected, remedy)

    def _refusal(self, item: ast.expr) -> ExpressionError:
        """Build the error for a part that is not in the allow list."""
        if (error := _bitwise_error(item, self._source, self._span)) is not None:
            return error
        what, remedy = _REFUSED.get(type(item), (type(item).__name__, "Map(fn, reads=..., adds=...)"))
        if isinstance(item, ast.Attribute):
            remedy = f"col({self._text(item)!r}) if that is a column's name"
        return self._error(item, f"{what} is not allowed", ALLOWED, remedy)

    def _error(self, item: ast.expr, problem: str, expected: str, remedy: str, **got: object) -> ExpressionError:
        return self._source.error(self._span(item), problem, expected, remedy, **got)

    def _text(self, item: ast.expr) -> str:
        return self._source.slice(self._span(item))

    def _span(self, item: ast.expr) -> Span:
        return Span(self._at(item.lineno, item.col_offset), self._at(item.end_lineno, item.end_col_offset))

    def _at(self, row: int | None, column: int | None) -> int:
        start, chars = self._lines[(row or 1) - 1]
        column = column or 0
        return start + (column if chars is None else chars[column])


_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, repr=False)
class Expression:
    """Parsed expression, created by `parse`; `reads` are the columns it reads, each once, in the order of the text.

    Example:
        >>> parse("6 <= hour < 22 and dep_delay > 15").reads
        ('hour', 'dep_delay')
    """

    source: Source
    tree: Node = field(compare=False)
    reads: tuple[str, ...] = field(compare=False)

    @property
    def text(self) -> str:
        """The expression as it was written, without space around it."""
        return self.source.text

    def check(self, schema: Schema) -> str:
        """Return the dtype of the values, one of `schema.DTYPES`.

        Raises:
            ColumnNotFound: a column is not in the schema; the closest name is offered.
            ExpressionError: types that do not go together; names the column and points at the place.
        """
        found = infer_dtype(self.tree, {item.name: item.dtype for item in schema}, self.source)
        find_zones(self.tree, schema, self.source)
        return found

    def check_condition(self, schema: Schema) -> None:
        """Raise `ExpressionError` unless the values are true or false; errors as of `check`."""
        found, text = self.check(schema), self.text
        if found == "bool":
            return
        condition = f"({text}) > 0" if found in (*INTEGERS, *FLOATS) else f"notnull({text})"
        condition = f"({text}) == '...'" if found == "string" else condition
        where = self.source.where
        expected, remedy = "a condition, true or false per row", f"{where}({condition!r})"
        raise ExpressionError(f"{where}({text!r})", f"the expression gives {found}", expected=expected, remedy=remedy)

    def conjuncts(self) -> list[tuple[str, str, Any]]:
        """Return simple conditions, to test against statistics, that all rows satisfy for which the expression is true.

        A condition is a column, one of `== != < <= > >= in notnull` and a constant (a tuple for `in`, None for
        `notnull`); a timestamp is a `datetime`, but text that is compared with a time column stays text. A row with a
        missing value satisfies none. Parts that are not that simple are left out.

        Example:
            >>> parse("6 <= hour < 22 and origin in ['JFK'] and log(distance) > 5").conjuncts()
            [('hour', '>=', 6), ('hour', '<', 22), ('origin', 'in', ('JFK',))]
        """
        return list(_conjuncts(self.tree))

    def __repr__(self) -> str:
        return f"parse({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.source.text, self.source.where)


def parse(text: str, where: str = "expression") -> Expression:
    """Read an expression; `where` is what it was given to, for messages.

    Raises:
        ExpressionError: it does not parse, or asks for something that is not allowed; points at the place.

    Memory: the last few hundred are kept, so that parsing again costs nothing.

    Example:
        >>> print(parse("dep_delay > 15 & distance < 500", "Filter"))
        Traceback (most recent call last):
        ...
        gpupipe.errors.ExpressionError: Filter: `&` binds tighter than comparisons.
        Expected `and`.
        Try: (dep_delay > 15) and (distance < 500)
            dep_delay > 15 & distance < 500
                           ^
    """
    if not isinstance(text, str):
        raise ExpressionError(where, "not an expression", got=text, expected="text", remedy="'dep_delay > 15'")
    return _parse(text.replace("\r\n", "\n").replace("\r", "\n").strip(" \t\n\f\ufeff"), where)


@lru_cache(maxsize=512)
def _parse(text: str, where: str) -> Expression:
    source = Source(text, where)
    read = _python_tree(source)
    tree = _Reader(source).node(read, 0)
    return Expression(source, tree, tuple(dict.fromkeys(_iter_names(tree))))


def _iter_names(node: Node) -> Iterator[str]:
    """Yield the columns a tree reads, from left to right, with repeats."""
    if isinstance(node, Name):
        yield node.name
    elif isinstance(node, Comparison | Operation):
        for operand in node.operands:
            yield from _iter_names(operand)


def _conjuncts(node: Node) -> Iterator[tuple[str, str, Any]]:
    match node:
        case Operation("and", operands):
            for operand in operands:
                yield from _conjuncts(operand)
        case Comparison(operators, operands):
            for operator, pair in zip(operators, pairwise(operands), strict=True):
                match pair:
                    case Name(name), Constant():
                        yield name, operator, _plain(pair[1])
                    case Constant(), Name(name):
                        yield name, _FLIPPED[operator], _plain(pair[0])
        case Operation("in", (Name(name), *constants)):
            yield name, "in", tuple(_plain(item) for item in constants if isinstance(item, Constant))
        case Operation("notnull", (Name(name),)):
            yield name, "notnull", None
        case Name(name):
            yield name, "==", True


def _plain(constant: Constant) -> Any:
    """Convert a constant for statistics: a whole float to an integer, which compares exactly with large integers."""
    value = constant.value
    if constant.dtype == "timestamp":
        return EPOCH + timedelta(microseconds=int(value))
    return int(value) if isinstance(value, float) and value.is_integer() else value
