"""Type mapping between Arrow and the library, for every reader and writer: docs/decisions/023-column-types.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from gpupipe.schema import DTYPES, FLOATS, INTEGERS, Field, Schema, get_element_dtype, is_passenger, to_list_dtype

_OWN = {name: getattr(pa, name)() for name in (*INTEGERS, *FLOATS)}
_OWN |= {"bool": pa.bool_(), "string": pa.large_string(), "timestamp": pa.timestamp("us")}
_UNITS = [f"{kind}[{unit}]" for kind in ("duration", "timestamp") for unit in ("s", "ms", "us", "ns")]
_ALIASES = ["null", "halffloat", "string", "binary", "large_binary", "date32[day]", "date64[ms]", "time32[ms]", *_UNITS]
_LEAVES = [*_OWN.values(), pa.time64("us"), pa.time64("ns"), *map(pa.type_for_alias, _ALIASES)]
_BY_TEXT = {str(kind): kind for kind in _LEAVES}
_DECIMALS = {"decimal32": pa.decimal32, "decimal64": pa.decimal64}
_DECIMALS |= {"decimal128": pa.decimal128, "decimal256": pa.decimal256}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\([^)]*\)|[<>:,]|[^<>:,\[\]()"\s]+|\s+')
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Reading:
    """Mapping of an Arrow type to a field's type."""

    dtype: str | None  # the field's type; None for a column that is left out
    written_as: str = ""  # see `Field`
    change: str = ""  # how the type changes, in words; empty if it round-trips
    is_lossy: bool = False  # whether values may change, too


_READ = {
    **{str(kind): Reading(dtype) for dtype, kind in _OWN.items()},
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
        found, change = read_as(inner), ""
        if isinstance(kind, pa.BaseExtensionType):
            change = f"read as {found.dtype}, which it is stored as"
        elif pa.types.is_dictionary(kind) and kind.ordered:
            change = "the order of its categories is lost"
        return replace(found, change=found.change or change)
    if is_list(kind):
        element = read_as(kind.value_type)
        if element.dtype in _OWN and not element.written_as and not element.is_lossy:
            dtype = to_list_dtype(element.dtype)
            alike = not element.change and not pa.types.is_fixed_size_list(kind)
            return Reading(dtype, change="" if alike else f"read as {dtype}")
    plain = _to_storable(kind)
    if plain is None:
        return Reading(None, change="nothing here carries such values")
    return Reading(_text(plain), change="" if _text(plain) == _text(kind) else f"read as {_text(plain)}")


def map_schema(schema: pa.Schema) -> tuple[Schema, dict[str, tuple[pa.DataType, Reading]]]:
    """Return the fields of the supported columns, and for all columns the Arrow type and its mapping."""
    columns = {item.name: (item.type, read_as(item.type)) for item in schema}
    known = ((name, reading) for name, (_, reading) in columns.items())
    return Schema(Field(name, one.dtype, written_as=one.written_as) for name, one in known if one.dtype), columns


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
    """Return the Arrow type that represents a field's type inside the library; strings are plain."""
    element = get_element_dtype(dtype)
    if element is not None:
        return pa.large_list(arrow_type(element))
    return _parse_text(dtype) if is_passenger(dtype) else _OWN[dtype]


def parse_type(text: str) -> pa.DataType:
    """Parse the Arrow type of a field's `dtype` or `written_as`."""
    return arrow_type(text) if text in DTYPES or get_element_dtype(text) is not None else _parse_text(text)


def get_file_type(item: Field) -> pa.DataType:
    """Return the Arrow type that a field is written as: a date as a date, a timestamp with its time zone."""
    return parse_type(item.written_as or item.dtype)


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list type, in any of its forms."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    return any(test(kind) for test in tests) or pa.types.is_large_list_view(kind)


def holds_fields(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether a type has all struct fields of another, and the same dates and times: Arrow's cast drops them."""
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        there = {item.name: item.type for item in kind.fields}
        return all(item.name in there and holds_fields(there[item.name], item.type) for item in other.fields)
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return holds_fields(kind.key_type, other.key_type) and holds_fields(kind.item_type, other.item_type)
    if is_list(kind) and is_list(other):
        return holds_fields(kind.value_type, other.value_type)
    is_time = any(test(one) for test in (pa.types.is_timestamp, pa.types.is_date) for one in (kind, other))
    return bool(kind.equals(other)) or pa.types.is_null(other) or not is_time


def _to_storable(kind: pa.DataType) -> pa.DataType | None:
    """Convert to an equivalent type that frames and Parquet files support; None if there is none."""
    inner = _get_value_type(kind)
    if inner is not None:
        return _to_storable(inner)
    if pa.types.is_struct(kind):
        fields = [_to_storable_field(item) for item in kind.fields]
        return pa.struct(fields) if fields and all(item is not None for item in fields) else None
    if pa.types.is_map(kind):
        key, item = _to_storable(kind.key_type), _to_storable_field(kind.item_field)
        return None if key is None or item is None else pa.map_(key, item.type, kind.keys_sorted)
    if is_list(kind):
        item = _to_storable_field(kind.value_field)
        if item is None:
            return None
        item = item.with_name("item")
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
        return pa.large_list(item) if is_large else pa.list_(item)
    same = {"time32[s]": pa.time32("ms"), "date64[ms]": pa.date32(), "binary_view": pa.binary()}
    kind = same.get(str(kind), pa.string() if pa.types.is_string_view(kind) else kind)
    is_known = pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_timestamp(kind)
    return kind if is_known or str(kind) in _BY_TEXT else None


def _to_storable_field(item: pa.Field) -> pa.Field | None:
    """Convert to a nullable field: a row without a match has no struct, and so nothing in it."""
    kind = _to_storable(item.type)
    return None if kind is None else pa.field(item.name, kind)


def _text(kind: pa.DataType) -> str:
    """Format a type as Arrow does, for `_parse_text` to read; names that are not identifiers are quoted."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(map(_field_text, kind.fields))}>"
    if pa.types.is_map(kind):
        is_sorted = ", keys_sorted" if kind.keys_sorted else ""
        return f"map<{_text(kind.key_type)}, {_text(kind.item_type)}{is_sorted}>"
    if is_list(kind):
        size = f"[{kind.list_size}]" if pa.types.is_fixed_size_list(kind) else ""
        name = "fixed_size_list" if size else "large_list" if pa.types.is_large_list(kind) else "list"
        return f"{name}<{_field_text(kind.value_field.with_name('item'))}>{size}"
    return str(kind)


def _field_text(item: pa.Field) -> str:
    escaped = item.name.replace("\\", "\\\\").replace('"', '\\"')
    name = item.name if _PLAIN_NAME.fullmatch(item.name) else f'"{escaped}"'
    return f"{name}: {_text(item.type)}"


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
        if name in _DECIMALS:
            return _DECIMALS[name](*map(int, inside[1:-1].split(",")))
        if name == "fixed_size_binary":
            return pa.binary(int(inside[1:-1]))
        unit, _, zone = inside[1:-1].partition(", tz=")
        return pa.timestamp(unit, zone) if zone else _BY_TEXT[name + inside]
    return _BY_TEXT[name]


def _parse_nested(name: str, tokens: list[str]) -> pa.DataType:
    fields = []
    while tokens.pop() != ">":  # it is "<" or ","
        if name == "map":
            label = "" if tokens[-1] != "keys_sorted" else tokens.pop()
            fields.append(label or _parse_tokens(tokens))
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
