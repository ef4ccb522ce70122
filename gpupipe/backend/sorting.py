"""Sorting and grouping of rows by several columns: array code, the same on both backends.

A missing value comes last, as in pandas; two missing values are equal, and so are 0.0 and -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.compute as pc

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.float_kernels import GroupSums
from gpupipe.schema import FLOATS

_FEW = 1 << 16  # so many possible values are counted, however few rows there are


def sort_order(columns: Sequence[Column], backend: Backend) -> Array:
    """Return the n row positions sorted by the first column, then the second and so on; the sort is stable."""
    xp = backend.xp
    order = xp.arange(len(columns[0]))
    for column in reversed(columns):
        for key in _make_sort_keys(column, backend):
            order = order[xp.argsort(key[order], kind="stable")]
    return order


@dataclass(frozen=True)
class Groups:
    """Groups of rows with equal keys, numbered in the order of the keys."""

    ids: Array  # n int64, the number of each row's group
    sizes: Array  # the rows of each group; none is empty
    xp: ModuleType
    sorted_by: Array | None = None  # the row positions by group, in the original order within it, where they are known

    def __len__(self) -> int:
        return int(self.sizes.shape[0])

    @cached_property
    def sums(self) -> GroupSums:
        """The group sums of floats."""
        return GroupSums(self.ids, len(self), self.xp)

    @property
    def examples(self) -> Array:
        """The position of any one row of each group; the first, unless all rows of a group have the same keys' bits."""
        xp = self.xp
        if self.sorted_by is not None:
            return self.sorted_by[xp.cumsum(self.sizes) - self.sizes]
        found, some = xp.full(len(self), -1, dtype="int64"), self.ids[:_FEW]
        found[some] = xp.arange(len(some))  # of several any one
        if xp is not np or (found < 0).any():  # whether some of the rows will do is not worth waiting for a GPU
            found[self.ids] = xp.arange(len(self.ids))
        return found


def group_by_keys(columns: Sequence[Column], backend: Backend) -> Groups:
    """Group n rows by equal values in all columns: by counting if few values are possible, else by sorting."""
    found = _group_by_counting(columns, backend)
    if found is not None:
        return found
    xp = backend.xp
    order = sort_order(columns, backend)
    begins = xp.zeros(len(order), dtype=bool)
    begins[:1] = True
    for column in columns:
        begins[1:] |= differs(column.take(order), xp)
    ids = xp.zeros(len(order), dtype="int64")
    ids[order] = xp.cumsum(begins) - 1
    return Groups(ids, xp.bincount(ids), xp, order)


def _group_by_counting(columns: Sequence[Column], backend: Backend) -> Groups | None:
    """Group rows by the rank of their keys among all combinations; None if these are many more than the rows."""
    xp, num_rows = backend.xp, len(columns[0])
    most = max(_FEW, 2 * num_rows)
    if not num_rows:
        none = xp.zeros(0, dtype="int64")
        return Groups(none, none, xp)
    places, num_places = None, 1
    for column in columns:
        found = _rank_values(column, most // num_places, backend)
        if found is None:
            return None
        places = found[0] if places is None else places * found[1] + found[0]
        num_places *= found[1]
    counts = xp.bincount(places, minlength=num_places)
    there = counts > 0
    return Groups((xp.cumsum(there) - 1).take(places), counts[there], xp)


def _rank_values(column: Column, most: int, backend: Backend) -> tuple[Array, int] | None:
    """Rank each value among all that are possible, a missing one last, and return how many these are."""
    if column.dictionary is not None:
        size = len(column.dictionary) + 1
        return (_rank_strings(column, backend, "int64"), size) if size <= most else None
    if column.dtype in FLOATS:
        return None
    xp, data, low, span = backend.xp, column.data, 0, 2
    if column.dtype != "bool":
        present = data if column.valid is None else data[column.valid]
        ends = backend.to_host(xp.stack([present.min(), present.max()])) if len(present) else (0, 0)
        low, span = int(ends[0]), int(ends[1]) - int(ends[0]) + 1
    if span >= most:
        return None
    places = (data - data.dtype.type(low) if data.dtype.itemsize == 8 else data.astype("int64") - low).astype("int64")
    if column.valid is None:
        return places, span
    return xp.where(column.valid, places, span), span + 1


def differs(column: Column, xp: ModuleType) -> Array:
    """Return n - 1 booleans: whether each row has another value than the one before it."""
    data, missing = column.data, column.missing(xp)
    other = data[1:] != data[:-1]
    if missing is None or column.dictionary is not None:
        return other
    return (other & ~(missing[1:] & missing[:-1])) | (missing[1:] != missing[:-1])


def _make_sort_keys(column: Column, backend: Backend) -> list[Array]:
    """Return the sort keys of a column, to be applied one after the other, ascending and stable."""
    if column.dictionary is not None:
        return [_rank_strings(column, backend, "uint16" if len(column.dictionary) < 1 << 16 else "int64")]
    if column.dtype in FLOATS:
        return [column.data + 0.0]  # NaN is the last
    key = column.data.astype("uint8") if column.dtype == "bool" else column.data
    if column.valid is None:
        return [key]
    return [backend.xp.where(column.valid, key, key.dtype.type(0)), (~column.valid).astype("uint8")]


def _rank_strings(column: Column, backend: Backend, dtype: str) -> Array:
    """Rank each string in its dictionary; a missing one has the highest rank."""
    dictionary: Any = column.dictionary
    ranks = np.full(len(dictionary) + 1, len(dictionary), dtype=dtype)  # the last is for missing values
    ranks[pc.sort_indices(dictionary).to_numpy()] = np.arange(len(dictionary))
    return backend.to_device(ranks).take(column.data)
