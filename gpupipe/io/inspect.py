"""Dataset inspection: a report of the content, column by column."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend import Backend, Column, select
from gpupipe.backend.dictionaries import unite_dictionaries
from gpupipe.io.formats.parquet_layout import ParquetFacts, describe_layout
from gpupipe.io.planning.partitions import FileNote, Partition
from gpupipe.io.readers import as_dataset
from gpupipe.schema import FLOATS, Field, Kind, get_element_dtype
from gpupipe.support.text import format_count, html_table, text_table

MAX_DISTINCT = 1_000_000


@dataclass(frozen=True)
class ColumnReport:
    """Report of one column's content.

    Args:
        field: its name and type.
        num_missing: rows without a value.
        num_distinct: different present values, exactly unless `is_capped`: then there are at least as many; None of a
            column that is only carried. Of lists, here and below, their elements.
        low, high: the least and the greatest present value; None when there is none.
        lengths: the least and the greatest number of elements of lists; None of other columns, and without any list.
        num_missing_elements: elements of lists without a value.
    """

    field: Field
    num_missing: int
    num_distinct: int | None
    is_capped: bool
    low: Any
    high: Any
    lengths: tuple[int, int] | None = None
    num_missing_elements: int = 0


@dataclass(frozen=True)
class Report:
    """Report of `inspect`; displays as text and in a notebook.

    Args:
        num_rows: rows of the dataset.
        partitions: what it is read in.
        columns: a report per column.
        notes: the files and columns that were skipped or converted.
        layout: how Parquet files are laid out; None of other tables.
    """

    num_rows: int
    partitions: tuple[Partition, ...]
    columns: tuple[ColumnReport, ...]
    notes: tuple[FileNote, ...] = ()
    layout: ParquetFacts | None = None

    def _title(self) -> str:
        parts = (self.num_rows, "row"), (len(self.columns), "column"), (len(self.partitions), "partition")
        return ", ".join(format_count(*part) for part in parts)

    def _table(self) -> list[list[str]]:
        rows = [["column", "dtype", "missing", "distinct", "min", "max", "lengths"]]
        for found in self.columns:
            share = found.num_missing / self.num_rows if self.num_rows else 0.0
            exactly = "" if found.num_distinct is None else f"{found.num_distinct:,}"
            distinct = f"{'>= ' if found.is_capped else ''}{exactly}"
            shown = [_format_value(found.low), _format_value(found.high)]
            rows.append([found.field.name, found.field.dtype, f"{share:.2%}", distinct, *shown, _lengths(found)])
        has_lists = any(row[-1] for row in rows[1:])
        return rows if has_lists else [row[:-1] for row in rows]

    def __repr__(self) -> str:
        partitions = "\n".join(
            f"{part.index}: {format_count(part.num_rows, 'row')}, {part.description}" for part in self.partitions
        )
        notes = "\n".join(["", "", *map(str, self.notes)]) if self.notes else ""
        layout = f"\n\n{self.layout}" if self.layout else ""
        return f"{self._title()}\n\n{text_table(self._table())}\n\n{partitions}{layout}{notes}"

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(str(note))}</p>" for note in self.notes)
        layout = f"<p>{html.escape(str(self.layout))}</p>" if self.layout else ""
        return f"<p>{html.escape(self._title())}</p>{html_table(self._table())}{layout}{notes}"


def inspect(data: Any) -> Report:
    """Count the missing and distinct values of each column of a table, and find its least and greatest, in one read.

    Of lists these are the elements' values; of columns that are only carried, those that are missing.

    Args:
        data: a Dataset, or any table that `from_frame` takes.

    Raises:
        SchemaMismatch: no table.

    Memory: one partition, and up to a million different values per column on the host.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> print(inspect(gp.from_frame(pd.DataFrame({"origin": ["JFK", None, "JFK"]}))))
        3 rows, 1 column, 1 partition
        <BLANKLINE>
        column  dtype   missing  distinct  min  max
        origin  string  33.33%   1         JFK  JFK
        <BLANKLINE>
        0: 3 rows, rows 0 to 3 of a frame
    """
    dataset = as_dataset(data)
    backend = select(dataset.backend)
    tallies = [_Tally(item) for item in dataset.schema]
    num_rows = 0
    for partition in dataset.partitions:
        frame = dataset.read(partition, None, backend)
        num_rows += len(frame)
        for tally in tallies:
            tally.add(backend.column(frame, tally.field.name), backend)
    columns = tuple(tally.report() for tally in tallies)
    layout = describe_layout(dataset.source)
    return Report(num_rows, tuple(dataset.partitions), columns, tuple(dataset.source.notes), layout)


class _Tally:
    """Counts of one column so far."""

    def __init__(self, item: Field) -> None:
        self.field = item
        element = get_element_dtype(item.dtype)
        self._elements = None if element is None else _Tally(Field(item.name, element))
        self._lengths: list[int] = []
        self._missing = 0
        self._is_capped = False
        self._distinct = pa.array([], pa.large_string() if item.dtype == "string" else None)
        self._extremes: list[Any] = []

    def add(self, column: Column, backend: Backend) -> None:
        missing = column.missing(backend.xp)
        if self.field.kind == Kind.PASSENGER:
            self._missing += 0 if missing is None else int(missing.sum())
            return
        if self._elements is not None and column.elements is not None:
            lengths = column.data[1:] - column.data[:-1]
            lengths = lengths if missing is None else lengths[~missing]
            self._missing += len(column) - len(lengths)
            self._lengths += [int(lengths.min()), int(lengths.max())] if len(lengths) else []
            self._elements.add(column.elements, backend)
            return
        present = column.data if missing is None else column.data[~missing]
        self._missing += len(column) - len(present)
        if not len(present):
            return
        if column.dtype in FLOATS:
            present = present + 0.0  # -0.0 is no other value than 0.0
        values = backend.to_host(backend.xp.unique(present))
        found = pa.array(values) if column.dictionary is None else column.dictionary.take(pa.array(values))
        extremes = pc.min_max(found).as_py()
        self._extremes += [extremes["min"], extremes["max"]]
        if not self._is_capped:
            self._distinct = unite_dictionaries([self._distinct, found]) if len(self._distinct) else pc.unique(found)
            self._is_capped = len(self._distinct) > MAX_DISTINCT

    def report(self) -> ColumnReport:
        if self._elements is not None:
            lengths = (min(self._lengths), max(self._lengths)) if self._lengths else None
            found = self._elements.report()
            return replace(
                found,
                field=self.field,
                num_missing=self._missing,
                lengths=lengths,
                num_missing_elements=found.num_missing,
            )
        low, high = (min(self._extremes), max(self._extremes)) if self._extremes else (None, None)
        if self.field.dtype == "timestamp" and low is not None:
            low, high = np.datetime64(low, "us"), np.datetime64(high, "us")
        distinct = None if self.field.kind == Kind.PASSENGER else min(len(self._distinct), MAX_DISTINCT)
        return ColumnReport(self.field, self._missing, distinct, self._is_capped, low, high)


def _lengths(found: ColumnReport) -> str:
    if found.lengths is None:
        return ""
    missing = f", {found.num_missing_elements:,} missing" if found.num_missing_elements else ""
    return f"{found.lengths[0]:,} to {found.lengths[1]:,}{missing}"


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("T", " ").removesuffix(".000000") if isinstance(value, np.datetime64) else str(value)
