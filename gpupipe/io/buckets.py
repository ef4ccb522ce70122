"""Which bucket a row goes to: by the order of its keys, by their hash, or by its place in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.hashing import hash_column, splitmix64
from gpupipe.backend.ordering import sort_order
from gpupipe.cluster import active
from gpupipe.io.exchange import ID, ROW, Reading, host_table
from gpupipe.io.passes import over_partitions
from gpupipe.schema import Field

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["Hashed", "Placed", "Ranges", "shuffle_bits", "shuffle_seed"]

SAMPLES_PER_BUCKET = 1000
_SHUFFLE, _SAMPLE = -1, -2  # counters of the seeds of shuffles and samples, apart from those of draws


@dataclass(frozen=True)
class Ranges:
    """Rows in the order of their keys, cut into buckets at given rows; a row equal to one of these stands behind it.

    Args:
        fields: the keys.
        ascending: for each key.
        cuts: the rows, in order; one less than there are buckets, or fewer.
    """

    fields: Sequence[Field]
    ascending: Sequence[bool]
    cuts: pa.Table

    @classmethod
    def of_sample(
        cls, dataset: Dataset, by: Sequence[str], ascending: Sequence[bool], num_buckets: int, *, divide: bool
    ) -> Self:
        """Cuts that make buckets of about equal size, from a pass over the keys in which some rows are drawn.

        Args:
            dataset: whose rows are put into buckets.
            by: the keys.
            ascending: for each key.
            num_buckets: one at least.
            divide: whether rows with equal keys may go to several buckets, by where they stand in the dataset.

        Memory: the keys of one partition per worker; here of a thousand rows for each bucket.
        """
        extra = [ID] if divide else []
        fields, upward = [*(dataset.schema[name] for name in by), *extra], [*ascending, *(True for _ in extra)]
        if num_buckets == 1:
            return cls(
                fields, upward, pa.schema([(item.name, arrow_type(item.dtype)) for item in fields]).empty_table()
            )
        num_rows = sum(partition.num_rows for partition in dataset.partitions)
        work = _Sample(
            by, fields, min(1.0, SAMPLES_PER_BUCKET * num_buckets / max(1, num_rows)), active().resolve(dataset.backend)
        )
        sample, cpu = pa.concat_tables(over_partitions(work, dataset, work.backend, "sample")), select("cpu")
        frame = cpu.from_arrow(sample, fields)
        order = sort_order([cpu.column(frame, item.name) for item in fields], cpu, upward)
        places = [len(order) * bucket // num_buckets for bucket in range(1, num_buckets)] if len(order) else []
        return cls(fields, upward, sample.take(pa.array(order[places], pa.int64())).combine_chunks())

    def __call__(self, frame: Frame, backend: Backend) -> Array:
        """Memory: the keys twice, and what it takes to sort them."""
        xp, num_cuts = backend.xp, self.cuts.num_rows
        names = [item.name for item in self.fields]
        both = backend.concat([backend.from_arrow(self.cuts, self.fields), backend.select(frame, names)])
        order = sort_order([backend.column(both, name) for name in names], backend, self.ascending)
        buckets = xp.zeros(len(order), dtype="int64")
        buckets[order] = xp.cumsum(order < num_cuts)
        return buckets[num_cuts:]


@dataclass(frozen=True)
class _Sample:
    by: Sequence[str]
    fields: Sequence[Field]
    share: float
    backend: str

    def __call__(self, part: Dataset) -> pa.Table:
        backend = select(self.backend)
        frame = Reading(self.by)(part, backend)
        bits = splitmix64(_seed(0, _SAMPLE), backend.column(frame, ROW).data)
        drawn = backend.filter(frame, bits >> np.uint64(11) < np.uint64(self.share * 2**53))
        return host_table(drawn, self.fields, backend)


@dataclass(frozen=True)
class Hashed:
    """Rows with equal keys in one bucket.

    Integers are equal in any width. Rows that lack a key are spread where they need not meet.

    Args:
        keys: the columns.
        num_buckets: how many.
        missing_meet: whether two missing values are equal.
    """

    keys: Sequence[str]
    num_buckets: int
    missing_meet: bool

    def __call__(self, frame: Frame, backend: Backend) -> Array:
        """Memory: six arrays of 8 bytes a row at a time."""
        xp, bits = backend.xp, backend.column(frame, ROW).data
        total, alone = xp.zeros(len(frame), dtype="uint64"), xp.zeros(len(frame), dtype=bool)
        for name in self.keys:
            column = backend.column(frame, name)
            total = splitmix64(0, total + hash_column(column, 0, backend))
            missing = None if self.missing_meet else column.missing(xp)
            if missing is not None:
                alone |= missing
        return _spread(xp.where(alone, splitmix64(0, bits), total), self.num_buckets)


@dataclass(frozen=True)
class Placed:
    """Rows by their identity, cut at the first ones of a table's partitions.

    Args:
        edges: the identities where the second and each later bucket begins, ascending.
    """

    edges: Sequence[int]

    @classmethod
    def like(cls, dataset: Dataset) -> Self:
        """A bucket for the rows of each partition that has any."""
        return cls([partition.spans[0].identity for partition in dataset.partitions if partition.spans][1:])

    @property
    def num_buckets(self) -> int:
        """How many there are."""
        return len(self.edges) + 1

    def __call__(self, frame: Frame, backend: Backend) -> Array:
        edges = backend.to_device(np.array(self.edges, dtype="uint64"))
        return backend.xp.searchsorted(edges, backend.column(frame, ROW).data, side="right")


def shuffle_bits(seed: int, row_ids: Array) -> Array:
    """64 random bits for each row, no two alike: what a shuffled table is sorted by.

    Example:
        >>> len(np.unique(shuffle_bits(7, np.arange(1000))))
        1000
    """
    return splitmix64(shuffle_seed(seed), row_ids)


def shuffle_seed(seed: int) -> int:
    """Draw the seed of the bits that a table is shuffled by."""
    return _seed(seed, _SHUFFLE)


def _seed(seed: int, counter: int) -> int:
    return int(splitmix64(seed, np.array([counter]))[0])


def _spread(bits: Array, num_buckets: int) -> Array:
    """Bits to buckets by their upper half."""
    return ((bits >> np.uint64(32)) * np.uint64(num_buckets) >> np.uint64(32)).astype("int64")
