"""Histogram of numbers by the leading bits of their float64: a mergeable summary, from which quantiles follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self

import numpy as np

from gpupipe.backend.columns import Array, Backend, Column, floats

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
        return cls._from_keys(keys, counts, len(column) - len(values), backend, limit)

    @classmethod
    def from_counts(cls, values: Array, counts: Array, backend: Backend, limit: int = MAX_BINS) -> Self:
        """Build the histogram of ascending float64 values, none of them NaN, that occur so many times."""
        keys, counts = _group_keys(_to_sortable(values), counts, backend.xp)
        return cls._from_keys(keys, counts, 0, backend, limit)

    @classmethod
    def _from_keys(cls, keys: Array, counts: Array, missing: int, backend: Backend, limit: int) -> Self:
        keys, counts, shift = _coarsen(keys, counts, 0, limit, backend.xp)
        return cls(backend.to_host(keys), backend.to_host(counts), shift, missing, limit)

    def __add__(self, other: Self) -> Self:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([self.keys >> (shift - self.shift), other.keys >> (shift - other.shift)])
        order = np.argsort(keys, kind="stable")
        keys, counts = _group_keys(keys[order], np.concatenate([self.counts, other.counts])[order], np)
        keys, counts, shift = _coarsen(keys, counts, shift, self.limit, np)
        return replace(self, keys=keys, counts=counts, shift=shift, missing=self.missing + other.missing)

    def filled(self, value: Any) -> Self:
        """Return the histogram with each missing value replaced by `value`."""
        histogram = replace(self, missing=0)
        keys, counts = _to_sortable(np.array([float(value)])), np.array([self.missing])
        return histogram + replace(histogram, keys=keys, counts=counts, shift=0) if self.missing else histogram

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
        with np.errstate(invalid="ignore"):  # between infinities
            gap = above - below
            between = np.where(part < 0.5, below + gap * part, above - gap * (1 - part))
        return np.where((part == 0) | (below == above), below, between)

    def _ranked(self, ranks: Any) -> Any:
        """Return the values with so many others before them."""
        ends = np.cumsum(self.counts)
        ranks = np.clip(ranks, 0, ends[-1] - 1).astype(np.int64)
        position = np.searchsorted(ends, ranks, side="right")
        low, width = self._bins(position)
        count = self.counts[position]
        return low + width * ((ranks - (ends[position] - count) + 0.5) / count)

    @property
    def ends(self) -> Any:
        """The smallest value that the first and the last bin may hold, 2 float64."""
        return _from_sortable(self.keys[[0, -1]] << self.shift)

    @property
    def values(self) -> Any:
        """The middle of each bin, B float64, ascending: the value itself where `shift` is 0."""
        low, width = self._bins(slice(None))
        return low + width * 0.5

    def _bins(self, positions: Any) -> tuple[Any, Any]:
        """Return the smallest value a bin may hold, and how far the largest is from it."""
        first = self.keys[positions] << self.shift
        low = _from_sortable(first)
        with np.errstate(over="ignore", invalid="ignore"):
            width = _from_sortable(first + (1 << self.shift) - 1) - low
        # The bin of an infinity reaches into the floats that are none.
        return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(width), 0.0, width)


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
    # Neighbours fall together once all bits they differ in are gone: all gaps but the limit - 1 largest have to close.
    gaps = (keys[1:] ^ keys[:-1]).view(np.uint64)
    widest = int(xp.partition(gaps, len(gaps) - limit)[len(gaps) - limit])
    bits = widest.bit_length()
    return *_group_keys(keys >> bits, counts, xp), shift + bits


def _group_keys(keys: Array, counts: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Return the distinct keys of an ascending list, their counts added."""
    last = xp.flatnonzero(xp.append(keys[1:] != keys[:-1], True)) if len(keys) else xp.zeros(0, dtype=np.int64)
    sums = xp.cumsum(counts)[last]
    return keys[last], xp.diff(sums, prepend=0)
