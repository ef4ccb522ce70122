"""So many rows of a table, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.backend import select
from gpupipe.backend.hashing import splitmix64
from gpupipe.cluster import active
from gpupipe.errors import BadConfig
from gpupipe.io.exchange import ROW, Reading
from gpupipe.io.passes import over_partitions
from gpupipe.io.relational.ordering import numbered
from gpupipe.io.selection import Draw

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["drawn"]


def drawn(table: Dataset, n: int, seed: int) -> Dataset:
    """See `Dataset.sample`: the n rows with the lowest bits."""
    table = numbered(table)
    own = int(splitmix64(seed, np.array([table.query.num_draws]))[0])
    lowest, num_rows = np.zeros(0, dtype="uint64"), 0
    work = _Lowest(own, n, active().resolve(table.backend))
    for found, count in over_partitions(work, table, work.backend, "sample"):
        lowest, num_rows = np.concatenate([lowest, found]), num_rows + count
        if len(lowest) > n:
            lowest = np.partition(lowest, n)[:n]
    if not 0 <= n <= num_rows:
        raise BadConfig("sample", "not so many rows", got=n, expected=f"0 to {num_rows:,}", remedy=f"n={num_rows}")
    high = int(lowest.max()) + 1 if n else 0
    return replace(table, query=table.query.then(Draw(own, 0, high)))


@dataclass(frozen=True)
class _Lowest:
    """The lowest bits of a partition's rows, at most `n` of them, and how many rows there are."""

    seed: int
    n: int
    backend: str

    def __call__(self, part: Dataset) -> tuple[Any, int]:
        backend = select(self.backend)
        ids = backend.column(Reading(())(part, backend), ROW).data
        bits = backend.to_host(splitmix64(self.seed, ids))
        return (np.partition(bits, self.n)[: self.n] if 0 <= self.n < len(bits) else bits), len(bits)
