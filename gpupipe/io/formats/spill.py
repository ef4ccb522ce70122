"""Sources of rows in memory and in temporary Parquet files: tables that can be read only once or only slowly."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import Backend, Frame, arrow, infer_backend, select
from gpupipe.backend.arrow import get_arrow_types, get_file_type
from gpupipe.config import settings
from gpupipe.errors import BadConfig, BadData, BadFile, SchemaMismatch
from gpupipe.files import ScratchFolder, writing_scratch
from gpupipe.io.formats.file_source import Readings, group_by_file, host_table, take_spans, write_conversion_notes
from gpupipe.io.formats.parquet import ParquetFile, open_footer
from gpupipe.io.planning.partitions import Partition, ReadCounter, RowRange, row_bytes
from gpupipe.io.planning.table import Source
from gpupipe.io.stores import FileNote, Input, call_with_retries, is_remote, locate, make_lost_file_error
from gpupipe.schema import Field, Schema, get_element_dtype


class FrameSource(Source):
    """The rows of one coded frame, shared, not copied.

    `cuts` are the first row and number of rows of each partition.
    """

    made_by: str | None = ""
    partitions: Sequence[Partition] = ()

    def __init__(self, frame: Frame, schema: Schema, cuts: Sequence[tuple[int, int]], readings: Readings) -> None:
        self.schema, self.reads, self._frame, self._first_row = schema, ReadCounter(), frame, 0
        self._selected: dict[tuple[str, ...], Frame] = {}
        self.left_out: Mapping[str, str] = {
            name: str(kind) for name, (kind, reading) in readings.items() if reading.dtype is None
        }
        self.notes: Sequence[FileNote] = write_conversion_notes("frame", readings)
        self.partitions = []
        for index, (first, num_rows) in enumerate(cuts):
            spans = (RowRange(0, index, first, num_rows),) if num_rows else ()
            described = f"rows {first:,} to {first + num_rows:,} of a frame"
            self.partitions.append(Partition(index, spans, described))

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Slice these columns: shared on the backend that owns the frame, else copied from one to the other."""
        names, num_rows = [item.name for item in fields], partition.num_rows
        self.reads.add(partition.spans, names, num_rows * row_bytes(fields))
        if not names:
            return backend.frame({}, num_rows)
        owner, first = infer_backend(self._frame), partition.first_row - self._first_row
        part = self._select(names).iloc[first : first + num_rows].reset_index(drop=True)
        return part if backend.name == owner.name else backend.from_arrow(owner.to_arrow(part), fields)

    def whole(self, fields: Sequence[Field], backend: Backend) -> tuple[int, Frame] | None:
        """Return the first row's number, and these columns of all rows; None if not all are there, or not on it."""
        num_rows, names = sum(partition.num_rows for partition in self.partitions), [item.name for item in fields]
        rows = self._rows
        if infer_backend(self._frame).name != backend.name or num_rows != rows.stop - rows.start:
            return None
        for partition in self.partitions:
            self.reads.add(partition.spans, names, partition.num_rows * row_bytes(fields))
        return self._first_row + rows.start, backend.select(self._frame.iloc[rows], names)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        owner = infer_backend(self._frame)
        return owner.to_arrow(self.read(partition, fields, owner))

    def only(self, partitions: Sequence[Partition]) -> Self:
        part = copy(self)
        vars(part).update(partitions=list(partitions))
        return part

    def __copy__(self) -> Self:
        part = object.__new__(type(self))
        vars(part).update(vars(self))
        return part

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the rows of the partitions alone."""
        rows = self._rows
        first_row = self._first_row + rows.start
        return {**vars(self), "_frame": self._frame.iloc[rows], "_first_row": first_row, "_selected": {}}

    @property
    def _rows(self) -> slice:
        """The rows of the frame from the first partition's to the last's."""
        spans = [span for partition in self.partitions for span in partition.spans]
        first = min((span.first_row for span in spans), default=self._first_row) - self._first_row
        return slice(first, max((span.first_row + span.num_rows - self._first_row for span in spans), default=first))

    def _select(self, names: Sequence[str]) -> Frame:
        """Select columns of all rows; the last are kept, for to select takes pandas ten times as long as to slice."""
        key = tuple(names)
        frame = self._selected.get(key)
        if frame is None:
            frame = infer_backend(self._frame).select(self._frame, names)
            self._selected.clear()
            self._selected[key] = frame
        return frame


GROUP_BYTES = 32 << 20  # decoded bytes that are gathered before a row group is written


class TempParquet:
    """Folder of temporary Parquet files, removed with the object; `limit` is for the decoded bytes of a row group."""

    def __init__(self, limit: int) -> None:
        self._scratch, self._limit = ScratchFolder(), min(limit, GROUP_BYTES)
        scratch = settings().scratch or ""
        self._url = f"{scratch.rstrip('/')}/gpupipe-{uuid.uuid4().hex}" if is_remote(scratch) else None
        if self._url is not None:
            weakref.finalize(self, _remove, self._url, os.getpid())

    @property
    def folder(self) -> Path:
        """The local folder that files are written to."""
        if self._url is not None and not self._scratch.path.is_dir():  # a worker's own, on another machine
            self._scratch = ScratchFolder()
        return self._scratch.path

    def keep(self, file: Path) -> str:
        """Return the name by which all workers read a written file: its path, or the URL it is moved to."""
        if self._url is None:
            return str(file)
        url = f"{self._url}/{file.name}"
        fs, inner = locate(url)

        def put() -> None:
            fs.makedirs(inner.rpartition("/")[0], exist_ok=True)
            fs.put_file(str(file), inner)

        try:
            call_with_retries(put, url, "written")
        finally:
            file.unlink(missing_ok=True)
        return url

    def remove(self) -> None:
        """Remove the files now."""
        shutil.rmtree(self._scratch.path, ignore_errors=True)
        if self._url is not None:
            _remove(self._url, os.getpid())

    def check(self) -> None:
        """Raise BadFile unless this process can access the folder: it is on another machine, or was removed."""
        if self._url is None and not self.folder.is_dir():
            problem = f"this folder for temporary files is not there on {socket.gethostname()}"
            expected = "one folder for temporary files that the program and all its workers share"
            remedy = "gp.configure(scratch=...) with a URL or a shared folder, or TMPDIR=/a/shared/folder in the "
            remedy += "environment; no other program may remove it meanwhile"
            raise BadFile(str(self.folder), problem, expected=expected, remedy=remedy)

    def group_rows(self, fields: Iterable[Field]) -> int:
        """Compute how many rows a row group has."""
        return max(1, self._limit // max(1, row_bytes(fields)))

    def write(self, batches: Iterable[pa.RecordBatch], fields: Sequence[Field], origin: Input) -> ParquetFile:
        """Write these columns of `batches`, cast to their types, to a file of their own, parsed from `origin`.

        At most one row group is in memory.
        """
        path = self.folder / f"{uuid.uuid4().hex}.parquet"
        group_rows = self.group_rows(fields)
        strings = [arrow.parquet_path(item) for item in fields if item.dtype in ("string", "list<string>")]
        schema = pa.schema([(item.name, _get_stored_type(item)) for item in fields])
        try:
            options: dict[str, Any] = {"use_dictionary": strings, "dictionary_pagesize_limit": GROUP_BYTES}
            with writing_scratch(path.parent), pq.ParquetWriter(path, schema, **options) as writer:
                gathered, rows, first_row = list[pa.RecordBatch](), 0, 1
                for batch in chain(batches, [None]):
                    if batch is not None:
                        gathered.append(batch)
                        rows += batch.num_rows
                    if rows >= group_rows or (batch is None and rows):
                        table = _cast_rows(gathered, fields, origin, first_row).cast(schema)
                        writer.write_table(table, row_group_size=group_rows)
                        gathered, rows, first_row = [], 0, first_row + rows
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return open_footer(origin, self.keep(path))


def _remove(url: str, owner: int) -> None:
    if os.getpid() == owner:
        fs, inner = locate(url)
        with suppress(OSError):
            fs.rm(inner, recursive=True)


def _get_stored_type(item: Field) -> pa.DataType:
    """Return the type that `arrow.conform` returns, times with their zone."""
    element = get_element_dtype(item.dtype)
    if element is not None:
        return pa.large_list(_get_stored_type(Field("", element)))
    return pa.dictionary(pa.int32(), pa.large_string()) if item.dtype == "string" else get_file_type(item)


def _cast_rows(batches: Sequence[pa.RecordBatch], fields: Sequence[Field], origin: Input, first_row: int) -> pa.Table:
    try:
        return host_table(pa.Table.from_batches(batches), fields, exact=False)
    except BadData as cause:
        problem = f"row {first_row + (cause.row or 0)}, {cause.where.removeprefix('Cast of ')}: a value does not fit"
        remedy = "dtypes={...: 'float64'} for this column"
        raise SchemaMismatch(origin.path, problem, got=cause.got, expected=cause.expected, remedy=remedy) from cause


@dataclass(frozen=True)
class SpillFile:
    """Temporary Parquet file at a path or URL. Its footer is not cached, as it may be large."""

    path: str
    num_bytes: int
    group_rows: tuple[int, ...]

    @cached_property
    def num_rows(self) -> int:
        """The number of rows of all row groups."""
        return sum(self.group_rows)

    @property
    def first_rows(self) -> list[int]:
        """The number of each row group's first row in the file."""
        return list(accumulate(self.group_rows, initial=0))[:-1]

    def read(self, spans: Sequence[RowRange], fields: Sequence[Field], backend: Backend) -> Frame:
        """Read these columns of the spans' rows."""
        groups = [span.group for span in spans]
        try:
            if is_remote(self.path):
                frame = open_footer(Input(self.path)).read(groups, fields, backend)
            else:
                frame = backend.read_parquet([self.path], [groups], fields)
        except (OSError, pa.ArrowException) as cause:
            raise make_lost_file_error(self.path, cause) from cause
        return take_spans(frame, self.group_rows, spans, backend)


def make_subset_error() -> BadConfig:
    """Return the error for a request for rows of some input files only."""
    problem = "rows that were sorted, shuffled, joined or grouped come from all input files together"
    expected = "the input files of the earlier job, and no new ones"
    remedy = "overwrite=True, which writes everything again"
    return BadConfig("write_parquet", problem, expected=expected, remedy=remedy)


class DerivedSource(Source):
    """Base class of sources whose rows are computed from all input files together; see `Source` for the arguments."""

    def __init__(self, schema: Schema, made_by: str | None, inputs: dict[str, str] | None) -> None:
        self.schema, self.made_by, self._inputs = schema, made_by, inputs
        self.left_out: Mapping[str, str] = {}
        self.notes: Sequence[FileNote] = ()
        self.reads = ReadCounter()

    def inputs(self) -> dict[str, str] | None:
        return self._inputs

    def of_files(self, names: AbstractSet[str]) -> Self:
        raise make_subset_error()


class DerivedFrame(DerivedSource, FrameSource):
    """Source of computed rows that are one coded frame, on the device of its backend."""

    def __init__(self, frame: Frame, partitions: Sequence[Partition], *origin: Any) -> None:
        DerivedSource.__init__(self, *origin)
        self.partitions, self._frame, self._first_row, self._selected = partitions, frame, 0, {}


class SpillSource(DerivedSource):
    """Source of rows in temporary files of the same columns, by number, whose folder `spool` it keeps alive."""

    partitions: Sequence[Partition] = ()

    def __init__(
        self,
        files: Mapping[int, SpillFile],
        partitions: Sequence[Partition],
        schema: Schema,
        made_by: str | None,
        inputs: dict[str, str] | None,
        spool: TempParquet,
    ) -> None:
        super().__init__(schema, made_by, inputs)
        self.partitions, self._files, self._spool = partitions, files, spool

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        self._spool.check()
        names = [item.name for item in fields]
        # Of each file a share of its size, by the rows and the columns that are read.
        files = [(self._files[span.file], span.num_rows) for span in partition.spans]
        num_bytes = int(sum(file.num_bytes * num_rows / file.num_rows for file, num_rows in files))
        self.reads.add(partition.spans, names, num_bytes * len(names) // max(1, len(self.schema)))
        if not names:
            return backend.frame({}, partition.num_rows)
        if not partition.spans:
            return backend.from_arrow(get_arrow_types(fields).empty_table(), fields)
        by_file = group_by_file(partition.spans)
        frames = [self._files[number].read(spans, fields, backend) for number, spans in by_file]
        return frames[0] if len(frames) == 1 else backend.concat(frames)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        cpu = select("cpu")
        return cpu.to_arrow(self.read(partition, fields, cpu))

    def only(self, partitions: Sequence[Partition]) -> Self:
        part = copy(self)
        numbers = {span.file for partition in partitions for span in partition.spans}
        vars(part).update(_files={number: self._files[number] for number in numbers}, partitions=list(partitions))
        return part
