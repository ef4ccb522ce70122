"""Table: a source of partitions, a schema, and a query of selections and functions; the base of `Dataset`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias, TypeVar

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.planning.partitions import Partition, RowRange, Source
from gpupipe.io.planning.row_filters import Between, RandomSplit, RowIdFilter, Selection, StratifiedSplit
from gpupipe.io.planning.statistics import Condition, excludes
from gpupipe.schema import Schema
from gpupipe.support.text import as_list

FrameFunction: TypeAlias = Callable[..., Frame]


@dataclass(frozen=True)
class Mapped:
    """Function whose result replaces the frame.

    Args:
        function: of a coded frame with the columns `reads`, and its backend.
        reads: the columns it is given.
        keeps_rows: whether as many rows come out as go in.
        identity: gives a text that tells the function apart from any other, in any process; None where nothing does.
        draws_rows: whether it is given, as third argument, the identities of the rows that the frame's index counts.
        own: the columns that come out in memory nobody else holds.
    """

    function: FrameFunction
    reads: frozenset[str]
    keeps_rows: bool
    identity: Callable[[], str | None] = lambda: None
    draws_rows: bool = False
    own: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Query:
    """Query: first selections by row id, which apply to the source's rows; then the stages in order."""

    draws: tuple[RandomSplit | RowIdFilter, ...] = ()
    stages: tuple[Selection | Mapped, ...] = ()

    def then(self, stage: Selection | Mapped | RowIdFilter) -> Query:
        """Return the query with one more selection or function."""
        if isinstance(stage, RowIdFilter) or (isinstance(stage, RandomSplit) and stage.by is None):
            return replace(self, draws=(*self.draws, stage))
        return replace(self, stages=(*self.stages, stage))

    @property
    def keeps_rows(self) -> bool:
        """Whether as many rows come out as the source has."""
        return not self.draws and all(isinstance(stage, Mapped) and stage.keeps_rows for stage in self.stages)

    @property
    def repeats_rows(self) -> bool:
        """Whether a source row may become several rows, which would have its row id in common."""
        return any(isinstance(stage, Mapped) and not stage.keeps_rows for stage in self.stages)

    @property
    def own(self) -> frozenset[str]:
        """The columns that come out in memory nobody else references; selections may return their input or copy it."""
        return next((stage.own for stage in reversed(self.stages) if isinstance(stage, Mapped)), frozenset())

    @property
    def keeps_columns(self) -> bool:
        """Whether the columns are still the source's."""
        return not any(isinstance(stage, Mapped) for stage in self.stages)

    def identity(self) -> str | None:
        """Return an id of this query, equal in any process; None where a function has no name."""
        parts = [stage.identity() if isinstance(stage, Mapped) else repr(stage) for stage in self.stages]
        return None if None in parts else repr((self.draws, parts))

    @property
    def num_draws(self) -> int:
        """How many random draws were made."""
        return sum(isinstance(stage, RandomSplit) for stage in (*self.draws, *self.stages))

    def cuts_history(self, keys: Sequence[str]) -> bool:
        """Return whether a split has removed rows that precede or separate others with the same keys."""
        stages = (*self.draws, *self.stages)
        later = any(isinstance(stage, Between) and stage.low is not None for stage in stages)
        return later or any(isinstance(stage, RandomSplit) and stage.by not in keys for stage in stages)

    @property
    def conditions(self) -> list[Condition]:
        """What holds for the source's columns in every row that comes out."""
        found: list[Condition] = []
        for stage in self.stages:
            if isinstance(stage, Mapped):
                break
            found += stage.conditions
        return found

    def reads(self, names: Sequence[str]) -> set[str]:
        """Return the source's columns needed to compute `names`."""
        return self._needed(names)[0]

    def run(self, frame: Frame, partition: Partition, names: Sequence[str], backend: Backend) -> Frame:
        """Compute the columns `names` of a partition; `frame` holds the columns `reads(names)` as read."""
        if self.draws:
            frame = backend.filter(frame, self.drawn(partition, backend))
        for stage, needed in zip(self.stages, self._needed(names)[1:], strict=True):
            if isinstance(stage, Mapped):
                ids = [partition.row_ids(backend.xp)] if stage.draws_rows else []
                frame = stage.function(_select_existing(frame, stage.reads, backend), backend, *ids)
            else:
                if isinstance(stage, StratifiedSplit):
                    keep = stage.keep_drawn(frame, partition.row_ids(backend.xp), backend)
                else:
                    keep = stage.keep(frame, backend)
                frame = backend.filter(_select_existing(frame, needed, backend), keep)
        return backend.select(frame, names)

    def drawn(self, partition: Partition, backend: Backend) -> Array:
        """Compute a boolean per row of a partition: whether all selections by row id keep it; there is at least one."""
        row_ids = partition.row_ids(backend.xp)
        keep, *others = (draw.keep_rows(row_ids, backend) for draw in self.draws)
        for other in others:
            keep = keep & other
        return keep

    def _needed(self, names: Sequence[str]) -> list[set[str]]:
        """List the columns needed before the first stage, after it, and so on to the last."""
        needed = [set(names)]
        for stage in reversed(self.stages):
            needed.append(set(stage.reads) if isinstance(stage, Mapped) else needed[-1] | stage.reads)
        return needed[::-1]


EVERYTHING = Query()


def _select_existing(frame: Frame, names: frozenset[str] | set[str], backend: Backend) -> Frame:
    return backend.select(frame, [name for name in frame.columns if name in names])


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
