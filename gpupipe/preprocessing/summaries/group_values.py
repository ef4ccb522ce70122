"""Value counts by group: medians and modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend
from gpupipe.backend.dictionaries import Dictionary, find_positions, unite_dictionaries

__all__ = ["GroupedValues"]


@dataclass(frozen=True)
class GroupedValues:
    """Value counts by group of one column: distinct pairs of group and value, in that order.

    Args:
        categories: the N groups.
        places: of each pair's group, P int64; N where the group is missing.
        values: P float64.
        counts: rows, P int64.
    """

    categories: Dictionary
    places: Any
    values: Any
    counts: Any

    @classmethod
    def of(cls, codes: Array, categories: Dictionary, values: Array, backend: Backend) -> Self:
        """Count the pairs of one partition, for values without missing ones.

        Memory: four arrays of n numbers on the device; the distinct pairs go to the host.
        """
        xp = backend.xp
        values = values + 0.0  # both zeros are one value
        order = xp.lexsort(xp.stack([values, codes.astype("float64")]))
        codes, values = codes[order], values[order]
        first = xp.append(
            xp.ones(min(len(codes), 1), dtype=bool), (codes[1:] != codes[:-1]) | (values[1:] != values[:-1])
        )
        starts = xp.flatnonzero(first)
        counts = xp.diff(xp.append(starts, len(codes)))
        places, values, counts = (backend.to_host(item) for item in (codes[starts], values[starts], counts))
        used, places = np.unique(np.append(places, len(categories)).astype(np.int64), return_inverse=True)
        return cls(categories.take(used[:-1]), places[:-1], values, counts.astype(np.int64))

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Merge the pairs of all parts."""
        categories = unite_dictionaries([part.categories for part in parts])
        size = len(categories)
        moved = [np.append(find_positions(part.categories, categories), size)[part.places] for part in parts]
        places = np.concatenate(moved).astype(np.int64)
        values, counts = (np.concatenate(item) for item in zip(*((p.values, p.counts) for p in parts), strict=True))
        order = np.lexsort([values, places])
        places, values, counts = places[order], values[order], counts[order]
        last = np.flatnonzero(np.append((places[1:] != places[:-1]) | (values[1:] != values[:-1]), True)[: len(places)])
        return cls(categories, places[last], values[last], np.diff(np.cumsum(counts)[last], prepend=0))

    def overall(self) -> Self:
        """Return the pairs with all rows in one group, the first."""
        alone = type(self)(self.categories[:0], np.zeros_like(self.places), self.values, self.counts)
        return type(self).merged([alone])

    def statistics(self, strategy: str) -> Any:
        """Return the `"median"` or the least `"most_frequent"` value of each group: N + 1 float64."""
        size = len(self.categories) + 1
        made = np.full(size, np.nan)
        if strategy == "most_frequent":
            order = np.lexsort([self.values, -self.counts, self.places])
            groups, first = np.unique(self.places[order], return_index=True)
            made[groups] = self.values[order][first]
            return made
        total = np.bincount(self.places, weights=self.counts, minlength=size).astype(np.int64)
        start, ends = np.cumsum(total) - total, np.cumsum(self.counts)
        there = total > 0
        ranks = [(start + (total - 1) // 2)[there], (start + total // 2)[there]]
        below, above = (self.values[np.searchsorted(ends, rank, side="right")] for rank in ranks)
        made[there] = below + (above - below) / 2
        return made
