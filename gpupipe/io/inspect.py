"""Dataset inspection: how a table lies in its files."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, BinaryIO

from gpupipe.io.dataset import as_dataset
from gpupipe.io.formats.file_source import FileSource
from gpupipe.io.formats.parquet import ParquetFile
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.stores import FileNote, is_remote, open_stored
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import format_count

_FEW_ROWS, _FEW_PAGES = 1_000_000, 100
_SLOW = {"GZIP", "BROTLI"}
_DATA_PAGES = {0, 3}
_MOST_LINES = 20  # of partitions


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
        costs = []
        if len(self.groups) > 1 and median(self.groups) < _FEW_ROWS:
            costs.append("small row groups, each too little work for the device")
        if self.pages_per_chunk is not None and self.pages_per_chunk < _FEW_PAGES and self.groups[0] >= _FEW_ROWS // 2:
            costs.append("few pages to decode side by side")
        if slow := sorted(_SLOW.intersection(self.compression)):
            costs.append(f"{' and '.join(slow)}, which decompresses slowly")
        return costs

    def __str__(self) -> str:
        low, high = min(self.groups), max(self.groups)
        rows = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
        pages = (
            ""
            if self.pages_per_chunk is None
            else f", {self.pages_per_chunk:g} page{'s' * (self.pages_per_chunk != 1)} a column chunk"
        )
        encodings = ", ".join((*self.encodings, *self.compression))
        facts = f"{format_count(len(self.groups), 'row group')} of {rows}{pages}, {encodings}"
        remedy = f"{'; '.join(self.costs)}: write_parquet(..., layout='gpu')" if self.costs else "laid out well"
        return f"layout: {facts}\non a GPU: {remedy}"


@dataclass(frozen=True)
class FileReport:
    """Report of `inspect`; displays as text and in a notebook. `layout` is None of tables that are no Parquet files."""

    num_columns: int
    partitions: tuple[Partition, ...]
    notes: tuple[FileNote, ...] = ()
    layout: ParquetFacts | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows, before any filter."""
        return sum(partition.num_rows for partition in self.partitions)

    def _paragraphs(self) -> Iterator[str]:
        sizes = (self.num_rows, "row"), (self.num_columns, "column"), (len(self.partitions), "partition")
        yield ", ".join(format_count(*size) for size in sizes)
        lines = [f"{part.index}: {format_count(part.num_rows, 'row')}, {part.description}" for part in self.partitions]
        gap = [f"... {len(lines) - _MOST_LINES:,} more ..."] if len(lines) > _MOST_LINES else []
        yield "\n".join([*lines[:_MOST_LINES], *gap])
        if self.layout is not None:
            yield str(self.layout)
        if self.notes:
            yield "\n".join(map(str, self.notes))

    def __repr__(self) -> str:
        return "\n\n".join(self._paragraphs())

    def _repr_html_(self) -> str:
        return "".join(f"<p>{'<br>'.join(html.escape(text).splitlines())}</p>" for text in self._paragraphs())


@answer_calls
def inspect(data: Any) -> FileReport:
    """Report how a table lies in its files: partitions, row groups and their cost to a GPU, what was skipped or cast.

    No row is read; `Dataset.describe` says what is in the columns. `data` that is neither a Dataset nor any table that
    `from_frame` takes raises SchemaMismatch.

    Memory: the headers of one row group's pages.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> print(inspect(gp.from_frame(pd.DataFrame({"origin": ["JFK", None, "JFK"]}), num_partitions=2)))
        3 rows, 1 column, 2 partitions
        <BLANKLINE>
        0: 1 row, rows 0 to 1 of a frame
        1: 2 rows, rows 1 to 3 of a frame
    """
    dataset = as_dataset(data)
    layout = _describe_layout(dataset.source)
    return FileReport(len(dataset.columns), tuple(dataset.partitions), tuple(dataset.source.notes), layout)


def _describe_layout(source: Any) -> ParquetFacts | None:
    """Describe the layout of a source's Parquet files; None where it has no such files, or temporary ones."""
    files = list(source.files.values()) if isinstance(source, FileSource) else []
    groups = tuple(rows for file in files for rows in file.group_rows if rows)
    first = next((file for file in files if any(file.group_rows)), None)
    if not isinstance(first, ParquetFile) or first.copy:
        return None
    group = first.metadata.row_group(next(index for index, rows in enumerate(first.group_rows) if rows))
    chunks = [group.column(index) for index in range(group.num_columns)]
    pages = None
    if not is_remote(first.origin.path):
        with open_stored(first.origin.path) as file:
            pages = median(_count_pages(file, chunk) for chunk in chunks)
    encodings = sorted({name for chunk in chunks for name in chunk.encodings})
    return ParquetFacts(groups, pages, tuple(encodings), tuple(sorted({chunk.compression for chunk in chunks})))


def _count_pages(file: BinaryIO, chunk: Any) -> int:
    """Count the data pages of a column chunk by their headers, which no library shows."""
    file.seek(min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset))
    data, position, num_pages = file.read(chunk.total_compressed_size), 0, 0
    while position < len(data):
        header, position = _parse_struct(data, position)
        num_pages += header[1] in _DATA_PAGES
        position += header[3]
    return num_pages


def _parse_struct(data: bytes, position: int) -> tuple[dict[int, int], int]:
    """Parse a struct in Thrift's compact protocol, as in page headers: its integers by field, and where it ends."""
    values, number = {}, 0
    while head := data[position]:
        number, kind, position = number + (head >> 4), head & 15, position + 1
        if kind in (4, 5, 6, 8):  # an integer, or the length of a text
            value = shift = 0
            while data[position] & 128:
                value |= (data[position] & 127) << shift
                shift, position = shift + 7, position + 1
            value, position = value | data[position] << shift, position + 1
            values[number] = value >> 1 ^ -(value & 1)
            position += value if kind == 8 else 0
        elif kind == 12:
            position = _parse_struct(data, position)[1]
        else:  # a float or a byte; true and false have no bytes
            position += {7: 8, 3: 1}.get(kind, 0)
    return values, position + 1
