"""Report of a fit."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpupipe.io import FileNote
from gpupipe.monitoring.reports import ExpectationReport
from gpupipe.support.attributes import Answering
from gpupipe.support.text import format_count, html_table, text_table


@dataclass(frozen=True)
class StepReport:
    """Report of one step's part in a fit."""

    number: int  # of the pass it learned in, from 1
    step: str  # its class
    columns: str  # those it learned from, or how many
    missing: int  # their missing values
    rare: float | None  # the share of their rows whose value has no id of its own, in a sample; None without ids
    seconds: float  # of all threads and workers together; on a GPU until its work was handed over
    num_bytes: int  # the size of the columns it read

    @property
    def _cells(self) -> list[str]:
        rare = "" if self.rare is None else f"{self.rare:.2%}"
        size = f"{self.num_bytes / 1e6:.1f}"
        return [str(self.number), self.step, self.columns, f"{self.missing:,}", rare, f"{self.seconds:.3f}", size]


@dataclass
class FitReport(Answering):
    """Report of a fit: rows, steps and timings; displays as text and in a notebook."""

    num_rows: int = 0  # after the transforms; 0 where nothing is learned, since then nothing is read
    num_without_target: int = 0  # of those left out because their target is missing
    num_reads: int = 0  # of the data, counted in whole passes
    num_halved: int = 0  # partitions that were too large for memory, and were worked on in halves
    unmatched: dict[str, float] = field(default_factory=dict)  # the share of rows without a match, by the join's name
    coerced: dict[str, int] = field(default_factory=dict)  # the values that `T.Cast` made missing, by column
    rejected: tuple[FileNote, ...] = ()  # the files whose rows it did not see, and why
    seconds: float = 0.0  # wall time
    steps: Sequence[StepReport] = ()
    notes: list[str] = field(default_factory=list)  # on the target's task, columns that selectors left out, leaks
    checks: ExpectationReport = field(default_factory=ExpectationReport)  # of each `T.Expect`

    def __str__(self) -> str:
        if not self.num_reads:
            return f"nothing to learn; {self.seconds:.1f} s"
        parts = [f"fitted on {format_count(self.num_rows, 'row')}"]
        parts += [f"{self.num_without_target:,} without a target left out"] if self.num_without_target else []
        parts += [f"{share:.1%} without a match in {name}" for name, share in self.unmatched.items()]
        parts += [
            f"{format_count(count, 'value')} of {name!r} made missing by Cast" for name, count in self.coerced.items()
        ]
        parts += [f"{format_count(len(self.rejected), 'file')} rejected"] if self.rejected else []
        halved = f", {format_count(self.num_halved, 'partition')} in halves for want of memory"
        reads = format_count(self.num_reads, "read") + (halved if self.num_halved else "")
        return f"{', '.join(parts)}; {reads}, {self.seconds:.1f} s"

    def _table(self) -> list[list[str]]:
        return [["pass", "step", "columns", "missing", "rare", "seconds", "MB"], *(item._cells for item in self.steps)]

    def __repr__(self) -> str:
        table = text_table(self._table()) if self.steps else ""
        checks = "" if self.checks.passed else repr(self.checks)
        return "\n\n".join(filter(None, [str(self), "\n".join(self.notes), table, checks]))

    def _repr_html_(self) -> str:
        table = html_table(self._table()) if self.steps else ""
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in [str(self), *self.notes])
        return f"{lines}{table}{'' if self.checks.passed else self.checks._repr_html_()}"
