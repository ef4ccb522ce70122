"""Accumulation of batches: in memory up to a limit, then in a temporary Parquet file."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow import parquet_path, polars_from_arrow
from gpupipe.backend.arrow_types import arrow_type
from gpupipe.backend.device.host_memory import free_host_memory
from gpupipe.config import settings
from gpupipe.io.formats.spill import GROUP_BYTES, FrameSource, SpillFile, SpillSource, TempParquet, make_subset_error
from gpupipe.io.planning.table import EVERYTHING, Partition, RowRange, Source, Table, identify_job, row_bytes
from gpupipe.schema import FLOATS, Field, Schema, get_element_dtype
from gpupipe.scratch import writing_scratch

_KEPT_SHARE = 16
"""A table in memory takes no more than this part of it: several may be alive."""
_UNKNOWN = 8 << 30


def get_memory_limit() -> int:
    """Return how many bytes of host memory whole tables may use: as configured, or the free memory."""
    return settings().memory_limit or free_host_memory() or _UNKNOWN


def get_table_limit() -> int:
    """Return how many bytes of a table stay in memory; a larger table is written to a file."""
    return get_memory_limit() // _KEPT_SHARE


def get_arrow_types(fields: Iterable[Field]) -> pa.Schema:
    """Return the Arrow schema of columns in whole tables."""
    return pa.schema([(item.name, arrow_type(item.dtype)) for item in fields])


def count_batch_rows(fields: Iterable[Field]) -> int:
    """Compute how many rows of whole tables make a batch."""
    return max(1, GROUP_BYTES // max(1, row_bytes(fields)))


class Origin(NamedTuple):
    """Provenance of a table: the job that made it and its input files."""

    made_by: str | None
    inputs: dict[str, str] | None


def build_origin(verb: str, tables: Sequence[Table], *options: object) -> Origin:
    """Build the origin of a verb's result from the tables that it reads."""
    jobs = [identify_job(table) for table in tables]
    found = [table.source.inputs() for table in tables]
    inputs = None if None in found else {name: stamp for one in found for name, stamp in (one or {}).items()}
    facts = hashlib.sha256(repr((verb, jobs, options)).encode()).hexdigest()
    return Origin(None if None in jobs else f"{verb} {facts}", inputs)


class Gathered:
    """Table accumulated from batches."""

    def __init__(self, fields: Sequence[Field], limit: int | None = None) -> None:
        self.fields = list(fields)
        self.types = get_arrow_types(fields)
        self.group_rows = count_batch_rows(fields)
        self.num_rows = 0
        self._limit = get_table_limit() if limit is None else limit
        self._tables: list[pa.Table] = []
        self._num_bytes = 0
        self._spool: TempParquet | None = None
        self._files: list[SpillFile] = []
        self._writer: pq.ParquetWriter | None = None

    def gather(self, batches: Iterable[pa.Table]) -> Self:
        """Add all batches and return itself; if that fails, remove the files and close the generator."""
        try:
            for batch in batches:
                self._add(batch)
            with self._writing():
                self._close()
        except BaseException:
            self.discard()
            raise
        finally:
            if isinstance(batches, Generator):  # an error's traceback would keep it alive
                batches.close()
        return self

    def discard(self) -> None:
        """Remove the temporary files."""
        with suppress(OSError, pa.ArrowException):
            self._close()
        if self._spool is not None:
            self._spool.remove()

    def take_files(self, write: Callable[[Path], object]) -> None:
        """Add what is written at a path: a Parquet file, or a folder of them in the order of their names."""
        path = self._new_path()
        try:
            write(path)
        except BaseException:
            self.discard()
            raise
        for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
            self._files.append(_describe_file(file))
            self.num_rows += self._files[-1].num_rows

    @property
    def paths(self) -> list[str]:
        """The paths of the temporary files; none if the rows are in memory."""
        return [file.path for file in self._files]

    @property
    def table(self) -> pa.Table:
        """The rows in memory."""
        return pa.concat_tables([self.types.empty_table(), *self._tables])

    def column(self, name: str) -> Iterator[Any]:
        """Read a numeric column without missing values, and yield it in batches as NumPy arrays."""
        if not self._files:
            yield from (chunk.to_numpy() for chunk in self.table[name].chunks)
        for path in self.paths:
            for batch in pq.ParquetFile(path).iter_batches(columns=[name]):
                yield batch.column(0).to_numpy()

    def lazy(self) -> pl.LazyFrame:
        """Scan the rows with Polars, in order; the caller keeps this object alive until the plan has run."""
        return pl.scan_parquet(self.paths, glob=False) if self._files else polars_from_arrow(self.table).lazy()

    def check(self) -> None:
        """Check that the temporary files exist."""
        if self._spool is not None:
            self._spool.check()

    def dataset(self, like: Table, schema: Schema, origin: Origin, partition_rows: int, title: str) -> Table:
        """Build a dataset of the rows; their row ids are their numbers."""
        source: Source
        if not self._files or self._spool is None:
            starts = range(0, max(1, self.num_rows), partition_rows)
            cuts = [(start, min(partition_rows, self.num_rows - start)) for start in starts]
            source = _InMemory(self.table, schema, cuts, origin, title)
        else:
            self._files = [replace(file, path=self._spool.keep(Path(file.path))) for file in self._files]
            partitions = _cut_partitions(self._files, partition_rows, title)
            source = SpillSource(dict(enumerate(self._files)), partitions, schema, *origin, self._spool)
        source.notes = like.source.notes
        return replace(like, source=source, schema=schema, query=EVERYTHING)

    def _add(self, batch: pa.Table) -> None:
        self.num_rows += batch.num_rows
        self._num_bytes += batch.nbytes
        self._tables.append(batch.cast(self.types))
        if self._writer is not None or self._num_bytes > self._limit:
            self._spool = self._spool or TempParquet(GROUP_BYTES)
            with self._writing():
                self._write()

    def _writing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._spool is None else writing_scratch(self._spool.folder)

    def _write(self) -> None:
        if self._writer is None:
            self._path = self._new_path()
            # Dictionaries of floats cost more than they save; nobody asks for statistics of a temporary file.
            fields = [item for item in self.fields if (get_element_dtype(item.dtype) or item.dtype) not in FLOATS]
            coded = [parquet_path(item) for item in fields]
            self._writer = pq.ParquetWriter(self._path, self.types, use_dictionary=coded, write_statistics=False)
        for table in self._tables:
            for start in range(0, table.num_rows, self.group_rows):
                piece = table.slice(start, self.group_rows)
                self._writer.write_table(piece, row_group_size=piece.num_rows)
        self._tables = []

    def _new_path(self) -> Path:
        self._spool = self._spool or TempParquet(GROUP_BYTES)
        self._spool.check()
        return self._spool.folder / f"{uuid.uuid4().hex}.parquet"

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._files = [_describe_file(self._path)]


class _InMemory(FrameSource):
    """In-memory source whose rows were computed from other tables, as Arrow columns."""

    def __init__(
        self, table: pa.Table, schema: Schema, cuts: Sequence[tuple[int, int]], origin: Origin, title: str
    ) -> None:
        super().__init__(table, schema, cuts, {})
        self.made_by, self._inputs = origin
        self.partitions = [
            replace(part, description=f"rows {first:,} to {first + num_rows:,} after {title}")
            for part, (first, num_rows) in zip(self.partitions, cuts, strict=True)
        ]

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Slice these columns; see `Source.read`."""
        rows = self.table(partition, fields)
        return backend.from_arrow(rows, fields) if fields else backend.frame({}, partition.num_rows)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        """Slice these columns without a copy; see `Source.table`."""
        names = [item.name for item in fields]
        self.reads.add(partition.spans, names, partition.num_rows * row_bytes(fields))
        return self._rows(partition.first_row, partition.num_rows).select(names)

    def inputs(self) -> dict[str, str] | None:
        """Return the input files the rows were computed from; see `Source.inputs`."""
        return self._inputs

    def of_files(self, names: AbstractSet[str]) -> Self:
        """Raise: the rows were computed from all input files together."""
        raise make_subset_error()

    def _rows(self, first: int, num_rows: int) -> Any:
        return self._frame.slice(first - self._first_row, num_rows)


def _describe_file(path: Path) -> SpillFile:
    footer = pq.read_metadata(path)
    rows = (footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    return SpillFile(str(path), path.stat().st_size, tuple(rows))


def _cut_partitions(files: Sequence[SpillFile], limit: int, title: str) -> list[Partition]:
    packs: list[list[RowRange]] = [[]]
    found = 0
    for number, file in enumerate(files):
        for group, (first_row, num_rows) in enumerate(zip(file.first_rows, file.group_rows, strict=True)):
            for start in range(0, num_rows, limit):
                span = RowRange(number, group, first_row + start, min(limit, num_rows - start), found + start)
                if sum(one.num_rows for one in packs[-1]) + span.num_rows > limit and packs[-1]:
                    packs.append([])
                packs[-1].append(span)
            found += num_rows
    ends = [(own[0].identity, own[-1].identity + own[-1].num_rows) if own else (0, 0) for own in packs]
    return [
        Partition(index, tuple(own), f"rows {first:,} to {last:,} after {title}")
        for index, (own, (first, last)) in enumerate(zip(packs, ends, strict=True))
    ]
