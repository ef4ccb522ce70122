"""Conditions as Polars expressions, where both have the same value in every row."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from itertools import pairwise
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import numpy as np
import polars as pl

from gpupipe.expressions.tree import Comparison, Constant, Name, Node, Operation, value_as
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.times import EPOCH

_MOST_CONSTANTS = 100
POLARS_TYPES: dict[str, Any] = {
    **{name: getattr(pl, name.capitalize().replace("Uint", "UInt")) for name in (*INTEGERS, *FLOATS)},
    "bool": pl.Boolean,
    "string": pl.String,
    "timestamp": pl.Datetime("us"),
}
_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


class NotTranslated(Exception):
    """Condition that Polars might evaluate in another way; its rows are computed by partitions."""


def translate_condition(node: Node, schema: Schema) -> pl.Expr:
    """Translate a condition; `NotTranslated` if Polars might evaluate it in another way."""
    match node:
        case Name(name) if schema[name].dtype == "bool":
            return pl.col(name)
        case Operation("not", (operand,)):
            return ~translate_condition(operand, schema)
        case Operation("and" | "or" as name, operands):
            parts = (translate_condition(operand, schema) for operand in operands)
            return reduce(and_ if name == "and" else or_, parts)
        case Operation("isnull", (Name(name),)) if schema[name].dtype in POLARS_TYPES:
            return pl.col(name).is_null()
        case Operation("notnull", (Name(name),)) if schema[name].dtype in POLARS_TYPES:
            return pl.col(name).is_not_null()
        case Operation("in", (Name(name), *constants)) if len(constants) <= _MOST_CONSTANTS:
            return reduce(
                or_, (translate_comparison("==", Name(name, node.span), constant, schema) for constant in constants)
            )
        case Comparison(operators, operands):
            pairs = zip(operators, pairwise(operands), strict=True)
            return reduce(and_, (translate_comparison(operator, *pair, schema) for operator, pair in pairs))
    raise NotTranslated


def translate_comparison(sign: str, left: Node, right: Node, schema: Schema) -> pl.Expr:
    """Translate the comparison of a column with a column or a constant of its type."""
    sides = []
    for node, other in ((left, right), (right, left)):
        match node, other:
            case Constant(), Name(name):
                sides.append(_translate_constant(node, schema[name]))
            case Name(name), Name(another) if schema[name].dtype != schema[another].dtype:
                raise NotTranslated
            case Name(name), Name() | Constant() if schema[name].dtype in POLARS_TYPES:
                sides.append(pl.col(name))
            case _:
                raise NotTranslated
    comparison: pl.Expr = _COMPARE[sign](*sides)
    return comparison


def _translate_constant(constant: Constant, item: Field) -> pl.Expr:
    """Convert a constant to the column's type."""
    value: Any = constant.value
    if item.dtype == "timestamp":
        value = EPOCH + timedelta(microseconds=int(value_as(constant, "timestamp")))
    elif item.dtype in INTEGERS and not isinstance(value, bool | str) and value == value // 1:
        value = int(value)
        info = np.iinfo(item.dtype)
        if not info.min <= value <= info.max:
            raise NotTranslated
    elif item.dtype in FLOATS and not isinstance(value, bool | str):
        with np.errstate(over="ignore"):
            nearest = np.dtype(item.dtype).type(value).item()
        if nearest != value:
            raise NotTranslated
        value = nearest
    elif (item.dtype, type(value)) not in (("string", str), ("bool", bool)):
        raise NotTranslated
    return pl.lit(value, POLARS_TYPES[item.dtype])
