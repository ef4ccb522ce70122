"""Quantiles of columns, exact for few distinct values and with a known error for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.preprocessing.blocks import floats, refuse
from gpupipe.preprocessing.fold import Columns

__all__ = ["MAX_BINS", "Histogram", "Quantiles"]

MAX_BINS = 65_536
"""Up to this many distinct values a column's counts are exact; at 16 bytes a bin, a summary stays below 1 MiB a
column."""

_MANTISSA_BITS = 52
_ALL_BUT_SIGN = np.int64(2**63 - 1)


@dataclass(frozen=True)
class Histogram:
    """How often each value occurs, values being told apart by the leading bits of their float64.

    Floats are mapped to integers of the same order; a bin holds the values whose integers agree but for the last
    `shift` bits. `shift` is 0, each value a bin of its own, as long as there are at most `MAX_BINS` of them, and else
    the smallest that leaves so few. It depends on the set of values alone, so any order of adding partitions gives the
    same bins.

    Args:
        keys: B int64, ascending: the ordered integers without their last `shift` bits.
        counts: values per bin, B int64.
        shift: bits left out.
        missing: how many values are not there.
    """

    keys: Any
    counts: Any
    shift: int
    missing: int

    @classmethod
    def of(cls, column: Column, backend: Backend) -> Self:
        """The histogram of one partition's column. Infinities are counted like any value."""
        xp = backend.xp
        values = floats(column, xp)
        values = values[~xp.isnan(values)]
        keys, counts = xp.unique(_ordered(values), return_counts=True)
        keys, counts, shift = _coarsened(keys, counts, 0, xp)
        return cls(backend.to_host(keys), backend.to_host(counts), shift, len(column) - len(values))

    def __add__(self, other: Self) -> Self:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([self.keys >> (shift - self.shift), other.keys >> (shift - other.shift)])
        order = np.argsort(keys, kind="stable")
        keys, counts = _grouped(keys[order], np.concatenate([self.counts, other.counts])[order], np)
        keys, counts, shift = _coarsened(keys, counts, shift, np)
        return type(self)(keys, counts, shift, self.missing + other.missing)

    def filled(self, value: float) -> Self:
        """As if each missing value had been `value`."""
        known = type(self)(self.keys, self.counts, self.shift, 0)
        if not self.missing:
            return known
        return known + type(self)(_ordered(np.array([value])), np.array([self.missing]), 0, 0)

    @property
    def total(self) -> int:
        """How many values there are."""
        return int(self.counts.sum())

    @property
    def relative_error(self) -> float:
        """How far a quantile may be from the true one, relative to it; 0 when exact."""
        return 0.0 if self.shift == 0 else 2.0 ** (self.shift - _MANTISSA_BITS)

    def quantile(self, share: float) -> float:
        """The value below which `share` of the values lie, interpolated linearly between neighbours.

        The values of a bin are taken to be spread evenly over it.
        """
        rank = share * (self.total - 1)
        below = self._ranked(int(rank))
        return below + (self._ranked(int(np.ceil(rank))) - below) * (rank - int(rank))

    def _ranked(self, rank: int) -> float:
        """The value with `rank` others before it."""
        ends = np.cumsum(self.counts)
        position = int(np.searchsorted(ends, rank, side="right"))
        first = self.keys[position] << self.shift
        low, high = _unordered(np.array([first, first + (1 << self.shift) - 1]))
        count = int(self.counts[position])
        place = (rank - (int(ends[position]) - count) + 0.5) / count
        return float(low + (high - low) * place)


@dataclass(frozen=True)
class Quantiles:
    """One histogram for each of some columns."""

    names: tuple[str, ...]
    histograms: tuple[Histogram, ...]

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """The histograms of one partition.

        Raises:
            BadData: an infinity.

        Memory: three columns at a time on the device; at most `MAX_BINS` keys and counts per column go to the host.
        """
        histograms = tuple(Histogram.of(column, backend) for column in columns.values())
        for item in histograms:
            if len(item.keys) and not np.isfinite(_unordered(item.keys[[0, -1]] << item.shift)).all():
                refuse(columns, backend, where)
        return cls(tuple(columns), histograms)

    def __add__(self, other: Self) -> Self:
        return type(self)(self.names, tuple(a + b for a, b in zip(self.histograms, other.histograms, strict=True)))

    def filled(self, values: Mapping[str, Any]) -> Self:
        """As if each missing value had been `values[name]`."""
        pairs = zip(self.names, self.histograms, strict=True)
        return type(self)(self.names, tuple(item.filled(float(values[name])) for name, item in pairs))


def _ordered(values: Array) -> Array:
    """Floats as int64 of the same order; both zeros are one."""
    bits = (values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _ALL_BUT_SIGN)


def _unordered(keys: Any) -> Any:
    """The floats that `_ordered` made these integers of."""
    return (keys ^ ((keys >> 63) & _ALL_BUT_SIGN)).view(np.float64)


def _coarsened(keys: Array, counts: Array, shift: int, xp: ModuleType) -> tuple[Array, Array, int]:
    """Ascending keys without as many trailing bits as have to go for at most `MAX_BINS` to differ."""
    if len(keys) <= MAX_BINS:
        return keys, counts, shift
    # Neighbours fall together once all bits they differ in are gone: all gaps but the MAX_BINS - 1 largest have to
    # close.
    gaps = (keys[1:] ^ keys[:-1]).view(np.uint64)
    widest = int(xp.partition(gaps, len(gaps) - MAX_BINS)[len(gaps) - MAX_BINS])
    bits = widest.bit_length()
    return *_grouped(keys >> bits, counts, xp), shift + bits


def _grouped(keys: Array, counts: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Distinct keys of an ascending list, their counts added."""
    last = xp.flatnonzero(xp.append(keys[1:] != keys[:-1], True)) if len(keys) else xp.zeros(0, dtype=np.int64)
    sums = xp.cumsum(counts)[last]
    return keys[last], xp.diff(sums, prepend=0)
