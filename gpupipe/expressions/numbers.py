"""Arithmetic and functions of numbers."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import Array, Column
from gpupipe.expressions.operands import Call, Operand, as_numbers, both_valid, refuse_rows
from gpupipe.expressions.tree import Constant
from gpupipe.schema import FLOATS

_UFUNCS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "remainder"}
_UFUNCS |= {"**": "power", "round": "rint"}


def do_arithmetic(call: Call) -> Column:
    """Compute one of + - * / // % ** minimum maximum."""
    left, right = call.values
    return compute(call.name, left, right, call.dtype, call.xp)


def transform(call: Call) -> Column:
    """Compute a function of one number."""
    return apply_function(call.name, call.first, call.dtype, call.xp)


def clip(call: Call) -> Column:
    """Compute `clip(x, low, high)`."""
    (_, low, high), dtype, xp = call.values, call.dtype, call.xp
    column = call.column(call.values[0], dtype)
    if isinstance(low, Constant) and isinstance(high, Constant):
        data, valid = as_numbers(column, dtype, xp)
        return Column(dtype, xp.clip(data, *(as_numbers(bound, dtype, xp)[0] for bound in (low, high))), valid)
    return compute("minimum", compute("maximum", column, low, dtype, xp), high, dtype, xp)


def convert(call: Call) -> Column:
    """Compute `int(x)`, `float(x)` or `string(x)`."""
    if call.name == "string":
        return cast_column(call.first, call.dtype, "", call.backend)
    xp, column = call.xp, call.first
    if call.name == "float" or column.dtype not in FLOATS:
        return Column(call.dtype, *as_numbers(column, call.dtype, xp))
    whole = xp.trunc(column.data)
    fits = (whole >= -(2.0**63)) & (whole < 2.0**63)
    refuse_rows(~fits, ~xp.isnan(whole), xp)
    return Column("int64", xp.where(fits, whole, whole.dtype.type(0)).astype("int64"), fits)


def compute(sign: str, left: Operand, right: Operand, dtype: str, xp: ModuleType) -> Column:
    """Compute one of + - * / // % ** minimum maximum as `dtype`; OverflowError has the first row beyond int64."""
    is_natural = dtype == "int64" and sign in ("//", "%") and _is_natural(left) and _is_natural(right)
    wide, ufunc = "uint64" if is_natural else dtype, getattr(xp, _UFUNCS.get(sign, sign))
    (a, a_valid), (b, b_valid) = as_numbers(left, wide, xp), as_numbers(right, wide, xp)
    valid = both_valid(a_valid, b_valid)
    if sign not in ("//", "%", "**"):
        result = Column(dtype, ufunc(a, b), valid)
    elif dtype in FLOATS:
        return Column(dtype, _power(a, b, xp) if sign == "**" else _divide(sign, a, b, xp))
    else:
        result = _compute_integers(sign, a, b, valid, xp)
        if is_natural:
            return Column(dtype, *as_numbers(replace(result, dtype=wide), dtype, xp))
    if dtype == "int64" and sign not in ("%", "minimum", "maximum"):
        refuse_wrapped(result, ufunc(xp.asarray(a, dtype="float64"), xp.asarray(b, dtype="float64")), xp)
    return result


def _is_natural(operand: Operand) -> bool:
    """Return whether the type or a constant proves that an operand is not negative."""
    return operand.dtype.startswith("u") or (isinstance(operand, Constant) and float(operand.value) >= 0)


def refuse_wrapped(result: Column, near: Array, xp: ModuleType) -> None:
    """Raise OverflowError where integers have wrapped: they differ from the float64 result by about 2**64."""
    refuse_rows(xp.abs(near - result.data) > 2.0**62, result.valid, xp)


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
    remainder = xp.fmod(a, b)
    other_side = (remainder != 0) & ((remainder < 0) != (b < 0))
    if sign == "%":
        return xp.where(other_side, remainder + b, xp.where(remainder == 0, xp.copysign(remainder, b), remainder))
    quotient = (a - remainder) / b - other_side
    whole = xp.floor(quotient)
    whole = whole + (quotient - whole > 0.5)
    return xp.where(quotient == 0, xp.copysign(xp.zeros_like(whole), a / b), whole)


def _compute_integers(sign: str, a: Any, b: Any, valid: Array | None, xp: ModuleType) -> Column:
    """Compute // % ** of integers, missing where the divisor is 0 or the exponent negative."""
    refused = b < 0 if sign == "**" else b == 0
    if not isinstance(b, np.generic):
        b, valid = xp.where(refused, b.dtype.type(1), b), both_valid(valid, ~refused)
    elif refused:
        return Column("int64", a, xp.zeros(a.shape, dtype=bool))
    return Column("int64", getattr(xp, _UFUNCS.get(sign, sign))(a, b), valid)


def apply_function(name: str, column: Column, dtype: str, xp: ModuleType) -> Column:
    """Apply a function of one number, in and as `dtype`; missing where undefined; OverflowError as in `compute`."""
    data, valid = as_numbers(column, dtype, xp)
    if name in ("ceil", "floor", "round") and dtype not in FLOATS:
        return Column(dtype, data, valid)
    ufunc = getattr(xp, _UFUNCS.get(name, name))
    result = Column(dtype, ufunc(data), valid)
    if dtype not in FLOATS:
        refuse_wrapped(result, ufunc(data.astype("float64")), xp)
    return result
