"""Sorting and shuffling of whole tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import polars as pl

from gpupipe.backend.hashing import shuffle_seed
from gpupipe.cluster import get_executor
from gpupipe.io.planning.table import AnyTable
from gpupipe.io.relational.cuts import assign_ranges
from gpupipe.io.relational.engine import Plan, PlannedRun
from gpupipe.io.relational.gathering import Gathered, Origin, build_origin
from gpupipe.io.relational.planned import plan_rows
from gpupipe.io.relational.random_bits import random_bits
from gpupipe.io.relational.scan import Scan, scan, scan_gathered
from gpupipe.schema import ROW, Field

__all__ = ["ensure_unique_row_ids", "shuffle", "sort", "sort_by_row"]

_BITS = "⟨bits⟩"


def sort(table: AnyTable, by: Sequence[str], ascending: Sequence[bool]) -> AnyTable:
    """Run `Dataset.sort`."""
    backend = get_executor().resolve(table.backend)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        if backend == "gpu":  # a sort on several GPUs is not stable
            return frame.sort([*by, ROW], descending=[*(not up for up in ascending), False], nulls_last=True)
        return frame.sort(by, descending=[not up for up in ascending], nulls_last=True, maintain_order=True)

    def cut(rows: Scan, num_buckets: int) -> list[pl.Expr]:
        return [assign_ranges(rows, [*by, ROW], [*ascending, True], num_buckets)]

    return _reorder(table, plan, cut, build_origin("sort", [table], by, ascending), backend, "sort")


def shuffle(table: AnyTable, seed: int) -> AnyTable:
    """Run `Dataset.shuffle`."""
    bits = random_bits(shuffle_seed(seed), pl.col(ROW))

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.with_columns(bits.alias(_BITS)).sort(_BITS)

    def cut(_: Scan, num_buckets: int) -> list[pl.Expr]:
        return [((bits // pl.lit(1 << 32, pl.UInt64)) * num_buckets // pl.lit(1 << 32, pl.UInt64)).cast(pl.Int64)]

    origin = build_origin("shuffle", [table], seed)
    return _reorder(table, plan, cut, origin, get_executor().resolve(table.backend), "shuffle")


def ensure_unique_row_ids(table: AnyTable) -> AnyTable:
    """Return the table, or a copy with new row ids if rows may share one."""
    if not table.query.repeats_rows:
        return table
    return _reorder(table, lambda frame: frame, None, build_origin("rows", [table]), "cpu", "number")


def _reorder(
    table: AnyTable,
    plan: Plan,
    cut: Callable[[Scan, int], Sequence[pl.Expr]] | None,
    origin: Origin,
    backend: str,
    title: str,
) -> AnyTable:
    """Build a table with the same columns, whose rows a plan reorders."""

    def rows() -> PlannedRun:
        found = scan(table, table.columns, title)
        return PlannedRun(plan, [found], list(table.schema), backend, title, cut and partial(cut, found))

    return plan_rows(table, [], table.schema, origin, title, rows)


def sort_by_row(rows: Gathered, fields: Iterable[Field], backend: str, title: str) -> PlannedRun:
    """Plan a sort of gathered rows by the column `ROW`; the result has these columns."""
    one = scan_gathered(rows)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.sort(ROW, maintain_order=True)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [assign_ranges(one, [ROW], [True], num_buckets)]

    return PlannedRun(plan, [one], list(fields), backend, title, cut)
