"""Side columns: columns that a plan computes from all rows and that are looked up by row id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.cluster.executor import get_executor
from gpupipe.expressions.operands import truth
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.planning.query import EVERYTHING
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.engine import Plan, assign_hashes, count_buckets, run
from gpupipe.io.relational.gathering import count_largest_partition, cut_on_failure
from gpupipe.io.relational.scan import Rows, Scan, scan, scan_computed
from gpupipe.io.relational.sort import sort_by_row
from gpupipe.schema import ID, ROW, Field


@dataclass(frozen=True)
class SideColumns:
    """Columns stored apart from their rows, in memory or in a temporary file."""

    table: Table
    edges: Sequence[int]

    def columns(self, names: Sequence[str], row_ids: Array, backend: Backend) -> dict[str, Column]:
        """Look up the columns of these rows, whose row ids are unique."""
        ends, parts = self._locate(row_ids, backend)
        frame = backend.concat([self.table.read(part, [*names, ROW], backend) for part in parts])
        places = _locate_rows(backend.column(frame, ROW).data, row_ids, ends, backend)
        return {name: backend.column(frame, name).take(places) for name in names}

    def keep(self, row_ids: Array, backend: Backend) -> Array:
        """Return those of the row ids, in their order, whose rows are there: others were left out before."""
        _, parts = self._locate(row_ids, backend)
        ids = backend.column(backend.concat([self.table.read(part, [ROW], backend) for part in parts]), ROW).data
        return row_ids[backend.xp.isin(row_ids, ids)]

    def rows(self, names: Sequence[str], row_ids: Any) -> pa.Table:
        """Look up the columns of these rows on the host, as Arrow columns; see `columns`."""
        backend, fields = select("cpu"), list(self.table.schema.select([*names, ROW]))
        ends, parts = self._locate(row_ids, backend)
        table = pa.concat_tables(self.table.source.table(part, fields) for part in parts)
        positions = _locate_rows(table.column(ROW).to_numpy(), row_ids, ends, backend)
        table = table.select(list(names))
        if isinstance(positions, slice):
            return table.slice(positions.start, len(row_ids))
        return table.take(pa.array(positions))

    def count(self, name: str) -> int:
        """Count the rows for which a boolean column is true."""
        backend = select(get_executor().resolve(self.table.backend))
        frames = (self.table.read(part, [name], backend) for part in self.table.partitions)
        return sum(int(truth(backend.column(frame, name), backend.xp).sum()) for frame in frames)

    def _locate(self, row_ids: Array, backend: Backend) -> tuple[Any, Sequence[Partition]]:
        """Return the smallest and the largest row id, and the partitions that hold the rows between them."""
        ends: Any = np.zeros(2, dtype=np.uint64)
        if len(row_ids):
            ends = backend.to_host(backend.xp.stack([row_ids.min(), row_ids.max()]))
        first, last = np.searchsorted(np.array(self.edges, dtype=np.uint64), ends, side="right").tolist()
        return ends, self.table.partitions[first : last + 1]


@dataclass(frozen=True)
class Attach:
    """Partition function that adds side columns to rows by row id."""

    sides: tuple[tuple[SideColumns, tuple[str, ...]], ...]
    columns: tuple[str, ...]

    def __call__(self, frame: Frame, backend: Backend, row_ids: Array) -> Frame:
        ids = row_ids[backend.positions(frame)]
        for side, names in self.sides:
            frame = backend.assign(frame, side.columns(names, ids, backend))
        return backend.select(frame, self.columns)

    def to_table(self, table: pa.Table, row_ids: Any) -> pa.Table:
        """Add the side columns to Arrow columns."""
        for side, names in self.sides:
            side_table = side.rows(names, row_ids)
            for name in names:
                table = table.append_column(name, side_table.column(name))
        return table.select(list(self.columns))


def _locate_rows(sorted_ids: Array, row_ids: Array, ends: Any, backend: Backend) -> Any:
    """Locate row ids among sorted ones; a slice if they are contiguous."""
    start, stop = backend.to_host(backend.xp.searchsorted(sorted_ids, backend.to_device(ends))).tolist()
    is_whole = stop + 1 - start == len(row_ids)
    return slice(start, stop + 1) if is_whole else backend.xp.searchsorted(sorted_ids, row_ids)


def compute_columns(
    table: Table,
    inputs: Sequence[Field],
    keys: Sequence[str],
    plan: Callable[[pl.LazyFrame], pl.LazyFrame],
    outputs: Sequence[Field],
    title: str,
    rows: Rows | None = None,
) -> SideColumns:
    """Compute columns by a plan that needs all rows of a key at once."""

    def compute() -> SideColumns:
        if rows is None:
            rows_scan = scan(table, [item.name for item in inputs], title)
        else:
            rows_scan = scan_computed(table, rows, inputs, title)
        return collect_columns(plan, [rows_scan], keys, outputs, table, title)

    return cut_on_failure(compute)


def collect_columns(
    plan: Plan, scans: Sequence[Scan], keys: Sequence[str], outputs: Sequence[Field], like: Table, title: str
) -> SideColumns:
    """Run a plan that computes columns for the rows of the first scan, and store them."""
    backend, fields = get_executor().resolve(like.backend), [*outputs, ID]
    cut = (lambda number: [assign_hashes(keys, number)] * len(scans)) if keys else None
    is_cut = cut is not None and count_buckets(scans, backend) > 1
    if backend == "cpu" and len(scans) == 1 and not is_cut:
        scans = [scans[0].with_categories(keys)]
    result = run(plan, scans, fields, backend, title, cut)
    if is_cut:
        result = sort_by_row(result, fields, backend, title).gather()
    source = result.source(count_largest_partition(like), title)
    side = replace(like, source=source, schema=source.schema, query=EVERYTHING)
    cpu = select("cpu")
    firsts = [side.read(part.split_at(1)[0], [ROW], cpu)[ROW] for part in side.partitions[1:]]
    return SideColumns(side, [int(first.iloc[0]) for first in firsts])
