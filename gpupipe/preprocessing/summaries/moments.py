"""Moments of columns: mean, variance and range, merged over partitions without losing digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend
from gpupipe.backend.columns import floats
from gpupipe.backend.kernels import compute_moments, find_bounds
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, num_rows, refuse, stack_rows, tabulate


@dataclass(frozen=True)
class Extremes:
    """Minimum and maximum of C columns (float64; +inf and -inf where there is no value), and their missing values."""

    names: tuple[str, ...]
    missing: Any
    low: Any
    high: Any

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """Compute the extremes of one partition; refuses infinities."""
        found = cls.of_blocks(columns, tabulate(columns, find_bounds, 3, backend))
        if np.isneginf(found.low).any() or np.isposinf(found.high).any():
            refuse(columns, backend, where)
        return found

    @classmethod
    def of_blocks(cls, columns: Columns, table: Any) -> Self:
        """Merge the extremes of one partition's blocks: B x C x 3, as `tabulate` gives them."""
        low, high = table[..., 1].min(axis=0, initial=np.inf), table[..., 2].max(axis=0, initial=-np.inf)
        return cls(tuple(columns), table[..., 0].sum(axis=0).astype(np.int64), low, high)

    def __add__(self, other: Self) -> Self:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return replace(self, missing=self.missing + other.missing, low=low, high=high)

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the extremes with each missing value replaced by `values[name]`."""
        fill = np.array([float(values[name]) for name in self.names])
        low = np.where(self.missing > 0, np.minimum(self.low, fill), self.low)
        high = np.where(self.missing > 0, np.maximum(self.high, fill), self.high)
        return replace(self, missing=np.zeros_like(self.missing), low=low, high=high)


_SAMPLED = 1024


@dataclass(frozen=True)
class Moments:
    """Moments of C columns: count, range, mean and sum of squared deviations, missing values apart.

    Deviations are taken from a value among a partition's own, and partitions are joined by the formula of Chan, Golub
    and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979): a column near 1e9
    keeps its digits.

    `mean` is 0 where there is no value, `m2` the sums of squared deviations from it.
    """

    extremes: Extremes
    count: Any
    mean: Any
    m2: Any

    @classmethod
    def of(cls, columns: Columns, backend: Backend, where: str) -> Self:
        """Compute the moments of one partition; refuses infinities, and values beyond 1e145, whose squares add up."""
        centres = _centres(columns, backend)
        table = tabulate(columns, compute_moments, 5, backend, centres.tolist())
        extremes = Extremes.of_blocks(columns, table[..., :3])
        if (np.maximum(-extremes.low, extremes.high) > LARGEST_SQUARED).any():
            refuse(columns, backend, where, too_large="a value is too large to be squared")
        count, (total, squares) = num_rows(columns) - extremes.missing, table[..., 3:].sum(axis=0).T
        rest = total / np.maximum(count, 1)
        mean = np.where(count > 0, centres + rest, 0.0)
        return cls(extremes, count, mean, np.maximum(squares - total * rest, 0.0))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.extremes.names

    @property
    def missing(self) -> Any:
        """The number of missing values, C int64."""
        return self.extremes.missing

    def __add__(self, other: Self) -> Self:
        pairs = (self.count, other.count), (self.mean, other.mean), (self.m2, other.m2)
        return type(self)(self.extremes + other.extremes, *merge_moments(*(np.stack(pair) for pair in pairs)))

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Return the moments with each missing value replaced by `values[name]`; refuses one beyond 1e145."""
        fill = np.array([float(values[name]) for name in self.names])
        for name, value, gaps in zip(self.names, fill, self.missing, strict=True):
            if gaps and abs(value) > LARGEST_SQUARED:
                problem, remedy = "what missing values are filled with is too large to be squared", "another fill_value"
                expected = f"at most {LARGEST_SQUARED:g}"
                raise BadData(f"column {name!r}", problem, got=float(value), expected=expected, remedy=remedy)
        pairs = (self.count, self.missing), (self.mean, fill), (self.m2, np.zeros_like(fill))
        return type(self)(self.extremes.filled(values), *merge_moments(*(np.stack(pair) for pair in pairs)))

    @property
    def variance(self) -> Any:
        """The variance, C float64, with divisor n; 0 where it is below the resolution of the mean."""
        variance = self.m2 / np.maximum(self.count, 1)
        return np.where(np.sqrt(variance) <= np.finfo(np.float64).eps * np.abs(self.mean), 0.0, variance)


def _centres(columns: Columns, backend: Backend) -> Any:
    """Return a number amid each column's values, C float64; 0 where there is none.

    The mean of some will do, whichever they are: squares around it exceed those around the mean by so little that the
    difference keeps its digits.
    """
    xp, size = backend.xp, num_rows(columns)
    some = stack_rows(columns, slice(0, size, size // _SAMPLED + 1), xp)
    missing = xp.isnan(some)
    with np.errstate(over="ignore", invalid="ignore"):
        known = xp.where(missing, 0.0, some).sum(axis=1)
    count, total = backend.to_host(xp.stack([(~missing).sum(axis=1).astype(xp.float64), known]))
    names = list(columns)
    for place in np.flatnonzero(count == 0):
        values = floats(columns[names[place]], xp)
        present = values[~xp.isnan(values)][:_SAMPLED]
        if len(present):
            count[place], total[place] = len(present), float(backend.to_host(present).sum())
    centres = total / np.maximum(count, 1)
    return np.where(np.isfinite(centres), centres, 0.0)  # else an infinity less another would be taken for missing


def merge_moments(count: Any, mean: Any, m2: Any) -> tuple[Any, Any, Any]:
    """Merge the moments of parts; all three are parts x C, or parts x any one shape."""
    total = count.sum(axis=0)
    if not len(count):
        return total, np.zeros_like(total), np.zeros_like(total)
    # Means are averaged around that of the largest part, so that equal ones stay what they are to the last digit.
    centre = np.take_along_axis(mean, count.argmax(axis=0)[None], axis=0)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        shift = np.where(count > 0, mean - centre, 0.0)
        step = (count / np.maximum(total, 1) * shift).sum(axis=0)
        return total, centre + step, m2.sum(axis=0) + (count * np.square(shift - step)).sum(axis=0)
