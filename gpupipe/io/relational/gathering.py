"""Rows of plans as sources: gathered from batches in memory up to a limit, then in a temporary Parquet file."""

from __future__ import annotations

import hashlib
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any, Self, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import Backend, Frame, free_host_memory, infer_backend, is_out_of_device_memory
from gpupipe.backend.arrow import get_arrow_types, parquet_path, polars_from_arrow
from gpupipe.backend.columns import host_table
from gpupipe.cluster.executor import get_executor
from gpupipe.config import settings
from gpupipe.errors import OutOfDeviceMemory, PlanFailed
from gpupipe.files import writing_scratch
from gpupipe.io.formats.spill import GROUP_BYTES, DerivedFrame, DerivedSource, SpillFile, SpillSource, TempParquet
from gpupipe.io.planning.partitions import Partition, RowRange, row_bytes
from gpupipe.io.planning.query import EVERYTHING
from gpupipe.io.planning.table import AnyTable, Source, Table, identify_job
from gpupipe.io.stores import Listing
from gpupipe.schema import FLOATS, Field, Schema, get_element_dtype
from gpupipe.support.forks import require_threads

Result = TypeVar("Result")

_KEPT_SHARE = 16  # a table in memory takes no more than this part of it: several may be alive
_UNKNOWN = 8 << 30
_log = logging.getLogger("gpupipe")


is_cut = ContextVar("is_cut", default=False)  # whether rows on a GPU are cut into buckets


def cut_on_failure(run: Callable[[], Result]) -> Result:
    """Run plans; where the memory of a GPU does not suffice, even streaming, run them again with rows in buckets."""
    try:
        return run()
    except (PlanFailed, OutOfDeviceMemory) as error:
        if is_cut.get() or not get_executor().in_process or not _is_out_of_device_memory(error):
            raise
        _log.warning("%s: the rows are cut into buckets, as the device's memory does not suffice", error.where)
    token = is_cut.set(True)
    try:
        return run()
    finally:
        is_cut.reset(token)


def _is_out_of_device_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means that the device is out of memory."""
    while error is not None:
        if isinstance(error, OutOfDeviceMemory) or is_out_of_device_memory(error):
            return True
        error = error.__cause__
    return False


def get_memory_limit() -> int:
    """Return how many bytes of host memory whole tables may use: as configured, or the free memory."""
    return settings().memory_limit or free_host_memory() or _UNKNOWN


def get_table_limit() -> int:
    """Return how many bytes of a table stay in memory; a larger table is written to a file."""
    return get_memory_limit() // _KEPT_SHARE


def count_batch_rows(fields: Iterable[Field]) -> int:
    """Compute how many rows of whole tables make a batch."""
    return max(1, GROUP_BYTES // max(1, row_bytes(fields)))


def identify_plan(verb: str, tables: Sequence[Table], options: object) -> str | None:
    """Return an id of a verb's result, made of these tables; None where a function has no name."""
    jobs = [identify_job(table) for table in tables]
    facts = hashlib.sha256(repr((verb, jobs, options)).encode()).hexdigest()
    return None if None in jobs else f"{verb} {facts}"


class Gathered:
    """Rows of a plan: batches in host memory, a frame in device memory, or Parquet files."""

    def __init__(self, fields: Sequence[Field], limit: int | None = None) -> None:
        self.fields = list(fields)
        self.types = get_arrow_types(fields)
        self.group_rows = count_batch_rows(fields)
        self.num_rows = 0
        self._limit = get_table_limit() if limit is None else limit
        self._tables: list[pa.Table] = []
        self._frame: Frame | None = None
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

    def take_frame(self, frame: Frame) -> None:
        """Keep a coded frame, which has all rows, where it is."""
        self._frame, self.num_rows = frame, len(frame)

    @property
    def paths(self) -> list[str]:
        """The paths of the temporary files; none if the rows are in memory."""
        return [file.path for file in self._files]

    @property
    def table(self) -> pa.Table:
        if self._frame is not None:
            return host_table(self._frame, self.fields, infer_backend(self._frame))
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
        if self._frame is not None:
            return infer_backend(self._frame).scan(self._frame, self.fields)
        if not self._files:
            return polars_from_arrow(self.table).lazy()
        # cuDF writes every time as UTC.
        times = [pl.col(item.name).cast(pl.Datetime("us")) for item in self.fields if item.dtype == "timestamp"]
        return pl.scan_parquet(self.paths, glob=False).with_columns(times)

    def check(self) -> None:
        if self._spool is not None:
            self._spool.check()

    def source(
        self, partition_rows: int, title: str, made_by: str | None = None, inputs: dict[str, str] | None = None
    ) -> DerivedSource:
        """Build a source of the rows; their row ids are their numbers."""
        schema = Schema(self.fields)
        if not self._files or self._spool is None:
            cuts = enumerate(range(0, self.num_rows, partition_rows))
            packs = [[RowRange(0, n, start, min(partition_rows, self.num_rows - start))] for n, start in cuts]
            partitions = _build_partitions(packs or [[]], title)
            if self._frame is not None:
                return DerivedFrame(self._frame, partitions, schema, made_by, inputs)
            return _InMemory(self.table, partitions, schema, made_by, inputs)
        self._files = [replace(file, path=self._spool.keep(Path(file.path))) for file in self._files]
        partitions = _build_partitions(_pack_groups(self._files, partition_rows), title)
        return SpillSource(dict(enumerate(self._files)), partitions, schema, made_by, inputs, self._spool)

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
        for table in filter(len, self._tables):
            self._writer.write_table(table, row_group_size=self.group_rows)
        self._tables = []

    def _new_path(self) -> Path:
        self._spool = self._spool or TempParquet(GROUP_BYTES)
        self._spool.check()
        return self._spool.folder / f"{uuid.uuid4().hex}.parquet"

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._files = [_describe_file(self._path)]


class _InMemory(DerivedSource):
    """In-memory source of rows computed from other tables, as Arrow columns."""

    partitions: Sequence[Partition] = ()

    def __init__(self, table: pa.Table, partitions: Sequence[Partition], *origin: Any) -> None:
        super().__init__(*origin)
        self.partitions, self._table, self._first_row = partitions, table, 0

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        rows = self.table(partition, fields)
        return backend.from_arrow(rows, fields) if fields else backend.frame({}, partition.num_rows)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        names = [item.name for item in fields]
        self.reads.add(partition.spans, names, partition.num_rows * row_bytes(fields))
        return self._table.slice(partition.first_row - self._first_row, partition.num_rows).select(names)

    def only(self, partitions: Sequence[Partition]) -> Self:
        rows = [span for partition in partitions for span in partition.spans]
        first = min((span.first_row for span in rows), default=self._first_row)
        last = max((span.first_row + span.num_rows for span in rows), default=first)
        part = copy(self)
        table = self._table.slice(first - self._first_row, last - first)
        vars(part).update(_table=table, _first_row=first, partitions=list(partitions))
        return part


def read_group_rows(path: Path) -> list[int]:
    """Read the number of rows of each row group of a file."""
    # Not collected by the writer: where a disk is full, it would raise for what it cannot collect, and hide why.
    footer = pq.read_metadata(path)
    return [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]


def _describe_file(path: Path) -> SpillFile:
    return SpillFile(str(path), path.stat().st_size, tuple(read_group_rows(path)))


def _pack_groups(files: Sequence[SpillFile], limit: int) -> list[list[RowRange]]:
    """Pack the row groups of files, or parts of them, into up to so many rows."""
    packs: list[list[RowRange]] = [[]]
    row_id = 0
    for number, file in enumerate(files):
        for group, (first_row, num_rows) in enumerate(zip(file.first_rows, file.group_rows, strict=True)):
            for start in range(0, num_rows, limit):
                span = RowRange(number, group, first_row + start, min(limit, num_rows - start), row_id + start)
                if sum(part.num_rows for part in packs[-1]) + span.num_rows > limit and packs[-1]:
                    packs.append([])
                packs[-1].append(span)
            row_id += num_rows
    return packs


def _build_partitions(packs: Sequence[Sequence[RowRange]], title: str) -> list[Partition]:
    ends = [(pack[0].identity, pack[-1].identity + pack[-1].num_rows) if pack else (0, 0) for pack in packs]
    return [
        Partition(index, tuple(pack), f"rows {first:,} to {last:,} after {title}")
        for index, (pack, (first, last)) in enumerate(zip(packs, ends, strict=True))
    ]


class PreparedPlan(ABC):
    """Plan that is ready to run, whose result has these columns."""

    fields: Sequence[Field]

    @abstractmethod
    def batches(self) -> Generator[pa.Table]:
        """Run the plan on the CPU and yield the result in batches."""

    def gather(self) -> Gathered:
        return Gathered(self.fields).gather(self.batches())


def plan_rows(
    table: AnyTable, schema: Schema, verb: str, options: object, prepare: Callable[[], PreparedPlan], *tables: Table
) -> AnyTable:
    """Build a dataset of the rows of a plan that has not run yet, like this table; row ids are row numbers."""
    source = PlanSource([table, *tables], schema, verb, options, prepare)
    return replace(table, source=source, schema=schema, query=EVERYTHING)


def count_largest_partition(table: Table) -> int:
    """Count the rows of the largest partition, at least 1; of a plan not yet run, the maximum."""
    source = table.source
    return source.partition_rows if isinstance(source, PlanSource) else max(1, *(p.num_rows for p in table.partitions))


class PlanSource(DerivedSource):
    """Source of a plan's rows: gathered at the first read; rows that are only written are streamed. See `plan_rows`."""

    _result: tuple[Gathered, Source] | None

    def __init__(
        self, tables: Sequence[Table], schema: Schema, verb: str, options: object, prepare: Callable[[], PreparedPlan]
    ) -> None:
        stamps = [table.source.inputs() for table in tables]
        inputs = None if None in stamps else {name: stamp for each in stamps for name, stamp in (each or {}).items()}
        super().__init__(schema, identify_plan(verb, tables, options), inputs)
        self.notes, self.filters = tables[0].source.notes, tables[0].filters
        self.repeated = tables[0].source.repeated
        self.listings = frozenset[Listing]().union(*(table.listings for table in tables))
        self._tables, self._verb, self._prepare = tables, verb, prepare
        self._lock, self._result, self._rows = RLock(), None, 0

    @property
    def partition_rows(self) -> int:
        """The rows of the largest partition that the plan reads."""
        with self._lock:
            return self._rows or max(map(count_largest_partition, self._tables))

    @property
    def gathered(self) -> Gathered:
        """All rows, in memory or in a temporary file; runs the plan at the first call."""
        return self._run()[0]

    def batches(self) -> Generator[pa.Table]:
        """Yield all rows in order; runs the plan unless they have been gathered."""
        if self._result is None:
            require_threads(self._verb)
            return self._prepare().batches()
        return (self.table(partition, list(self.schema)) for partition in self.partitions)

    @property
    def partitions(self) -> Sequence[Partition]:
        return self._run()[1].partitions

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        return self._run()[1].read(partition, fields, backend)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        return self._run()[1].table(partition, fields)

    def only(self, partitions: Sequence[Partition]) -> Any:
        return self._run()[1].only(partitions)

    def __reduce__(self) -> Any:
        return _same, (self._run()[1],)

    def _run(self) -> tuple[Gathered, Source]:
        """Return the rows and their source; runs the plan at the first call."""
        with self._lock:
            if self._result is None:
                require_threads(self._verb)
                result, self._rows = cut_on_failure(lambda: self._prepare().gather()), self.partition_rows
                source = result.source(self._rows, self._verb, self.made_by, self._inputs)
                source.notes, source.reads = self.notes, self.reads
                source.filters, source.repeated = self.filters, self.repeated
                source.listings = self.listings
                self._result = result, source
                del self._tables, self._prepare  # what the rows are made of may go
            return self._result


def _same(source: Source) -> Source:
    return source
