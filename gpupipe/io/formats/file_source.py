"""File source: the files of one table, partitioned by groups of rows with the files' own metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from itertools import groupby, islice
from operator import attrgetter
from typing import Self

import pyarrow as pa

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow import arrow_type, dtype_from_arrow
from gpupipe.backend.lists import plain_table
from gpupipe.io.formats.bad_files import BadFilePolicy
from gpupipe.io.formats.read_file import describe_groups, holds, read_frame, read_frame_from_files, read_table
from gpupipe.io.formats.schema_check import agree_on_schema
from gpupipe.io.formats.table_file import TableFile
from gpupipe.io.formats.temp_parquet import TempParquet
from gpupipe.io.planning.partitions import FileNote, Partition, ReadCounter, RowRange, row_bytes
from gpupipe.io.planning.statistics import Bounds, exactly
from gpupipe.schema import FLOATS, LISTS, Field, Kind, Schema

__all__ = ["FileSource"]

_AT_ONCE = 64
"""Frames that are put together at a time."""


class FileSource:
    """Source of the rows of files that have the same columns.

    Args:
        files: at least one, by their position among those that were found.
        columns: the columns the files have to share; all of the first file's by default.
        limit: decoded bytes of a partition; one group of a file is the least.
        policy: handles files that differ, and holds notes on those that could not be opened.
        spool: kept alive as long as the source: the temporary folder of the files.

    Raises:
        SchemaMismatch: a file has other columns or types than the first; names both.
        ColumnNotFound: one of `columns` is not in the first file.
        BadFile: no file is left.
    """

    made_by: str | None = ""

    def __init__(
        self,
        files: Mapping[int, TableFile],
        *,
        columns: Sequence[str] | None = None,
        limit: int,
        policy: BadFilePolicy | None = None,
        spool: TempParquet | None = None,
    ) -> None:
        policy = policy or BadFilePolicy()
        readings, self.files = agree_on_schema(files, columns, policy)
        dtypes = {name: str(reading.dtype) for name, reading in readings.items()}
        self.left_out: Mapping[str, str] = policy.left_out
        self.notes: Sequence[FileNote] = policy.close(len(self.files))
        self.reads = ReadCounter()
        self._spool = spool
        nullable, units = self._nullable(dtypes), _units(self.files.values())
        self.schema = Schema(
            Field(
                name, dtype, nullable=name in nullable, units=units.get(name, ""), written_as=readings[name].written_as
            ).as_source()
            for name, dtype in dtypes.items()
        )
        self._limit = limit
        self.partitions: Sequence[Partition] = ()
        self.cut()

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Read exactly these columns; see `Source.read`.

        Raises:
            BadFile: a file cannot be read, or is not what it was when the dataset was made.
            SchemaMismatch: a value of a file that is cast does not fit the column's type.
        """
        files = self._count(partition, fields)
        if not fields:
            return backend.frame({}, partition.num_rows)
        if len(files) == 1:
            return read_frame(*files[0], fields, backend)
        if not files or backend.name == "cpu":  # a frame for each of thousands of small files would take far more room
            return backend.from_arrow(_concat_tables(files, fields), fields)
        whole = read_frame_from_files(files, fields, backend)
        if whole is not None:
            return whole
        frames = (read_frame(*file, fields, backend) for file in files)
        return backend.concat([backend.concat(some) for some in iter(lambda: list(islice(frames, _AT_ONCE)), [])])

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        """Read exactly these columns; see `Source.table`, and `read` for what it raises."""
        files = self._count(partition, fields)
        # Row groups have dictionaries of their own, which nobody needs as one here.
        return plain_table(_concat_tables([(file, [span]) for file, spans in files for span in spans], fields))

    def only(self, partitions: Sequence[Partition]) -> Self:
        """Return the partitions' own files; see `Source.only`."""
        part = self._with({span.file for partition in partitions for span in partition.spans})
        part.partitions = list(partitions)
        return part

    def inputs(self) -> dict[str, str] | None:
        """Return the stamps by the files' names; see `Source.inputs`."""
        stamps = {file.origin.path: file.origin.stamp for file in self.files.values()}
        known = {name: stamp for name, stamp in stamps.items() if stamp is not None}
        return known if len(known) == len(stamps) else None

    def of_files(self, names: AbstractSet[str]) -> Self:
        """See `Source.of_files`."""
        part = self._with({number for number, file in self.files.items() if file.origin.path in names})
        part.cut()
        return part

    def files_of(self, partition: Partition) -> list[str]:
        """List the files in the partition's order."""
        return list(dict.fromkeys(self.files[span.file].origin.path for span in partition.spans))

    def _count(self, partition: Partition, fields: Sequence[Field]) -> list[tuple[TableFile, list[RowRange]]]:
        """Count and return the partition's files and their spans, just before they are read."""
        if self._spool is not None:
            self._spool.check()
        names = [item.name for item in fields]
        self.reads.add(partition.spans, names, self.stored_bytes(partition, names))
        return [(self.files[number], spans) for number, spans in _by_file(partition.spans)]

    def _with(self, numbers: AbstractSet[int]) -> Self:
        part = copy(self)
        part.files = {number: file for number, file in self.files.items() if number in numbers}
        return part

    def bounds(self, span: RowRange, name: str) -> Bounds | None:
        """Return the bounds from the folder's name or the file's statistics; see `Source.bounds`."""
        file = self.files[span.file]
        if holds(file, name):
            return file.bounds(span.group, name) if self._is_as_agreed(file, name) else None
        return exactly(file.origin.keys[name].as_py()) if name in file.origin.keys else None

    def null_count(self, name: str) -> int | None:
        """Sum the files' null counts; None for floats, whose NaN counts as missing too."""
        if self.schema[name].dtype in FLOATS:
            return None
        total = 0
        for file in self.files.values():
            found = _null_count(file, name)
            if found is None:
                return None
            total += found
        return total

    def _is_as_agreed(self, file: TableFile, name: str) -> bool:
        return dtype_from_arrow(file.schema.field(name).type) == self.schema[name].dtype

    def _spans(self) -> Iterator[RowRange]:
        for number, file in self.files.items():
            first = 0
            for group, rows in enumerate(file.group_rows):
                if rows:
                    yield RowRange(number, group, first, rows)
                first += rows

    def cut(self) -> None:
        """Pack groups up to the limit; a file begins a partition unless all of it fits into the open one."""
        width, limit = row_bytes(self.schema), self._limit
        strings = [item.name for item in self.schema if item.dtype in ("string", *LISTS) or item.kind == Kind.PASSENGER]
        packs: list[list[RowRange]] = [[]]
        taken = [0]
        for number, spans in _by_file(self._spans()):
            file = self.files[number]
            texts = [name for name in strings if holds(file, name)]
            sizes = [span.num_rows * width + file.text_bytes(span.group, texts) for span in spans]
            if taken[-1] + sum(sizes) > limit and packs[-1]:
                packs.append([])
                taken.append(0)
            for span, size in zip(spans, sizes, strict=True):
                if taken[-1] + size > limit and packs[-1]:
                    packs.append([])
                    taken.append(0)
                packs[-1].append(span)
                taken[-1] += size
        described = map(self._described, packs, taken)
        self.partitions = [
            Partition(index, tuple(spans), text)
            for index, (spans, text) in enumerate(zip(packs, described, strict=True))
        ]

    def _described(self, spans: Sequence[RowRange], num_bytes: int) -> str:
        files = _by_file(spans)
        shown = files if len(files) < 4 else [files[0], files[-1]]
        parts = [
            f"{self.files[n].origin.path} {describe_groups(self.files[n].unit, [s.group for s in own])}"
            for n, own in shown
        ]
        text = ", ".join(parts) if len(files) < 4 else f"{parts[0]} ... {parts[1]} ({len(files)} files)"
        if num_bytes <= self._limit:
            return text
        unit = self.files[spans[0].file].unit
        return f"{text} ({num_bytes:,} bytes, over the limit of {self._limit:,}: one {unit} is the least)"

    def _nullable(self, dtypes: Mapping[str, str]) -> set[str]:
        found = {name for name, dtype in dtypes.items() if dtype in FLOATS}
        for file in self.files.values():
            found |= {name for name in dtypes if name not in found and _null_count(file, name) != 0}
        return found

    def stored_bytes(self, partition: Partition, names: Sequence[str]) -> int:
        """Sum the bytes of these columns of a partition in the files."""
        total = 0
        for number, spans in _by_file(partition.spans):
            file = self.files[number]
            held = [name for name in names if holds(file, name)]
            total += sum(file.stored_bytes(span.group, held) for span in spans)
        return total


def _concat_tables(files: Sequence[tuple[TableFile, Sequence[RowRange]]], fields: Sequence[Field]) -> pa.Table:
    if not files:
        return pa.schema([(item.name, arrow_type(item.dtype)) for item in fields]).empty_table()
    return pa.concat_tables(read_table(*file, fields) for file in files)


def _null_count(file: TableFile, name: str) -> int | None:
    if not any(file.group_rows):
        return 0
    if holds(file, name):
        return None if dtype_from_arrow(file.schema.field(name).type) in FLOATS else file.null_count(name)
    return 0 if name in file.origin.keys and file.origin.keys[name].is_valid else sum(file.group_rows)


def _units(files: Iterable[TableFile]) -> dict[str, str]:
    """Return the units in the files' metadata, of columns for which all files that state any agree."""
    stated: dict[str, set[str]] = {}
    for schema in {id(file.schema): file.schema for file in files}.values():
        for item in schema:
            if item.metadata and b"units" in item.metadata:
                stated.setdefault(item.name, set()).add(item.metadata[b"units"].decode(errors="replace"))
    return {name: next(iter(found)) for name, found in stated.items() if len(found) == 1}


def _by_file(spans: Iterable[RowRange]) -> list[tuple[int, list[RowRange]]]:
    return [(number, list(own)) for number, own in groupby(spans, attrgetter("file"))]
