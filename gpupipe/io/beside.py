"""New columns of a table, made where all rows of a key are together, and found again by the rows' identities.

Only what the columns are made of is brought together; the rows stay where they are, and keep their identities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.io.buckets import Hashed, Placed
from gpupipe.io.exchange import ID, ROW, Rows, exchange
from gpupipe.schema import Field, Schema

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["Beside", "made_together"]


@dataclass(frozen=True)
class Beside:
    """Columns of rows that are elsewhere, in temporary files.

    Args:
        table: a partition for each range of identities, in each the rows in any order, with their identities.
        places: which range an identity is in.
    """

    table: Dataset
    places: Placed

    def columns(self, names: Sequence[str], row_ids: Array, backend: Backend) -> dict[str, Column]:
        """The columns of these rows, no two of which have the same identity.

        Memory: the columns of the partitions these rows are in, and an order of their rows.
        """
        xp, edges = backend.xp, np.array(self.places.edges, dtype=np.uint64)
        first, last = 0, 0
        if len(row_ids):
            ends = backend.to_host(xp.stack([row_ids.min(), row_ids.max()]))
            first, last = np.searchsorted(edges, ends, side="right").tolist()
        parts = self.table.partitions[first : last + 1]
        frame = backend.concat([self.table.read(part, [*names, ROW], backend) for part in parts])
        known = backend.column(frame, ROW).data
        order = xp.argsort(known)
        rows = order[xp.searchsorted(known[order], row_ids)]
        return {name: backend.column(frame, name).take(rows) for name in names}


def made_together(
    table: Dataset,
    rows: Rows,
    inputs: Sequence[Field],
    keys: Sequence[str],
    make: Rows,
    made: Sequence[Field],
    title: str,
) -> Beside:
    """Columns made of all rows of a key at once.

    Args:
        table: whose rows they are; no two of them share an identity.
        rows: gives a partition's rows with the columns `inputs`, and their identities.
        inputs: what the columns are made of, keys included.
        keys: rows that are alike in them meet, unless one is missing; without any, all rows meet.
        make: gives the columns `made`, with the identities, of rows that have met, which stand as in the table.
        made: the new columns.
        title: of the progress bar.

    Memory: of each worker three times a partition's rows of `inputs`, and all rows of its largest key. On disk the
        inputs, then what is made of them, as long as the result is there.
    """
    num_buckets = table.num_partitions if keys else 1
    buckets = Hashed(list(keys), num_buckets)
    together = exchange(table, rows, Schema([*inputs, ID]), buckets, num_buckets, title)
    places = Placed.like(table)
    found = exchange(together, make, Schema([*made, ID]), places, places.num_buckets, title, whole=True)
    return Beside(found, places)
