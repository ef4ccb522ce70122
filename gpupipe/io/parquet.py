"""Parquet files as a source: partitions are groups of row groups, cut by what their footers say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from copy import copy
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

import pyarrow as pa

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.arrow import arrow_type, dtype_of
from gpupipe.errors import BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.bounds import Bounds, microseconds
from gpupipe.io.footer import File, local_part, one_line
from gpupipe.io.manifest import stamp_of
from gpupipe.io.paths import open_file
from gpupipe.io.source import Partition, Reads, Span, row_bytes
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.words import counted

__all__ = ["ParquetSource"]


class ParquetSource:
    """The rows of Parquet files that share their columns.

    Args:
        files: at least one.
        columns: the columns the files have to share; all of the first file's by default.
        limit: decoded bytes of a partition; one row group is the least.
        owner: kept alive as long as the source, such as the temporary folder the files lie in.

    Raises:
        SchemaMismatch: a file has other columns or types than the first; names both.
        ColumnNotFound: one of `columns` is not in the first file.
    """

    def __init__(
        self, files: Sequence[File], *, columns: Sequence[str] | None = None, limit: int, owner: object = None
    ) -> None:
        self.files = dict(enumerate(files))
        self.reads = Reads()
        self._owner = owner
        first = self.files[0].arrow_schema
        dtypes = _dtypes(self.files[0], columns)
        self.left_out: Mapping[str, str] = {item.name: str(item.type) for item in first if dtype_of(item.type) is None}
        for file in files[1:]:
            _check_same(self.files[0], dtypes, file, _dtypes(file, columns))
        self._chunks = {number: file.chunks for number, file in self.files.items()}
        self._types = {n: {item.name: item.type for item in file.arrow_schema} for n, file in self.files.items()}
        self.schema = Schema(
            Field(name, dtype, nullable=self._nullable(name, dtype)).as_source() for name, dtype in dtypes.items()
        )
        self._limit = limit
        self.partitions: Sequence[Partition] = ()
        self.cut()

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Read exactly these columns; see `Source.read`.

        Raises:
            BadFile: a file cannot be read, or is not what its footer said when the dataset was made.
        """
        names = [item.name for item in fields]
        self.reads.add(partition.spans, names, self._stored_bytes(partition, names))
        if not names:
            return backend.frame({}, partition.num_rows)
        if not partition.spans:
            empty = pa.schema([(item.name, arrow_type(item.dtype)) for item in fields]).empty_table()
            return backend.from_arrow(empty, fields)
        frames = [self._read_file(number, spans, fields, backend) for number, spans in _by_file(partition.spans)]
        return frames[0] if len(frames) == 1 else backend.concat(frames)

    def only(self, partitions: Sequence[Partition]) -> Self:
        """The footers of the partitions' own files; see `Source.only`."""
        part = self._with({span.file for partition in partitions for span in partition.spans})
        part.partitions = list(partitions)
        return part

    def inputs(self) -> dict[str, str] | None:
        """By the files' names; see `Source.inputs`."""
        stamps = {file.name: stamp_of(file.name) for file in self.files.values()}
        known = {name: stamp for name, stamp in stamps.items() if stamp is not None}
        return known if len(known) == len(stamps) else None

    def of_files(self, names: AbstractSet[str]) -> Self:
        """See `Source.of_files`."""
        part = self._with({number for number, file in self.files.items() if file.name in names})
        part.cut()
        return part

    def files_of(self, partition: Partition) -> list[str]:
        """In the partition's order."""
        return list(dict.fromkeys(self.files[span.file].name for span in partition.spans))

    def _with(self, numbers: AbstractSet[int]) -> Self:
        part = copy(self)
        for name in ("files", "_chunks", "_types"):
            setattr(part, name, {number: held for number, held in getattr(self, name).items() if number in numbers})
        return part

    def bounds(self, span: Span, name: str) -> Bounds | None:
        """From the row group's statistics; see `Source.bounds`."""
        statistics = self._statistics(span, name)
        if statistics is None:
            return None
        try:
            if not statistics.has_min_max:
                return None
            return _compared(statistics.min, statistics.max, self._types[span.file][name])
        except (ValueError, OverflowError):  # a time Python's datetime cannot say
            return None

    def null_count(self, name: str) -> int | None:
        """From the footers; unknown for floats, whose NaN counts as missing too."""
        if self.schema[name].dtype in FLOATS:
            return None
        counts = [self._nulls(span, name) for span in self._spans()]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    def _read_file(self, number: int, spans: Sequence[Span], fields: Sequence[Field], backend: Backend) -> Frame:
        file, groups = self.files[number], [span.group for span in spans]
        try:
            with _opened(file, groups, fields, backend) as opened:
                frame = backend.read_parquet(opened, groups, fields, file.metadata)
        except (OSError, pa.ArrowException) as cause:
            raise BadFile(
                file.name,
                f"{_listed(groups)} cannot be read ({one_line(cause)})",
                expected="the rows its footer tells of",
                remedy="write the file again; it is damaged, or was replaced after the dataset was made",
            ) from cause
        sizes = [file.metadata.row_group(group).num_rows for group in groups]
        if len(frame) != sum(sizes):
            raise BadFile(
                file.name,
                f"{_listed(groups)} hold other rows than before",
                got=len(frame),
                expected=counted(sum(sizes), "row"),
                remedy="make the dataset again; the file was replaced",
            )
        if sizes == [span.num_rows for span in spans]:
            return frame
        return backend.concat([backend.take(frame, self._rows_of(spans, sizes, backend))])

    def _rows_of(self, spans: Sequence[Span], sizes: Sequence[int], backend: Backend) -> Array:
        """Where the rows of halved spans stand among those of their whole row groups."""
        xp, parts, before = backend.xp, [], 0
        for span, size in zip(spans, sizes, strict=True):
            metadata = self.files[span.file].metadata
            first = sum(metadata.row_group(group).num_rows for group in range(span.group))
            start = before + span.first_row - first
            parts.append(xp.arange(start, start + span.num_rows))
            before += size
        return xp.concatenate(parts)

    def _spans(self) -> Iterator[Span]:
        for number, file in self.files.items():
            first = 0
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if rows:
                    yield Span(number, group, first, rows)
                first += rows

    def cut(self) -> None:
        """Pack row groups up to the limit; a file begins a partition unless all of it fits into the open one."""
        width = row_bytes(self.schema)
        strings = [item.name for item in self.schema if item.dtype == "string"]
        packs: list[list[Span]] = [[]]
        room = limit = self._limit
        for _, spans in _by_file(self._spans()):
            sizes = [span.num_rows * width + self._text_bytes(span, strings) for span in spans]
            if sum(sizes) > room and packs[-1]:
                packs.append([])
                room = limit
            for span, size in zip(spans, sizes, strict=True):
                if size > room and packs[-1]:
                    packs.append([])
                    room = limit
                packs[-1].append(span)
                room -= size
        self.partitions = [Partition(i, tuple(spans), self._described(spans)) for i, spans in enumerate(packs)]

    def _described(self, spans: Sequence[Span]) -> str:
        parts = [f"{self.files[n].name} {_listed([s.group for s in own])}" for n, own in _by_file(spans)]
        return ", ".join(parts) if len(parts) < 4 else f"{parts[0]} ... {parts[-1]} ({len(parts)} files)"

    def _statistics(self, span: Span, name: str) -> Any:
        group = self.files[span.file].metadata.row_group(span.group)
        return group.column(self._chunks[span.file][name]).statistics

    def _nulls(self, span: Span, name: str) -> int | None:
        column = self.files[span.file].metadata.schema.column(self._chunks[span.file][name])
        if column.max_definition_level == 0:
            return 0
        statistics = self._statistics(span, name)
        return int(statistics.null_count) if statistics is not None and statistics.has_null_count else None

    def _nullable(self, name: str, dtype: str) -> bool:
        return dtype in FLOATS or any(self._nulls(span, name) != 0 for span in self._spans())

    def _text_bytes(self, span: Span, strings: Sequence[str]) -> int:
        """An upper bound of the dictionaries' bytes."""
        group, chunks = self.files[span.file].metadata.row_group(span.group), self._chunks[span.file]
        return sum(group.column(chunks[name]).total_uncompressed_size for name in strings)

    def _stored_bytes(self, partition: Partition, names: Sequence[str]) -> int:
        total = 0
        for span in partition.spans:
            group, chunks = self.files[span.file].metadata.row_group(span.group), self._chunks[span.file]
            total += sum(group.column(chunks[name]).total_compressed_size for name in names)
        return total


def _opened(
    file: File, groups: Sequence[int], fields: Sequence[Field], backend: Backend
) -> AbstractContextManager[Any]:
    """What the backend reads from; cuDF would fetch all of a file that is opened for it, for every partition."""
    if backend.name == "gpu" and "://" in file.path:
        return local_part(file, groups, [item.name for item in fields])
    return open_file(file.path)


def _dtypes(file: File, columns: Sequence[str] | None) -> dict[str, str]:
    schema = file.arrow_schema
    if len(set(schema.names)) != len(schema):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise SchemaMismatch(
            file.name, "columns share a name", got=twice, expected="unique names", remedy="write the file again"
        )
    for name in columns or ():
        if name not in schema.names:
            raise ColumnNotFound.among(file.name, name, schema.names)
    known = {item.name: dtype_of(item.type) for item in schema if columns is None or item.name in columns}
    return {name: dtype for name, dtype in known.items() if dtype is not None}


def _check_same(first: File, wanted: dict[str, str], file: File, found: dict[str, str]) -> None:
    for name in (*wanted, *found):
        if wanted.get(name) != found.get(name):
            raise SchemaMismatch(
                file.name,
                f"column {name!r} is {found.get(name, 'not there')}",
                expected=f"{wanted.get(name, 'no such column')}, as in {first.name}",
                remedy="read_parquet(..., columns=[...]) with what the files share, or write this file again",
            )


def _compared(low: Any, high: Any, kind: pa.DataType) -> Bounds | None:
    """Statistics as the values rows are compared by; None for types whose statistics say less."""
    dtype = dtype_of(kind)
    if dtype == "timestamp":
        # Statistics of nanoseconds are cut to microseconds downwards, rows towards 1970.
        return microseconds(low), microseconds(high) + (getattr(kind, "unit", "") == "ns")
    if dtype in FLOATS and str(kind) in ("float", "double"):
        return None if math.isnan(low) or math.isnan(high) else (low, high)
    return (low, high) if dtype in ("string", "bool", *INTEGERS) else None


def _by_file(spans: Iterable[Span]) -> list[tuple[int, list[Span]]]:
    return [(number, list(own)) for number, own in groupby(spans, attrgetter("file"))]


def _listed(groups: Sequence[int]) -> str:
    """Row groups in words.

    Example:
        >>> _listed([4]), _listed([0, 1, 2]), _listed([0, 2])
        ('row group 4', 'row groups 0-2', 'row groups 0, 2')
    """
    if len(groups) == 1:
        return f"row group {groups[0]}"
    if list(groups) == list(range(groups[0], groups[-1] + 1)):
        return f"row groups {groups[0]}-{groups[-1]}"
    return f"row groups {', '.join(map(str, groups))}"
