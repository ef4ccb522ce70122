"""Expectation report: how many rows break which rule of which column, and in which files."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupipe.io import Partition
from gpupipe.support.text import format_count, html_table, text_table
from gpupipe.transforms import Transform
from gpupipe.transforms.expect import Expect, Findings

_SHOWN = 3
"""Partitions that are named in a table; `Violation.places` has all."""
_WIDTH = 60
"""Letters of an example that a table shows."""


@dataclass(frozen=True)
class Violation:
    """Rows that break a rule of a `T.Expect`.

    Args:
        column: whose values.
        rule: the argument of `Expect`.
        expected: the same in words.
        num_rows: how many.
        share: of the rows that were checked.
        example: one of the values; None where it is missing, or nobody knows.
        places: the partitions they are in, by files and row groups, and how many in each.
    """

    column: str
    rule: str
    expected: str
    num_rows: int
    share: float
    example: Any
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ExpectationReport:
    """Report of the `T.Expect` among the steps; displays itself.

    Args:
        num_rows: rows that were checked.
        violations: by column and rule.
    """

    num_rows: int = 0
    violations: tuple[Violation, ...] = ()

    @classmethod
    def of(
        cls, findings: Mapping[int, Findings], steps: Sequence[Transform], partitions: Sequence[Partition]
    ) -> ExpectationReport:
        """Build the report of the steps' findings.

        Raises:
            BadData: values that are there twice in different partitions, where a step raises.

        Args:
            findings: of each `Expect`, by its place among the steps.
            steps: of the pipeline.
            partitions: the rows are in.
        """
        made, name_of = [], _places(partitions)
        for number, found in findings.items():
            step = steps[number]
            assert isinstance(step, Expect)
            step.enforce(found)
            for (name, rule), total in found.totals.items():
                places: dict[str, int] = {}
                for key, count in sorted(found.counts.get((name, rule), {}).items()):
                    places[name_of(key)] = places.get(name_of(key), 0) + count
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

    def _title(self) -> str:
        kinds = format_count(len(self.violations), "expectation")
        told = "all as expected" if self.passed else f"{kinds} not met"
        return f"{format_count(self.num_rows, 'row')} checked: {told}"

    def _table(self) -> list[list[str]]:
        table = [["column", "expected", "rows", "share", "example", "where"]]
        for item in self.violations:
            example = "" if item.example is None else str(item.example)
            example = example if len(example) <= _WIDTH else f"{example[:_WIDTH]} ..."
            table.append(
                [
                    item.column,
                    item.expected,
                    f"{item.num_rows:,}",
                    f"{item.share:.3%}",
                    example,
                    _format_places(item.places),
                ]
            )
        return table

    def __repr__(self) -> str:
        return self._title() if self.passed else f"{self._title()}\n{text_table(self._table())}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._title())}</p>{'' if self.passed else html_table(self._table())}"


def _places(partitions: Sequence[Partition]) -> Callable[[int], str]:
    """Name the partition that a row is in, by the row's identity."""
    spans = sorted((span.identity, partition.description) for partition in partitions for span in partition.spans)
    starts = [start for start, _ in spans]
    return lambda row: spans[bisect_right(starts, row) - 1][1]


def _format_places(places: Sequence[tuple[str, int]]) -> str:
    shown = [f"{place.partition(' (')[0]} ({number:,})" for place, number in places[:_SHOWN]]
    rest = len(places) - _SHOWN
    return "; ".join([*shown, f"and {format_count(rest, 'more partition')}"] if rest > 0 else shown)
