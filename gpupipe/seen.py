"""What a fit takes note of beside what it learns: of each column, in the first pass, whatever the steps are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.numbers import ends
from gpupipe.expectations import Expectations, Findings
from gpupipe.preprocessing.blocks import tabulate
from gpupipe.preprocessing.extremes import Extremes
from gpupipe.preprocessing.moments import Moments
from gpupipe.profiles import Sample, drawn_rows
from gpupipe.schema import WIDE, Schema

__all__ = ["Note", "Seen", "Taking", "coarse_spacing", "told_by"]


@dataclass(frozen=True)
class Seen:
    """One column, of all rows the steps learn from.

    Args:
        missing: rows without a value.
        low: the least number; +inf where there is none.
        high: the greatest; -inf where there is none.
    """

    missing: int = 0
    low: float = np.inf
    high: float = -np.inf

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.missing + other.missing, min(self.low, other.low), max(self.high, other.high))

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest number, where both are numbers a file can hold."""
        return (self.low, self.high) if np.isfinite(self.low) and np.isfinite(self.high) else None


@dataclass(frozen=True)
class Note:
    """What was noted of some partitions; a sum is that of all their rows.

    Args:
        num_rows: rows that steps learn from.
        findings: of what is expected of the rows as they are read.
        sample: what rows drawn by their identities hold, to compare others with.
        columns: each column that features see.
    """

    num_rows: int = 0
    findings: Findings = field(default_factory=Findings)
    sample: Sample = field(default_factory=Sample)
    columns: Mapping[str, Seen] = field(default_factory=dict)

    def __add__(self, other: Note) -> Note:
        columns = {name: item + other.columns[name] for name, item in self.columns.items()}
        findings, sample = self.findings + other.findings, self.sample + other.sample
        return Note(self.num_rows + other.num_rows, findings, sample, columns)


@dataclass(frozen=True)
class Taking:
    """What is to be noted in the first pass of a fit.

    Args:
        expectations: of the columns as they are read.
        source: those columns.
        numbers: columns of numbers that features see.
        categories: columns that become ids.
        unscaled: columns of wide numbers that are features as they are.
        others: columns of which only what is missing is counted.
        samples: whether rows are drawn to compare others with.
        total: rows of the dataset at most.
    """

    expectations: Expectations
    source: Schema
    numbers: Sequence[str]
    categories: Sequence[str]
    unscaled: Sequence[str]
    others: Sequence[str]
    samples: bool
    total: int

    @property
    def reads(self) -> list[str]:
        """The columns that are read to be looked at."""
        return list(self.expectations.by_name)

    def findings(self, frame: Frame, backend: Backend, place: int) -> Findings:
        """What one frame, as it is read, has that is not expected.

        Raises:
            BadData: there is something, and an error is asked for.
        """
        return self.expectations.look(frame, self.source, backend, place)

    def note(
        self, findings: Findings, frame: Frame, row_ids: Array | None, told: Mapping[str, Seen], backend: Backend
    ) -> Note:
        """What one partition has.

        Args:
            findings: of the rows as they are read.
            frame: those that steps learn from.
            row_ids: the identity of each, where `samples`.
            told: numbers that were looked at already.
            backend: whose frame it is.
        """
        looked_at = dict.fromkeys([*self.numbers, *self.unscaled])
        numbers = {name: backend.column(frame, name) for name in looked_at if name not in told}
        others = {name: backend.column(frame, name) for name in self.others}
        sample = Sample()
        if self.samples and row_ids is not None:
            rows = drawn_rows(row_ids, self.total, len(self.numbers) + len(self.categories), backend)
            sample = Sample.of(frame, rows, self.numbers, self.categories, backend)
        seen = _of_numbers(numbers, backend) | {name: told[name] for name in looked_at if name in told}
        return Note(len(frame), findings, sample, seen | _of_others(others, backend))


def told_by(summary: object) -> dict[str, Seen]:
    """The columns whose range a step's summary tells."""
    found = summary.extremes if isinstance(summary, Moments) else summary
    if not isinstance(found, Extremes):
        return {}
    numbers = zip(found.missing.tolist(), found.low.tolist(), found.high.tolist(), strict=True)
    return {name: Seen(*seen) for name, seen in zip(found.names, numbers, strict=True)}


def coarse_spacing(dtype: str, ends: tuple[float, float]) -> float | None:
    """How far float32's values lie apart at the larger end, where that is more than 1/1000 of the range; else None.

    None too for what float32 holds exactly: its own values, and whole numbers up to 2**24.

    Example:
        >>> coarse_spacing("int64", (1_700_000_000, 1_700_000_199)), coarse_spacing("int64", (0, 199))
        (128.0, None)
    """
    low, high = ends
    if dtype not in WIDE or not low < high:
        return None
    largest = max(abs(low), abs(high))
    if dtype != "float64" and largest <= 2**24:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = float(np.spacing(np.float32(largest)))
    return spacing if spacing > (high - low) / 1000 else None


def _of_numbers(columns: Mapping[str, Column], backend: Backend) -> dict[str, Seen]:
    if not columns:
        return {}
    return told_by(Extremes.of_blocks(columns, tabulate(columns, ends, 3, backend)))


def _of_others(columns: Mapping[str, Column], backend: Backend) -> dict[str, Seen]:
    """Columns whose size means nothing: only what is missing of them is counted."""
    xp = backend.xp
    masks = {name: column.missing(xp) for name, column in columns.items()}
    counts = {name: xp.asarray(xp.count_nonzero(mask)) for name, mask in masks.items() if mask is not None}
    found = backend.to_host(xp.stack(list(counts.values()))).tolist() if counts else []
    numbers = dict(zip(counts, found, strict=True))
    return {name: Seen(int(numbers.get(name, 0))) for name in columns}
