"""How often each distinct value of a column occurs: strings, integers, booleans, floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import merged_counts, ranked
from gpupipe.preprocessing.blocks import floats, refuse
from gpupipe.preprocessing.fold import Columns
from gpupipe.schema import FLOATS

__all__ = ["CategoryCounts", "ValueCounts", "integers", "vocabulary_type"]

# Parts wait to be merged until together they have this many values: merging a thousand small dictionaries one by one
# would hash the large one they make a thousand times.
_WAITING_VALUES = 1 << 20

# Integers are counted by direct addressing where their range is at most this, or the number of rows if that is more.
_DIRECT_RANGE = 1 << 16


@dataclass(frozen=True)
class ValueCounts:
    """The counts of one column's values, all distinct ones kept.

    Args:
        dtype: the column's type.
        parts: pairs of dictionary (Arrow) and counts (int64, on the host); a value may stand in several.
        missing: how many values are not there.
    """

    dtype: str
    parts: tuple[tuple[pa.Array, Any], ...]
    missing: int

    @classmethod
    def of(cls, column: Column, backend: Backend) -> Self:
        """The counts of one partition's column."""
        if column.dictionary is not None:
            values, counts, missing = _counted_codes(column, column.dictionary, backend)
        else:
            values, counts = _counted_numbers(column, backend)
            missing = len(column) - int(counts.sum())
        return cls(column.dtype, ((values, counts),), missing)

    def __add__(self, other: Self) -> Self:
        parts = (*self.parts, *other.parts)
        if sum(len(values) for values, _ in parts) > max(_WAITING_VALUES, 2 * max(len(values) for values, _ in parts)):
            parts = (merged_counts(parts),)
        return replace(self, parts=parts, missing=self.missing + other.missing)

    def filled(self, value: Any) -> Self:
        """As if each missing value had been `value`."""
        if not self.missing:
            return self
        plain = int(value) if isinstance(value, bool) else value
        extra = pa.array([plain], vocabulary_type(self.dtype)), np.array([self.missing])
        return replace(self, parts=(*self.parts, extra), missing=0)

    def ranked(self) -> tuple[pa.Array, Any]:
        """The distinct values and their counts, by count descending, then value ascending."""
        return ranked(*merged_counts(self.parts))


@dataclass(frozen=True)
class CategoryCounts:
    """The value counts of some columns."""

    names: tuple[str, ...]
    columns: tuple[ValueCounts, ...]

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """The counts of one partition.

        Raises:
            BadData: an infinity.

        Memory: a temporary of 8 bytes a row; distinct values and their counts go to the host.
        """
        counted = tuple(ValueCounts.of(column, backend) for column in columns.values())
        for item in counted:
            if item.dtype in FLOATS and not np.isfinite(item.parts[0][0].to_numpy()).all():
                refuse(columns, backend, where)
        return cls(tuple(columns), counted)

    def __add__(self, other: Self) -> Self:
        return type(self)(self.names, tuple(a + b for a, b in zip(self.columns, other.columns, strict=True)))

    def filled(self, values: Mapping[str, Any]) -> Self:
        """As if each missing value had been `values[name]`."""
        pairs = zip(self.names, self.columns, strict=True)
        return type(self)(self.names, tuple(item.filled(values[name]) for name, item in pairs))


def vocabulary_type(dtype: str) -> pa.DataType:
    """The Arrow type the values of a column are counted in."""
    if dtype == "string":
        return pa.large_string()
    if dtype in FLOATS:
        return pa.float64()
    return pa.uint64() if dtype == "uint64" else pa.int64()


def integers(data: Array, dtype: str) -> Array:
    """Integers or booleans as int64, or uint64 where they are; shares memory where they are already."""
    return data.astype("uint64" if dtype == "uint64" else "int64", copy=False)


def _counted_codes(column: Column, dictionary: pa.Array, backend: Backend) -> tuple[pa.Array, Any, int]:
    codes = column.data.astype("int64") + 1
    counts = backend.to_host(backend.xp.bincount(codes, minlength=len(dictionary) + 1)).astype(np.int64)
    used = np.flatnonzero(counts[1:])
    values = dictionary if len(used) == len(dictionary) else dictionary.take(pa.array(used))
    return values.cast(pa.large_string()), counts[1:][used], int(counts[0])


def _counted_numbers(column: Column, backend: Backend) -> tuple[pa.Array, Any]:
    xp, kind = backend.xp, vocabulary_type(column.dtype)
    if column.dtype in FLOATS:
        data = floats(column, xp)
        data = data[~xp.isnan(data)] + 0.0  # both zeros are one value
    else:
        data = integers(column.data if column.valid is None else column.data[column.valid], column.dtype)
        low, high = (0, -1) if not len(data) else backend.to_host(xp.stack([data.min(), data.max()])).tolist()
        if high - low < max(_DIRECT_RANGE, len(data)):
            counts = backend.to_host(xp.bincount((data - data.dtype.type(low)).astype("int64"))).astype(np.int64)
            offsets = np.flatnonzero(counts)
            return pa.array(offsets.astype(str(data.dtype)) + data.dtype.type(low), kind), counts[offsets]
    values, counts = xp.unique(data, return_counts=True)
    return pa.array(backend.to_host(values), kind), backend.to_host(counts).astype(np.int64)
