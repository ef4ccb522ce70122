"""Whether rows are those a pipeline was fitted on: sums of bits drawn from them, the same in any partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.hashing import hash_column, splitmix64

__all__ = ["FittedRows"]

_MOD = 1 << 64


@dataclass(frozen=True)
class FittedRows:
    """What tells some rows from others.

    Args:
        num_rows: how many.
        content: the sum of 64 bits of each row's values: the same in any order.
        placed: the same with the row's identity: the same only where each row stands in the place it had.

    Example:
        >>> import numpy as np
        >>> from gpupipe.backend import select
        >>> x = Column("int64", np.array([3, 1, 2])), np.arange(3, dtype="uint64")
        >>> rows, turned = (FittedRows.of([x[0].take(at)], x[1], select("cpu")) for at in ([0, 1, 2], [2, 1, 0]))
        >>> rows.content == turned.content, rows == turned
        (True, False)
    """

    num_rows: int = 0
    content: int = 0
    placed: int = 0

    @classmethod
    def of(cls, columns: Iterable[Column], row_ids: Array, backend: Backend) -> FittedRows:
        """Those of one partition, given the rows' identities.

        Memory: some arrays of n uint64; two numbers go to the host.
        """
        xp = backend.xp
        bits = xp.zeros(len(row_ids), dtype="uint64")
        for number, column in enumerate(columns):
            bits = splitmix64(number, bits ^ hash_column(column, number, backend))
        placed = splitmix64(0, bits ^ splitmix64(1, row_ids))
        content, place = backend.to_host(xp.stack([bits.sum(), placed.sum()])).tolist()
        return cls(len(row_ids), int(content), int(place))

    def __add__(self, other: FittedRows) -> FittedRows:
        return FittedRows(
            self.num_rows + other.num_rows,
            (self.content + other.content) % _MOD,
            (self.placed + other.placed) % _MOD,
        )

    def has_values_of(self, other: FittedRows) -> bool:
        """Whether the rows have the same values, in whatever order."""
        return (self.num_rows, self.content) == (other.num_rows, other.content)

    def to_json(self) -> list[Any]:
        """Plain numbers, for a file."""
        return [self.num_rows, self.content, self.placed]
