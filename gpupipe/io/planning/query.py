"""Query: what is done to the rows of a source, selections and functions of frames in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, NoReturn, TypeAlias

from gpupipe.backend import Array, Backend, Frame
from gpupipe.errors import AttributeNotFound
from gpupipe.expressions.derivation import Derivation
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.planning.row_filters import Between, Condition, RandomSplit, RowIdFilter, Selection, StratifiedSplit
from gpupipe.io.stores import Listing

FrameFunction: TypeAlias = Callable[..., Frame]


@dataclass(frozen=True)
class Mapped:
    """Function of a coded frame with the columns `reads`, and its backend, whose result replaces the frame."""

    function: FrameFunction
    reads: frozenset[str]
    keeps_rows: bool  # whether as many rows come out as go in
    identity: Callable[[], str | None] = lambda: None  # tells it apart in any process; None where nothing does
    draws_rows: bool = False  # whether it is given, as third argument, the identities of the rows the index counts
    owned_columns: frozenset[str] = frozenset()  # the columns that come out in memory nobody else holds
    listings: frozenset[Listing] = frozenset()  # the folders and patterns of other tables that it looks rows up in
    adds_rows: bool = False  # whether more rows may come out than go in

    def needs(self, outputs: AbstractSet[str]) -> AbstractSet[str]:
        """Return the columns it is given for `outputs`."""
        return self.reads

    def run(self, frame: Frame, outputs: AbstractSet[str], backend: Backend, row_ids: Sequence[Array]) -> Frame:
        """Compute a frame that holds `outputs` from one of the columns it needs."""
        return self.function(frame, backend, *row_ids)


@dataclass(frozen=True)
class Assigned(Mapped):
    """Expressions whose columns are added to a coded frame, each computed where it is used."""

    function: Derivation

    def needs(self, outputs: AbstractSet[str]) -> AbstractSet[str]:
        return self.function.trace(outputs)[0]

    def run(self, frame: Frame, outputs: AbstractSet[str], backend: Backend, row_ids: Sequence[Array]) -> Frame:
        return self.function(frame, outputs, backend)


@dataclass(frozen=True)
class Query:
    """Query: first selections by row id, which apply to the source's rows; then the stages in order."""

    draws: tuple[RandomSplit | RowIdFilter, ...] = ()
    stages: tuple[Selection | Mapped, ...] = ()

    def __call__(self, condition: object = "x > 0", **_: Any) -> NoReturn:
        """Raise AttributeNotFound: pandas calls `frame.query(condition)` what a Dataset calls `filter`."""
        remedy = f"data.filter({condition!r})"
        raise AttributeNotFound("Dataset.query", "a Dataset has no such method", expected="filter", remedy=remedy)

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
    def adds_rows(self) -> bool:
        """Whether more rows may come out than the source has."""
        return any(isinstance(stage, Mapped) and stage.adds_rows for stage in self.stages)

    @property
    def owned_columns(self) -> frozenset[str]:
        """The columns that come out in memory nobody else references; selections may return their input or copy it."""
        return next((stage.owned_columns for stage in reversed(self.stages) if isinstance(stage, Mapped)), frozenset())

    def identity(self) -> str | None:
        """Return an id of this query, equal in any process; None where a function has no name."""
        parts = [stage.identity() if isinstance(stage, Mapped) else repr(stage) for stage in self.stages]
        return None if None in parts else repr((self.draws, parts))

    @property
    def num_draws(self) -> int:
        """How many random draws were made."""
        return sum(isinstance(stage, RandomSplit) for stage in (*self.draws, *self.stages))

    @property
    def group_columns(self) -> list[str]:
        """The columns by whose groups rows were drawn: of a group all rows or none."""
        draws = (stage for stage in self.stages if isinstance(stage, RandomSplit))
        return [draw.by for draw in draws if draw.by and not isinstance(draw, StratifiedSplit)]

    def cuts_history(self, keys: Sequence[str]) -> bool:
        """Return whether a split has removed rows that precede or separate others with the same keys."""
        stages = (*self.draws, *self.stages)
        later = any(isinstance(stage, Between) and stage.low is not None for stage in stages)
        return later or any(isinstance(stage, RandomSplit) and stage.by not in keys for stage in stages)

    @property
    def conditions(self) -> list[Condition]:
        """What holds for the source's columns in every row that comes out."""
        return [condition for condition, definitions in self.list_conditions() if not definitions]

    def list_conditions(self, *, behind_functions: bool = False) -> list[tuple[Condition, str]]:
        """List what holds in every row that comes out, each with what its column was computed by, if it was.

        That are expressions, and `behind_functions` such as a pipeline's, too, if they are known in any process and
        give at most one row for each.
        """
        conditions, definitions, is_behind = list[tuple[Condition, str]](), list[tuple[str, str]](), False
        for stage in self.stages:
            if isinstance(stage, Assigned):
                definitions += stage.function.named.items()
            elif isinstance(stage, Mapped):
                identity = None if not behind_functions or stage.adds_rows else stage.identity()
                if identity is None:
                    break
                definitions.append(("", identity))
                is_behind = True
            else:
                names = {name for name, _ in definitions}
                computed = repr(definitions)
                conditions += [(each, computed if is_behind or each[0] in names else "") for each in stage.conditions]
        return conditions

    def reads(self, names: Sequence[str]) -> set[str]:
        """Return the source's columns needed to compute `names`."""
        return self._needed(names)[0]

    def run(self, frame: Frame, partition: Partition, names: Sequence[str], backend: Backend) -> Frame:
        """Compute the columns `names` of a partition; `frame` holds the columns `reads(names)` as read."""
        if self.draws:
            frame = backend.filter(frame, self.drawn(partition, backend)[backend.positions(frame)])
        for stage, needed in zip(self.stages, self._needed(names)[1:], strict=True):
            if isinstance(stage, Mapped):
                ids = [partition.row_ids(backend.xp)] if stage.draws_rows else []
                frame = stage.run(_select_existing(frame, stage.needs(needed), backend), needed, backend, ids)
            else:
                keep = stage.keep(frame, partition, backend)
                frame = backend.filter(_select_existing(frame, needed, backend), keep)
        return backend.select(frame, names)

    def drawn(self, partition: Partition, backend: Backend) -> Array:
        """Compute a boolean per row of a partition: whether all selections by row id keep it; there is at least one."""
        row_ids = partition.row_ids(backend.xp)
        return reduce(and_, (draw.keep_rows(row_ids, backend) for draw in self.draws))

    def _needed(self, names: Sequence[str]) -> list[set[str]]:
        """List the columns needed before the first stage, after it, and so on to the last."""
        needed = [set(names)]
        for stage in reversed(self.stages):
            needed.append(set(stage.needs(needed[-1])) if isinstance(stage, Mapped) else needed[-1] | stage.reads)
        return needed[::-1]


EVERYTHING = Query()


def _select_existing(frame: Frame, names: AbstractSet[str], backend: Backend) -> Frame:
    return backend.select(frame, [name for name in frame.columns if name in names])
