"""Drift: profiles of columns, from a sample of their rows, and the report of how rows differ from those of the fit."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import find_positions
from gpupipe.backend.hashing import splitmix64
from gpupipe.preprocessing.summaries.counts import ValueCounts
from gpupipe.support.text import format_count, html_table, shorten_list, text_table
from gpupipe.support.validation import check_number

SAMPLE_ROWS = 1 << 15
"""The approximate size of the sample; all rows of a smaller dataset, fewer of a wide one."""

_SAMPLE_NUMBERS, _FEWEST_ROWS = 1 << 24, 1 << 12  # 128 MiB, but where there are more than 4,096 columns

_SEED = 0x5EED
_DECILES = np.arange(1, 10) / 10


def draw_rows(row_ids: Array, total: int, num_columns: int, backend: Backend) -> Array | slice:
    """Draw the sample's rows by their ids (n uint64) alone, so the same under any partitioning.

    Args:
        row_ids: the identity of each row.
        total: rows of the whole dataset, at most.
        num_columns: the number of columns in the sample.
        backend: where they are.

    Memory: three arrays of n uint64, where rows are drawn.
    """
    wanted = min(SAMPLE_ROWS, max(_SAMPLE_NUMBERS // max(num_columns, 1), _FEWEST_ROWS))
    if total <= wanted:
        return slice(0, len(row_ids))
    return backend.xp.flatnonzero(splitmix64(_SEED, row_ids) < np.uint64(wanted / total * 2.0**64))


@dataclass(frozen=True)
class Sample:
    """Sample of rows from some partitions: a mergeable summary.

    Args:
        num_rows: how many rows were drawn.
        names: columns of numbers.
        numbers: of each part their values, C x rows float64 on the host; NaN where there is none, or no finite one.
        categories: by the name of a column that becomes ids, how often each value occurs.
    """

    num_rows: int = 0
    names: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = ()
    categories: Mapping[str, ValueCounts] = field(default_factory=dict)

    @classmethod
    def of(
        cls, frame: Frame, rows: Array | slice, numbers: Sequence[str], categories: Sequence[str], backend: Backend
    ) -> Self:
        """Draw the sample of one partition.

        Memory: 8 bytes per row drawn and column of numbers, and 16 per distinct value of another, go to the host.
        """
        counts = {name: ValueCounts.of(backend.column(frame, name).take(rows), backend) for name in categories}
        num_rows = len(frame) if isinstance(rows, slice) else len(rows)
        if not numbers:
            return cls(num_rows, categories=counts)
        matrix, xp = backend.matrix(frame, numbers), backend.xp
        if matrix is not None:
            values = matrix.data[:, rows].astype("float64")
        else:
            values = xp.stack([floats(backend.column(frame, name).take(rows), xp) for name in numbers])
        return cls(num_rows, tuple(numbers), (backend.to_host(xp.where(xp.isinf(values), xp.nan, values)),), counts)

    def __add__(self, other: Self) -> Self:
        categories = {name: item + other.categories[name] for name, item in self.categories.items()}
        num_rows, numbers = self.num_rows + other.num_rows, self.numbers + other.numbers
        return replace(self, num_rows=num_rows, numbers=numbers, categories=categories)

    @cached_property
    def sorted_values(self) -> dict[str, Any]:
        """The finite values of each column of numbers, ascending, float64."""
        if not self.names:
            return {}
        table = np.concatenate(self.numbers, axis=1)
        table.sort(axis=1)  # NaN last
        totals = table.shape[1] - np.count_nonzero(np.isnan(table), axis=1)
        return {name: row[:total] for name, row, total in zip(self.names, table, totals.tolist(), strict=True)}

    def profiles(self, vocabularies: Mapping[str, Any], missing: Mapping[str, float]) -> dict[str, Profile]:
        """Return each column's profile.

        Args:
            vocabularies: the values that became ids of their own, by column.
            missing: the share of missing values of all columns, of which some may be neither numbers nor become ids.
        """
        found = {name: Profile(share) for name, share in missing.items()}
        found |= {
            name: _profile_numbers(values, missing[name]) for name, values in self.sorted_values.items() if len(values)
        }
        for name, counts in self.categories.items():
            values, numbers = counts.ranked()
            total = int(numbers.sum()) + counts.missing
            known = find_positions(values, vocabularies[name]) >= 0 if len(values) else np.zeros(0, dtype=bool)
            share = int(numbers[~known].sum()) / total if total else 0.0
            found[name] = replace(found[name], unknown=share)
        return found


@dataclass(frozen=True)
class Profile:
    """Profile of one column's distribution.

    Args:
        missing: the share of rows without a value.
        mean, std: of the finite values.
        edges: the deciles that differ, of numbers.
        shares: of values up to each edge, above the one before, and of those above the last.
        unknown: the share of rows whose value became no id of its own; None where none becomes one.
    """

    missing: float
    mean: float = 0.0
    std: float = 0.0
    edges: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    unknown: float | None = None

    @property
    def scale(self) -> float:
        """What a shift of the mean is measured in: the standard deviation, where there is one."""
        return self.std or abs(self.mean) or 1.0

    def to_json(self) -> dict[str, Any]:
        """Convert to plain numbers, for a file."""
        return vars(self) | {"edges": list(self.edges), "shares": list(self.shares)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Build the profile that `to_json` described."""
        return cls(**{**content, "edges": tuple(content["edges"]), "shares": tuple(content["shares"])})


def counts_between(values: Any, edges: Any) -> Any:
    """Count values up to each edge, above the one before, and those above the last; both ascending.

    Example:
        >>> counts_between(np.array([1.0, 2.0, 2.0, 9.0]), np.array([1.0, 2.0]))
        array([1, 2, 1])
    """
    return _increases(np.array([*np.searchsorted(values, edges, side="right"), len(values)]))


def _profile_numbers(values: Any, missing: float) -> Profile:
    """Compute the profile of finite numbers in ascending order, so that sums do not depend on partitions."""
    total = len(values)
    deciles = _quantiles(values, _DECILES)
    edges = deciles[_find_run_ends(deciles)] + 0.0  # without a sign where they are zero
    # Each value once, by its share: the mean of equal ones is what they are, to the last digit.
    last = _find_run_ends(values)
    known, weight = values[last], _increases(last + 1) / total
    unit = max(abs(float(values[0])), abs(float(values[-1])), 1.0)  # whose squares are floats
    mean = float((known * weight).sum())
    std = unit * float(np.sqrt((np.square(known / unit - mean / unit) * weight).sum()))
    bins = counts_between(values, edges)
    return Profile(
        missing=missing,
        mean=mean,
        std=std,
        edges=tuple(edges.tolist()),
        shares=tuple((bins / total).tolist()),
    )


def _find_run_ends(values: Any) -> Any:
    """Return the last position of each run of equal neighbours."""
    is_last = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_last[:-1])
    return np.flatnonzero(is_last)


def _increases(numbers: Any) -> Any:
    """Return the differences between neighbouring numbers, the first one zero."""
    made = numbers.copy()
    made[1:] -= numbers[:-1]
    return made


def _quantiles(values: Any, shares: Any) -> Any:
    """Compute quantiles of ascending values, as `Histogram.quantiles` does."""
    rank = shares * (len(values) - 1)
    lower = np.floor(rank)
    part, place = rank - lower, lower.astype(np.int64)
    below, above = values[place], values[np.minimum(place + 1, len(values) - 1)]
    with np.errstate(over="ignore"):
        gap = above - below
        return np.where(part < 0.5, below + gap * part, above - gap * (1 - part))


_LEAST_SHARE, _MOST_TOLD = 1e-4, 8
"""A bin without a value counts as if it had this share, in the population stability index."""
_FARTHEST = 1e9
"""Means are no more standard deviations than this apart."""


@dataclass(frozen=True)
class Drift:
    """Drift thresholds: how far columns of other rows may be from those of the fit.

    Args:
        mean: the distance of the means, in standard deviations of the fit.
        psi: the population stability index over the deciles of the fit: the sum of (new - old) ln(new / old) over the
            shares of values between them. Below 0.1 is usually called stable, from 0.2 on moved.
        unknown: by how much the share of values that have no id of their own may be more.
        missing: by how much the share of missing values may be more or less.
        min_rows: of fewer rows nothing is said: the measures would be noise.

    Raises:
        BadConfig: a threshold that is no positive number.
    """

    mean: float = 0.25
    psi: float = 0.2
    unknown: float = 0.05
    missing: float = 0.05
    min_rows: int = 1000

    def __post_init__(self) -> None:
        for name in ("mean", "psi", "unknown", "missing", "min_rows"):
            check_number(self, "(0, inf]", **{name: getattr(self, name)})


@dataclass(frozen=True)
class ColumnDrift:
    """Drift of one column from the fit; None for what is not measured.

    Args:
        name: the column's.
        mean: the distance of the means, in standard deviations of the fit.
        psi: the population stability index.
        unknown: the share of rows whose value has no id of its own, less that of the fit.
        missing: the share of rows without a value, less that of the fit.
        moved: which of these are beyond their threshold.
    """

    name: str
    mean: float | None
    psi: float | None
    unknown: float | None
    missing: float
    moved: tuple[str, ...]


@dataclass(frozen=True)
class DriftReport:
    """Drift report: how rows differ from those a pipeline was fitted on; displays itself.

    Args:
        num_rows: rows that were compared: about 32,768 of a larger table (of a wide one fewer), drawn by identity.
        columns: each column's, those that moved first.
        thresholds: in force.
    """

    num_rows: int
    columns: tuple[ColumnDrift, ...]
    thresholds: Drift

    @classmethod
    def of(
        cls, sample: Sample, found: Mapping[str, Profile], of_fit: Mapping[str, Profile], thresholds: Drift
    ) -> DriftReport:
        """Compare rows with those of the fit.

        Args:
            sample: of the rows.
            found: the distribution of their columns.
            of_fit: that of the fit's.
            thresholds: how far they may be apart.
        """
        columns: list[ColumnDrift] = []
        if sample.num_rows >= thresholds.min_rows:
            columns = [
                _compare(old, found[name], sample.sorted_values.get(name, ()), name, thresholds)
                for name, old in of_fit.items()
                if name in found
            ]
        columns.sort(key=lambda item: not item.moved)
        return cls(sample.num_rows, tuple(columns), thresholds)

    @property
    def moved(self) -> tuple[ColumnDrift, ...]:
        """The columns beyond a threshold."""
        return tuple(item for item in self.columns if item.moved)

    @property
    def summary(self) -> str:
        """The columns that moved, and by how much; of many the first ones."""
        told = (f"{item.name} ({', '.join(f'{n} {getattr(item, n):+.3g}' for n in item.moved)})" for item in self.moved)
        return shorten_list(told, _MOST_TOLD)

    def _title(self) -> str:
        rows = format_count(self.num_rows, "row")
        if not self.columns:
            return f"{rows} compared: too few to tell (min_rows={self.thresholds.min_rows:,})"
        return f"{rows} compared: {len(self.moved)} of {format_count(len(self.columns), 'column')} moved"

    def _table(self) -> list[list[str]]:
        limits = [f"{getattr(self.thresholds, name):g}" for name in ("mean", "psi", "unknown", "missing")]
        table = [["column", "mean (stds)", "PSI", "unknown", "missing", "moved"], ["threshold", *limits, ""]]
        for item in self.columns:
            numbers = [item.mean, item.psi, item.unknown, item.missing]
            shown = ["" if number is None else f"{number:+.3f}" for number in numbers]
            table.append([item.name, *shown, ", ".join(item.moved)])
        return table

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(self._table())}" if self.columns else self._title()

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._title())}</p>{html_table(self._table()) if self.columns else ''}"


def _compare(old: Profile, new: Profile, values: Any, name: str, limits: Drift) -> ColumnDrift:
    mean = psi = unknown = None
    missing = new.missing - old.missing
    if old.unknown is not None and new.unknown is not None:
        unknown = new.unknown - old.unknown
    if old.edges and len(values):
        distance = (new.mean / 2 - old.mean / 2) / old.scale * 2  # in halves, whose difference is finite
        mean = min(max(distance, -_FARTHEST), _FARTHEST)
        psi = stability(np.array(old.shares), counts_between(values, np.array(old.edges)))
    far = {
        "mean": mean is not None and abs(mean) > limits.mean,
        "psi": psi is not None and psi > limits.psi,
        "unknown": unknown is not None and unknown > limits.unknown,
        "missing": abs(missing) > limits.missing,
    }
    return ColumnDrift(name, mean, psi, unknown, missing, tuple(which for which, is_far in far.items() if is_far))


def stability(shares: Any, counts: Any) -> float:
    """Compute the population stability index of fractions (B float64, old) and counts (B float64, new).

    Source: Siddiqi, "Credit Risk Scorecards", Wiley 2006.

    Example:
        >>> halves = np.array([0.5, 0.5])
        >>> stability(halves, np.array([10, 10])), round(stability(halves, np.array([9, 1])), 3)
        (0.0, 0.879)
    """
    old = np.maximum(shares, _LEAST_SHARE)
    new = np.maximum(counts / counts.sum(), _LEAST_SHARE)
    return float(((new - old) * np.log(new / old)).sum())
