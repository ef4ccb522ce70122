"""One pass over a table that summarizes every column, and draws a sample of rows for what goes with a target."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, Self

from gpupipe.backend import Frame, select
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig, ColumnNotFound
from gpupipe.expressions import Expression, parse_label
from gpupipe.expressions.evaluate import evaluate
from gpupipe.io.description.association import RowSample, compute_cramers_v
from gpupipe.io.description.column_description import describe_column
from gpupipe.io.description.column_summary import ColumnSummary
from gpupipe.io.description.report import Description
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.table import Table
from gpupipe.schema import DTYPES

# Of each column so many values, hashes and bins are kept, 40 bytes each; fewer of a wide table, 168 MB of any.
MAX_VALUES, _FEWEST_VALUES, _ALL_VALUES = 1 << 16, 1 << 10, 1 << 22


@dataclass(frozen=True)
class TableSummary:
    """Summary of some rows of a table: of each column, and a sample of rows where there is a target."""

    num_rows: int
    columns: tuple[ColumnSummary, ...]
    sample: RowSample | None

    def __add__(self, other: Self) -> Self:
        num_rows = self.num_rows + other.num_rows
        columns = tuple(column + other_column for column, other_column in zip(self.columns, other.columns, strict=True))
        sample = self.sample + other.sample if self.sample and other.sample else None
        return replace(self, num_rows=num_rows, columns=columns, sample=sample)


def describe(table: Table, target: str | None) -> Description:
    """Describe a table's columns, and how each goes with `target`, a column or an expression."""
    backend = get_executor().resolve(table.backend)
    expression = _parse_target(table, target)
    limit = min(MAX_VALUES, max(_FEWEST_VALUES, _ALL_VALUES // max(len(table.columns), 1)))
    work = partial(_summarize, backend, limit, target, expression)
    with closing(run_partitions(work, table, backend, "describe")) as parts:
        summary = reduce(add, parts)
    associations: dict[str, float | None] = {}
    num_sampled = 0
    if summary.sample is not None and target is not None:
        num_sampled = summary.sample.rows.num_rows
        associations = compute_cramers_v(summary.sample.rows, target)
    pairs = zip(table.schema, summary.columns, strict=True)
    columns = [describe_column(item, column_summary, associations.get(item.name)) for item, column_summary in pairs]
    return Description(summary.num_rows, tuple(columns), target, num_sampled, tuple(table.source.notes))


def _parse_target(table: Table, target: Any) -> Expression | None:
    """Parse a target that is no column's name; raise for one that cannot be compared."""
    where = "describe(target=)"
    if target is None:
        return None
    if isinstance(target, str) and target in table.columns:
        dtype = table.schema[target].dtype
        if dtype not in DTYPES:
            expected, remedy = "a column of numbers, booleans, text or times", "target='delay > 15'"
            raise BadConfig(where, f"column {target!r} is {dtype}", got=target, expected=expected, remedy=remedy)
        return None
    expression = parse_label(target, where, table.schema)
    if not expression.reads:  # such as `1960`, where no column has that name
        raise ColumnNotFound.among(where, target, table.columns)
    expression.check(table.schema)
    return expression


def _summarize(
    backend_name: str, limit: int, target: str | None, expression: Expression | None, part: Table
) -> TableSummary:
    """Summarize a table of one partition."""
    backend, (partition,) = select(backend_name), part.partitions
    frame = part.read(partition, None, backend)
    columns = tuple(ColumnSummary.of(backend.column(frame, name), backend, limit) for name in part.columns)
    if target is None:
        return TableSummary(len(frame), columns, None)
    plain: Frame = backend.select(frame, [item.name for item in part.schema if item.dtype in DTYPES])
    if expression is not None:
        values = evaluate(
            expression, {name: backend.column(frame, name) for name in expression.reads}, backend, len(frame)
        )
        plain = backend.assign(plain, {target: values})
    row_ids = partition.frame_ids(frame, backend)
    return TableSummary(len(frame), columns, RowSample.of(plain, row_ids, backend))
