"""Polars plans over frames in memory: columns in, columns out, by the engine of the frame's backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa

from gpupipe.backend.arrow import split_list
from gpupipe.backend.arrow_types import arrow_type
from gpupipe.backend.protocol import Backend, Column, Frame
from gpupipe.schema import FLOATS, ROW, Field


def columns_by_plan(
    plan: Callable[[pl.LazyFrame], pl.LazyFrame],
    frame: Frame,
    inputs: Sequence[Field],
    made: Sequence[Field],
    backend: Backend,
) -> dict[str, Column]:
    """Compute columns of a coded frame by a Polars plan over all its rows."""
    floats = [item.name for item in inputs if item.dtype in FLOATS]
    rows = polars_from_arrow(host_table(frame, inputs, backend)).lazy().with_row_index(ROW)
    rows = rows.with_columns(pl.col(ROW).cast(pl.UInt64), pl.col(floats).fill_nan(None))
    found = plan(rows).collect(engine=backend.plan_engine())
    types = pa.schema([(item.name, arrow_type(item.dtype)) for item in made])
    result = backend.from_arrow(arrow_from_polars(found, types), made)
    return {item.name: backend.column(result, item.name) for item in made}


def host_table(frame: Frame, fields: Sequence[Field], backend: Backend) -> pa.Table:
    """Copy columns of a coded frame to the host, as the types of their fields."""
    types = pa.schema([(item.name, arrow_type(item.dtype)) for item in fields])
    return backend.to_arrow(backend.select(frame, types.names)).cast(types)


def polars_from_arrow(table: pa.Table) -> pl.DataFrame:
    """Convert an Arrow table to Polars; decimals too wide for Polars are passed as bytes."""
    columns = []
    for column in table.columns:
        if pa.types.is_decimal256(column.type):
            columns.append(_with_type(column, pa.binary(32)))
        elif "fixed_size_list" in str(column.type):  # Polars misreads slices of them
            copies = [chunk.take(pa.array(range(len(chunk)), pa.int64())) for chunk in column.chunks]
            columns.append(pa.chunked_array(copies, column.type))
        else:
            columns.append(column)
    return pl.DataFrame(pa.table(columns, table.column_names))


def arrow_from_polars(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Convert a Polars frame to an Arrow table of this schema."""
    table = frame.select(schema.names).to_arrow()
    columns = []
    for item, column in zip(schema, table.columns, strict=True):
        if pa.types.is_decimal256(item.type) and not pa.types.is_decimal(column.type):
            columns.append(_with_type(column.cast(pa.binary(32)), item.type))
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


def _with_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)
