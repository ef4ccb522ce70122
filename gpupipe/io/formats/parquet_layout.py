"""Parquet layout: row groups, pages and compression, and their cost on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, BinaryIO

from gpupipe.io.formats.file_source import FileSource
from gpupipe.io.formats.parquet import ParquetFile
from gpupipe.io.stores.remote_file import is_remote, open_stored
from gpupipe.support.text import format_count

_FEW_ROWS, _FEW_PAGES = 1_000_000, 100
_SLOW = {"GZIP", "BROTLI"}
_DATA_PAGES = {0, 3}
_HEADER_BYTES = 512


@dataclass(frozen=True)
class ParquetFacts:
    """Layout of the row groups of Parquet files.

    Args:
        groups: rows of each row group of all files.
        pages_per_chunk: the median number of data pages in a column chunk of the first row group; None where it is in
            a store.
        encodings: those of that row group.
        compression: its codecs.
    """

    groups: tuple[int, ...]
    pages_per_chunk: float | None
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


def describe_layout(source: Any) -> ParquetFacts | None:
    """Describe the layout of a source's Parquet files; None where it has no such files, or temporary ones.

    Memory: some bytes of each page of one row group.
    """
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
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    place, stop, found = start, start + chunk.total_compressed_size, 0
    while place < stop:
        size = _HEADER_BYTES
        while True:
            file.seek(place)
            data = file.read(size)
            try:
                kind, num_bytes, header = _page_header(data)
                break
            except IndexError:  # its statistics are long
                if len(data) < size:
                    raise
                size *= 8
        found += kind in _DATA_PAGES
        place += header + num_bytes
    return found


def _page_header(data: bytes) -> tuple[int, int, int]:
    """Read a page's type, the bytes that follow its header, and those of the header.

    Raises:
        IndexError: the header is longer than `data`.
    """
    reader = _Thrift(data)
    values = dict(reader.struct())
    return values[1], values[3], reader.place


class _Thrift:
    """Decoder of the part of Thrift's compact protocol that page headers use."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def struct(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the value of each field of a struct; 0 for a value that is no integer."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            yield number, self._value(head & 15)

    def _value(self, kind: int) -> int:
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 8:
            self._skip(self._varint())
        elif kind == 12:
            for _ in self.struct():
                pass
        elif kind in (3, 7):
            self._skip(8 if kind == 7 else 1)
        elif kind not in (1, 2):  # true and false have no bytes
            raise ValueError(f"page headers have no fields of Thrift's type {kind}")
        return 0

    def _skip(self, num_bytes: int) -> None:
        self.place += num_bytes
        if self.place > len(self.data):
            raise IndexError

    def _byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
