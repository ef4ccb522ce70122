"""Table: a source of partitions, a schema and a query; the base of `Dataset`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from gpupipe.backend import Backend, Frame, select
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.planning.partitions import Partition, RowRange, Source
from gpupipe.io.planning.query import EVERYTHING, FrameFunction, Mapped, Query
from gpupipe.io.planning.statistics import Condition, excludes
from gpupipe.schema import Schema
from gpupipe.support.text import as_list

__all__ = ["AnyTable", "Table"]

AnyTable = TypeVar("AnyTable", bound="Table")


@dataclass(frozen=True, repr=False, eq=False)
class Table:
    """Lazy, immutable table in partitions: what modules below `Dataset` need of one.

    Args:
        source: gives the rows of each partition.
        schema: the columns that come out.
        backend: computes them.
        query: what is done to the rows of the source.
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
    def partitions(self) -> list[Partition]:
        """The partitions it is read in, at least one; row groups that statistics exclude are left out."""
        # Not a cached_property, whose one lock for all datasets would be held while a pass or a plan runs.
        if "_partitions" not in vars(self):
            found, conditions = list(self.source.partitions), self.query.conditions
            if conditions:
                kept = [p.keep(s for s in p.spans if self._may_hold(s, conditions)) for p in found]
                found = [partition for partition in kept if partition.spans] or kept[:1]
            vars(self)["_partitions"] = found
        return list(vars(self)["_partitions"])

    @property
    def num_partitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    def read(self, partition: Partition, columns: Sequence[str] | None = None, backend: Backend | None = None) -> Frame:
        """Read one partition as a coded frame of these columns (all by default), in this order.

        The index says which of the partition's rows they are. Of the files, only these columns and those that
        predicates look at are read.

        Raises:
            ColumnNotFound: one of `columns` is not there.
            BadFile: the partition cannot be read.
        """
        names = self.columns if columns is None else as_list(columns)
        self.require(names, "read")
        backend = backend or select(self.backend)
        wanted = self.query.reads(names)
        fields = [item for item in self.source.schema if item.name in wanted]
        return self.query.run(self.source.read(partition, fields, backend), partition, names, backend)

    def parts(self) -> Iterator[Self]:
        """Yield a dataset for each partition, which holds no more of the source than it needs."""
        for partition in self.partitions:
            yield self.of_partitions([partition])

    def of_partitions(self, partitions: Sequence[Partition]) -> Self:
        """Return the rows of these partitions only, which are this dataset's own or pieces of them."""
        return replace(self, source=self.source.only(partitions))

    def of_files(self, names: AbstractSet[str]) -> Self:
        """Return the rows of these files only."""
        return replace(self, source=self.source.of_files(names))

    def job_id(self, *options: object) -> str | None:
        """Return an id of this table's computation, without its files; None where a function has no name."""
        query, made_by = self.query.identity(), self.source.made_by
        if query is None or made_by is None:
            return None
        facts = repr((made_by, query, self.schema.to_json(), [item.dtype for item in self.source.schema], options))
        return hashlib.sha256(facts.encode()).hexdigest()

    def map_frames(
        self,
        function: FrameFunction,
        schema: Schema,
        reads: str | Sequence[str],
        *,
        keeps_rows: bool = False,
        backend: str | None = None,
        identity: Callable[[], str | None] = lambda: None,
        draws_rows: bool = False,
        own: Iterable[str] = (),
    ) -> Self:
        """Return a dataset whose partitions are `function(frame, backend)` of this one's.

        Args:
            function: from a coded frame to a coded frame with the columns of `schema`; a pure map over rows.
            schema: the new dataset's columns.
            reads: the columns the function is given.
            keeps_rows: whether as many rows come out as go in, so that they need not be counted.
            backend: the new dataset's own; this one's by default.
            identity: gives what tells the function apart from any other, so that a job can be resumed.
            draws_rows: whether it has a third argument, the identities (uint64) of the rows that the index counts.
            own: the columns that come out in memory nobody else holds, which need no copy for a user.
        """
        self.require(reads, "map_frames")
        query = self.query.then(Mapped(function, frozenset(reads), keeps_rows, identity, draws_rows, frozenset(own)))
        return replace(self, schema=schema, query=query, backend=backend or self.backend)

    def require(self, names: str | Sequence[str], where: str) -> None:
        """Raise an error that names `where` unless all of `names` are columns; see `select`."""
        given: Any = names
        if not isinstance(given, Iterable) or getattr(given, "shape", None) == ():
            expected, remedy = "a column's name, or a list of them", f"{self.columns[:1]}"
            raise BadConfig(where, "not names of columns", got=given, expected=expected, remedy=remedy)
        for name in as_list(given):
            if not isinstance(name, str):
                raise ColumnNotFound.among(where, name, self.columns)
        for name in (name for name in as_list(names) if name not in self.schema):
            if name in self.source.left_out and self.query.keeps_columns:
                raise SchemaMismatch(
                    f"column {name!r}",
                    "it was left out, as no column here can hold such values",
                    got=self.source.left_out[name],
                    expected="a type of the table in docs/guide-files.md",
                    remedy="a column of another type made from it before",
                )
            raise ColumnNotFound.among(where, name, self.columns)

    def _may_hold(self, span: RowRange, conditions: Sequence[Condition]) -> bool:
        for condition in conditions:
            bounds = self.source.bounds(span, condition[0])
            if bounds is not None and excludes(condition, bounds, self.source.schema[condition[0]]):
                return False
        return True
