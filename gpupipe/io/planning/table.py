"""Table: a source in partitions, a schema and a query of selections and functions, the base of `Dataset`."""

from __future__ import annotations

import hashlib
import io
import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, partial, reduce
from itertools import accumulate
from operator import and_, attrgetter
from threading import Lock
from types import ModuleType
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from gpupipe.backend import Array, Backend, Frame, is_out_of_memory, resolve, select
from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.device.probe import this_machine
from gpupipe.backend.kernels import draw_positions, hash_column, splitmix64
from gpupipe.cluster.executor import default_threads, get_executor
from gpupipe.config import BACKENDS, settings
from gpupipe.errors import BadConfig, ColumnNotFound, GpupipeError, PartitionFailed, SchemaMismatch
from gpupipe.expressions import parse
from gpupipe.expressions.comparisons import compare
from gpupipe.expressions.evaluate import evaluate
from gpupipe.expressions.operands import truth
from gpupipe.expressions.tree import Constant, Span
from gpupipe.files import writing_scratch
from gpupipe.io.stores import FileNote, fetch, get_stat, is_remote, make_lost_file_error
from gpupipe.progress import Progress
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema, get_element_dtype, is_passenger
from gpupipe.step import IN_STEP
from gpupipe.support.origins import name_part, rename_tables
from gpupipe.support.text import format_count
from gpupipe.support.times import parse_microseconds, to_microseconds
from gpupipe.support.validation import as_list, check_choice, check_integer

FrameFunction: TypeAlias = Callable[..., Frame]
Tell: TypeAlias = Callable[[str], None]
Result = TypeVar("Result")
Bounds: TypeAlias = tuple[Any, Any]  # the lowest and the highest present value of some rows, as rows are compared
Condition: TypeAlias = tuple[str, str, Any]  # a column, a comparison and a constant, such as `("month", ">=", 10)`

_HOST_BYTES, _LEAST_DEVICE_BYTES, _MOST_DEVICE_BYTES = 64 << 20, 128 << 20, 1 << 30
_DEVICE_SHARE = 32  # a partition and the temporaries of a step take up to twenty times its size
FILE_SHIFT = 40  # a row's identity: the file's number above 2^40 rows
_WIDTHS = {"string": 4, "timestamp": 8}
_VARYING = 32  # a guess at the bytes of a struct, a map and the like; files tell more
_log = logging.getLogger("gpupipe")


# partitions and their source ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RowRange:
    """Row range: rows of one file that are read together, of a row group, a stripe or a record batch, or a part of it.

    `file` is its position among those that were found, the skipped ones too; `first_row` the number in the file.
    """

    file: int
    group: int
    first_row: int
    num_rows: int
    first_id: int | None = None  # the first row's identity; by default it follows from `file` and `first_row`

    @property
    def identity(self) -> int:
        """The first row's identity; those of the others follow it."""
        return (self.file << FILE_SHIFT) + self.first_row if self.first_id is None else self.first_id

    def piece(self, start: int, num_rows: int) -> RowRange:
        """Return `num_rows` of its rows, from its row `start` on."""
        first_id = None if self.first_id is None else self.first_id + start
        return replace(self, first_row=self.first_row + start, num_rows=num_rows, first_id=first_id)


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition: the rows of `spans` in order, which are processed at a time; may be empty.

    `index` is unique in a dataset; `description` has files and row groups, for messages.
    """

    index: int
    spans: tuple[RowRange, ...]
    description: str

    @property
    def num_rows(self) -> int:
        """Rows before any filter: an upper bound."""
        return sum(span.num_rows for span in self.spans)

    @property
    def first_row(self) -> int:
        """The first row's number in its file."""
        return self.spans[0].first_row if self.spans else 0

    def keep(self, spans: Iterable[RowRange]) -> Partition:
        """Return the partition with these of its spans only."""
        return replace(self, spans=tuple(spans))

    def split_at(self, num_rows: int) -> tuple[Partition, Partition]:
        """Return the first `num_rows` rows and the rest as two partitions."""
        left, right = list[RowRange](), list[RowRange]()
        for span in self.spans:
            taken = min(num_rows, span.num_rows)
            left += [span.piece(0, taken)] if taken else []
            right += [span.piece(taken, span.num_rows - taken)] if taken < span.num_rows else []
            num_rows -= taken
        return self.keep(left), self.keep(right)

    def row_ids(self, xp: ModuleType) -> Array:
        """Return a row id (uint64) per row, the same under any partitioning: file and row number in the file or table.

        Memory: allocates 8 bytes per row.
        """
        ends = [(span.identity, span.identity + span.num_rows) for span in self.spans]
        ids = [xp.arange(*pair, dtype="uint64") for pair in ends]
        return ids[0] if len(ids) == 1 else xp.concatenate(ids) if ids else xp.zeros(0, dtype="uint64")

    def frame_ids(self, frame: Frame, backend: Backend) -> Array:
        """Return the row ids (uint64) of a frame whose index says which of these rows it holds.

        Memory: allocates 8 bytes per row.
        """
        positions = backend.positions(frame)
        if len(self.spans) == 1:
            return positions.astype("uint64", copy=False) + np.uint64(self.spans[0].identity)
        return self.row_ids(backend.xp)[positions]

    def draw(self, frame: Frame, seed: int, limit: int, backend: Backend) -> Array:
        """Draw the positions in a frame, whose index says which of these rows it holds, by the rows' ids alone.

        Memory: allocates 8 bytes per row of the largest span while it is drawn, then 8 per row drawn.
        """
        xp, ends = backend.xp, accumulate((span.num_rows for span in self.spans), initial=0)
        drawn = [
            draw_positions(seed, span.identity, span.num_rows, limit, xp) + start
            for span, start in zip(self.spans, ends, strict=False)
        ]
        positions = xp.concatenate(drawn) if drawn else xp.zeros(0, dtype="int64")
        if backend.is_range(frame, self.num_rows):
            return positions
        return xp.flatnonzero(xp.isin(backend.positions(frame), positions))


class ReadCounter:
    """Read counts of a source in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all counts."""
        self.row_groups: Counter[tuple[int, int]] = Counter()  # how often each (file, row group) was read
        self.columns: Counter[str] = Counter()  # row groups read, by column
        # Compressed bytes of the column chunks read, or an even share of the file; of frames their own bytes.
        self.num_bytes = 0
        self._lock = Lock()

    def add(self, spans: Iterable[RowRange], names: Sequence[str], num_bytes: int) -> None:
        with self._lock:
            for span in spans:
                self.row_groups[span.file, span.group] += 1
                self.columns.update(names)
            self.num_bytes += num_bytes

    @property
    def passes(self) -> int:
        """How often the row group read most often was read."""
        return max(self.row_groups.values(), default=0)

    def __reduce__(self) -> tuple[type[ReadCounter], tuple[()]]:
        return ReadCounter, ()

    def __repr__(self) -> str:
        return f"ReadCounter(passes={self.passes}, row_groups={self.row_groups.total()}, num_bytes={self.num_bytes})"


class Source(Protocol):
    """Base class of a Dataset's sources: columns of known dtypes in partitions of whole spans, one at least."""

    schema: Schema
    left_out: Mapping[str, str]  # columns that are there and not carried, and their type
    notes: Sequence[FileNote]  # the files and columns that are skipped or converted
    reads: ReadCounter
    queries: Sequence[Query] = ()  # those that its partitions have been through, where tables are put together
    filters: frozenset[str] = frozenset()  # those that all its rows have passed before
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


def partition_limit(partition_bytes: int | None, backend: str) -> int:
    """Return the decoded bytes a partition may have: as requested, as configured, or by the backend's memory."""
    check_choice("read", BACKENDS, backend=backend)
    check_integer("read", "[1, inf)", None, partition_bytes=partition_bytes)
    configured = settings()
    if asked := partition_bytes or configured.partition_bytes:
        return asked
    kind = configured.backend if backend == "auto" else backend
    if (resolve() if kind == "auto" else kind) == "gpu":
        return _device_bytes()
    # Each thread holds a partition as read, as transformed and as put out, and what is between.
    shared, limit = 8 * default_threads(), configured.memory_limit
    return min(_HOST_BYTES, limit // shared) if limit else _HOST_BYTES


@cache
def _device_bytes() -> int:
    """Return a fraction of the smallest visible GPU's memory, 1 GiB at most; 1 GiB where the size is unavailable."""
    least = min((gpu.memory_total for gpu in this_machine().gpus if gpu.memory_total), default=_MOST_DEVICE_BYTES << 5)
    return min(max(least // _DEVICE_SHARE, _LEAST_DEVICE_BYTES), _MOST_DEVICE_BYTES)


def row_bytes(fields: Iterable[Field]) -> int:
    """Compute the bytes of a row in a coded frame, without dictionaries and masks; lists count as ten elements.

    Example:
        >>> row_bytes([Field("x", "float64"), Field("ok", "bool"), Field("origin", "string")])
        13
    """
    return sum(_width(item.dtype) for item in fields)


def _width(dtype: str) -> int:
    if is_passenger(dtype):
        try:
            return int(arrow_type(dtype).bit_width + 7) // 8
        except ValueError:  # of varying width
            return _VARYING
    element = get_element_dtype(dtype)
    return 8 + 10 * _width(element) if element is not None else _WIDTHS.get(dtype) or np.dtype(dtype).itemsize


# statistics -----------------------------------------------------------------------------------------------------------
def excludes(condition: Condition, bounds: Bounds, item: Field) -> bool:
    """Return whether no value within `bounds` can satisfy the condition, so that its rows need not be read."""
    _, sign, constant = condition
    if sign == "in":
        return all(excludes((item.name, "==", one), bounds, item) for one in constant)
    try:
        wanted = comparable(constant, item, "")
    except BadConfig:
        return False
    low, high = bounds
    outside = {"<": low >= wanted, "<=": low > wanted, ">": high <= wanted, ">=": high < wanted}
    outside["=="] = outside[">="] or outside["<="]
    return bool(outside.get(sign, False))


def comparable(value: Any, item: Field, where: str) -> Any:
    """Convert a constant to the form in which the column's values compare: times to microseconds; else raise."""
    if isinstance(value, np.generic):
        value = (value.astype("datetime64[us]") if isinstance(value, np.datetime64) else value).item()
    if item.dtype == "timestamp":
        expected, example = "a date or a time, as text in ISO format or as datetime", "'2013-10-01'"
        if isinstance(value, str | date) and str(value) != "NaT":
            with suppress(ValueError):
                return parse_microseconds(value) if isinstance(value, str) else to_microseconds(value)
    elif item.dtype == "string":
        expected, example = "text", "'M'"
        if isinstance(value, str):
            return value
    else:
        expected, example = "a number", "10"
        if isinstance(value, int | float) and not math.isnan(value):
            return value
    problem, remedy = f"column {item.name!r} is {item.dtype}", f"at={example}"
    raise BadConfig(where, problem, got=value, expected=expected, remedy=remedy)


def exactly(value: Any) -> Bounds | None:
    """Return the bounds of rows that all have this value; None where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    compared = to_microseconds(value) if isinstance(value, date) else value
    return compared, compared


# row filters and queries ----------------------------------------------------------------------------------------------
class Selection(Protocol):
    """Row filter that depends on each row alone."""

    @property
    def reads(self) -> AbstractSet[str]:
        """The columns it reads."""

    @property
    def conditions(self) -> Sequence[Condition]:
        """What every row it keeps satisfies."""
        return ()

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        """Compute a boolean per row of a coded frame that holds `reads`; its index counts rows of the partition."""


@dataclass(frozen=True)
class Where(Selection):
    """Filter for the rows where an expression is true; a missing result drops the row."""

    text: str

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset(parse(self.text, "filter").reads)

    @property
    def conditions(self) -> Sequence[Condition]:
        return list(parse(self.text, "filter").conjuncts())

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        expression = parse(self.text, "filter")
        columns = {name: backend.column(frame, name) for name in expression.reads}
        return truth(evaluate(expression, columns, backend, len(frame)), backend.xp)


@dataclass(frozen=True)
class Between(Selection):
    """Range filter: `low <= column < high`; a bound that is None is open."""

    column: str
    low: Any
    high: Any

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset({self.column})

    def name_part(self, drawn_from: str) -> str:
        """Name these rows among all of the table, for their origins."""
        return name_part(f"range of {self.column}", (self.low, self.high))

    @property
    def conditions(self) -> Sequence[Condition]:
        bounds = ((">=", self.low), ("<", self.high))
        return [(self.column, sign, bound) for sign, bound in bounds if bound is not None]

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        column, found = backend.column(frame, self.column), None
        for _, sign, bound in self.conditions:
            dtype = column.dtype
            if dtype in (*INTEGERS, *FLOATS):  # a fraction stays one even where the column has integers
                dtype = "float64" if isinstance(bound, float) else "int64"
            kept = compare(sign, column, Constant(bound, dtype, Span(0, 0)), backend).true
            found = kept if found is None else found & kept
        return found


@dataclass(frozen=True)
class RandomSplit(Selection):
    """Random split: the rows whose 64 random bits, drawn by `seed` and the row's identity, are in `low <= bits < high`.

    `high` None is 2^64. The value of a column `by` takes the place of the row's identity; `outside` keeps the others.
    """

    seed: int
    low: int
    high: int | None
    by: str | None = None
    outside: bool = False

    @property
    def reads(self) -> AbstractSet[str]:
        return frozenset() if self.by is None else frozenset({self.by})

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        return self._inside(hash_column(backend.column(frame, self.by or ""), self.seed, backend))

    def name_part(self, drawn_from: str) -> str:
        """Name these rows among all of the table, for their origins; the identities drawn are of rows made so."""
        kind = f"{type(self).__name__} {self.seed} {self.by} {drawn_from}"
        return name_part(kind, (self.low, self.high), outside=self.outside)

    def keep_rows(self, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row, given the row ids."""
        return self._inside(splitmix64(self.seed, row_ids))

    def _inside(self, bits: Array) -> Array:
        inside = bits >= np.uint64(self.low)
        inside = inside if self.high is None else inside & (bits < np.uint64(self.high))
        return ~inside if self.outside else inside


@dataclass(frozen=True)
class StratifiedSplit(RandomSplit):
    """Stratified random split: rows whose bits, drawn by row id, are between the bounds of their class in column `by`.

    `low` and `high` are for a class that is not listed. All bounds are of the upper 63 bits; `classes` are ascending.
    """

    classes: tuple[int, ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def draw(frame: Frame, by: str, seed: int, partition: Partition, backend: Backend) -> tuple[Array, Array]:
        """Draw for each row of a frame 64 bits of its class in column `by`, and 63 bits of its row id."""
        row_ids = partition.frame_ids(frame, backend)
        return hash_column(backend.column(frame, by), 0, backend), splitmix64(seed, row_ids) >> np.uint64(1)

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        xp = backend.xp
        of_class, bits = self.draw(frame, self.by or "", self.seed, partition, backend)
        known = backend.to_device(np.array([*self.classes, 0], dtype=np.uint64))
        plain = self.low, 1 << 63 if self.high is None else self.high
        bounds = backend.to_device(np.array([*self.bounds, plain], dtype=np.uint64))
        place = xp.searchsorted(known[:-1], of_class)
        place = xp.where(known[place] == of_class, place, len(self.classes))
        inside = (bits >= bounds[place, 0]) & (bits < bounds[place, 1])
        return ~inside if self.outside else inside


@dataclass(frozen=True)
class RowIdFilter:
    """Filter for the rows whose id is listed in a file: ascending uint64 (`.npy`), `made_by` as in `Source.made_by`.

    Only what a partition needs is read, or all of it from a store. `owner` is kept alive: the folder the file lies in.
    A bit for each row would take up to 64 times less, but ids have gaps between files: each filter, which travels to
    all workers, would carry the first id and the rows of every file.
    """

    file: str = field(repr=False)
    made_by: str | None
    owner: object = field(repr=False, compare=False)

    @classmethod
    def of(cls, spool: Any, ids: Iterable[Any], num_rows: int, made_by: str | None) -> Self:
        """Write `num_rows` identities, which come in arrays, ascending, to a folder such as `TempParquet`."""
        path = spool.folder / "rows.npy"
        with writing_scratch(spool.folder), path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<u8", "fortran_order": False, "shape": (num_rows,)})
            for some in ids:
                file.write(np.ascontiguousarray(some, dtype="<u8").data)
        return cls(spool.keep(path), made_by, spool)

    def keep_rows(self, row_ids: Array, backend: Backend) -> Array:
        """Compute a boolean per row, given the row ids."""
        xp = backend.xp
        if not len(row_ids):
            return xp.ones(0, dtype=bool)
        ends = backend.to_host(xp.stack([row_ids.min(), row_ids.max()]))
        listed, first = _between(self.file, *ends), ends[0]
        if ends[1] - first == len(row_ids) - 1:  # all identities in between
            keep = xp.zeros(len(row_ids), dtype=bool)
            keep[backend.to_device((listed - first).view(np.int64))] = True
            return keep[(row_ids - first).view(np.int64)]
        listed = backend.to_device(np.append(listed, ends[1] + np.uint64(1)))  # one at least, and one behind all
        return listed[xp.searchsorted(listed, row_ids)] == row_ids


def _between(file: str, first: np.uint64, last: np.uint64) -> Any:
    """Return the part of an ascending array on disk between two values, both included."""
    try:
        if is_remote(file):
            (whole,) = fetch(file, [(0, get_stat(file).size)])
            listed = np.load(io.BytesIO(whole))
        else:
            listed = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as cause:
        raise make_lost_file_error(file, cause) from cause
    return np.array(listed[np.searchsorted(listed, first) : np.searchsorted(listed, last, side="right")])


@dataclass(frozen=True)
class Mapped:
    """Function of a coded frame with the columns `reads`, and its backend, whose result replaces the frame."""

    function: FrameFunction
    reads: frozenset[str]
    keeps_rows: bool  # whether as many rows come out as go in
    identity: Callable[[], str | None] = lambda: None  # tells it apart in any process; None where nothing does
    draws_rows: bool = False  # whether it is given, as third argument, the identities of the rows the index counts
    own: frozenset[str] = frozenset()  # the columns that come out in memory nobody else holds


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
            frame = backend.filter(frame, self.drawn(partition, backend)[backend.positions(frame)])
        for stage, needed in zip(self.stages, self._needed(names)[1:], strict=True):
            if isinstance(stage, Mapped):
                ids = [partition.row_ids(backend.xp)] if stage.draws_rows else []
                frame = stage.function(_select_existing(frame, stage.reads, backend), backend, *ids)
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
            needed.append(set(stage.reads) if isinstance(stage, Mapped) else needed[-1] | stage.reads)
        return needed[::-1]


EVERYTHING = Query()


def _select_existing(frame: Frame, names: frozenset[str] | set[str], backend: Backend) -> Frame:
    return backend.select(frame, [name for name in frame.columns if name in names])


# tables ---------------------------------------------------------------------------------------------------------------
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
    def num_draws(self) -> int:
        """How many random draws were made."""
        return sum(query.num_draws for query in self.queries)

    def cuts_history(self, keys: Sequence[str]) -> bool:
        """Return whether a split has removed rows that precede or separate others with the same keys."""
        return any(query.cuts_history(keys) for query in self.queries)

    @property
    def filters(self) -> frozenset[str]:
        """The conditions that all rows have passed."""
        return self.source.filters | {stage.text for stage in self.query.stages if isinstance(stage, Where)}

    def locate_origins(self) -> Schema:
        """Return the schema with the origins of this part of the rows, where splits have left out others.

        What is computed of one part, such as the mean of each group in it, tells nothing of the rows of another.
        """
        cuts = (*self.query.draws, *self.query.stages)
        drawn_from = repr(self.source.made_by)  # which gives the rows other identities
        part = "".join(f"/{one.name_part(drawn_from)}" for one in cuts if isinstance(one, Between | RandomSplit))
        if not part:
            return self.schema
        return self.schema.assign(
            replace(item, origins=rename_tables(item.origins, lambda table: table + part)) for item in self.schema
        )

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
        predicates look at are read. Raises ColumnNotFound, and BadFile where the partition cannot be read.
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
                notes = (note for note in self.source.notes if (note.column, note.action) == (name, "left out"))
                reason = next((note.reason.partition(": ")[2] for note in notes), "nothing here carries such values")
                problem, got = f"it was left out, because {reason}", self.source.left_out[name]
                expected = "a column of the first file, of a type in docs/guide-files.md"
                remedy = (
                    "a column of another type made from it before; or on_mismatch='cast' and a file that has it first"
                )
                raise SchemaMismatch(f"column {name!r}", problem, got=got, expected=expected, remedy=remedy)
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
    """Return a table whose partitions are `function(frame, backend)` of this one's, with the columns of `schema`.

    `backend` is the new table's own, this one's by default. For the other arguments see `Mapped`.
    """
    table.require(reads, "map_frames")
    query = table.query.then(Mapped(function, frozenset(reads), keeps_rows, identity, draws_rows, frozenset(own)))
    return replace(table, schema=schema, query=query, backend=backend or table.backend)


# passes over partitions -----------------------------------------------------------------------------------------------
def run_partitions(
    work: Callable[[AnyTable], Result], dataset: AnyTable, backend: str, title: str, *, whole: bool = False
) -> Generator[Result]:
    """Yield `work` of a dataset of one partition, for each, in order, by the executor in force.

    A partition that does not fit in memory is worked on in halves, which give a result each; one that is needed `whole`
    gives one result, and is an error then. `work` goes to the workers of a cluster, with what it holds; `backend` is
    `"cpu"` or `"gpu"`, and `title` the progress bar's. On one GPU partitions come one after the other: its kernels
    already use the whole device. Whoever may stop before the end closes it (`contextlib.closing`), which ends what is
    under way. An error that is not one of ours is wrapped in PartitionFailed; ours pass with a note.

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
    function = partial(_on_source, work, dataset.of_partitions([]), whole)
    results = executor.map(function, (dataset.source.only([part]) for part in parts), at_once=at_once)
    for partition in Progress(parts, title, count_rows=attrgetter("num_rows"), unit=" parts", leave=False):
        with _in_partition(partition):  # whatever becomes of its worker
            found, halved = next(results)
        for message in halved:
            _log.warning(message)
        yield from found


def _on_source(
    work: Callable[[AnyTable], Result], dataset: AnyTable, whole: bool, source: Source
) -> tuple[list[Result], list[str]]:
    """Return the results, and messages for the program to report, as a worker's log may be anywhere."""
    halved: list[str] = []
    return list(in_halves(work, replace(dataset, source=source), halved.append, whole=whole)), halved


def in_halves(
    work: Callable[[AnyTable], Result], part: AnyTable, tell: Tell = _log.warning, *, whole: bool = False
) -> Iterator[Result]:
    """Apply `work` to a dataset of one partition; recursively to its halves where memory does not suffice.

    A partition that is needed `whole` is PartitionFailed then.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> rows = gp.from_frame(pd.DataFrame({"n": range(10)}))
        >>> list(in_halves(lambda part: len(part) if len(part) < 4 else bytes(1 << 60), rows))
        [2, 3, 2, 3]
    """
    (partition,) = part.partitions
    rows = format_count(partition.num_rows, "row")
    with _in_partition(partition):
        try:
            found = [work(part)]
        except Exception as cause:
            if not is_out_of_memory(cause) or (partition.num_rows < 2 and not whole):
                raise
            if whole:
                problem = f"its {rows} are needed together, and memory does not suffice ({cause})"
                expected = "partitions that fit in memory three times per worker"
                remedy = "a smaller partition_bytes where the files are read, or fewer workers"
                raise PartitionFailed(partition.description, problem, expected=expected, remedy=remedy) from cause
            found, reason = [], str(cause).partition("\n")[0] or type(cause).__name__
    if found:
        yield from found
        return
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
        problem = f"partition {partition.index} failed{step} ({type(error).__name__}: {error})"
        expected, remedy = "a partition every step can work on", "the cause above, on this partition alone"
        raise PartitionFailed(partition.description, problem, expected=expected, remedy=remedy) from error
