"""Comparisons of columns and constants, each exact whatever the types, and conditions joined."""

from __future__ import annotations

import math
from functools import reduce
from operator import and_, or_
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.columns import Array, Backend, Column, gather
from gpupipe.backend.dictionaries import find_positions, strings, unite_dictionaries
from gpupipe.expressions.operands import Call, Operand, Truth, as_numbers, both_valid
from gpupipe.expressions.tree import Constant, Null, value_as
from gpupipe.schema import FLOATS

_UFUNCS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_INVERSE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The comparison with the nearest value of the column's type, where that is above or below the constant.
_WITH_ABOVE = {"<": "<", "<=": "<", ">": ">=", ">=": ">="}
_WITH_BELOW = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}


def join_conditions(call: Call) -> Truth:
    """Join conditions by `and` or `or`, or negate one by `not`."""
    outcomes = map(call.truth, call.values)
    return ~next(outcomes) if call.name == "not" else reduce(and_ if call.name == "and" else or_, outcomes)


def find_members(call: Call) -> Truth:
    """Find where the first value is one of the constants behind it."""
    column, backend = call.first, call.backend
    if column.dtype == "string":
        texts = strings([str(item.value) for item in call.constants])
        return gather_result(column, pc.is_in(column.dictionary, value_set=texts), backend)
    pairs = [_find_nearest(column, item) for item in call.constants]
    members = [near for value, near in pairs if near.item() == value]
    is_member = backend.xp.isin(column.data, backend.to_device(np.array(members, dtype=column.data.dtype)))
    return Truth.from_valid(is_member, column.present(backend.xp))


def gather_result(column: Column, outcome: pa.Array, backend: Backend) -> Truth:
    """Gather a condition's result per entry of the dictionary for each row."""
    true = gather(column, outcome.to_numpy(zero_copy_only=False).astype(bool), False, backend)
    return Truth(true, true ^ (column.data >= 0))


def compare(operator: str, left: Operand, right: Operand, backend: Backend) -> Truth:
    """Compare `left` with `right` per row; one of them is a column."""
    assert not isinstance(left, Null)
    assert not isinstance(right, Null)
    if isinstance(left, Constant):
        assert isinstance(right, Column)
        left, right, operator = right, left, _FLIPPED[operator]
    if left.dtype == "string":
        return _compare_texts(operator, left, right, backend)
    if isinstance(right, Constant):
        return _compare_constant(operator, left, right, backend.xp)
    return _compare_columns(operator, left, right, backend.xp)


def _compare_texts(operator: str, left: Column, right: Column | Constant, backend: Backend) -> Truth:
    """Compare strings per row, in the order of code points; the distinct ones are compared on the host."""
    if isinstance(right, Constant):
        outcome = getattr(pc, _UFUNCS[operator])(left.dictionary, pa.scalar(right.value, pa.large_string()))
        return gather_result(left, outcome, backend)
    texts = unite_dictionaries([left.dictionary, right.dictionary])
    ranks = pc.rank(texts).to_numpy().astype("int32")
    tables = [(column, ranks[find_positions(column.dictionary, texts)]) for column in (left, right)]
    a, b = (gather(column, table, -1, backend) for column, table in tables)
    return Truth.from_valid(_compare_alike(operator, a, b, backend.xp), (a >= 0) & (b >= 0))


def _compare_constant(operator: str, column: Column, constant: Constant, xp: ModuleType) -> Truth:
    value, near = _find_nearest(column, constant)
    if near.item() != value:
        if operator in ("==", "!="):
            return Truth.from_valid(xp.full(len(column), operator == "!=", dtype=bool), column.present(xp))
        operator = (_WITH_ABOVE if near.item() > value else _WITH_BELOW)[operator]
    if column.dtype in FLOATS:
        return _compare_floats(operator, column.data, near, xp)
    return Truth.from_valid(_compare_alike(operator, column.data, near, xp), column.valid)


def _find_nearest(column: Column, constant: Constant) -> tuple[Any, Any]:
    """Return the number to compare, and a NumPy scalar of the column's type with no other value between the two."""
    value: Any = value_as(constant, column.dtype if column.dtype == "timestamp" else constant.dtype)
    dtype = column.data.dtype
    if dtype.name == "bool":
        return value, np.bool_(value >= 1)
    if dtype.name in FLOATS:
        with np.errstate(over="ignore"):  # beyond float32 is infinity
            return value, dtype.type(value)
    info = np.iinfo(dtype)
    return value, dtype.type(min(max(math.floor(value), info.min), info.max))


def _compare_columns(operator: str, left: Column, right: Column, xp: ModuleType) -> Truth:
    if left.dtype in FLOATS or right.dtype in FLOATS:
        dtype = "float32" if left.dtype == right.dtype == "float32" else "float64"
        return _compare_floats(operator, as_numbers(left, dtype, xp)[0], as_numbers(right, dtype, xp)[0], xp)
    if right.dtype == "uint64":
        left, right, operator = right, left, _FLIPPED[operator]
    is_mixed = left.dtype == "uint64" and right.data.dtype.kind == "i"
    comparison = _compare_unsigned if is_mixed else _compare_alike
    return Truth.from_valid(comparison(operator, left.data, right.data, xp), both_valid(left.valid, right.valid))


def _compare_floats(operator: str, left: Array, right: Any, xp: ModuleType) -> Truth:
    """Compare floats; with NaN on a side a comparison and its inverse are false, `!=` included."""

    def holds(sign: str) -> Array:
        if sign == "!=":
            return xp.less(left, right) | xp.greater(left, right)
        return _compare_alike(sign, left, right, xp)

    return Truth(holds(operator), holds(_INVERSE[operator]))


def _compare_alike(operator: str, left: Array, right: Any, xp: ModuleType) -> Array:
    return getattr(xp, _UFUNCS[operator])(left, right)


def _compare_unsigned(operator: str, left: Array, right: Array, xp: ModuleType) -> Array:
    """Compare uint64 with signed integers, which have no common integer type: a negative one is less than all."""
    negative = right < 0
    outcome = _compare_alike(operator, left, right.astype("uint64"), xp)
    return outcome | negative if operator in (">", ">=", "!=") else outcome & ~negative
