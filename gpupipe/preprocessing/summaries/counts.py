"""Value counts of columns: strings, integers, booleans, floats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import (
    Dictionary,
    SpilledCounts,
    filter_frequent,
    make_dictionary,
    merge_counts,
    sort_by_count,
)
from gpupipe.backend.hashing import count_keys
from gpupipe.config import settings
from gpupipe.preprocessing.learned_step import Columns, ColumnSummaries
from gpupipe.preprocessing.numeric import refuse
from gpupipe.schema import FLOATS

# Parts wait to be merged until together they have this many values: merging a thousand small dictionaries one by one
# would hash the large one they make a thousand times.
_WAITING_VALUES = 1 << 20

# The bytes of distinct values of one column that stay in memory while partitions are read.
_RESIDENT_BYTES = 32 << 20

# Integers are counted by direct addressing where their range is at most this, or the number of rows if that is more.
DIRECT_RANGE = 1 << 16


@dataclass(frozen=True)
class ValueCounts:
    """Value counts of one column: pairs of dictionary (Arrow) and counts (int64); a value may be in several.

    Pairs that are too many to stay in memory are `spilled`, on disk.
    """

    dtype: str
    parts: tuple[tuple[Dictionary, Any], ...]
    missing: int
    spilled: SpilledCounts = field(default_factory=SpilledCounts)

    @classmethod
    def of(cls, column: Column, backend: Backend) -> Self:
        """Count the values of one partition's column."""
        if column.dictionary is not None:
            codes = column.data.astype("int64") + 1
            table = backend.to_host(backend.xp.bincount(codes, minlength=len(column.dictionary) + 1)).astype(np.int64)
            used, missing = np.flatnonzero(table[1:]), int(table[0])
            values = column.dictionary if len(used) == len(column.dictionary) else column.dictionary.take(used)
            counts = table[1:][used]
        else:
            values, counts = _count_numbers(column, backend)
            missing = len(column) - int(counts.sum())
        return cls(column.dtype, ((values, counts),), missing)

    def __add__(self, other: Self) -> Self:
        parts, spilled = (*self.parts, *other.parts), self.spilled + other.spilled
        sizes = [len(values) for values, _ in parts]
        if sum(sizes) > max(_WAITING_VALUES, 2 * max(sizes, default=0)):
            values, counts = merge_counts(parts)
            limit = settings().memory_limit
            fits = values.nbytes <= (_RESIDENT_BYTES if limit is None else min(_RESIDENT_BYTES, limit // 32))
            parts, spilled = (((values, counts),), spilled) if fits else ((), spilled.with_run(values, counts))
        return replace(self, parts=parts, missing=self.missing + other.missing, spilled=spilled)

    def filled(self, value: Any) -> Self:
        """Return the counts with each missing value replaced by `value`."""
        if not self.missing:
            return self
        extra = make_dictionary([value], self.dtype), np.array([self.missing])
        return replace(self, parts=(*self.parts, extra), missing=0)

    def ranked(self, min_count: int = 1) -> tuple[Dictionary, Any]:
        """Return values that occur `min_count` times or more, and counts, by count descending, then value ascending.

        Memory: the values it gives three times; those on disk a 64th at a time.
        """
        if self.spilled.runs:
            rest = self.spilled.with_run(*merge_counts(self.parts)) if self.parts else self.spilled
            return sort_by_count(*rest.merge(min_count))
        return sort_by_count(*filter_frequent(*merge_counts(self.parts), min_count))


class CategoryCounts(ColumnSummaries[ValueCounts]):
    """Value counts of some columns."""

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """Count the values of one partition; refuses infinities."""
        counted = tuple(ValueCounts.of(column, backend) for column in columns.values())
        for item in counted:
            if item.dtype in FLOATS and not np.isfinite(item.parts[0][0].to_numpy()).all():
                refuse(columns, backend, where)
        return cls(tuple(columns), counted)


def integers(data: Array, dtype: str) -> Array:
    """Convert integers or booleans to int64, uint64 where they are unsigned; no copy where the type is the same."""
    return data.astype("uint64" if dtype == "uint64" else "int64", copy=False)


def _count_numbers(column: Column, backend: Backend) -> tuple[Dictionary, Any]:
    xp = backend.xp
    if column.dtype in FLOATS:
        data = floats(column, xp)
        data = data[~xp.isnan(data)] + 0.0  # both zeros are one value
    else:
        data = integers(column.data if column.valid is None else column.data[column.valid], column.dtype)
        low, high = (0, -1) if not len(data) else backend.to_host(xp.stack([data.min(), data.max()])).tolist()
        if high - low < max(DIRECT_RANGE, len(data)):
            counts = backend.to_host(xp.bincount((data - data.dtype.type(low)).astype("int64"))).astype(np.int64)
            offsets = np.flatnonzero(counts)
            return make_dictionary(offsets.astype(data.dtype) + data.dtype.type(low), column.dtype), counts[offsets]
        if xp is np:
            values, counts = count_keys([(data, np.ones(1, dtype=np.int64))])
            return make_dictionary(values, column.dtype), counts
    values, counts = xp.unique(data, return_counts=True)
    return make_dictionary(backend.to_host(values), column.dtype), backend.to_host(counts).astype(np.int64)
