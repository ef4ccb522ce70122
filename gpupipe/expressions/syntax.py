"""Syntax of expressions: Python's, read by `ast` and converted by an allow list; nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from gpupipe.backend.dates import DATE_FLAGS, DATE_PARTS
from gpupipe.errors import ExpressionError
from gpupipe.expressions.functions import FUNCTIONS, NAMES, describe_call
from gpupipe.expressions.spellings import (
    ACCESSORS,
    AGGREGATES,
    MISSING_WORDS,
    MODULES,
    NOTES,
    find_comment,
    means_time,
    mend_signs,
    name_keywords,
    parenthesize,
    suggest_aggregate,
    suggest_function,
    write_call,
    write_date,
)
from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Null, Operation, Source, Span
from gpupipe.support.text import format_count, refer_to, write_cast, write_time_formats
from gpupipe.support.times import has_offset, parse_microseconds

ALLOWED = "columns, constants, + - * / // % **, comparisons, and or not, in [...] and functions"
_MAX_LENGTH = 100_000  # characters
_MOST_REMEDIES = 8  # that are followed one after the other
_MAX_DEPTH = 100  # operations inside one another; each costs a few frames of Python's stack, and there are 1000
_BITS: dict[type[Any], tuple[str, str]] = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.BitXor: ("^", "!=")}
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_ARITHMETIC |= {ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
_COMPARISONS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<="}
_COMPARISONS |= {ast.Gt: ">", ast.GtE: ">="}
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    **dict.fromkeys(
        (ast.DictComp, ast.GeneratorExp, ast.ListComp, ast.SetComp), ("a comprehension", "in [...] with constants")
    ),
    ast.Attribute: ("a dot", ""),
    ast.BinOp: ("this sign", "+ - * / // % **"),
    ast.Dict: ("{...}", "where(condition, x, y)"),
    ast.IfExp: ("if ... else", ""),
    ast.JoinedStr: ("an f-string", "a plain string"),
    ast.Lambda: ("a lambda", "Map(fn, reads=..., adds=...)"),
    ast.List: ("a list", "x in [...]"),
    ast.NamedExpr: ("an assignment", "another column in Derive"),
    ast.Set: ("{...}", "x in [...]"),
    ast.Starred: ("a star", "the values one by one"),
    ast.Subscript: ("[...] behind a value", "slice(text, start, stop), split(text, ',', 0), pre.ListSlice of a list"),
    ast.Tuple: ("a comma", "one expression per column"),
    ast.UnaryOp: ("unary +", ""),
}
_ELSEWHERE = MODULES | ACCESSORS
_TIME_PARTS = frozenset({*DATE_PARTS, *DATE_FLAGS, "weekday", "day_of_week", "date"})


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


def _list_keyword_values(item: ast.Call) -> list[ast.expr]:
    """List what a call gives by keywords, but for the `axis`, which columns of a row have none of."""
    return [keyword.value for keyword in item.keywords if keyword.arg != "axis"]


class Reader:
    """Converter of Python's syntax tree to ours, by an allow list; anything else is an error that points at it."""

    def __init__(self, source: Source, *, is_remedy: bool = False) -> None:
        self._source, self._is_remedy = source, is_remedy
        self._mended: str | None = None
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
        if (comment := find_comment(source.text)) is not None:
            raise self._refuse_comment(comment)
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
        mended = mend_signs(text)
        for candidate in (f"({mended})", mended, name_keywords(text)):
            remedy = self._mend_rest(candidate) if _is_python(candidate) else remedy
        span = Span(start, start + max(1, length))
        return self._source.error(span, f"not an expression ({error.msg})", ALLOWED, remedy)

    def _refuse_comment(self, start: int) -> ExpressionError:
        """Build the error of a `#`, which is part of a column's name or begins what Python would not read."""
        text = self._source.text
        mended, code = mend_signs(text), text[:start].strip()
        is_name = find_comment(mended) is None and _is_python(mended)
        remedy = self._mend_rest(mended) if is_name else "a column's name with # in it as col('ID#')"
        remedy += f"; without a comment {code!r}" if not is_name and _is_python(code) else ""
        problem, expected = "nothing is read from `#` on", "no comment, and names with # in quotation marks"
        return self._source.error(Span(start, start + 1), problem, expected, remedy)

    def _mend_rest(self, text: str) -> str:
        """Mend what else an expression that can nearly be read has of other languages; return it as it is otherwise.

        `a == 1 & b > 2` can still not be read; what its error would make of it, `(a == 1) and (b > 2)`, can.
        """
        candidate = text
        for _ in range(_MOST_REMEDIES):
            reader = Reader(replace(self._source, text=candidate), is_remedy=True)
            try:
                reader.tree()
            except ExpressionError:
                if reader._mended is None:
                    break
                candidate = reader._mended
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
                self._refuse_values(item)
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
        also = self._suggest_part(item)
        raise self._refuse(item, f"{what} is not allowed", ALLOWED, self._mend(item), remedy, also=also)

    def _refuse_values(self, item: ast.BoolOp) -> None:
        """Raise for `x == "a" or "b"`, where `x in ["a", "b"]` is meant."""
        first, *constants = item.values
        if not all(isinstance(value, ast.Constant) and not isinstance(value.value, bool) for value in constants):
            return
        match first:
            case ast.Compare(left, [ast.Eq() | ast.NotEq() as sign], [ast.Constant() as constant]):
                values = ", ".join(map(self._text, [constant, *constants]))
                mended = f"{self._text(left)} {'in' if isinstance(sign, ast.Eq) else 'not in'} [{values}]"
                problem = "a value stands alone, and nothing is compared with it"
                raise self._refuse(item, problem, "a condition", mended, at=constants[0])

    def _mend(self, item: ast.expr) -> str | None:
        """Write what a node of another language means; None where it means nothing here."""
        match item:
            case ast.IfExp():
                return f"where({', '.join(map(self._text, (item.test, item.body, item.orelse)))})"
            case ast.UnaryOp():
                return self._text(item.operand)
            case ast.Attribute(ast.BinOp() | ast.Attribute(attr="dt") as value, "days"):
                return f"({self._text(self._strip_accessor(value))}) // 86400"  # a difference of times is in seconds
            case ast.Attribute(ast.Attribute(value, accessor), name) if accessor in ACCESSORS:
                return write_call(name, [self._text(value)])
            case ast.Attribute(ast.Name(module), name) if module in MODULES:
                return name
            case ast.Attribute(value, name) if name in _TIME_PARTS:
                return write_call(name, [self._text(value)])
            case ast.Attribute(ast.Call() as value, name) if column := self._find_column(value):
                return f"col({f'{column}.{name}'!r})"
            case ast.Attribute():
                return f"col({self._text(item)!r})"
            case ast.Subscript(ast.Name(module), ast.Constant(str() as name)) if module in MODULES:
                return f"col({name!r})"
            case ast.Subscript(value) if ends := self._find_ends(item):
                return f"slice({self._text(self._strip_accessor(value))}, {ends})"
        return None

    def _find_ends(self, item: ast.Subscript) -> str:
        """Return the start and the end of what is taken; nothing where it has none, or is counted from the end."""
        match item.slice:
            case ast.Constant(int() as start) if start >= 0:
                return f"{start}, {start + 1}"
            case ast.Slice(start, ast.expr() as stop, None):
                return f"{'0' if start is None else self._text(start)}, {self._text(stop)}"
        return ""

    def _suggest_part(self, item: ast.expr) -> str:
        """Suggest what takes elements of a list, or a field of a struct, if the node may be meant for them."""
        name, _, fields = self._text(item).partition(".")
        if isinstance(item, ast.Subscript) and isinstance(item.value, ast.Name) and (ends := self._find_ends(item)):
            return f" of text; of a list pre.ListSlice({ends}) among the steps of Features"
        if isinstance(item, ast.Attribute) and name.isidentifier() and not {name, *fields.split(".")} & _ELSEWHERE:
            if item.attr in _TIME_PARTS:
                return f" of a time; col({self._text(item)!r}) for a column of that name"
            step = f"T.Map(fn, reads=[{name!r}], adds=[{f'{name}.{fields}'.replace('.', '_')!r}])"
            return f" for a column of that name; of a struct {step}, whose function takes the field"
        return ""

    @staticmethod
    def _strip_accessor(item: ast.expr) -> ast.expr:
        return item.value if isinstance(item, ast.Attribute) and item.attr in ACCESSORS else item

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
            advice = "isnull(x), notnull(x) or x == y"
            raise self._refuse(item, "`is` is not allowed", "a comparison", self._mend_is(item), advice)
        self._refuse_bits(item)
        if isinstance(item.ops[0], ast.In | ast.NotIn) and len(item.ops) == 1:
            return self._is_in(item, depth)
        if any(type(op) not in _COMPARISONS for op in item.ops):
            pairs = pairwise([item.left, *item.comparators])
            parts = [f"({self._source.text[self._span(left).start : self._span(right).end]})" for left, right in pairs]
            raise self._refuse(item, "`in` inside a chain", "one comparison each", " and ".join(parts))
        operands = tuple(self._node(operand, depth + 1) for operand in (item.left, *item.comparators))
        return Comparison(tuple(_COMPARISONS[type(op)] for op in item.ops), operands, self._span(item))

    def _mend_is(self, item: ast.Compare) -> str | None:
        """Write `x is None`, `x is not True` and `x is y` otherwise; None for a chain."""
        if len(item.ops) > 1:
            return None
        left, right = self._text(item.left), self._text(item.comparators[0])
        is_same = isinstance(item.ops[0], ast.Is)
        if right.lower() in MISSING_WORDS:
            return f"{'isnull' if is_same else 'notnull'}({left})"
        if right in ("True", "False"):
            return left if is_same == (right == "True") else f"not {parenthesize(left)}"
        return f"{left} {'==' if is_same else '!='} {right}"

    def _is_in(self, item: ast.Compare, depth: int) -> Node:
        values, expected, left = item.comparators[0], "constants in [...]", self._text(item.left)
        negation = "not " if isinstance(item.ops[0], ast.NotIn) else ""
        if not isinstance(values, ast.List | ast.Tuple | ast.Set):
            mended = f"{negation}contains({self._text(values)}, {left})"
            if isinstance(values, ast.Constant):  # (x), which is no tuple
                mended = f"{left} {negation}in [{self._text(values)}]"
            raise self._refuse(item, "`in` without a list", expected, mended, at=values)
        read = [self._node(value, depth + 1) for value in values.elts]
        for node, value in zip(read, values.elts, strict=True):
            if isinstance(node, Constant):
                continue
            is_null = isinstance(node, Null)
            texts = [self._text(other) for other in values.elts if other is not value]
            first = f"isnull({left})" if is_null else f"{left} == {self._text(value)}"
            mended = " or ".join([first, *([f"{left} in [{', '.join(texts)}]"] if texts else [])])
            mended = f"not ({mended})" if negation else mended
            problem = "None is equal to nothing" if is_null else "not a constant"
            raise self._refuse(item, problem, expected, mended, at=value)
        span = self._span(item)
        membership = Operation("in", (self._node(item.left, depth + 2), *read), span)
        return membership if isinstance(item.ops[0], ast.In) else Operation("not", (membership,), span)

    def _call(self, item: ast.Call, depth: int) -> Node:
        functions = ", ".join(NAMES)
        if isinstance(item.func, ast.Attribute):
            name, value = item.func.attr, self._strip_accessor(item.func.value)
            is_module = isinstance(value, ast.Name) and value.id in MODULES
            values = [*([] if is_module else [value]), *item.args, *_list_keyword_values(item)]
            problem, expected = "methods cannot be called", f"a function: {functions}"
            raise self._refuse_call(item, name, values, problem, expected, at=item.func)
        if not isinstance(item.func, ast.Name):
            raise self._error(item.func, "this cannot be called", f"a function: {functions}", "its name, then (...)")
        name = self._text(item.func)
        if item.keywords:
            problem, first = f"{name} is called with a keyword", item.keywords[0].arg
            values = [*item.args, *_list_keyword_values(item)]
            texts = [*map(self._text, values)]
            values = values if write_call(name, texts) or write_date(name, texts) else item.args
            raise self._refuse_call(item, name, values, problem, "positions", got=first)
        if name in ("col", "timestamp"):
            return self._named(name, item)
        if name not in FUNCTIONS:
            problem, expected = f"no function is called {name!r}", f"one of {functions}"
            raise self._refuse_call(item, name, item.args, problem, expected, at=item.func)
        match item.args:
            case [ast.List(values) | ast.Tuple(values)] if write_call(name, [*map(self._text, values)]):
                raise self._refuse_call(item, name, values, "a list is not allowed", "the values one by one")
        self._check_count(name, item)
        return self._operation(name, item.args, item, depth)

    def _refuse_call(
        self,
        item: ast.Call,
        name: str,
        values: Sequence[ast.expr],
        problem: str,
        expected: str,
        *,
        at: ast.expr | None = None,
        **got: object,
    ) -> ExpressionError:
        """Build the error of a call that is another language's, by what it means here."""
        texts = [*map(self._text, values)]
        match values:
            case [ast.List(elements) | ast.Tuple(elements)]:
                texts = [*map(self._text, elements)]
            case [ast.Subscript(slice=ast.List([ast.Constant(str()), *_] as names))]:
                texts = [refer_to(ast.literal_eval(column)) for column in names]
        mended, advice = write_call(name, texts), suggest_function(name)
        also = NOTES.get(name.lower(), "").format(*texts) if len(texts) == 1 else ""
        if name in AGGREGATES and len(texts) == 1 and (isinstance(item.func, ast.Attribute) or name not in NAMES):
            span, text, column = self._span(item), self._source.text, self._find_column(values[0]) or "x"
            of_list = f"; of a list {AGGREGATES[name]}({texts[0]})" if AGGREGATES[name] in FUNCTIONS else ""
            advice = suggest_aggregate(name, column, text[: span.start], text[span.end :]) + of_list
            mended = None
        elif mended is None and (date := write_date(name, texts)):
            advice = f"{write_cast('made', 'timestamp', date if self._is_remedy else self._mend_rest(date))} before"
        elif means_time(name) and mended is None and values:
            advice = self._suggest_times(values[0])
        elif mended is None and (text := self._text(item)).startswith(f"{name} ("):
            advice = f"col({text!r}), if a column is called that; or {advice}"
        return self._refuse(item, problem, expected, mended, advice, also=also, at=at, **got)

    def _find_column(self, item: ast.expr) -> str:
        """Return the column that a node is, also as one of a frame; nothing of another node."""
        match item:
            case ast.Name():
                return self._text(item)
            case ast.Attribute(ast.Name(module), name) if module in MODULES:
                return name
            case ast.Call(ast.Name("col") | ast.Attribute(attr="col"), [ast.Constant(str() as name)]) | ast.Subscript(
                ast.Name(), ast.Constant(str() as name)
            ):
                return name
        return ""

    def _suggest_times(self, item: ast.expr) -> str:
        """Suggest the steps that make times of what a node gives."""
        column, text = self._find_column(item), self._text(item)
        expression = "" if column else text if self._is_remedy else self._mend_rest(text)
        steps = write_cast(column or "made", "timestamp", expression)
        remedy = f"{steps} before (text in ISO 8601, or microseconds)"
        return f"{remedy}; {write_time_formats(column)}" if column else remedy

    def _check_count(self, name: str, item: ast.Call) -> None:
        """Raise for a number of arguments that no form of the function takes."""
        count, forms = len(item.args), FUNCTIONS[name]
        if any(form.list_kinds(count) is not None for form in forms):
            return
        counts = sorted({number for form in forms for number in range(form.least, len(form.takes) + 1)})
        between = "to" if len(counts) > 2 else "or"
        expected = f"{counts[0]} {between} {counts[-1]} arguments"
        expected = format_count(counts[0], "argument") if len(counts) == 1 else expected
        expected = f"{counts[0]} arguments or more" if forms[0].repeats else expected
        problem = f"{name} is called with {format_count(count, 'argument')}"
        mended = write_call(name, [*map(self._text, item.args)])  # minimum and maximum of two
        raise self._refuse(item, problem, expected, mended, describe_call(name))

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
            case [ast.Name() as argument] if name == "col":
                mended = f"col({self._text(argument)!r})"
                raise self._refuse(item, "col is called with something else", "one string, a column's name", mended)
            case [argument] if name == "timestamp" and not isinstance(argument, ast.Constant):
                remedy = self._suggest_times(argument)
        problem = f"{name} is called with something else"
        expected = "one string" + (", a column's name" if name == "col" else ", a date or time")
        if len(item.args) > 1:
            raise self._refuse_call(item, name, item.args, problem, expected)
        raise self._error(item, problem, expected, remedy)

    def _refuse_bits(self, item: ast.expr) -> None:
        """Raise for & | ^ ~ in a node or between a comparison's operands, with the corrected text."""
        text, span, operands = self._source.text, self._span(item), [item]
        if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Invert):
            mended = f"not {parenthesize(self._text(item.operand))}"
            raise self._refuse(item, "`~` is no negation here", "`not`", mended)
        if isinstance(item, ast.Compare):
            operands = [part for part in (item.left, *item.comparators) if not self._is_wrapped(part)]
        operations = [operation for operand in operands for operation in _list_bit_operations(operand)]
        if not operations:
            return
        signs, words = zip(*(_BITS[type(operation.op)] for operation in operations), strict=True)
        positions = [
            text.index(sign, self._span(operation.left).end) for operation, sign in zip(operations, signs, strict=True)
        ]
        is_chain = isinstance(item, ast.Compare) and len(item.ops) > 1
        of_xor = "`^` is not allowed", "`!=` between conditions, `**` for powers"
        if signs[0] == "^" and not is_chain and isinstance(operations[0].right, ast.Constant):
            left, right = (self._text(side) for side in (operations[0].left, operations[0].right))
            raise self._refuse(operations[0], *of_xor, f"{left} ** {right}")
        ends = zip([span.start, *(position + 1 for position in positions)], [*positions, span.end], strict=True)
        pieces = [parenthesize(text[start:end].strip()) for start, end in ends]
        corrected = " ".join([pieces[0], *(f"{word} {piece}" for word, piece in zip(words, pieces[1:], strict=True))])
        what = "binds tighter than comparisons" if isinstance(item, ast.Compare) else "does not join conditions"
        advice = "(a < 6) or (b > 2), with `and`, `or`, `not` in place of & | ~"
        sign = Span(positions[0], positions[0] + 1)
        problem = of_xor if signs[0] == "^" else (f"`{signs[0]}` {what}", f"`{words[0]}`")
        raise self._refuse(item, *problem, corrected, advice, at=sign)

    def _is_wrapped(self, item: ast.expr) -> bool:
        text, span = self._source.text, self._span(item)
        return text[: span.start].rstrip().endswith("(") and text[span.end :].lstrip().startswith(")")

    def _refuse(
        self,
        item: ast.expr,
        problem: str,
        expected: str,
        mended: str | None,
        advice: str = "",
        *,
        also: str = "",
        at: ast.expr | Span | None = None,
        **got: object,
    ) -> ExpressionError:
        """Build the error of a node; its remedy is the whole text with `mended` in the node's place, else the advice.

        `also` is said behind the text; `at` is the part that the error marks, by default the node.
        """
        span, text = self._span(item), self._source.text
        if mended is not None:
            advice = advice or mended
            before, after = text[: span.start], text[span.end :]
            is_alone = (before.rstrip()[-1:], after.lstrip()[:1]) in (("", ""), ("(", ")"))
            mended = f"{before}{mended if is_alone else parenthesize(mended)}{after}"
            self._mended = mended if _is_python(mended) else None
        remedy = advice if self._mended is None else self._mended
        if self._mended is not None and not self._is_remedy:
            remedy = self._mend_rest(self._mended) + also
        marked = span if at is None else at if isinstance(at, Span) else self._span(at)
        return self._source.error(marked, problem, expected, remedy, **got)

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
