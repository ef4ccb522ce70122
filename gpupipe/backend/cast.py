"""Casts of a column to another type, on both backends."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial, reduce
from operator import or_
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.columns import Array, Backend, Column, gather
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, get_element_dtype, is_passenger, suggest_conversion, to_list_dtype
from gpupipe.support.text import arguments, derive, refer_to
from gpupipe.support.text_dates import find_formats
from gpupipe.support.text_kinds import recognise_texts, suggest_parsing

_Check: TypeAlias = Callable[[Array], None]
_NOT_A_TIME = np.iinfo("int64").min
_PADDED = "^[-+]?0[0-9]+([.][0-9]*)?$"  # a number with leading zeros
_ZERO_PADDING = r"sub({}, r'\b(\d)\b', r'0\1')"  # 2024-1-5 as 2024-01-05
_BETWEEN = ("float64", "int64", "string")
# The casts that are defined from types that are only carried.
_FROM_CARRIED = (
    ("decimal", (*FLOATS, *INTEGERS, "string")),
    (("duration[", "time32[", "time64["), ("float64", "int64")),
    (("binary", "large_binary"), ("string",)),
)


class Losses:
    """Count of the values that a cast made missing, since they did not fit."""

    def __init__(self) -> None:
        self.count = 0
        self._masks: list[Array] = []

    def add(self, bad: Array) -> None:
        """Note the rows whose values do not fit."""
        self._masks.append(bad)

    def blank(self, column: Column, xp: ModuleType) -> Column:
        """Make the noted rows missing, and count them."""
        if not self._masks:
            return column
        bad, self._masks = reduce(or_, self._masks), []
        self.count += int(bad.sum())
        if column.dtype in FLOATS:
            return replace(column, data=xp.where(bad, column.data.dtype.type(np.nan), column.data))
        if column.dictionary is not None:
            return replace(column, data=xp.where(bad, column.data.dtype.type(-1), column.data))
        return replace(column, valid=~bad if column.valid is None else column.valid & ~bad)


def cast_column(
    column: Column,
    dtype: str,
    name: str,
    backend: Backend,
    *,
    exact: bool = False,
    written_as: str = "",
    losses: Losses | None = None,
) -> Column:
    """Cast a column to another type, lists by their elements; `BadData` has the first `row` whose value does not fit.

    With `losses` a value that does not fit is missing there, and counted; of types that are only carried it is not.

    Strings are parsed; numbers, booleans and timestamps are written out as Arrow writes them: dates as dates, and times
    of a zone in its local time, with its offset, as a field's `written_as` says. A float becomes an integer only where
    it is whole, a number of either kind a float unless that makes it infinite or another integer. A float64 is rounded
    to float32, and leading zeros in text are lost, unless the cast is `exact`. Of types that are only carried, decimals
    become numbers (floats the nearest ones) or text, durations and times of day float64 seconds or int64 microseconds,
    and bytes text.
    """
    if column.dtype == dtype:
        return column
    require_castable(column.dtype, dtype, name)
    if is_passenger(column.dtype):
        return _cast_passenger(column, dtype, name, backend)
    element = get_element_dtype(dtype)
    if column.elements is not None and element is not None:
        try:
            elements = cast_column(column.elements, element, name, backend, exact=exact, losses=losses)
        except BadData as error:
            remedy = f"leave it {column.dtype}"
            row_error = BadData(error.where, error.problem, got=error.got, expected=error.expected, remedy=remedy)
            row_error.row = int(backend.xp.searchsorted(column.data, error.row or 0, side="right")) - 1
            raise row_error from None
        return Column(dtype, column.data, column.valid, None, elements)
    check = partial(_check, column, dtype, name, backend, losses)
    if column.dtype == "string":
        result = _parse_strings(column, dtype, name, backend, losses, exact=exact)
    elif dtype == "string":
        result = _format_values(column, name, backend, written_as, losses)
    elif "timestamp" in (column.dtype, dtype):
        if dtype == "timestamp":
            check(column.data == _NOT_A_TIME)
        result = Column(dtype, column.data, column.valid)
    elif dtype in FLOATS:
        result = _cast_to_float(column, dtype, backend, check, exact=exact)
    else:
        result = _cast_to_integer(column, dtype, backend, check)
    return result if losses is None else losses.blank(result, backend.xp)


def require_castable(source: str, dtype: str, name: str) -> None:
    """Raise `SchemaMismatch` if no cast between two types is defined, whatever the values are."""
    if not _are_connected(source, dtype):
        expected, remedy = _suggest_cast(source, dtype, name)
        raise SchemaMismatch(f"column {name!r}", f"{source} cannot become {dtype}", expected=expected, remedy=remedy)


def _are_connected(source: str, dtype: str) -> bool:
    element, target = get_element_dtype(source), get_element_dtype(dtype)
    if element is not None and target is not None:
        return _are_connected(element, target)
    if source == dtype or (is_passenger(source) and is_passenger(dtype)):
        return True
    if is_passenger(source):
        return any(source.startswith(kinds) and dtype in dtypes for kinds, dtypes in _FROM_CARRIED)
    if is_passenger(dtype) or element is not None or target is not None:
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
        expected = "decimals to numbers or text, durations and times to float64 seconds or int64 microseconds, "
        expected += "bytes to text"
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
            target = arrow_type(dtype)
            if kind.id != target.id:
                problem, remedy = f"{column.dtype} cannot become {dtype}", suggest_conversion(name, column.dtype)
                raise SchemaMismatch(f"column {name!r}", problem, expected="the same kind of type", remedy=remedy)
            result = values.cast(target)
        elif pa.types.is_decimal(kind) and dtype in (*FLOATS, "string"):
            # By their text, which is rounded once; Arrow's own cast rounds each digit.
            texts = backend.from_arrow(pa.table({name: values.cast(pa.string())}), [Field(name, "string")])
            return cast_column(backend.column(texts, name), dtype, name, backend)
        elif pa.types.is_duration(kind) or pa.types.is_time(kind):
            if dtype == "int64":
                values = values.cast(pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us"))
            result = values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64())
            if dtype == "float64":
                per_second = np.timedelta64(1, "s") / np.timedelta64(1, kind.unit)
                result = pc.divide(result.cast(pa.float64(), safe=False), float(per_second))
        else:  # decimals to integers, bytes to text
            result = values.cast(arrow_type(dtype))
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
    return backend.column(backend.from_arrow(pa.table({name: result}), [Field(name, dtype)]), name)


def _cast_to_float(column: Column, dtype: str, backend: Backend, check: _Check, *, exact: bool) -> Column:
    xp, data = backend.xp, column.data
    with np.errstate(over="ignore"):
        result = data.astype(dtype)
    if column.dtype == "float64":
        bad = (result != data) & ~xp.isnan(data) if exact else xp.isinf(result) & xp.isfinite(data)
        check(bad)
    elif column.dtype in INTEGERS and np.iinfo(column.dtype).max > _exact_up_to(dtype):
        # The largest integers round up to a float beyond the range, where the way back is undefined.
        back = xp.where(result < float(np.iinfo(column.dtype).max) + 1.0, result, result.dtype.type(0))
        check(back.astype(data.dtype) != data)
    return Column(dtype, result if column.valid is None else xp.where(column.valid, result, result.dtype.type(xp.nan)))


def _cast_to_integer(column: Column, dtype: str, backend: Backend, check: _Check) -> Column:
    """Cast numbers and booleans to integers or booleans."""
    xp = backend.xp
    missing = column.missing(xp)
    data = column.data if missing is None else xp.where(missing, column.data.dtype.type(0), column.data)
    if dtype == "bool":
        check((data != 0) & (data != 1))
    elif column.dtype != "bool":
        limits = np.iinfo(dtype)
        if column.dtype in FLOATS:
            outside = (data < float(limits.min)) | (data >= float(limits.max) + 1.0) | (xp.floor(data) != data)
        else:
            source_limits = np.iinfo(column.dtype)
            outside = (data < max(limits.min, source_limits.min)) | (data > min(limits.max, source_limits.max))
        check(outside)
    valid = None if missing is None or not bool(missing.any()) else ~missing
    with np.errstate(invalid="ignore"):  # of values that are made missing
        return Column(dtype, data.astype(dtype), valid)


def _check(column: Column, dtype: str, name: str, backend: Backend, losses: Losses | None, bad: Array) -> None:
    """Raise `BadData` naming the first value that is there and bad, or count all of them."""
    bad = bad if column.valid is None else bad & column.valid
    if losses is not None:
        losses.add(bad)
    elif bool(bad.any()):
        _refuse(name, backend.to_host(column.data[bad][:1])[0].item(), bad, column.dtype, dtype)


def _parse_strings(
    column: Column, dtype: str, name: str, backend: Backend, losses: Losses | None, *, exact: bool
) -> Column:
    """Parse each distinct string once, on the host, and gather the values by code."""
    dictionary = column.dictionary
    assert dictionary is not None
    counts = backend.xp.bincount(column.data[column.data >= 0], minlength=len(dictionary))
    used = np.flatnonzero(backend.to_host(counts))
    texts = pc.utf8_trim_whitespace(dictionary.take(pa.array(used)))
    unread = np.zeros(len(texts), dtype=bool)
    try:
        values = texts.cast(arrow_type(dtype))
    except pa.ArrowInvalid:
        unread = _find_unread(texts, dtype)
        if losses is None:
            wrong = np.zeros(len(dictionary), dtype=bool)
            wrong[used] = unread
            bad = gather(column, wrong, False, backend)
            first = int(np.searchsorted(used, int(column.data[int(bad.argmax())])))
            remedy = _suggest_formats(name, texts.to_pylist(), first) if dtype == "timestamp" else None
            if dtype == "bool" and len(texts) <= 2:  # the last in their order: Y of N and Y, yes of no and yes
                condition = f"{refer_to(name)} == {max(texts.to_pylist())!r}"
                remedy = f"T.Derive({arguments({name: condition})}) in its place"
            _refuse(name, texts[first].as_py(), bad, "string", dtype, remedy)
        values = pc.if_else(pa.array(unread), None, texts).cast(arrow_type(dtype))
    values = values.cast(pa.int64()) if dtype == "timestamp" else values
    stored = values.fill_null(pa.scalar(0).cast(values.type)).to_numpy(zero_copy_only=False)
    misread = _find_misread(texts, stored, dtype) | unread
    if exact and dtype in (*INTEGERS, *FLOATS):
        misread |= _matches(texts, _PADDED)
    if misread.any():
        wrong = np.zeros(len(dictionary), dtype=bool)
        wrong[used] = misread
        bad = gather(column, wrong, False, backend)
        if losses is None:
            _refuse(name, texts[int(misread.argmax())].as_py(), bad, "string", dtype)
        losses.add(bad)
    table = np.zeros(len(dictionary), dtype=stored.dtype)
    table[used] = stored
    data = gather(column, table, np.nan if dtype in FLOATS else 0, backend)
    is_present = column.data >= 0
    return Column(dtype, data, None if dtype in FLOATS or bool(is_present.all()) else is_present)


def _suggest_formats(name: str, texts: Sequence[str], position: int) -> str | None:
    """Suggest what reads a date that is not in ISO format, lacks its zeros or has an offset; None of another text."""
    kind = recognise_texts([texts[position]])
    dates = [text for text in texts if recognise_texts([text]) == kind]
    formats = find_formats(dates) if kind == "dates" else []
    if formats and all(form.startswith("%Y-%m-%d") and not re.search("%[Iz]|[A-Z]{3}", form) for form in formats):
        return f"T.{derive(name, _ZERO_PADDING)} before it"
    return suggest_parsing(name, str(kind), dates) if formats or kind == "times in ISO format" else None


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


def _can_parse(texts: pa.Array, dtype: str) -> bool:
    try:
        texts.cast(arrow_type(dtype))
    except pa.ArrowInvalid:
        return False
    return True


def _find_unread(texts: pa.Array, dtype: str) -> Any:
    """Find the texts that Arrow does not parse, by halves: Arrow says only that there is one."""
    if _can_parse(texts, dtype):
        return np.zeros(len(texts), dtype=bool)
    if len(texts) == 1:
        return np.ones(1, dtype=bool)
    middle = len(texts) // 2
    return np.concatenate([_find_unread(half, dtype) for half in (texts[:middle], texts[middle:])])


def _format_values(column: Column, name: str, backend: Backend, written_as: str, losses: Losses | None) -> Column:
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
            bad = xp.isin(column.data, backend.to_device(values[beyond]))
            _check(column, "string", name, backend, losses, bad)
        if written_as:
            times = pa.array(values).cast(pa.timestamp("us", "UTC")).cast(arrow_type(written_as))
            dictionary = times.cast(pa.large_string())
    else:
        # Negative zero is the same value as zero, and which of them `unique` has kept says nothing.
        numbers = values + 0.0 if column.dtype in FLOATS else values
        dictionary = pa.array(numbers.astype("str").tolist(), pa.large_string())
    codes: Array = xp.full(len(column), -1, dtype="int32")
    codes[present] = inverse
    return Column("string", codes, None, dictionary)


def _exact_up_to(dtype: str) -> int:
    """Return the integer up to which a float type holds every integer exactly."""
    return int(2 ** (np.finfo(dtype).nmant + 1))


def _refuse(name: str, value: Any, bad: Array, source: str, dtype: str, remedy: str | None = None) -> NoReturn:
    """Raise the error about the values that do not fit, with the first one and its row."""
    count = int(bad.sum())
    many = f"{count} values do" if count > 1 else "a value does"
    expected = f"values that {dtype} can hold"
    remedy = remedy or f"leave it {source}, a Filter before it, or T.Cast({{{name!r}: {dtype!r}}}, errors='coerce')"
    if source == "string" and dtype in (*INTEGERS, *FLOATS) and re.match(_PADDED, value):
        expected = "numbers without leading zeros, which would be lost"
    elif dtype == "bool" and source != "string":
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
