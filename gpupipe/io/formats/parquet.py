"""Parquet file: its footer, its statistics, and its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import merge_offset_ranges

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow import dtype_from_arrow, keep_index
from gpupipe.files import local_scratch
from gpupipe.io.formats.file_source import TableFile
from gpupipe.io.planning.partitions import row_bytes
from gpupipe.io.planning.row_filters import Bounds
from gpupipe.io.stores import Input, fetch, get_stat, is_remote, unreadable
from gpupipe.schema import FLOATS, INTEGERS, Field, get_element_dtype, is_passenger
from gpupipe.support.times import to_microseconds

END_BYTES = 64 << 10  # fetched of a file's end at first; most footers are shorter
MAX_GAP = 16 << 10  # bytes between two ranges that cost less than another request


@dataclass(frozen=True)
class ParquetFile(TableFile):
    """Parquet file with its footer, which is kept as bytes: ten thousand parsed ones would take a third of a GB."""

    copy: str | None = None  # the path or URL of a temporary copy, where that is what is read
    footer: bytes = field(default=b"", repr=False)  # a file of nothing else
    unit: ClassVar[str] = "row group"

    @property
    def stored(self) -> Input:
        return Input(self.copy) if self.copy else self.origin

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer."""
        return _parse_footer(self.footer)[0]

    @property
    def chunks(self) -> Mapping[str, Sequence[int]]:
        """The indices of each column's chunks in a row group: one, but several for structs and maps."""
        return _parse_footer(self.footer)[1]

    def read(self, groups: Sequence[int], fields: Sequence[Field], backend: Backend) -> Frame:
        """Read row groups with the backend; on the host where a column's type differs from its field's."""
        if not self._is_own(fields):
            return super().read(groups, fields, backend)
        with local_part(self, groups, [item.name for item in fields], with_footer=backend.name == "gpu") as source:
            return backend.read_parquet([source], [groups], fields, self.metadata)

    def _is_own(self, fields: Sequence[Field]) -> bool:
        return all(self.dtype(item.name) == item.dtype for item in fields)

    def is_read_with(self, other: TableFile, fields: Sequence[Field]) -> bool:
        is_same = isinstance(other, ParquetFile) and (self.schema is other.schema or self.schema.equals(other.schema))
        return is_same and not is_remote(self.stored.path) and self._is_own(fields)

    def table(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        strings = [name for name in names if self.dtype(name) == "string"]
        with (
            local_part(self, groups, names, with_footer=False) as source,
            pq.ParquetFile(source, metadata=self.metadata, read_dictionary=strings) as file,
        ):
            return file.read_row_groups(list(groups), columns=list(names))

    def bounds(self, group: int, name: str) -> Bounds | None:
        kind = self.schema.field(name).type
        statistics = None if pa.types.is_nested(kind) else self._chunks(group, name)[0].statistics
        if statistics is None:
            return None
        try:
            return convert_bounds(statistics.min, statistics.max, kind)
        except (ValueError, OverflowError):  # a time Python's datetime cannot say
            return None

    def null_count(self, name: str) -> int | None:
        if pa.types.is_nested(self.schema.field(name).type):
            return None
        if self.metadata.schema.column(self.chunks[name][0]).max_definition_level == 0:
            return 0
        total = 0
        for group, rows in enumerate(self.group_rows):
            statistics = self._chunks(group, name)[0].statistics
            if rows and (statistics is None or not statistics.has_null_count):
                return None
            total += statistics.null_count if rows else 0
        return total

    def text_bytes(self, group: int, names: Sequence[str]) -> int:
        """Estimate an upper bound of the memory that reading the text takes."""
        total = 0
        for name in names:
            chunk, dtype = self._chunks(group, name)[0], self.dtype(name) or ""
            element, size = get_element_dtype(dtype), chunk.total_uncompressed_size
            if is_passenger(dtype):
                total += sum(chunk.total_uncompressed_size for chunk in self._chunks(group, name))
                continue
            if element is not None:
                total += chunk.num_values * row_bytes([Field(name, element)])
            if element in (None, "string"):
                # Beyond four bytes a value, which codes take at most, there is text that repeats little. To find where
                # it does repeat takes two tables of hashes, and was measured at 300 bytes for a string of 13.
                total += size + 8 * max(0, size - 4 * chunk.num_values)
        return int(total)

    def repeats(self, name: str) -> bool:
        """Return whether a text column's values repeat: it has less than the four bytes that precede each in a page."""
        chunks = [self._chunks(group, name)[0] for group in range(len(self.group_rows))]
        return bool(sum(chunk.total_uncompressed_size - 4 * chunk.num_values for chunk in chunks) < 0)

    def stored_bytes(self, group: int, names: Sequence[str]) -> int:
        return sum(chunk.total_compressed_size for name in names for chunk in self._chunks(group, name))

    def change(self) -> str | None:
        return None if self.copy else self.origin.change()

    def _chunks(self, group: int, name: str) -> list[Any]:
        row_group = self.metadata.row_group(group)
        return [row_group.column(index) for index in self.chunks[name]]


def open_footer(input_file: Input, copy: str | None = None) -> ParquetFile:
    """Read the footer of a file, or of its copy; BadFile says what was seen where it is no whole Parquet file."""
    return parse_end(fetch_end(input_file, copy))


def fetch_end(input_file: Input, copy: str | None = None) -> tuple[Input, str | None, bytes]:
    """Fetch the input of `parse_end`; this part of opening waits for a disk or a store."""
    return input_file, copy, read_tail(Input(copy) if copy else input_file)


def parse_end(fetched: tuple[Input, str | None, bytes]) -> ParquetFile:
    """Parse the fetched end of a file."""
    input_file, copy, end = fetched
    try:
        metadata = pq.read_metadata(pa.BufferReader(end))
        schema = keep_index(metadata.schema.to_arrow_schema())
        schema = _intern_schema(schema, (tuple((schema.metadata or {}).values()), *map(_list_facts, schema)))
    except (OSError, pa.ArrowException) as cause:
        raise unreadable(input_file, cause, "a Parquet file", b"PAR1") from cause
    rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    # As bytes: pyarrow writes the metadata of a damaged file from memory that is not its own.
    length = int.from_bytes(end[-8:-4], "little")
    return ParquetFile(input_file, schema, rows, copy=copy, footer=b"PAR1" + end[-8 - length :])


def convert_bounds(low: Any, high: Any, kind: pa.DataType) -> Bounds | None:
    """Convert statistics to values that rows are compared with; None for types with weaker statistics.

    A time that Python's datetime cannot say is a ValueError or an OverflowError.
    """
    dtype = dtype_from_arrow(kind)
    if low is None or high is None:
        return None
    if dtype == "timestamp":
        return to_microseconds(low), to_microseconds(high)
    if dtype in FLOATS and str(kind) in ("float", "double"):
        return None if math.isnan(low) or math.isnan(high) else (low, high)
    return (low, high) if dtype in ("string", "bool", *INTEGERS) else None


@lru_cache(maxsize=32)
def _parse_footer(footer: bytes) -> tuple[pq.FileMetaData, dict[str, Sequence[int]]]:
    metadata = pq.read_metadata(pa.BufferReader(footer))
    items = list(metadata.schema.to_arrow_schema())
    ends = [0, *accumulate(_count_leaves(item.type) for item in items)]
    return metadata, {item.name: range(*span) for item, span in zip(items, pairwise(ends), strict=True)}


def _count_leaves(kind: pa.DataType) -> int:
    """Count the columns that a file stores for a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _count_leaves(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_count_leaves(kind.field(index).type) for index in range(kind.num_fields))


def _list_facts(item: pa.Field) -> tuple[bytes | None, ...]:
    """List what a column's metadata state: its units and its origins."""
    return tuple((item.metadata or {}).get(key) for key in (b"units", b"origins"))


@lru_cache(maxsize=32)
def _intern_schema(schema: pa.Schema, _: tuple[tuple[bytes | None, ...], ...]) -> pa.Schema:
    """Return one object for equal schemas with equal metadata (== ignores them), so that many files share it."""
    return schema


def read_tail(input_file: Input) -> bytes:
    """Read the end of a Parquet file, footer included."""
    size = get_stat(input_file.path, input_file.storage_options).size if input_file.size is None else input_file.size
    (end,) = fetch(input_file.path, [(max(0, size - END_BYTES), size)], input_file.storage_options)
    length = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < length <= size:
        (end,) = fetch(input_file.path, [(size - length, size)], input_file.storage_options)
    return end


@contextmanager
def local_part(
    file: ParquetFile, groups: Sequence[int], names: Sequence[str], *, with_footer: bool = True
) -> Iterator[str]:
    """Yield a local file that reads like `file` for these row groups and columns: the file itself, or a temporary one.

    A temporary one has the bytes of `file` where the columns' chunks and the footer, which cuDF reads again, are; only
    those are fetched, and the holes between them take no disk space.
    """
    input_file, chunks = file.stored, file.chunks
    if not is_remote(input_file.path):
        yield input_file.path
        return
    ranges = [_get_chunk_range(file, group, chunk) for group in groups for name in names for chunk in chunks[name]]
    if with_footer:
        # Page indexes are between the last row group and the footer.
        last = file.metadata.num_row_groups - 1
        stop = max(_get_chunk_range(file, last, chunk)[1] for chunk in range(file.metadata.num_columns))
        ranges.append((stop, get_stat(input_file.path, input_file.storage_options).size))
    starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
    _, starts, stops = merge_offset_ranges([input_file.path] * len(ranges), starts, stops, max_gap=MAX_GAP)
    parts = fetch(input_file.path, list(zip(starts, stops, strict=True)), input_file.storage_options)
    with NamedTemporaryFile(prefix="gpupipe-", suffix=".parquet", dir=local_scratch()) as local:
        for start, part in zip(starts, parts, strict=True):
            local.seek(start)
            local.write(part)
        local.flush()
        yield local.name


def _get_chunk_range(file: ParquetFile, group: int, chunk: int) -> tuple[int, int]:
    """Return the first byte of a column chunk, and the one after its last."""
    column = file.metadata.row_group(group).column(chunk)
    start = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
    return start, start + column.total_compressed_size
