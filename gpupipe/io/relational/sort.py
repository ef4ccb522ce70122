"""Sorting, shuffling, sampling and deduplication of whole tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.kernels import shuffle_seed, splitmix64
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig
from gpupipe.io.formats.spill import GROUP_BYTES, TempParquet
from gpupipe.io.planning.row_filters import RandomSplit, RowIdFilter
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.splits import check_order
from gpupipe.io.planning.table import AnyTable, Table
from gpupipe.io.relational.engine import Plan, PlannedRun, assign_hashes, assign_ranges, count_buckets, run
from gpupipe.io.relational.gathering import Gathered, cut_on_failure, identify_plan, plan_rows
from gpupipe.io.relational.scan import Scan, random_bits, scan, scan_gathered
from gpupipe.schema import ID, ROW, Field, Schema
from gpupipe.support.origins import forget_order, keep_one, mark_picked

_BITS = "⟨bits⟩"


def sort(table: AnyTable, by: Sequence[str], ascending: Sequence[bool]) -> AnyTable:
    """Run `Dataset.sort`."""
    for name in by:
        check_order(table, name, "sort")
    backend = get_executor().resolve(table.backend)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        if backend == "gpu":  # a sort on several GPUs is not stable
            return frame.sort([*by, ROW], descending=[*(not up for up in ascending), False], nulls_last=True)
        return frame.sort(by, descending=[not up for up in ascending], nulls_last=True, maintain_order=True)

    def cut(rows: Scan, num_buckets: int) -> list[pl.Expr]:
        return [assign_ranges(rows, [*by, ROW], [*ascending, True], num_buckets)]

    return _reorder(table, table.locate_origins().with_order(by), plan, cut, backend, "sort", (by, ascending))


def shuffle(table: AnyTable, seed: int) -> AnyTable:
    """Run `Dataset.shuffle`."""
    bits = random_bits(shuffle_seed(seed), pl.col(ROW))

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.with_columns(bits.alias(_BITS)).sort(_BITS)

    def cut(_: Scan, num_buckets: int) -> list[pl.Expr]:
        return [((bits // pl.lit(1 << 32, pl.UInt64)) * num_buckets // pl.lit(1 << 32, pl.UInt64)).cast(pl.Int64)]

    schema = Schema(item.replace(origins=forget_order(item.origins)) for item in table.locate_origins())
    return _reorder(table, schema, plan, cut, get_executor().resolve(table.backend), "shuffle", seed)


def ensure_unique_row_ids(table: AnyTable) -> AnyTable:
    """Return the table, or a copy with new row ids if rows may share one."""
    if not table.repeats_rows:
        return table
    return _reorder(table, table.locate_origins(), lambda frame: frame, None, "cpu", "number")


def _reorder(
    table: AnyTable,
    schema: Schema,
    plan: Plan,
    cut: Callable[[Scan, int], Sequence[pl.Expr]] | None,
    backend: str,
    title: str,
    options: object = None,
) -> AnyTable:
    """Build a table with the same columns, those of `schema`, whose rows a plan reorders."""

    def rows() -> PlannedRun:
        rows_scan = scan(table, table.columns, title)
        return PlannedRun(plan, [rows_scan], list(table.schema), backend, title, cut and partial(cut, rows_scan))

    return plan_rows(table, schema, title, options, rows)


def group_rows(frame: Frame, keys: Sequence[Field], backend: Backend) -> tuple[Frame, Array]:
    """Group the rows of a coded frame: return the distinct keys with their counts as `ROW`, and positions by key."""
    rows, names = backend.scan(frame, keys), [item.name for item in keys]
    distinct = backend.run_plan(rows.group_by(names).agg(pl.len().alias(ROW)).sort(names), [*keys, ID])
    ordered = backend.run_plan(rows.with_row_index(ROW).sort([*names, ROW]), [ID])
    return distinct, backend.column(ordered, ROW).data


def sort_by_row(rows: Gathered, fields: Iterable[Field], backend: str, title: str) -> PlannedRun:
    """Plan a sort of gathered rows by the column `ROW`; the result has these columns."""
    rows_scan = scan_gathered(rows)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.sort(ROW, maintain_order=True)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [assign_ranges(rows_scan, [ROW], [True], num_buckets)]

    return PlannedRun(plan, [rows_scan], list(fields), backend, title, cut)


def draw(table: AnyTable, n: int, seed: int) -> AnyTable:
    """Run `Dataset.sample(n=)`: draw the n rows with the lowest bits."""
    table, backend = ensure_unique_row_ids(table), get_executor().resolve(table.backend)
    draw_seed = int(splitmix64(seed, np.array([table.num_draws]))[0])
    lowest, num_rows = np.zeros(0, dtype=np.uint64), 0
    with closing(run_partitions(partial(_find_lowest, draw_seed, n, backend), table, backend, "sample")) as results:
        for bits, of_partition in results:
            lowest, num_rows = _select_lowest(np.concatenate([lowest, bits]), n), num_rows + of_partition
    if not 0 <= n <= num_rows:
        raise BadConfig("sample", "not so many rows", got=n, expected=f"0 to {num_rows:,}", remedy=f"n={num_rows}")
    return replace(table, query=table.query.then(RandomSplit(draw_seed, 0, int(lowest.max()) + 1 if n else 0)))


def _find_lowest(seed: int, n: int, backend_name: str, part: Table) -> tuple[Any, int]:
    """Find the n lowest bits of a partition's rows, and count these; only columns that filters use are read."""
    backend, (partition,) = select(backend_name), part.partitions
    rows = backend.positions(part.read(partition, [], backend))
    bits = splitmix64(seed, partition.row_ids(backend.xp)[rows])
    return _select_lowest(backend.to_host(bits), n), len(rows)


def _select_lowest(values: Any, n: int) -> Any:
    """Select the n lowest values of an array in any order, or all."""
    return np.partition(values, n)[:n] if n < len(values) else values


def deduplicate(table: AnyTable, on: Sequence[str], keep: str) -> AnyTable:
    """Run `Dataset.deduplicate`. Only the keys are read; the rows keep their partitions."""
    table = ensure_unique_row_ids(table)
    row_ids = cut_on_failure(lambda: _find_unique(table, on, keep))
    # Which rows repeat others depends on all of them: with another input file it is another choice.
    inputs = sorted((table.source.inputs() or {}).items())
    made_by = identify_plan("deduplicate", [table], (on, keep, inputs))
    row_filter = RowIdFilter.of(TempParquet(GROUP_BYTES), row_ids.column(ROW), row_ids.num_rows, made_by)
    columns, keys = [item for item in table.schema if item.name not in on], [table.schema[name].origins for name in on]
    leaves_out = not table.keeps_rows or row_ids.num_rows < sum(part.num_rows for part in table.partitions)
    schema = table.schema.assign(
        replace(item, origins=mark_picked(keep_one(item.origins), keys if leaves_out else ())) for item in columns
    )
    return replace(table, schema=schema, query=table.query.then(row_filter))


def _find_unique(table: Table, on: Sequence[str], keep: str) -> Gathered:
    """Find the row ids of the first or last rows of equal keys, in order."""
    backend, rows = get_executor().resolve(table.backend), scan(table, on, "deduplicate")

    def in_order(frame: pl.LazyFrame) -> pl.LazyFrame:
        if backend == "gpu":  # several GPUs keep no order
            return plan(frame).sort(ROW)
        return frame.unique(on, keep="first" if keep == "first" else "last", maintain_order=True).select(ROW)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.group_by(on).agg(pl.col(ROW).min() if keep == "first" else pl.col(ROW).max()).select(ROW)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [assign_hashes(on, num_buckets, missing_meet=True)]

    if count_buckets([rows], backend) == 1:
        rows = rows if backend == "gpu" else rows.with_categories(on)
        return run(in_order, [rows], [ID], backend, "deduplicate", None)
    kept_ids = run(plan, [rows], [ID], backend, "deduplicate", cut)  # rows of a bucket are in any order
    return sort_by_row(kept_ids, [ID], backend, "deduplicate").gather()
