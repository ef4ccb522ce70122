"""Distinct values of a column and how often each occurs, on its device: by direct addressing, hashing or sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.backend.columns import Array, Backend, Column, floats
from gpupipe.backend.kernels import count_keys
from gpupipe.schema import FLOATS

# Integers are counted by direct addressing where their range is at most this, or the number of rows if that is more.
DIRECT_RANGE = 1 << 16


def integers(data: Array, dtype: str) -> Array:
    """Convert integers or booleans to int64, uint64 where they are unsigned; no copy where the type is the same."""
    return data.astype("uint64" if dtype == "uint64" else "int64", copy=False)


def count_numbers(column: Column, backend: Backend, *, in_order: bool = False) -> tuple[Array, Array]:
    """Count the distinct present values of numbers, booleans or times: the values, ascending if asked, and counts."""
    xp = backend.xp
    if column.dtype in FLOATS:
        data = floats(column, xp)
        data = data[~xp.isnan(data)] + 0.0  # both zeros are one value
    else:
        data = integers(column.data if column.valid is None else column.data[column.valid], column.dtype)
        addressed = address_integers(data, backend)
        if addressed is not None:
            places, first, _ = addressed
            counts = xp.bincount(places)
            used = xp.flatnonzero(counts)
            return used.astype(first.dtype) + first, counts[used].astype("int64")
        if xp is np and not in_order:
            return count_keys([(data, np.ones(1, dtype=np.int64))])
    values, counts = xp.unique(data, return_counts=True)
    return values, counts.astype("int64")


def address_integers(data: Array, backend: Backend) -> tuple[Array, Any, int] | None:
    """Return integers as offsets from the smallest, the smallest, and the size of their range; None if it is wide."""
    low, high = backend.to_host(backend.xp.stack([data.min(), data.max()])).tolist() if len(data) else (0, -1)
    if high - low >= max(DIRECT_RANGE, len(data)):
        return None
    first = data.dtype.type(low)
    return (data - first).astype("int64"), first, high - low + 1
