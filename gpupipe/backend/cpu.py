"""CPU backend: pandas, pyarrow, NumPy, scikit-learn."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import infer_dtype
from pyarrow import orc

from gpupipe.backend import Array, Backend, Column, Frame, Matrix, PCAResult, arrow
from gpupipe.backend.arrow import Reading, array_from_series, read_as, refuse_times, refuse_type
from gpupipe.backend.columns import Transfers, check_names, host_table, split_parts
from gpupipe.backend.dictionaries import strings
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema, get_element_dtype, is_passenger

_NAT = np.iinfo(np.int64).min
_ROW, _MATCH = "\0row", "\0match"
_MANY_COLUMNS = 64  # pandas warns from 100
_WORTHWHILE, _COPIED_BYTES = 16, 8 << 20  # fewer columns are as fast one by one
_TEXT = pd.StringDtype(na_value=np.nan)
_PLAIN = {np.dtype(name): name for name in (*FLOATS, *INTEGERS, "bool")}  # need no encoding
_READ = {name: Reading(name) for name in _PLAIN.values()}
_MASKED = {name: name.replace("int", "Int").replace("uI", "UI") for name in INTEGERS} | {"bool": "boolean"}
_FEW = 8  # one column in so many is put into its place by itself
_MASK_BYTES = 8 << 20  # of columns checked for missing values at a time
_ALIKE = ("boolean", "integer", "floating", "mixed-integer-float", "decimal", "date", "time", "bytes")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LEAST_HEAP_BYTES, _MOST_HEAP_BYTES = 256 << 20, 1 << 30  # that stay at the end of each heap
_HEAP_DIVISOR = 32  # of the machine's memory, for that
_MMAP_BYTES = 32 << 20  # bytes from which a buffer is mapped by itself; glibc takes no more than this
_MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "ARROW_DEFAULT_MEMORY_POOL")


class CpuBackend(Backend):
    """CPU backend: frames are `pandas.DataFrame`, arrays are `numpy.ndarray`."""

    name = "cpu"
    device = "cpu"
    xp = np

    def __init__(self) -> None:
        keep_freed_memory()
        self.transfers = Transfers()

    # frames in and out ------------------------------------------------------------------------------------------------
    def read_parquet(
        self, sources: Sequence[Any], row_groups: Sequence[Sequence[int]], fields: Sequence[Field], metadata: Any = None
    ) -> Frame:
        texts, frames = [item.name for item in fields if item.dtype == "string"], []
        for source, groups in zip(sources, row_groups, strict=True):
            with pq.ParquetFile(source, metadata=metadata, read_dictionary=texts) as file:
                table = file.read_row_groups(list(groups), columns=[item.name for item in fields])
            frames.append(self.from_arrow(table, fields))
        return frames[0] if len(frames) == 1 else self.concat(frames)

    def read_orc(self, path: str, stripes: Sequence[int], fields: Sequence[Field]) -> Frame:
        file, names = orc.ORCFile(path), [item.name for item in fields]
        table = pa.Table.from_batches([file.read_stripe(stripe, columns=names) for stripe in stripes])
        return self.from_arrow(table, fields)

    def from_arrow(self, table: pa.Table, fields: Sequence[Field]) -> Frame:
        columns = {item.name: _series_data(arrow.conform(table.column(item.name), item), item) for item in fields}
        return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows), copy=False)

    def to_arrow(self, frame: Frame) -> pa.Table:
        return pa.table({str(name): _arrow_array(frame[name]) for name in frame.columns})

    def classify(self, frame: Frame) -> Mapping[str, Reading]:
        columns = enumerate(zip(frame.columns.tolist(), _plain(frame), strict=True))
        return {name: _READ[dtype] if dtype else _classify_column(frame.iloc[:, at]) for at, (name, dtype) in columns}

    def encode(self, frame: Frame) -> Frame:
        check_names(frame.columns.tolist())
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()].unique().tolist()
            remedy = "frame.loc[:, ~frame.columns.duplicated()]"
            raise SchemaMismatch("frame", "columns share a name", got=twice, expected="unique names", remedy=remedy)
        rows, positions = pd.RangeIndex(len(frame)), _find_encodable(frame)
        if positions is not None:
            encoded = pd.DataFrame(frame, copy=False).set_axis(rows).rename_axis(columns=None)
            for position in positions:
                encoded.isetitem(position, _encode_column(frame.columns[position], frame.iloc[:, position]))
            return encoded
        columns = {name: _encode_column(name, series) for name, series in frame.items()}
        return pd.DataFrame(columns, index=rows, copy=False)

    def decode(self, frame: Frame, owned_columns: Container[str] = (), schema: Schema | None = None) -> Frame:
        # Many arrays side by side slow pandas down, and it warns of them once a column is added: it joins those.
        joins = len(frame.columns) > _MANY_COLUMNS
        zones = {item.name: item.zone for item in schema or () if item.written_as}
        positions = _find_encodable(frame)
        if positions is not None:
            decoded = frame.copy()
            for position in positions:
                decoded.isetitem(position, _decode_column(frame.iloc[:, position], zones, is_owned=True))
            return decoded
        if None not in _plain(frame) and all(name in owned_columns for name in frame.columns):
            return frame.copy(deep=False)
        owned = {*frame.columns} if joins else owned_columns
        columns = {name: _decode_column(frame[name], zones, is_owned=name in owned) for name in frame.columns}
        return pd.DataFrame(columns, index=frame.index, copy=joins)

    def _find_nullable(self, frame: Frame) -> list[bool]:
        # Where values may have a mask, they may be missing.
        missing: list[bool] = []
        width = max(1, _MASK_BYTES // max(len(frame), 1))
        for start in range(0, len(frame.columns), width):
            missing += frame.iloc[:, start : start + width].isna().any().tolist()
        maskless, dtypes = np.dtype | pd.CategoricalDtype | pd.ArrowDtype, frame.dtypes.to_numpy()
        return [
            has_missing or not isinstance(dtype, maskless) for has_missing, dtype in zip(missing, dtypes, strict=True)
        ]

    def dtypes(self, frame: Frame) -> dict[str, str]:
        columns = zip(frame.columns.tolist(), _plain(frame), frame.dtypes.to_numpy(), strict=True)
        return {name: plain or _dtype_name(dtype) for name, plain, dtype in columns}

    # frames -----------------------------------------------------------------------------------------------------------
    def column(self, frame: Frame, name: str) -> Column:
        series = frame[name]
        if isinstance(series.dtype, np.dtype) and series.dtype in _PLAIN:
            return Column(_PLAIN[series.dtype], series.to_numpy())
        dtype = _dtype_name(series.dtype)
        element = get_element_dtype(dtype)
        if element is not None:
            array = array_from_series(series)
            offsets, leaves = arrow.split_list(array)
            fields = [Field(name, element, nullable=leaves.null_count > 0)]
            values = self.column(self.from_arrow(pa.table({name: leaves}), fields), name)
            return Column(dtype, offsets, arrow.get_validity(array), None, values)
        if is_passenger(dtype):
            return Column(dtype, np.where(series.isna(), -1, np.arange(len(series))), None, array_from_series(series))
        if dtype == "string":
            return Column(dtype, series.array.codes, None, strings(series.cat.categories))
        if dtype == "timestamp":
            data = series.to_numpy().view(np.int64)
            valid = data != _NAT
            return Column(dtype, data, None if valid.all() else valid)
        missing = series.isna().to_numpy()
        data = series.to_numpy(dtype=np.dtype(dtype), na_value=series.dtype.type(0))
        return Column(dtype, data, ~missing if missing.any() else None)

    def matrix(self, frame: Frame, names: Sequence[str]) -> Matrix | None:
        if len(names) < _WORTHWHILE:
            return None
        run = _find_slice(frame, names)
        if run is None and len(names) * len(frame) * 8 > _COPIED_BYTES:
            return None
        frame = frame[list(names)] if run is None else frame.iloc[:, run]
        dtypes = frame.dtypes.tolist()
        if str(dtypes[0]) not in FLOATS or dtypes.count(dtypes[0]) < len(dtypes):
            return None
        first, last = (frame.iloc[:, position].to_numpy() for position in (0, -1))
        shared = first.base is not None and first.base is last.base
        return Matrix(list(names), frame.to_numpy().T) if shared or frame.size * 8 <= _COPIED_BYTES else None

    def frame(self, columns: Mapping[str, Column], num_rows: int) -> Frame:
        parts, rows = [], pd.RangeIndex(num_rows)
        for part in split_parts(columns):
            if isinstance(part, Matrix):
                parts.append(pd.DataFrame(part.data.T, index=rows, columns=part.names, copy=False))
            else:
                data = {name: _pandas_data(column) for name, column in part.items()}
                parts.append(pd.DataFrame(data, index=rows, copy=False))
        return parts[0] if len(parts) == 1 else pd.concat(parts, axis=1)

    def scan(self, frame: Frame, fields: Sequence[Field]) -> pl.LazyFrame:
        return arrow.polars_from_arrow(host_table(frame, fields, self)).lazy()

    def run_plan(self, plan: pl.LazyFrame, fields: Sequence[Field]) -> Frame:
        rows = plan.collect(engine="streaming")
        return self.from_arrow(arrow.arrow_from_polars(rows, arrow.get_arrow_types(fields)), fields)

    def positions(self, frame: Frame) -> Array:
        return frame.index.to_numpy()

    def assign(self, frame: Frame, columns: Mapping[str, Column]) -> Frame:
        return _assign(frame, {name: _pandas_data(column) for name, column in columns.items()})

    def select(self, frame: Frame, names: Iterable[str]) -> Frame:
        columns = list(names)
        # `frame[columns]` takes pandas twice as long, and a partition of a few rows no time at all.
        if columns == frame.columns.tolist():
            return frame.copy(deep=False)
        if not frame.columns.is_unique:  # a user's; `encode` says so
            return frame[columns]
        if len(columns) > _MANY_COLUMNS:
            run = _find_slice(frame, columns)
            if run is not None:
                return frame.iloc[:, run]
            if len(columns) * len(frame) * 8 <= _COPIED_BYTES:
                return frame[columns]
        return pd.DataFrame({name: frame[name].array for name in columns}, index=frame.index, copy=False)

    def rename(self, frame: Frame, names: Mapping[str, str]) -> Frame:
        return frame.rename(columns=dict(names))

    def filter(self, frame: Frame, keep: Array) -> Frame:
        return frame if keep.all() else self.take(frame, np.flatnonzero(keep))

    def concat(self, frames: Sequence[Frame]) -> Frame:
        if len(frames) == 1:
            return frames[0].reset_index(drop=True)
        names = list(frames[0].columns)
        texts = [name for name in names if isinstance(frames[0][name].dtype, pd.CategoricalDtype)]
        united = {name: pd.api.types.union_categoricals([f[name] for f in frames]) for name in texts}
        remainder = pd.concat([f.drop(columns=texts) for f in frames], ignore_index=True)
        return _assign(remainder, united)[names]

    def merge(self, left: Frame, right: Frame, on: Sequence[str], how: str, suffix: str) -> Frame:
        keys = list(on)
        # Integers and booleans get a mask, or pandas would make floats and objects of them where there is no match.
        dtypes = {name: dtype for name, dtype in right.dtypes.items() if isinstance(dtype, np.dtype)}
        masked = {name: _MASKED[dtype.name] for name, dtype in dtypes.items() if dtype.name in _MASKED}
        whole = self.decode(right).astype(masked).dropna(subset=keys)
        whole = _assign(whole, {_MATCH: np.ones(len(whole))})
        numbered = _assign(self.decode(left), {_ROW: left.index})
        # Not an inner merge: pandas 3.0 turns matches around in it where a key of the left is missing.
        merged = numbered.merge(whole, on=keys, how="left", suffixes=("", suffix), sort=False)
        merged = merged[merged[_MATCH].notna()] if how == "inner" else merged
        result = self.encode(merged.drop(columns=[_ROW, _MATCH]))
        return result.set_axis(pd.Index(merged[_ROW], name=None))

    # arrays -----------------------------------------------------------------------------------------------------------
    def to_host(self, array: Array) -> Any:
        self.transfers.add(array.nbytes)
        return array

    # estimators -------------------------------------------------------------------------------------------------------
    def kmeans(self, block: Array, centres: Any, max_iter: int, tol: float) -> Any:
        estimator = import_module("sklearn.cluster").KMeans  # takes half a second, and most fits need none of it
        start = centres.astype(block.dtype)
        model = estimator(len(start), init=start, n_init=1, max_iter=max_iter, tol=tol, copy_x=False)
        return model.fit(block).cluster_centers_.astype(np.float64)

    def pca(self, block: Array, n_components: int) -> PCAResult:
        estimator = import_module("sklearn.decomposition").PCA
        model = estimator(n_components=n_components, svd_solver="full", copy=False).fit(block)
        parts = (model.mean_, model.components_, model.explained_variance_)
        return PCAResult(*(part.astype(np.float64) for part in parts))


def keep_freed_memory() -> bool:
    """Keep freed buffers of a few megabytes, which every partition needs again; return whether it was possible.

    By default each goes back to the system, which clears it before it is used again: half of all page faults of a job.
    Arrow's buffers come from glibc too, as its own default, mimalloc, has huge pages cleared over and over. Where the
    user has set a variable of either, or malloc is not glibc's, nothing is changed. Source: mallopt(3).

    Memory: a 32nd of the machine's, between 256 MB and 1 GB, stays with the process.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _MALLOC_VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    threshold = min(max(memory // _HEAP_DIVISOR, _LEAST_HEAP_BYTES), _MOST_HEAP_BYTES)
    if mallopt is None or not (mallopt(_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_TRIM_THRESHOLD, threshold)):
        return False
    pa.set_memory_pool(pa.system_memory_pool())
    return True


def _assign(frame: Frame, data: Mapping[str, Any]) -> Frame:
    """Create a frame with these columns, shared; `DataFrame.assign` copies each, and cannot set a column `self`."""
    columns: dict[str, Any] = {name: frame[name] for name in frame.columns}
    return pd.DataFrame(columns | dict(data), index=frame.index, copy=False)


def _series_data(array: pa.Array, item: Field) -> Any:
    """Convert one conformed Arrow array to what a pandas frame holds."""
    if get_element_dtype(item.dtype) is not None or is_passenger(item.dtype):
        return pd.arrays.ArrowExtensionArray(array)
    if item.dtype == "string":
        categories = pd.Index(array.dictionary.to_pandas(), dtype="str")
        if not categories.is_unique:
            return _series_data(arrow.with_distinct_values(array), item)
        codes = array.indices.fill_null(-1) if array.null_count else array.indices
        return pd.Categorical.from_codes(codes.to_numpy(), categories=categories, validate=False)
    if item.dtype == "timestamp":
        data = array.cast(pa.int64()).fill_null(_NAT).to_numpy()
        return pd.Series(data.view("datetime64[us]"), copy=array.null_count > 0)
    if item.dtype in FLOATS or not (item.nullable or array.null_count):
        return array.to_numpy(zero_copy_only=False)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    data = array.fill_null(False if item.dtype == "bool" else 0).to_numpy(zero_copy_only=False)
    return _mask_array(data, missing)


def _mask_array(data: Array, missing: Array) -> Any:
    kind = pd.arrays.BooleanArray if data.dtype == np.bool_ else pd.arrays.IntegerArray
    return kind(data, missing)


def _pandas_data(column: Column) -> Any:
    """Convert a column's arrays to what a pandas frame holds."""
    if column.elements is not None:
        return pd.arrays.ArrowExtensionArray(_build_list_array(column))
    if column.dictionary is not None and is_passenger(column.dtype):
        places = pa.array(column.data, mask=column.data < 0)
        return pd.arrays.ArrowExtensionArray(column.dictionary.take(places))
    if column.dictionary is not None:
        categories = pd.Index(column.dictionary.to_pandas(), dtype="str")
        return pd.Categorical.from_codes(column.data, categories=categories, validate=False)
    if column.dtype == "timestamp":
        data = column.data if column.valid is None else np.where(column.valid, column.data, _NAT)
        return data.view("datetime64[us]")
    return column.data if column.valid is None else _mask_array(column.data, ~column.valid)


def _build_list_array(column: Column) -> pa.LargeListArray:
    """Convert a column of lists to Arrow; strings as codes, missing elements null, but for NaN. Shares."""
    values = column.elements
    assert values is not None
    if values.dictionary is not None:
        codes = values.data.astype(np.int32, copy=False)
        leaves = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), values.dictionary)
    else:
        data = values.data.view("datetime64[us]") if values.dtype == "timestamp" else values.data
        leaves = pa.array(data, mask=None if values.valid is None else ~values.valid, from_pandas=False)
    return arrow.build_lists(column.data, leaves, column.valid)


def _decode_column(series: Any, zones: Mapping[str, str], *, is_owned: bool) -> Any:
    """Decode one coded column; strings by a gather, where `astype` would hash them."""
    if zones.get(series.name):
        return series.array.tz_localize("UTC").tz_convert(zones[series.name])
    if isinstance(series.dtype, pd.ArrowDtype):
        return pd.arrays.ArrowExtensionArray(arrow.plain(array_from_series(series)))
    if isinstance(series.dtype, pd.CategoricalDtype):
        return series.cat.categories.array.take(series.cat.codes.to_numpy(), allow_fill=True)
    # An array may be another frame's, or read only as Arrow's are; pandas does not know, and would write through.
    return series if is_owned else series.array.copy()


def _arrow_array(series: Any) -> pa.Array:
    """Convert one coded or plain column to Arrow, strings plain, NaN as null."""
    if isinstance(series.dtype, pd.ArrowDtype):
        return arrow.plain(array_from_series(series))
    if isinstance(series.dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy()
        indices = pa.array(codes, mask=codes < 0)
        return pa.DictionaryArray.from_arrays(indices, strings(series.cat.categories)).cast(pa.large_string())
    # pyarrow takes six times as long to look at a series as to convert it.
    return pa.array(series.to_numpy() if isinstance(series.dtype, np.dtype) else series, from_pandas=True)


def _encode_column(name: str, series: Any) -> Any:
    """Encode one column of a user's frame; shares memory if the form is the same."""
    dtype = _classify_column(series).dtype
    if dtype is None:
        return refuse_type(name, series.dtype, _made_one_type(name, series))
    if dtype == "string" and not isinstance(series.dtype, pd.ArrowDtype):
        try:
            if isinstance(series.dtype, pd.CategoricalDtype):
                return series.array.as_unordered().rename_categories(series.cat.categories.astype("str"))
            codes, values = pd.factorize(series if series.dtype == _TEXT else series.astype(_TEXT))
        except UnicodeEncodeError as cause:
            where, problem = f"column {name!r}", "text with half a character, a surrogate"
            remedy = f"frame[{name!r}].str.encode('utf-8', 'replace').str.decode('utf-8')"
            raise BadData(where, problem, got=cause.object, expected="Unicode text", remedy=remedy) from cause
        return pd.Categorical.from_codes(codes, categories=values, validate=False)
    if pd.api.types.is_datetime64_any_dtype(series.dtype) and not isinstance(series.dtype, pd.ArrowDtype):
        if getattr(series.dtype, "tz", None) is not None:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        try:
            return series.astype("datetime64[us]").array
        except pd.errors.OutOfBoundsDatetime as cause:
            refuse_times(name, cause)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return series.to_numpy(dtype=np.dtype(dtype))
    if isinstance(series.array, pd.arrays.IntegerArray | pd.arrays.FloatingArray | pd.arrays.BooleanArray):
        return series.to_numpy(dtype=np.dtype(dtype), na_value=np.nan) if dtype in FLOATS else series.array
    item = Field(name, dtype)
    return _series_data(arrow.conform(_to_arrow_array(series), item), item)


def _plain(frame: Frame) -> list[str | None]:
    """Return the dtypes of the columns that need no encoding; None for each of the others."""
    # pandas' own types take long to hash.
    return [_PLAIN.get(dtype) if isinstance(dtype, np.dtype) else None for dtype in frame.dtypes.to_numpy()]


def _classify_column(series: Any) -> Reading:
    """Map a column of a user's frame to the type it is read as, by its dtype; Python objects by their values."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        reading = _classify_column(pd.Series(dtype.categories))
        return (
            replace(reading, change=reading.change or "the order of its categories is lost")
            if dtype.ordered
            else reading
        )
    if isinstance(dtype, pd.SparseDtype):
        reading = _classify_column(series.sparse.to_dense())
        return replace(reading, change=reading.change or f"read as {reading.dtype} with all values")
    if isinstance(dtype, pd.StringDtype):
        return Reading("string")
    is_object = dtype == np.dtype(object)
    if is_object and (series.empty or infer_dtype(series) == "string"):
        return Reading("string")
    change = "nothing here carries such values"
    if isinstance(dtype, pd.PeriodDtype | pd.IntervalDtype):
        return Reading(None, change=change)
    try:
        return read_as(_to_arrow_array(series if is_object else series.iloc[:0]).type)
    except (pa.ArrowException, TypeError, OverflowError):
        if is_object:
            types = list(dict.fromkeys(type(value).__name__ for value in series.dropna()))
            change = f"no one type holds its values, of type {' and '.join(types[:3])}"
        return Reading(None, change=change)


def _made_one_type(name: str, series: Any) -> str | None:
    """Word what makes a column of Python objects one of this package's types; None for the usual remedy."""
    if series.dtype != np.dtype(object):
        return None
    kind = infer_dtype(series)
    if kind == "integer":
        return f"frame.astype({{{name!r}: 'float64'}}), or 'str' for all digits of an id"
    if kind.startswith("datetime"):
        return f"pd.to_datetime(frame[{name!r}], utc=True)"
    if all(isinstance(value, set | frozenset) for value in series[series.notna()]):
        return f"frame[{name!r}].map(sorted, na_action='ignore')"
    return None


def _to_arrow_array(series: Any) -> pa.Array:
    """Convert a column of a user's frame to Arrow."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        values = _to_arrow_array(pd.Series(series.cat.categories))
        codes = series.cat.codes.to_numpy()
        return values.take(pa.array(codes, mask=codes < 0))
    if isinstance(series.dtype, pd.SparseDtype):
        series = series.sparse.to_dense()
    if isinstance(series.dtype, np.dtype) and not series.dtype.isnative:
        series = series.astype(series.dtype.newbyteorder("="))
    if series.dtype != np.dtype(object):
        return array_from_series(series)
    if series.isna().all():
        return pa.nulls(len(series))
    kind = infer_dtype(series)
    if kind.startswith(("datetime", "timedelta")):
        typed = series.infer_objects()
        if typed.dtype == np.dtype(object):
            raise TypeError(kind)
        return array_from_series(typed)
    present = {type(value) for value in series[series.notna()]}
    if (kind == "date" and len(present) > 1) or (kind not in _ALIKE and not present <= {list, tuple, np.ndarray, dict}):
        raise TypeError(kind)  # where pyarrow would cut some to the type of the first
    try:
        array = pa.array(arrow.without_float64(series.array), from_pandas=True)
        # Arrow takes the fewest digits that these values need; other rows of the column may need more.
        return array.cast(pa.decimal128(38, array.type.scale)) if pa.types.is_decimal128(array.type) else array
    except OverflowError:
        return pa.array(series, pa.uint64(), from_pandas=True)


def _dtype_name(dtype: Any) -> str:
    """Return the field type of a coded column."""
    if isinstance(dtype, np.dtype):
        return "timestamp" if dtype.kind == "M" else str(dtype)
    if isinstance(dtype, pd.ArrowDtype):
        return str(read_as(dtype.pyarrow_dtype).dtype)
    return "string" if isinstance(dtype, pd.CategoricalDtype) else str(getattr(dtype, "numpy_dtype", dtype))


def _find_encodable(frame: Frame) -> list[int] | None:
    """Find, of many columns, the few that need encoding, by position; None if columns are few or those are many."""
    if len(frame.columns) <= _MANY_COLUMNS:
        return None
    positions = [at for at, dtype in enumerate(_plain(frame)) if dtype is None]
    return positions if len(positions) <= len(frame.columns) // _FEW else None


def _find_slice(frame: Frame, names: Sequence[str]) -> slice | None:
    """Find the slice of the frame that has these columns in this order; None if they are not contiguous."""
    columns = frame.columns
    start = columns.get_loc(names[0]) if names[0] in columns else len(columns)
    run = slice(start, start + len(names))
    return run if columns[run].tolist() == list(names) else None
