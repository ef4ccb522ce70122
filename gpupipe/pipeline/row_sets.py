"""Row sets: which rows of which tables a dataset holds, to tell whether another one may share some of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import pyarrow as pa

from gpupipe.backend import select
from gpupipe.backend.kernels import hash_column
from gpupipe.io import Dataset
from gpupipe.io.planning.partitions import ReadCounter
from gpupipe.schema import DTYPES
from gpupipe.support.origins import are_related, has_values, is_of_row, name_table


@dataclass(frozen=True)
class RowSet:
    """Rows by the tables, or parts of tables, that they are of, the filters they have passed, and their files' stamps.

    Labels that a join has brought are of another table; the rows that found them are told by the keys, too.
    """

    parts: Mapping[str, frozenset[str]]  # by table the names of its parts, which begin with the table's
    filters: frozenset[str]
    stamps: Mapping[str, str]

    @classmethod
    def of(cls, dataset: Dataset, names: Iterable[str]) -> RowSet:
        """Describe a dataset's rows, by those of the columns that it has."""
        schema = dataset.locate_origins()
        origins = [origin for name in names if name in schema for origin in schema[name].origins]
        own_rows = [origin for origin in origins if is_of_row(origin)]
        if not own_rows:  # the other columns tell which rows these are, where the target is tomorrow's value
            own_rows = [origin for item in schema for origin in item.origins if is_of_row(origin)]
        parts = dict[str, frozenset[str]]()
        for table in {name_table(origin) for origin in filter(has_values, origins)}:
            for each in (own_rows, origins):
                parts[table] = parts.get(table) or frozenset(o.table for o in each if name_table(o) == table)
        return cls(parts, dataset.filters, dataset.source.inputs() or {})

    def may_share(self, other: RowSet | None) -> bool:
        """Whether rows may be in both: of one table, and not of two parts of it; False where there is no other one.

        Of rows that passed other filters nobody knows; a file that was written anew holds other rows.
        """
        if other is None:
            return False
        stamps = other.stamps
        if any(stamps[name] != stamp for name, stamp in self.stamps.items() if name in stamps):
            return False
        is_nested = self.filters <= other.filters or other.filters <= self.filters
        common = self.parts.keys() & other.parts.keys()
        return (
            bool(common)
            and is_nested
            and all(
                any(are_related(part, other_part) for part in self.parts[table] for other_part in other.parts[table])
                for table in common
            )
        )


def compute_lineage(dataset: Dataset, names: Sequence[str]) -> str | None:
    """Compute the id of a dataset's rows: files by their stamps, rows in memory by these columns; None without one."""
    query, source = dataset.query.identity(), dataset.source
    if query is None or source.made_by is None or any(name not in dataset.schema for name in names):
        return None
    inputs = source.inputs()
    if inputs is not None:
        return hashlib.sha256(repr(((source.made_by, sorted(inputs.items())), query)).encode()).hexdigest()
    quiet, backend, fields = copy(source), select("cpu"), source.schema.select(sorted(dataset.query.reads(names)))
    quiet.reads = ReadCounter()  # this is no pass over the data
    digests = [hashlib.sha256(item.name.encode()) for item in fields]
    for partition in quiet.partitions:
        frame = quiet.read(partition, [item for item in fields if item.dtype in DTYPES], backend)
        for item, digest in zip(fields, digests, strict=True):
            if item.dtype in DTYPES:
                digest.update(hash_column(backend.column(frame, item.name), 0, backend).tobytes())
            else:  # lists, and what is only carried, have no hash
                digest.update(_serialize(quiet.table(partition, [item])))
    contents = [digest.hexdigest() for digest in digests]
    return hashlib.sha256(repr((contents, query)).encode()).hexdigest()


def _serialize(table: pa.Table) -> pa.Buffer:
    """Serialize a table to Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()
