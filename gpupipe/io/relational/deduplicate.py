"""Removal of duplicate rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from gpupipe.cluster import get_executor
from gpupipe.io.planning.row_filters import RowIdFilter
from gpupipe.io.planning.table import AnyTable
from gpupipe.io.relational.engine import assign_hashes, count_buckets, run
from gpupipe.io.relational.gathering import build_origin
from gpupipe.io.relational.scan import scan
from gpupipe.io.relational.sort import ensure_unique_row_ids, sort_by_row
from gpupipe.schema import ID, ROW


def deduplicate(table: AnyTable, on: Sequence[str], keep: str) -> AnyTable:
    """Run `Dataset.deduplicate`. Only the keys are read; the rows keep their partitions."""
    table, backend = ensure_unique_row_ids(table), get_executor().resolve(table.backend)
    rows = scan(table, on, "deduplicate")

    def in_order(frame: pl.LazyFrame) -> pl.LazyFrame:
        if backend == "gpu":  # several GPUs keep no order
            return plan(frame).sort(ROW)
        return frame.unique(on, keep="first" if keep == "first" else "last", maintain_order=True).select(ROW)

    def plan(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.group_by(on).agg(pl.col(ROW).min() if keep == "first" else pl.col(ROW).max()).select(ROW)

    def cut(num_buckets: int) -> list[pl.Expr]:
        return [assign_hashes(on, num_buckets, missing_meet=True)]

    if count_buckets([rows], backend) == 1:
        kept = run(in_order, [rows], [ID], backend, "deduplicate", None)
    else:  # rows of a bucket are in any order
        found = run(plan, [rows], [ID], backend, "deduplicate", cut)
        kept = sort_by_row(found, [ID], backend, "deduplicate").gather()
    # Which rows repeat others depends on all of them: with another input file it is another choice.
    inputs = sorted((table.source.inputs() or {}).items())
    made_by = build_origin("deduplicate", [table], on, keep, inputs).made_by
    return replace(table, query=table.query.then(RowIdFilter.of(kept.column(ROW), kept.num_rows, made_by)))
