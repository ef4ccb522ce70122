"""Drift detection: thresholds, and the report of how rows differ from those of the fit."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.monitoring.profiles import Profile, Sample, counts_between
from gpupipe.support.tables import html_table, text_table
from gpupipe.support.text import format_count, shorten_list
from gpupipe.support.validation import check_number

__all__ = ["ColumnDrift", "Drift", "DriftReport"]

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
