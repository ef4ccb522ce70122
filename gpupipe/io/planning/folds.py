"""Folds of a dataset: pairs to train on and to validate on, drawn or forward in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from gpupipe.backend import select
from gpupipe.errors import BadConfig
from gpupipe.io.planning.row_filters import Between
from gpupipe.io.planning.splits import check_order, count_missing, parse_width, refuse_missing
from gpupipe.io.planning.table import AnyTable, Table
from gpupipe.schema import Field
from gpupipe.support.text import TableReport


class Folds(TableReport, list[tuple[AnyTable, AnyTable]]):
    """List of pairs of a dataset to train on and one to validate on, which displays itself as a table.

    Args:
        pairs: the pairs.
        title: how they were made.
        cells: for each pair what is in its two parts.
    """

    def __init__(
        self, pairs: Iterable[tuple[AnyTable, AnyTable]], title: str, cells: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__(pairs)
        self.title, self.cells = title, cells

    @property
    def _title(self) -> str:
        return self.title

    def _table(self) -> list[list[str]]:
        return [["fold", "train", "valid"], *([str(number), *each] for number, each in enumerate(self.cells, 1))]


def check_folds(table: Table, n_splits: int, by: str | None, stratify: str | None, gap: Any, *, forward: bool) -> None:
    """Raise for arguments of `kfold` that do not go together."""
    if forward and (by is None or stratify is not None):
        expected, remedy = "by=, the column of times, and no stratify=", "kfold(5, by='date', forward=True)"
        got = {"by": by, "stratify": stratify}
        raise BadConfig("kfold(forward=True)", "not one way to go forward", got=got, expected=expected, remedy=remedy)
    if gap is not None and not forward:
        remedy = f"kfold({n_splits}, by={by or 'date'!r}, forward=True, gap={gap!r})"
        raise BadConfig("kfold(gap=)", "drawn folds have no gap", got=gap, expected="forward=True", remedy=remedy)
    if by is not None and not forward and table.schema[by].dtype == "timestamp":
        problem = "folds drawn over times train on rows that are later than those they validate"
        expected = "folds that go forward in time, or a column that is no time"
        remedy = f"kfold({n_splits}, by={by!r}, forward=True)"
        raise BadConfig("kfold(by=)", problem, got=by, expected=expected, remedy=remedy)


def cut_forward(table: Table, ordered: Table, n_splits: int, by: str, gap: Any) -> list[tuple[Between, Between]]:
    """Return for each fold the range to train on and the next one, to validate on; `ordered` is `by` sorted.

    Cuts are where scikit-learn's TimeSeriesSplit has them: with n rows each fold validates n // (n_splits + 1), the
    last ones of all in the last fold, and trains on all before. Rows of one value stay together, with the later part.
    """
    where, item = f"kfold(by={by!r}, forward=True)", table.schema[by]
    refuse_missing(count_missing(table, by), by, where)
    check_order(table, by, "kfold")
    num_rows = sum(partition.num_rows for partition in ordered.partitions)
    size = num_rows // (n_splits + 1)
    minimum, *cuts = _values_at(ordered, by, [0, *(num_rows - size * left for left in range(n_splits, 0, -1))])
    if not size or any(low >= high for low, high in pairwise([minimum, *cuts])):
        problem = f"the values of {num_rows:,} rows leave no {n_splits + 1} stretches of equal size"
        expected = "more rows than folds, and few rows of one value"
        raise BadConfig(where, problem, got=n_splits, expected=expected, remedy="fewer folds, or a finer time")
    ends = cuts if gap is None else [cut - parse_width(gap, item, "kfold") for cut in cuts]
    if minimum >= ends[0]:
        expected, remedy = "a gap that leaves the first fold rows to train on", "a smaller gap, or fewer folds"
        problem = "it reaches back to the first value"
        raise BadConfig(f"kfold(by={by!r}, gap=)", problem, got=gap, expected=expected, remedy=remedy)
    starts = pairwise([*cuts, None])
    return [(Between(by, None, end), Between(by, low, high)) for end, (low, high) in zip(ends, starts, strict=True)]


def describe_range(part: Between, item: Field) -> str:
    """Describe a range of values in a few words."""
    low, high = (None if end is None else _show(end, item) for end in (part.low, part.high))
    return f"before {high}" if low is None else f"from {low}" if high is None else f"{low} to before {high}"


def _show(value: Any, item: Field) -> str:
    if item.dtype != "timestamp":
        return str(value)
    time = datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + timedelta(microseconds=value)
    return time.isoformat(" ").removesuffix(" 00:00:00")


def _values_at(ordered: Table, name: str, ranks: Sequence[int]) -> list[Any]:
    """Return the values of a sorted table's column at these ascending ranks, as they are compared; 0 beyond the end."""
    backend, values, start = select(ordered.backend), list[Any](), 0
    for partition in ordered.partitions:
        offsets = [rank - start for rank in ranks[len(values) :] if rank < start + partition.num_rows]
        if offsets:
            column = backend.column(ordered.read(partition, [name], backend), name)
            column = column.take(backend.to_device(offsets)).move(backend.to_host)
            data = column.data.tolist()
            values += data if column.dictionary is None else [column.dictionary[code].as_py() for code in data]
        start += partition.num_rows
    return values + [0] * (len(ranks) - len(values))
