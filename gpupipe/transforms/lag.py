"""Lags: values of earlier rows of the same key, the change since then, and their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import polars as pl

from gpupipe.schema import ROW, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_names, is_integer, is_sequence, refuse_argument
from gpupipe.transforms.window_transform import WholeTableTransform

__all__ = ["CumulativeCount", "Difference", "Lag"]


class _Shifted(WholeTableTransform):
    """Base class of the steps that read the row so many rows back."""

    def __init__(
        self,
        columns: str | Sequence[str],
        periods: int | Sequence[int] = 1,
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        numbers: Any = periods if is_sequence(periods) else [periods]
        if not len(numbers) or not all(is_integer(number) and number for number in numbers):
            raise refuse_argument(self, "periods", periods, "an integer other than 0, or several")
        self.columns, self.periods = as_list(columns), periods

    @property
    def inputs(self) -> list[str]:
        return self.columns

    @property
    def _rows_back(self) -> list[int]:
        return list(map(int, self.periods if isinstance(self.periods, Iterable) else [self.periods]))


class Lag(_Shifted):
    """Lag: the value of an earlier row of the same key; pandas' `groupby(by)[column].shift(periods)`.

    New columns are called `dep_delay_lag_1_by_tailnum`, or `dep_delay_lead_1_by_tailnum` where `periods` is negative:
    that is a value of the future, unknown at prediction. The first rows of a key have a missing value.

    Args:
        columns: of any type, which stays.
        periods: how many rows back, or several such numbers.
        by: the key columns; a row with a missing key has missing values. Without any, all rows belong together, and
            have to fit in memory together.
        order_by: the columns that put the rows of a key in order, such as a time; rows alike in them stand as in the
            table, and without any of these so do all.

    Raises:
        BadConfig: `periods` holds no integers, or 0; or a column of the new one's name is there.

    Memory: four times the columns that are read, and the new ones. Of a Dataset see `docs/guide-groups.md`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a"], "hour": [9, 8, 7], "delay": [5.0, 1.0, 3.0]})
        >>> Lag("delay", by="plane", order_by="hour").transform(frame)["delay_lag_1_by_plane"].tolist()
        [3.0, nan, nan]
    """

    @property
    def makes(self) -> list[str]:
        return [self._lagged(name, p) for name in self.columns for p in self._rows_back]

    def made_fields(self, schema: Schema) -> list[Field]:
        return [
            replace(schema[name], name=self._lagged(name, p), nullable=True)
            for name in self.columns
            for p in self._rows_back
        ]

    def _lagged(self, name: str, periods: int) -> str:
        return self._name(name, "lag" if periods > 0 else "lead", abs(periods))

    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        made = {self._lagged(name, p): pl.col(name).shift(p) for name in self.columns for p in self._rows_back}
        made = {
            out: self._where_known(self._over(value, backend), schema) for out, value in made.items() if out in wanted
        }
        return self._in_place(self._in_order(rows, backend).select(ROW, **made), backend)


class Difference(_Shifted):
    """Difference from an earlier row of the same key; pandas' `groupby(by)[column].diff(periods)`.

    New columns are called `dep_delay_diff_1_by_tailnum` and are float64; of times they are seconds. A negative number
    of `periods` compares with a later row, unknown at prediction.

    Args:
        columns: numbers, booleans or times.
        periods: how many rows back, or several such numbers.
        by: the key columns; this and the next as for `Lag`.
        order_by: the columns that put the rows of a key in order.

    Raises:
        BadConfig: as `Lag`.
        SchemaMismatch: a column holds text.

    Memory: as `Lag`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a"], "hour": [9, 8, 7], "delay": [5.0, 1.0, 3.0]})
        >>> Difference("delay", by="plane", order_by="hour").transform(frame)["delay_diff_1_by_plane"].tolist()
        [2.0, nan, nan]
    """

    @property
    def makes(self) -> list[str]:
        return [self._name(name, "diff", p) for name in self.columns for p in self._rows_back]

    def made_fields(self, schema: Schema) -> list[Field]:
        return [
            Field.derived(self._name(item.name, "diff", p), "float64", [item], "Difference")
            for item in self._numbers(schema, self.columns, "timestamp")
            for p in self._rows_back
        ]

    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        made = {}
        for name in self.columns:
            for periods in self._rows_back:
                before = self._over(pl.col(name).shift(periods), backend)
                change = _change(pl.col(name), before, schema[name].dtype)
                made[self._name(name, "diff", periods)] = self._where_known(change, schema)
        made = {out: value for out, value in made.items() if out in wanted}
        return self._in_place(self._in_order(rows, backend).select(ROW, **made), backend)


class CumulativeCount(WholeTableTransform):
    """Cumulative count of earlier rows with the same key, from 0; pandas' `groupby(by).cumcount()`.

    The new column is called `cumcount_by_tailnum`, and is int64.

    Args:
        by: the key columns, one at least; a row with a missing key has a missing count.
        order_by: the columns that put the rows of a key in order; as for `Lag`.

    Raises:
        BadConfig: no key; or a column of the new one's name is there.

    Memory: as `Lag`.

    Example:
        >>> import pandas as pd
        >>> CumulativeCount("plane").transform(pd.DataFrame({"plane": ["a", "b", "a"]}))["cumcount_by_plane"].tolist()
        [0, 0, 1]
    """

    def __init__(self, by: str | Sequence[str], *, order_by: str | Sequence[str] | None = None) -> None:
        check_names(self, empty=False, by=by)
        super().__init__(by, order_by)

    @property
    def inputs(self) -> list[str]:
        return []

    @property
    def makes(self) -> list[str]:
        return [self._name("", "cumcount")]

    def made_fields(self, schema: Schema) -> list[Field]:
        nullable = any(schema[name].nullable for name in self.keys)
        return [Field(self.makes[0], "int64", nullable=nullable)]

    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        count = self._over(pl.col(ROW).is_not_null().cast(pl.Int64).cum_sum(), backend) - 1
        count = self._where_known(count, schema)
        return self._in_place(self._in_order(rows, backend).select(ROW, count.alias(self.makes[0])), backend)


def _change(now: pl.Expr, before: pl.Expr, dtype: str) -> pl.Expr:
    if dtype == "timestamp":
        return (now.cast(pl.Int64) - before.cast(pl.Int64)) / 1e6
    changes = [a - b for a, b in zip(_parts(now, dtype), _parts(before, dtype), strict=True)]
    return sum(changes[1:], start=changes[0])


def _parts(value: pl.Expr, dtype: str) -> list[pl.Expr]:
    """Split a number into floats whose sum it is: two where one would round, as it does integers beyond 2^53."""
    if dtype not in ("int64", "uint64"):
        return [value.cast(pl.Float64)]
    low = value & pl.lit((1 << 32) - 1, pl.Int64 if dtype == "int64" else pl.UInt64)
    return [(value - low).cast(pl.Float64), low.cast(pl.Float64)]
