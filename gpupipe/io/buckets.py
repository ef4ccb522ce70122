"""Which bucket a row goes to: by the hash of its keys, or by its place in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.hashing import hash_column, splitmix64
from gpupipe.io.exchange import ROW

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["Hashed", "Placed", "shuffle_bits", "shuffle_seed"]

_SHUFFLE = -1  # counter of the seed of a shuffle, apart from those of draws


@dataclass(frozen=True)
class Hashed:
    """Rows with equal keys in one bucket; rows that lack a key are spread.

    Integers are equal in any width.

    Args:
        keys: the columns.
        num_buckets: how many.
    """

    keys: Sequence[str]
    num_buckets: int

    def __call__(self, frame: Frame, backend: Backend) -> Array:
        """Memory: six arrays of 8 bytes a row at a time."""
        xp, bits = backend.xp, backend.column(frame, ROW).data
        total, alone = xp.zeros(len(frame), dtype="uint64"), xp.zeros(len(frame), dtype=bool)
        for name in self.keys:
            column = backend.column(frame, name)
            total = splitmix64(0, total + hash_column(column, 0, backend))
            missing = column.missing(xp)
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
    return int(splitmix64(seed, np.array([_SHUFFLE]))[0])


def _spread(bits: Array, num_buckets: int) -> Array:
    """Bits to buckets by their upper half."""
    return ((bits >> np.uint64(32)) * np.uint64(num_buckets) >> np.uint64(32)).astype("int64")
