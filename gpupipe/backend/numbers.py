"""Blocks of numbers looked at and worked on: in one pass by a compiled loop on a CPU, by array code on a GPU.

Both forms agree to the last digits of a sum; what is stored has the same bits. Missing numbers are NaN.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend.pointwise import Scale
from gpupipe.backend.protocol import Array

__all__ = ["add_by_group", "ends", "fill_into", "look", "scale_into"]

_LOOPS = "gpupipe.backend.compiled"


def ends(block: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Missing values, the least and the greatest of the others (+inf and -inf where there is none) of n float64.

    Memory: none on a CPU, else three temporaries of n.

    Example:
        >>> ends(np.array([2.0, np.nan, 5.0]), np)
        (1, 2.0, 5.0)
    """
    if xp is np:
        return tuple(_loops().ends(_given(block).view(np.int64)))
    absent = xp.isnan(block)
    low, high = xp.where(absent, xp.inf, block).min(), xp.where(absent, -xp.inf, block).max()
    return xp.count_nonzero(absent), low, high


def look(block: Array, xp: ModuleType, centre: float) -> tuple[Any, ...]:
    """As `ends`, and the sum and the sum of squares of the values less `centre`.

    Memory: none on a CPU, else four temporaries of n.

    Example:
        >>> look(np.array([2.0, np.nan, 5.0]), np, 3.0)
        (1, 2.0, 5.0, 1.0, 5.0)
    """
    if xp is np:
        given = _given(block)
        return tuple(_loops().look(given, given.view(np.int64), centre))
    rest = block - centre
    xp.copyto(rest, 0.0, where=xp.isnan(rest))
    return *ends(block, xp), rest.sum(), rest.dot(rest)


def scale_into(out: Array, block: Array, by: Scale, xp: ModuleType) -> Any:
    """Write what becomes of n float64 by a scale as float32; whether one of them is infinite.

    Memory: none on a CPU, else two temporaries of n.

    Example:
        >>> out = np.empty(2, dtype="float32")
        >>> bool(scale_into(out, np.array([2.0, np.nan]), Scale(offset=1.0, divisor=4.0), np)), out
        (False, array([0.25,  nan], dtype=float32))
    """
    if xp is np:
        # A range may be of whole numbers, for which the loop would be compiled once more.
        held = map(float, (by.stretch, by.shift, by.floor, by.ceiling))
        return _loops().scale(out, _given(block), by.offset, by.divisor, by.moves, *held)
    number = (block - by.offset) / by.divisor
    if by.moves:
        number *= by.stretch
        number += by.shift
        number = xp.clip(number, by.floor, by.ceiling)
    out[:] = number
    return xp.isinf(out).any()


def fill_into(out: Array, values: Array, instead: float, xp: ModuleType) -> Any:
    """Write n floats of either width with `instead` for missing ones; whether one of them is infinite.

    Memory: none on a CPU, else two booleans for each.

    Example:
        >>> out = np.empty(2)
        >>> bool(fill_into(out, np.array([2.0, np.nan]), 7.0, np)), out
        (False, array([2., 7.]))
    """
    if xp is np:
        return _loops().fill(out, _given(values), values.dtype.type(instead))
    out[:] = values
    xp.copyto(out, out.dtype.type(instead), where=xp.isnan(out))
    return xp.isinf(out).any()


def add_by_group(groups: Array, values: Array, *known: Array) -> None:
    """Add n float64 on a CPU to what is known of their groups; see `GroupedFloats`.

    Memory: one number for each group.

    Example:
        >>> count, total, squares = np.zeros(1, dtype="int64"), np.zeros(1), np.zeros(1)
        >>> add_by_group(np.zeros(2, dtype="int64"), np.array([1.0, 3.0]), count, total, squares, total - 9, total + 9)
        >>> count, total, squares
        (array([2]), array([4.]), array([2.]))
    """
    _loops().by_group(_given(groups), _given(values), *known)


@cache
def _loops() -> ModuleType:
    """Imported when they are first needed, which takes Numba half a second."""
    return import_module(_LOOPS)


def _given(block: Array) -> Array:
    """The same numbers, read only as Arrow's are, and side by side: one form, for which a loop is compiled once."""
    given = np.ascontiguousarray(block).view()
    given.flags.writeable = False
    return given
