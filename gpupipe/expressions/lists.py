"""Functions of lists; a missing element is skipped, and an empty list has no mean, minimum or maximum."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend.columns import Array, Column
from gpupipe.backend.groups import GroupSums
from gpupipe.expressions.comparisons import compare
from gpupipe.expressions.numbers import refuse_wrapped
from gpupipe.expressions.operands import Call, Truth, as_numbers
from gpupipe.schema import FLOATS


def count_elements(call: Call) -> Column:
    """Count the elements of each list, missing ones too, int64."""
    column = call.first
    return Column("int64", column.data[1:] - column.data[:-1], column.valid)


def contain_value(call: Call) -> Truth:
    """Find the lists with an element that equals a constant, or the row's value in a column."""
    column, value, xp = call.first, call.values[1], call.xp
    elements = _get_elements(column)
    of_row = value.take(_number_lists(column, xp)) if isinstance(value, Column) else value
    contains = _count(compare("==", elements, of_row, call.backend).true, column, xp) > 0
    valid = column.valid
    if isinstance(value, Column) and (present := value.present(xp)) is not None:
        valid = present if valid is None else valid & present
    return Truth.from_valid(contains, valid)


def total(call: Call) -> Column:
    """Compute the sum of each list; of none 0, and of integers an OverflowError beyond int64."""
    column, xp, dtype = call.first, call.xp, call.dtype
    try:
        data, valid = as_numbers(_get_elements(column), dtype, xp)
    except OverflowError as cause:
        raise OverflowError(int(_number_lists(column, xp)[cause.args[0]])) from None
    sums = _sum_floats(data, valid, column, xp)
    if dtype in FLOATS:
        sums = sums.astype(dtype)
        return Column(dtype, sums if column.valid is None else xp.where(column.valid, sums, sums.dtype.type(np.nan)))
    # Differences of one running sum are exact even where that has wrapped.
    running = xp.cumsum(data if valid is None else xp.where(valid, data, 0))
    result = Column(dtype, _subtract_at_offsets(running, column, xp), column.valid)
    refuse_wrapped(result, sums, xp)
    return result


def average(call: Call) -> Column:
    """Compute the mean of each list, float64, or float32 of float32."""
    column, xp = call.first, call.xp
    data, valid = as_numbers(_get_elements(column), "float64", xp)
    sums, counts = _sum_floats(data, valid, column, xp), _count(~xp.isnan(data), column, xp)
    return Column(call.dtype, xp.where(counts > 0, sums / xp.maximum(counts, 1), np.nan).astype(call.dtype))


def find_extreme(call: Call) -> Column:
    """Compute the minimum or the maximum of each list, of the elements' type.

    Neighbours are compared at distances of 1, 2, 4 and so on up to the longest list, until the first element of a list
    has met all of them: [3, 1, 2] becomes [1, 1, 2], then [1, 1, 2].
    """
    column, xp = call.first, call.xp
    elements = _get_elements(column)
    missing, best = elements.missing(xp), elements.data
    choose, last = (xp.minimum, _get_largest) if call.name == "min" else (xp.maximum, _get_least)
    if missing is not None:
        best = xp.where(missing, best.dtype.type(last(best.dtype)), best)
    lists, lengths = _number_lists(column, xp), column.data[1:] - column.data[:-1]
    step, longest = 1, int(lengths.max()) if len(column) else 0
    best = best.copy()
    while step < longest:
        best[:-step] = xp.where(lists[step:] == lists[:-step], choose(best[:-step], best[step:]), best[:-step])
        step *= 2
    counts = lengths if missing is None else _count(~missing, column, xp)
    starts = xp.minimum(column.data[:-1], max(len(elements) - 1, 0))
    ends = best[starts] if len(elements) else xp.zeros(len(column), dtype=best.dtype)
    if call.dtype in FLOATS:
        return Column(call.dtype, xp.where(counts > 0, ends, ends.dtype.type(np.nan)))
    return Column(call.dtype, ends, counts > 0)


def _get_elements(column: Column) -> Column:
    assert column.elements is not None
    return column.elements


def _get_largest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else dtype.kind == "b" or np.iinfo(dtype).max


def _get_least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else dtype.kind != "b" and np.iinfo(dtype).min


def _number_lists(column: Column, xp: ModuleType) -> Array:
    """Return for each element the number of the list that it is in."""
    offsets, num_elements = column.data, len(_get_elements(column))
    return xp.cumsum(xp.bincount(offsets[1:-1], minlength=num_elements + 1)[:num_elements])


def _count(mask: Array, column: Column, xp: ModuleType) -> Array:
    """Count the chosen elements of each list, int64."""
    return _subtract_at_offsets(xp.cumsum(mask, dtype="int64"), column, xp)


def _subtract_at_offsets(running: Array, column: Column, xp: ModuleType) -> Array:
    """Return what a running sum over all elements grows by in each list."""
    before = xp.concatenate([xp.zeros(1, dtype=running.dtype), running])
    return before[column.data[1:]] - before[column.data[:-1]]


def _sum_floats(data: Array, valid: Array | None, column: Column, xp: ModuleType) -> Array:
    """Sum the elements of each list as float64, without those that are missing."""
    missing = xp.isnan(data) if data.dtype.kind == "f" else None if valid is None else ~valid
    values = data if missing is None else xp.where(missing, data.dtype.type(0), data)
    return GroupSums(_number_lists(column, xp), len(column), xp).compute(values)
