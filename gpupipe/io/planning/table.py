"""Table: a source, a schema and a query of selections and functions, the base of `Dataset`; passes over partitions."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar

from tqdm import tqdm

from gpupipe.backend import Array, Backend, Frame, is_out_of_memory, select
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig, ColumnNotFound, GpupipeError, PartitionFailed, SchemaMismatch
from gpupipe.io.planning.partitions import Condition, Partition, RowRange, Source, excludes
from gpupipe.io.planning.row_filters import Between, RandomSplit, RowIdFilter, Selection, StratifiedSplit
from gpupipe.schema import Schema
from gpupipe.step import IN_STEP
from gpupipe.support.text import as_list, format_count

FrameFunction: TypeAlias = Callable[..., Frame]
Tell: TypeAlias = Callable[[str], None]
Result = TypeVar("Result")
_log = logging.getLogger("gpupipe")


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

    def of_partitions(self, partitions: Sequence[Partition]) -> Self:
        """Return the rows of these partitions only, which are this dataset's own or pieces of them."""
        return replace(self, source=self.source.only(partitions))

    def require(self, names: str | Sequence[str], where: str) -> None:
        """Raise an error that names `where` unless all of `names` are columns; see `select`."""
        given: Any = names
        if not isinstance(given, Iterable) or getattr(given, "shape", None) == ():
            expected, remedy = "a column's name, or a list of them", f"{self.columns[:1]}"
            raise BadConfig(where, "not names of columns", got=given, expected=expected, remedy=remedy)
        wanted: list[Any] = as_list(given)
        known = set(self.columns)
        unknown = [name for name in wanted if not (isinstance(name, str) and name in known)]
        for name in sorted(unknown, key=lambda name: isinstance(name, str)):
            is_own = not any(isinstance(stage, Mapped) for stage in self.query.stages)
            if is_own and isinstance(name, str) and name in self.source.left_out:
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


def identify_job(table: Table, *options: object) -> str | None:
    """Return an id of a table's computation, without its files; None where a function has no name."""
    query, made_by = table.query.identity(), table.source.made_by
    if query is None or made_by is None:
        return None
    facts = repr((made_by, query, table.schema.to_json(), [item.dtype for item in table.source.schema], options))
    return hashlib.sha256(facts.encode()).hexdigest()


def map_frames(
    table: AnyTable,
    function: FrameFunction,
    schema: Schema,
    reads: str | Sequence[str],
    *,
    backend: str | None = None,
    own: Iterable[str] = (),
    keeps_rows: bool = False,
    identity: Callable[[], str | None] = lambda: None,
    draws_rows: bool = False,
) -> AnyTable:
    """Return a table whose partitions are `function(frame, backend)` of this one's.

    `schema` has the columns that come out; `backend` is the new table's own, this one's by default. For the other
    arguments see `Mapped`.
    """
    table.require(reads, "map_frames")
    query = table.query.then(Mapped(function, frozenset(reads), keeps_rows, identity, draws_rows, frozenset(own)))
    return replace(table, schema=schema, query=query, backend=backend or table.backend)


def run_partitions(
    work: Callable[[AnyTable], Result], dataset: AnyTable, backend: str, title: str, *, whole: bool = False
) -> Generator[Result]:
    """Yield `work` of a dataset of one partition, for each, in order, by the executor in force.

    A partition that does not fit in memory is worked on in halves, which give a result each. On one GPU partitions
    come one after the other: its kernels already use the whole device. Whoever may stop before the end closes it
    (`contextlib.closing`), which ends what is under way.

    Args:
        work: sent to the workers of a cluster, with what it holds.
        dataset: whose partitions are worked on.
        backend: `"cpu"` or `"gpu"`.
        title: of the progress bar.
        whole: whether a partition gives one result, and `work` itself sees to what does not fit.

    Raises:
        PartitionFailed: around an error that is not one of ours; ours pass with a note.

    Memory: at most one partition per worker at a time, and a few results.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> numbers = gp.from_frame(pd.DataFrame({"n": range(10)}), num_partitions=3)
        >>> list(run_partitions(len, numbers, "cpu", "count"))
        [3, 3, 4]
    """
    executor, parts = get_executor(), dataset.partitions
    at_once = 1 if backend == "gpu" and executor.in_process else None
    # The query goes to a worker once, with the tables it joins; what goes with each partition is its own source.
    function = partial(_on_source, _as_one if whole else in_halves, work, dataset.of_partitions([]))
    results = executor.map(function, (dataset.source.only([part]) for part in parts), at_once=at_once)
    for partition in tqdm(parts, title, disable=None, leave=False):
        with _in_partition(partition):  # whatever becomes of its worker
            found, halved = next(results)
        for message in halved:
            _log.warning(message)
        yield from found


def _on_source(
    how: Callable[[Callable[[AnyTable], Result], AnyTable, Tell], Iterator[Result]],
    work: Callable[[AnyTable], Result],
    dataset: AnyTable,
    source: Source,
) -> tuple[list[Result], list[str]]:
    """Return the results, and messages for the program to report, as a worker's log may be anywhere."""
    halved: list[str] = []
    return list(how(work, replace(dataset, source=source), halved.append)), halved


def _as_one(work: Callable[[AnyTable], Result], part: AnyTable, _: Tell) -> Iterator[Result]:
    (partition,) = part.partitions
    with _in_partition(partition):
        try:
            found = work(part)
        except Exception as cause:
            if not is_out_of_memory(cause):
                raise
            raise PartitionFailed(
                str(partition.description),
                f"its {format_count(partition.num_rows, 'row')} are needed together, and memory does not suffice "
                f"({cause})",
                expected="partitions that fit in memory three times per worker",
                remedy="a smaller partition_bytes where the files are read, or fewer workers",
            ) from cause
    yield found


def in_halves(work: Callable[[AnyTable], Result], part: AnyTable, tell: Tell = _log.warning) -> Iterator[Result]:
    """Apply `work` to a dataset of one partition; recursively to its halves where memory does not suffice.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> def few(part):
        ...     if len(part) > 3:
        ...         raise MemoryError("no room")
        ...     return len(part)
        >>> list(in_halves(few, gp.from_frame(pd.DataFrame({"n": range(10)}))))
        [2, 3, 2, 3]
    """
    (partition,) = part.partitions
    with _in_partition(partition):
        try:
            found = [work(part)]
        except Exception as cause:
            if partition.num_rows < 2 or not is_out_of_memory(cause):
                raise
            found, reason = [], str(cause).partition("\n")[0] or type(cause).__name__
    if found:
        yield from found
        return
    rows = format_count(partition.num_rows, "row")
    tell(f"{partition.description}: {rows} are too large for memory ({reason}), worked on in halves")
    for half in partition.split_at(partition.num_rows // 2):
        yield from in_halves(work, part.of_partitions([half]), tell)


@contextmanager
def _in_partition(partition: Partition) -> Iterator[None]:
    """Name the partition in whatever fails inside: wrap an error that is not ours, add a note to one of ours."""
    try:
        yield
    except GpupipeError as error:
        note = f"in partition {partition.index}: {partition.description}"
        if not isinstance(error, PartitionFailed) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    except Exception as error:
        step = "".join(f" {note}" for note in getattr(error, "__notes__", ()) if note.startswith(IN_STEP))
        raise PartitionFailed(
            str(partition.description),
            f"partition {partition.index} failed{step} ({type(error).__name__}: {error})",
            expected="a partition every step can work on",
            remedy="the cause above, on this partition alone",
        ) from error
