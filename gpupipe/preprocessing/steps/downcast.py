"""Downcasting: the smallest type that holds a column's values, learned, and checked afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.cast import cast_column
from gpupipe.errors import BadData
from gpupipe.preprocessing.learned_step import Columns, LearnedStep, check_numeric, tabulate
from gpupipe.schema import FLOATS, INTEGERS, Field

# By size, signed before unsigned.
_SMALLEST = sorted(INTEGERS, key=lambda dtype: (np.dtype(dtype).itemsize, dtype.startswith("u")))


@dataclass(frozen=True)
class _Ranges:
    """Summary of the values that columns have to represent: their range, and how many values float32 would round."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    low: Any
    high: Any
    rounded: Any

    def __add__(self, other: Self) -> Self:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return replace(self, low=low, high=high, rounded=self.rounded + other.rounded)


class Downcast(LearnedStep):
    """Downcasting of numbers to the smallest type that holds every value of `fit`; values never change.

    An integer column becomes the smallest integer type its range fits (signed, where two are of one size), a float64
    column float32 where that holds each of its values exactly. Booleans, and columns without a value, stay. `dtypes_`
    are the types, one per column.

    Raises:
        BadData: at `transform`, a value that the type cannot hold; it is never wrapped or rounded.
        SchemaMismatch: a column holds no numbers.

    Memory: one new column per column that changes, and as much while values are checked.

    Example:
        >>> import pandas as pd
        >>> Downcast().fit(pd.DataFrame({"day": [1, 31], "pixel": [0, 255], "half": [0.5, None]})).dtypes_
        ['int8', 'uint8', 'float32']
    """

    keeps_units = True
    monotone = True

    def summarize(self, columns: Columns, backend: Backend) -> _Ranges:
        table = tabulate(columns, _range, 3, backend)
        low, high = table[..., 0].min(axis=0, initial=np.inf), table[..., 1].max(axis=0, initial=-np.inf)
        dtypes = tuple(column.dtype for column in columns.values())
        return _Ranges(tuple(columns), dtypes, low, high, table[..., 2].sum(axis=0))

    def finalize(self, summary: _Ranges) -> Self:
        self.names_in_ = list(summary.names)
        facts = zip(summary.dtypes, summary.low, summary.high, summary.rounded, strict=True)
        self.dtypes_ = [_smallest(*one) for one in facts]
        return self

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the fields with the learned types; before `fit`, with their own."""
        check_numeric(fields, "Downcast")
        if not self.is_fitted:
            return list(fields)
        return [replace(item, dtype=self._learned.get(item.name, item.dtype)) for item in fields]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        return {name: self._stored(name, column, backend) for name, column in columns.items()}

    @property
    def _learned(self) -> dict[str, str]:
        return dict(zip(self.names_in_, self.dtypes_, strict=True))

    def _stored(self, name: str, column: Column, backend: Backend) -> Column:
        dtype = self._learned[name]
        try:
            return cast_column(column, dtype, name, backend, exact=True)
        except BadData as error:
            problem = f"a value does not fit {dtype}, which held every value of fit"
            expected = "values like those it was fitted on"
            remedy = f"fit on more rows, or leave {name!r} out of this step"
            where = f"Downcast, column {name!r}"
            raise BadData(where, problem, got=error.got, expected=expected, remedy=remedy) from None


def _range(block: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return the least and largest value of a block of one column, and the count of values float32 would round."""
    missing = xp.isnan(block)
    rounded = (block.astype("float32").astype("float64") != block) & ~missing
    return xp.where(missing, xp.inf, block).min(), xp.where(missing, -xp.inf, block).max(), xp.count_nonzero(rounded)


def _smallest(dtype: str, low: float, high: float, rounded: float) -> str:
    if low > high or dtype == "bool":
        return dtype
    if dtype in FLOATS:
        return dtype if rounded else "float32"
    fitting = (one for one in _SMALLEST if np.iinfo(one).min <= low and high <= np.iinfo(one).max)
    found = next(fitting, dtype)
    return found if np.dtype(found).itemsize < np.dtype(dtype).itemsize else dtype
