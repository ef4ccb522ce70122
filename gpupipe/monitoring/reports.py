"""Reports on rows: how they differ from those of a fit, and which expectations they break, and in which files."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gpupipe.io import Partition
from gpupipe.schema import shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import TableReport, format_count
from gpupipe.support.validation import check_number
from gpupipe.transforms import Transform
from gpupipe.transforms.expect import Expect, Findings

_LEAST_SHARE = 1e-4  # what a bin without a value counts as in the population stability index
_FARTHEST = 1e9  # standard deviations: means are no more than this apart
_MEASURES = ("mean", "psi", "unknown", "missing")
_MOST_TOLD = 8


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


@answer_calls
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

    Raises `BadConfig`: a threshold is no positive number.
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
    """Drift of one column, as `Drift` measures it (None where not measured); `moved` are those beyond a threshold."""

    name: str
    mean: float | None
    psi: float | None
    unknown: float | None
    missing: float
    moved: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class DriftReport(TableReport):
    """Drift report: how rows differ from those a pipeline was fitted on; displays itself."""

    num_rows: int  # that were compared: about 32,768 of a larger table (of a wide one fewer), drawn by identity
    columns: tuple[ColumnDrift, ...]  # those that moved first
    thresholds: Drift

    @classmethod
    def of(
        cls,
        num_rows: int,
        values: Mapping[str, Any],
        profiles: Mapping[str, Profile],
        of_fit: Mapping[str, Profile],
        thresholds: Drift,
    ) -> DriftReport:
        """Compare the profiles of a sample's columns, and their finite values in ascending order, with the fit's."""
        columns: list[ColumnDrift] = []
        if num_rows >= thresholds.min_rows:
            columns = [
                _compare(old, profiles[name], values.get(name, ()), name, thresholds)
                for name, old in of_fit.items()
                if name in profiles
            ]
        return cls(num_rows, tuple(sorted(columns, key=lambda item: not item.moved)), thresholds)

    @property
    def moved(self) -> tuple[ColumnDrift, ...]:
        """The columns beyond a threshold."""
        return tuple(item for item in self.columns if item.moved)

    @property
    def summary(self) -> str:
        """The columns that moved, and by how much; of many the first ones."""
        texts = (
            f"{item.name} ({', '.join(f'{n} {getattr(item, n):+.3g}' for n in item.moved)})" for item in self.moved
        )
        return shorten_list(texts, _MOST_TOLD)

    @property
    def _title(self) -> str:
        rows = format_count(self.num_rows, "row")
        if not self.columns:
            return f"{rows} compared: too few to tell (min_rows={self.thresholds.min_rows:,})"
        return f"{rows} compared: {len(self.moved)} of {format_count(len(self.columns), 'column')} moved"

    def _table(self) -> list[list[str]]:
        limits = [f"{getattr(self.thresholds, name):g}" for name in _MEASURES]
        table = [["column", "mean (stds)", "PSI", "unknown", "missing", "moved"], ["threshold", *limits, ""]]
        for item in self.columns:
            numbers = [getattr(item, name) for name in _MEASURES]
            cells = ["" if number is None else f"{number:+.3f}" for number in numbers]
            table.append([item.name, *cells, ", ".join(item.moved)])
        return table if self.columns else []


def _compare(old: Profile, new: Profile, values: Any, name: str, limits: Drift) -> ColumnDrift:
    mean = psi = unknown = None
    missing = new.missing - old.missing
    if old.unknown is not None and new.unknown is not None:
        unknown = new.unknown - old.unknown
    if old.edges and len(values):
        scale = old.std or abs(old.mean) or 1.0
        distance = (new.mean / 2 - old.mean / 2) / scale * 2  # in halves, whose difference is finite
        mean = min(max(distance, -_FARTHEST), _FARTHEST)
        ends = np.append(np.searchsorted(values, old.edges, side="right"), len(values))
        psi = compute_stability(np.array(old.shares), np.diff(ends, prepend=0))
    sizes = {"mean": abs(mean or 0.0), "psi": psi or 0.0, "unknown": unknown or 0.0, "missing": abs(missing)}
    moved = tuple(which for which, size in sizes.items() if size > getattr(limits, which))
    return ColumnDrift(name, mean, psi, unknown, missing, moved)


def compute_stability(shares: Any, counts: Any) -> float:
    """Compute the index (Siddiqi, "Credit Risk Scorecards", 2006) of fractions (B float64, old) and counts (new)."""
    old = np.maximum(shares, _LEAST_SHARE)
    new = np.maximum(counts / counts.sum(), _LEAST_SHARE)
    return float(((new - old) * np.log(new / old)).sum())


_SHOWN = 3  # partitions that are named in a table; `Violation.places` has all
_WIDTH = 60  # letters of an example that a table shows


@dataclass(frozen=True)
class Violation:
    """Rows that break a rule of a `T.Expect`."""

    column: str
    rule: str  # the argument of `Expect`
    expected: str  # the same in words
    num_rows: int
    share: float  # of the rows that were checked
    example: Any  # one of the values; None where it is missing, or nobody knows
    places: tuple[tuple[str, int], ...]  # the partitions they are in, by files and row groups, and how many in each

    @property
    def _cells(self) -> list[str]:
        example = "" if self.example is None else str(self.example)
        example = example if len(example) <= _WIDTH else f"{example[:_WIDTH]} ..."
        places = [f"{name.partition(' (')[0]} ({number:,})" for name, number in self.places[:_SHOWN]]
        remainder = len(self.places) - _SHOWN
        where = "; ".join([*places, f"and {format_count(remainder, 'more partition')}"] if remainder > 0 else places)
        return [self.column, self.expected, f"{self.num_rows:,}", f"{self.share:.3%}", example, where]


@dataclass(frozen=True, repr=False)
class ExpectationReport(TableReport):
    """Report of the `T.Expect` among the steps; displays itself."""

    num_rows: int = 0  # that were checked
    violations: tuple[Violation, ...] = ()  # by column and rule

    @classmethod
    def of(
        cls, findings: Mapping[int, Findings], steps: Sequence[Transform], partitions: Sequence[Partition]
    ) -> ExpectationReport:
        """Build the report of each `Expect`'s findings, by its place among the steps; `BadData` where one raises."""
        spans = sorted((span.identity, partition.description) for partition in partitions for span in partition.spans)
        starts, violations = [start for start, _ in spans], []
        for number, finding in findings.items():
            step = steps[number]
            assert isinstance(step, Expect)
            step.enforce(finding)
            for (name, rule), total in finding.totals.items():
                places: Counter[str] = Counter()
                for first_row, count in sorted(finding.counts.get((name, rule), {}).items()):
                    places[spans[bisect_right(starts, first_row) - 1][1]] += count
                share, example = total / max(finding.num_rows, 1), finding.example(name, rule)
                violations.append(Violation(name, rule, step.rules[rule], total, share, example, tuple(places.items())))
        return cls(max((finding.num_rows for finding in findings.values()), default=0), tuple(violations))

    @property
    def passed(self) -> bool:
        """Whether no checked rule is broken."""
        return not self.violations

    @property
    def summary(self) -> str:
        """What is not as expected, in one line."""
        return "; ".join(
            f"{item.column!r} should be {item.expected}, and is not in {format_count(item.num_rows, 'row')}"
            for item in self.violations
        )

    @property
    def _title(self) -> str:
        outcome = "all as expected" if self.passed else f"{format_count(len(self.violations), 'expectation')} not met"
        return f"{format_count(self.num_rows, 'row')} checked: {outcome}"

    def _table(self) -> list[list[str]]:
        head = ["column", "expected", "rows", "share", "example", "where"]
        return [] if self.passed else [head, *(item._cells for item in self.violations)]
