"""The report of what was not as expected: how many rows, of which column and rule, and in which files."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpupipe.expectations import Expectations, Findings
from gpupipe.io import Partition
from gpupipe.tables import html_table, text_table
from gpupipe.words import counted

__all__ = ["CheckReport", "Violation", "places_in"]

_SHOWN = 3
"""Partitions that are named in a table; `Violation.places` has all."""
_WIDTH = 60
"""Letters of an example that a table shows."""


@dataclass(frozen=True)
class Violation:
    """Rows that are not as expected.

    Args:
        column: whose values.
        rule: the argument of `Expect`.
        expected: the same in words.
        num_rows: how many.
        example: one of the values; None where it is missing, or nobody knows.
        places: the partitions they are in, by files and row groups, and how many in each.
    """

    column: str
    rule: str
    expected: str
    num_rows: int
    example: Any
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CheckReport:
    """What was found of what is expected; shows itself.

    Args:
        num_rows: rows that were looked at.
        violations: by column and rule.
        is_complete: whether all partitions have been seen.
    """

    num_rows: int = 0
    violations: tuple[Violation, ...] = ()
    is_complete: bool = True

    @classmethod
    def of(
        cls, findings: Findings, expectations: Expectations, place: Callable[[int], str], *, is_complete: bool = True
    ) -> CheckReport:
        """The report of what was found; `place` names the partition whose first row's identity it is given."""
        made = []
        for (name, rule), total in findings.totals.items():
            places: dict[str, int] = {}
            for key, number in sorted(findings.counts.get((name, rule), {}).items()):
                places[place(key)] = places.get(place(key), 0) + number
            words = expectations.by_name[name].rules[rule]
            example = findings.example(name, rule)
            made.append(Violation(name, rule, words, total, example, tuple(places.items())))
        return cls(findings.num_rows, tuple(made), is_complete)

    @property
    def passed(self) -> bool:
        """Whether everything that was looked at is as expected."""
        return not self.violations

    @property
    def summary(self) -> str:
        """What is not as expected, in one line."""
        return "; ".join(
            f"{item.column!r} should be {item.expected}, and is not in {counted(item.num_rows, 'row')}"
            for item in self.violations
        )

    def _title(self) -> str:
        part = "" if self.is_complete else ", not all partitions seen yet"
        kinds = counted(len(self.violations), "expectation")
        told = "all as expected" if self.passed else f"{kinds} not met"
        return f"{counted(self.num_rows, 'row')} checked{part}: {told}"

    def _table(self) -> list[list[str]]:
        table = [["column", "expected", "rows", "share", "example", "where"]]
        for item in self.violations:
            share = f"{item.num_rows / max(self.num_rows, 1):.3%}"
            example = "" if item.example is None else str(item.example)
            example = example if len(example) <= _WIDTH else f"{example[:_WIDTH]} ..."
            table.append([item.column, item.expected, f"{item.num_rows:,}", share, example, _told(item.places)])
        return table

    def __repr__(self) -> str:
        return self._title() if self.passed else f"{self._title()}\n{text_table(self._table())}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._title())}</p>{'' if self.passed else html_table(self._table())}"


def places_in(partitions: Sequence[Partition]) -> Callable[[int], str]:
    """What names the partition that a row is in, by the row's identity."""
    spans = sorted((span.identity, partition.description) for partition in partitions for span in partition.spans)
    starts = [start for start, _ in spans]

    def place(row: int) -> str:
        found = bisect_right(starts, row) - 1
        return spans[found][1] if found >= 0 else "the frame"

    return place


def _told(places: Sequence[tuple[str, int]]) -> str:
    shown = [f"{place.partition(' (')[0]} ({number:,})" for place, number in places[:_SHOWN]]
    rest = len(places) - _SHOWN
    return "; ".join([*shown, f"and {counted(rest, 'more partition')}"] if rest > 0 else shown)
