"""Arrow types to fields and back, and arrays brought to the type their field says; the same for both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.ragged import offsets_of
from gpupipe.errors import SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, element_of, list_of

__all__ = ["arrow_type", "conform", "dtype_of", "list_array", "opened_list", "parquet_path", "with_distinct_values"]

_TO_ARROW = {
    **{name: getattr(pa, name)() for name in (*INTEGERS, *FLOATS)},
    "bool": pa.bool_(),
    "string": pa.dictionary(pa.int32(), pa.large_string()),
    "timestamp": pa.timestamp("us"),
}
_FROM_ARROW = {str(value): name for name, value in _TO_ARROW.items()} | {"halffloat": "float32"}


def arrow_type(dtype: str) -> pa.DataType:
    """The Arrow type a field's column is written as; strings plain.

    Example:
        >>> arrow_type("string"), arrow_type("timestamp")
        (DataType(large_string), TimestampType(timestamp[us]))
    """
    element = element_of(dtype)
    if element is not None:
        return pa.large_list(arrow_type(element))
    return pa.large_string() if dtype == "string" else _TO_ARROW[dtype]


def dtype_of(kind: pa.DataType) -> str | None:
    """The field type an Arrow type is read as; None for one that is not worked with (structs, lists of lists ...).

    Example:
        >>> dtype_of(pa.date32()), dtype_of(pa.list_(pa.int8())), dtype_of(pa.list_(pa.list_(pa.int8())))
        ('timestamp', 'list<int8>', None)
    """
    if _is_list(kind):
        element = None if _is_list(kind.value_type) else dtype_of(kind.value_type)
        return None if element is None else list_of(element)
    if pa.types.is_dictionary(kind):
        return dtype_of(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "timestamp"
    if pa.types.is_decimal(kind):
        return "float64"
    if pa.types.is_null(kind):
        return "float64"
    return _FROM_ARROW.get(str(kind))


def parquet_path(item: Field) -> str:
    """The path of a column's values in the Parquet files that pyarrow writes.

    Example:
        >>> parquet_path(Field("origin", "string")), parquet_path(Field("words", "list<string>"))
        ('origin', 'words.list.element')
    """
    return item.name if element_of(item.dtype) is None else f"{item.name}.list.element"


def conform(values: pa.ChunkedArray | pa.Array, item: Field) -> pa.Array:
    """One array of the type the field says: strings as int32 codes with one dictionary, timestamps in UTC microseconds.

    Raises:
        SchemaMismatch: the values cannot be had in that type without changing them.

    Memory: shares when there is one chunk of the right type, else copies (on the host).
    """
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        values = values.chunk(0)
    element = element_of(item.dtype)
    if element is not None:
        return _conformed_list(values, Field(item.name, element))
    wanted = _TO_ARROW[item.dtype]
    try:
        if item.dtype == "string":
            return _coded(values, wanted)
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit))
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
            values = values.cast(wanted, safe=False)  # finer than a microsecond is cut off
        if values.type != wanted:
            values = values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise SchemaMismatch(
            f"column {item.name!r}",
            f"values of type {values.type} do not fit {item.dtype} ({cause})",
            expected=f"values that fit {item.dtype}",
            remedy="a wider type for this column",
        ) from cause
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _coded(values: pa.ChunkedArray | pa.Array, wanted: pa.DictionaryType) -> pa.DictionaryArray:
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


def with_distinct_values(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values, each of which the dictionary names once; Arrow allows that it is named more often.

    Memory: shares everything where each is named once; looks every value of the dictionary up.

    Example:
        >>> with_distinct_values(pa.DictionaryArray.from_arrays([0, 1], ["JFK", "JFK"])).indices.to_pylist()
        [0, 0]
    """
    encoded = values.dictionary.dictionary_encode()
    if len(encoded.dictionary) == len(values.dictionary):
        return values
    return pa.DictionaryArray.from_arrays(encoded.indices.take(values.indices), encoded.dictionary)


def opened_list(array: pa.Array) -> tuple[Any, pa.Array]:
    """The n + 1 int64 offsets of an array of lists as a `Column` has them, on the host, and the elements.

    Memory: shares elements, and offsets of large lists none of which is missing; a slice's are copied.

    Example:
        >>> opened_list(pa.array([["a"], None, ["b", "c"]]))[0]
        array([0, 1, 1, 3])
    """
    elements = array.flatten()  # leaves out what lies under a missing list
    if array.null_count or not pa.types.is_large_list(array.type) or not len(array):
        return offsets_of(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False), np), elements
    offsets = array.offsets.to_numpy()
    return (offsets - offsets[0] if offsets[0] else offsets), elements


def list_array(offsets: Any, elements: pa.Array, valid: Any = None) -> pa.LargeListArray:
    """Lists of their offsets, their elements, and (where some are missing) n booleans.

    Memory: shares the elements and offsets.

    Example:
        >>> list_array(np.array([0, 1, 1]), pa.array(["a"]), np.array([True, False])).to_pylist()
        [['a'], None]
    """
    mask = None if valid is None else pa.array(~valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements, mask=mask)


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    return any(test(kind) for test in tests) or pa.types.is_large_list_view(kind)


def _conformed_list(values: pa.ChunkedArray | pa.Array, element: Field) -> pa.LargeListArray:
    """Large lists whose elements are as `conform` has them."""
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), pa.large_list(pa.null()))
    if not _is_list(values.type):
        raise SchemaMismatch(
            f"column {element.name!r}",
            f"values of type {values.type} are no lists",
            expected=list_of(element.dtype),
            remedy=f"a list in each row, such as frame[{element.name!r}].map(lambda value: [value])",
        )
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    offsets, elements = opened_list(whole)
    if pa.types.is_dictionary(elements.type):
        elements = with_distinct_values(elements)
    valid = whole.is_valid().to_numpy(zero_copy_only=False) if whole.null_count else None
    return list_array(offsets, conform(elements, element), valid)
