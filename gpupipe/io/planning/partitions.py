"""Partitions and sources of frames, statistics of their values, and the count of what was read."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from threading import Lock
from types import ModuleType
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.arrow import Reading, arrow_type
from gpupipe.backend.device.probe import choose_backend, this_machine
from gpupipe.cluster.executor import default_threads
from gpupipe.config import BACKENDS, settings
from gpupipe.errors import BadConfig
from gpupipe.schema import Field, Schema, get_element_dtype, is_passenger
from gpupipe.support.validation import check_choice, check_integer

_HOST_BYTES, _LEAST_DEVICE_BYTES, _MOST_DEVICE_BYTES = 64 << 20, 128 << 20, 1 << 30
_DEVICE_SHARE = 32  # a partition and the temporaries of a step take up to twenty times its size
_FILE_SHIFT = 40  # a row's identity: the file's number above 2^40 rows
_WIDTHS = {"string": 4, "timestamp": 8}
_VARYING = 32  # a guess at the bytes of a struct, a map and the like; files tell more
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger("gpupipe")

Bounds: TypeAlias = tuple[Any, Any]
"""The lowest and the highest present value of some rows, as rows are compared."""
Condition: TypeAlias = tuple[str, str, Any]
"""A column, a comparison and a constant, such as `("month", ">=", 10)`."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Row range: rows of one file that are read together, of a row group, a stripe or a record batch, or a part of it.

    Args:
        file: the file's position among those that were found, the ones that are skipped too.
        group: the row group in that file.
        first_row: the first row's number in the file.
        num_rows: how many.
        first_id: the first row's identity; by default it follows from `file` and `first_row`.
    """

    file: int
    group: int
    first_row: int
    num_rows: int
    first_id: int | None = None

    @property
    def identity(self) -> int:
        """The first row's identity; those of the others follow it."""
        return (self.file << _FILE_SHIFT) + self.first_row if self.first_id is None else self.first_id

    def piece(self, start: int, num_rows: int) -> RowRange:
        """Return `num_rows` of its rows, from its row `start` on."""
        first_id = None if self.first_id is None else self.first_id + start
        return replace(self, first_row=self.first_row + start, num_rows=num_rows, first_id=first_id)


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition: the rows that are processed at a time; may be empty.

    Args:
        index: its position in the source; unique in a dataset.
        spans: what it is made of, in order.
        description: files and row groups, for messages.
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
        """Return the first `num_rows` rows and the rest as two partitions.

        Example:
            >>> [part.num_rows for part in Partition(0, (RowRange(0, 0, 0, 4), RowRange(0, 1, 4, 1)), "").split_at(2)]
            [2, 3]
        """
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

        Example:
            >>> Partition(0, (RowRange(file=1, group=0, first_row=5, num_rows=2),), "").row_ids(np) - (1 << 40)
            array([5, 6], dtype=uint64)
        """
        ids = [xp.arange(span.num_rows, dtype="uint64") + np.uint64(span.identity) for span in self.spans]
        return xp.concatenate(ids) if ids else xp.zeros(0, dtype="uint64")


@dataclass(frozen=True)
class FileNote:
    """Note on a file or column that is skipped or converted.

    Args:
        file: its name; of a table in memory `"frame"` or `"stream"`.
        action: of a file `"skipped"`, `"quarantined"` (and recorded next to the output) or `"cast"`; of a column
            `"converted"` or `"left out"`.
        reason: why, or the column's type and what becomes of it.
        column: its name, where it is about one.
    """

    file: str
    action: str
    reason: str
    column: str | None = None

    def __str__(self) -> str:
        place = self.file if self.column is None else f"{self.file}, column {self.column!r}"
        return f"{place}: {self.action}, {self.reason}"


def conversions(file: str, columns: Mapping[str, tuple[object, Reading]]) -> list[FileNote]:
    """List a logged note for each column that is converted, given its type and the dtype it is read as."""
    found = []
    for name, (kind, reading) in columns.items():
        if reading.change:
            action = "left out" if reading.dtype is None else "converted"
            note = FileNote(file, action, f"{kind}: {reading.change}", name)
            _log.log(logging.WARNING if reading.dtype is None or reading.is_lossy else logging.INFO, "%s", note)
            found.append(note)
    return found


class ReadCounter:
    """Read counts of a source in this process.

    Attributes:
        row_groups: how often each (file, row group) was read.
        columns: row groups read, by column.
        num_bytes: compressed bytes of the column chunks read; of frames in memory their own bytes; of formats that
            do not tell the size of a chunk, an even share of the file.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all counts."""
        self.row_groups: Counter[tuple[int, int]] = Counter()
        self.columns: Counter[str] = Counter()
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
    left_out: Mapping[str, str]
    """Columns that are there but cannot be carried, and their type."""
    notes: Sequence[FileNote]
    """The files and columns that are skipped or converted."""
    reads: ReadCounter
    made_by: str | None
    """What made the rows out of the inputs, the same text in any process; empty where they are as they lie in files,
    None where a function that made them has no name."""

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
    if partition_bytes is not None:
        check_integer("read", "[1, inf)", None, partition_bytes=partition_bytes)
        return partition_bytes
    configured = settings()
    kind = _resolve_backend(configured.backend if backend == "auto" else backend)
    if configured.partition_bytes is not None:
        return configured.partition_bytes
    if kind == "gpu":
        return _device_bytes()
    # Each thread holds a partition as read, as transformed and as put out, and what is between.
    shared, limit = 8 * default_threads(), configured.memory_limit
    return min(_HOST_BYTES, limit // shared) if limit else _HOST_BYTES


@cache
def _resolve_backend(backend: str) -> str:
    return backend if backend in ("cpu", "gpu") else choose_backend(backend, this_machine())[0]


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
    match sign:
        case "<":
            return bool(low >= wanted)
        case "<=":
            return bool(low > wanted)
        case ">":
            return bool(high <= wanted)
        case ">=":
            return bool(high < wanted)
        case "==":
            return bool(wanted < low or wanted > high)
    return False


def comparable(value: Any, item: Field, where: str) -> Any:
    """Convert a constant to the form in which the column's values compare: times to microseconds; else raise."""
    if isinstance(value, np.generic):
        value = (value.astype("datetime64[us]") if isinstance(value, np.datetime64) else value).item()
    if item.dtype == "timestamp":
        expected, example = "a date or a time, as text in ISO format or as datetime", "2013-10-01"
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            moment = None
        if isinstance(moment, date) and str(moment) != "NaT":
            return microseconds(moment)
    elif item.dtype == "string":
        expected, example = "text", "M"
        if isinstance(value, str):
            return value
    else:
        expected, example = "a number", "10"
        if isinstance(value, int | float) and not math.isnan(value):
            return value
    remedy = f"at={example if example == '10' else repr(example)}"
    raise BadConfig(where, f"column {item.name!r} is {item.dtype}", got=value, expected=expected, remedy=remedy)


def exactly(value: Any) -> Bounds | None:
    """Return the bounds of rows that all have this value; None where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    compared = microseconds(value) if isinstance(value, date) else value
    return compared, compared


def microseconds(value: date) -> int:
    """Convert a date or time to a stored timestamp: microseconds since 1970 in UTC; without a zone it is UTC."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)
