"""Arithmetic of expressions, with missing values; the same on both backends."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend.expressions.kleene import Truth
from gpupipe.backend.protocol import Array, Column
from gpupipe.expressions.tree import Constant, value_as
from gpupipe.schema import FLOATS

__all__ = ["apply_function", "as_numbers", "both_valid", "compute", "pick_number", "seconds_between", "truncate"]

_UFUNCS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "minimum": "minimum", "maximum": "maximum"}
_OF_INTEGERS = {"//": "floor_divide", "%": "remainder", "**": "power"}
_ALONE = {"abs": "absolute", "ceil": "ceil", "floor": "floor", "negative": "negative", "round": "rint"}
_LARGEST = 2**63 - 1
_ROUNDING = ("ceil", "floor", "round")


def as_numbers(operand: Column | Constant, dtype: str, xp: ModuleType) -> tuple[Array, Array | None]:
    """Convert to values of `dtype` (a scalar for a constant) and their validity; a missing float is NaN, no mask.

    Raises:
        OverflowError: the row of a uint64 beyond int64, where that is the type.

    Memory: shares what is of that type already.
    """
    stored = "int64" if dtype == "timestamp" else dtype
    if isinstance(operand, Constant):
        return np.dtype(stored).type(value_as(operand, dtype)), None
    if stored == "int64" and operand.dtype == "uint64":
        _refuse_where(operand.data > np.uint64(_LARGEST), operand.valid, xp)
    data = operand.data.astype(stored, copy=False)
    if dtype in FLOATS and operand.valid is not None:
        return xp.where(operand.valid, data, data.dtype.type(np.nan)), None
    return data, operand.valid


def both_valid(left: Array | None, right: Array | None) -> Array | None:
    """Combine two validity masks by and; None means that all are valid."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def compute(sign: str, left: Column | Constant, right: Column | Constant, dtype: str, xp: ModuleType) -> Column:
    """Compute one of + - * / // % ** minimum maximum, in and as `dtype`; one operand is a column.

    Raises:
        OverflowError: the first row whose result does not fit int64, where that is `dtype`.

    Memory: the result; for // % ** and for integers about three more.
    """
    wide = "uint64" if dtype == "int64" and sign in ("//", "%") and _is_natural(left, right) else dtype
    (a, a_valid), (b, b_valid) = as_numbers(left, wide, xp), as_numbers(right, wide, xp)
    valid = both_valid(a_valid, b_valid)
    if dtype in FLOATS and sign not in _UFUNCS:
        return Column(dtype, _power(a, b, xp) if sign == "**" else _divide(sign, a, b, xp))
    if sign in _OF_INTEGERS:
        made = _compute_integers(sign, a, b, valid, xp)
        if wide == "uint64":
            return Column(dtype, *as_numbers(replace(made, dtype=wide), dtype, xp))
    else:
        made = Column(dtype, getattr(xp, _UFUNCS[sign])(a, b), valid)
    if dtype == "int64" and sign not in ("%", "minimum", "maximum"):
        ufunc = getattr(xp, _UFUNCS.get(sign) or _OF_INTEGERS[sign])
        _check_fits(made, ufunc(xp.asarray(a, dtype="float64"), xp.asarray(b, dtype="float64")), xp)
    return made


def _is_natural(*operands: Column | Constant) -> bool:
    """Return whether types and constants prove that no operand is negative."""
    return all(
        operand.dtype.startswith("u") or (isinstance(operand, Constant) and float(operand.value) >= 0)
        for operand in operands
    )


def _check_fits(made: Column, near: Array, xp: ModuleType) -> None:
    """Raise OverflowError where integers have wrapped: they differ from the float64 result by about 2**64."""
    _refuse_where(xp.abs(near - made.data) > 2.0**62, made.valid, xp)


def _refuse_where(bad: Array, valid: Array | None, xp: ModuleType) -> None:
    bad = xp.atleast_1d(bad if valid is None else bad & valid)
    if bool(bad.any()):
        raise OverflowError(int(bad.argmax()))


def _power(a: Any, b: Any, xp: ModuleType) -> Array:
    data = xp.power(a, b)
    for operand in (a, b):
        if not isinstance(operand, np.generic):  # 1 to any power and anything to the power of 0 are 1, even NaN
            data = xp.where(xp.isnan(operand), data.dtype.type(np.nan), data)
    return data


def _divide(sign: str, a: Any, b: Any, xp: ModuleType) -> Array:
    """Compute Python's // and %, NaN for a divisor of 0.

    Source: `float_divmod` of CPython's Objects/floatobject.c. fmod is exact, so both backends find the same whole part.
    """
    rest = xp.fmod(a, b)
    other_side = (rest != 0) & ((rest < 0) != (b < 0))
    if sign == "%":
        return xp.where(other_side, rest + b, xp.where(rest == 0, xp.copysign(rest, b), rest))
    quotient = (a - rest) / b - other_side
    whole = xp.floor(quotient)
    whole = whole + (quotient - whole > 0.5)
    return xp.where(quotient == 0, xp.copysign(xp.zeros_like(whole), a / b), whole)


def _compute_integers(sign: str, a: Any, b: Any, valid: Array | None, xp: ModuleType) -> Column:
    """Compute // % ** of integers, missing where the divisor is 0 or the exponent negative."""
    ufunc = getattr(xp, _OF_INTEGERS[sign])
    refused = b < 0 if sign == "**" else b == 0
    if not isinstance(b, np.generic):
        return Column("int64", ufunc(a, xp.where(refused, b.dtype.type(1), b)), both_valid(valid, ~refused))
    if refused:
        return Column("int64", xp.zeros_like(a), xp.zeros(a.shape, dtype=bool))
    return Column("int64", ufunc(a, b), valid)


def apply_function(name: str, column: Column, dtype: str, xp: ModuleType) -> Column:
    """Apply a function of one number, in and as `dtype`; missing where it is undefined. Memory: the result.

    Raises:
        OverflowError: the first row whose result does not fit int64, where that is `dtype`.
    """
    data, valid = as_numbers(column, dtype, xp)
    if name in _ROUNDING and dtype not in FLOATS:
        return Column(dtype, data, valid)
    ufunc = getattr(xp, _ALONE.get(name, name))
    made = Column(dtype, ufunc(data), valid)
    if dtype not in FLOATS:
        _check_fits(made, ufunc(data.astype("float64")), xp)
    return made


def truncate(column: Column, xp: ModuleType) -> Column:
    """Truncate to int64; NaN is missing.

    Raises:
        OverflowError: the first row whose value int64 does not have.
    """
    if column.dtype not in FLOATS:
        return Column("int64", *as_numbers(column, "int64", xp))
    whole = xp.trunc(column.data)
    fits = (whole >= -(2.0**63)) & (whole < 2.0**63)
    _refuse_where(~fits, ~xp.isnan(whole), xp)
    return Column("int64", xp.where(fits, whole, whole.dtype.type(0)).astype("int64"), fits)


def seconds_between(later: Column | Constant, earlier: Column | Constant, xp: ModuleType) -> Column:
    """Compute the seconds from one time to another, float64."""
    (a, a_valid), (b, b_valid) = as_numbers(later, "timestamp", xp), as_numbers(earlier, "timestamp", xp)
    valid = both_valid(a_valid, b_valid)
    seconds = xp.subtract(a, b) / np.float64(1e6)
    return Column("float64", seconds if valid is None else xp.where(valid, seconds, np.float64(np.nan)))


def pick_number(condition: Truth, yes: Column | Constant, no: Column | Constant, dtype: str, xp: ModuleType) -> Column:
    """Select `yes` where the condition is true, `no` where it is false, missing elsewhere; as `dtype`."""
    (a, a_valid), (b, b_valid) = as_numbers(yes, dtype, xp), as_numbers(no, dtype, xp)
    data = xp.where(condition.true, a, b)
    known = condition.column().valid
    if dtype in FLOATS:
        return Column(dtype, data if known is None else xp.where(known, data, data.dtype.type(np.nan)))
    if a_valid is None and b_valid is None:
        return Column(dtype, data, known)
    valid = xp.where(condition.true, True if a_valid is None else a_valid, True if b_valid is None else b_valid)
    return Column(dtype, data, both_valid(valid, known))
