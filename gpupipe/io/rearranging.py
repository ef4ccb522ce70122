"""The rows of a table in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpupipe.backend import Backend, Frame
from gpupipe.backend.ordering import sort_order
from gpupipe.io.buckets import Ranges, Shuffled, shuffle_bits
from gpupipe.io.exchange import ID, ROW, Reading, exchange, origin_of, settle
from gpupipe.schema import Schema

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["InOrder", "identified", "shuffled", "sorted_by", "widest"]


def sorted_by(table: Dataset, by: Sequence[str], ascending: Sequence[bool]) -> Dataset:
    """See `Dataset.sort`."""
    num_buckets = table.num_partitions
    ranges = Ranges.of_sample(table, by, ascending, num_buckets, divide=True)
    together = exchange(table, Reading(table.columns), table.schema, ranges, num_buckets, "sort")
    origin = origin_of("sort", [table], by, ascending)
    return settle(together, InOrder(tuple(by), tuple(ascending)), table.schema, origin, widest(table), "sort")


def shuffled(table: Dataset, seed: int) -> Dataset:
    """See `Dataset.shuffle`."""
    table, origin = identified(table), origin_of("shuffle", [table], seed)
    buckets = Shuffled(seed, table.num_partitions)
    schema = Schema([*table.schema, ID])
    together = exchange(table, Reading(table.columns), schema, buckets, buckets.num_buckets, "shuffle")
    return settle(together, _Shuffle(seed), table.schema, origin, widest(table), "shuffle")


def identified(table: Dataset) -> Dataset:
    """The table as it is, or a copy on disk where rows of it may share an identity."""
    if not table.query.repeats_rows:
        return table
    origin = origin_of("rows", [table])
    return settle(table, Reading(table.columns), table.schema, origin, widest(table), "number", whole=False)


def widest(table: Dataset) -> int:
    """The rows of its largest partition."""
    return max(1, *(partition.num_rows for partition in table.partitions))


@dataclass(frozen=True)
class InOrder:
    """The rows of a partition in the order of some columns.

    Args:
        by: the columns.
        ascending: for each.
    """

    by: Sequence[str]
    ascending: Sequence[bool]

    def __call__(self, part: Dataset, backend: Backend) -> Frame:
        frame = part.read(part.partitions[0], None, backend)
        columns = [backend.column(frame, name) for name in self.by]
        return backend.take(frame, sort_order(columns, backend, self.ascending))


@dataclass(frozen=True)
class _Shuffle:
    seed: int

    def __call__(self, part: Dataset, backend: Backend) -> Frame:
        frame = part.read(part.partitions[0], None, backend)
        bits = shuffle_bits(self.seed, backend.column(frame, ROW).data)
        return backend.take(frame, backend.xp.argsort(bits))
