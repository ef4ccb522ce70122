"""Rows as dicts, as a request over HTTP has them: to a table with the types of a fit, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from gpupipe.backend import Frame, infer_backend
from gpupipe.backend.arrow import get_file_type
from gpupipe.errors import ColumnNotFound, SchemaMismatch, nearest
from gpupipe.schema import Field, Schema


def is_records(data: object) -> bool:
    """Return whether it is a dict, one row by column name, or a list of them."""
    return isinstance(data, Mapping) or (
        isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data)
    )


def answer_records(data: Any, source: Schema, score: Callable[[pa.Table], Frame]) -> Any:
    """Score a row or a list of rows by a function from table to frame, and return a dict for each, of plain values.

    Keys that are no columns of `source` are left out; a missing value is None. Times may be text in ISO format.
    """
    rows: Sequence[Mapping[str, Any]] = [data] if isinstance(data, Mapping) else data
    if not rows:
        return []
    names = {name for row in rows for name in row}
    fields = [item for item in source if item.name in names]
    table = pa.table({item.name: _read_values(item, [row.get(item.name) for row in rows]) for item in fields})
    try:
        frame = score(table)
    except ColumnNotFound as error:
        if nearest(error.column, map(str, names)) is None:
            raise
        raise ColumnNotFound.among("the data", error.column, [*map(str, names)]) from None
    owner = infer_backend(frame)
    records = owner.to_arrow(owner.encode(frame)).to_pylist()
    return records[0] if isinstance(data, Mapping) else records


def _read_values(item: Field, values: list[Any]) -> pa.Array:
    """Convert a column's values to its type; raise SchemaMismatch with the first that is of another."""
    kind = get_file_type(item)

    def convert(items: list[Any]) -> pa.Array:
        if pa.types.is_temporal(kind) and any(isinstance(value, str) for value in items):
            return pa.array(items, pa.string()).cast(kind)
        array = pa.array(items, kind, from_pandas=True)
        # Arrow would cut a fraction off, and take true for 1.
        if any(isinstance(value, bool) for value in items) and not pa.types.is_boolean(kind):
            raise TypeError
        if pa.types.is_integer(kind) and any(isinstance(value, float) and value % 1 > 0 for value in items):
            raise ValueError
        return array

    for value in values:
        try:
            convert([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
            where, problem = f"column {item.name!r}", f"a value cannot be read as {item.dtype}"
            expected, remedy = f"{item.dtype}, as in the fit", "the value in that type, or None where it is missing"
            remedy = "pd.DataFrame(data), where a key has a column's values" if _is_column(value) else remedy
            raise SchemaMismatch(where, problem, got=value, expected=expected, remedy=remedy) from cause
    return convert(values)


def _is_column(value: object) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
