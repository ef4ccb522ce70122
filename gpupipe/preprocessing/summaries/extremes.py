"""Minimum and maximum of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend
from gpupipe.backend.float_kernels import find_bounds
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import refuse, tabulate

__all__ = ["Extremes"]


@dataclass(frozen=True)
class Extremes:
    """Minimum and maximum of C columns, missing values apart.

    Args:
        names: the columns.
        missing: how many values are not there, C int64.
        low: C float64, +inf where there is no value.
        high: C float64, -inf where there is no value.
    """

    names: tuple[str, ...]
    missing: Any
    low: Any
    high: Any

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """Compute the extremes of one partition.

        Raises:
            BadData: an infinity, or a range that is one.

        Memory: one float64 block at a time; 3 numbers per block and column go to the host.
        """
        found = cls.of_blocks(columns, tabulate(columns, find_bounds, 3, backend))
        if np.isneginf(found.low).any() or np.isposinf(found.high).any():
            refuse(columns, backend, where)
        return found

    @classmethod
    def of_blocks(cls, columns: Columns, table: Any) -> Self:
        """Merge the extremes of one partition's blocks: B x C x 3, as `tabulate` gives them."""
        low, high = table[..., 1].min(axis=0, initial=np.inf), table[..., 2].max(axis=0, initial=-np.inf)
        return cls(tuple(columns), table[..., 0].sum(axis=0).astype(np.int64), low, high)

    def __add__(self, other: Self) -> Self:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return replace(self, missing=self.missing + other.missing, low=low, high=high)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the extremes with each missing value replaced by `values[name]`."""
        fill = np.array([float(values[name]) for name in self.names])
        low = np.where(self.missing > 0, np.minimum(self.low, fill), self.low)
        high = np.where(self.missing > 0, np.maximum(self.high, fill), self.high)
        return replace(self, missing=np.zeros_like(self.missing), low=low, high=high)
