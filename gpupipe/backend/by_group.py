"""What is known of the floats of each group of rows on a CPU, in two passes by a compiled loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from gpupipe.backend.numbers import add_by_group
from gpupipe.backend.protocol import Array

__all__ = ["GroupedFloats"]


@dataclass(frozen=True)
class GroupedFloats:
    """What is known of the values of each of G groups; missing ones apart.

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
        zeros = [np.zeros(num_groups, dtype=dtype) for dtype in ("int64", "float64", "float64")]
        made = cls(*zeros, *(np.full(num_groups, end) for end in (np.inf, -np.inf)))
        add_by_group(groups, values, made.count, made.total, made.squares, made.low, made.high)
        return made
