"""Conversion of Arrow arrays to the type of their field, and of lists to pandas; the same for both backends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow_types import arrow_type, dtype_from_arrow, is_list, map_schema
from gpupipe.backend.columns import refuse_times, refuse_type
from gpupipe.backend.protocol import Backend, Column, Frame, accumulate_lengths
from gpupipe.errors import SchemaMismatch
from gpupipe.schema import FLOATS, ROW, Field, get_element_dtype, is_passenger, require_no_nul, to_list_dtype

_log = logging.getLogger("gpupipe")
_CODES = pa.dictionary(pa.int32(), pa.large_string())
Plan: TypeAlias = Callable[[pl.LazyFrame], pl.LazyFrame]


def parquet_path(item: Field) -> str:
    """Return the Parquet path of a column's values in files that pyarrow writes; a struct or a map has several."""
    return item.name if get_element_dtype(item.dtype) is None else f"{item.name}.list.element"


def conform(values: pa.ChunkedArray | pa.Array, item: Field) -> pa.Array:
    """Convert to one array of the field's type: strings as int32 codes with a dictionary, times in UTC microseconds."""
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        values = values.chunk(0)
    element = get_element_dtype(item.dtype)
    if element is not None:
        return _conform_list(values, Field(item.name, element))
    wanted = arrow_type(item.dtype)
    try:
        values = _plain(values)
        if item.dtype == "string":
            return _encode_strings(values)
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit))
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns" and not is_passenger(item.dtype):
            values = pc.floor_temporal(values, unit="microsecond").cast(wanted)
        if values.type != wanted:
            values = values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        if item.dtype == "timestamp" and pa.types.is_timestamp(values.type):
            refuse_times(item.name, cause)
        problem = f"values of type {values.type} do not fit {item.dtype} ({cause})"
        expected = f"values that fit {item.dtype}"
        remedy = "a wider type for this column"
        raise SchemaMismatch(f"column {item.name!r}", problem, expected=expected, remedy=remedy) from cause
    return _combine(values)


def _combine(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _plain(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Decode extension types to their storage type, and run-end encoded values."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.cast(values.type.storage_type)
    return pc.run_end_decode(values) if pa.types.is_run_end_encoded(values.type) else values


def _encode_strings(values: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.large_string()).dictionary_encode()
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 0:
            return pa.array([], pa.large_string()).dictionary_encode()
        united = values.unify_dictionaries().combine_chunks()
        values = united.chunk(0) if isinstance(united, pa.ChunkedArray) else united
    if values.dictionary.null_count:
        values = values.cast(pa.large_string()).dictionary_encode()
    if values.type == _CODES:
        return values
    # Not values.cast(_CODES), which looks every string up again.
    codes, dictionary = values.indices.cast(_CODES.index_type), values.dictionary.cast(_CODES.value_type)
    return pa.DictionaryArray.from_arrays(codes, dictionary, safe=False)


def open_stream(table: Any) -> pa.RecordBatchReader:
    """Open an object that has the Arrow C stream protocol, which cuts a name at NUL, where Polars ends the process."""
    schema = getattr(table, "schema", None)
    if isinstance(schema, pa.Schema):
        for item in schema:
            require_no_nul(item.name, str(item.type))
    elif type(table).__module__.startswith("polars.") and schema is not None:
        for name, kind in schema.items():
            require_no_nul(name, " ".join(_names_within(kind)))
    return pa.RecordBatchReader.from_stream(table)


def _names_within(kind: Any) -> Iterator[str]:
    """Yield the names of the fields within a nested Polars type."""
    for item in getattr(kind, "fields", ()):
        yield item.name
        yield from _names_within(item.dtype)
    if getattr(kind, "inner", None) is not None:
        yield from _names_within(kind.inner)


def read_stream(table: Any, where: str) -> tuple[pa.Table, list[Field]]:
    """Read an object that has the Arrow C stream protocol, and the fields of its columns, of which each needs one."""
    read = open_stream(table).read_all()
    schema, readings = map_schema(read.schema)
    for name, (kind, reading) in readings.items():
        if reading.dtype is None:
            refuse_type(name, kind, f"the table without {name!r}", where)
        if reading.change:
            level = logging.WARNING if reading.is_lossy else logging.INFO
            _log.log(level, "%s, column %r, %s: %s", where, name, kind, reading.change)
    return read, list(schema)


def with_distinct_values(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """Remove duplicates from the dictionary, which Arrow allows; shares everything if there are none."""
    encoded = values.dictionary.dictionary_encode()
    if len(encoded.dictionary) == len(values.dictionary):
        return values
    return pa.DictionaryArray.from_arrays(encoded.indices.take(values.indices), encoded.dictionary)


def split_list(array: pa.Array) -> tuple[Any, pa.Array]:
    """Split an array of lists into n + 1 int64 offsets, on the host, and the elements, which are shared."""
    elements = array.flatten()  # leaves out the elements of missing lists
    if array.null_count or not pa.types.is_large_list(array.type) or not len(array):
        return accumulate_lengths(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False), np), elements
    offsets = array.offsets.to_numpy()
    return (offsets - offsets[0] if offsets[0] else offsets), elements


def get_validity(array: pa.Array) -> Any:
    """Return n booleans, False where a value is null; None if none is."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _build_lists(offsets: Any, elements: pa.Array, valid: Any) -> pa.LargeListArray:
    mask = None if valid is None else pa.array(~valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements, mask=mask)


def _conform_list(values: pa.ChunkedArray | pa.Array, element: Field) -> pa.LargeListArray:
    """Convert to large lists with conformed elements."""
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), pa.large_list(pa.null()))
    if not is_list(values.type):
        problem = f"values of type {values.type} are no lists"
        remedy = f"a list in each row, such as frame[{element.name!r}].map(lambda value: [value])"
        raise SchemaMismatch(f"column {element.name!r}", problem, expected=to_list_dtype(element.dtype), remedy=remedy)
    lists = _combine(_plain(values))
    offsets, elements = split_list(lists)
    if pa.types.is_dictionary(elements.type):
        elements = with_distinct_values(elements)
    return _build_lists(offsets, conform(elements, element), get_validity(lists))


def without_float64(values: Any) -> Any:
    """Replace empty float64 arrays among Python objects by empty lists: NumPy makes them for any element type."""
    if str(values.dtype) != "object":
        return values
    untyped = (isinstance(each, np.ndarray) and not each.size and each.dtype == np.float64 for each in values)
    return [[] if empty else each for empty, each in zip(untyped, values, strict=True)]


def array_from_series(series: Any) -> pa.Array:
    """Convert a pandas column to one Arrow array; shares what Arrow has in one piece."""
    return _combine(pa.array(without_float64(series.array), from_pandas=True))


def build_list_array(column: Column) -> pa.LargeListArray:
    """Convert a column of lists to Arrow; strings as codes, missing elements null, but for NaN. Shares."""
    values = column.elements
    assert values is not None
    if values.dictionary is not None:
        codes = values.data.astype(np.int32, copy=False)
        leaves = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), values.dictionary)
    else:
        data = values.data.view("datetime64[us]") if values.dtype == "timestamp" else values.data
        leaves = pa.array(data, mask=None if values.valid is None else ~values.valid, from_pandas=False)
    return _build_lists(column.data, leaves, column.valid)


def plain_table(table: pa.Table) -> pa.Table:
    """Decode the lists of a table of conformed columns (see `plain`), and make NaN null; strings stay codes."""
    columns = []
    for column in table.columns:
        if pa.types.is_floating(column.type):
            columns.append(_null_for_nan(column))
        else:
            chunks = [plain(chunk) for chunk in column.chunks]
            columns.append(pa.chunked_array(chunks) if chunks else column)
    return pa.table(columns, table.column_names)


def plain(array: pa.Array) -> pa.Array:
    """Decode conformed lists: strings plain, a missing element null whatever its type. Any other array is shared."""
    if get_element_dtype(dtype_from_arrow(array.type) or "") is None:
        return array
    offsets, leaves = split_list(array)
    if pa.types.is_dictionary(leaves.type):
        leaves = leaves.cast(pa.large_string())
    if pa.types.is_floating(leaves.type):
        leaves = _null_for_nan(leaves)
    return _build_lists(offsets, leaves, get_validity(array))


def _null_for_nan(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    is_nan = pc.is_nan(values)
    return pc.if_else(is_nan, pa.scalar(None, values.type), values) if pc.any(is_nan).as_py() else values


def columns_by_plan(
    plan: Plan, frame: Frame, inputs: Sequence[Field], made: Sequence[Field], backend: Backend
) -> dict[str, Column]:
    """Compute columns of a coded frame by a Polars plan over all its rows."""
    floats = [item.name for item in inputs if item.dtype in FLOATS]
    rows = polars_from_arrow(host_table(frame, inputs, backend)).lazy().with_row_index(ROW)
    rows = rows.with_columns(pl.col(ROW).cast(pl.UInt64), pl.col(floats).fill_nan(None))
    found = plan(rows).collect(engine=backend.plan_engine())
    types = pa.schema([(item.name, arrow_type(item.dtype)) for item in made])
    result = backend.from_arrow(arrow_from_polars(found, types), made)
    return {item.name: backend.column(result, item.name) for item in made}


def host_table(frame: Frame, fields: Sequence[Field], backend: Backend) -> pa.Table:
    """Copy columns of a coded frame to the host, as the types of their fields."""
    types = pa.schema([(item.name, arrow_type(item.dtype)) for item in fields])
    return backend.to_arrow(backend.select(frame, types.names)).cast(types)


def polars_from_arrow(table: pa.Table) -> pl.DataFrame:
    """Convert an Arrow table to Polars; decimals too wide for Polars are passed as bytes."""
    columns = []
    for column in table.columns:
        if pa.types.is_decimal256(column.type):
            columns.append(pa.chunked_array([chunk.view(pa.binary(32)) for chunk in column.chunks], pa.binary(32)))
        elif "fixed_size_list" in str(column.type):  # Polars misreads slices of them
            copies = [chunk.take(pa.array(range(len(chunk)), pa.int64())) for chunk in column.chunks]
            columns.append(pa.chunked_array(copies, column.type))
        else:
            columns.append(column)
    return pl.DataFrame(pa.table(columns, table.column_names))


def arrow_from_polars(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Convert a Polars frame to an Arrow table of this schema."""
    table = frame.select(schema.names).to_arrow()
    columns = []
    for item, column in zip(schema, table.columns, strict=True):
        if pa.types.is_decimal256(item.type) and not pa.types.is_decimal(column.type):
            chunks = column.cast(pa.binary(32)).chunks
            columns.append(pa.chunked_array([chunk.view(item.type) for chunk in chunks], item.type))
        elif pa.types.is_map(item.type) and not pa.types.is_map(column.type):  # Polars below 2 has no maps
            columns.append(pa.chunked_array([_build_map(chunk, item.type) for chunk in column.chunks], item.type))
        else:
            columns.append(column.cast(item.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _build_map(pairs: pa.Array, kind: pa.MapType) -> pa.MapArray:
    """Build maps from lists of keys and values."""
    offsets, elements = split_list(pairs)
    keys, values = elements.flatten()
    places, missing = pa.array(offsets, pa.int32()), pairs.is_null()
    return pa.MapArray.from_arrays(places, keys.cast(kind.key_type), values.cast(kind.item_type), kind, mask=missing)
