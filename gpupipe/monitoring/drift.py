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
from gpupipe.schema import shorten_list
from gpupipe.support.text import format_count, html_table, text_table
from gpupipe.support.validation import check_number

SAMPLE_ROWS = 1 << 15
"""The approximate size of the sample; all rows of a smaller dataset, fewer of a wide one."""

_SAMPLE_NUMBERS, _FEWEST_ROWS = 1 << 24, 1 << 12  # 128 MiB, but where there are more than 4,096 columns
_SEED = 0x5EED
_DECILES = np.arange(1, 10) / 10
_LEAST_SHARE = 1e-4  # what a bin without a value counts as in the population stability index
_FARTHEST = 1e9  # standard deviations: means are no more than this apart
_MOST_TOLD = 8


def draw_rows(row_ids: Array, total: int, num_columns: int, backend: Backend) -> Array | slice:
    """Draw the sample of at most `total` rows by their ids (n uint64) alone, so the same under any partitioning."""
    wanted = min(SAMPLE_ROWS, max(_SAMPLE_NUMBERS // max(num_columns, 1), _FEWEST_ROWS))
    if total <= wanted:
        return slice(0, len(row_ids))
    return backend.xp.flatnonzero(splitmix64(_SEED, row_ids) < np.uint64(wanted / total * 2.0**64))


@dataclass(frozen=True)
class Profile:
    """Profile of one column's distribution."""

    missing: float  # the share of rows without a value
    mean: float = 0.0  # of the finite values
    std: float = 0.0
    edges: tuple[float, ...] = ()  # the deciles that differ, of numbers
    shares: tuple[float, ...] = ()  # of values up to each edge, above the one before, and of those above the last
    unknown: float | None = None  # the share of rows whose value became no id of its own; None where none becomes one

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Build the profile whose attributes were written."""
        return cls(**{**content, "edges": tuple(content["edges"]), "shares": tuple(content["shares"])})


@dataclass(frozen=True)
class Sample:
    """Sample of rows from some partitions: a mergeable summary.

    `numbers` are of each part the values of the columns `names`, C x rows float64 on the host, NaN where there is none,
    or no finite one; `categories` count by the name of a column that becomes ids how often each value occurs.
    """

    num_rows: int = 0
    names: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = ()
    categories: Mapping[str, ValueCounts] = field(default_factory=dict)

    @classmethod
    def of(
        cls, frame: Frame, rows: Array | slice, numbers: Sequence[str], categories: Sequence[str], backend: Backend
    ) -> Self:
        """Draw the sample of one partition."""
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
        """Return the profile of each column that has a share of `missing` values; `vocabularies` are of ids' values."""
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


def _profile_numbers(values: Any, missing: float) -> Profile:
    """Compute the profile of finite numbers in ascending order, so that sums do not depend on partitions."""
    deciles = _compute_deciles(values)
    edges = deciles[_find_run_ends(deciles)] + 0.0  # without a sign where they are zero
    # Each value once, by its share: the mean of equal ones is what they are, to the last digit.
    last = _find_run_ends(values)
    known, weight = values[last], np.diff(last + 1, prepend=0) / len(values)
    unit = max(abs(float(values[0])), abs(float(values[-1])), 1.0)  # whose squares are floats
    mean = float((known * weight).sum())
    std = unit * float(np.sqrt((np.square(known / unit - mean / unit) * weight).sum()))
    shares = (_count_between(values, edges) / len(values)).tolist()
    return Profile(missing, mean, std, tuple(edges.tolist()), tuple(shares))


def _count_between(values: Any, edges: Any) -> Any:
    """Count values up to each edge, above the one before, and those above the last; both ascending."""
    return np.diff(np.append(np.searchsorted(values, edges, side="right"), len(values)), prepend=0)


def _find_run_ends(values: Any) -> Any:
    """Return the last position of each run of equal neighbours."""
    return np.flatnonzero(np.append(values[1:] != values[:-1], True))


def _compute_deciles(values: Any) -> Any:
    """Compute the deciles of ascending values, as `Histogram.quantiles` does; NumPy would sort once more."""
    rank = _DECILES * (len(values) - 1)
    lower = np.floor(rank)
    part, place = rank - lower, lower.astype(np.int64)
    below, above = values[place], values[np.minimum(place + 1, len(values) - 1)]
    with np.errstate(over="ignore"):
        gap = above - below
        return np.where(part < 0.5, below + gap * part, above - gap * (1 - part))


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
        check_number(self, "(0, inf]", **vars(self))


@dataclass(frozen=True)
class ColumnDrift:
    """Drift of one column from the fit, as `Drift` measures it; None for what is not measured.

    `moved` are the measures beyond their threshold.
    """

    name: str
    mean: float | None
    psi: float | None
    unknown: float | None
    missing: float
    moved: tuple[str, ...]


@dataclass(frozen=True)
class DriftReport:
    """Drift report: how rows differ from those a pipeline was fitted on; displays itself."""

    num_rows: int  # that were compared: about 32,768 of a larger table (of a wide one fewer), drawn by identity
    columns: tuple[ColumnDrift, ...]  # those that moved first
    thresholds: Drift

    @classmethod
    def of(
        cls, sample: Sample, found: Mapping[str, Profile], of_fit: Mapping[str, Profile], thresholds: Drift
    ) -> DriftReport:
        """Compare the profiles found in a sample of rows with those of the fit."""
        columns: list[ColumnDrift] = []
        if sample.num_rows >= thresholds.min_rows:
            columns = [
                _compare(old, found[name], sample.sorted_values.get(name, ()), name, thresholds)
                for name, old in of_fit.items()
                if name in found
            ]
        return cls(sample.num_rows, tuple(sorted(columns, key=lambda item: not item.moved)), thresholds)

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
        scale = old.std or abs(old.mean) or 1.0
        distance = (new.mean / 2 - old.mean / 2) / scale * 2  # in halves, whose difference is finite
        mean = min(max(distance, -_FARTHEST), _FARTHEST)
        psi = compute_stability(np.array(old.shares), _count_between(values, np.array(old.edges)))
    sizes = {"mean": abs(mean or 0.0), "psi": psi or 0.0, "unknown": unknown or 0.0, "missing": abs(missing)}
    moved = tuple(which for which, size in sizes.items() if size > getattr(limits, which))
    return ColumnDrift(name, mean, psi, unknown, missing, moved)


def compute_stability(shares: Any, counts: Any) -> float:
    """Compute the population stability index of fractions (B float64, old) and counts (B float64, new).

    Source: Siddiqi, "Credit Risk Scorecards", Wiley 2006.
    """
    old = np.maximum(shares, _LEAST_SHARE)
    new = np.maximum(counts / counts.sum(), _LEAST_SHARE)
    return float(((new - old) * np.log(new / old)).sum())
