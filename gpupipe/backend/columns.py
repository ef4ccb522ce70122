"""Columns and frames, the interface of both backends, and what is done to columns on either.

A *frame* is a `pandas.DataFrame` or a `cudf.DataFrame`. Inside the library a frame is in *coded* form: a string column
is a `category`, an integer or boolean column whose field is nullable is masked, timestamps are datetime64[us], and the
index holds the rows' positions in the frame that was read. `encode` brings a user's frame into that form and `decode`
brings it back; a `Column` is one of its columns as arrays, which is what steps work on.
"""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from gpupipe.backend.arrow import (
    Reading,
    accumulate_lengths,
    arrow_type,
    get_arrow_types,
)
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.schema import (
    FLOATS,
    INTEGERS,
    OF_A_DATASET,
    ROW,
    Field,
    Schema,
    get_element_dtype,
    is_passenger,
    suggest_conversion,
    suggest_times,
)
from gpupipe.support.origins import name_memory
from gpupipe.support.text import derive, write_time_formats
from gpupipe.support.text_dates import find_misordered_dates, find_misordered_periods
from gpupipe.support.text_kinds import recognise_texts, suggest_ordering, suggest_parsing
from gpupipe.support.times import has_offset
from gpupipe.support.validation import is_integer, is_number, parse_duration_us

Array: TypeAlias = Any  # numpy.ndarray | cupy.ndarray, as the backend's `xp`
Frame: TypeAlias = Any  # pandas.DataFrame | cudf.DataFrame
Distance: TypeAlias = int | float  # microseconds between times, or the difference of numbers
Plan: TypeAlias = Callable[[pl.LazyFrame], pl.LazyFrame]
FrameMakers: TypeAlias = Sequence[Callable[[], Frame]]  # of which each is called when it is its turn

_CASTABLE = ("decimal", "duration[", "time32[", "time64[")
# Numbers that are worked on at a time: 1 MiB of float64 stays in a core's cache.
_CACHED_NUMBERS = 1 << 17
_SEEN_TEXTS = 1_000  # of a column, that tell whether it is one of dates
_NAMED_BY_ROWS, _NAMED_BY_COLUMNS = 256, 128
_LINE = 8  # float64 of a cache line, which is read whole where columns are interleaved
# Rows of a page of Parquet: what pyarrow and cuDF write by default, and what cuDF's writer encodes at a time.
_MOST_PAGE_ROWS, LEAST_PAGE_ROWS = 20_000, 5_000


def get_array_module(array: Array) -> ModuleType:
    """Return the array's module, NumPy or CuPy; CuPy's arrays have no `__array_namespace__`."""
    return sys.modules[type(array).__module__]


def locate_values(starts: Array, lengths: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Compute the positions of the values of some lists, one list after the other, and the lists' new offsets."""
    offsets = accumulate_lengths(lengths, xp)
    num_values = int(offsets[-1])
    if not num_values:
        return starts[:0].astype("int64"), offsets
    # How many lists have begun behind the first one: np.repeat would do on the host, but CuPy's waits for the device.
    lists = xp.cumsum(xp.bincount(offsets[1:-1], minlength=num_values + 1)[:num_values])
    return (starts - offsets[:-1])[lists] + xp.arange(num_values), offsets


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Column of a coded frame as arrays, shared with the frame and therefore read only.

    Args:
        dtype: the field's type: one of `schema.DTYPES` or `schema.LISTS`, or a passenger's.
        data: n values. Floats hold NaN where a value is missing; timestamps are int64 microseconds; strings are signed
            integer codes into `dictionary`, -1 where missing (so a lookup table with one entry appended is gathered as
            `table[codes]`). Of lists n + 1 int64 offsets into `elements`: the first is 0, the last their number, and a
            missing list is as long as an empty one.
        valid: n booleans, False where an integer, boolean, timestamp or list is missing; None when none is. Never set
            for floats and strings. What `data` holds at a missing place means nothing.
        dictionary: the distinct strings, on the host (`pyarrow.LargeStringArray` without nulls); may hold values that
            no code refers to. Codes mean nothing without it. Of a passenger its values as the backend holds them, of
            which `data` has the places, -1 where missing.
        elements: those of all lists, one list after the other.
    """

    dtype: str
    data: Array
    valid: Array | None = None
    dictionary: pa.Array | None = None
    elements: Column | None = None

    def __len__(self) -> int:
        return int(self.data.shape[0]) - (self.elements is not None)

    def missing(self, xp: ModuleType) -> Array | None:
        """Return n booleans, True where the value is missing; None if no value can be missing. Allocates n bytes."""
        if self.dtype in FLOATS:
            return xp.isnan(self.data)
        if self.dictionary is not None:
            return self.data < 0
        return None if self.valid is None else ~self.valid

    def present(self, xp: ModuleType) -> Array | None:
        """Return n booleans, True where the value is there; None if no value can be missing. Shares a mask."""
        missing = None if self.valid is not None else self.missing(xp)
        return self.valid if missing is None else ~missing

    def move(self, move: Callable[[Array], Array]) -> Column:
        """Return the column with `move` applied to every array: `Backend.to_host` or `Backend.to_device`."""
        valid = None if self.valid is None else move(self.valid)
        elements = None if self.elements is None else self.elements.move(move)
        return Column(self.dtype, move(self.data), valid, self.dictionary, elements)

    def take(self, rows: Array) -> Column:
        """Take rows by integer position or boolean mask, as a new column."""
        valid = None if self.valid is None else self.valid[rows]
        if self.elements is None:
            return Column(self.dtype, self.data[rows], valid, self.dictionary)
        starts, ends = self.data[:-1][rows], self.data[1:][rows]
        places, offsets = locate_values(starts, ends - starts, get_array_module(self.data))
        return Column(self.dtype, offsets, valid, None, self.elements.take(places))


class Matrix(Mapping[str, Column]):
    """Matrix of columns of one float type in one array, on which a step works in one operation; also a mapping of them.

    The array is k x n float32 or float64, shared and read only, NaN where a value is missing; all names differ.

    Example:
        >>> import numpy as np
        >>> Matrix(["x", "y"], np.array([[1.0, 2.0], [3.0, np.nan]]))["y"].data.tolist()
        [3.0, nan]
    """

    def __init__(self, names: Sequence[str], data: Array) -> None:
        self.names, self.data, self.dtype = list(names), data, str(data.dtype)
        self._places = {name: position for position, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> Column:
        return Column(self.dtype, self.data[self._places[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def pieces(self, num_rows: int) -> Iterator[slice]:
        """Yield slices of columns that fit a core's cache, for so many rows of each."""
        width = max(_CACHED_NUMBERS // max(num_rows, 1), _LINE)
        for start in range(0, len(self), width):
            yield slice(start, start + width)


@dataclass(frozen=True, slots=True, eq=False)
class RawColumn:
    """Storage of a numeric or boolean column: values and validity mask, as in the frame."""

    data: Array  # n values; what one holds where a value is missing means nothing, but NaN is missing too
    mask: Array | None = None  # uint8 or booleans, of whose bits 1 is a value that is there; None without a mask
    first: int = 0  # the first value's bit in the mask
    per_byte: int = 1  # or 8 where each bit of a byte, the lowest first, is that of a value


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """Layout of a Parquet file: row groups, compression, dictionaries, pages."""

    rows_per_group: int
    compression: str  # "snappy", "zstd", "lz4", "gzip", "brotli" or "none"
    dictionary: frozenset[str]  # the columns, in lists their elements, that get a dictionary where it is not too large
    has_many_pages: bool = False  # a hundred in a column chunk at least, which a GPU decodes side by side

    def page_rows(self, num_rows: int) -> int:
        """Return the rows of a page in a file of so many rows."""
        if not self.has_many_pages:
            return _MOST_PAGE_ROWS
        return min(_MOST_PAGE_ROWS, max(LEAST_PAGE_ROWS, min(num_rows, self.rows_per_group) // 100))


@dataclass(slots=True)
class Transfers:
    """Count of copies from the device to the host, and of their bytes."""

    count: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        """Count one copy of that many bytes."""
        self.count += 1
        self.num_bytes += num_bytes


@dataclass(frozen=True, slots=True)
class PCAResult:
    """Result of a principal component analysis, on the host in float64, signs as the library gives them."""

    mean: Array  # F
    components: Array  # K x F
    explained_variance: Array  # K


class Backend(Protocol):
    """Base of both backends (`cpu.py`, `gpu.py`), which have its methods in the same order, and what they share."""

    name: str  # "cpu" or "gpu"
    device: str  # torch's name of the device that holds the data: "cpu", "cuda:0"
    xp: ModuleType  # numpy or cupy
    transfers: Transfers

    # frames in and out; readers raise OSError, or what pyarrow has for it, where bytes are damaged or not there -------
    def read_parquet(
        self, sources: Sequence[Any], row_groups: Sequence[Sequence[int]], fields: Sequence[Field], metadata: Any = None
    ) -> Frame:
        """Read `fields` of files of one schema (paths or open binary files), of each its row groups, as a coded frame.

        `metadata` is that of a single file. cuDF reads all of an open file; of a path's, as everywhere else, only what
        is asked for.
        """

    def read_orc(self, path: str, stripes: Sequence[int], fields: Sequence[Field]) -> Frame:
        """Read `fields`, whose types are those of the file, of these stripes of one local file as a coded frame."""

    def from_arrow(self, table: pa.Table, fields: Sequence[Field]) -> Frame:
        """Convert the columns of `fields` to a coded frame, with the types of the fields."""

    def to_arrow(self, frame: Frame) -> pa.Table:
        """Convert a coded frame to a host table with plain strings; missing values are nulls, NaN included."""

    def write_parquet(self, frames: FrameMakers, types: pa.Schema, path: Path, layout: ParquetLayout) -> bool:
        """Write coded frames, one after the other, to one file in the types' order, without a host copy.

        False means that the backend has no writer for such columns or such a layout, and no frame was made: the rows of
        `to_arrow` are then written by pyarrow. Raises OSError where the file cannot be written.
        """
        return False

    def classify(self, frame: Frame) -> Mapping[str, Reading]:
        """Map each column of a user's frame to the type it is read as."""

    def encode(self, frame: Frame) -> Frame:
        """Encode a user's frame, which is not modified, with row positions as index; `SchemaMismatch` if refused."""

    def decode(self, frame: Frame, owned_columns: Container[str] = (), schema: Schema | None = None) -> Frame:
        """Decode a coded frame to plain strings, in separate memory that the user may write to.

        Those of `owned_columns` are in such memory already, and need no copy. Times have the zone that `schema` says.
        """

    def schema_of(self, frame: Frame, readings: Mapping[str, Reading] | None = None) -> Schema:
        """Return the fields of a coded frame, each the start of a lineage; dates and zones are those of `classify`."""
        written_types = {name: reading.written_as for name, reading in (readings or {}).items()}
        columns = zip(self.dtypes(frame).items(), self._find_nullable(frame), strict=True)
        return Schema(
            Field(name, dtype, nullable=may_miss, lineage=frozenset({name}), written_as=written_types.get(name, ""))
            for (name, dtype), may_miss in columns
        )

    def _find_nullable(self, frame: Frame) -> list[bool]:
        """Return for each column of a coded frame whether values may be missing."""

    def dtypes(self, frame: Frame) -> dict[str, str]:
        """Return the types of a coded frame's columns, by name; reads no values."""

    # frames -----------------------------------------------------------------------------------------------------------
    def column(self, frame: Frame, name: str) -> Column:
        """Return one column as arrays, sharing the frame's memory where possible."""

    def matrix(self, frame: Frame, names: Sequence[str]) -> Matrix | None:
        """Return many columns of one float type as one array, shared, or up to 8 MiB; None for few or any others."""
        return None  # on a GPU each column is an allocation of its own

    def stored(self, frame: Frame, name: str) -> RawColumn | None:
        """Return the storage of one numeric or boolean column, shared; None for any other."""
        return get_storage(self.column(frame, name))

    def frame(self, columns: Mapping[str, Column], num_rows: int) -> Frame:
        """Build a coded frame of these columns; a `Matrix` is shared."""

    def scan(self, frame: Frame, fields: Sequence[Field]) -> pl.LazyFrame:
        """Scan columns of a coded frame, with plain strings, as the input of a plan; nothing is copied to the host."""

    def run_plan(self, plan: pl.LazyFrame, fields: Sequence[Field]) -> Frame:
        """Run a plan in memory and return these columns of its result as a coded frame; never by another engine."""

    def positions(self, frame: Frame) -> Array:
        """Return the n row positions that the frame's index holds."""

    def is_range(self, frame: Frame, num_rows: int) -> bool:
        """Return whether the frame's index is known to hold the positions 0 to `num_rows` - 1 in order."""
        ends = tuple(getattr(frame.index, name, None) for name in ("start", "stop", "step"))
        return ends == (0, num_rows, 1)

    def assign(self, frame: Frame, columns: Mapping[str, Column]) -> Frame:
        """Return a frame with these columns replaced or added at the end; the others are shared."""

    def select(self, frame: Frame, names: Iterable[str]) -> Frame:
        """Return a frame with these columns only."""

    def rename(self, frame: Frame, names: Mapping[str, str]) -> Frame:
        """Return a frame with columns renamed from key to value."""

    def take(self, frame: Frame, rows: Array) -> Frame:
        """Take the rows at these integer positions, in that order, with their index."""
        return frame.take(rows)

    def name_table(self, frame: Frame) -> str:
        """Name the table of a coded frame by what it holds, in 256 rows and 128 columns at most.

        A table that is handed over twice has one name: a join with it is known for one with itself.
        """
        names, size = frame.columns.tolist(), len(frame)
        rows = self.xp.arange(0, size, max(1, size // _NAMED_BY_ROWS))
        part = self.to_arrow(self.take(self.select(frame, names[:_NAMED_BY_COLUMNS]), rows))
        return name_memory(repr((size, names, [column.to_string(window=_NAMED_BY_ROWS) for column in part.columns])))

    def filter(self, frame: Frame, keep: Array) -> Frame:
        """Keep the rows where the boolean array is True, in order, with their index."""
        return self.take(frame, self.xp.flatnonzero(keep))

    def concat(self, frames: Sequence[Frame]) -> Frame:
        """Concatenate the rows of frames with a new index; dictionaries are united."""

    def merge(self, left: Frame, right: Frame, on: Sequence[str], how: str, suffix: str) -> Frame:
        """Join frames in left, then right order, with left index; null keys match none; right names get `suffix`."""

    # arrays -----------------------------------------------------------------------------------------------------------
    def to_device(self, array: Any) -> Array:
        """Convert a NumPy array to this backend's. Memory: shares on the CPU, copies to the device on the GPU."""
        return self.xp.asarray(array)

    def to_host(self, array: Array) -> Any:
        """Convert this backend's array to NumPy; counted in `transfers`, as every copy to the host."""

    def fuses(self) -> bool:
        """Return whether `write_rows` is available, which then also computes elementwise programs."""
        return False  # a core's cache makes one column after the other as fast (decision 020)

    def write_rows(self, words: Array, columns: Sequence[Column], ids: Sequence[bool], halves: int = 0) -> bool:
        """Write rows of a block in one pass over equally long columns of numbers, or booleans without a mask.

        Column j becomes word j of `words` (n x W int32, W a multiple of 8, at an address that is a multiple of 32): as
        int32 where `ids` is True, else as float32; the first `halves` columns as bfloat16, two in a word; the rest of a
        row is 0. The kernel computes a `DeferredColumn`. False means that there is no such pass here, or that a value
        is missing, infinite, or one that a step refuses: what is in `words` then means nothing.
        """
        return False

    def trim(self) -> None:
        """Give memory kept for reuse back to the device, after waiting for it, so that what is free can be measured."""

    def make_room(self, num_bytes: int) -> None:
        """Trim, before torch allocates a block of that size, and limit frames and arrays to the rest.

        Raises `OutOfDeviceMemory` if no space is left for training. A memory resource of the user's gets no limit.
        """

    def free_bytes(self) -> int:
        """Count the bytes of device memory that frames and arrays may still take; 0 without a device."""
        return 0

    # estimators -------------------------------------------------------------------------------------------------------
    def kmeans(self, block: Array, centres: Any, max_iter: int, tol: float) -> Any:
        """Run Lloyd's k-means over `block` (n x F, private to the call) from and to centres on the host, k x F float64.

        It ends where the squared distances all centres have moved add up to `tol` times the columns' mean variance.
        """

    def pca(self, block: Array, n_components: int) -> PCAResult:
        """Compute the principal components of `block` (n x F, private to the call), by cuML or scikit-learn."""


def floats(column: Column, xp: ModuleType) -> Array:
    """Convert a numeric or boolean column to n float64, NaN where missing."""
    data = column.data.astype(xp.float64, copy=False)
    return data if column.valid is None else xp.where(column.valid, data, xp.nan)


def gather(column: Column, table: Any, missing: Any, backend: Backend) -> Array:
    """Gather for each row of strings its entry of a NumPy table, which has one per dictionary entry, or `missing`."""
    return backend.to_device(np.append(table, table.dtype.type(missing))).take(column.data)


def as_floats(data: Array, dtype: str) -> Array:
    """Cast numbers to floats; values beyond the range become infinite, which the reader has to refuse."""
    with np.errstate(over="ignore"):
        return data.astype(dtype)


def check_names(names: Iterable[object]) -> None:
    """Raise `SchemaMismatch` for the first column whose name is not a string."""
    for name in names:
        if not isinstance(name, str):
            remedy = "frame.rename(columns=str)"
            if isinstance(name, tuple):  # of several levels
                remedy = "frame.set_axis(['_'.join(map(str, name)) for name in frame.columns], axis=1)"
            raise SchemaMismatch("frame", "a column's name is no string", got=name, expected="strings", remedy=remedy)


def get_storage(column: Column) -> RawColumn | None:
    """Return a numeric or boolean column in its storage form; None for any other."""
    return RawColumn(column.data, column.valid) if column.dtype in (*FLOATS, *INTEGERS, "bool") else None


def missing_column(dtype: str, num_rows: int, xp: ModuleType) -> Column:
    """Create a column in which every value is missing."""
    element = get_element_dtype(dtype)
    if element is not None:
        none = missing_column(element, 0, xp)
        return Column(dtype, xp.zeros(num_rows + 1, dtype="int64"), xp.zeros(num_rows, dtype=bool), None, none)
    if dtype in FLOATS:
        return Column(dtype, xp.full(num_rows, xp.nan, dtype=dtype))
    if dtype == "string" or is_passenger(dtype):
        return Column(dtype, xp.full(num_rows, -1, dtype="int32"), None, pa.array([], arrow_type(dtype)))
    stored = "int64" if dtype == "timestamp" else dtype
    return Column(dtype, xp.zeros(num_rows, dtype=stored), xp.zeros(num_rows, dtype=bool))


def with_missing_row(column: Column, xp: ModuleType) -> Column:
    """Append one missing value to a column, so that gathering at -1 gives a missing value."""
    last, valid = missing_column(column.dtype, 1, xp), column.valid
    if last.valid is not None:
        valid = xp.concatenate([xp.ones(len(column), dtype=bool) if valid is None else valid, last.valid])
    end = last.data.astype(column.data.dtype) if column.elements is None else column.data[-1:]
    return Column(column.dtype, xp.concatenate([column.data, end]), valid, column.dictionary, column.elements)


def refuse_passengers(fields: Iterable[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that is only carried."""
    for item in fields:
        if is_passenger(item.dtype):
            location, remedy = f"{where}, column {item.name!r}", suggest_conversion(item.name, item.dtype)
            problem = "values of this type are carried, and nothing is computed of them"
            expected = "numbers, booleans, text, times, or lists of them"
            raise SchemaMismatch(location, problem, got=item.dtype, expected=expected, remedy=remedy)


def require_comparable(fields: Iterable[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that has no order and no hash: lists, and types only carried."""
    for item in fields:
        refuse_passengers([item], where)
        if get_element_dtype(item.dtype) is not None:
            location, expected = f"{where}, column {item.name!r}", "a column with one value in each row"
            remedy = f"another column; or one made of it, T.{derive(item.name, 'len({})', f'{item.name}_length')}"
            raise SchemaMismatch(location, "lists are not compared", got=item.dtype, expected=expected, remedy=remedy)


def sample_texts(column: Column) -> list[str]:
    """List some of the distinct texts of a column, which tell whether it is one of dates; none of another column."""
    return [] if column.dictionary is None else column.dictionary[:_SEEN_TEXTS].drop_null().to_pylist()


def require_time_order(column: Column, name: str, where: str) -> None:
    """Raise `BadData` for texts of times that order rows otherwise: 31.12.2023 and 01.02.2024, 10:00 and 6:30."""
    texts = sample_texts(column)
    units = find_misordered_periods(texts)
    if dates := units or find_misordered_dates(texts):
        problem, expected = "these dates are text, in the order of their letters", "times, or text such as '2024-01-31'"
        if ":" in dates[0] and units:
            problem, expected = "these times are text, in the order of their letters", "text such as '06:30'"
        kind = recognise_texts(dates) or "dates"
        remedy = suggest_ordering(name, units) if units else suggest_parsing(name, kind, texts)
        raise BadData(f"{where}, column {name!r}", problem, got=dates[0], expected=expected, remedy=remedy)


def require_comparable_times(left: Field, right: Field, where: str) -> None:
    """Raise `SchemaMismatch` for times with a time zone compared with times without one."""
    if left.dtype != "timestamp" or right.dtype != "timestamp" or bool(left.zone) == bool(right.zone):
        return
    zoned, naive = (left, right) if left.zone else (right, left)
    both = {left.name: "int64", right.name: "int64"}
    problem = f"the times of {zoned.name!r} have a time zone, and those of {naive.name!r} have none"
    got = ", ".join(f"{item.name!r} {item.zone or 'without a zone'}" for item in (left, right))
    remedy = f"frame[{naive.name!r}].dt.tz_localize({zoned.zone!r}), or whichever zone they are in; "
    remedy += f"T.Cast({both}) of both if they are UTC"
    if zoned.step in ("Derive", "assign"):  # whose days would match none of the zone's
        remedy += f"; floor(time, '1d', {zoned.zone!r}) in place of floor(time, '1d'), which gives days of UTC"
    raise SchemaMismatch(where, problem, got=got, expected="both with a time zone, or both without", remedy=remedy)


def require_comparable_constant(item: Field, value: Any, where: str) -> None:
    """Raise `SchemaMismatch` for a constant time with an offset or a zone beside a column of times without a zone."""
    if item.dtype == "timestamp" and not item.zone and has_offset(value):
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        naive = moment.replace(tzinfo=None).isoformat(" ")
        problem = f"the times of {item.name!r} have no time zone, and a time beside them has an offset from UTC"
        expected = "times without an offset, or a column with a zone"
        remedy = f"{naive!r}; or frame[{item.name!r}].dt.tz_localize('UTC') before, or whichever zone they are in"
        raise SchemaMismatch(where, problem, got=str(value), expected=expected, remedy=remedy)


def shared_key_type(left: Field, right: Field) -> str | None:
    """Return the type to which two keys of a join can be cast, so that equal values become equal; None without one.

    Text beside numbers becomes numbers: '007' is 7, while 7 as text is '7'.
    """
    both = {left.dtype, right.dtype}
    castable = {*INTEGERS, *FLOATS, "bool", "string", "timestamp"}
    if not all(kind in castable or kind.startswith(_CASTABLE) for kind in both):
        return None
    if "timestamp" in both:
        return "timestamp" if "string" in both else None
    if both & {*FLOATS}:
        return "float64"
    if "string" in both and not both & {*INTEGERS}:
        return "string"
    return "uint64" if "uint64" in both else "int64"


def one_key_type(left: Field, right: Field) -> str:
    """Suggest which columns to cast, or make, so that the keys of a join are of one type, for an error's remedy."""
    numbers = {*INTEGERS, *FLOATS}
    if "timestamp" in (left.dtype, right.dtype) and numbers & {left.dtype, right.dtype}:
        number = right if left.dtype == "timestamp" else left
        return f"times in place of numbers: {suggest_times(number.name, number.dtype)}"
    if (dtype := shared_key_type(left, right)) is None:
        return "another key, or one of plain values made in both tables before the join"
    targets = numbers if dtype in numbers else {dtype}
    casts = [
        f"T.Cast({{{item.name!r}: {dtype!r}}}) of the {side} table"
        for side, item in (("left", left), ("right", right))
        if item.dtype not in targets
    ]
    if "string" in (left.dtype, right.dtype) and dtype in INTEGERS:
        number, side = (right, "right") if left.dtype == "string" else (left, "left")
        casts.append(f"or, where texts are not all numbers, T.Cast({{{number.name!r}: 'string'}}) of the {side},")
    return f"{', '.join(casts)} before the join"


def whole_numbers(column: Column, kind: np.dtype[Any], xp: ModuleType) -> tuple[Array, Array]:
    """Convert to n int64 or uint64, and n booleans: False where missing, fractional or out of range."""
    data = column.data
    if data.dtype.kind == "f":
        # The range's ends are powers of two, which floats of any width hold.
        least, beyond = float(np.iinfo(kind).min), float(np.iinfo(kind).max + 1)
        is_whole = (data >= least) & (data < beyond) & (xp.floor(data) == data)
        values = xp.where(is_whole, data, 0).astype(kind)
    else:
        values = data.astype(kind, copy=False)
        if data.dtype.kind == "b" or np.can_cast(data.dtype, kind):
            is_whole = xp.ones(len(data), dtype=bool)
        else:
            is_whole = (values >= 0) == (data >= 0)  # a cast to 64 bits keeps an integer, or changes its sign
    return values, is_whole if column.valid is None else is_whole & column.valid


def key_dtype(dtypes: AbstractSet[str]) -> str:
    """Return the common type in which keys of these types are compared by value."""
    if len(dtypes) == 1:
        return next(iter(dtypes))
    if dtypes <= {*FLOATS}:
        return "float64"
    return "uint64" if "uint64" in dtypes else "int64"


def as_key(column: Column, dtype: str, xp: ModuleType) -> Column:
    """Cast a key to the type it is compared in; missing where that type has no such value, which matches no key."""
    if dtype in (column.dtype, "float64"):
        return column if column.dtype == dtype else Column(dtype, column.data.astype(dtype))
    return Column(dtype, *whole_numbers(column, np.dtype(dtype), xp))


def chain_columns(*parts: Mapping[str, Column]) -> Mapping[str, Column]:
    """Chain columns of different names into one mapping, in order; a `Matrix` among them stays one."""
    chain: list[Any] = []
    for part in parts:
        if chain and not isinstance(part, Matrix) and not isinstance(chain[-1], Matrix):
            chain[-1] = {**chain[-1], **part}
        elif len(part):
            chain.append(part)
    if not chain:
        return {}
    # A ChainMap goes through its maps from the last to the first.
    return chain[0] if len(chain) == 1 else ChainMap(*reversed(chain))


def split_parts(columns: Mapping[str, Column]) -> list[Mapping[str, Column]]:
    """Return the mappings that `chain_columns` chained."""
    return [*reversed(columns.maps)] if isinstance(columns, ChainMap) else [columns]


def order_dtype(left: Field, right: Field, where: str) -> str:
    """Choose the type in which both sides of an as-of join are ordered by value."""
    for item, side in ((left, "left"), (right, "right")):
        if item.dtype not in (*INTEGERS, *FLOATS, "timestamp"):
            remedy = suggest_conversion(item.name, item.dtype) if is_passenger(item.dtype) else "another column"
            if item.dtype in ("string", "bool"):
                cast = {item.name: "timestamp" if item.dtype == "string" else "int8"}
                remedy = f"T.Cast({cast}) before it, {OF_A_DATASET}"
                remedy += f"; {write_time_formats(item.name)}" if item.dtype == "string" else ""
            location = f"{where}, column {item.name!r}"
            problem = f"values on the {side} have no distance from each other"
            raise SchemaMismatch(location, problem, got=item.dtype, expected="numbers, dates or times", remedy=remedy)
    require_comparable_times(left, right, f"{where}, left and right")
    both = {left.dtype, right.dtype}
    if both == {"timestamp"}:
        return "timestamp"
    if "timestamp" not in both:
        if both <= {*INTEGERS}:
            common = np.promote_types(left.dtype, right.dtype).name
            if common in INTEGERS:
                return "uint64" if common == "uint64" else "int64"
        elif not both & {"int64", "uint64"}:
            return "float64"
    problem = f"{left.name!r} is {left.dtype} on the left and {right.name!r} {right.dtype} on the right"
    expected = "times on both sides, or numbers of which one type holds both"
    remedy = f"T.Cast({{{right.name!r}: {left.dtype!r}}}) on the right before it"
    if "timestamp" in both:  # numbers may be microseconds, seconds, or digits of a date
        number, side = (right, "right") if left.dtype == "timestamp" else (left, "left")
        remedy = f"times on the {side}: {suggest_times(number.name, number.dtype)}"
    raise SchemaMismatch(where, problem, expected=expected, remedy=remedy)


def check_distance(value: Any, where: str) -> None:
    """Raise `BadConfig` unless a value is a number >= 0, a duration, or None."""
    if value is None or (is_number(value) and value >= 0) or parse_duration_us(value, least=0) is not None:
        return
    raise _make_error(value, where, "a number from 0 on, or a length of time", "'2h' for times, 10 for numbers")


def convert_distance(value: Any, dtype: str, where: str) -> Distance | None:
    """Convert a distance to the units of a type that orders rows."""
    check_distance(value, where)
    if value is None:
        return None
    distance: Distance | None = None
    if dtype == "timestamp":
        expected, example, distance = "a length of time", "'2h'", parse_duration_us(value, least=0)
    elif dtype == "float64":
        expected, example, distance = "a number", "10", float(value) if is_number(value) else None
    else:
        expected, example, distance = "an integer", "10", int(value) if is_integer(value) else None
    if distance is None:
        order = "times" if dtype == "timestamp" else dtype
        raise _make_error(value, where, f"{expected}, for the order is one of {order}", example)
    return distance


def _make_error(value: Any, where: str, expected: str, example: str) -> BadConfig:
    name = where.rpartition("(")[2].removesuffix("=)")
    return BadConfig(where, "makes no sense", got=value, expected=expected, remedy=f"{name}={example}")


def columns_by_plan(
    plan: Plan, frame: Frame, inputs: Sequence[Field], outputs: Sequence[Field], backend: Backend
) -> dict[str, Column]:
    """Compute columns of a coded frame by a Polars plan over all its rows."""
    floats = [item.name for item in inputs if item.dtype in FLOATS]
    rows = backend.scan(frame, inputs).with_row_index(ROW)
    rows = rows.with_columns(pl.col(ROW).cast(pl.UInt64), pl.col(floats).fill_nan(None))
    result = backend.run_plan(plan(rows), outputs)
    return {item.name: backend.column(result, item.name) for item in outputs}


def host_table(frame: Frame, fields: Sequence[Field], backend: Backend) -> pa.Table:
    """Copy columns of a coded frame to the host, as the types of their fields."""
    types = get_arrow_types(fields)
    return backend.to_arrow(backend.select(frame, types.names)).cast(types)
