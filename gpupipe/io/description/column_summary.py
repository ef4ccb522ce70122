"""Summary of one column of some rows, which merges: missing values, counts, moments, quantiles, extremes, lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.histogram import Histogram
from gpupipe.backend.moments import merge_moments
from gpupipe.backend.value_counts import count_numbers
from gpupipe.io.description.sketches import DistinctSketch, FrequentValues
from gpupipe.schema import FLOATS, INTEGERS, is_passenger


def are_whole(values: Array, dtype: str, backend: Backend) -> bool:
    """Return whether a column of that dtype has whole numbers: integers, or finite floats without a fraction."""
    if dtype not in FLOATS:
        return dtype in INTEGERS
    xp = backend.xp
    return bool((xp.isfinite(values) & (xp.floor(values) == values)).all())


@dataclass(frozen=True)
class NumberSummary:
    """Summary of present numbers: count, mean, squared deviations, and a histogram; of times, microseconds."""

    count: int
    mean: float
    m2: float
    histogram: Histogram

    @classmethod
    def of(cls, values: Array, counts: Array, backend: Backend, limit: int) -> Self:
        """Summarize distinct numbers, ascending, of which there is one at least, that occur so many times."""
        numbers, weights = values.astype("float64"), counts.astype("float64")
        with np.errstate(over="ignore", invalid="ignore"):
            # Deviations are taken from one of the values, so that the mean of equal ones is what they are.
            first = numbers[:1]
            total = weights.sum()
            mean = first + ((numbers - first) * weights).sum() / total
            apart = numbers - mean
            facts = backend.to_host(backend.xp.stack([total, mean[0], (apart * apart * weights).sum()])).tolist()
        return cls(int(facts[0]), facts[1], facts[2], Histogram.from_counts(numbers, counts, backend, limit))

    def __add__(self, other: Self) -> Self:
        pairs = (np.array([getattr(part, name) for part in (self, other)]) for name in ("count", "mean", "m2"))
        count, mean, m2 = (part.item() for part in merge_moments(*pairs))
        return replace(self, count=count, mean=mean, m2=m2, histogram=self.histogram + other.histogram)

    @property
    def std(self) -> float:
        """The sample's standard deviation, with divisor n - 1; NaN of a single value."""
        return float(np.sqrt(self.m2 / (self.count - 1))) if self.count > 1 else float("nan")


@dataclass(frozen=True)
class ValueSummary:
    """Summary of the present values of a column or of the elements of its lists, of which there is one at least."""

    dtype: str
    is_whole: bool
    low: Any
    high: Any
    distinct: DistinctSketch
    frequent: FrequentValues
    numbers: NumberSummary | None  # None of text

    @classmethod
    def of(cls, column: Column, backend: Backend, limit: int) -> Self | None:
        """Summarize the present values of a column by their distinct ones; None where there is none."""
        if column.dictionary is not None:
            codes = column.data.astype("int64") + 1
            counts = backend.to_host(backend.xp.bincount(codes, minlength=len(column.dictionary) + 1))[1:]
            used = np.flatnonzero(counts)
            values, counts = column.dictionary.take(used), counts[used].astype(np.int64)
            if not len(used):
                return None
            low, high = pc.min_max(values).as_py().values()
            frequent = FrequentValues(values, counts, limit).shortened()
            return cls(column.dtype, False, low, high, DistinctSketch.from_texts(values, limit), frequent, None)
        numbers, counts = count_numbers(column, backend, in_order=True)
        if not len(numbers):
            return None
        low, high = backend.to_host(backend.xp.stack([numbers.min(), numbers.max()])).tolist()
        distinct = DistinctSketch.from_numbers(numbers, column.dtype, backend, limit)
        frequent = FrequentValues.from_numbers(numbers, counts, column.dtype, backend, limit)
        summary = NumberSummary.of(numbers, counts, backend, limit)
        is_whole = are_whole(numbers, column.dtype, backend)
        return cls(column.dtype, is_whole, low, high, distinct, frequent, summary)

    def __add__(self, other: Self) -> Self:
        numbers = self.numbers + other.numbers if self.numbers and other.numbers else None
        return replace(
            self,
            is_whole=self.is_whole and other.is_whole,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            distinct=self.distinct + other.distinct,
            frequent=self.frequent + other.frequent,
            numbers=numbers,
        )

    @property
    def num_distinct(self) -> int:
        """The number of different values, an estimate unless `is_exact`."""
        return self.distinct.estimate if self.frequent.error else len(self.frequent.values)

    @property
    def is_exact(self) -> bool:
        """Whether each different value was counted."""
        return self.frequent.error == 0 or self.distinct.is_exact

    def count_texts(self) -> dict[str, int]:
        """Count the rows of each text, or of more than `limit` texts those of the frequent and of some more: a row."""
        if self.distinct.texts is None:
            return {}
        counts = dict.fromkeys(self.distinct.texts.to_pylist(), 1)
        return counts | dict(zip(self.frequent.values.to_pylist(), self.frequent.counts.tolist(), strict=True))


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of one column of some rows; of lists the present values are their elements."""

    num_rows: int
    num_missing: int
    present: ValueSummary | None = None  # None where there is none, or of a column that is only carried
    lengths: tuple[int, int] | None = None  # the least and the greatest number of elements of present lists
    num_missing_elements: int = 0

    @classmethod
    def of(cls, column: Column, backend: Backend, limit: int) -> Self:
        """Summarize one partition's column, in at most `limit` values and hashes each."""
        num_rows, missing = len(column), column.missing(backend.xp)
        num_missing = _count(missing)
        if is_passenger(column.dtype):
            return cls(num_rows, num_missing)
        if column.elements is None:
            return cls(num_rows, num_missing, ValueSummary.of(column, backend, limit))
        lengths = column.data[1:] - column.data[:-1]
        lengths = lengths if missing is None else lengths[~missing]
        ends = (int(lengths.min()), int(lengths.max())) if len(lengths) else None
        elements = column.elements
        return cls(
            num_rows,
            num_missing,
            ValueSummary.of(elements, backend, limit),
            ends,
            _count(elements.missing(backend.xp)),
        )

    def __add__(self, other: Self) -> Self:
        pairs = [item for item in (self.lengths, other.lengths) if item is not None]
        return replace(
            self,
            num_rows=self.num_rows + other.num_rows,
            num_missing=self.num_missing + other.num_missing,
            present=self.present + other.present if self.present and other.present else self.present or other.present,
            lengths=(min(low for low, _ in pairs), max(high for _, high in pairs)) if pairs else None,
            num_missing_elements=self.num_missing_elements + other.num_missing_elements,
        )


def _count(mask: Array | None) -> int:
    return 0 if mask is None else int(mask.sum())
