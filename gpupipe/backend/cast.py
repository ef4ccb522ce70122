"""A column stored as another type, value by value or not at all; the same on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS

__all__ = ["cast_column"]


def cast_column(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    """The column as `dtype`, one of `schema.DTYPES`.

    Strings are parsed; numbers, booleans and timestamps are written out. A float becomes an integer only where it is
    whole. `name` is for messages.

    Raises:
        BadData: a value does not fit; names column and value.
        SchemaMismatch: no meaning connects the two types (a fraction and a timestamp).

    Memory: a new column on the device; distinct strings (to and from) go through the host.

    Example:
        >>> from gpupipe.backend import select
        >>> cast_column(Column("float64", np.array([1.0, np.nan])), "int64", "x", select("cpu")).valid
        array([ True, False])
    """
    if column.dtype == dtype:
        return column
    if column.dtype == "string":
        return _parsed(column, dtype, name, backend)
    if dtype == "string":
        return _written(column, backend)
    if "timestamp" in (column.dtype, dtype):
        if {column.dtype, dtype} != {"timestamp", "int64"}:
            raise SchemaMismatch(
                f"column {name!r}",
                f"{column.dtype} cannot become {dtype}",
                expected="int64 microseconds beside timestamps",
                remedy=f"Derive({name}='hour({name})') and the like for parts of a time",
            )
        return Column(dtype, column.data, column.valid)
    return _number(column, dtype, name, backend)


def _number(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    xp = backend.xp
    if dtype in FLOATS:
        data = column.data.astype(dtype)
        return Column(dtype, data if column.valid is None else xp.where(column.valid, data, xp.nan).astype(dtype))
    missing = column.missing(xp)
    data = column.data if missing is None else xp.where(missing, column.data.dtype.type(0), column.data)
    if dtype == "bool":
        bad = (data != 0) & (data != 1)
    elif column.dtype == "bool":
        bad = None
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        bad = (data < low) | (data > high)
        if column.dtype in FLOATS:
            # The largest integers round up to a float beyond the range.
            bad |= (xp.floor(data) != data) | (data >= float(high) + 1.0)
    if bad is not None and bool(bad.any()):
        raise _unfit(name, backend.to_host(data[bad][:1])[0].item(), int(bad.sum()), dtype)
    valid = None if missing is None or not bool(missing.any()) else ~missing
    return Column(dtype, data.astype(dtype), valid)


def _parsed(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    """Each distinct string is parsed once, on the host, and gathered by code."""
    dictionary = column.dictionary
    assert dictionary is not None
    counts = backend.to_host(backend.xp.bincount(column.data[column.data >= 0], minlength=len(dictionary)))
    used = np.flatnonzero(counts)
    texts = pc.utf8_trim_whitespace(dictionary.take(pa.array(used)))
    try:
        values = texts.cast(arrow_type(dtype))
    except pa.ArrowInvalid:
        raise _unfit(name, _first_unparsed(texts, dtype), None, dtype) from None
    stored = values.cast(pa.int64()) if dtype == "timestamp" else values
    table = np.zeros(len(dictionary) + 1, dtype="int64" if dtype == "timestamp" else dtype)
    table[used] = stored.to_numpy(zero_copy_only=False)
    if dtype in FLOATS:
        table[-1] = np.nan
        return Column(dtype, backend.to_device(table)[column.data])
    missing = column.data < 0
    return Column(dtype, backend.to_device(table)[column.data], ~missing if bool(missing.any()) else None)


def _first_unparsed(texts: pa.Array, dtype: str) -> Any:
    for text in texts:
        try:
            pa.array([text.as_py()]).cast(arrow_type(dtype))
        except pa.ArrowInvalid:
            return text.as_py()
    return None


def _written(column: Column, backend: Backend) -> Column:
    """Each distinct value is written out once, on the host."""
    xp = backend.xp
    missing = column.missing(xp)
    present = column.data if missing is None else column.data[~missing]
    values, inverse = xp.unique(present, return_inverse=True)
    dictionary = _texts(backend.to_host(values), column.dtype)
    codes: Array = xp.full(len(column), -1, dtype="int32")
    codes[slice(None) if missing is None else ~missing] = inverse
    return Column("string", codes, None, dictionary)


def _texts(values: Any, dtype: str) -> pa.Array:
    if dtype == "timestamp":
        return pa.array(np.datetime_as_string(values.view("datetime64[us]"), unit="s").tolist(), pa.large_string())
    written = values.tolist()
    if dtype in INTEGERS or dtype == "bool":
        return pa.array([str(value) for value in written], pa.large_string())
    return pa.array([repr(value) for value in written], pa.large_string())


def _unfit(name: str, value: Any, count: int | None, dtype: str) -> BadData:
    many = "a value does" if count is None else f"{count} value{'s' if count > 1 else ''} do"
    return BadData(
        f"Cast of column {name!r}",
        f"{many} not fit {dtype}",
        got=value,
        expected=f"values that {dtype} can hold",
        remedy=f"Filter the rows, a wider type, or Derive({name}='round({name})') for fractions",
    )
