"""Stretches: where the values of a column lie, and the longest gap between two that follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, select
from gpupipe.io import Dataset, run_partitions

_MOST_GAPS = 1 << 16  # that are kept, the longest ones
_FEWEST_VALUES = 5  # whose gaps say something of others
_LONGER = 1.2  # than the longest gap: a leap year, or the hour of a clock that was put back, are no longer ones


@dataclass(frozen=True)
class Stretches:
    """Stretches between the longest gaps of a column's values, in order, each with the ends of its values.

    The sum is that of the values of two partitions: of the days 1, 2, 9 and 2, 3, 5 the stretches are 1, 2, 3, 5, 9,
    and the longest gap is 4. Beyond 65,536 gaps the shorter ones are closed.

    Args:
        lows, highs: the least and the greatest value of each.
        width: up to which gaps are closed.
        num_values: how many different values there are at least.
    """

    lows: Any
    highs: Any
    width: float
    num_values: int

    @classmethod
    def of(cls, values: Array, backend: Backend) -> Stretches:
        """Find the stretches of n values."""
        xp, ordered = backend.xp, backend.xp.sort(values)
        # Differences of integers are taken modulo 2^64, in which one from a smaller number is exact.
        gaps = xp.diff(ordered if ordered.dtype.kind == "f" else ordered.astype("uint64"))
        num_values, width = int(xp.count_nonzero(gaps)) + 1, 0.0
        if num_values > _MOST_GAPS:
            width = float(xp.sort(gaps)[-_MOST_GAPS])
        ends = xp.flatnonzero(gaps > width)
        lows = xp.concatenate([ordered[:1], ordered[ends + 1]])
        highs = xp.concatenate([ordered[ends], ordered[-1:]])
        return cls(backend.to_host(lows), backend.to_host(highs), width, num_values)

    def __add__(self, other: Stretches) -> Stretches:
        lows, highs = np.concatenate([self.lows, other.lows]), np.concatenate([self.highs, other.highs])
        order = np.argsort(lows, kind="stable")
        lows, highs = lows[order], np.maximum.accumulate(highs[order])
        gaps = lows[1:].astype("float64") - highs[:-1].astype("float64")
        width = max(self.width, other.width, 0.0 if len(gaps) <= _MOST_GAPS else float(np.sort(gaps)[-_MOST_GAPS]))
        ends = np.flatnonzero(gaps > width)
        num_values = max(self.num_values, other.num_values, len(ends) + 1)
        return Stretches(lows[np.append(0, ends + 1)], highs[np.append(ends, len(highs) - 1)], width, num_values)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest value."""
        return self.lows[0].item(), self.highs[-1].item()

    @property
    def longest_gap(self) -> float | None:
        """The longest gap, or a longer one that may be there; None of fewer than five values."""
        gaps = self.lows[1:].astype("float64") - self.highs[:-1].astype("float64")
        return max([self.width, *gaps.tolist()]) if self.num_values >= _FEWEST_VALUES else None


def is_longer(distance: float, gap: float) -> bool:
    """Whether a distance is longer than the longest gap, and by more than a calendar makes it."""
    return distance > _LONGER * gap


def find_stretches(dataset: Dataset, names: Sequence[str], backend: str) -> dict[str, Stretches]:
    """Find those of columns of numbers and times, these in microseconds, that have values; in one pass."""
    stretches: dict[str, Stretches] = {}
    with closing(run_partitions(partial(_find_in_part, names, backend), dataset, backend, "windows")) as parts:
        for part in parts:
            stretches |= {name: stretches[name] + each if name in stretches else each for name, each in part.items()}
    return stretches


def _find_in_part(names: Sequence[str], backend_name: str, part: Dataset) -> Mapping[str, Stretches]:
    backend, (partition,) = select(backend_name), part.partitions
    frame, stretches = part.read(partition, names, backend), dict[str, Stretches]()
    for name in names:
        column = backend.column(frame, name)
        missing = column.missing(backend.xp)
        values = column.data if missing is None else column.data[~missing]
        if len(values):
            stretches[name] = Stretches.of(values, backend)
    return stretches
