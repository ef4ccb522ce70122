"""Arrow types to fields and back, and arrays brought to the type their field says; the same for both backends."""

from __future__ import annotations

import pyarrow as pa

from gpupipe.errors import SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field

__all__ = ["arrow_type", "conform", "dtype_of"]

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
    return pa.large_string() if dtype == "string" else _TO_ARROW[dtype]


def dtype_of(kind: pa.DataType) -> str | None:
    """The field type an Arrow type is read as; None for one that is not worked with (lists, structs, binary ...).

    Example:
        >>> dtype_of(pa.date32()), dtype_of(pa.list_(pa.int8()))
        ('timestamp', None)
    """
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


def conform(values: pa.ChunkedArray | pa.Array, item: Field) -> pa.Array:
    """One array of the type the field says: strings as int32 codes with one dictionary, timestamps in UTC microseconds.

    Raises:
        SchemaMismatch: the values cannot be had in that type without changing them.

    Memory: shares when there is one chunk of the right type, else copies (on the host).
    """
    wanted = _TO_ARROW[item.dtype]
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        values = values.chunk(0)
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
