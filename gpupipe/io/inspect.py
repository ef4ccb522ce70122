"""Dataset inspection: a report of the content, column by column."""

from __future__ import annotations

import html
from dataclasses import dataclass
from statistics import median
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend import Array, Backend, Column, select
from gpupipe.backend.dictionaries import unite_dictionaries
from gpupipe.backend.kernels import sort_unique
from gpupipe.io.dataset import as_dataset
from gpupipe.io.formats.file_source import FileSource
from gpupipe.io.formats.parquet import ParquetFile
from gpupipe.io.planning.table import Partition
from gpupipe.io.stores import FileNote, is_remote, open_stored
from gpupipe.schema import FLOATS, Field, Kind
from gpupipe.support.text import format_count, html_table, text_table

MAX_DISTINCT = 1_000_000
_FEW_ROWS, _FEW_PAGES = 1_000_000, 100
_SLOW = {"GZIP", "BROTLI"}
_DATA_PAGES = {0, 3}


@dataclass
class ColumnReport:
    """Report of one column's content; of lists that of their elements.

    `low` and `high` are the least and the greatest present value, None when there is none; `is_capped` is whether there
    are more different values than are counted; `lengths` are the least and the greatest number of elements of lists.
    """

    field: Field
    num_missing: int = 0
    num_distinct: int | None = 0  # different present values, at least so many if `is_capped`; None of one only carried
    low: Any = None
    high: Any = None
    is_capped: bool = False
    lengths: tuple[int, int] | None = None
    num_missing_elements: int = 0

    def add(self, column: Column, backend: Backend, seen: dict[str, pa.Array]) -> None:
        """Count a partition's values too; `seen` has the different ones so far by column name."""
        missing, num_missing = _find_missing(column, backend)
        self.num_missing += num_missing
        if self.field.kind == Kind.PASSENGER:
            self.num_distinct = None
            return
        if column.elements is not None:
            lengths = column.data[1:] - column.data[:-1]
            lengths = lengths if missing is None else lengths[~missing]
            if len(lengths):
                low, high = self.lengths or (lengths[0], lengths[0])
                self.lengths = int(min(low, lengths.min())), int(max(high, lengths.max()))
            column = column.elements
            missing, num_missing = _find_missing(column, backend)
            self.num_missing_elements += num_missing
        present = column.data if missing is None else column.data[~missing]
        if not len(present):
            return
        if column.dtype in FLOATS:
            present = present + 0.0  # -0.0 is no other value than 0.0
        values = backend.to_host(sort_unique(present, backend.xp))
        found = pa.array(values) if column.dictionary is None else column.dictionary.take(pa.array(values))
        ends = pc.min_max(found).as_py().values()
        low, high = (np.datetime64(end, "us") for end in ends) if column.dtype == "timestamp" else ends
        self.low, self.high = (low, high) if self.low is None else (min(self.low, low), max(self.high, high))
        if not self.is_capped:
            known = seen.get(self.field.name)
            distinct = pc.unique(found) if known is None else unite_dictionaries([known, found])
            seen[self.field.name] = distinct
            self.num_distinct, self.is_capped = min(len(distinct), MAX_DISTINCT), len(distinct) > MAX_DISTINCT


def _find_missing(column: Column, backend: Backend) -> tuple[Array | None, int]:
    missing = column.missing(backend.xp)
    return missing, 0 if missing is None else int(missing.sum())


@dataclass(frozen=True)
class ParquetFacts:
    """Layout of the row groups of Parquet files, the last three facts of the first row group."""

    groups: tuple[int, ...]  # rows of each row group of all files
    pages_per_chunk: float | None  # the median number of data pages in a column chunk; None in a store
    encodings: tuple[str, ...]
    compression: tuple[str, ...]

    @property
    def costs(self) -> list[str]:
        """What makes a GPU decode them slower than it could, in words; arXiv 2602.17335 has measured it."""
        found = []
        if len(self.groups) > 1 and median(self.groups) < _FEW_ROWS:
            found.append("small row groups, each too little work for the device")
        if self.pages_per_chunk is not None and self.pages_per_chunk < _FEW_PAGES and self.groups[0] >= _FEW_ROWS // 2:
            found.append("few pages to decode side by side")
        if slow := sorted(_SLOW.intersection(self.compression)):
            found.append(f"{' and '.join(slow)}, which decompresses slowly")
        return found

    def __str__(self) -> str:
        low, high = min(self.groups), max(self.groups)
        rows = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
        pages = "" if self.pages_per_chunk is None else f", {self.pages_per_chunk:g} pages a column chunk"
        written = ", ".join((*self.encodings, *self.compression))
        facts = f"{format_count(len(self.groups), 'row group')} of {rows}{pages}, {written}"
        remedy = f"{'; '.join(self.costs)}: write_parquet(..., layout='gpu')" if self.costs else "laid out well"
        return f"layout: {facts}\non a GPU: {remedy}"


@dataclass(frozen=True)
class Report:
    """Report of `inspect`; displays as text and in a notebook. `layout` is None of tables that are no Parquet files."""

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
            lengths = ""
            if found.lengths is not None:
                missing = f", {found.num_missing_elements:,} missing" if found.num_missing_elements else ""
                lengths = f"{found.lengths[0]:,} to {found.lengths[1]:,}{missing}"
            shown = [f"{share:.2%}", f"{'>= ' if found.is_capped else ''}{exactly}"]
            shown += [_format_value(found.low), _format_value(found.high), lengths]
            rows.append([found.field.name, found.field.dtype, *shown])
        has_lists = any(row[-1] for row in rows[1:])
        return rows if has_lists else [row[:-1] for row in rows]

    def __repr__(self) -> str:
        lines = (f"{one.index}: {format_count(one.num_rows, 'row')}, {one.description}" for one in self.partitions)
        partitions = "\n".join(lines)
        notes = "\n".join(["", "", *map(str, self.notes)]) if self.notes else ""
        layout = f"\n\n{self.layout}" if self.layout else ""
        return f"{self._title()}\n\n{text_table(self._table())}\n\n{partitions}{layout}{notes}"

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(str(note))}</p>" for note in self.notes)
        layout = f"<p>{html.escape(str(self.layout))}</p>" if self.layout else ""
        return f"<p>{html.escape(self._title())}</p>{html_table(self._table())}{layout}{notes}"


def inspect(data: Any) -> Report:
    """Count the missing and distinct values of each column of a table, and find its least and greatest, in one read.

    Of lists these are the elements' values; of columns that are only carried, those that are missing. `data` that is
    neither a Dataset nor any table that `from_frame` takes raises SchemaMismatch.

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
    columns, num_rows, seen = tuple(map(ColumnReport, dataset.schema)), 0, dict[str, pa.Array]()
    for partition in dataset.partitions:
        frame = dataset.read(partition, None, backend)
        num_rows += len(frame)
        for column in columns:
            column.add(backend.column(frame, column.field.name), backend, seen)
    layout = _describe_layout(dataset.source)
    return Report(num_rows, tuple(dataset.partitions), columns, tuple(dataset.source.notes), layout)


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("T", " ").removesuffix(".000000") if isinstance(value, np.datetime64) else str(value)


def _describe_layout(source: Any) -> ParquetFacts | None:
    """Describe the layout of a source's Parquet files; None where it has no such files, or temporary ones."""
    files = list(source.files.values()) if isinstance(source, FileSource) else []
    groups = tuple(rows for file in files for rows in file.group_rows if rows)
    first = next((file for file in files if any(file.group_rows)), None)
    if not isinstance(first, ParquetFile) or first.copy:
        return None
    group = first.metadata.row_group(next(place for place, rows in enumerate(first.group_rows) if rows))
    chunks = [group.column(place) for place in range(group.num_columns)]
    pages = None
    if not is_remote(first.origin.path):
        with open_stored(first.origin.path) as file:
            pages = median(_count_pages(file, chunk) for chunk in chunks)
    encodings = sorted({name for chunk in chunks for name in chunk.encodings})
    return ParquetFacts(groups, pages, tuple(encodings), tuple(sorted({chunk.compression for chunk in chunks})))


def _count_pages(file: BinaryIO, chunk: Any) -> int:
    """Count the data pages of a column chunk by their headers, which no library shows."""
    file.seek(min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset))
    data, place, found = file.read(chunk.total_compressed_size), 0, 0
    while place < len(data):
        header, place = _parse_struct(data, place)
        found += header[1] in _DATA_PAGES
        place += header[3]
    return found


def _parse_struct(data: bytes, place: int) -> tuple[dict[int, int], int]:
    """Parse a struct in Thrift's compact protocol, as in page headers: its integers by field, and where it ends."""
    values, number = {}, 0
    while head := data[place]:
        number, kind, place = number + (head >> 4), head & 15, place + 1
        if kind in (4, 5, 6, 8):  # an integer, or the length of a text
            value = shift = 0
            while data[place] & 128:
                value |= (data[place] & 127) << shift
                shift, place = shift + 7, place + 1
            value, place = value | data[place] << shift, place + 1
            values[number] = value >> 1 ^ -(value & 1)
            place += value if kind == 8 else 0
        elif kind == 12:
            place = _parse_struct(data, place)[1]
        else:  # a float or a byte; true and false have no bytes
            place += {7: 8, 3: 1}.get(kind, 0)
    return values, place + 1
