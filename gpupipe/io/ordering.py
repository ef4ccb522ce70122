"""Rows in the order of several columns, and rows that share their values: array code, the same on both backends.

A missing value stands behind all others in either direction, as in pandas; two missing values are equal, and so are
0.0 and -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pyarrow.compute as pc

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.schema import FLOATS

__all__ = ["Groups", "differs", "grouped", "sort_order"]


def sort_order(columns: Sequence[Column], backend: Backend, ascending: Sequence[bool] | None = None) -> Array:
    """The n row positions in the order of the first column, then the second and so on; ties as they stand.

    Args:
        columns: at least one, n rows each.
        ascending: for each column; all by default.

    Memory: three arrays of n int64 at a time.

    Example:
        >>> from gpupipe.backend import select
        >>> sort_order([Column("float64", np.array([2.0, np.nan, 1.0]))], select("cpu"))
        array([2, 0, 1])
    """
    xp = backend.xp
    order = xp.arange(len(columns[0]))
    for column, up in reversed(list(zip(columns, ascending or [True] * len(columns), strict=True))):
        for key in _keys(column, up, backend):
            order = order[xp.argsort(key[order], kind="stable")]
    return order


@dataclass(frozen=True)
class Groups:
    """Rows with equal keys, numbered in the order of the keys.

    Args:
        order: n row positions by group, in a group as they stand.
        starts: where each group begins in `order`.
        sizes: the rows of each group.
        ids: n int64, the number of each row's group.
    """

    order: Array
    starts: Array
    sizes: Array
    ids: Array

    def __len__(self) -> int:
        return int(self.starts.shape[0])

    @property
    def first(self) -> Array:
        """The position of each group's first row."""
        return self.order[self.starts]

    @property
    def last(self) -> Array:
        """The position of each group's last row."""
        return self.order[self.starts + self.sizes - 1]


def grouped(columns: Sequence[Column], backend: Backend) -> Groups:
    """The groups of n rows that have equal values in all columns.

    Memory: five arrays of n int64 at a time.

    Example:
        >>> from gpupipe.backend import select
        >>> found = grouped([Column("int64", np.array([7, 5, 7]))], select("cpu"))
        >>> found.ids, found.first, found.last
        (array([1, 0, 1]), array([1, 0]), array([1, 2]))
    """
    xp = backend.xp
    order = sort_order(columns, backend)
    begins = xp.zeros(len(order), dtype=bool)
    begins[:1] = True
    for column in columns:
        begins[1:] |= differs(column.take(order), xp)
    starts = xp.flatnonzero(begins)
    ids = xp.zeros(len(order), dtype="int64")
    ids[order] = xp.cumsum(begins) - 1
    return Groups(order, starts, xp.bincount(ids, minlength=len(starts)), ids)


def differs(column: Column, xp: ModuleType) -> Array:
    """n - 1 booleans: whether each row has another value than the one before it.

    Example:
        >>> differs(Column("float64", np.array([1.0, np.nan, np.nan])), np)
        array([ True, False])
    """
    data, missing = column.data, column.missing(xp)
    other = data[1:] != data[:-1]
    if missing is None or column.dictionary is not None:
        return other
    return (other & ~(missing[1:] & missing[:-1])) | (missing[1:] != missing[:-1])


def _keys(column: Column, up: bool, backend: Backend) -> list[Array]:
    """What rows are sorted by, ascending and stably, one after the other."""
    xp = backend.xp
    if column.dictionary is not None:
        size = len(column.dictionary)
        ranks = np.full(size + 1, size, dtype="int64")  # the last is for missing values
        places = pc.sort_indices(column.dictionary).to_numpy()
        ranks[places] = np.arange(size) if up else np.arange(size)[::-1]
        return [backend.to_device(ranks)[column.data]]
    if column.dtype in FLOATS:
        return [(column.data if up else -column.data) + 0.0]  # NaN is the last in either direction
    data = column.data.astype("uint8") if column.dtype == "bool" else column.data
    key = data if up else ~data
    if column.valid is None:
        return [key]
    return [xp.where(column.valid, key, key.dtype.type(0)), (~column.valid).astype("uint8")]
