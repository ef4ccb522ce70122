"""Expression: a text parsed to a tree, with its checks."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from keyword import iskeyword
from typing import Any, TypeAlias

from gpupipe.errors import ColumnNotFound, ExpressionError, nearest
from gpupipe.expressions.dtypes import find_zones, infer_dtype
from gpupipe.expressions.syntax import Reader
from gpupipe.expressions.tree import (
    Comparison,
    Constant,
    Name,
    Node,
    Null,
    Operation,
    Source,
    iter_columns,
    iter_names,
    iter_tested,
)
from gpupipe.schema import FLOATS, INTEGERS, Schema
from gpupipe.support.origins import Origins, tell_matches
from gpupipe.support.text_dates import is_date, is_period
from gpupipe.support.times import EPOCH

DateTest: TypeAlias = tuple[str, str, Constant]  # a column, an operator and a date as text
_WORD, _SIGN = r"[^\W_]+", r"[^\w\s.`'\"-]"


@dataclass(frozen=True, repr=False)
class Expression:
    """Parsed expression, created by `parse`; `reads` are the columns it reads, each once, in the order of the text."""

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
        dtype = infer_dtype(self.tree, {item.name: item.dtype for item in schema}, self.source)
        if isinstance(self.tree, Null):
            expected, remedy = "a value with a type", "where(condition, x, None)"
            raise self.source.error(self.tree.span, "None alone has no type", expected, remedy)
        find_zones(self.tree, schema, self.source)
        return dtype

    def get_written_as(self, schema: Schema) -> str:
        """Return what the values are written as: a column's own type, or the zone that all times are of."""
        if isinstance(self.tree, Name):
            return schema[self.tree.name].written_as
        times = [item.name for item in find_zones(self.tree, schema, self.source) if isinstance(item, Name)]
        types = {schema[name].with_instants().written_as for name in times}
        return types.pop() if len(types) == 1 and self.check(schema) == "timestamp" else ""

    def locate_origins(self, schema: Schema) -> Origins:
        """Return where the values come from, by the origins of the columns that are read."""
        tested = set(iter_tested(self.tree))
        origins = (tell_matches(schema[n].origins) if n in tested else schema[n].origins for n in self.reads)
        return frozenset().union(*origins)

    def check_condition(self, schema: Schema) -> None:
        """Raise `ExpressionError` unless the values are true or false; errors as of `check`."""
        dtype, text, where = self.check(schema), self.text, self.source.where
        if dtype == "bool":
            return
        condition = f"({text}) > 0" if dtype in (*INTEGERS, *FLOATS) else f"notnull({text})"
        condition = f"({text}) == '...'" if dtype == "string" else condition
        expected, remedy = "a condition, true or false per row", f"{where}({condition!r})"
        raise ExpressionError(f"{where}({text!r})", f"the expression gives {dtype}", expected=expected, remedy=remedy)

    def conjuncts(self) -> list[tuple[str, str, Any]]:
        """Return simple conditions, to test against statistics, that all rows satisfy for which the expression is true.

        A condition is a column, one of `== != < <= > >= in notnull` and a constant (a tuple for `in`, None for
        `notnull`); a timestamp is a `datetime`, but text that is compared with a time column stays text. A row with a
        missing value satisfies none. Parts that are not that simple are left out.

        Example:
            >>> parse("6 <= hour < 22 and origin in ['JFK'] and log(distance) > 5").conjuncts()
            [('hour', '>=', 6), ('hour', '<', 22), ('origin', 'in', ('JFK',))]
        """
        return list(_iter_conjuncts(self.tree))

    @cached_property
    def date_tests(self) -> Sequence[DateTest]:
        """The columns compared with a date, a time of day or a month in quotation marks, with the operator and that.

        Example:
            >>> [(column, sign) for column, sign, _ in parse("day >= '2024-01-31' or code == 'A1'").date_tests]
            [('day', '>=')]
        """
        return tuple(_iter_date_tests(self.tree))

    @property
    def compares(self) -> frozenset[str]:
        """The columns whose values decide whether a row passes, and not just whether they are there.

        Example:
            >>> sorted(parse("notnull(sales) and price > 2").compares)
            ['price']
        """
        return frozenset(_iter_compared(self.tree))

    def fill_texts(self, columns: Container[str]) -> str:
        """Return the text with the empty text in the place of missing values of these columns.

        Example:
            >>> parse("medal == 'Gold' and year > 2000").fill_texts(["medal"])
            "coalesce(medal, '') == 'Gold' and year > 2000"
        """
        text = self.text
        for column in reversed([*iter_columns(self.tree)]):
            if column.name in columns:
                start, end = column.span
                text = f"{text[:start]}coalesce({text[start:end]}, ''){text[end:]}"
        return text

    def __repr__(self) -> str:
        return f"parse({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.source.text, self.source.where)


def parse(text: str, where: str = "expression") -> Expression:
    """Read an expression; `where` is what it was given to, for messages.

    Raises `ExpressionError`: it does not parse, or asks for something that is not allowed; points at the place.
    Memory: the last few hundred are kept, so that parsing again costs nothing.

    Example:
        >>> parse("6 <= hour < 22 and dep_delay > 15").reads
        ('hour', 'dep_delay')
    """
    if not isinstance(text, str):
        raise ExpressionError(where, "not an expression", got=text, expected="text", remedy="'dep_delay > 15'")
    return _parse(text.replace("\r\n", "\n").replace("\r", "\n").strip(" \t\n\f\ufeff"), where)


def parse_label(text: Any, where: str, schema: Schema) -> Expression:
    """Read an expression where a column's name would do, too; `ColumnNotFound` for a name that is misspelt or missing.

    Errors are otherwise those of `parse`.

    Example:
        >>> from gpupipe.schema import Field
        >>> parse_label("dep delya", "target=", Schema([Field("dep delay", "float64")]))
        Traceback (most recent call last):
        gpupipe.errors.ColumnNotFound: target=: column 'dep delya' not found, got ['dep delay'].
        Expected a column that is there.
        Try: 'dep delay' (the closest name)
    """
    try:
        return parse(text, where)
    except ExpressionError:
        if isinstance(text, str) and _is_name(text, schema):
            raise ColumnNotFound.among(where, text, schema.names) from None
        raise


def _is_name(text: str, schema: Schema) -> bool:
    """Return whether a text that is no expression stands for a column.

    It is like a name that is there, with as many words and no other signs (`late = 1` is not like `late_1`), or it is
    words alone, of which none is a column.
    """
    name, words, signs = nearest(text, schema.names) or "", re.findall(r"\w+", text), re.findall(_SIGN, text)
    is_like = len(re.findall(_WORD, text)) == len(re.findall(_WORD, name)) and {*signs} <= {*name}
    return bool(words) and (is_like or not (signs or any(iskeyword(word) or word in schema for word in words)))


@lru_cache(maxsize=512)
def _parse(text: str, where: str) -> Expression:
    source = Source(text, where)
    tree = Reader(source).tree()
    return Expression(source, tree, tuple(dict.fromkeys(iter_names(tree))))


_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _iter_conjuncts(node: Node) -> Iterator[tuple[str, str, Any]]:
    match node:
        case Operation("and", operands):
            for operand in operands:
                yield from _iter_conjuncts(operand)
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


def _iter_date_tests(node: Node) -> Iterator[DateTest]:
    tests: list[tuple[Node, str, Node]] = []
    match node:
        case Comparison(operators, operands):
            for operator, (left, right) in zip(operators, pairwise(operands), strict=True):
                tests += [(left, operator, right), (right, operator, left)]
        case Operation("in", (first, *members)):
            tests += [(first, "in", member) for member in members]
    for pair in tests:
        match pair:
            case Name(name), operator, Constant(str() as text) as constant if is_date(text) or is_period(text):
                yield name, operator, constant
    for operand in getattr(node, "operands", ()):
        yield from _iter_date_tests(operand)


def _iter_compared(node: Node) -> Iterator[str]:
    match node:
        case Operation("and", operands):
            for operand in operands:
                yield from _iter_compared(operand)
        case Operation("notnull", (Name(),)):
            return
        case _:
            yield from iter_names(node)


def _plain(constant: Constant) -> Any:
    """Convert a constant for statistics: a whole float to an integer, which compares exactly with large integers."""
    value = constant.value
    if constant.dtype == "timestamp":
        return EPOCH + timedelta(microseconds=int(value))
    return int(value) if isinstance(value, float) and value.is_integer() else value
