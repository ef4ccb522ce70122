"""Row filters as Polars expressions, where both keep the same rows; other filters are evaluated by partition."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from itertools import pairwise
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from gpupipe.expressions import parse
from gpupipe.expressions.source import Span
from gpupipe.expressions.tree import EPOCH, Comparison, Constant, Name, Node, Operation, value_as
from gpupipe.io.planning.row_filters import Between, RandomSplit, StratifiedSplit, Where
from gpupipe.io.relational.random_bits import number, random_bits
from gpupipe.schema import FLOATS, INTEGERS, ROW, Field, Schema

if TYPE_CHECKING:
    from gpupipe.io.planning.query import Query

__all__ = ["translate_query"]

_Pair: TypeAlias = tuple[Node, Node]
_NOWHERE = Span(0, 0)
_MOST_CONSTANTS = 100
_TYPES: dict[str, Any] = {
    **{name: getattr(pl, name.capitalize().replace("Uint", "UInt")) for name in (*INTEGERS, *FLOATS)},
    "bool": pl.Boolean,
    "string": pl.String,
    "timestamp": pl.Datetime("us"),
}
_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def translate_query(query: Query, schema: Schema) -> list[pl.Expr] | None:
    """Translate all filters and draws of a query, over frames in which NaN is missing; None if one has no translation.

    Those that are compare columns with constants of their own type or with columns of the same one, look for missing
    values, or draw rows by row id. A comparison with a missing value is missing on both sides, and `and`, `or` and
    `not` follow Kleene.

    Args:
        query: what is chosen of the rows of a source.
        schema: of the source.

    Example:
        >>> from gpupipe.io.planning.query import Query
        >>> query = Query(stages=(Where("n < 3"),))
        >>> [one] = translate_query(query, Schema([Field("n", "int8")]))
        >>> pl.DataFrame({"n": [1, None, 5]}, schema={"n": pl.Int8}).filter(one)["n"].to_list()
        [1]
        >>> translate_query(query, Schema([Field("n", "bool")])) is None
        True
    """
    try:
        return [_translate_choice(one, schema) for one in (*query.draws, *query.stages)]
    except (_NotTranslated, OverflowError):  # times that Python has not
        return None


class _NotTranslated(Exception):
    pass


def _translate_choice(one: object, schema: Schema) -> pl.Expr:
    if isinstance(one, Where):
        return _translate_condition(parse(one.text, "filter").tree, schema)
    if isinstance(one, Between):
        name = Name(one.column, _NOWHERE)
        ends = ((sign, (name, Constant(bound, "", _NOWHERE))) for _, sign, bound in one.conditions)
        return reduce(and_, (_translate_comparison(sign, pair, schema) for sign, pair in ends))
    if isinstance(one, RandomSplit) and not isinstance(one, StratifiedSplit) and one.by is None:
        bits, low = random_bits(one.seed, pl.col(ROW)), number(one.low)
        inside = bits >= low if one.high is None else (bits >= low) & (bits < number(one.high))
        return ~inside if one.outside else inside
    raise _NotTranslated


def _translate_condition(node: Node, schema: Schema) -> pl.Expr:
    match node:
        case Name(name) if schema[name].dtype == "bool":
            return pl.col(name)
        case Operation("not", (operand,)):
            return ~_translate_condition(operand, schema)
        case Operation("and" | "or" as name, operands):
            return reduce(
                and_ if name == "and" else or_, (_translate_condition(operand, schema) for operand in operands)
            )
        case Operation("isnull", (Name(name),)) if _is_plain(schema[name]):
            return pl.col(name).is_null()
        case Operation("notnull", (Name(name),)) if _is_plain(schema[name]):
            return pl.col(name).is_not_null()
        case Operation("in", (Name(name), *constants)) if len(constants) <= _MOST_CONSTANTS:
            return reduce(or_, (_translate_comparison("==", (Name(name, node.span), one), schema) for one in constants))
        case Comparison(operators, operands):
            pairs = zip(operators, pairwise(operands), strict=True)
            return reduce(and_, (_translate_comparison(operator, pair, schema) for operator, pair in pairs))
    raise _NotTranslated


def _translate_comparison(operator: str, pair: _Pair, schema: Schema) -> pl.Expr:
    left, right = pair
    if not (isinstance(left, Name) or isinstance(right, Name)):
        raise _NotTranslated
    a, b = _translate_operand(left, right, schema), _translate_operand(right, left, schema)
    found: pl.Expr = _COMPARE[operator](a, b)
    return found


def _translate_operand(node: Node, other: Node, schema: Schema) -> pl.Expr:
    """Translate one side of a comparison."""
    if isinstance(node, Name) and _is_plain(schema[node.name]):
        if isinstance(other, Name) and schema[other.name].dtype != schema[node.name].dtype:
            raise _NotTranslated
        return pl.col(node.name)
    if isinstance(node, Constant) and isinstance(other, Name):
        return _translate_constant(node, schema[other.name])
    raise _NotTranslated


def _is_plain(item: Field) -> bool:
    return item.dtype in _TYPES


def _translate_constant(constant: Constant, item: Field) -> pl.Expr:
    """Convert a constant to the column's type."""
    value: Any = constant.value
    if item.dtype == "timestamp":
        value = EPOCH + timedelta(microseconds=int(value_as(constant, "timestamp")))
    elif item.dtype in INTEGERS and not isinstance(value, bool | str) and value == value // 1:
        value = int(value)
        info = np.iinfo(item.dtype)
        if not info.min <= value <= info.max:
            raise _NotTranslated
    elif item.dtype in FLOATS and not isinstance(value, bool | str):
        with np.errstate(over="ignore"):
            own = np.dtype(item.dtype).type(value).item()
        if own != value:
            raise _NotTranslated
        value = own
    elif (item.dtype, type(value)) not in (("string", str), ("bool", bool)):
        raise _NotTranslated
    return pl.lit(value, _TYPES[item.dtype])
