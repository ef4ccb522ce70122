"""Arrow types and what they are read as (docs/decisions/023-column-types.md); arrays of the type of their field."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, NoReturn, TypeAlias, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import (
    FLOATS,
    INTEGERS,
    Field,
    Schema,
    get_element_dtype,
    is_passenger,
    require_no_nul,
    to_list_dtype,
)
from gpupipe.support.forks import require_threads
from gpupipe.support.origins import read_origins

_log = logging.getLogger("gpupipe")
INDEX = "the frame's index is no column"
"""What a note on pandas' row names begins with."""
_Values: TypeAlias = pa.ChunkedArray | pa.Array
_CODES = pa.dictionary(pa.int32(), pa.large_string())
_ARROW_TYPES = {name: getattr(pa, name)() for name in (*INTEGERS, *FLOATS)}
_ARROW_TYPES |= {"bool": pa.bool_(), "string": pa.large_string(), "timestamp": pa.timestamp("us")}
_UNITS = [f"{kind}[{unit}]" for kind in ("duration", "timestamp") for unit in ("s", "ms", "us", "ns")]
_ALIASES = ["null", "halffloat", "string", "binary", "large_binary", "date32[day]", "date64[ms]", "time32[ms]", *_UNITS]
_LEAVES = [*_ARROW_TYPES.values(), pa.time64("us"), pa.time64("ns"), *map(pa.type_for_alias, _ALIASES)]
_BY_TEXT = {str(kind): kind for kind in _LEAVES}
_STORED_AS = {"time32[s]": "time32[ms]", "date64[ms]": "date32[day]", "binary_view": "binary", "string_view": "string"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\([^)]*\)|[<>:,]|[^<>:,\[\]()"\s]+|\s+')
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_LIST_TYPES = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


def iter_valid(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield record batches that came from a file once offsets, codes and UTF-8 are known to be in range.

    Arrow's readers do not look at them, and whatever uses them reads memory that is not its own: a dictionary of two
    texts with the codes [0, 1, 7]. Raises ArrowInvalid, as the readers do.
    """
    for batch in batches:
        batch.validate(full=True)
        yield batch


@dataclass(frozen=True, slots=True)
class Reading:
    """Mapping of an Arrow type to a field's type."""

    dtype: str | None  # the field's type; None for a column that is left out
    written_as: str = ""  # see `Field`
    change: str = ""  # how the type changes, in words; empty if it round-trips
    is_lossy: bool = False  # whether values may change, too


_READ = {
    **{str(kind): Reading(dtype) for dtype, kind in _ARROW_TYPES.items()},
    **dict.fromkeys(("string", "string_view"), Reading("string")),
    "halffloat": Reading("float32", change="read as float32"),
    "null": Reading("float64", change="without any value, read as float64"),
}


@lru_cache(maxsize=4096)
def read_as(kind: pa.DataType) -> Reading:
    """Map an Arrow type to the type its columns are read as."""
    if str(kind) in _READ:
        return _READ[str(kind)]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _read_time(kind)
    inner = _get_value_type(kind)
    if inner is not None:
        reading, change = read_as(inner), ""
        if isinstance(kind, pa.BaseExtensionType):
            change = f"read as {reading.dtype}, which it is stored as"
        elif pa.types.is_dictionary(kind) and kind.ordered:
            change = "the order of its categories is lost"
        return replace(reading, change=reading.change or change)
    if is_list(kind):
        element = read_as(kind.value_type)
        if element.dtype in _ARROW_TYPES and not element.written_as and not element.is_lossy:
            dtype = to_list_dtype(element.dtype)
            alike = not element.change and not pa.types.is_fixed_size_list(kind)
            return Reading(dtype, change="" if alike else f"read as {dtype}")
    text = _text(kind, storable=True)
    if text is None:
        return Reading(None, change="nothing here carries such values")
    return Reading(text, change="" if text == _text(kind, storable=False) else f"read as {text}")


def map_schema(schema: pa.Schema) -> tuple[Schema, dict[str, tuple[pa.DataType, Reading]]]:
    """Return the fields of the supported columns, and for all columns the Arrow type and its mapping."""
    columns = {item.name: (item.type, read_as(item.type)) for item in schema}
    stated = {item.name: read_origins((item.metadata or {}).get(b"origins", b"")) for item in schema}
    fields = (
        Field(name, reading.dtype, written_as=reading.written_as, origins=stated[name])
        for name, (_, reading) in columns.items()
        if reading.dtype
    )
    return Schema(fields), columns


def read_index(schema: pa.Schema) -> dict[str, tuple[pa.DataType, Reading]]:
    """Return the named RangeIndex that pandas keeps in a schema's metadata alone, as a column that is left out."""
    change = f"{INDEX}, data.reset_index() before it is written makes it one"
    try:
        indexes = (schema.pandas_metadata or {}).get("index_columns") or ()
    except ValueError:  # damaged
        return {}
    names = [index["name"] for index in indexes if isinstance(index, dict) and index.get("name") is not None]
    return {name: (pa.int64(), Reading(None, change=change)) for name in names if name not in schema.names}


def keep_index(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata but for what `read_index` reads, which is alike in files of other rows."""
    indexes = [{"kind": "range", "name": name} for name in read_index(schema)]
    schema = schema.remove_metadata()
    return schema.with_metadata({"pandas": json.dumps({"index_columns": indexes})}) if indexes else schema


def _read_time(kind: pa.DataType) -> Reading:
    """Map a date or timestamp type."""
    if pa.types.is_date(kind):
        return Reading("timestamp", str(pa.date32()), "" if pa.types.is_date32(kind) else "read as date32[day]")
    zone, changes = kind.tz, []
    try:
        if zone is not None and not re.fullmatch(r"[+-]\d\d:\d\d", zone):
            ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone, changes = "UTC", [f"its zone {zone!r} is unknown, read as UTC"]
    if kind.unit != "us":
        changes.append("rounded down to microseconds" if kind.unit == "ns" else "read as microseconds")
    written_as = "" if zone is None else str(pa.timestamp("us", zone))
    return Reading("timestamp", written_as, ", ".join(changes), is_lossy=kind.unit == "ns")


def _get_value_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the value type of an extension, dictionary or run-end encoded type; None for any other type."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) else None


def dtype_from_arrow(kind: pa.DataType) -> str | None:
    """Return the field type that an Arrow type is read as; None if it is not supported."""
    return read_as(kind).dtype


@lru_cache(maxsize=4096)
def arrow_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a field's `dtype`, as which strings are plain, or parse that of its `written_as`."""
    element = get_element_dtype(dtype)
    if element is not None:
        return pa.large_list(arrow_type(element))
    return _ARROW_TYPES[dtype] if dtype in _ARROW_TYPES else _parse_text(dtype)


def get_arrow_types(fields: Iterable[Field]) -> pa.Schema:
    """Return the Arrow schema of fields, with the type of each `dtype`."""
    return pa.schema([(item.name, arrow_type(item.dtype)) for item in fields])


def get_file_type(item: Field) -> pa.DataType:
    """Return the Arrow type that a field is written as: a date as a date, a timestamp with its time zone."""
    return arrow_type(item.written_as or item.dtype)


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list type, in any of its forms."""
    return isinstance(kind, _LIST_TYPES)


def holds_fields(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether a type has all struct fields of another, and the same dates and times: Arrow's cast drops them."""
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        types = {item.name: item.type for item in kind.fields}
        return all(item.name in types and holds_fields(types[item.name], item.type) for item in other.fields)
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return holds_fields(kind.key_type, other.key_type) and holds_fields(kind.item_type, other.item_type)
    if is_list(kind) and is_list(other):
        return holds_fields(kind.value_type, other.value_type)
    is_time = any(test(side) for test in (pa.types.is_timestamp, pa.types.is_date) for side in (kind, other))
    return not is_time or pa.types.is_null(other) or bool(kind.equals(other))


def _text(kind: pa.DataType, *, storable: bool) -> str | None:
    """Format a type as Arrow does, for `_parse_text` to read; names that are not identifiers are quoted.

    If `storable`, format the equivalent that frames and Parquet files support; None if there is none.
    """
    inner = _get_value_type(kind)
    if inner is not None and storable:
        return _text(inner, storable=True)
    if pa.types.is_struct(kind):
        fields = [_field_text(item, storable=storable) for item in kind.fields]
        texts = [field for field in fields if field is not None]
        return f"struct<{', '.join(texts)}>" if len(texts) == len(fields) and (texts or not storable) else None
    if pa.types.is_map(kind):
        key, item = (_text(part, storable=storable) for part in (kind.key_type, kind.item_type))
        is_sorted = ", keys_sorted" if kind.keys_sorted else ""
        return None if key is None or item is None else f"map<{key}, {item}{is_sorted}>"
    if is_list(kind):
        item = _text(kind.value_type, storable=storable)
        size = f"[{kind.list_size}]" if pa.types.is_fixed_size_list(kind) else ""
        is_large = pa.types.is_large_list(kind) or (storable and pa.types.is_large_list_view(kind))
        name = "fixed_size_list" if size else "large_list" if is_large else "list"
        return None if item is None else f"{name}<item: {item}>{size}"
    text = _STORED_AS.get(str(kind), str(kind)) if storable else str(kind)
    is_known = pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_timestamp(kind)
    return text if is_known or text in _BY_TEXT or not storable else None


def _field_text(item: pa.Field, *, storable: bool) -> str | None:
    kind, escaped = _text(item.type, storable=storable), item.name.replace("\\", "\\\\").replace('"', '\\"')
    name = item.name if _PLAIN_NAME.fullmatch(item.name) else f'"{escaped}"'
    return None if kind is None else f"{name}: {kind}"


def _parse_text(text: str) -> pa.DataType:
    """Parse a type that `_text` formatted."""
    return _parse_tokens([token for token in _TOKEN.findall(text) if not token.isspace()][::-1])


def _parse_tokens(tokens: list[str]) -> pa.DataType:
    """Parse the type at the end of the reversed tokens, and remove its tokens."""
    name = tokens.pop()
    if tokens and tokens[-1] == "<":
        return _parse_nested(name, tokens)
    if tokens and tokens[-1][0] in "[(":
        inside = tokens.pop()
        if name.startswith("decimal"):
            return getattr(pa, name)(*map(int, inside[1:-1].split(",")))
        if name == "fixed_size_binary":
            return pa.binary(int(inside[1:-1]))
        unit, _, zone = inside[1:-1].partition(", tz=")
        return pa.timestamp(unit, zone) if zone else _BY_TEXT[name + inside]
    return _BY_TEXT[name]


def _parse_nested(name: str, tokens: list[str]) -> pa.DataType:
    fields = []
    while tokens.pop() != ">":  # it is "<" or ","
        if name == "map":
            fields.append(tokens.pop() if tokens[-1] == "keys_sorted" else _parse_tokens(tokens))
            continue
        label = tokens.pop()
        if label.startswith('"'):
            label = re.sub(r"\\(.)", r"\1", label[1:-1], flags=re.DOTALL)
        tokens.pop()
        fields.append(pa.field(label, _parse_tokens(tokens)))
    if name == "map":
        key, item, *is_sorted = fields
        return pa.map_(key, item, bool(is_sorted))
    if name == "struct":
        return pa.struct(fields)
    if name == "fixed_size_list":
        return pa.list_(fields[0], int(tokens.pop()[1:-1]))
    return pa.large_list(fields[0]) if name == "large_list" else pa.list_(fields[0])


def refuse_times(name: str, cause: Exception) -> NoReturn:
    """Raise `BadData` for a column with a time out of range of int64 microseconds."""
    expected = "times from -290307 to 294246, which 64 bits of microseconds hold"
    remedy = "the unit that the numbers are in; or the column as int64, or without those times"
    raise BadData(f"column {name!r}", f"a time is out of range ({cause})", expected=expected, remedy=remedy) from cause


def refuse_type(name: str, dtype: object, remedy: str | None = None, where: str = "") -> NoReturn:
    """Raise `SchemaMismatch` for a column of an unsupported type."""
    location, problem = f"{where}, column {name!r}".removeprefix(", "), "no column here can hold such values"
    expected = "a type of the table in docs/guide-files.md"
    remedy = remedy or f"frame.astype({{{name!r}: 'str'}}), or the frame without it"
    raise SchemaMismatch(location, problem, got=str(dtype), expected=expected, remedy=remedy)


def accumulate_lengths(lengths: Any, xp: ModuleType) -> Any:
    """Compute the n + 1 int64 offsets of n lists from their lengths."""
    offsets = xp.zeros(len(lengths) + 1, dtype="int64")
    offsets[1:] = xp.cumsum(lengths)
    return offsets


def parquet_path(item: Field) -> str:
    """Return the Parquet path of a column's values in files that pyarrow writes; a struct or a map has several."""
    return item.name if get_element_dtype(item.dtype) is None else f"{item.name}.list.element"


def conform(values: _Values, item: Field) -> pa.Array:
    """Convert to one array of the field's type: strings as int32 codes with a dictionary, times in UTC microseconds."""
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        values = values.chunk(0)
    element = get_element_dtype(item.dtype)
    if element is not None:
        return _conform_list(values, Field(item.name, element))
    target = arrow_type(item.dtype)
    try:
        values = _plain(values)
        if item.dtype == "string":
            return _encode_strings(values)
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit))
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns" and not is_passenger(item.dtype):
            values = pc.floor_temporal(values, unit="microsecond").cast(target)
        if values.type != target:
            values = values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        if item.dtype == "timestamp" and pa.types.is_timestamp(values.type):
            refuse_times(item.name, cause)
        problem = f"values of type {values.type} do not fit {item.dtype} ({cause})"
        expected, remedy = f"values that fit {item.dtype}", "a wider type for this column"
        raise SchemaMismatch(f"column {item.name!r}", problem, expected=expected, remedy=remedy) from cause
    return combine(values)


def concat_tables(tables: Sequence[pa.Table], fields: Sequence[Field]) -> pa.Table:
    """Concatenate tables to one of the fields' types; Arrow unites dictionaries much faster than pandas categories."""
    chunks = ([conform(table.column(item.name), item) for table in tables] for item in fields)
    return pa.table(list(map(pa.chunked_array, chunks)), [item.name for item in fields])


def combine(values: _Values) -> pa.Array:
    """Combine the chunks of an array; one that has none is shared."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _plain(values: _Values) -> _Values:
    """Decode extension types to their storage type, and run-end encoded values."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.cast(values.type.storage_type)
    return pc.run_end_decode(values) if pa.types.is_run_end_encoded(values.type) else values


def _encode_strings(values: _Values) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.large_string()).dictionary_encode()
    if isinstance(values, pa.ChunkedArray):
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
    schema, within = getattr(table, "schema", None), dict[str, str]()
    if isinstance(schema, pa.Schema):
        within = {item.name: str(item.type) for item in schema}
    elif type(table).__module__.startswith("polars.") and schema is not None:
        within = {name: " ".join(_names_within(kind)) for name, kind in schema.items()}
    for name, names in within.items():
        require_no_nul(name, names)
    try:
        return pa.RecordBatchReader.from_stream(table)
    except pa.ArrowException as cause:  # such as types that are nested deeper than Arrow hands on
        if "non-struct type" in str(cause) or type(table).__name__ == "Series":  # one of several types has no stream
            raise TypeError("a stream of one column's values, and not of a table's rows") from cause
        problem, expected = f"its stream of Arrow data cannot be opened ({cause})", "a stream that pyarrow opens"
        remedy = "columns without what is named above, and nested fields as columns of their own"
        raise SchemaMismatch("data", problem, expected=expected, remedy=remedy) from cause


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


def build_lists(offsets: Any, elements: pa.Array, valid: Any) -> pa.LargeListArray:
    """Build an array of lists from n + 1 offsets, the elements, and n booleans that are False where one is missing."""
    mask = None if valid is None else pa.array(~valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements, mask=mask)


def _conform_list(values: _Values, element: Field) -> pa.LargeListArray:
    """Convert to large lists with conformed elements."""
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), pa.large_list(pa.null()))
    if not is_list(values.type):
        problem = f"values of type {values.type} are no lists"
        remedy = f"a list in each row, such as frame[{element.name!r}].map(lambda value: [value])"
        raise SchemaMismatch(f"column {element.name!r}", problem, expected=to_list_dtype(element.dtype), remedy=remedy)
    lists = combine(_plain(values))
    offsets, elements = split_list(lists)
    if pa.types.is_dictionary(elements.type):
        elements = with_distinct_values(elements)
    return build_lists(offsets, conform(elements, element), get_validity(lists))


def without_float64(values: Any) -> Any:
    """Replace empty float64 arrays among Python objects by empty lists: NumPy makes them for any element type."""
    if str(values.dtype) != "object":
        return values
    untyped = (isinstance(each, np.ndarray) and not each.size and each.dtype == np.float64 for each in values)
    return [[] if empty else each for empty, each in zip(untyped, values, strict=True)]


def array_from_series(series: Any) -> pa.Array:
    """Convert a pandas column to one Arrow array; shares what Arrow has in one piece."""
    return combine(pa.array(without_float64(series.array), from_pandas=True))


def plain_table(table: pa.Table) -> pa.Table:
    """Decode the lists of a table of conformed columns (see `plain`), and make NaN null; strings stay codes."""
    columns = []
    for column in map(_null_for_nan, table.columns):
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
    return build_lists(offsets, _null_for_nan(leaves), get_validity(array))


def _null_for_nan(values: _Values) -> _Values:
    """Make NaN of floats null; any other array is shared."""
    is_nan = pc.is_nan(values) if pa.types.is_floating(values.type) else None
    if is_nan is None or not pc.any(is_nan).as_py():
        return values
    return pc.if_else(is_nan, pa.scalar(None, values.type), values)


def polars_from_arrow(table: pa.Table) -> pl.DataFrame:
    """Convert an Arrow table to Polars; decimals too wide for Polars are passed as bytes."""
    require_threads("plan over a table")
    columns = table.columns
    for position, column in enumerate(columns):
        if pa.types.is_decimal256(column.type):
            columns[position] = pa.chunked_array([chunk.view(pa.binary(32)) for chunk in column.chunks], pa.binary(32))
        elif "fixed_size_list" in str(column.type):  # Polars misreads slices of them
            copies = [chunk.take(pa.array(range(len(chunk)), pa.int64())) for chunk in column.chunks]
            columns[position] = pa.chunked_array(copies, column.type)
    numbered = pa.table(columns, [*map(str, range(len(columns)))])  # Polars gives a column without a name another one
    frame = cast(pl.DataFrame, pl.from_arrow(numbered, rechunk=False))
    frame.columns = table.column_names
    return frame


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
