"""Backend protocol: frames, columns, estimators, and counted copies to the host.

A *frame* is a `pandas.DataFrame` or a `cudf.DataFrame`. Inside the library a frame is in *coded* form: a string column
is a `category`, an integer or boolean column whose field is nullable is masked, timestamps are datetime64[us], and the
index holds the rows' positions in the frame that was read. `encode` brings a user's frame into that form and `decode`
brings it back; a `Column` is one of its columns as arrays, which is what steps work on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from gpupipe.backend.arrow_types import Reading
from gpupipe.schema import FLOATS, Field, Schema

Array: TypeAlias = Any  # numpy.ndarray | cupy.ndarray, as the backend's `xp`
Frame: TypeAlias = Any  # pandas.DataFrame | cudf.DataFrame
FrameMakers: TypeAlias = Sequence[Callable[[], Frame]]  # of which each is called when it is its turn

# Numbers that are worked on at a time: 1 MiB of float64 stays in a core's cache.
_CACHED_NUMBERS = 1 << 17
_LINE = 8  # float64 of a cache line, which is read whole where columns are interleaved
# Rows of a page of Parquet: what pyarrow and cuDF write by default, and what cuDF's writer encodes at a time.
_MOST_PAGE_ROWS, LEAST_PAGE_ROWS = 20_000, 5_000


def get_array_module(array: Array) -> ModuleType:
    """Return the array's module, NumPy or CuPy; CuPy's arrays have no `__array_namespace__`."""
    return sys.modules[type(array).__module__]


def accumulate_lengths(lengths: Array, xp: ModuleType) -> Array:
    """Compute the n + 1 int64 offsets of n lists from their lengths."""
    offsets = xp.zeros(len(lengths) + 1, dtype="int64")
    offsets[1:] = xp.cumsum(lengths)
    return offsets


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
        self._places = {name: place for place, name in enumerate(self.names)}

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
    """Interface of both backends (`cpu.py`, `gpu.py`), which have its methods in the same order."""

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

    def classify(self, frame: Frame) -> Mapping[str, Reading]:
        """Map each column of a user's frame to the type it is read as."""

    def encode(self, frame: Frame) -> Frame:
        """Encode a user's frame, which is not modified, with row positions as index; `SchemaMismatch` if refused."""

    def decode(self, frame: Frame, own: Container[str] = (), schema: Schema | None = None) -> Frame:
        """Decode a coded frame to plain strings, in separate memory that the user may write to.

        Columns named in `own` are in such memory already, and need no copy. Times have the zone that `schema` says.
        """

    def schema_of(self, frame: Frame, readings: Mapping[str, Reading] | None = None) -> Schema:
        """Return the fields of a coded frame, each the start of a lineage; dates and zones are those of `classify`."""

    def dtypes(self, frame: Frame) -> dict[str, str]:
        """Return the types of a coded frame's columns, by name; reads no values."""

    # frames -----------------------------------------------------------------------------------------------------------
    def column(self, frame: Frame, name: str) -> Column:
        """Return one column as arrays, sharing the frame's memory where possible."""

    def matrix(self, frame: Frame, names: Sequence[str]) -> Matrix | None:
        """Return many columns of one float type as one array, shared, or up to 8 MiB; None for few or any others."""

    def stored(self, frame: Frame, name: str) -> RawColumn | None:
        """Return the storage of one numeric or boolean column, shared; None for any other."""

    def frame(self, columns: Mapping[str, Column], num_rows: int) -> Frame:
        """Build a coded frame of these columns; a `Matrix` is shared."""

    def plan_engine(self) -> Any:
        """Return the Polars engine that runs plans over frames of this backend; it never falls back to another."""

    def positions(self, frame: Frame) -> Array:
        """Return the n row positions that the frame's index holds."""

    def assign(self, frame: Frame, columns: Mapping[str, Column]) -> Frame:
        """Return a frame with these columns replaced or added at the end; the others are shared."""

    def select(self, frame: Frame, names: Iterable[str]) -> Frame:
        """Return a frame with these columns only."""

    def rename(self, frame: Frame, names: Mapping[str, str]) -> Frame:
        """Return a frame with columns renamed from key to value."""

    def take(self, frame: Frame, rows: Array) -> Frame:
        """Take the rows at these integer positions, in that order, with their index."""

    def filter(self, frame: Frame, keep: Array) -> Frame:
        """Keep the rows where the boolean array is True, in order, with their index."""

    def concat(self, frames: Sequence[Frame]) -> Frame:
        """Concatenate the rows of frames with a new index; dictionaries are united."""

    def merge(self, left: Frame, right: Frame, on: Sequence[str], how: str, suffix: str) -> Frame:
        """Join frames in left, then right order, with left index; null keys match none; right names get `suffix`."""

    # arrays -----------------------------------------------------------------------------------------------------------
    def to_device(self, array: Any) -> Array:
        """Convert a NumPy array to this backend's. Memory: shares on the CPU, copies to the device on the GPU."""

    def to_host(self, array: Array) -> Any:
        """Convert this backend's array to NumPy; counted in `transfers`, as every copy to the host."""

    def fuses(self) -> bool:
        """Return whether `write_rows` is available, which then also computes elementwise programs."""

    def write_rows(self, words: Array, columns: Sequence[Column], ids: Sequence[bool], halves: int = 0) -> bool:
        """Write rows of a block in one pass over equally long columns of numbers, or booleans without a mask.

        Column j becomes word j of `words` (n x W int32, W a multiple of 8, at an address that is a multiple of 32): as
        int32 where `ids` is True, else as float32; the first `halves` columns as bfloat16, two in a word; the rest of a
        row is 0. The kernel computes a `DeferredColumn`. False means that there is no such pass here, or that a value
        is missing, infinite, or one that a step refuses: what is in `words` then means nothing.
        """

    def trim(self) -> None:
        """Give memory kept for reuse back to the device, after waiting for it, so that what is free can be measured."""

    def make_room(self, num_bytes: int) -> None:
        """Trim, before torch allocates a block of that size, and limit frames and arrays to the rest.

        Raises `OutOfDeviceMemory` if no space is left for training. A memory resource of the user's gets no limit.
        """

    # estimators -------------------------------------------------------------------------------------------------------
    def kmeans(self, block: Array, centres: Any, max_iter: int, tol: float) -> Any:
        """Run Lloyd's k-means over `block` (n x F, private to the call) from and to centres on the host, k x F float64.

        It ends where the squared distances all centres have moved add up to `tol` times the columns' mean variance.
        """

    def pca(self, block: Array, n_components: int) -> PCAResult:
        """Compute the principal components of `block` (n x F, private to the call), by cuML or scikit-learn."""
