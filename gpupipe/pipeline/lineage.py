"""Lineage id: identifies a dataset's rows, so that the rows of a fit are recognized later."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy

from gpupipe.backend import select
from gpupipe.backend.hashing import hash_column
from gpupipe.io import Dataset
from gpupipe.io.planning.partitions import ReadCounter, Source


def compute_lineage(dataset: Dataset, names: Sequence[str]) -> str | None:
    """Compute the id of a dataset's rows, the same under any partitioning; None where its query has no id.

    Files are known by their stamps; rows in memory by what they hold in these columns.

    Args:
        dataset: the rows.
        names: the columns that matter; where one is not there, there is no id.

    Memory: 8 bytes a row of a partition in memory at a time; files are not read.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> frame = pd.DataFrame({"x": range(4)})
        >>> parts = [gp.from_frame(frame, num_partitions=n) for n in (1, 3)]
        >>> one, other, fewer = (compute_lineage(part, ["x"]) for part in [*parts, parts[0].filter("x > 1")])
        >>> one == other != fewer
        True
    """
    query, source = dataset.query.identity(), dataset.source
    if query is None or source.made_by is None or any(name not in dataset.schema for name in names):
        return None
    inputs = source.inputs()
    rows: object = (source.made_by, sorted(inputs.items())) if inputs is not None else None
    if rows is None:
        rows = _contents(source, dataset.query.reads(names))
    return hashlib.sha256(repr((rows, query)).encode()).hexdigest()


def _contents(source: Source, names: set[str]) -> list[str]:
    """Compute a digest of each of these columns, in row order."""
    quiet, backend, read = copy(source), select("cpu"), sorted(names)
    quiet.reads = ReadCounter()  # this is no pass over the data
    digests = [hashlib.sha256(name.encode()) for name in read]
    for partition in quiet.partitions:
        frame = quiet.read(partition, [source.schema[name] for name in read], backend)
        for name, digest in zip(read, digests, strict=True):
            digest.update(hash_column(backend.column(frame, name), 0, backend).tobytes())
    return [digest.hexdigest() for digest in digests]
