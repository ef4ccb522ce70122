"""Comparisons of expressions; exact, as if both sides were real numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend.expressions.arithmetic import as_numbers, both_valid
from gpupipe.backend.expressions.kleene import Truth
from gpupipe.backend.expressions.strings import compare_texts, isin_texts
from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.expressions.tree import Constant, value_as
from gpupipe.schema import FLOATS

__all__ = ["compare", "isin"]

_UFUNCS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_INVERSE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The comparison with the nearest value of the column's type, where that is above or below the constant.
_WITH_ABOVE = {"<": "<", "<=": "<", ">": ">=", ">=": ">="}
_WITH_BELOW = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}


def compare(operator: str, left: Column | Constant, right: Column | Constant, backend: Backend) -> Truth:
    """Compare `left` with `right` per row; one of them is a column.

    Memory: two booleans per row; for two columns of different types also one of them in the wider type.
    """
    if isinstance(left, Constant):
        assert isinstance(right, Column)
        left, right, operator = right, left, _FLIPPED[operator]
    if left.dtype == "string":
        return compare_texts(operator, left, right, backend)
    if isinstance(right, Constant):
        return _compare_constant(operator, left, _to_number(left, right), backend.xp)
    return _compare_columns(operator, left, right, backend.xp)


def isin(column: Column, constants: Sequence[Constant], backend: Backend) -> Truth:
    """Test whether each value is one of the constants; missing where it is missing.

    Memory: as `compare`.
    """
    if column.dtype == "string":
        return isin_texts(column, [str(item.value) for item in constants], backend)
    values = [_to_number(column, item) for item in constants]
    own = [near for value in values if (near := _nearest(column.data.dtype, value)).item() == value]
    found = backend.xp.isin(column.data, backend.to_device(np.array(own, dtype=column.data.dtype)))
    return Truth.from_valid(found, _present(column, backend.xp))


def _to_number(column: Column, constant: Constant) -> float:
    """Convert a constant to the number to compare with a column of numbers or times."""
    value = value_as(constant, column.dtype if column.dtype == "timestamp" else constant.dtype)
    assert not isinstance(value, str)
    return value


def _present(column: Column, xp: ModuleType) -> Array | None:
    missing = column.missing(xp)
    return None if missing is None else ~missing


def _compare_constant(operator: str, column: Column, value: float, xp: ModuleType) -> Truth:
    near = _nearest(column.data.dtype, value)
    if near.item() == value:
        return _compare_scalar(operator, column, near, xp)
    if operator in ("==", "!="):
        return Truth.from_valid(xp.full(len(column), operator == "!=", dtype=bool), _present(column, xp))
    return _compare_scalar((_WITH_ABOVE if near.item() > value else _WITH_BELOW)[operator], column, near, xp)


def _compare_scalar(operator: str, column: Column, value: Any, xp: ModuleType) -> Truth:
    """Compare with a scalar of the column's own type."""
    if column.dtype in FLOATS:
        return _compare_floats(operator, column.data, value, xp)
    return Truth.from_valid(getattr(xp, _UFUNCS[operator])(column.data, value), column.valid)


def _nearest(dtype: np.dtype[Any], value: float) -> Any:
    """Round to a NumPy scalar of that type with no other value of the type between it and `value`."""
    if dtype.name == "bool":
        return np.bool_(value >= 1)
    if dtype.name in FLOATS:
        with np.errstate(over="ignore"):  # beyond float32 is infinity
            return dtype.type(value)
    info = np.iinfo(dtype)
    return dtype.type(min(max(math.floor(value), info.min), info.max))


def _compare_columns(operator: str, left: Column, right: Column, xp: ModuleType) -> Truth:
    if left.dtype in FLOATS or right.dtype in FLOATS:
        dtype = "float32" if left.dtype == right.dtype == "float32" else "float64"
        return _compare_floats(operator, as_numbers(left, dtype, xp)[0], as_numbers(right, dtype, xp)[0], xp)
    valid = both_valid(left.valid, right.valid)
    kinds = left.data.dtype.kind, right.data.dtype.kind
    if kinds == ("u", "i") and left.data.dtype.itemsize == 8:
        return Truth.from_valid(_compare_unsigned(operator, left.data, right.data, xp), valid)
    if kinds == ("i", "u") and right.data.dtype.itemsize == 8:
        return Truth.from_valid(_compare_unsigned(_FLIPPED[operator], right.data, left.data, xp), valid)
    return Truth.from_valid(getattr(xp, _UFUNCS[operator])(left.data, right.data), valid)


def _compare_floats(operator: str, left: Array, right: Any, xp: ModuleType) -> Truth:
    """Compare floats; with NaN on a side a comparison and its inverse are false, `!=` included."""

    def holds(sign: str) -> Array:
        if sign == "!=":
            return xp.less(left, right) | xp.greater(left, right)
        return getattr(xp, _UFUNCS[sign])(left, right)

    return Truth(holds(operator), holds(_INVERSE[operator]))


def _compare_unsigned(operator: str, left: Array, right: Array, xp: ModuleType) -> Array:
    """Compare uint64 with signed integers, which have no common integer type: a negative one is less than all."""
    negative = right < 0
    found = getattr(xp, _UFUNCS[operator])(left, right.astype("uint64"))
    return found | negative if operator in (">", ">=", "!=") else found & ~negative
