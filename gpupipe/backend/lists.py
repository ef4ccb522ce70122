"""List columns and passengers in pandas frames: Arrow arrays, strings among a list's elements as codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow import list_array, split_list
from gpupipe.backend.arrow_types import dtype_from_arrow
from gpupipe.backend.protocol import Column
from gpupipe.schema import get_element_dtype


def without_float64(values: Any) -> Any:
    """Replace empty float64 arrays among Python objects by empty lists: NumPy makes them for any element type."""
    if str(values.dtype) != "object":
        return values
    untyped = (isinstance(each, np.ndarray) and not each.size and each.dtype == np.float64 for each in values)
    return [[] if empty else each for empty, each in zip(untyped, values, strict=True)]


def whole(series: Any) -> pa.Array:
    """Convert a column to one Arrow array.

    Memory: shares what Arrow has in one piece; several are copied together, Python objects are copied.
    """
    found = pa.array(without_float64(series.array), from_pandas=True)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def build_list_array(column: Column) -> pa.LargeListArray:
    """Convert a column of lists to Arrow; strings as codes, missing elements null, but for NaN. Shares."""
    values = column.elements
    assert values is not None
    if values.dictionary is not None:
        codes = values.data.astype(np.int32, copy=False)
        leaves = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), values.dictionary)
    else:
        data = values.data.view("datetime64[us]") if values.dtype == "timestamp" else values.data
        leaves = pa.array(data, mask=None if values.valid is None else ~values.valid, from_pandas=False)
    return list_array(column.data, leaves, column.valid)


def plain_table(table: pa.Table) -> pa.Table:
    """Decode the conformed columns of a table, but for strings, which stay codes: see `plain`; a NaN is null.

    Example:
        >>> plain_table(pa.table({"x": [1.0, float("nan")]})).column("x").null_count
        1
    """
    columns = []
    for column in table.columns:
        if pa.types.is_floating(column.type):
            is_nan = pc.is_nan(column)
            found = pc.if_else(is_nan, pa.scalar(None, column.type), column) if pc.any(is_nan).as_py() else column
        else:
            chunks = [plain(chunk) for chunk in column.chunks]
            found = pa.chunked_array(chunks) if chunks else column
        columns.append(found)
    return pa.table(columns, table.column_names)


def plain(array: pa.Array) -> pa.Array:
    """Decode conformed lists: strings plain, a missing element null whatever its type.

    Any other array is shared.
    """
    if get_element_dtype(dtype_from_arrow(array.type) or "") is None:
        return array
    offsets, leaves = split_list(array)
    if pa.types.is_dictionary(leaves.type):
        leaves = leaves.cast(pa.large_string())
    if pa.types.is_floating(leaves.type):
        leaves = pc.if_else(pc.is_nan(leaves), pa.scalar(None, leaves.type), leaves)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    return list_array(offsets, leaves, valid)
