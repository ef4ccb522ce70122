"""Syntax of expressions: Python's, read by `ast` and converted by an allow list; nothing is executed."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from math import inf
from typing import Any

from gpupipe.errors import ExpressionError
from gpupipe.expressions.functions import FUNCTIONS, NAMES, describe_call, suggest_function
from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Null, Operation, Source, Span
from gpupipe.support.text import format_count
from gpupipe.support.times import has_offset, parse_microseconds

ALLOWED = "columns, constants, + - * / // % **, comparisons, and or not, in [...] and functions"
_MAX_LENGTH = 100_000  # characters
_MOST_REMEDIES = 8  # that are followed one after the other
_MAX_DEPTH = 100  # operations inside one another; each costs a few frames of Python's stack, and there are 1000
_TYPOS = [(r"&&", " and "), (r"\|\|", " or "), (r"<>", "!="), (r"(?<![<>=!])=(?!=)", "==")]
_TYPOS += [(rf"\b{word.upper()}\b", word) for word in ("and", "or", "not", "in")]
_BITS: dict[type[Any], tuple[str, str]] = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.BitXor: ("^", "!=")}
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


def _is_python(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _list_bit_operations(item: ast.expr) -> list[ast.BinOp]:
    """List the operations joined by & | ^ in a node, from left to right."""
    if isinstance(item, ast.BinOp) and type(item.op) in _BITS:
        return [*_list_bit_operations(item.left), item, *_list_bit_operations(item.right)]
    return []


def _parenthesize(text: str) -> str:
    return text if text.isidentifier() or (text[:1] == "(" and text[-1:] == ")") else f"({text})"


class Reader:
    """Converter of Python's syntax tree to ours, by an allow list; anything else is an error that points at it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: list[tuple[int, list[int] | None]] = []
        start = 0
        for line in source.text.split("\n"):
            # `ast` counts columns in bytes of UTF-8.
            chars = None
            if not line.isascii():
                widths = (len(char.encode("utf-8", "surrogatepass")) for char in line)
                chars = [i for i, width in enumerate(widths) for _ in range(width)] + [len(line)]
            self._lines.append((start, chars))
            start += len(line) + 1

    def tree(self) -> Node:
        """Convert the whole text."""
        source = self._source
        if len(source.text) > _MAX_LENGTH:
            problem, remedy = f"{len(source.text)} characters are too many", "several expressions in Derive, or a Join"
            raise source.error(Span(0, 1), problem, f"at most {_MAX_LENGTH}", f"{remedy} for a long list")
        try:
            item = ast.parse(source.text, mode="eval").body
        except SyntaxError as error:
            raise self._syntax_error(error) from None
        except (ValueError, MemoryError, RecursionError):  # characters no source may hold; nested too deep
            raise source.error(Span(0, 1), "this cannot be read", ALLOWED, "a shorter expression") from None
        return self._node(item, 0)

    def _syntax_error(self, error: SyntaxError) -> ExpressionError:
        text = self._source.text
        if not text:
            return self._source.error(Span(0, 1), "the text is empty", ALLOWED, "'distance > 200'")
        row = min((error.lineno or 1), len(self._lines)) - 1
        start = self._lines[row][0] + max(0, (error.offset or 1) - 1)
        length = (error.end_offset or 0) - (error.offset or 0) if error.end_lineno == error.lineno else 1
        remedy = "Python's signs: == and or not; names that are no identifiers as col('dep delay')"
        mended = text
        for typo, sign in _TYPOS:
            mended = re.sub(typo, sign, mended)
        for candidate in (f"({mended})", re.sub(" +", " ", mended)):
            remedy = self._follow_remedies(candidate) if _is_python(candidate) else remedy
        span = Span(start, start + max(1, length))
        return self._source.error(span, f"not an expression ({error.msg})", ALLOWED, remedy)

    def _follow_remedies(self, text: str) -> str:
        """Return what errors make of a text until it can be read; the text where they do not get there.

        `a == 1 & b > 2` can still not be read; its error's remedy, `(a == 1) and (b > 2)`, can.
        """
        candidate = text
        for _ in range(_MOST_REMEDIES):
            try:
                Reader(replace(self._source, text=candidate)).tree()
            except ExpressionError as error:
                if not _is_python(error.remedy):
                    break
                candidate = error.remedy
            else:
                return candidate
        return text

    def _node(self, item: ast.expr, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            expected = f"{_MAX_DEPTH} levels at most"
            raise self._error(item, "nested too deep", expected, "several expressions in Derive")
        match item:
            case ast.Constant(value):
                return self._constant(item, value)
            case ast.Name():
                span = self._span(item)
                return Name(self._source.slice(span), span)  # `ast` would normalise its characters
            case ast.BoolOp(op, values):
                return self._operation("and" if isinstance(op, ast.And) else "or", values, item, depth)
            case ast.UnaryOp(ast.Not(), operand):
                return self._operation("not", [operand], item, depth)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
                return self._constant(item, -value)
            case ast.UnaryOp(ast.USub(), operand):
                return self._operation("negative", [operand], item, depth)
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return self._operation(_ARITHMETIC[type(op)], [left, right], item, depth)
            case ast.Compare():
                return self._comparison(item, depth)
            case ast.Call():
                return self._call(item, depth)
        self._refuse_bits(item)
        what, remedy = _REFUSED.get(type(item), (type(item).__name__, "Map(fn, reads=..., adds=...)"))
        if isinstance(item, ast.Attribute):
            remedy = f"col({self._text(item)!r}) if that is a column's name"
        raise self._error(item, f"{what} is not allowed", ALLOWED, remedy)

    def _operation(self, name: str, operands: list[ast.expr], item: ast.expr, depth: int) -> Operation:
        return Operation(name, tuple(self._node(operand, depth + 1) for operand in operands), self._span(item))

    def _constant(self, item: ast.expr, value: object) -> Constant | Null:
        span = self._span(item)
        match value:
            case bool():
                return Constant(value, "bool", span)
            case int() if -(2**63) <= value < 2**63:
                return Constant(value, "int64", span)
            case int() if 0 < value < 2**64:
                return Constant(value, "uint64", span)
            case float() if abs(value) < inf:
                return Constant(value, "float64", span)
            case str():
                return Constant(value, "string", span)
            case None:
                return Null(span)
            case int() | float():
                expected = "an int64, a uint64 or a float64"
                error = "the number is too large", expected, "a smaller one, or 1e19 for a float"
            case _:
                error = "not a constant of this language", "numbers, strings, True, False", '"text" or 1.5'
        raise self._error(item, *error)

    def _comparison(self, item: ast.Compare, depth: int) -> Node:
        if any(isinstance(op, ast.Is | ast.IsNot) for op in item.ops):
            raise self._error(item, "`is` is not allowed", "a comparison", "isnull(x), notnull(x) or x == y")
        self._refuse_bits(item)
        if isinstance(item.ops[0], ast.In | ast.NotIn) and len(item.ops) == 1:
            return self._is_in(item, depth)
        if any(type(op) not in _COMPARISONS for op in item.ops):
            raise self._error(item, "`in` inside a chain", "one comparison each", "(a < b) and (b in [...])")
        operands = tuple(self._node(operand, depth + 1) for operand in (item.left, *item.comparators))
        return Comparison(tuple(_COMPARISONS[type(op)] for op in item.ops), operands, self._span(item))

    def _is_in(self, item: ast.Compare, depth: int) -> Node:
        values, expected, left = item.comparators[0], "constants in [...]", self._text(item.left)
        if not isinstance(values, ast.List | ast.Tuple | ast.Set):
            remedy = f"contains({self._text(values)}, {left}) for a part of a text"
            raise self._error(values, "`in` without a list", expected, remedy)
        read = [self._node(value, depth + 1) for value in values.elts]
        for value in read:
            if isinstance(value, Null):
                remedy = f"isnull({left}) or {left} in [...]"
                raise self._source.error(value.span, "None is equal to nothing", expected, remedy)
            if not isinstance(value, Constant):
                raise self._source.error(value.span, "not a constant", expected, f"{left} == ... or ...")
        span = self._span(item)
        found_in = Operation("in", (self._node(item.left, depth + 2), *read), span)
        return found_in if isinstance(item.ops[0], ast.In) else Operation("not", (found_in,), span)

    def _call(self, item: ast.Call, depth: int) -> Node:
        known = ", ".join(NAMES)
        if isinstance(item.func, ast.Attribute):
            given = ", ".join(map(self._text, [item.func.value, *item.args]))
            name = item.func.attr
            remedy = f"{name}({given})" if name in FUNCTIONS else suggest_function(name)
            raise self._error(item.func, "methods cannot be called", f"a function: {known}", remedy)
        if not isinstance(item.func, ast.Name):
            raise self._error(item.func, "this cannot be called", f"a function: {known}", "its name, then (...)")
        name = self._text(item.func)
        if item.keywords:
            problem, first = f"{name} is called with a keyword", item.keywords[0].arg
            raise self._error(item, problem, "positions", suggest_function(name), got=first)
        if name in ("col", "timestamp"):
            return self._named(name, item)
        if name not in FUNCTIONS:
            problem = f"no function is called {name!r}"
            raise self._error(item.func, problem, f"one of {known}", suggest_function(name))
        self._check_count(name, item)
        return self._operation(name, item.args, item, depth)

    def _check_count(self, name: str, item: ast.Call) -> None:
        """Raise for a number of arguments that no form of the function takes."""
        count, forms = len(item.args), FUNCTIONS[name]
        if any(form.list_kinds(count) is not None for form in forms):
            return
        counts = sorted({number for form in forms for number in range(form.least, len(form.takes) + 1)})
        expected = format_count(counts[0], "argument") if len(counts) == 1 else f"{counts[0]} or {counts[-1]} arguments"
        expected = f"{counts[0]} arguments or more" if forms[0].repeats else expected
        problem = f"{name} is called with {format_count(count, 'argument')}"
        remedy = (
            f"{name}imum(x, y) of numbers, {describe_call(name)}" if name in ("min", "max") else describe_call(name)
        )
        raise self._error(item, problem, expected, remedy)

    def _named(self, name: str, item: ast.Call) -> Node:
        """Convert a call of `col` or `timestamp`."""
        span, remedy = self._span(item), suggest_function(name)
        match item.args:
            case [ast.Constant(str() as text)] if name == "col":
                return Name(text, span)
            case [ast.Constant(str() as text)]:
                try:
                    return Constant(parse_microseconds(text), "timestamp", span, has_offset(text))
                except ValueError:
                    remedy = 'timestamp("2013-10-01 06:00")'
                    raise self._error(item, "not a date or time", "ISO 8601", remedy, got=text) from None
            case [one] if name == "timestamp" and isinstance(column := self._node(one, 0), Name):
                remedy = f"T.Cast({{{column.name!r}: 'timestamp'}}) before"
        expected = "one string" + (", a column's name" if name == "col" else ", a date or time")
        raise self._error(item, f"{name} is called with something else", expected, remedy)

    def _refuse_bits(self, item: ast.expr) -> None:
        """Raise for & | ^ ~ in a node or between a comparison's operands, with the corrected text."""
        text, span, operands = self._source.text, self._span(item), [item]
        if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Invert):
            inner, is_joined = self._text(item.operand), isinstance(item.operand, ast.Compare | ast.BoolOp | ast.BinOp)
            remedy = self._replace(span, f"not ({inner})" if is_joined else f"not {inner}")
            raise self._error(item, "`~` is no negation here", "`not`", remedy)
        if isinstance(item, ast.Compare):
            operands = [part for part in (item.left, *item.comparators) if not self._is_wrapped(part)]
        found = [one for operand in operands for one in _list_bit_operations(operand)]
        if not found:
            return
        if isinstance(found[0].op, ast.BitXor):
            expected = "`!=` between conditions, `**` for powers"
            raise self._error(found[0], "`^` is not allowed", expected, "(a) != (b)")
        signs, words = zip(*(_BITS[type(one.op)] for one in found), strict=True)
        places = [text.index(sign, self._span(one.left).end) for one, sign in zip(found, signs, strict=True)]
        ends = zip([span.start, *(place + 1 for place in places)], [*places, span.end], strict=True)
        pieces = [_parenthesize(text[start:end].strip()) for start, end in ends]
        corrected = " ".join([pieces[0], *(f"{word} {piece}" for word, piece in zip(words, pieces[1:], strict=True))])
        what = "binds tighter than comparisons" if isinstance(item, ast.Compare) else "does not join conditions"
        sign = Span(places[0], places[0] + 1)
        raise self._source.error(sign, f"`{signs[0]}` {what}", f"`{words[0]}`", self._replace(span, corrected))

    def _is_wrapped(self, item: ast.expr) -> bool:
        text, span = self._source.text, self._span(item)
        return text[: span.start].rstrip().endswith("(") and text[span.end :].lstrip().startswith(")")

    def _replace(self, span: Span, part: str) -> str:
        """Return the whole text with the corrected part if Python parses it; else only the advice."""
        whole = f"{self._source.text[: span.start]}{part}{self._source.text[span.end :]}"
        return whole if _is_python(whole) else "(a < 6) or (b > 2), with `and`, `or`, `not` in place of & | ~"

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
