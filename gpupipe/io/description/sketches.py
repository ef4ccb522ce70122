"""Sketches of a column's values in bounded memory, which merge: how many differ, and which are frequent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, make_dictionary, merge_counts, sort_by_count
from gpupipe.backend.kernels import hash_column, hash_strings, sort_unique, splitmix64

_SEED = 0
_EXAMPLES = 64


@dataclass(frozen=True)
class DistinctSketch:
    """Sketch of how many values differ: the `limit` smallest hashes, ascending, and the texts of the first 64.

    The values that a hash selects are a random sample of the different ones, the same under any partitioning.

    Source: Beyer, Haas, Reinwald, Sismanis, Gemulla, "On synopses for distinct-value estimation under multiset
    operations", SIGMOD 2007.
    """

    hashes: Any  # uint64
    limit: int
    texts: pa.Array | None = None

    @classmethod
    def from_numbers(cls, values: Array, dtype: str, backend: Backend, limit: int) -> Self:
        """Sketch distinct numbers, on the device."""
        hashes = hash_column(Column(dtype, values), _SEED, backend)
        if len(hashes) > 4 * limit:  # about twice as many as are needed; of a skewed draw all
            low = hashes[hashes <= np.uint64(2 * limit / len(hashes) * 2.0**64)]
            hashes = low if len(low) >= limit else hashes
        return cls(backend.to_host(sort_unique(hashes, backend.xp)[:limit]), limit)

    @classmethod
    def from_texts(cls, values: Dictionary, limit: int) -> Self:
        """Sketch distinct texts."""
        hashes = splitmix64(_SEED, hash_strings(values))
        order = np.argsort(hashes)[:limit]
        return cls(hashes[order], limit, values.take(pa.array(order[:_EXAMPLES])))

    def __add__(self, other: Self) -> Self:
        hashes = sort_unique(np.concatenate([self.hashes, other.hashes]), np)[: self.limit]
        if self.texts is None or other.texts is None:
            return replace(self, hashes=hashes)
        heads = [self.hashes[: len(self.texts)], other.hashes[: len(other.texts)]]
        _, first = np.unique(np.concatenate(heads), return_index=True)
        texts = pa.concat_arrays([self.texts, other.texts]).take(pa.array(first[:_EXAMPLES]))
        return replace(self, hashes=hashes, texts=texts)

    @property
    def is_exact(self) -> bool:
        """Whether all hashes are here."""
        return len(self.hashes) < self.limit

    @property
    def estimate(self) -> int:
        """The number of different values; within 1 / sqrt(`limit`) of the true one, one standard deviation."""
        if self.is_exact:
            return len(self.hashes)
        return round((self.limit - 1) / (float(self.hashes[-1]) / 2.0**64))


@dataclass(frozen=True)
class FrequentValues:
    """Values that are frequent, and their counts: at most `error` too low, all there are while `error` is 0.

    Of more than `limit` values the counts are lowered by that of the first one too many, and those at 0 are dropped;
    so a value that is in more than `error` rows is always here, and `error` is at most the rows by `limit`.

    Source: the summary of Misra and Gries, as merged by Agarwal, Cormode, Huang, Phillips, Wei, Yi, "Mergeable
    summaries", PODS 2012.
    """

    values: Dictionary
    counts: Any  # int64
    limit: int
    error: int = 0

    @classmethod
    def from_numbers(cls, values: Array, counts: Array, dtype: str, backend: Backend, limit: int) -> Self:
        """Keep the frequent of distinct numbers, on the device."""
        error = _find_surplus(counts, limit, backend.xp)
        if error:
            keep = counts > error
            values, counts = values[keep], counts[keep] - error
        return cls(make_dictionary(backend.to_host(values), dtype), backend.to_host(counts), limit, error)

    def __add__(self, other: Self) -> Self:
        values, counts = merge_counts([(self.values, self.counts), (other.values, other.counts)])
        return replace(self, values=values, counts=counts, error=self.error + other.error).shortened()

    def shortened(self) -> Self:
        """Return at most `limit` of the values."""
        surplus = _find_surplus(self.counts, self.limit, np)
        if not surplus:
            return self
        keep = self.counts > surplus
        counts = self.counts[keep] - surplus
        return replace(self, values=self.values.filter(pa.array(keep)), counts=counts, error=self.error + surplus)

    def rank(self, number: int) -> list[tuple[Any, int]]:
        """Return the most frequent values and their counts, ties by value; none that may be as rare as the dropped."""
        values, counts = sort_by_count(self.values, self.counts)
        certain = int((counts[:number] > self.error).sum())
        return list(zip(values[:certain].to_pylist(), counts[:certain].tolist(), strict=True))


def _find_surplus(counts: Array, limit: int, xp: ModuleType) -> int:
    """Return the largest count that no more than `limit` others exceed; 0 where there are no more than `limit`."""
    position = len(counts) - limit - 1
    if position < 0:
        return 0
    if int((counts > 1).sum()) <= limit:  # mostly values that occur once, of which there are many
        return 1
    return int(xp.partition(counts, position)[position])
