"""Value counts of columns: strings, integers, booleans, floats."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from types import ModuleType
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
from gpupipe.backend.kernels import count_keys
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
    """Value counts of one column: pairs of values and counts, in any of which a value may be; too many are on disk."""

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
        """Return values that occur `min_count` times or more, and counts, by count descending, then value ascending."""
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


MAX_BINS = 65_536
"""Up to this many distinct values a column's counts are exact; at 16 bytes a bin, a summary stays below 1 MiB a
column."""

_MANTISSA_BITS = 52
_ALL_BUT_SIGN = np.int64(2**63 - 1)


@dataclass(frozen=True)
class Histogram:
    """Histogram of values by the leading bits of their float64.

    Floats are mapped to integers of the same order; a bin holds the values whose integers agree but for the last
    `shift` bits. `shift` is 0, each value a bin of its own, as long as there are at most `limit` of them, and else
    the smallest that leaves so few. It depends on the set of values alone, so any order of adding partitions gives the
    same bins. `keys` (B int64, ascending) are the integers without their last `shift` bits, `counts` the values.
    """

    keys: Any
    counts: Any
    shift: int
    missing: int
    limit: int = MAX_BINS

    @classmethod
    def of(cls, column: Column, backend: Backend, limit: int = MAX_BINS) -> Self:
        """Count the values of one partition's column. Infinities are counted like any value."""
        xp = backend.xp
        values = floats(column, xp)
        values = values[~xp.isnan(values)]
        keys, counts = xp.unique(_to_sortable(values), return_counts=True)
        keys, counts, shift = _coarsen(keys, counts, 0, limit, xp)
        return cls(backend.to_host(keys), backend.to_host(counts), shift, len(column) - len(values), limit)

    def __add__(self, other: Self) -> Self:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([self.keys >> (shift - self.shift), other.keys >> (shift - other.shift)])
        order = np.argsort(keys, kind="stable")
        keys, counts = _group_keys(keys[order], np.concatenate([self.counts, other.counts])[order], np)
        keys, counts, shift = _coarsen(keys, counts, shift, self.limit, np)
        return replace(self, keys=keys, counts=counts, shift=shift, missing=self.missing + other.missing)

    def filled(self, value: Any) -> Self:
        """Return the histogram with each missing value replaced by `value`."""
        known = replace(self, missing=0)
        if not self.missing:
            return known
        return known + replace(
            known, keys=_to_sortable(np.array([float(value)])), counts=np.array([self.missing]), shift=0
        )

    @property
    def total(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    @property
    def relative_error(self) -> float:
        """The largest error of a quantile relative to the true one; 0 when exact."""
        return 0.0 if self.shift == 0 else 2.0 ** (self.shift - _MANTISSA_BITS)

    def quantiles(self, shares: Any, method: str = "linear") -> Any:
        """Return the quantiles at these fractions of the values, Q float64 for Q float64, as `numpy.quantile`.

        The method is `"linear"` or `"averaged_inverted_cdf"`. The values of a bin are taken to be spread evenly.
        """
        rank = shares * (self.total - 1) if method == "linear" else shares * self.total - 1
        lower = np.floor(rank)
        part = rank - lower if method == "linear" else np.where(rank == lower, 0.5, 1.0)
        below, above = self._ranked(lower), self._ranked(lower + 1)
        gap = above - below
        return np.where(part < 0.5, below + gap * part, above - gap * (1 - part))

    def _ranked(self, ranks: Any) -> Any:
        """Return the values with so many others before them."""
        ends = np.cumsum(self.counts)
        ranks = np.clip(ranks, 0, ends[-1] - 1).astype(np.int64)
        position = np.searchsorted(ends, ranks, side="right")
        low, width = self._bins(position)
        count = self.counts[position]
        return low + width * ((ranks - (ends[position] - count) + 0.5) / count)

    @property
    def values(self) -> Any:
        """The middle of each bin, B float64, ascending: the value itself where `shift` is 0."""
        low, width = self._bins(slice(None))
        return low + width * 0.5

    def _bins(self, positions: Any) -> tuple[Any, Any]:
        """Return the smallest value a bin may hold, and how far the largest is from it."""
        first = self.keys[positions] << self.shift
        low = _from_sortable(first)
        with np.errstate(over="ignore"):
            return low, _from_sortable(first + (1 << self.shift) - 1) - low


class Quantiles(ColumnSummaries[Histogram]):
    """Histograms of some columns."""

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str, *, exact: bool = False) -> Self:
        """Count the values of one partition; with `exact` each distinct value has a bin. Refuses infinities."""
        limit = sys.maxsize if exact else MAX_BINS
        histograms = tuple(Histogram.of(column, backend, limit) for column in columns.values())
        for item in histograms:
            if len(item.keys) and not np.isfinite(_from_sortable(item.keys[[0, -1]] << item.shift)).all():
                refuse(columns, backend, where)
        return cls(tuple(columns), histograms)

    @property
    def totals(self) -> list[int]:
        """The number of values of each column."""
        return [item.total for item in self.columns]

    @property
    def relative_errors(self) -> Any:
        """The largest errors of quantiles relative to the true ones, C float64; 0 where exact."""
        return np.array([item.relative_error for item in self.columns])


def _to_sortable(values: Array) -> Array:
    """Map floats to int64 of the same order; both zeros are one."""
    bits = (values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _ALL_BUT_SIGN)


def _from_sortable(keys: Any) -> Any:
    """Map the integers of `_to_sortable` back to floats."""
    return (keys ^ ((keys >> 63) & _ALL_BUT_SIGN)).view(np.float64)


def _coarsen(keys: Array, counts: Array, shift: int, limit: int, xp: ModuleType) -> tuple[Array, Array, int]:
    """Drop as many trailing bits of ascending keys as necessary for at most `limit` to differ."""
    if len(keys) <= limit:
        return keys, counts, shift
    # Neighbours fall together once all bits they differ in are gone: all gaps but the limit - 1 largest have to
    # close.
    gaps = (keys[1:] ^ keys[:-1]).view(np.uint64)
    widest = int(xp.partition(gaps, len(gaps) - limit)[len(gaps) - limit])
    bits = widest.bit_length()
    return *_group_keys(keys >> bits, counts, xp), shift + bits


def _group_keys(keys: Array, counts: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Return the distinct keys of an ascending list, their counts added."""
    last = xp.flatnonzero(xp.append(keys[1:] != keys[:-1], True)) if len(keys) else xp.zeros(0, dtype=np.int64)
    sums = xp.cumsum(counts)[last]
    return keys[last], xp.diff(sums, prepend=0)
