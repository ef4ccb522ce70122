"""Helper functions for columns: conversions, checks, and key types, for both backends."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from decimal import Decimal
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow_types import Reading, arrow_type
from gpupipe.backend.protocol import Array, Backend, Column, Matrix, RawColumn
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.expressions import has_offset
from gpupipe.schema import (
    FLOATS,
    INTEGERS,
    OF_A_DATASET,
    Field,
    get_element_dtype,
    is_passenger,
    suggest_conversion,
    to_list_dtype,
)
from gpupipe.support.text import derive
from gpupipe.support.validation import is_integer, is_number, parse_duration_us

_CASTABLE = ("decimal", "duration[", "time32[", "time64[")
Distance = int | float  # microseconds between times, or the difference of numbers


def floats(column: Column, xp: ModuleType) -> Array:
    """Convert a numeric or boolean column to n float64, NaN where missing."""
    data = column.data.astype(xp.float64, copy=False)
    return data if column.valid is None else xp.where(column.valid, data, xp.nan)


def as_floats(data: Array, dtype: str) -> Array:
    """Cast numbers to floats; values beyond the range become infinite, which the reader has to refuse."""
    with np.errstate(over="ignore"):
        return data.astype(dtype)


def refuse_times(name: str, cause: Exception) -> NoReturn:
    """Raise `BadData` for a column with a time out of range of int64 microseconds."""
    expected = "times from -290307 to 294246, which 64 bits of microseconds hold"
    remedy = "the unit that the numbers are in; or the column as int64, or without those times"
    raise BadData(f"column {name!r}", f"a time is out of range ({cause})", expected=expected, remedy=remedy) from cause


def refuse_type(name: str, dtype: object, remedy: str | None = None, where: str = "") -> NoReturn:
    """Raise `SchemaMismatch` for a column of an unsupported type."""
    place, problem = f"{where}, column {name!r}".removeprefix(", "), "no column here can hold such values"
    expected = "a type of the table in docs/guide-files.md"
    remedy = remedy or f"frame.astype({{{name!r}: 'str'}}), or the frame without it"
    raise SchemaMismatch(place, problem, got=str(dtype), expected=expected, remedy=remedy)


def check_names(names: Iterable[object]) -> None:
    """Raise `SchemaMismatch` for the first column whose name is not a string."""
    for name in names:
        if not isinstance(name, str):
            remedy = "frame.rename(columns=str)"
            raise SchemaMismatch("frame", "a column's name is no string", got=name, expected="strings", remedy=remedy)


def build_fields(
    dtypes: Mapping[str, str], nullable: Iterable[bool], readings: Mapping[str, Reading] | None
) -> Iterator[Field]:
    """Build the fields of a coded frame, each the start of a lineage, written as the types they were read from."""
    for (name, dtype), may_miss in zip(dtypes.items(), nullable, strict=True):
        written_as = "" if readings is None else readings[name].written_as
        yield Field(name, dtype, nullable=may_miss, lineage=frozenset({name}), written_as=written_as)


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
    if dtype == "string":
        return Column(dtype, xp.full(num_rows, -1, dtype="int32"), None, pa.array([], pa.large_string()))
    if is_passenger(dtype):
        return Column(dtype, xp.full(num_rows, -1, dtype="int64"), None, pa.array([], arrow_type(dtype)))
    stored = "int64" if dtype == "timestamp" else dtype
    return Column(dtype, xp.zeros(num_rows, dtype=stored), xp.zeros(num_rows, dtype=bool))


def with_missing_row(column: Column, xp: ModuleType) -> Column:
    """Append one missing value to a column, so that gathering at -1 gives a missing value."""
    last, valid = missing_column(column.dtype, 1, xp), None
    if last.valid is not None:
        known = xp.ones(len(column), dtype=bool) if column.valid is None else column.valid
        valid = xp.concatenate([known, last.valid])
    end = last.data.astype(column.data.dtype) if column.elements is None else column.data[-1:]
    return Column(column.dtype, xp.concatenate([column.data, end]), valid, column.dictionary, column.elements)


def refuse_passengers(fields: Iterable[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that is only carried."""
    for item in fields:
        if is_passenger(item.dtype):
            place, remedy = f"{where}, column {item.name!r}", suggest_conversion(item.name, item.dtype)
            problem = "values of this type are carried, and nothing is computed of them"
            expected = "numbers, booleans, text, times, or lists of them"
            raise SchemaMismatch(place, problem, got=item.dtype, expected=expected, remedy=remedy)


def require_comparable(fields: Iterable[Field], where: str) -> None:
    """Raise `SchemaMismatch` for the first field that has no order and no hash: lists, and types only carried."""
    for item in fields:
        refuse_passengers([item], where)
        if get_element_dtype(item.dtype) is not None:
            place, expected = f"{where}, column {item.name!r}", "a column with one value in each row"
            remedy = f"another column; or one made of it, T.{derive(item.name, 'len({})', f'{item.name}_length')}"
            raise SchemaMismatch(place, "lists are not compared", got=item.dtype, expected=expected, remedy=remedy)


def require_comparable_times(ours: Field, theirs: Field, where: str) -> None:
    """Raise `SchemaMismatch` for times with a time zone compared with times without one."""
    if ours.dtype != "timestamp" or theirs.dtype != "timestamp" or bool(ours.zone) == bool(theirs.zone):
        return
    zoned, naive = (ours, theirs) if ours.zone else (theirs, ours)
    both = {ours.name: "int64", theirs.name: "int64"}
    problem = f"the times of {zoned.name!r} have a time zone, and those of {naive.name!r} have none"
    got = ", ".join(f"{item.name!r} {item.zone or 'without a zone'}" for item in (ours, theirs))
    remedy = f"frame[{naive.name!r}].dt.tz_localize({zoned.zone!r}), or whichever zone they are in; "
    remedy += f"T.Cast({both}) of both if they are UTC"
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


def one_key_type(left: Field, right: Field) -> str:
    """Which columns to cast, or to make, so that the keys of a join are of one type, for an error's remedy."""
    both = {left.dtype, right.dtype}
    numbers = {*INTEGERS, *FLOATS}
    if "timestamp" in both and both & numbers:
        return f"pd.to_datetime(frame[{left.name!r}], unit='s') of the numbers, or whichever unit they are in"
    castable = all(one in {*numbers, "bool", "string", "timestamp"} or one.startswith(_CASTABLE) for one in both)
    if not castable or ("timestamp" in both and "string" not in both):
        return "another key, or one of plain values made in both tables before the join"
    texts = "timestamp" if "timestamp" in both else "string"
    dtype = texts if "string" in both else "float64" if both & {*FLOATS} else "int64"
    wanted = numbers if dtype in numbers else {dtype}
    sides = [name for item, name in ((left, "left"), (right, "right")) if item.dtype not in wanted]
    return f"T.Cast({{{left.name!r}: {dtype!r}}}) of the {' and the '.join(sides)} table before the join"


def whole_numbers(column: Column, kind: np.dtype[Any], xp: ModuleType) -> tuple[Array, Array]:
    """Convert to n int64 or uint64, and n booleans: False where missing, fractional or out of range."""
    data = column.data
    if data.dtype.kind == "f":
        # The range's ends are powers of two, which floats of any width hold.
        least, beyond = float(np.iinfo(kind).min), float(np.iinfo(kind).max + 1)
        found = (data >= least) & (data < beyond) & (xp.floor(data) == data)
        values = xp.where(found, data, 0).astype(kind)
    else:
        values = data.astype(kind, copy=False)
        if data.dtype.kind == "b" or np.can_cast(data.dtype, kind):
            found = xp.ones(len(data), dtype=bool)
        else:
            found = (values >= 0) == (data >= 0)  # a cast to 64 bits keeps an integer, or changes its sign
    return values, found if column.valid is None else found & column.valid


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
    known: list[Any] = []
    for part in parts:
        if known and not isinstance(part, Matrix) and not isinstance(known[-1], Matrix):
            known[-1] = {**known[-1], **part}
        elif len(part):
            known.append(part)
    if not known:
        return {}
    # A ChainMap goes through its maps from the last to the first.
    return known[0] if len(known) == 1 else ChainMap(*reversed(known))


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
            place, problem = f"{where}, column {item.name!r}", f"values on the {side} have no distance from each other"
            raise SchemaMismatch(place, problem, got=item.dtype, expected="numbers, dates or times", remedy=remedy)
    require_comparable_times(left, right, f"{where}, left and right")
    both = {left.dtype, right.dtype}
    if both == {"timestamp"}:
        return "timestamp"
    if "timestamp" not in both:
        if both <= {*INTEGERS}:
            found = np.promote_types(left.dtype, right.dtype).name
            if found in INTEGERS:
                return "uint64" if found == "uint64" else "int64"
        elif not both & {"int64", "uint64"}:
            return "float64"
    problem = f"{left.name!r} is {left.dtype} on the left and {right.name!r} {right.dtype} on the right"
    expected = "times on both sides, or numbers of which one type holds both"
    remedy = f"T.Cast({{{right.name!r}: {left.dtype!r}}}) on the right before it"
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
    found: Distance | None = None
    if dtype == "timestamp":
        expected, example, found = "a length of time", "'2h'", parse_duration_us(value, least=0)
    elif dtype == "float64":
        expected, example, found = "a number", "10", float(value) if is_number(value) else None
    else:
        expected, example, found = "an integer", "10", int(value) if is_integer(value) else None
    if found is None:
        order = "times" if dtype == "timestamp" else dtype
        raise _make_error(value, where, f"{expected}, for the order is one of {order}", example)
    return found


def _make_error(value: Any, where: str, expected: str, example: str) -> BadConfig:
    name = where.rpartition("(")[2].removesuffix("=)")
    return BadConfig(where, "makes no sense", got=value, expected=expected, remedy=f"{name}={example}")


_NOT_A_TIME = np.iinfo("int64").min
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# The casts that are defined from types that are only carried.
_BETWEEN = ("float64", "int64", "string")
_FROM_CARRIED = (
    ("decimal", (*FLOATS, *INTEGERS, "string")),
    (("duration[", "time32[", "time64["), ("float64", "int64")),
    (("binary", "large_binary"), ("string",)),
)


def cast_column(
    column: Column, dtype: str, name: str, backend: Backend, *, exact: bool = False, zone: str = ""
) -> Column:
    """Cast a column to another type, lists by their elements; `BadData` has the first `row` whose value does not fit.

    Strings are parsed; numbers, booleans and timestamps are written out as Arrow writes them, times in the local time
    of a `zone`, with its offset. A float becomes an integer only where it is whole, a number of either kind a float
    unless that makes it infinite or another integer. A float64 is rounded to float32, unless the cast is `exact`. Of
    types that are only carried, decimals become numbers (floats the nearest ones) or text, durations and times of day
    float64 seconds or int64 microseconds, and bytes text.
    """
    if column.dtype == dtype:
        return column
    require_castable(column.dtype, dtype, name)
    if is_passenger(column.dtype):
        return _cast_passenger(column, dtype, name, backend)
    element = get_element_dtype(dtype)
    if column.elements is not None and element is not None:
        try:
            elements = cast_column(column.elements, element, name, backend, exact=exact)
        except BadData as error:
            remedy = f"leave it {column.dtype}"
            found = BadData(error.where, error.problem, got=error.got, expected=error.expected, remedy=remedy)
            found.row = int(backend.xp.searchsorted(column.data, error.row or 0, side="right")) - 1
            raise found from None
        return Column(dtype, column.data, column.valid, None, elements)
    if column.dtype == "string":
        return _parse_strings(column, dtype, name, backend)
    if dtype == "string":
        return _format_values(column, name, backend, zone)
    if dtype == "timestamp":
        _check(column, column.data == _NOT_A_TIME, dtype, name, backend)
    if "timestamp" in (column.dtype, dtype):
        return Column(dtype, column.data, column.valid)
    if dtype in FLOATS:
        return _cast_to_float(column, dtype, name, backend, exact=exact)
    return _cast_to_integer(column, dtype, name, backend)


def require_castable(source: str, dtype: str, name: str) -> None:
    """Raise `SchemaMismatch` if no cast between two types is defined, whatever the values are."""
    if not _are_connected(source, dtype):
        expected, remedy = _suggest_cast(source, dtype, name)
        raise SchemaMismatch(f"column {name!r}", f"{source} cannot become {dtype}", expected=expected, remedy=remedy)


def _are_connected(source: str, dtype: str) -> bool:
    element, wanted = get_element_dtype(source), get_element_dtype(dtype)
    if element is not None and wanted is not None:
        return _are_connected(element, wanted)
    if source == dtype or (is_passenger(source) and is_passenger(dtype)):
        return True
    if is_passenger(source):
        return any(source.startswith(kinds) and dtype in dtypes for kinds, dtypes in _FROM_CARRIED)
    if element is not None or wanted is not None:
        return False
    return "string" in (source, dtype) or "timestamp" not in (source, dtype) or "int64" in (source, dtype)


def _suggest_cast(source: str, dtype: str, name: str) -> tuple[str, str]:
    """Return which types a type can be cast to, and what leads to the wanted one, for an error."""
    is_list = get_element_dtype(source) is not None
    if is_list and get_element_dtype(dtype) is None:
        return "a list type", f"{derive(name, 'len({})', f'{name}_length')} for the number of elements"
    if not is_list and get_element_dtype(dtype) is not None:
        return "a list, for a list type", f"Map(fn, reads=[{name!r}], adds=[{name!r}]), whose function makes the lists"
    if source in FLOATS:
        remedy = f"{derive(name, 'int({} * 1000000)')} before it, of seconds since 1970"
        return "int64, microseconds since 1970, for a timestamp", remedy
    expected = "int64, microseconds since 1970, between times and numbers"
    if is_passenger(source):
        expected = "decimals to numbers or text, durations and times to float64 seconds or int64 microseconds, bytes to"
        expected += " text"
    for between in map(to_list_dtype, _BETWEEN) if is_list else _BETWEEN:
        if _are_connected(source, between) and _are_connected(between, dtype):
            return expected, f"Cast({{{name!r}: {between!r}}}) before it"
    return expected, suggest_conversion(name, source)


def _cast_passenger(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    """Cast a column of a type that is only carried, through the host."""
    values = backend.to_arrow(backend.frame({name: column}, len(column)))[name].combine_chunks()
    kind = values.type
    try:
        if is_passenger(dtype):
            wanted = arrow_type(dtype)
            if kind.id != wanted.id:
                problem, remedy = f"{column.dtype} cannot become {dtype}", suggest_conversion(name, column.dtype)
                raise SchemaMismatch(f"column {name!r}", problem, expected="the same kind of type", remedy=remedy)
            made = values.cast(wanted)
        elif pa.types.is_decimal(kind) and dtype in (*FLOATS, "string"):
            # By their text, which is rounded once; Arrow's own cast rounds each digit.
            texts = backend.from_arrow(pa.table({name: values.cast(pa.string())}), [Field(name, "string")])
            return cast_column(backend.column(texts, name), dtype, name, backend)
        elif pa.types.is_duration(kind) or pa.types.is_time(kind):
            if dtype == "int64":
                values = values.cast(pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us"))
            made = values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64())
            if dtype == "float64":
                made = pc.divide(made.cast(pa.float64(), safe=False), float(_PER_SECOND[kind.unit]))
        else:  # decimals to integers, bytes to text
            made = values.cast(arrow_type(dtype))
    except pa.ArrowInvalid as cause:
        remedy = f"values that {dtype} can hold, or a fit of {name!r} as {kind}"
        if not is_passenger(dtype):
            decoded = f"Map(fn, reads=[{name!r}], adds=[{name!r}]), whose function decodes the bytes"
            remedy = f"leave it {kind}, or {decoded if dtype == 'string' else repr('float64')}"
        elif pa.types.is_decimal(kind):
            scale = arrow_type(dtype).scale
            wide = f"decimal128(38, {max(scale, kind.scale)})"
            remedy = f"values of {scale} digits after the point, or a fit of {name!r} as {wide}"
        where, problem = f"Cast of column {name!r}", f"a value does not fit {dtype} ({cause})"
        expected = f"values that {dtype} can hold"
        raise BadData(where, problem, got=column.dtype, expected=expected, remedy=remedy) from cause
    return backend.column(backend.from_arrow(pa.table({name: made}), [Field(name, dtype)]), name)


def _cast_to_float(column: Column, dtype: str, name: str, backend: Backend, *, exact: bool) -> Column:
    xp, data = backend.xp, column.data
    with np.errstate(over="ignore"):
        made = data.astype(dtype)
    if column.dtype == "float64":
        bad = (made != data) & ~xp.isnan(data) if exact else xp.isinf(made) & xp.isfinite(data)
        _check(column, bad, dtype, name, backend)
    elif column.dtype in INTEGERS and np.iinfo(column.dtype).max > _exact_up_to(dtype):
        # The largest integers round up to a float beyond the range, where the way back is undefined.
        back = xp.where(made < float(np.iinfo(column.dtype).max) + 1.0, made, made.dtype.type(0))
        _check(column, back.astype(data.dtype) != data, dtype, name, backend)
    return Column(dtype, made if column.valid is None else xp.where(column.valid, made, made.dtype.type(xp.nan)))


def _cast_to_integer(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    """Cast numbers and booleans to integers or booleans."""
    xp = backend.xp
    missing = column.missing(xp)
    data = column.data if missing is None else xp.where(missing, column.data.dtype.type(0), column.data)
    if dtype == "bool":
        _check(column, (data != 0) & (data != 1), dtype, name, backend)
    elif column.dtype != "bool":
        limits = np.iinfo(dtype)
        if column.dtype in FLOATS:
            outside = (data < float(limits.min)) | (data >= float(limits.max) + 1.0) | (xp.floor(data) != data)
        else:
            own = np.iinfo(column.dtype)
            outside = (data < max(limits.min, own.min)) | (data > min(limits.max, own.max))
        _check(column, outside, dtype, name, backend)
    valid = None if missing is None or not bool(missing.any()) else ~missing
    return Column(dtype, data.astype(dtype), valid)


def _check(column: Column, bad: Array, dtype: str, name: str, backend: Backend) -> None:
    """Raise `BadData` naming the first value that is there and bad."""
    bad = bad if column.valid is None else bad & column.valid
    if bool(bad.any()):
        _refuse(name, backend.to_host(column.data[bad][:1])[0].item(), bad, column.dtype, dtype)


def _parse_strings(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    """Parse each distinct string once, on the host, and gather the values by code."""
    dictionary = column.dictionary
    assert dictionary is not None
    counts = backend.xp.bincount(column.data[column.data >= 0], minlength=len(dictionary))
    used = np.flatnonzero(backend.to_host(counts))
    texts = pc.utf8_trim_whitespace(dictionary.take(pa.array(used)))
    try:
        values = texts.cast(arrow_type(dtype))
    except pa.ArrowInvalid:
        first = next(place for place, text in enumerate(texts) if not _can_parse(text.as_py(), dtype))
        _refuse(name, texts[first].as_py(), column.data == int(used[first]), "string", dtype)
    stored = (values.cast(pa.int64()) if dtype == "timestamp" else values).to_numpy(zero_copy_only=False)
    misread = _find_misread(texts, stored, dtype)
    if misread.any():
        wrong = np.zeros(len(dictionary) + 1, dtype=bool)
        wrong[used] = misread
        bad = backend.to_device(wrong)[column.data]
        _refuse(name, texts[int(misread.argmax())].as_py(), bad, "string", dtype)
    table = np.zeros(len(dictionary) + 1, dtype="int64" if dtype == "timestamp" else dtype)
    table[used] = stored
    if dtype in FLOATS:
        table[-1] = np.nan
        return Column(dtype, backend.to_device(table)[column.data])
    missing = column.data < 0
    return Column(dtype, backend.to_device(table)[column.data], ~missing if bool(missing.any()) else None)


def _find_misread(texts: pa.Array, values: Any, dtype: str) -> Any:
    """Find texts that Arrow has parsed as another number: too large ones, and hexadecimal as negative ones."""
    if dtype in INTEGERS:
        return ~_matches(texts, "^-?[0-9]+$")
    if dtype not in FLOATS:
        return np.zeros(len(texts), dtype=bool)
    misread = np.isinf(values) & _matches(texts, "[0-9]")
    large = np.isfinite(values) & (np.abs(values) >= _exact_up_to(dtype)) & _matches(texts, "^[-+]?[0-9]+$")
    for position in np.flatnonzero(large):
        misread[position] = Decimal(texts[int(position)].as_py()) != Decimal(float(values[position]))
    return misread


def _matches(texts: pa.Array, pattern: str) -> Any:
    return pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False).astype(bool)


def _can_parse(text: str, dtype: str) -> bool:
    try:
        pa.array([text]).cast(arrow_type(dtype))
    except pa.ArrowInvalid:
        return False
    return True


def _format_values(column: Column, name: str, backend: Backend, zone: str) -> Column:
    """Format each distinct value once, on the host, and gather the strings by code."""
    xp = backend.xp
    missing = column.missing(xp)
    present = slice(None) if missing is None else ~missing
    distinct, inverse = xp.unique(column.data[present], return_inverse=True)
    values = backend.to_host(distinct)
    if column.dtype == "timestamp":
        dictionary = pa.array(values).cast(pa.timestamp("us")).cast(pa.large_string())
        beyond = _matches(dictionary, "^<value out of range")
        if beyond.any():
            value = int(values[beyond][0])
            _refuse(name, value, column.data == value, column.dtype, "string")
        if zone:
            dictionary = pa.array(values).cast(pa.timestamp("us", zone)).cast(pa.large_string())
    else:
        # Negative zero is the same value as zero, and which of them `unique` has kept says nothing.
        shown = values + 0.0 if column.dtype in FLOATS else values
        dictionary = pa.array(shown.astype("str").tolist(), pa.large_string())
    codes: Array = xp.full(len(column), -1, dtype="int32")
    codes[present] = inverse
    return Column("string", codes, None, dictionary)


def _exact_up_to(dtype: str) -> int:
    """Return the integer up to which a float type holds every integer exactly."""
    return int(2 ** (np.finfo(dtype).nmant + 1))


def _refuse(name: str, value: Any, bad: Array, source: str, dtype: str) -> NoReturn:
    """Raise the error about the values that do not fit, with the first one and its row."""
    count = int(bad.sum())
    many = f"{count} values do" if count > 1 else "a value does"
    expected, remedy = f"values that {dtype} can hold", f"leave it {source}, or a Filter before it"
    if dtype == "bool" and source != "string":
        remedy = f"{derive(name, '{} != 0')} in its place"
    elif source in FLOATS and np.isfinite(value) and value % 1:
        remedy = f"{derive(name, 'round({})')} before it"
    elif source == "timestamp":
        expected, remedy = "times from year -32767 to 32767", f"Cast({{{name!r}: 'int64'}}), microseconds since 1970"
    elif dtype in FLOATS and source not in FLOATS:
        expected += f", integers beyond 2**{np.finfo(dtype).nmant + 1} only if exactly"
    error = BadData(f"Cast of column {name!r}", f"{many} not fit {dtype}", got=value, expected=expected, remedy=remedy)
    error.row = int(bad.argmax())
    raise error from None
