"""k-means in one dimension, of counted numbers: on the host, in time that grows with the distinct values."""

from __future__ import annotations

from typing import Any

import numpy as np


def cluster_sorted_values(values: Any, counts: Any, k: int, *, max_iter: int = 300, tol: float = 1e-4) -> Any:
    """Return the centres where Lloyd's iterations end, started from the middles of k bins of equal width.

    They stop, and a centre that has lost all its values is moved, as in scikit-learn's `KMeans`; ties, which there are
    decided by rounding, are decided for the lower value or centre, and a centre's only value is not taken away.

    Args:
        values: B float64, ascending, not all equal.
        counts: how often each occurs, B int64.
        k: how many centres.
        max_iter: iterations at most.
        tol: stop when the centres' squared moves add up to this, relative to the variance.

    Example:
        >>> cluster_sorted_values(np.array([0.0, 1.0, 9.0, 11.0]), np.array([1, 1, 1, 1]), 2).tolist()
        [0.5, 10.0]
    """
    low, width = values[0], values[-1] - values[0]
    unit = (values - low) / width
    weights = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
    sums = np.concatenate([[0.0], np.cumsum(unit * counts)])
    mean = sums[-1] / weights[-1]
    tolerance = tol * (np.square(unit - mean) * counts).sum() / weights[-1]
    centres, seen = (np.arange(k) + 0.5) / k, None
    for _ in range(max_iter):
        order = np.argsort(centres, kind="stable")
        ascending = centres[order]
        borders = np.searchsorted(unit, (ascending[1:] + ascending[:-1]) / 2, side="right")
        if seen is not None and np.array_equal(borders, seen):
            break
        ends = np.concatenate([[0], borders, [len(unit)]])
        weight, total = np.diff(weights[ends]), np.diff(sums[ends])
        _refill(unit, counts, ascending, ends, weight, total)
        moved = centres.copy()
        moved[order] = np.where(weight > 0, total / np.maximum(weight, 1), ascending)
        shift = np.square(moved - centres).sum()
        centres, seen = moved, borders
        if shift <= tolerance:
            break
    return low + width * centres


def _refill(unit: Any, counts: Any, centres: Any, ends: Any, weight: Any, total: Any) -> None:
    """Move each centre without values to the row farthest from its own centre, in place."""
    empty = np.flatnonzero(weight == 0)
    if not len(empty):
        return
    owner = np.repeat(np.arange(len(centres)), np.diff(ends))
    distance = np.where(weight[owner] > 1, np.abs(unit - centres[owner]).round(12), -1.0)
    farthest = np.argsort(-distance, kind="stable")[: len(empty)]
    rows = np.repeat(farthest, np.minimum(counts[farthest], len(empty)))[: len(empty)]
    for place, row in zip(empty, rows, strict=True):
        weight[owner[row]] -= 1
        total[owner[row]] -= unit[row]
        weight[place], total[place] = 1.0, unit[row]
