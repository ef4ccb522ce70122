"""Rows as dicts, as a request over HTTP has them: to a table with the types of a fit, and back."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from gpupipe.backend import Frame, infer_backend
from gpupipe.backend.arrow import get_file_type, is_list
from gpupipe.errors import BadData, ColumnNotFound, SchemaMismatch, nearest
from gpupipe.schema import Field, Schema


def is_records(data: object) -> bool:
    """Return whether it is a dict, one row by column name, or a list of them."""
    return isinstance(data, Mapping) or (
        isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data)
    )


def answer_records(
    data: Any, source: Schema, score: Callable[[pa.Table], Frame], list_reads: Callable[[pa.Table], Container[str]]
) -> Any:
    """Score a row or a list of rows by a function from table to frame, and return a dict for each, of plain values.

    Keys that are no columns of `source` are left out, as are values of another type in columns that `list_reads` does
    not name, of a table with these columns. A missing value is None: a key that only some rows have is an error.
    Times may be text in ISO format; those of a zone are answered in it.
    """
    rows: Sequence[Mapping[str, Any]] = [data] if isinstance(data, Mapping) else data
    if not rows:
        return []
    names = {name for row in rows for name in row}
    fields = [item for item in source if item.name in names]
    columns, errors = dict[str, pa.Array](), dict[str, SchemaMismatch | ColumnNotFound]()
    for item in fields:
        try:
            columns[item.name] = _read_values(item, [_get_value(item, row, n, source) for n, row in enumerate(rows)])
        except (SchemaMismatch, ColumnNotFound) as error:
            errors[item.name] = error
    if errors:
        read = list_reads(pa.table({item.name: [] for item in fields}))
        if needed := [name for name in errors if name in read]:
            raise errors[needed[0]]
    table = pa.table(columns)
    try:
        frame = score(table)
    except ColumnNotFound as error:
        if nearest(error.column, (str(name) for name in names if name not in source.names)) is None:
            raise
        raise ColumnNotFound.among("the data", error.column, [*map(str, names)], other_names=source.names) from None
    owner = infer_backend(frame)
    encoded = owner.encode(frame)
    types = pa.schema((item.name, get_file_type(item)) for item in owner.schema_of(encoded, owner.classify(frame)))
    records = owner.to_arrow(encoded).cast(types).to_pylist()
    if isinstance(data, Mapping) and len(records) != 1:
        problem = (
            "the pipeline's steps leave the row out" if not records else "the row matches several of a joined table"
        )
        raise BadData("the row", problem, got=len(records), expected="one row", remedy="[row], for a list of all")
    return records[0] if isinstance(data, Mapping) else records


def _get_value(item: Field, row: Mapping[str, Any], number: int, source: Schema) -> Any:
    """Return a row's value of a column; `ColumnNotFound` where its dict has none, as rows of one dict are refused."""
    if item.name not in row:
        where, offer = f"row {number} of the data", f"{{{item.name!r}: None}}"
        raise ColumnNotFound.among(where, item.name, [*map(str, row)], offer, source.names)
    return row[item.name]


def _read_values(item: Field, values: list[Any]) -> pa.Array:
    """Convert a column's values to its type; raise SchemaMismatch with the first that is of another."""
    kind = get_file_type(item)
    for value in values:
        try:
            _convert([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
            where, problem = f"column {item.name!r}", f"a value cannot be read as {item.dtype}"
            expected, remedy = f"{item.dtype}, as in the fit", _suggest(value, kind)
            raise SchemaMismatch(where, problem, got=value, expected=expected, remedy=remedy) from cause
    return _convert(values, kind)


def _convert(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert values to a type, and nothing that Arrow would take for others of that type."""
    if pa.types.is_timestamp(kind):  # Arrow would take a number, and drop an offset or the lack of one
        return pa.array(map(_format_time, values), pa.string(), from_pandas=True).cast(kind)
    if pa.types.is_date(kind) and any(isinstance(value, str) for value in values):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_boolean(kind):  # as a frame's columns of 0 and 1 are cast
        values = [bool(value) if isinstance(value, int) and value in (0, 1) else value for value in values]
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = [int(value) if isinstance(value, bool) else value for value in values]
    array = pa.array(values, kind, from_pandas=True)
    # Arrow would cut a fraction off, and take a number of days for a date.
    if any(isinstance(value, bool) for value in values) and not pa.types.is_boolean(kind):
        raise TypeError
    if pa.types.is_integer(kind) and any(isinstance(value, float) and value % 1 > 0 for value in values):
        raise ValueError
    if pa.types.is_date(kind) and any(isinstance(value, int) for value in values):
        raise TypeError
    if is_list(kind):
        for value, length in zip(values, array.value_lengths().to_pylist(), strict=True):
            if isinstance(value, str | bytes | Mapping | AbstractSet):  # Arrow would take letters, keys, any order
                raise TypeError
            _convert(list(value) if length else [], kind.value_type)
    return array


def _format_time(value: Any) -> Any:
    """Return a time as ISO text, which has an offset where the time has a zone; anything else as it is."""
    if isinstance(value, datetime):
        text = value.isoformat(timespec="microseconds")
        return None if text == "NaT" else text
    return value.isoformat() if isinstance(value, date) else value


def _suggest(value: Any, kind: pa.DataType) -> str:
    if is_list(kind):
        return "a list of values of that type, or None where it is missing"
    if pa.types.is_timestamp(kind):
        offset = (
            "with an offset, '2024-05-01T09:00:00+00:00'" if kind.tz else "without an offset, '2024-05-01T09:00:00'"
        )
        return f"a datetime or ISO text {offset}, or None where it is missing"
    if hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping):
        return "pd.DataFrame(data), where a key has a column's values"
    return "the value in that type, or None where it is missing"
