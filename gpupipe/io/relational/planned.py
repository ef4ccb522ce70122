"""Lazy result of a plan as a source: the plan runs when rows are read or written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from gpupipe.backend import Backend, Frame
from gpupipe.io.formats.spill import DerivedSource
from gpupipe.io.planning.table import EVERYTHING, AnyTable, Partition, Source, Table
from gpupipe.io.relational.gathering import Gathered, Origin
from gpupipe.schema import Field, Schema


class RunnablePlan(Protocol):
    """Protocol of a plan that is ready to run; see `engine.PlannedRun`."""

    def gather(self) -> Gathered:
        """Run the plan and gather the result."""

    def batches(self) -> Generator[pa.Table]:
        """Run the plan and yield the result in batches."""


Run: TypeAlias = Callable[[], RunnablePlan]
"""What scans what a plan reads, and makes the plan ready to run."""


def plan_rows(table: AnyTable, schema: Schema, origin: Origin, title: str, run: Run, *others: Table) -> AnyTable:
    """Build a dataset of the rows of a plan that has not run yet, like this table; row ids are row numbers."""
    return replace(
        table, source=PlanSource([table, *others], schema, origin, title, run), schema=schema, query=EVERYTHING
    )


def count_largest_partition(table: Table) -> int:
    """Count the rows of the largest partition, at least 1; of a plan not yet run, the maximum."""
    source = table.source
    return source.partition_rows if isinstance(source, PlanSource) else max(1, *(p.num_rows for p in table.partitions))


class PlanSource(DerivedSource):
    """Source of a plan's rows: gathered at the first read; rows that are only written are streamed. See `plan_rows`."""

    _made: tuple[Gathered, Source] | None

    def __init__(self, tables: Sequence[Table], schema: Schema, origin: Origin, title: str, run: Run) -> None:
        super().__init__(schema, origin.made_by, origin.inputs)
        self.notes = tables[0].source.notes
        self._tables, self._origin, self._title, self._run = tables, origin, title, run
        self._lock, self._made, self._rows = RLock(), None, 0

    @property
    def partition_rows(self) -> int:
        """The rows of the largest partition that the plan reads."""
        with self._lock:
            return self._rows or max(map(count_largest_partition, self._tables))

    @property
    def gathered(self) -> Gathered:
        """All rows, in memory or in a temporary file; runs the plan at the first call."""
        return self._kept[0]

    def batches(self) -> Generator[pa.Table]:
        """Yield all rows in order; runs the plan unless they have been gathered."""
        if self._made is None:
            return self._run().batches()
        return (self.table(partition, list(self.schema)) for partition in self.partitions)

    @property
    def partitions(self) -> Sequence[Partition]:
        return self._source.partitions

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        return self._source.read(partition, fields, backend)

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        return self._source.table(partition, fields)

    def only(self, partitions: Sequence[Partition]) -> Any:
        return self._source.only(partitions)

    def __reduce__(self) -> Any:
        return _same, (self._source,)

    @property
    def _source(self) -> Source:
        return self._kept[1]

    @property
    def _kept(self) -> tuple[Gathered, Source]:
        with self._lock:
            if self._made is None:
                found = self._run().gather()
                made = found.dataset(self._tables[0], self.schema, self._origin, self.partition_rows, self._title)
                made.source.reads = self.reads
                self._rows = self.partition_rows
                self._made = found, made.source
                del self._tables, self._run  # what the rows are made of may go
            return self._made


def _same(source: Source) -> Source:
    return source
