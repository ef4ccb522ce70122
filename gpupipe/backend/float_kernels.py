"""Float kernels, missing numbers NaN: one compiled pass on a CPU, array code on a GPU, equal to a sum's last digits."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpupipe.backend.fused.program import Scale
from gpupipe.backend.hashing import load_loops
from gpupipe.backend.protocol import Array


def find_bounds(block: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Compute the number of missing values, the min and the max of n float64 (+inf and -inf if all are missing)."""
    if xp is np:
        missing, low, high, *_ = compute_moments(block, xp, 0.0)
        return missing, low, high
    absent = xp.isnan(block)
    low, high = xp.where(absent, xp.inf, block).min(), xp.where(absent, -xp.inf, block).max()
    return xp.count_nonzero(absent), low, high


def compute_moments(block: Array, xp: ModuleType, centre: float) -> tuple[Any, ...]:
    """Compute missing values, min and max as `find_bounds`, and sum and sum of squares of the values less `centre`."""
    if xp is np:
        missing, *found = compute_moments_each(block[None], np.array([centre]))[0].tolist()
        return int(missing), *found
    rest = block - centre
    xp.copyto(rest, 0.0, where=xp.isnan(rest))
    return *find_bounds(block, xp), rest.sum(), rest.dot(rest)


def compute_moments_each(blocks: Array, centres: Array) -> Array:
    """Compute the moments, as `compute_moments`, of each row of k x n float64 on a CPU, given k centres: k x 5."""
    given = _as_contiguous(blocks)
    return load_loops().compute_moments(given, given.view(np.int64), centres)


def scale_into(out: Array, block: Array, by: Scale, xp: ModuleType) -> Any:
    """Scale n float64 into float32, and return whether one of them is infinite."""
    if xp is np:
        offsets, divisors = np.array([[by.offset], [by.divisor]], dtype=np.float64)
        return scale_each(out[None], block[None], offsets, divisors, by)
    number = (block - by.offset) / by.divisor
    if by.moves:
        number *= by.multiplier
        number += by.shift
        number = xp.clip(number, by.low, by.high)
    out[:] = number
    return xp.isinf(out).any()


def scale_each(out: Array, blocks: Array, offsets: Array, divisors: Array, by: Scale) -> bool:
    """Scale each row of k x n float64 on a CPU, as `scale_into`, with k offsets and divisors; the rest from `by`."""
    # A range may be of whole numbers, for which the loop would be compiled once more.
    held = map(float, (by.multiplier, by.shift, by.low, by.high))
    return _write(load_loops().scale, out, _as_contiguous(blocks), offsets, divisors, by.moves, *held)


def fill_into(out: Array, values: Array, instead: Array, xp: ModuleType) -> Any:
    """Write n floats with missing ones replaced by `instead`, and return whether one of them is infinite.

    On a CPU also k rows of n floats, with k values for them.
    """
    if xp is np:
        given = np.atleast_1d(instead).astype(values.dtype)
        return _write(load_loops().fill, np.atleast_2d(out), _as_contiguous(np.atleast_2d(values)), given)
    out[:] = values
    xp.copyto(out, out.dtype.type(instead), where=xp.isnan(out))
    return xp.isinf(out).any()


class GroupSums:
    """Deterministic group sums: values are added in an order that depends on the rows alone.

    CuPy's weighted `bincount` adds by atomics, in the order in which threads happen to come. Instead rows are sorted by
    group, and sums of neighbours are added to each other until one sum is left of each group.
    """

    def __init__(self, ids: Array, num_groups: int, xp: ModuleType) -> None:
        self._ids, self._num_groups, self._xp = ids, num_groups, xp
        if xp is not np:
            self._order = xp.argsort(ids, kind="stable")
            self._ids = ids[self._order]
            self._sizes = xp.bincount(ids, minlength=num_groups)

    def compute(self, values: Array) -> Array:
        """Sum the values of each group, as float64."""
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


class GroupedFloats(NamedTuple):
    """Statistics of the values of each of G groups; missing values are left out."""

    count: Array  # of values, int64; all others are float64
    total: Array
    squares: Array  # the squared deviations from their mean
    low: Array  # +inf where there is none
    high: Array  # -inf where there is none


def aggregate_floats(values: Array, groups: Array, num_groups: int) -> GroupedFloats:
    """Aggregate n float64 on a CPU in two passes, NaN where missing, given the number (int64) of each row's group."""
    return GroupedFloats(*load_loops().aggregate_groups(_as_contiguous(groups), _as_contiguous(values), num_groups))


def _write(loop: Callable[..., Any], out: Array, *given: Any) -> bool:
    """Run a loop that writes, by way of another array where `out` is not C-contiguous."""
    written = out if out.flags.c_contiguous else np.empty(out.shape, dtype=out.dtype)
    infinite = loop(written, *given)
    if written is not out:
        out[:] = written
    return bool(infinite)


def _as_contiguous(block: Array) -> Array:
    """Return a read-only, C-contiguous view, as Arrow's arrays are: one form, for which a loop is compiled once."""
    given = np.ascontiguousarray(block).view()
    given.flags.writeable = False
    return given
