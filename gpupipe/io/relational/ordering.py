"""The rows of a table in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import polars as pl

from gpupipe.backend.hashing import shuffle_seed
from gpupipe.cluster import active
from gpupipe.io.relational.cuts import by_order
from gpupipe.io.relational.engine import run
from gpupipe.io.relational.gathering import Gathered, origin_of
from gpupipe.io.relational.random_bits import random_bits
from gpupipe.io.relational.scan import scan, scan_gathered
from gpupipe.schema import ROW, Field

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["by_place", "numbered", "shuffle", "sort", "widest"]

_BITS = "⟨bits⟩"


def sort(table: Dataset, by: Sequence[str], ascending: Sequence[bool]) -> Dataset:
    """Make what `Dataset.sort` describes."""
    backend, rows = active().resolve(table.backend), scan(table, table.columns, "sort")

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        if backend == "gpu":  # rows that several GPUs have sorted stand in no order of their own
            return frame.sort([*by, ROW], descending=[*(not up for up in ascending), False], nulls_last=True)
        return frame.sort(by, descending=[not up for up in ascending], nulls_last=True, maintain_order=True)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [by_order(rows, [*by, ROW], [*ascending, True], num_buckets)]

    found = run(plan, [rows], table.schema, backend, "sort", cut)
    return found.dataset(table, table.schema, origin_of("sort", [table], by, ascending), widest(table), "sort")


def shuffle(table: Dataset, seed: int) -> Dataset:
    """Make what `Dataset.shuffle` describes."""
    backend, rows = active().resolve(table.backend), scan(table, table.columns, "shuffle")
    bits = random_bits(shuffle_seed(seed), pl.col(ROW))

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.with_columns(bits.alias(_BITS)).sort(_BITS)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [((bits // pl.lit(1 << 32, pl.UInt64)) * num_buckets // pl.lit(1 << 32, pl.UInt64)).cast(pl.Int64)]

    found = run(plan, [rows], table.schema, backend, "shuffle", cut)
    return found.dataset(table, table.schema, origin_of("shuffle", [table], seed), widest(table), "shuffle")


def numbered(table: Dataset) -> Dataset:
    """Return the table, or a copy whose rows are numbered where some of them may share an identity."""
    if not table.query.repeats_rows:
        return table
    rows = scan(table, table.columns, "number")
    found = run(lambda frame: frame, [rows], table.schema, "cpu", "number", None)
    return found.dataset(table, table.schema, origin_of("rows", [table]), widest(table), "number")


def by_place(rows: Gathered, fields: Iterable[Field], backend: str, title: str) -> Gathered:
    """Put what a plan has made into the order of the column `ROW`; the result has these columns."""
    one = scan_gathered(rows)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.sort(ROW, maintain_order=True)

    return run(plan, [one], fields, backend, title, lambda num_buckets: [by_order(one, [ROW], [True], num_buckets)])


def widest(table: Dataset) -> int:
    """Count the rows of the table's largest partition."""
    return max(1, *(partition.num_rows for partition in table.partitions))
