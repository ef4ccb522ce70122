"""Rows of several datasets one after the other."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from itertools import accumulate, chain, groupby
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.io.dataset import Dataset, as_dataset
from gpupipe.io.planning.partitions import FILE_SHIFT, Partition, ReadCounter, RowRange, row_bytes
from gpupipe.io.planning.query import EVERYTHING, Mapped
from gpupipe.io.planning.row_filters import Bounds
from gpupipe.io.planning.table import Source, Table, identify_job
from gpupipe.io.stores import FileNote, Listing
from gpupipe.schema import FLOATS, INTEGERS, Field, Role, Schema, shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.origins import Origin, are_related, has_values, is_of_row, name_memory, name_table, tell_parts
from gpupipe.support.validation import is_sequence


@answer_calls
def concat(datasets: Sequence[Any]) -> Dataset:
    """Return the rows of datasets (or frames) one after the other, in their partitions; nothing is read.

    All have the same columns, of the same types; the first one's order is taken. A row's identity is the place of its
    dataset in the list, its file and its number there, so that random splits and samples draw rows of the same file
    anew where a dataset stands twice in the list.

    Raises:
        BadConfig: no list, or an empty one.
        SchemaMismatch: a column is not in all of them, or of another type, time zone or vocabulary; names the dataset.

    Memory: shares; a partition is read when its rows are asked for.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> old, new = pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [3]})
        >>> gp.concat([old, new]).compute()["x"].tolist()
        [1, 2, 3]
    """
    if not is_sequence(datasets) or not len(datasets):
        expected, remedy = "a list of datasets, one at least", "gp.concat([first, second])"
        raise BadConfig("concat", "not a list of datasets", got=datasets, expected=expected, remedy=remedy)
    tables = [as_dataset(dataset) for dataset in datasets]
    schema = _unite_schemas([table.locate_origins() for table in tables])
    queries = {table.query.identity() for table in tables}
    if len(queries) > 1 or None in queries:
        schema = Schema(item.replace(origins=tell_parts(item.origins)) for item in schema)
    schema = _add_part_labels(schema, tables)
    return replace(tables[0], source=ConcatSource(tables, schema), schema=schema, query=EVERYTHING)


def _add_part_labels(schema: Schema, tables: Sequence[Table]) -> Schema:
    """Add the result as an origin of each column that is a constant in one of the tables, and so tells its rows apart.

    Of `label="1"` of what was bought, and `label="0"` of what was not, a copy of `label` is no feature of it.
    """
    constants = {item.name for table in tables for item in table.schema if not any(map(has_values, item.origins))}
    if not constants or len(tables) == 1:
        return schema
    jobs = [identify_job(table) for table in tables]
    name = name_memory("" if None in jobs else repr(jobs))
    return schema.assign(
        schema[constant].replace(origins=schema[constant].origins | {Origin(name, constant)}) for constant in constants
    )


def _find_repeated(tables: Sequence[Table]) -> frozenset[str]:
    """Find the tables of which a row may be in several of these, as where rows of a rare class are put in again."""
    repeated = {name for table in tables for name in table.source.repeated}
    earlier_parts = dict[str, set[str]]()
    for table in tables:
        origins = (origin for item in table.locate_origins() for origin in item.origins)
        parts = {origin.table: name_table(origin) for origin in origins if is_of_row(origin)}
        for part, name in parts.items():
            if any(are_related(part, earlier) for earlier in earlier_parts.get(name, ())):
                repeated.add(name)
        for part, name in parts.items():
            earlier_parts.setdefault(name, set()).add(part)
    return frozenset(repeated)


def _unite_schemas(schemas: Sequence[Schema]) -> Schema:
    """Return the schema of all rows, or raise for the first column that is not alike in all of them."""
    first, *remainder = schemas
    for number, schema in enumerate(remainder, 2):
        first_names, schema_names = set(first.names), set(schema.names)
        if first_names != schema_names:
            lacking = [(n, s) for n, s in ((number, first_names - schema_names), (1, schema_names - first_names)) if s]
            position, names = lacking[0]
            common = [name for name in first.names if name in schema_names]
            remedy = f"select({common}) of each dataset before" if common else "join, for tables of other columns"
            problem = f"dataset {position} has no column {shorten_list(map(repr, sorted(names)))}"
            raise SchemaMismatch("concat", problem, expected="the same columns in all datasets", remedy=remedy)
        for item in first:
            _require_alike(item, schema[item.name], number)
    return Schema(_unite_fields([schema[item.name] for schema in schemas]) for item in first)


def _require_alike(item: Field, other: Field, number: int) -> None:
    column, expected = f"column {item.name!r}", "the same type in all datasets"
    if item.dtype != other.dtype:
        problem = f"{column} is {other.dtype} in dataset {number}, and {item.dtype} in dataset 1"
        common = _choose_common(item.dtype, other.dtype)
        which = " and ".join(str(n) for n, dtype in ((1, item.dtype), (number, other.dtype)) if dtype != common)
        cast = f"T.Cast({{{item.name!r}: {common!r}}})"
        remedy = f"gp.Pipeline([{cast}]).fit(data).transform(data) of dataset {which} before"
        raise SchemaMismatch("concat", problem, got=other.dtype, expected=expected, remedy=remedy)
    if item.zone != other.zone:
        zones = f"{other.zone or 'no time zone'} in dataset {number}, and {item.zone or 'no time zone'} in dataset 1"
        remedy = "tz_localize or tz_convert of the frame before"
        raise SchemaMismatch("concat", f"{column} has {zones}", expected="the same time zone", remedy=remedy)
    if (item.kind, item.cardinality, item.classes) != (other.kind, other.cardinality, other.classes):
        problem = f"{column} has the ids or classes of another fit in dataset {number} than in dataset 1"
        remedy = "gp.concat of the raw data, then one pipeline's transform"
        raise SchemaMismatch("concat", problem, expected="one vocabulary", remedy=remedy)


def _choose_common(dtype: str, other: str) -> str:
    """Choose the type that holds the values of both: text, or of numbers the wider; else the first one."""
    numbers = {*INTEGERS, *FLOATS, "bool"}
    if {dtype, other} <= numbers:
        return np.result_type(dtype, other).name
    return "string" if "string" in (dtype, other) else dtype


def _unite_fields(fields: Sequence[Field]) -> Field:
    first, *_ = fields
    written_as = {item.written_as for item in fields}
    return replace(
        first if len(written_as) == 1 else first.with_instants(),
        nullable=any(item.nullable for item in fields),
        lineage=frozenset().union(*(item.lineage for item in fields)),
        origins=frozenset().union(*(item.origins for item in fields)),
        step=next((item.step for item in fields if not item.is_unchanged), first.step),
        role=Role.LABEL if any(item.role == Role.LABEL for item in fields) else first.role,
        units=first.units if len({item.units for item in fields}) == 1 else "",
    )


class ConcatSource(Source):
    """Source of the rows of tables, each with its own query; row ids have the table's place above the file."""

    def __init__(self, tables: Sequence[Table], schema: Schema) -> None:
        jobs = [identify_job(table) for table in tables]
        facts = hashlib.sha256(repr(jobs).encode()).hexdigest()
        self.schema, self.made_by = schema, None if None in jobs else f"concat {facts}"
        self.reads = ReadCounter()
        self.left_out: Mapping[str, str] = {
            name: kind for table in tables for name, kind in table.source.left_out.items()
        }
        self.notes: Sequence[FileNote] = [note for table in tables for note in table.source.notes]
        self.queries = [query for table in tables for query in table.queries]
        self.filters = frozenset[str].intersection(*(table.filters for table in tables))
        self.repeated = _find_repeated(tables)
        self.listings = frozenset[Listing]().union(*(table.listings for table in tables))
        self._tables: dict[int, Table] = dict(enumerate(tables))
        self._first_files: list[int] | None = None
        self._partitions: list[Partition] | None = None

    @property
    def partitions(self) -> Sequence[Partition]:
        if self._partitions is None:  # a plan among the tables runs now
            shifted = [
                replace(partition, spans=tuple(_shift(span, self._starts[number]) for span in partition.spans))
                for number, table in self._tables.items()
                for partition in table.partitions
            ]
            self._partitions = [replace(partition, index=index) for index, partition in enumerate(shifted)]
        return self._partitions

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Read these columns of a partition: the rows that each table's query keeps, with their row numbers."""
        names, xp = [item.name for item in fields], backend.xp
        self.reads.add(partition.spans, names, partition.num_rows * row_bytes(fields))
        frames, positions, first_row = [], [], 0
        for number, part in self._cut(partition):
            frames.append(self._tables[number].read(part, names, backend))
            positions.append(backend.positions(frames[-1]) + first_row)
            first_row += part.num_rows
        if len(frames) == 1:
            return frames[0]
        whole, rows = backend.concat(frames), backend.take(backend.frame({}, first_row), xp.concatenate(positions))
        return backend.assign(rows, {name: backend.column(whole, name) for name in names})

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        cpu = select("cpu")
        return cpu.to_arrow(self.read(partition, fields, cpu))

    def bounds(self, span: RowRange, name: str) -> Bounds | None:
        number = self._find_table(span)
        table = self._tables[number]
        if any(isinstance(stage, Mapped) for stage in table.query.stages):
            return None
        return table.source.bounds(_shift(span, -self._starts[number]), name)

    def null_count(self, name: str) -> int | None:
        counts = [
            table.source.null_count(name) if table.query == EVERYTHING else None for table in self._tables.values()
        ]
        return None if None in counts else sum(count or 0 for count in counts)

    def only(self, partitions: Sequence[Partition]) -> Self:
        parts: dict[int, list[Partition]] = {number: [] for number in list(self._tables)[:1]}
        for partition in partitions:
            for number, part in self._cut(partition):
                parts.setdefault(number, []).append(part)
        tables = {number: self._tables[number].of_partitions(group) for number, group in sorted(parts.items())}
        return self._with(tables, list(partitions))

    def inputs(self) -> dict[str, str] | None:
        stamps = [table.source.inputs() for table in self._tables.values()]
        return None if None in stamps else {name: stamp for part in stamps for name, stamp in (part or {}).items()}

    def of_files(self, names: AbstractSet[str]) -> Self:
        files = {number: names & (table.source.inputs() or {}).keys() for number, table in self._tables.items()}
        tables = {
            n: replace(self._tables[n], source=self._tables[n].source.of_files(paths))
            for n, paths in files.items()
            if paths
        }
        return self._with(tables, None)

    def files_of(self, partition: Partition) -> list[str]:
        files = (self._tables[number].source.files_of(part) for number, part in self._cut(partition))
        return list(dict.fromkeys(chain.from_iterable(files)))

    def _with(self, tables: dict[int, Table], partitions: list[Partition] | None) -> Self:
        part = copy(self)
        queries = [query for table in tables.values() for query in table.queries]
        vars(part).update(_tables=tables, _partitions=partitions, _first_files=self._starts, queries=queries)
        return part

    @property
    def _starts(self) -> list[int]:
        """The number of each table's first file among those of all tables."""
        if self._first_files is None:
            spans = [
                [span for part in table.source.partitions for span in part.spans] for table in self._tables.values()
            ]
            counts = [1 + max((max(s.file, s.identity >> FILE_SHIFT) for s in group), default=0) for group in spans]
            self._first_files = list(accumulate(counts, initial=0))[:-1]
        return self._first_files

    def _find_table(self, span: RowRange) -> int:
        return bisect_right(self._starts, span.file) - 1

    def _cut(self, partition: Partition) -> list[tuple[int, Partition]]:
        """Cut a partition into one for each table that it has rows of, as the table knows it; one at least."""
        parts = [
            (number, partition.keep(_shift(span, -self._starts[number]) for span in spans))
            for number, spans in groupby(partition.spans, self._find_table)
        ]
        return parts or [(next(iter(self._tables)), partition)]


def _shift(span: RowRange, files: int) -> RowRange:
    """Move a span by a number of files."""
    first_id = None if span.first_id is None else span.first_id + (files << FILE_SHIFT)
    return replace(span, file=span.file + files, first_id=first_id)
