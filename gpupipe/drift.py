"""Whether rows look as those of the fit did: thresholds, and the report of what has moved."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpupipe.errors import BadData
from gpupipe.profiles import Likeness, Profile
from gpupipe.support.validation import check_choice, check_number
from gpupipe.tables import html_table, text_table
from gpupipe.words import counted, shortened

__all__ = ["ColumnDrift", "Drift", "DriftReport"]

_LEAST_SHARE, _MOST_TOLD = 1e-4, 8
"""A bin without a value counts as if it had this share, in the population stability index."""


@dataclass(frozen=True)
class Drift:
    """How far the columns of other rows may be from those of the fit.

    Args:
        mean: the distance of the means, in standard deviations of the fit.
        psi: the population stability index over the deciles of the fit: the sum of (new - old) ln(new / old) over the
            shares of values between them. Below 0.1 is usually called stable, from 0.2 on moved.
        unknown: by how much the share of values that have no id of their own may be more.
        missing: by how much the share of missing values may be more or less.
        min_rows: of fewer rows nothing is said: the measures would be noise.
        on_drift: `"report"` to log a warning, `"raise"` for an error.

    Raises:
        BadConfig: a threshold that is no positive number, or no such choice.
    """

    mean: float = 0.25
    psi: float = 0.2
    unknown: float = 0.05
    missing: float = 0.05
    min_rows: int = 1000
    on_drift: str = "report"

    def __post_init__(self) -> None:
        for name in ("mean", "psi", "unknown", "missing", "min_rows"):
            check_number(self, "(0, inf]", **{name: getattr(self, name)})
        check_choice(self, ("report", "raise"), on_drift=self.on_drift)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {name: None if value == math.inf else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Drift:
        """What `to_json` wrote."""
        given: dict[str, Any] = {name: math.inf if value is None else value for name, value in content.items()}
        return cls(**given)


@dataclass(frozen=True)
class ColumnDrift:
    """How far one column is from that of the fit; None for what is not measured of it.

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
    """How the rows last given to a pipeline differ from those it was fitted on; shows itself.

    Args:
        num_rows: rows that were compared: about 32,768 of a larger table (of a wide one fewer), drawn by identity.
        columns: each column's, those that moved first.
        thresholds: in force.
        is_complete: whether all partitions have been seen.
    """

    num_rows: int
    columns: tuple[ColumnDrift, ...]
    thresholds: Drift
    is_complete: bool = True

    @classmethod
    def of(
        cls, seen: Likeness, profiles: Mapping[str, Profile], thresholds: Drift, *, is_complete: bool = True
    ) -> DriftReport:
        """The report of what was seen."""
        columns: list[ColumnDrift] = []
        if seen.num_rows >= thresholds.min_rows:
            columns = [_compared(name, profiles[name], tally, seen, thresholds) for name, tally in seen.tallies.items()]
        columns.sort(key=lambda item: not item.moved)
        return cls(seen.num_rows, tuple(columns), thresholds, is_complete)

    @property
    def moved(self) -> tuple[ColumnDrift, ...]:
        """The columns beyond a threshold."""
        return tuple(item for item in self.columns if item.moved)

    def enforce(self) -> None:
        """Raise, if that is asked for, where a column has moved.

        Raises:
            BadData: names the first and by how much.
        """
        if self.thresholds.on_drift != "raise" or not self.moved:
            return
        first = self.moved[0]
        raise BadData(
            f"drift, column {first.name!r}",
            f"{counted(len(self.moved), 'column')} moved away from the rows of the fit: {self.summary}",
            expected=f"at most {', '.join(f'{name} {getattr(self.thresholds, name):g}' for name in first.moved)}",
            remedy="a look at pipeline.drift_report(), a new fit, or Drift(on_drift='report')",
        )

    @property
    def summary(self) -> str:
        """The columns that moved, and by how much; of many the first ones."""
        told = (f"{item.name} ({', '.join(f'{n} {getattr(item, n):+.3g}' for n in item.moved)})" for item in self.moved)
        return shortened(told, _MOST_TOLD)

    def _title(self) -> str:
        part = "" if self.is_complete else ", not all partitions seen yet"
        rows = counted(self.num_rows, "row")
        if not self.columns:
            return f"{rows} compared{part}: too few to tell (min_rows={self.thresholds.min_rows:,})"
        return f"{rows} compared{part}: {len(self.moved)} of {counted(len(self.columns), 'column')} moved"

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


def _compared(name: str, profile: Profile, tally: Any, seen: Likeness, limits: Drift) -> ColumnDrift:
    mean = psi = None
    missing = float(tally[0]) / seen.num_rows - profile.missing
    unknown = None if profile.unknown is None else float(tally[1]) / seen.num_rows - profile.unknown
    if profile.edges and tally[2] > 0:
        mean, psi = float(tally[3] / tally[2]), stability(np.array(profile.shares), tally[4:])
    far = {
        "mean": mean is not None and abs(mean) > limits.mean,
        "psi": psi is not None and psi > limits.psi,
        "unknown": unknown is not None and unknown > limits.unknown,
        "missing": abs(missing) > limits.missing,
    }
    return ColumnDrift(name, mean, psi, unknown, missing, tuple(which for which, is_far in far.items() if is_far))


def stability(shares: Any, counts: Any) -> float:
    """The population stability index of shares (B float64, old) and counts (B float64, new).

    Source: Siddiqi, "Credit Risk Scorecards", Wiley 2006.

    Example:
        >>> halves = np.array([0.5, 0.5])
        >>> stability(halves, np.array([10, 10])), round(stability(halves, np.array([9, 1])), 3)
        (0.0, 0.879)
    """
    old = np.maximum(shares, _LEAST_SHARE)
    new = np.maximum(counts / counts.sum(), _LEAST_SHARE)
    return float(((new - old) * np.log(new / old)).sum())
