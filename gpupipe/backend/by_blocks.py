"""Floats by group on a CPU: blocks of rows that stay in cache are sorted by group, and what they tell put together.

Only NumPy reduces segments of an array (`reduceat`): many times faster than numbers scattered one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from gpupipe.backend.protocol import Array

__all__ = ["GroupedFloats", "grouped_floats"]

_ROWS = 1 << 15  # 256 KiB of float64: a block and its temporaries stay in a core's second-level cache
_MOST_GROUPS = _ROWS // 8  # beyond it a block has too few rows of a group


@dataclass(frozen=True)
class GroupedFloats:
    """What is known of the values of each of G groups, or of S segments of rows; missing ones apart.

    Args:
        count: values, int64.
        total: their sum, float64.
        squares: the squared deviations from their mean, float64.
        low: the least, float64; +inf or NaN where there is none.
        high: the greatest, float64; -inf or NaN where there is none.
    """

    count: Array
    total: Array
    squares: Array
    low: Array
    high: Array

    @classmethod
    def of_segments(cls, values: Array, starts: Array, sizes: Array) -> Self:
        """Of segments of n float64 (overwritten): each `sizes` rows, which begin at `starts`."""
        low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        missing = np.flatnonzero(np.isnan(values))
        values[missing] = 0.0
        count = sizes - np.diff(missing.searchsorted(starts), append=len(missing))
        total = np.add.reduceat(values, starts)
        values -= np.repeat(total / np.maximum(count, 1), sizes)
        values[missing] = 0.0
        values *= values
        return cls(count, total, np.add.reduceat(values, starts), low, high)

    @classmethod
    def merged(cls, segments: Sequence[Self], groups: Array, num_groups: int) -> Self:
        """Of groups, from segments of their rows, given the group of each, by Chan, Golub and LeVeque's formula."""

        def all_of(name: str) -> Array:
            return np.concatenate([getattr(item, name) for item in segments] or [np.zeros(0)])

        def added(weights: Array) -> Array:
            return np.bincount(groups, weights, num_groups)

        part, part_total = all_of("count"), all_of("total")
        low, high = (np.full(num_groups, end) for end in (np.inf, -np.inf))
        np.fmin.at(low, groups, all_of("low"))
        np.fmax.at(high, groups, all_of("high"))
        count, total = added(part), added(part_total)
        apart = part_total / np.maximum(part, 1) - (total / np.maximum(count, 1))[groups]
        squares = added(all_of("squares") + part * apart * apart)
        return cls(count.astype("int64"), total, squares, low, high)


def grouped_floats(columns: Mapping[str, Array], ids: Array, num_groups: int) -> Mapping[str, GroupedFloats] | None:
    """What is known of n float64 of some columns in each group; None where there are too many groups for that.

    Args:
        columns: n float64 each, NaN where missing.
        ids: n int64, the number of each row's group.
        num_groups: how many there are.

    Memory: a block of rows at a time.

    Example:
        >>> found = grouped_floats({"x": np.array([1.0, 5.0, np.nan, 3.0])}, np.array([0, 1, 1, 0]), 2)
        >>> found["x"].total, found["x"].squares
        (array([4., 5.]), array([2., 0.]))
    """
    if num_groups > _MOST_GROUPS:
        return None
    segments: dict[str, list[GroupedFloats]] = {name: [] for name in columns}
    groups = [np.zeros(0, dtype="int64")]
    digits = "uint8" if num_groups <= 1 << 8 else "uint16"  # few digits are sorted many times faster
    with np.errstate(all="ignore"):
        for first in range(0, len(ids), _ROWS):
            rows = slice(first, first + _ROWS)
            block = ids[rows].astype(digits)
            order = block.argsort(kind="stable")
            block = block.take(order)
            starts = np.append(0, np.flatnonzero(block[1:] != block[:-1]) + 1)
            sizes = np.diff(starts, append=len(block))
            groups.append(block[starts])
            for name, values in columns.items():
                by_group = values[rows].copy().take(order)  # copied: what is taken at random had better be in cache
                segments[name].append(GroupedFloats.of_segments(by_group, starts, sizes))
        of_segments = np.concatenate(groups).astype("int64")
        return {name: GroupedFloats.merged(found, of_segments, num_groups) for name, found in segments.items()}
