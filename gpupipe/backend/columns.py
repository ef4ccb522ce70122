"""Small facts about columns that both backends and every room need."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from gpupipe.backend.protocol import Array, Column
from gpupipe.schema import FLOATS

__all__ = ["missing_column", "whole_numbers", "with_missing_row"]


def missing_column(dtype: str, num_rows: int, xp: ModuleType) -> Column:
    """A column of that type in which every value is missing.

    Memory: allocates it.

    Example:
        >>> import numpy as np
        >>> missing_column("float64", 2, np).data
        array([nan, nan])
    """
    if dtype in FLOATS:
        return Column(dtype, xp.full(num_rows, xp.nan, dtype=dtype))
    if dtype == "string":
        return Column(dtype, xp.full(num_rows, -1, dtype="int32"), None, pa.array([], pa.large_string()))
    stored = "int64" if dtype == "timestamp" else dtype
    return Column(dtype, xp.zeros(num_rows, dtype=stored), xp.zeros(num_rows, dtype=bool))


def with_missing_row(column: Column, xp: ModuleType) -> Column:
    """The column with one missing value appended, so that gathering at -1 gives a missing value.

    Memory: copies the column.

    Example:
        >>> import numpy as np
        >>> with_missing_row(Column("int64", np.array([7])), np).valid
        array([ True, False])
    """
    last = missing_column(column.dtype, 1, xp)
    data = xp.concatenate([column.data, last.data.astype(column.data.dtype)])
    if last.valid is None:
        return Column(column.dtype, data, None, column.dictionary)
    valid = xp.ones(len(column), dtype=bool) if column.valid is None else column.valid
    return Column(column.dtype, data, xp.concatenate([valid, last.valid]))


def whole_numbers(column: Column, kind: np.dtype[Any], xp: ModuleType) -> tuple[Array, Array]:
    """n values as int64 or uint64, and where they are the column's: not missing, no fraction, not out of range.

    Memory: allocates both; shares values that are of that type already.

    Example:
        >>> import numpy as np
        >>> whole_numbers(Column("float64", np.array([2.0, 2.5])), np.dtype("int64"), np)
        (array([2, 0]), array([ True, False]))
    """
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
