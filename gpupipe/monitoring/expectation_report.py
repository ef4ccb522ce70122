"""Expectation report: how many rows break which rule of which column, and in which files."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupipe.io import Partition
from gpupipe.support.text import TableReport, format_count
from gpupipe.transforms import Transform
from gpupipe.transforms.expect import Expect, Findings

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
        places = [f"{place.partition(' (')[0]} ({number:,})" for place, number in self.places[:_SHOWN]]
        rest = len(self.places) - _SHOWN
        where = "; ".join([*places, f"and {format_count(rest, 'more partition')}"] if rest > 0 else places)
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
        starts, made = [start for start, _ in spans], []
        for number, found in findings.items():
            step = steps[number]
            assert isinstance(step, Expect)
            step.enforce(found)
            for (name, rule), total in found.totals.items():
                places: Counter[str] = Counter()
                for first_row, count in sorted(found.counts.get((name, rule), {}).items()):
                    places[spans[bisect_right(starts, first_row) - 1][1]] += count
                share, example = total / max(found.num_rows, 1), found.example(name, rule)
                made.append(Violation(name, rule, step.rules[rule], total, share, example, tuple(places.items())))
        return cls(max((found.num_rows for found in findings.values()), default=0), tuple(made))

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
        told = "all as expected" if self.passed else f"{format_count(len(self.violations), 'expectation')} not met"
        return f"{format_count(self.num_rows, 'row')} checked: {told}"

    def _table(self) -> list[list[str]]:
        head = ["column", "expected", "rows", "share", "example", "where"]
        return [] if self.passed else [head, *(item._cells for item in self.violations)]
