"""Fit reports: rows, missing values, steps and timings of a fit."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpupipe.io import FileNote
from gpupipe.monitoring.expectation_report import ExpectationReport
from gpupipe.support.tables import html_table, text_table
from gpupipe.support.text import format_count

__all__ = ["FitReport", "StepReport"]


@dataclass(frozen=True)
class StepReport:
    """Report of one step's part in a fit.

    Args:
        number: the pass it learned in, from 1.
        step: its class.
        columns: those it learned from, or how many.
        missing: their missing values.
        rare: the share of their rows whose value has no id of its own, in a sample; None where ids are not made.
        seconds: of all threads and workers together; on a GPU until its work was handed over.
        num_bytes: the size of the columns it read.
    """

    number: int
    step: str
    columns: str
    missing: int
    rare: float | None
    seconds: float
    num_bytes: int

    @property
    def cells(self) -> list[str]:
        """For a table."""
        rare = "" if self.rare is None else f"{self.rare:.2%}"
        size = f"{self.num_bytes / 1e6:.1f}"
        return [str(self.number), self.step, self.columns, f"{self.missing:,}", rare, f"{self.seconds:.3f}", size]


@dataclass
class FitReport:
    """Report of a fit: rows, steps and timings; displays as text and in a notebook.

    Args:
        num_rows: rows after the transforms; 0 where nothing is learned, since then nothing is read.
        num_without_target: rows of those left out because their target is missing.
        num_reads: how often the data was read, counted in whole passes.
        num_halved: partitions that were too large for memory, and were worked on in halves.
        unmatched: the share of rows without a match, by the join's name.
        rejected: the files whose rows it did not see, and why.
        seconds: wall time.
        steps: each step's part.
        notes: what was decided on the target, and which columns selectors left out.
        checks: what was not as `expect=` says.
    """

    num_rows: int = 0
    num_without_target: int = 0
    num_reads: int = 0
    num_halved: int = 0
    unmatched: dict[str, float] = field(default_factory=dict)
    rejected: tuple[FileNote, ...] = ()
    seconds: float = 0.0
    steps: Sequence[StepReport] = ()
    notes: list[str] = field(default_factory=list)
    checks: ExpectationReport = field(default_factory=ExpectationReport)

    def __str__(self) -> str:
        if not self.num_reads:
            return f"nothing to learn; {self.seconds:.1f} s"
        joins = "".join(f", {share:.1%} without a match in {name}" for name, share in self.unmatched.items())
        left_out = f", {self.num_without_target:,} without a target left out" if self.num_without_target else ""
        files = f", {format_count(len(self.rejected), 'file')} rejected" if self.rejected else ""
        halved = (
            f", {format_count(self.num_halved, 'partition')} in halves for want of memory" if self.num_halved else ""
        )
        rows, reads = format_count(self.num_rows, "row"), format_count(self.num_reads, "read")
        return f"fitted on {rows}{left_out}{joins}{files}; {reads}{halved}, {self.seconds:.1f} s"

    def _table(self) -> list[list[str]]:
        head = ["pass", "step", "columns", "missing", "rare", "seconds", "MB"]
        return [head, *(item.cells for item in self.steps)]

    def __repr__(self) -> str:
        parts = [str(self), *(["\n".join(self.notes)] if self.notes else [])]
        parts += [text_table(self._table())] if self.steps else []
        parts += [] if self.checks.passed else [repr(self.checks)]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        table = html_table(self._table()) if self.steps else ""
        told = "".join(f"<p>{html.escape(line)}</p>" for line in [str(self), *self.notes])
        return f"{told}{table}{'' if self.checks.passed else self.checks._repr_html_()}"
