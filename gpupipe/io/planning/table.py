"""Table: a source in partitions, a schema and a query of selections and functions, the base of `Dataset`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.arrow import INDEX
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.planning.partitions import Partition, ReadCounter, RowRange
from gpupipe.io.planning.query import EVERYTHING, FrameFunction, Mapped, Query
from gpupipe.io.planning.row_filters import Between, Bounds, Condition, RandomSplit, Where, excludes, name_ranges
from gpupipe.io.stores import FileNote, Listing
from gpupipe.schema import Field, Schema
from gpupipe.support.origins import When, cut_out, name_table
from gpupipe.support.validation import as_list


class Source(Protocol):
    """Base class of a Dataset's sources: columns of known dtypes in partitions of whole spans, one at least."""

    schema: Schema
    left_out: Mapping[str, str]  # columns that are there and not carried, and their type
    notes: Sequence[FileNote]  # the files and columns that are skipped or converted
    reads: ReadCounter
    queries: Sequence[Query] = ()  # those that its partitions have been through, where tables are put together
    filters: frozenset[str] = frozenset()  # those that all its rows have passed before
    repeated: frozenset[str] = frozenset()  # the tables of which one row may be in several of its rows
    listings: frozenset[Listing] = frozenset()  # the folders and patterns that name its files
    # What made the rows out of the inputs, the same text in any process; empty where they are as they lie in files,
    # None where a function that made them has no name.
    made_by: str | None

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions it is read in, at least one."""

    def read(self, partition: Partition, fields: Sequence[Field], backend: Backend) -> Frame:
        """Read a partition as a coded frame of exactly these columns, with row numbers from 0."""

    def table(self, partition: Partition, fields: Sequence[Field]) -> pa.Table:
        """Read a partition to the host as Arrow columns: strings plain or as codes, no NaN."""

    def bounds(self, span: RowRange, name: str) -> Bounds | None:
        """Return bounds of all present values of a span; None where only reading would give them."""
        return None

    def null_count(self, name: str) -> int | None:
        """Return the number of missing values of a column; None where only reading would give it."""
        return None if self.schema[name].nullable else 0

    def only(self, partitions: Sequence[Partition]) -> Self:
        """Return the source with these partitions, whose rows are among its own, and no more than they need."""

    def inputs(self) -> dict[str, str] | None:
        """Return a stamp of each file by name, which changes with the file; None where rows come from elsewhere."""
        return None

    def of_files(self, names: AbstractSet[str]) -> Self:
        """Return the source with these of its files only, partitioned anew."""
        return self

    def files_of(self, partition: Partition) -> list[str]:
        """List the files that contain a partition's rows; none for rows from elsewhere."""
        return []


AnyTable = TypeVar("AnyTable", bound="Table")


@dataclass(frozen=True, repr=False, eq=False)
class Table:
    """Lazy, immutable table in partitions: what modules below `Dataset` need of one.

    Its `schema` has the columns that come out when `query` is done to the rows of `source` by `backend`.
    """

    source: Source
    schema: Schema
    backend: str = "auto"
    query: Query = EVERYTHING

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return self.schema.names

    @property
    def queries(self) -> list[Query]:
        """All queries that its rows go through, those of tables that were put together first."""
        return [*self.source.queries, self.query]

    @property
    def keeps_rows(self) -> bool:
        """Whether it has all rows of its partitions."""
        return all(query.keeps_rows for query in self.queries)

    @property
    def repeats_rows(self) -> bool:
        """Whether several rows may have a row id in common."""
        return any(query.repeats_rows for query in self.queries)

    @property
    def adds_rows(self) -> bool:
        """Whether it may have more rows than its partitions."""
        return any(query.adds_rows for query in self.queries)

    @property
    def num_draws(self) -> int:
        """How many random draws were made."""
        return sum(query.num_draws for query in self.queries)

    @property
    def group_columns(self) -> list[str]:
        """The columns by whose groups its rows were drawn, as `split(by="customer", fraction=0.8)` does."""
        return [name for name in dict.fromkeys(self.query.group_columns) if name in self.schema]

    def cuts_history(self, keys: Sequence[str]) -> bool:
        """Return whether a split has removed rows that precede or separate others with the same keys."""
        return any(query.cuts_history(keys) for query in self.queries)

    @property
    def filters(self) -> frozenset[str]:
        """The conditions that all rows have passed."""
        return self.source.filters | {stage.text for stage in self.query.stages if isinstance(stage, Where)}

    @property
    def listings(self) -> frozenset[Listing]:
        """The folders and patterns that name its files, and those of the tables that functions look rows up in."""
        stages = (stage for stage in self.query.stages if isinstance(stage, Mapped))
        return self.source.listings.union(*(stage.listings for stage in stages))

    def locate_origins(self) -> Schema:
        """Return the schema with the origins of this part of the rows, where splits and filters have left out others.

        What is computed of one part, such as the mean of each group in it, tells nothing of the rows of another; what
        was computed before, of all rows. Copies of a row are in one part only where it is cut by a column of that row.
        """
        parts = self._name_parts(None)
        if not parts:
            return self.schema
        of_repeated = {table: self._name_parts(table) for table in self.source.repeated}
        return self.schema.assign(
            item.replace(origins=cut_out(item.origins, parts, of_repeated)) for item in self.schema
        )

    def _name_parts(self, table: str | None) -> list[str]:
        """Name the parts in which these rows are; of a table whose rows have copies those that its columns cut."""

        def has(column: str | None, schema: Schema) -> bool:
            origins = schema[column].origins if column is not None and column in schema else ()
            return table is None or any(o.when == When.NOW and name_table(o) == table for o in origins)

        cuts = (*self.query.draws, *self.query.stages)
        drawn_from = repr(self.source.made_by)  # which gives the rows other identities
        names = [cut.name_part(drawn_from) for cut in cuts if isinstance(cut, Between) and has(cut.column, self.schema)]
        names += [
            cut.name_part(drawn_from) for cut in cuts if isinstance(cut, RandomSplit) and has(cut.by, self.schema)
        ]
        conditions = self.query.list_conditions(behind_functions=True)
        for schema, is_derived in ((self.source.schema, False), (self.schema, True)):
            ranges = [each for each in conditions if bool(each[1]) == is_derived and has(each[0][0], schema)]
            names += name_ranges(ranges, schema, self.source.made_by)
        return names

    @property
    def partitions(self) -> list[Partition]:
        """The partitions it is read in, at least one; row groups that statistics exclude are left out."""
        # Not a cached_property, whose one lock for all datasets would be held while a pass or a plan runs.
        if "_partitions" not in vars(self):
            partitions, conditions = list(self.source.partitions), self.query.conditions
            if conditions:
                pruned_partitions = [p.keep(s for s in p.spans if self._may_hold(s, conditions)) for p in partitions]
                partitions = [partition for partition in pruned_partitions if partition.spans] or pruned_partitions[:1]
            vars(self)["_partitions"] = partitions
        return list(vars(self)["_partitions"])

    @property
    def num_partitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    def read(self, partition: Partition, columns: Sequence[str] | None = None, backend: Backend | None = None) -> Frame:
        """Read one partition as a coded frame of these columns (all by default), in this order.

        The index says which of the partition's rows they are. Of the files, only these columns and those that
        predicates look at are read. Raises ColumnNotFound, and BadFile where the partition cannot be read.
        """
        names = self.columns if columns is None else as_list(columns)
        self.require(names, "read")
        backend = backend or select(self.backend)
        reads = self.query.reads(names)
        fields = [item for item in self.source.schema if item.name in reads]
        return self.query.run(self.source.read(partition, fields, backend), partition, names, backend)

    def of_partitions(self, partitions: Sequence[Partition]) -> Self:
        """Return the rows of these partitions only, which are this dataset's own or pieces of them."""
        return replace(self, source=self.source.only(partitions))

    def require(self, names: str | Sequence[str], where: str) -> None:
        """Raise an error that names `where` unless all of `names` are columns; see `select`."""
        argument: Any = names
        if not isinstance(argument, Iterable) or getattr(argument, "shape", None) == ():
            expected, remedy = "a column's name, or a list of them", f"{self.columns[:1]}"
            raise BadConfig(where, "not names of columns", got=argument, expected=expected, remedy=remedy)
        requested: list[Any] = as_list(argument)
        columns = set(self.columns)
        unknown = [name for name in requested if not (isinstance(name, str) and name in columns)]
        for name in sorted(unknown, key=lambda name: isinstance(name, str)):
            is_own = not any(isinstance(stage, Mapped) for stage in self.query.stages)
            if is_own and isinstance(name, str) and name in self.source.left_out:
                notes = (note for note in self.source.notes if (note.column, note.action) == (name, "left out"))
                reason = next((note.reason.partition(": ")[2] for note in notes), "nothing here carries such values")
                problem, got = f"it was left out, because {reason}", self.source.left_out[name]
                expected = "a column of the first file, of a type in docs/guide-files.md"
                remedy = (
                    "a column of another type made from it before; or on_mismatch='cast' and a file that has it first"
                )
                if self.source.inputs() is None:
                    expected = "values of one type, of those in docs/guide-files.md"
                    remedy = f"pd.to_numeric(frame[{name!r}], errors='coerce') for numbers, "
                    remedy += f"or frame.astype({{{name!r}: 'str'}})"
                if reason.startswith(INDEX):
                    expected, remedy = "a column", "data.reset_index() in pandas, before it is written or given"
                raise SchemaMismatch(f"column {name!r}", problem, got=got, expected=expected, remedy=remedy)
            raise ColumnNotFound.among(where, name, self.columns)

    def _may_hold(self, span: RowRange, conditions: Sequence[Condition]) -> bool:
        for condition in conditions:
            bounds = self.source.bounds(span, condition[0])
            if bounds is not None and excludes(condition, bounds, self.source.schema[condition[0]]):
                return False
        return True


def identify_job(table: Table, *options: object) -> str | None:
    """Return an id of a table's computation, without its files; None where a function has no name.

    Whether a column has missing values is a fact of the files: the first one in a day's file makes no other job.
    """
    query, made_by = table.query.identity(), table.source.made_by
    if query is None or made_by is None:
        return None
    columns = [column | {"nullable": True} for column in table.schema.to_json()]
    facts = repr((made_by, query, columns, [item.dtype for item in table.source.schema], options))
    return hashlib.sha256(facts.encode()).hexdigest()


def map_frames(
    table: AnyTable,
    function: FrameFunction,
    schema: Schema,
    reads: str | Sequence[str],
    *,
    backend: str | None = None,
    owned_columns: Iterable[str] = (),
    keeps_rows: bool = False,
    identity: Callable[[], str | None] = lambda: None,
    draws_rows: bool = False,
    listings: frozenset[Listing] = frozenset(),
    adds_rows: bool = False,
) -> AnyTable:
    """Return a table whose partitions are `function(frame, backend)` of this one's, with the columns of `schema`.

    `backend` is the new table's own, this one's by default. For the other arguments see `Mapped`.
    """
    table.require(reads, "map_frames")
    query = table.query.then(
        Mapped(
            function, frozenset(reads), keeps_rows, identity, draws_rows, frozenset(owned_columns), listings, adds_rows
        )
    )
    return replace(table, schema=schema, query=query, backend=backend or table.backend)
