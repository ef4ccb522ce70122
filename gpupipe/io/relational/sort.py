"""The rows of a table in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import polars as pl

from gpupipe.backend.hashing import shuffle_seed
from gpupipe.cluster import get_executor
from gpupipe.io.planning.table import AnyTable
from gpupipe.io.relational.cuts import by_order
from gpupipe.io.relational.engine import Plan, PlannedRun
from gpupipe.io.relational.gathering import Gathered, Origin, origin_of
from gpupipe.io.relational.planned import plan_rows
from gpupipe.io.relational.random_bits import random_bits
from gpupipe.io.relational.scan import Scan, scan, scan_gathered
from gpupipe.schema import ROW, Field

__all__ = ["by_place", "numbered", "shuffle", "sort"]

_BITS = "⟨bits⟩"


def sort(table: AnyTable, by: Sequence[str], ascending: Sequence[bool]) -> AnyTable:
    """Make what `Dataset.sort` describes."""
    backend = get_executor().resolve(table.backend)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        if backend == "gpu":  # rows that several GPUs have sorted stand in no order of their own
            return frame.sort([*by, ROW], descending=[*(not up for up in ascending), False], nulls_last=True)
        return frame.sort(by, descending=[not up for up in ascending], nulls_last=True, maintain_order=True)

    def cut(rows: Scan, num_buckets: int) -> list[pl.Expr]:
        return [by_order(rows, [*by, ROW], [*ascending, True], num_buckets)]

    return _rearranged(table, plan, cut, origin_of("sort", [table], by, ascending), backend, "sort")


def shuffle(table: AnyTable, seed: int) -> AnyTable:
    """Make what `Dataset.shuffle` describes."""
    bits = random_bits(shuffle_seed(seed), pl.col(ROW))

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.with_columns(bits.alias(_BITS)).sort(_BITS)

    def cut(_: Scan, num_buckets: int) -> list[pl.Expr]:
        return [((bits // pl.lit(1 << 32, pl.UInt64)) * num_buckets // pl.lit(1 << 32, pl.UInt64)).cast(pl.Int64)]

    origin = origin_of("shuffle", [table], seed)
    return _rearranged(table, plan, cut, origin, get_executor().resolve(table.backend), "shuffle")


def numbered(table: AnyTable) -> AnyTable:
    """Return the table, or a copy whose rows are numbered where some of them may share an identity."""
    if not table.query.repeats_rows:
        return table
    return _rearranged(table, lambda frame: frame, None, origin_of("rows", [table]), "cpu", "number")


def _rearranged(
    table: AnyTable,
    plan: Plan,
    cut: Callable[[Scan, int], Sequence[pl.Expr]] | None,
    origin: Origin,
    backend: str,
    title: str,
) -> AnyTable:
    """The same columns, whose rows a plan brings into another order."""

    def rows() -> PlannedRun:
        found = scan(table, table.columns, title)
        return PlannedRun(plan, [found], list(table.schema), backend, title, cut and partial(cut, found))

    return plan_rows(table, [], table.schema, origin, title, rows)


def by_place(rows: Gathered, fields: Iterable[Field], backend: str, title: str) -> PlannedRun:
    """Plan to put what a plan has made into the order of the column `ROW`; the result has these columns."""
    one = scan_gathered(rows)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.sort(ROW, maintain_order=True)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [by_order(one, [ROW], [True], num_buckets)]

    return PlannedRun(plan, [one], list(fields), backend, title, cut)
