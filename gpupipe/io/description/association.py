"""Association of columns with a target, in one measure for numbers and categories: Cramér's V over a sample of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.arrow import combine
from gpupipe.backend.kernels import sort_unique, splitmix64

MAX_ROWS = 1 << 16
MAX_CATEGORIES = 30
_NUM_TENTHS = 10
_SEED = 0xA550


@dataclass(frozen=True)
class RowSample:
    """Sample of rows on the host: those whose seeded bits begin with `halvings` zeros, `max_rows` at most.

    `halvings` is the smallest that leaves so few, so the sample follows from the rows' identities alone, and samples of
    parts merge to that of the whole.
    """

    rows: pa.Table
    bits: Any  # uint64, a number for each row
    halvings: int = 0
    max_rows: int = MAX_ROWS

    @classmethod
    def of(cls, frame: Frame, row_ids: Array, backend: Backend) -> Self:
        """Draw the sample of a coded frame, by the identities of its rows."""
        bits, halvings = splitmix64(_SEED, row_ids), 0
        while (positions := backend.xp.flatnonzero(_begin_with_zeros(bits, halvings))).size > MAX_ROWS:
            halvings += 1
        return cls(backend.to_arrow(backend.take(frame, positions)), backend.to_host(bits[positions]), halvings)

    def __add__(self, other: Self) -> Self:
        rows = pa.concat_tables([self.rows, other.rows], promote_options="permissive")
        bits, halvings = np.concatenate([self.bits, other.bits]), max(self.halvings, other.halvings)
        while (keep := _begin_with_zeros(bits, halvings)).sum() > self.max_rows:
            halvings += 1
        return replace(self, rows=rows.filter(pa.array(keep)), bits=bits[keep], halvings=halvings)


def _begin_with_zeros(bits: Array, number: int) -> Array:
    return bits <= np.uint64((1 << 64 - number) - 1)


def compute_cramers_v(sample: pa.Table, target: str) -> dict[str, float | None]:
    """Compute the association of each column of a table with one of them, 0 to 1; None where either has one value only.

    Rows whose target is missing are left out; in other columns missing is a value like others. Of text the 30 most
    frequent values count, the others as one; numbers and times are cut at tenths of their values, unless they have no
    more than ten.

    Source: Bergsma, "A bias-correction for Cramér's V and Tschuprow's T", Journal of the Korean Statistical Society,
    2013: independent columns of many categories are near 0 in few rows too.
    """
    sample = sample.filter(pc.is_valid(sample[target]))
    levels = to_levels(sample[target])
    names = [name for name in sample.column_names if name != target]
    return {name: _correct_bias(_cross(to_levels(sample[name]), levels)) for name in names}


def to_levels(values: pa.ChunkedArray) -> Any:
    """Convert a column to few levels, int64: its frequent texts, its numbers' tenths, a level for missing ones."""
    texts = pa.types.is_large_string(values.type) or pa.types.is_string(values.type)
    encoded = combine(values).dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    size = len(encoded.dictionary)
    if texts and size > MAX_CATEGORIES:
        counts = np.bincount(codes, minlength=size + 1)[:size]
        ranks = np.full(size + 1, MAX_CATEGORIES)
        ranks[np.argsort(-counts, kind="stable")[:MAX_CATEGORIES]] = np.arange(MAX_CATEGORIES)
        ranks[size] = MAX_CATEGORIES + 1
        return ranks[codes]
    if texts or size <= _NUM_TENTHS:
        return codes
    numbers = values.cast(pa.int64()) if pa.types.is_temporal(values.type) else values
    numbers = numbers.cast(pa.float64(), safe=False).to_numpy()
    tenths = np.nanquantile(numbers, np.arange(1, _NUM_TENTHS) / _NUM_TENTHS, method="lower")
    edges = sort_unique(tenths, np)
    return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, side="left"))


def _cross(rows: Any, columns: Any) -> Any:
    """Count the pairs of levels, without empty rows and columns: R x C."""
    width = int(columns.max(initial=0)) + 1
    table = np.bincount(rows * width + columns, minlength=(int(rows.max(initial=0)) + 1) * width).reshape(-1, width)
    return table[table.any(axis=1)][:, table.any(axis=0)]


def _correct_bias(table: Any) -> float | None:
    total, (height, width) = table.sum(), table.shape
    if min(height, width) < 2:
        return None
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    phi2 = (np.square(table - expected) / expected).sum() / total
    phi2 = max(0.0, phi2 - (height - 1) * (width - 1) / (total - 1))
    levels = (size - (size - 1) ** 2 / (total - 1) for size in (height, width))
    smallest = min(levels) - 1
    return float(min(1.0, np.sqrt(phi2 / smallest))) if smallest > 0 else None
