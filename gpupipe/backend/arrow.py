"""Conversion of Arrow arrays to the type of their field; the same for both backends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow_types import arrow_type, is_list, map_schema
from gpupipe.backend.columns import refuse_times
from gpupipe.backend.ragged import accumulate_lengths
from gpupipe.errors import SchemaMismatch
from gpupipe.schema import Field, get_element_dtype, is_passenger, require_no_nul, to_list_dtype

_log = logging.getLogger("gpupipe")

_CODES = pa.dictionary(pa.int32(), pa.large_string())


def parquet_path(item: Field) -> str:
    """Return the Parquet path of a column's values in files that pyarrow writes; a struct or a map has several.

    Example:
        >>> parquet_path(Field("origin", "string")), parquet_path(Field("words", "list<string>"))
        ('origin', 'words.list.element')
    """
    return item.name if get_element_dtype(item.dtype) is None else f"{item.name}.list.element"


def conform(values: pa.ChunkedArray | pa.Array, item: Field) -> pa.Array:
    """Convert to one array of the field's type: strings as int32 codes with a dictionary, times in UTC microseconds.

    Raises:
        SchemaMismatch: the values cannot be had in that type without changing them.

    Memory: shares when there is one chunk of the right type, else copies (on the host).
    """
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        values = values.chunk(0)
    element = get_element_dtype(item.dtype)
    if element is not None:
        return _conform_list(values, Field(item.name, element))
    wanted = arrow_type(item.dtype)
    try:
        values = _plain(values)
        if item.dtype == "string":
            return _encode_strings(values, _CODES)
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit))
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns" and not is_passenger(item.dtype):
            values = pc.floor_temporal(values, unit="microsecond").cast(wanted)
        if values.type != wanted:
            values = values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        if item.dtype == "timestamp" and pa.types.is_timestamp(values.type):
            refuse_times(item.name, cause)
        raise SchemaMismatch(
            f"column {item.name!r}",
            f"values of type {values.type} do not fit {item.dtype} ({cause})",
            expected=f"values that fit {item.dtype}",
            remedy="a wider type for this column",
        ) from cause
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _plain(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Decode extension types to their storage type, and run-end encoded values."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.cast(values.type.storage_type)
    return pc.run_end_decode(values) if pa.types.is_run_end_encoded(values.type) else values


def _encode_strings(values: pa.ChunkedArray | pa.Array, wanted: pa.DictionaryType) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.large_string()).dictionary_encode()
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 0:
            return pa.array([], pa.large_string()).dictionary_encode()
        united = values.unify_dictionaries().combine_chunks()
        values = united.chunk(0) if isinstance(united, pa.ChunkedArray) else united
    if values.dictionary.null_count:
        values = values.cast(pa.large_string()).dictionary_encode()
    if values.type == wanted:
        return values
    # Not values.cast(wanted), which looks every string up again.
    return pa.DictionaryArray.from_arrays(
        values.indices.cast(wanted.index_type), values.dictionary.cast(wanted.value_type), safe=False
    )


def open_stream(table: Any) -> pa.RecordBatchReader:
    """Open an object that has the Arrow C stream protocol.

    Raises:
        BadConfig: a name has the character NUL: the stream cuts it there, and Polars ends the process.

    Example:
        >>> open_stream(pa.table({"flight": [1]})).schema.names
        ['flight']
    """
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
    """Read an object that has the Arrow C stream protocol, and the fields of its columns.

    Raises:
        SchemaMismatch: no column can hold what one of its columns holds.

    Memory: all rows.

    Example:
        >>> read_stream(pa.table({"flight": [1]}), "Join")[1][0].dtype
        'int64'
    """
    read = open_stream(table).read_all()
    schema, readings = map_schema(read.schema)
    for name, (kind, reading) in readings.items():
        if reading.dtype is None:
            raise SchemaMismatch(
                f"{where}, column {name!r}",
                "no column here can hold such values",
                got=str(kind),
                expected="a type of the table in docs/guide-files.md",
                remedy=f"the table without {name!r}",
            )
        if reading.change:
            level = logging.WARNING if reading.is_lossy else logging.INFO
            _log.log(level, "%s, column %r, %s: %s", where, name, kind, reading.change)
    return read, list(schema)


def with_distinct_values(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """Remove duplicates from the dictionary; Arrow allows them.

    Memory: shares everything if there are none; hashes every value of the dictionary.

    Example:
        >>> with_distinct_values(pa.DictionaryArray.from_arrays([0, 1], ["JFK", "JFK"])).indices.to_pylist()
        [0, 0]
    """
    encoded = values.dictionary.dictionary_encode()
    if len(encoded.dictionary) == len(values.dictionary):
        return values
    return pa.DictionaryArray.from_arrays(encoded.indices.take(values.indices), encoded.dictionary)


def split_list(array: pa.Array) -> tuple[Any, pa.Array]:
    """Split an array of lists into n + 1 int64 offsets, on the host, and the elements.

    Memory: shares elements, and offsets of large lists none of which is missing; a slice's are copied.

    Example:
        >>> split_list(pa.array([["a"], None, ["b", "c"]]))[0]
        array([0, 1, 1, 3])
    """
    elements = array.flatten()  # leaves out the elements of missing lists
    if array.null_count or not pa.types.is_large_list(array.type) or not len(array):
        return accumulate_lengths(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False), np), elements
    offsets = array.offsets.to_numpy()
    return (offsets - offsets[0] if offsets[0] else offsets), elements


def list_array(offsets: Any, elements: pa.Array, valid: Any = None) -> pa.LargeListArray:
    """Build an array of lists from offsets, elements, and (if some are missing) n booleans.

    Memory: shares the elements and offsets.

    Example:
        >>> list_array(np.array([0, 1, 1]), pa.array(["a"]), np.array([True, False])).to_pylist()
        [['a'], None]
    """
    mask = None if valid is None else pa.array(~valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements, mask=mask)


def _conform_list(values: pa.ChunkedArray | pa.Array, element: Field) -> pa.LargeListArray:
    """Convert to large lists with conformed elements."""
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), pa.large_list(pa.null()))
    if not is_list(values.type):
        raise SchemaMismatch(
            f"column {element.name!r}",
            f"values of type {values.type} are no lists",
            expected=to_list_dtype(element.dtype),
            remedy=f"a list in each row, such as frame[{element.name!r}].map(lambda value: [value])",
        )
    whole = _plain(values)
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    offsets, elements = split_list(whole)
    if pa.types.is_dictionary(elements.type):
        elements = with_distinct_values(elements)
    valid = whole.is_valid().to_numpy(zero_copy_only=False) if whole.null_count else None
    return list_array(offsets, conform(elements, element), valid)
