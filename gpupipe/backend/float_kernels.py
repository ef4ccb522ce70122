"""Blocks of numbers looked at and worked on: in one pass by a compiled loop on a CPU, by array code on a GPU.

Both forms agree to the last digits of a sum; what is stored has the same bits. Missing numbers are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import numpy as np

from gpupipe.backend.fused.program import Scale
from gpupipe.backend.protocol import Array

__all__ = [
    "GroupSums",
    "GroupedFloats",
    "ends",
    "fill_each",
    "fill_into",
    "look",
    "look_each",
    "scale_each",
    "scale_into",
]

_LOOPS = "gpupipe.backend.numba_kernels"


def ends(block: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Missing values, the least and the greatest of the others (+inf and -inf where there is none) of n float64.

    Memory: none on a CPU, else three temporaries of n.

    Example:
        >>> ends(np.array([2.0, np.nan, 5.0]), np)
        (1, 2.0, 5.0)
    """
    if xp is np:
        missing, low, high, *_ = look(block, xp, 0.0)
        return missing, low, high
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
        missing, *found = look_each(block[None], np.array([centre]))[0].tolist()
        return int(missing), *found
    rest = block - centre
    xp.copyto(rest, 0.0, where=xp.isnan(rest))
    return *ends(block, xp), rest.sum(), rest.dot(rest)


def look_each(blocks: Array, centres: Array) -> Array:
    """As `look`, of each row of k x n float64 on a CPU, given k centres: k x 5 float64.

    Memory: a copy of rows whose numbers do not lie side by side.

    Example:
        >>> look_each(np.array([[2.0, np.nan, 5.0]]), np.array([3.0])).tolist()
        [[1.0, 2.0, 5.0, 1.0, 5.0]]
    """
    given = _given(blocks)
    table: Array = _loops().look(given, given.view(np.int64), centres)
    return table


def scale_into(out: Array, block: Array, by: Scale, xp: ModuleType) -> Any:
    """Write what becomes of n float64 by a scale as float32; whether one of them is infinite.

    Memory: none on a CPU, else two temporaries of n.

    Example:
        >>> out = np.empty(2, dtype="float32")
        >>> bool(scale_into(out, np.array([2.0, np.nan]), Scale(offset=1.0, divisor=4.0), np)), out
        (False, array([0.25,  nan], dtype=float32))
    """
    if xp is np:
        offsets, divisors = np.array([[by.offset], [by.divisor]], dtype=np.float64)
        return scale_each(out[None], block[None], offsets, divisors, by)
    number = (block - by.offset) / by.divisor
    if by.moves:
        number *= by.stretch
        number += by.shift
        number = xp.clip(number, by.floor, by.ceiling)
    out[:] = number
    return xp.isinf(out).any()


def scale_each(out: Array, blocks: Array, offsets: Array, divisors: Array, by: Scale) -> bool:
    """As `scale_into`, of each row of k x n float64 on a CPU, with k offsets and divisors; the rest as `by` says.

    Memory: a copy of rows whose numbers do not lie side by side.
    """
    # A range may be of whole numbers, for which the loop would be compiled once more.
    held = map(float, (by.stretch, by.shift, by.floor, by.ceiling))
    written = _writable(out)
    infinite = _loops().scale(written, _given(blocks), offsets, divisors, by.moves, *held)
    if written is not out:
        out[:] = written
    return bool(infinite)


def fill_into(out: Array, values: Array, instead: float, xp: ModuleType) -> Any:
    """Write n floats of either width with `instead` for missing ones; whether one of them is infinite.

    Memory: none on a CPU, else two booleans for each.

    Example:
        >>> out = np.empty(2)
        >>> bool(fill_into(out, np.array([2.0, np.nan]), 7.0, np)), out
        (False, array([2., 7.]))
    """
    if xp is np:
        return fill_each(out[None], values[None], np.array([instead]))
    out[:] = values
    xp.copyto(out, out.dtype.type(instead), where=xp.isnan(out))
    return xp.isinf(out).any()


def fill_each(out: Array, values: Array, instead: Array) -> bool:
    """As `fill_into`, of each row of k x n floats on a CPU, given k values to fill in.

    Memory: a copy of rows whose numbers do not lie side by side.
    """
    written = _writable(out)
    infinite = _loops().fill(written, _given(values), instead.astype(values.dtype))
    if written is not out:
        out[:] = written
    return bool(infinite)


class GroupSums:
    """Adds up values by group, in an order that follows from the rows alone: the same bits in every run.

    CuPy's weighted `bincount` adds by atomics, in the order in which threads happen to come. Instead rows are sorted by
    group, and sums of neighbours are added to each other until one sum is left of each group.

    Args:
        ids: the number of each of n rows' group.
        num_groups: how many groups there are.
        xp: the arrays' module.

    Memory: none on a CPU, else two arrays of n integers.

    Example:
        >>> GroupSums(np.array([0, 2, 0]), 3, np).of(np.array([1.0, 5.0, 2.0]))
        array([3., 0., 5.])
    """

    def __init__(self, ids: Array, num_groups: int, xp: ModuleType) -> None:
        self._ids, self._num_groups, self._xp = ids, num_groups, xp
        if xp is not np:
            self._order = xp.argsort(ids, kind="stable")
            self._ids = ids[self._order]
            self._sizes = xp.bincount(ids, minlength=num_groups)

    def of(self, values: Array) -> Array:
        """The sum of each group's values, as float64.

        Memory: none on a CPU, else two arrays of n float64.
        """
        xp, ids = self._xp, self._ids
        if xp is np:
            return np.bincount(ids, weights=values, minlength=self._num_groups).astype("float64")  # of no rows int64
        sums, step = values[self._order].astype("float64", copy=False), 1
        longest = int(self._sizes.max()) if self._num_groups else 0
        while step < longest:
            sums[:-step] += xp.where(ids[step:] == ids[:-step], sums[step:], 0.0)
            step *= 2
        found, there = xp.zeros(self._num_groups), self._sizes > 0
        found[there] = sums[(xp.cumsum(self._sizes) - self._sizes)[there]]
        return found


@dataclass(frozen=True)
class GroupedFloats:
    """What a CPU finds of the values of each of G groups, in two passes over them; missing ones apart.

    Args:
        count: values, int64.
        total: their sum, float64.
        squares: the squared deviations from their mean, float64.
        low: the least, float64; +inf where there is none.
        high: the greatest, float64; -inf where there is none.
    """

    count: Array
    total: Array
    squares: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, values: Array, groups: Array, num_groups: int) -> Self:
        """Of n float64, NaN where missing, given the number (int64) of each row's group.

        Memory: five numbers for each group.

        Example:
            >>> found = GroupedFloats.of(np.array([1.0, 5.0, np.nan, 3.0]), np.array([0, 1, 1, 0]), 2)
            >>> found.total, found.squares
            (array([4., 5.]), array([2., 0.]))
        """
        return cls(*_loops().by_group(_given(groups), _given(values), num_groups))


@cache
def _loops() -> ModuleType:
    """Imported when they are first needed, which takes Numba half a second."""
    return import_module(_LOOPS)


def _writable(out: Array) -> Array:
    """The same array, or another of its shape, whose numbers lie side by side: one form, as `_given` has one."""
    return out if out.flags.c_contiguous else np.empty(out.shape, dtype=out.dtype)


def _given(block: Array) -> Array:
    """The same numbers, read only as Arrow's are, and side by side: one form, for which a loop is compiled once."""
    given = np.ascontiguousarray(block).view()
    given.flags.writeable = False
    return given
