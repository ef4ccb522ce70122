"""A row beside earlier rows of the same key: their values, the change since then, and how many there were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.arithmetic import seconds_between
from gpupipe.backend.columns import floats, with_missing_row
from gpupipe.schema import Field, Schema
from gpupipe.support.validation import check_names, is_integer, is_sequence, refuse_argument
from gpupipe.transforms.segments import Segments
from gpupipe.transforms.whole_table import WholeTableTransform
from gpupipe.words import as_list

__all__ = ["CumulativeCount", "Difference", "Lag"]


class _Shifted(WholeTableTransform):
    """What two steps that look so many rows back have in common."""

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
        return list(self.periods) if isinstance(self.periods, Iterable) else [self.periods]


class Lag(_Shifted):
    """The value of an earlier row of the same key; pandas' `groupby(by)[column].shift(periods)`.

    New columns are called `dep_delay_lag_1_by_tailnum`, or `dep_delay_lead_1_by_tailnum` where `periods` is negative:
    that is a value of the future, which nobody has when predicting. The first rows of a key have a missing value.

    Args:
        columns: of any type, which stays.
        periods: how many rows back, or several such numbers.
        by: the key columns; a row with a missing key has missing values. Without any, all rows belong together, and
            have to fit in memory together.
        order_by: the columns that put the rows of a key in order, such as a time; rows alike in them stand as in the
            table, and without any of these so do all.

    Raises:
        BadConfig: `periods` holds no integers, or 0; or a column of the new one's name is there.

    Memory: of a frame, ten arrays of n int64 and the new columns. Of a Dataset see `docs/guide-groups.md`.

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

    def made_columns(
        self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend
    ) -> dict[str, Column]:
        made, segments = {}, Segments.of(frame, self.keys, self.order, backend)
        for periods in self._rows_back:
            names = {name: self._lagged(name, periods) for name in self.columns}
            names = {name: out for name, out in names.items() if out in wanted}
            rows = segments.earlier(periods) if names else None
            for name, out in names.items():
                made[out] = with_missing_row(backend.column(frame, name), backend.xp).take(rows)
        return made


class Difference(_Shifted):
    """The change since an earlier row of the same key; pandas' `groupby(by)[column].diff(periods)`.

    New columns are called `dep_delay_diff_1_by_tailnum` and are float64; of times they are seconds. A negative number
    of `periods` compares with a later row, which nobody knows when predicting.

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

    def made_columns(
        self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend
    ) -> dict[str, Column]:
        made, segments = {}, Segments.of(frame, self.keys, self.order, backend)
        for periods in self._rows_back:
            names = {name: self._name(name, "diff", periods) for name in self.columns}
            names = {name: out for name, out in names.items() if out in wanted}
            rows = segments.earlier(periods) if names else None
            for name, out in names.items():
                column = backend.column(frame, name)
                before = with_missing_row(column, backend.xp).take(rows)
                made[out] = _change(column, before, backend)
        return made


class CumulativeCount(WholeTableTransform):
    """How many earlier rows have the same key: 0 for the first; pandas' `groupby(by).cumcount()`.

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

    def made_columns(
        self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend
    ) -> dict[str, Column]:
        segments = Segments.of(frame, self.keys, self.order, backend)
        return {self.makes[0]: segments.column(segments.places - segments.start, "int64")}


def _change(now: Column, before: Column, backend: Backend) -> Column:
    if now.dtype == "timestamp":
        return seconds_between(now, before, backend.xp)
    with np.errstate(invalid="ignore"):
        changes = [a - b for a, b in zip(_parts(now, backend.xp), _parts(before, backend.xp), strict=True)]
    return Column("float64", sum(changes[1:], start=changes[0]))


def _parts(column: Column, xp: ModuleType) -> list[Array]:
    """Float64 arrays whose sum is the column: two where one would round, as it does whole numbers beyond 2^53."""
    if column.dtype not in ("int64", "uint64"):
        return [floats(column, xp)]
    low = column.data & (1 << 32) - 1
    return [floats(Column(column.dtype, part, column.valid), xp) for part in (column.data - low, low)]
