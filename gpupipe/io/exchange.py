"""Rows of all partitions brought together on disk, in buckets that need each other.

That is a pass over partitions like any other, so it runs on threads or on a cluster's workers, which have to
share the folder for temporary files where they are on several machines.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.arrow import arrow_type, parquet_path
from gpupipe.cluster import active
from gpupipe.io.passes import over_partitions
from gpupipe.io.query import EVERYTHING
from gpupipe.io.source import Partition, Span
from gpupipe.io.spool import GROUP_BYTES, Spool
from gpupipe.io.spooled import Run, Spooled
from gpupipe.schema import FLOATS, Field, Schema, element_of
from gpupipe.scratch import writing_scratch

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["ID", "ROW", "BucketOf", "Origin", "Reading", "Rows", "exchange", "host_table", "origin_of"]

Rows: TypeAlias = Callable[["Dataset", Backend], Frame]
"""The rows made of a dataset of one partition."""
BucketOf: TypeAlias = Callable[[Frame, Backend], Array]
"""For each row the number of the bucket it goes to."""

ROW = "⟨row⟩"
"""The column that holds the rows' identities on the way; no table may have one of that name."""
ID = Field(ROW, "uint64", nullable=False)


@dataclass(frozen=True)
class Reading:
    """The rows as they are, with these columns and `ROW`."""

    names: Sequence[str]

    def __call__(self, part: Dataset, backend: Backend) -> Frame:
        (partition,) = part.partitions
        frame = part.read(partition, self.names, backend)
        ids = partition.row_ids(backend.xp)[backend.positions(frame)]
        return backend.assign(frame, {ROW: Column("uint64", ids)})


def host_table(frame: Frame, fields: Sequence[Field], backend: Backend) -> pa.Table:
    """These columns of a coded frame on the host, in the types the fields say."""
    types = pa.schema([(item.name, arrow_type(item.dtype)) for item in fields])
    return backend.to_arrow(backend.select(frame, types.names)).cast(types)


@dataclass(frozen=True)
class Origin:
    """What a table comes from.

    Args:
        made_by: see `Source.made_by`.
        inputs: see `Source.inputs`.
    """

    made_by: str | None
    inputs: dict[str, str] | None


def origin_of(verb: str, tables: Sequence[Dataset], *options: object) -> Origin:
    """The origin of what a verb makes of tables."""
    jobs = [table.job_id() for table in tables]
    found = [table.source.inputs() for table in tables]
    inputs = None if None in found else {name: stamp for one in found for name, stamp in (one or {}).items()}
    facts = hashlib.sha256(repr((verb, jobs, options)).encode()).hexdigest()
    return Origin(None if None in jobs else f"{verb} {facts}", inputs)


def exchange(
    dataset: Dataset,
    rows: Rows,
    schema: Schema,
    bucket_of: BucketOf,
    num_buckets: int,
    title: str,
    *,
    whole: bool = False,
) -> Dataset:
    """The rows made of all partitions as a dataset with a partition for each bucket, in it the rows as they stood.

    A partition becomes one temporary file with the rows of each bucket in row groups of their own.

    Args:
        dataset: what the rows are made of.
        rows: is given whole partitions, or pieces where memory does not suffice.
        schema: the columns that are kept of the rows, in any order.
        bucket_of: looks at the rows' other columns too.
        num_buckets: so many that the rows of one are no more than a partition.
        title: of the progress bar.
        whole: whether `rows` needs all rows of a partition at once.

    Memory: of each worker three times a partition's rows. On disk all rows, until the dataset goes.
    """
    spool, backend = Spool(GROUP_BYTES), active().resolve(dataset.backend)
    work = _Writer(spool, rows, tuple(schema), backend, bucket_of, num_buckets)
    runs = list(over_partitions(work, dataset, backend, title, whole=whole))
    spans: list[list[Span]] = [[] for _ in range(num_buckets)]
    for number, run in enumerate(runs):
        for group, (first_row, (bucket, num_rows)) in enumerate(zip(run.first_rows, run.groups, strict=True)):
            spans[bucket].append(Span(number, group, first_row, num_rows))
    partitions = [
        Partition(bucket, tuple(own), f"bucket {bucket} of {num_buckets}") for bucket, own in enumerate(spans)
    ]
    source = Spooled(dict(enumerate(runs)), partitions, schema, None, None, spool)
    source.notes = dataset.source.notes
    return replace(dataset, source=source, schema=schema, query=EVERYTHING)


@dataclass(frozen=True)
class _Writer:
    """Write the rows of a partition to a file, those of each bucket in row groups of their own."""

    spool: Spool
    rows: Rows
    fields: tuple[Field, ...]
    backend: str
    bucket_of: BucketOf
    num_buckets: int

    def __call__(self, part: Dataset) -> Run:
        self.spool.check()
        backend = select(self.backend)
        frame, counts = self._in_buckets(self.rows(part, backend), backend)
        table = host_table(frame, self.fields, backend)
        path = self.spool.folder / f"{uuid.uuid4().hex}.parquet"
        groups: list[tuple[int, int]] = []
        # Dictionaries of floats cost more than they save; nobody asks for statistics of a temporary file.
        fields = [item for item in self.fields if (element_of(item.dtype) or item.dtype) not in FLOATS]
        coded = [parquet_path(item) for item in fields]
        options: dict[str, Any] = {"use_dictionary": coded, "write_statistics": False}
        with writing_scratch(path.parent), pq.ParquetWriter(path, table.schema, **options) as writer:
            for bucket, (start, count) in enumerate(zip(accumulate(counts, initial=0), counts, strict=False)):
                if count:
                    writer.write_table(table.slice(start, count), row_group_size=count)
                    groups.append((bucket, count))
        size = path.stat().st_size
        return Run(self.spool.keep(path), size, tuple(groups))

    def _in_buckets(self, frame: Frame, backend: Backend) -> tuple[Frame, list[int]]:
        """The rows by bucket, and how many there are of each."""
        xp, buckets = backend.xp, self.bucket_of(frame, backend)
        counts = backend.to_host(xp.bincount(buckets, minlength=self.num_buckets)).tolist()
        return backend.take(frame, xp.argsort(buckets, kind="stable")), counts
