"""Random sample of exactly n rows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpupipe.backend import select
from gpupipe.backend.hashing import splitmix64
from gpupipe.cluster import get_executor
from gpupipe.errors import BadConfig
from gpupipe.io.planning.row_filters import RandomSplit
from gpupipe.io.planning.table import AnyTable, Table
from gpupipe.io.relational.sort import ensure_unique_row_ids
from gpupipe.io.run import run_partitions

__all__ = ["draw"]


def draw(table: AnyTable, n: int, seed: int) -> AnyTable:
    """Run `Dataset.sample(n=)`: draw the n rows with the lowest bits."""
    table, backend = ensure_unique_row_ids(table), get_executor().resolve(table.backend)
    own = int(splitmix64(seed, np.array([table.query.num_draws]))[0])
    lowest, num_rows = np.zeros(0, dtype=np.uint64), 0
    with closing(run_partitions(_Lowest(own, n, backend), table, backend, "sample")) as found:
        for bits, of_partition in found:
            lowest, num_rows = _select_lowest(np.concatenate([lowest, bits]), n), num_rows + of_partition
    if not 0 <= n <= num_rows:
        raise BadConfig("sample", "not so many rows", got=n, expected=f"0 to {num_rows:,}", remedy=f"n={num_rows}")
    return replace(table, query=table.query.then(RandomSplit(own, 0, int(lowest.max()) + 1 if n else 0)))


@dataclass(frozen=True)
class _Lowest:
    """Partition task: the n lowest bits of the rows and their number; only columns that filters use are read."""

    seed: int
    n: int
    backend: str

    def __call__(self, part: Table) -> tuple[Any, int]:
        backend, (partition,) = select(self.backend), part.partitions
        rows = backend.positions(part.read(partition, [], backend))
        bits = splitmix64(self.seed, partition.row_ids(backend.xp)[rows])
        return _select_lowest(backend.to_host(bits), self.n), len(rows)


def _select_lowest(values: Any, n: int) -> Any:
    """Select the n lowest values of an array in any order, or all."""
    return np.partition(values, n)[:n] if n < len(values) else values
