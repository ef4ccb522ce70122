"""GPU backend: cuDF, CuPy, cuML, RMM, by their public API only.

Not yet run on a GPU: the tests in `tests/rapids` bind every call to RAPIDS' own signatures and rehearse the rest.
Coded floats hold NaN and no nulls, so that CuPy shares a column without a copy; what a user sees has nulls.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import finalize

import cudf
import cupy
import numpy as np
import polars as pl
import pyarrow as pa
import pylibcudf as plc
import rmm
from cuda.bindings import runtime
from polars.io.plugins import register_io_source

from gpupipe.backend import Array, Backend, Column, Frame, PCAResult, RawColumn, arrow, select
from gpupipe.backend.arrow import Reading, accumulate_lengths, read_as, refuse_type
from gpupipe.backend.columns import (
    LEAST_PAGE_ROWS,
    FrameMakers,
    ParquetLayout,
    Transfers,
    check_names,
    host_table,
    with_missing_row,
)
from gpupipe.backend.device.memory import etl_limit, explain_out_of_memory, free_unused
from gpupipe.backend.device.probe import install_lines, this_machine
from gpupipe.backend.fused.switch import FusedRows
from gpupipe.errors import BackendMissing, SchemaMismatch
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, Field, Schema, get_element_dtype, is_passenger, to_list_dtype

_NOT_HELD = r"\bdecimal256\(|\btime(32|64)\[|\b(large_)?binary\b|fixed_size_|map<|date32|tz="
_CODECS = {"snappy": "SNAPPY", "zstd": "ZSTD", "lz4": "LZ4", "none": "NONE"}
_LEFT, _RIGHT = "\0left row", "\0right row"
# Without pandas' metadata, and without columns from the path.
_AS_WRITTEN = {"use_pandas_metadata": False, "dataset_kwargs": {"partitioning": None}, "ignore_missing_columns": False}
_log = logging.getLogger("gpupipe")


class GpuBackend(Backend):
    """GPU backend: frames are `cudf.DataFrame`, arrays are `cupy.ndarray`, on the device current at construction."""

    name = "gpu"
    xp = cupy

    def __init__(self) -> None:
        # RMM's default resource, which keeps nothing, is replaced by a stream-ordered pool with a limit. One that the
        # user has set is kept, without a limit; what it holds for reuse can be given back if it exposes its pool.
        self._index = cupy.cuda.runtime.getDevice()
        self.device = f"cuda:{self._index}"
        self.transfers = Transfers()
        self._rows = FusedRows(cupy, self._index)
        self._dictionaries: dict[int, pa.Array] = {}
        resource = rmm.mr.get_current_device_resource()
        self._is_limited, name = type(resource) is rmm.mr.CudaMemoryResource, type(resource).__name__
        self._pool: int | None = None
        self._users_pool: Any = None
        if self._is_limited:
            self._pool = cupy.cuda.runtime.deviceGetDefaultMemPool(self._index)
            self._upstream = rmm.mr.CudaAsyncViewMemoryResource(runtime.cudaMemPool_t(self._pool))
            self.make_room(0)
            return
        upstream = resource
        while hasattr(upstream, "get_upstream") and not isinstance(upstream, rmm.mr.PoolMemoryResource):
            upstream = upstream.get_upstream()
        if isinstance(upstream, rmm.mr.PoolMemoryResource):  # RMM tells its size and not what is used of it
            self._users_pool = upstream
            rmm.mr.set_current_device_resource(rmm.mr.StatisticsResourceAdaptor(resource))
        if hasattr(upstream, "pool_handle"):
            self._pool = int(upstream.pool_handle())
            _log.info("device memory: %s is set already and kept; its pool is trimmed", name)
        else:
            _log.warning("device memory: %s is set already and kept; blocks and training get what it leaves", name)

    # frames in and out ------------------------------------------------------------------------------------------------
    @explain_out_of_memory("reading Parquet")
    def read_parquet(
        self, sources: Sequence[Any], row_groups: Sequence[Sequence[int]], fields: Sequence[Field], metadata: Any = None
    ) -> Frame:
        _require_held(fields)
        if not any(row_groups):
            return self.from_arrow(arrow.get_arrow_types(fields).empty_table(), fields)
        names, groups = [item.name for item in fields], [list(each) for each in row_groups]
        with _convert_file_errors():
            frame = cudf.read_parquet(list(sources), columns=names, row_groups=groups, **_AS_WRITTEN)
        # A column that pandas wrote as its index comes back as the index, without its name if that is pandas' own.
        lost = sorted(set(names) - set(frame.columns))
        frame = frame.reset_index(drop=not lost)
        if not set(lost) <= set(frame.columns):
            frame = frame.rename(columns=dict(zip(frame.columns, lost, strict=False)), copy=False)
        return _conform_frame(frame, fields)

    @explain_out_of_memory("reading ORC")
    def read_orc(self, path: str, stripes: Sequence[int], fields: Sequence[Field]) -> Frame:
        # Not `cudf.read_orc`: it gives some stripes of a file that cuDF wrote the index of all of them, and fails.
        options = plc.io.orc.OrcReaderOptions.builder(plc.io.SourceInfo([path])).build()
        options.set_columns([item.name for item in fields])
        options.set_stripes([list(stripes)])
        options.set_timestamp_type(plc.DataType(plc.TypeId.TIMESTAMP_MICROSECONDS))  # nanoseconds end in 2262
        with _convert_file_errors():
            frame = cudf.DataFrame.from_pylibcudf(plc.io.orc.read_orc(options))
        return _conform_frame(frame, fields)

    @explain_out_of_memory("copying a table to the device")
    def from_arrow(self, table: pa.Table, fields: Sequence[Field]) -> Frame:
        _require_held(fields)
        host = {item.name: _narrow(arrow.conform(table.column(item.name), item)) for item in fields}
        frame = cudf.DataFrame.from_arrow(pa.table(host))
        return _conform_frame(frame, fields) if fields else _build_frame({}, table.num_rows)

    def to_arrow(self, frame: Frame) -> pa.Table:
        table = self.decode(frame, owned_columns=frame.columns).to_arrow(preserve_index=False)
        self.transfers.add(table.nbytes)
        types = [item.with_type(_widen(item.type) or item.type) for item in table.schema]
        return table.cast(pa.schema(types))

    @explain_out_of_memory("writing Parquet")
    def write_parquet(self, frames: FrameMakers, types: pa.Schema, path: Path, layout: ParquetLayout) -> bool:
        zoned = {item.type.tz is not None for item in types if pa.types.is_timestamp(item.type)}
        # A file's times are all UTC, or none is; those that are written frame by frame are.
        times_fit = len(zoned) < 2 and (len(frames) == 1 or False not in zoned)
        layout_fits = layout.compression in _CODECS and layout.rows_per_group >= LEAST_PAGE_ROWS
        if not (times_fit and layout_fits and all(_is_written(item.type) for item in types)):
            return False
        sink: Any = plc.io.SinkInfo([str(path)])
        writer: Any = None
        for frame in frames:
            plain = self.decode(self.select(frame(), types.names), owned_columns=types.names)
            days, columns = plc.DataType(plc.TypeId.TIMESTAMP_DAYS), []
            for item in types:
                column = plain[item.name].to_pylibcudf()[0]
                columns.append(plc.unary.cast(column, days) if pa.types.is_date32(item.type) else column)
            table = plc.Table(columns)
            page_rows = layout.page_rows(len(plain))
            with _convert_file_errors():
                if len(frames) == 1:
                    builder = plc.io.parquet.ParquetWriterOptions.builder(sink, table)
                    options = _configure_writer(builder, table, types, layout).utc_timestamps(True in zoned).build()
                    options.set_max_page_size_rows(page_rows)
                    plc.io.parquet.write_parquet(options)
                    return True
                if writer is None:
                    builder = plc.io.parquet.ChunkedParquetWriterOptions.builder(sink)
                    options = _configure_writer(builder, table, types, layout).max_page_size_rows(page_rows).build()
                    writer = plc.io.parquet.ChunkedParquetWriter.from_options(options)
                writer.write(table)
        with _convert_file_errors():
            writer.close([])
        return True

    def classify(self, frame: Frame) -> Mapping[str, Reading]:
        return {name: _classify_dtype(frame[name].dtype) for name in frame.columns}

    @explain_out_of_memory("coding strings")
    def encode(self, frame: Frame) -> Frame:
        check_names(frame.columns)
        columns = {name: _encode_column(name, series) for name, series in _columns(frame).items()}
        return _build_frame(columns, len(frame))

    def decode(self, frame: Frame, owned_columns: Container[str] = (), schema: Schema | None = None) -> Frame:
        zones = {item.name: item.zone for item in schema or () if item.zone}
        columns = _columns(frame).items()
        decoded = {
            name: _decode_column(series, is_owned=name in owned_columns, zone=zones.get(name))
            for name, series in columns
        }
        return _build_frame(decoded, len(frame), frame.index)

    def _find_nullable(self, frame: Frame) -> list[bool]:
        return [bool(frame[name].isna().any()) for name in frame.columns]

    def dtypes(self, frame: Frame) -> dict[str, str]:
        return {name: _dtype_name(name, dtype) for name, dtype in frame.dtypes.items()}

    # frames -----------------------------------------------------------------------------------------------------------
    def column(self, frame: Frame, name: str) -> Column:
        series = frame[name]
        dtype = _dtype_name(name, series.dtype)
        if get_element_dtype(dtype) is not None:
            elements = _build_frame({name: _encode_column(name, series.list.leaves)}, 0)
            return Column(dtype, *_split_list(series), None, self.column(elements, name))
        if is_passenger(dtype):
            places = cupy.arange(len(series))
            return Column(dtype, cupy.where(series.isna().to_cupy(), -1, places), None, series)
        if dtype == "string":
            codes = series.cat.codes.astype("int32", copy=False).to_cupy(na_value=-1)
            dictionary = self._dictionaries.get(id(series.dtype))
            if dictionary is None:  # copied once for all columns of one dtype
                dictionary = series.cat.categories.to_arrow().cast(pa.large_string())
                self.transfers.add(dictionary.nbytes)
                self._remember(series.dtype, dictionary)
            return Column(dtype, codes, None, dictionary)
        if dtype in FLOATS:
            return Column(dtype, series.to_cupy())
        valid = series.notna().to_cupy() if series.has_nulls else None
        if dtype == "timestamp":
            series = series.astype("int64")
        return Column(dtype, series.to_cupy(na_value=False if dtype == "bool" else 0), valid)

    def stored(self, frame: Frame, name: str) -> RawColumn | None:
        series = frame[name]
        dtype = _dtype_name(name, series.dtype)
        if not series.has_nulls or dtype not in (*INTEGERS, "bool"):
            return super().stored(frame, name)
        column = series.to_pylibcudf()[0]
        first = column.offset()
        data = cupy.asarray(column.data()).view(dtype)[first : first + len(series)]
        return RawColumn(data, cupy.asarray(column.null_mask()).view("uint8"), first, 8)

    def frame(self, columns: Mapping[str, Column], num_rows: int) -> Frame:
        return _build_frame(self._to_series(columns), num_rows)

    def scan(self, frame: Frame, fields: Sequence[Field]) -> pl.LazyFrame:
        return register_io_source(_FrameScan(frame, fields), schema=_plan_types(fields), is_pure=True)

    def run_plan(self, plan: pl.LazyFrame, fields: Sequence[Field]) -> Frame:
        # As Polars' `collect` has cudf-polars do it, but for the copy of the result to the host. RMM's current resource
        # is the one that allocates, and the streams are those of cuDF.
        from cudf_polars.dsl.ir import IRExecutionContext
        from cudf_polars.dsl.translate import Translator

        plan = plan.select([item.name for item in fields])
        translator = Translator(plan._ldf.visit(), pl.GPUEngine(executor="in-memory"))  # noqa: SLF001
        node = translator.translate_ir()
        if error := translator.unsupported_operations_error():
            raise error
        token = _is_on_device.set(True)
        try:
            result = node.evaluate(cache={}, timer=None, context=IRExecutionContext())
        finally:
            _is_on_device.reset(token)
        frame = cudf.DataFrame.from_pylibcudf(result.table, {"columns": result.column_names})
        return _conform_frame(frame, fields)

    def positions(self, frame: Frame) -> Array:
        return frame.index.to_cupy()

    def assign(self, frame: Frame, columns: Mapping[str, Column]) -> Frame:
        return _build_frame(_columns(frame) | self._to_series(columns), len(frame), frame.index)

    def select(self, frame: Frame, names: Iterable[str]) -> Frame:
        return frame[list(names)]

    def rename(self, frame: Frame, names: Mapping[str, str]) -> Frame:
        return frame.rename(columns=dict(names), copy=False)

    @explain_out_of_memory("putting frames together")
    def concat(self, frames: Sequence[Frame]) -> Frame:
        return cudf.concat(list(frames), ignore_index=True)

    @explain_out_of_memory("merging")
    def merge(self, left: Frame, right: Frame, on: Sequence[str], how: str, suffix: str) -> Frame:
        # Only keys and row numbers go through cuDF's merge: it shuffles, matches nulls, and makes integers floats.
        keys = list(on)
        left_keys, right_keys = (self.decode(self.select(side, keys), owned_columns=keys) for side in (left, right))
        left_keys[_LEFT] = cupy.arange(len(left))
        right_keys[_RIGHT] = cupy.arange(len(right))
        pairs = left_keys.merge(right_keys.dropna(subset=keys), on=keys, how=how).sort_values([_LEFT, _RIGHT])
        rows = pairs[_RIGHT].fillna(-1).astype("int64").to_cupy()
        names = {name: name + suffix if name in left.columns else name for name in right.columns if name not in keys}
        merged = self.take(left, pairs[_LEFT].astype("int64").to_cupy())
        if bool((rows >= 0).all()):
            looked_up = self.rename(self.take(self.select(right, names), rows), names)
            return _build_frame(_columns(merged) | _columns(looked_up), len(rows), merged.index)
        gaps = {new: with_missing_row(self.column(right, old), cupy).take(rows) for old, new in names.items()}
        return self.assign(merged, gaps)

    # arrays -----------------------------------------------------------------------------------------------------------
    def to_host(self, array: Array) -> Any:
        self.transfers.add(array.nbytes)
        return cupy.asnumpy(array)

    def fuses(self) -> bool:
        return self._rows.works()

    @explain_out_of_memory("writing the feature block")
    def write_rows(self, words: Array, columns: Sequence[Column], ids: Sequence[bool], halves: int = 0) -> bool:
        return self._rows.write(words, columns, ids, halves)

    def trim(self) -> None:
        cupy.cuda.runtime.deviceSynchronize()
        free_unused()
        if self._pool is not None:
            cupy.cuda.runtime.memPoolTrimTo(self._pool, 0)

    def make_room(self, num_bytes: int) -> None:
        self.trim()
        if not self._is_limited:
            return
        free, total = rmm.mr.available_device_memory()
        limit = etl_limit(free, total, num_bytes)
        # Until then the pool keeps what is freed: to give it back at every synchronisation costs more than it saves.
        cupy.cuda.runtime.memPoolSetAttribute(self._pool, cupy.cuda.runtime.cudaMemPoolAttrReleaseThreshold, limit)
        rmm.mr.set_current_device_resource(rmm.mr.LimitingResourceAdaptor(self._upstream, limit))
        _log.info("device memory: frames and arrays may take %.1f GiB of %s", limit / 2**30, self.device)

    def free_bytes(self) -> int:
        # A user's pool of 60 GiB, of which this process uses 5, has 55 besides what it may grow by; where the user has
        # limited it, that is too many.
        resource = rmm.mr.get_current_device_resource()
        if isinstance(resource, rmm.mr.LimitingResourceAdaptor):
            return int(resource.get_allocation_limit() - resource.get_allocated_bytes())
        free = int(rmm.mr.available_device_memory()[0])
        if self._users_pool is not None and isinstance(resource, rmm.mr.StatisticsResourceAdaptor):
            free += int(self._users_pool.pool_size() - resource.allocation_counts.current_bytes)
        return free

    # estimators -------------------------------------------------------------------------------------------------------
    # cuML takes seconds to import, and is the largest of the libraries: only what calls it needs it.
    @explain_out_of_memory("k-means")
    def kmeans(self, block: Array, centres: Any, max_iter: int, tol: float) -> Any:
        with _explain_missing_cuml("k-means"):
            from cuml.cluster import KMeans

        # scikit-learn's `tol` is relative to the columns' mean variance, cuML's is not: here it is 1 for both.
        size = float(block.var(axis=0).mean()) ** 0.5 or 1.0
        block /= size
        start = (centres / size).astype(block.dtype)
        model = KMeans(n_clusters=len(start), init=start, n_init=1, max_iter=max_iter, tol=tol, output_type="cupy")
        return self.to_host(model.fit(block).cluster_centers_).astype("float64") * size

    @explain_out_of_memory("PCA")
    def pca(self, block: Array, n_components: int) -> PCAResult:
        with _explain_missing_cuml("PCA", "PCA(solver='covariance'), or "):
            from cuml.decomposition import PCA

        if block.shape[1] == 1:  # cuML asks for two columns
            parts = block.mean(axis=0), cupy.ones((1, 1)), block.var(axis=0, ddof=1)
        else:
            model = PCA(n_components=n_components, svd_solver="full", output_type="cupy").fit(block)
            parts = model.mean_, model.components_, model.explained_variance_
        return PCAResult(*(self.to_host(part).astype("float64") for part in parts))

    def _to_series(self, columns: Mapping[str, Column]) -> dict[str, Any]:
        series = {name: _series(column) for name, column in columns.items()}
        for name, column in columns.items():
            if column.dictionary is not None:
                self._remember(series[name].dtype, column.dictionary)
        return series

    def _remember(self, dtype: Any, dictionary: pa.Array) -> None:
        """Cache the host copy of categories as long as cuDF keeps their dtype, which derived frames share."""
        self._dictionaries[id(dtype)] = dictionary
        finalize(dtype, self._dictionaries.pop, id(dtype), None)


_is_on_device = ContextVar("_is_on_device", default=False)  # whether cudf-polars reads what a plan scans


@dataclass(frozen=True)
class _FrameScan:
    """Source of Polars plans: the columns of a coded frame, shared with cudf-polars, copied to the host for others."""

    frame: Frame
    fields: Sequence[Field]

    def __call__(
        self, names: list[str] | None, predicate: pl.Expr | None, num_rows: int | None, _: int | None
    ) -> Iterator[Any]:
        backend = select("gpu")
        by_name = {item.name: item for item in self.fields}
        fields = [by_name[name] for name in (by_name if names is None else names)]
        if _is_on_device.get():  # cudf-polars filters by itself, and pushes no number of rows down
            yield _share_frame(self.frame, fields, backend)
            return
        if not fields:
            rows = pl.DataFrame(height=len(self.frame))
        else:
            rows = arrow.polars_from_arrow(host_table(self.frame, fields, backend))
        rows = rows if predicate is None else rows.filter(predicate)
        yield rows if num_rows is None else rows.head(num_rows)


def _share_frame(frame: Frame, fields: Sequence[Field], backend: Backend) -> Any:
    """Decode columns of a coded frame to a frame of cudf-polars, which shares all but texts and floats with gaps."""
    from cudf_polars.containers import DataFrame, DataType
    from cudf_polars.dsl.ir import IRExecutionContext

    types = _plan_types(fields)
    plain = backend.decode(backend.select(frame, types), owned_columns=types)
    columns = plc.Table([plain[name].to_pylibcudf()[0] for name in types], len(frame))
    stream = IRExecutionContext().get_cuda_stream()
    return DataFrame.from_table(columns, list(types), [DataType(kind) for kind in types.values()], stream)


def _plan_types(fields: Sequence[Field]) -> pl.Schema:
    """Return the types that columns have in plans."""
    return arrow.polars_from_arrow(arrow.get_arrow_types(fields).empty_table()).schema


@contextmanager
def _explain_missing_cuml(where: str, other: str = "") -> Iterator[None]:
    """Convert the error for a cuML that does not load to `BackendMissing`, with another way if there is one."""
    try:
        yield
    except ImportError as cause:
        problem, remedy = f"cuML does not load ({cause})", f"{other}{install_lines(this_machine())}"
        raise BackendMissing(where, problem, expected="cuML of the same release as cuDF", remedy=remedy) from cause


@contextmanager
def _convert_file_errors() -> Iterator[None]:
    """Convert C++ exceptions about a file's bytes to OSError; errors of the device pass unchanged."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, ArithmeticError) as cause:
        if "std::bad_alloc" in str(cause) or "CUDA error" in str(cause):
            raise
        raise OSError(str(cause)) from cause


def _build_frame(data: Mapping[str, Any], num_rows: int, index: Any = None) -> Frame:
    """Build a frame that shares these columns, which have no index: cuDF would align them by its values."""
    frame = cudf.DataFrame(dict(data), index=None if data else cudf.RangeIndex(num_rows))
    if index is not None:
        frame.index = index
    return frame


def _columns(frame: Frame) -> dict[str, Any]:
    plain = frame.reset_index(drop=True)
    return {name: plain[name] for name in plain.columns}


def _conform_frame(frame: Frame, fields: Sequence[Field]) -> Frame:
    return _build_frame({item.name: _conform_column(frame[item.name], item) for item in fields}, len(frame))


def _conform_column(series: Any, item: Field) -> Any:
    """Convert one column, as read, to the coded form of its field."""
    element = get_element_dtype(item.dtype)
    if element is not None:
        leaves = series.list.leaves
        offsets, valid = _split_list(series)
        leaves = leaves if element == "string" else _conform_column(leaves, Field("", element))
        return _build_list(offsets, leaves, valid)
    if is_passenger(item.dtype):
        return series
    if item.dtype == "string":
        return series.astype("category")
    if item.dtype == "timestamp":
        return series.astype("datetime64[us]", copy=False)
    series = series.astype(item.dtype, copy=False)
    if item.dtype in FLOATS and series.has_nulls:
        return cudf.Series(series.to_cupy(), nan_as_null=False)
    return series


def _series(column: Column) -> Any:
    """Convert a column's arrays to what a cuDF frame holds; shares data unless it is a string or has a mask."""
    if column.elements is not None:
        leaves = _series(column.elements)
        texts = column.elements.dictionary is not None
        return _build_list(column.data, leaves.astype("str") if texts else leaves, column.valid)
    if is_passenger(column.dtype):
        return _gather_passenger(column)
    if column.dictionary is not None:
        codes = cudf.Series(column.data).where(cudf.Series(column.data >= 0))
        values = cudf.Series.from_arrow(column.dictionary)
        return cudf.Series(cudf.CategoricalIndex.from_codes(codes, values, ordered=False))
    if column.dtype in FLOATS:
        return cudf.Series(column.data, nan_as_null=False)
    series = cudf.Series(column.data)
    if column.dtype == "timestamp":
        series = series.astype("datetime64[us]")
    return series if column.valid is None else series.where(cudf.Series(column.valid))


def _gather_passenger(column: Column) -> Any:
    """Gather a passenger's values by position, null where the position is -1."""
    values: Any = column.dictionary
    values = cudf.Series.from_arrow(values) if isinstance(values, pa.Array) else values
    places = cudf.Series(cupy.where(column.data < 0, len(values), column.data))
    tables = plc.Table([values.to_pylibcudf()[0]]), places.to_pylibcudf()[0]
    (column,) = plc.copying.gather(*tables, plc.copying.OutOfBoundsPolicy.NULLIFY).columns()
    return cudf.Series.from_pylibcudf(column)


def _require_held(fields: Sequence[Field]) -> None:
    """Raise `SchemaMismatch` for the first passenger that cuDF cannot hold."""
    for item in fields:
        if is_passenger(item.dtype) and re.search(_NOT_HELD, item.dtype):
            where, problem = f"column {item.name!r}", "a GPU's frames cannot hold such values"
            expected = "decimals of up to 128 bits, structs and lists of plain values, durations"
            remedy = "columns=[...] or .select([...]) without it, or backend='cpu'"
            raise SchemaMismatch(where, problem, got=item.dtype, expected=expected, remedy=remedy)


def _is_written(kind: pa.DataType) -> bool:
    """Return whether cuDF writes columns of a type as pyarrow does."""
    if pa.types.is_large_list(kind):
        return _is_written(kind.value_type) and not pa.types.is_timestamp(kind.value_type)
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_large_string)
    return any(test(kind) for test in tests) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)


def _configure_writer(builder: Any, table: Any, types: pa.Schema, layout: ParquetLayout) -> Any:
    """Set the options common to cuDF's writers; zones and metadata go to Arrow's schema, as in pyarrow's files."""
    described = plc.io.types.TableInputMetadata(table)
    for item, column in zip(types, described.column_metadata, strict=True):
        column.set_name(item.name).set_nullability(True)
        values = column
        if pa.types.is_large_list(item.type):
            values = column.child(1).set_name("element").set_nullability(True)
        if item.name not in layout.dictionary:
            values.set_encoding(plc.io.types.ColumnEncoding.PLAIN)
    return (
        builder.metadata(described)
        .key_value_metadata([{"ARROW:schema": base64.b64encode(types.serialize().to_pybytes()).decode()}])
        .compression(getattr(plc.io.types.CompressionType, _CODECS[layout.compression]))
        .stats_level(plc.io.types.StatisticsFreq.STATISTICS_ROWGROUP)
        .row_group_size_rows(layout.rows_per_group)
    )


def _split_list(series: Any) -> tuple[Array, Array | None]:
    """Return the offsets of a column of lists, and its mask; cuDF's own offsets begin where a slice does."""
    valid = series.notna().to_cupy() if series.has_nulls else None
    return accumulate_lengths(series.list.len().to_cupy(na_value=0), cupy), valid


def _build_list(offsets: Array, leaves: Any, valid: Array | None) -> Any:
    """Build lists from offsets, cast to cuDF's int32, and elements, which are shared; strings are not categories."""
    children = [cudf.Series(offsets.astype("int32")).to_pylibcudf()[0], leaves.to_pylibcudf()[0]]
    mask = (None, 0) if valid is None else plc.transform.bools_to_mask(cudf.Series(valid).to_pylibcudf()[0])
    column = plc.Column(plc.DataType(plc.TypeId.LIST), len(offsets) - 1, None, *mask, 0, children)
    return cudf.Series.from_pylibcudf(column)


def _narrow(array: pa.Array) -> pa.Array:
    """Convert an Arrow array for cuDF: distinct categories, lists with 32-bit offsets and no dictionary."""
    if pa.types.is_dictionary(array.type):
        return arrow.with_distinct_values(array)
    wide = _widen(array.type)
    return array if wide is None else array.cast(pa.list_(wide.value_type))


def _widen(kind: pa.DataType) -> pa.LargeListType | None:
    """Return the Arrow type of the field that lists are read as; None for any other type."""
    dtype = arrow.dtype_from_arrow(kind) or ""
    return None if get_element_dtype(dtype) is None else arrow.arrow_type(dtype)


def _decode_column(series: Any, *, is_owned: bool, zone: str | None = None) -> Any:
    """Decode one coded column: plain strings, nulls for NaN; a copy, unless it has its own memory."""
    if zone is not None:
        return series.dt.tz_localize("UTC").dt.tz_convert(zone)
    if is_passenger(_dtype_name("", series.dtype)):
        return series if is_owned else series.copy()
    if isinstance(series.dtype, cudf.ListDtype):
        offsets, valid = _split_list(series)
        return _build_list(offsets, _decode_column(series.list.leaves, is_owned=is_owned), valid)
    if isinstance(series.dtype, cudf.CategoricalDtype):
        return series.astype("str")
    if str(series.dtype) in FLOATS and series.hasnans:
        return series.nans_to_nulls()
    return series if is_owned else series.copy()


def _encode_column(name: str, series: Any) -> Any:
    """Encode one column of a user's frame; shares memory if the form is the same."""
    dtype = _dtype_name(name, series.dtype)
    if isinstance(series.dtype, cudf.CategoricalDtype):
        return series.cat.as_unordered() if series.dtype.ordered else series
    if getattr(series.dtype, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    return _conform_column(series, Field(name, dtype))


def _classify_dtype(dtype: Any) -> Reading:
    """Map a column of a user's frame to the type it is read as."""
    if isinstance(dtype, cudf.CategoricalDtype):
        change = "the order of its categories is lost" if dtype.ordered else ""
        return replace(_classify_dtype(dtype.categories.dtype), change=change)
    if getattr(dtype, "kind", "") == "M":
        zone = getattr(dtype, "tz", None)
        return read_as(pa.timestamp(_unit(dtype), None if zone is None else str(zone)))
    try:
        return Reading(_dtype_name("", dtype))
    except SchemaMismatch:
        return Reading(None, change="nothing here carries such values")


def _unit(dtype: Any) -> str:
    return str(getattr(dtype, "unit", None) or np.datetime_data(dtype)[0])


def _dtype_name(name: str, dtype: Any) -> str:
    if isinstance(dtype, cudf.ListDtype) and not isinstance(dtype.element_type, cudf.ListDtype):
        dtype_name = _dtype_name(name, dtype.element_type)
        if dtype_name in DTYPES and (dtype_name != "timestamp" or _unit(dtype.element_type) == "us"):
            return to_list_dtype(dtype_name)
    values = dtype.categories.dtype if isinstance(dtype, cudf.CategoricalDtype) else dtype
    if cudf.api.types.is_string_dtype(values):
        return "string"
    if values is dtype:
        if getattr(dtype, "kind", "") == "M":
            return "timestamp"
        dtype_name = str(getattr(dtype, "numpy_dtype", dtype))
        if dtype_name in DTYPES:
            return dtype_name
        if hasattr(dtype, "to_arrow") or getattr(dtype, "kind", "") == "m":
            kind = dtype.to_arrow() if hasattr(dtype, "to_arrow") else pa.duration(_unit(dtype))
            return read_as(kind).dtype or refuse_type(name, dtype)
    return refuse_type(name, dtype)
