"""Rows that repeat others."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpupipe.backend import select
from gpupipe.backend.ordering import grouped
from gpupipe.cluster import active
from gpupipe.io.buckets import Hashed
from gpupipe.io.exchange import ID, ROW, Reading, exchange, origin_of
from gpupipe.io.passes import over_partitions
from gpupipe.io.relational.ordering import numbered
from gpupipe.io.selection import Without
from gpupipe.io.spool import GROUP_BYTES, Spool
from gpupipe.schema import Schema

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["deduplicated"]


def deduplicated(table: Dataset, on: Sequence[str], keep: str) -> Dataset:
    """See `Dataset.deduplicate`. Only the keys are brought together; the rows stay where they are."""
    table, num_buckets, spool = numbered(table), table.num_partitions, Spool(GROUP_BYTES)
    schema, buckets = Schema([*table.schema.select(on), ID]), Hashed(on, num_buckets, missing_meet=True)
    together = exchange(table, Reading(on), schema, buckets, num_buckets, "deduplicate")
    work = _Repeats(spool, on, keep, active().resolve(table.backend))
    files = tuple(over_partitions(work, together, work.backend, "deduplicate", whole=True))
    # Which rows repeat others depends on all of them: with another input file it is another choice.
    inputs = sorted((table.source.inputs() or {}).items())
    without = Without(files, origin_of("deduplicate", [table], on, keep, inputs).made_by, spool)
    return replace(table, query=table.query.then(without))


@dataclass(frozen=True)
class _Repeats:
    """Write the identities of the rows that repeat others; gives the file's name."""

    spool: Spool
    on: Sequence[str]
    keep: str
    backend: str

    def __call__(self, part: Dataset) -> str:
        backend = select(self.backend)
        frame = part.read(part.partitions[0], None, backend)
        groups = grouped([backend.column(frame, name) for name in self.on], backend)
        repeats = backend.xp.ones(len(frame), dtype=bool)
        repeats[groups.first if self.keep == "first" else groups.last] = False
        path = self.spool.folder / f"{uuid.uuid4().hex}.npy"
        np.save(path, np.sort(backend.to_host(backend.column(frame, ROW).data[repeats])))
        return str(path)
