"""Column statistics: mergeable summaries of missing values and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.float_kernels import find_bounds
from gpupipe.preprocessing.numeric import tabulate
from gpupipe.preprocessing.summaries.moments import Extremes, Moments
from gpupipe.schema import WIDE


@dataclass(frozen=True)
class ColumnStats:
    """Column statistics of some partitions: a mergeable summary.

    Args:
        missing: rows without a value.
        low: the least number; +inf where there is none.
        high: the greatest; -inf where there is none.
    """

    missing: int = 0
    low: float = np.inf
    high: float = -np.inf

    def __add__(self, other: ColumnStats) -> ColumnStats:
        return ColumnStats(self.missing + other.missing, min(self.low, other.low), max(self.high, other.high))

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest number, where both are numbers a file can hold."""
        return (self.low, self.high) if np.isfinite(self.low) and np.isfinite(self.high) else None


def ranges_from_summary(summary: object) -> dict[str, ColumnStats]:
    """Return the statistics of the columns whose range a step's summary contains."""
    found = summary.extremes if isinstance(summary, Moments) else summary
    if not isinstance(found, Extremes):
        return {}
    numbers = zip(found.missing.tolist(), found.low.tolist(), found.high.tolist(), strict=True)
    return {name: ColumnStats(*seen) for name, seen in zip(found.names, numbers, strict=True)}


def coarse_spacing(dtype: str, ends: tuple[float, float]) -> float | None:
    """Return float32's spacing at the larger bound where it exceeds 1/1000 of the range; else None.

    None too for what float32 holds exactly: its own values, and whole numbers up to 2**24.

    Example:
        >>> coarse_spacing("int64", (1_700_000_000, 1_700_000_199)), coarse_spacing("int64", (0, 199))
        (128.0, None)
    """
    low, high = ends
    if dtype not in WIDE or not low < high:
        return None
    largest = max(abs(low), abs(high))
    if dtype != "float64" and largest <= 2**24:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = float(np.spacing(np.float32(largest)))
    return spacing if spacing > (high - low) / 1000 else None


def compute_column_stats(columns: Mapping[str, Column], backend: Backend) -> dict[str, ColumnStats]:
    """Compute missing counts and ranges of numeric columns."""
    if not columns:
        return {}
    return ranges_from_summary(Extremes.of_blocks(columns, tabulate(columns, find_bounds, 3, backend)))


def count_missing(columns: Mapping[str, Column], backend: Backend) -> dict[str, ColumnStats]:
    """Count the missing values of columns that have no meaningful range."""
    xp = backend.xp
    masks = {name: column.missing(xp) for name, column in columns.items()}
    counts = {name: xp.asarray(xp.count_nonzero(mask)) for name, mask in masks.items() if mask is not None}
    found = backend.to_host(xp.stack(list(counts.values()))).tolist() if counts else []
    numbers = dict(zip(counts, found, strict=True))
    return {name: ColumnStats(int(numbers.get(name, 0))) for name in columns}
