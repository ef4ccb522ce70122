"""Window transforms, by a Polars plan: lags, differences, counts, rolling and expanding statistics."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import polars as pl

from gpupipe.backend import Backend, Frame
from gpupipe.backend.columns import columns_by_plan, require_comparable
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, ROW, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import (
    check_choice,
    check_integer,
    check_names,
    is_integer,
    is_sequence,
    parse_duration_us,
    refuse_argument,
)
from gpupipe.transforms.transform import Transform


class WholeTableTransform(Transform):
    """Base class of steps that add columns from other rows of the same key; rows and order stay the same.

    A frame is taken to hold all rows there are. Of a Dataset a pipeline makes the columns before its first pass, of
    the columns in `reads` alone; see docs/decisions/012.

    Args:
        by: the key columns. Rows with a missing key have missing values in the new columns. Without a key column all
            rows belong together.
        order_by: the columns by which the rows of a key are in order, missing values last; rows alike in them are
            ordered as in the table, and without any of these so do all.

    Raises:
        SchemaMismatch: at `output_schema`, when a key or an order is a column of lists.
        BadConfig: at `output_schema`, when a new column would have another one's name.
    """

    def __init__(self, by: str | Sequence[str] | None, order_by: str | Sequence[str] | None) -> None:
        check_names(self, None, by=by, order_by=order_by)
        self.by, self.order_by = by, order_by

    @property
    def keys(self) -> list[str]:
        """The key columns."""
        return [] if self.by is None else as_list(self.by)

    @property
    def order(self) -> list[str]:
        """The columns that order the rows of a key."""
        return [] if self.order_by is None else as_list(self.order_by)

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """The columns the new ones are computed from, besides keys and order."""

    @property
    @abstractmethod
    def makes(self) -> list[str]:
        """The names of the new columns, whatever the types of the inputs."""

    @abstractmethod
    def made_fields(self, schema: Schema) -> list[Field]:
        """Return the new columns, named as in `makes`; checks types.

        Raises:
            SchemaMismatch: a column's type is not what the step works on.
        """

    @abstractmethod
    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        """Build the plan that computes the wanted ones of the new columns.

        Args:
            rows: the columns in `reads` and the row's identity, `schema.ROW`, in its order: of a frame or a Dataset all
                rows, or all rows of some keys. No float is NaN.
            schema: of all columns before the step.
            wanted: names of new columns, and maybe others.
            backend: `"cpu"` or `"gpu"`: whose engine runs the plan.

        Returns:
            the new columns and the identity, as many rows, in the order of the identities.
        """

    @property
    def reads(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.keys, *self.order, *self.inputs]))

    def output_schema(self, schema: Schema) -> Schema:
        where = type(self).__name__
        schema.require(self.reads, where)
        require_comparable(schema.select(dict.fromkeys([*self.keys, *self.order])), where)
        made = self.made_fields(schema)
        for name in self.makes:
            if name in schema or self.makes.count(name) > 1:
                raise BadConfig(
                    where,
                    "a new column would have another one's name",
                    got=name,
                    expected="a name of its own for each column",
                    remedy=f"Rename({{{name!r}: {name + '_before'!r}}}) before it",
                )
        keys = [schema[name] for name in [*self.keys, *self.order]]
        sources = [Field.derived(item.name, item.dtype, [item, *keys], where) for item in made]
        return schema.assign(
            replace(item, lineage=source.lineage, role=source.role, step=where)
            for item, source in zip(made, sources, strict=True)
        )

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        made = set(self.makes)
        return {*(wanted - made), *self.reads} if wanted & made else set(wanted)

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        if wanted.isdisjoint(self.makes):
            return frame
        made = [item for item in self.made_fields(schema) if item.name in wanted]
        inputs = list(schema.select(self.reads))
        plan = partial(self.plan, schema=schema, wanted=wanted, backend=backend.name)
        return backend.assign(frame, columns_by_plan(plan, frame, inputs, made, backend))

    def _sorts(self, backend: str) -> bool:
        """Return whether all rows are sorted at once; those of each key are slow to sort by several columns."""
        return bool(self.order) and not (self.keys and (len(self.order) == 1 or backend == "gpu"))

    def _in_order(self, rows: pl.LazyFrame, backend: str) -> pl.LazyFrame:
        """Sort rows in window order, where `_over` does not do so."""
        return rows.sort(self.order, nulls_last=True, maintain_order=True) if self._sorts(backend) else rows

    def _in_place(self, rows: pl.LazyFrame, backend: str) -> pl.LazyFrame:
        """Sort rows back by their ids."""
        return rows.sort(ROW) if self._sorts(backend) or backend == "gpu" else rows

    def _over(self, value: pl.Expr, backend: str) -> pl.Expr:
        """Compute a value of the rows of each key in their order."""
        if not self.keys:
            return value
        if backend == "gpu":  # whose engines keep no order
            return value.over(self.keys, order_by=[*self.order, ROW], nulls_last=True)
        if self._sorts(backend) or not self.order:
            return value.over(self.keys)
        return value.over(self.keys, order_by=self.order, nulls_last=True)

    def _where_known(self, value: pl.Expr, schema: Schema) -> pl.Expr:
        """Keep a value where no key is missing."""
        missing = [pl.col(key).is_null() for key in self.keys if schema[key].nullable]
        return pl.when(~pl.any_horizontal(missing)).then(value) if missing else value

    def _name(self, column: str, *what: object) -> str:
        """Return the name of a new column: `dep_delay_lag_1_by_tailnum`."""
        keys = ["by", *self.keys] if self.keys else []
        return "_".join([*([column] if column else []), *map(str, what), *keys])

    def _numbers(self, schema: Schema, names: Sequence[str], *others: str) -> list[Field]:
        """Return the fields of these columns."""
        for name in names:
            if schema[name].dtype not in (*FLOATS, *INTEGERS, "bool", *others):
                raise SchemaMismatch(
                    f"{type(self).__name__}, column {name!r}",
                    "not a number",
                    got=schema[name].dtype,
                    expected=" or ".join(["numbers", "booleans", *(f"{other}s" for other in others)]),
                    remedy="another column, or numbers made of it before",
                )
        return [schema[name] for name in names]


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


_STATS = ("count", "sum", "mean", "std", "var", "min", "max")
"""The statistics there are, of the values that are not missing."""
_LONGEST = 1 << 30
"""Rows of the longest window there is: cuDF counts rows by int32."""
_PARTS: dict[str, tuple[str, ...]] = {
    **{stat: ("count", stat) for stat in ("count", "sum", "min", "max")},
    "mean": ("count", "sum"),
    **dict.fromkeys(("var", "std"), ("count", "sum", "var")),
}
"""What a statistic of two parts of a window is made of."""
_EARLIER, _SAME = "⟨earlier⟩ {} {}", "⟨same time⟩ {} {}"
"""What the columns of the two parts are called."""
_DAY = 86_400_000_000
_UNITS = (_DAY, 3_600_000_000, 60_000_000, 1_000_000, 1000, 1)
"""Microseconds that all times may be multiples of."""
_MOST_NUMBERS = 1 << 63


class _Windowed(WholeTableTransform):
    """Base class of the steps with a window before each row."""

    columns: list[str]
    stats: str | Sequence[str]
    min_periods: int | None
    closed: str

    @property
    def _rows(self) -> int | None:
        """The largest number of rows in a window, where the user says so."""
        return None

    def _check_window(self) -> None:
        """Raise `BadConfig` for a statistic, a number of values or a side that there is not."""
        check_names(self, empty=False, stats=self.stats)
        for stat in as_list(self.stats):
            check_choice(self, _STATS, stats=stat)
        check_integer(
            self, f"[0, {self._rows or 'inf'}{']' if self._rows else ')'}", None, min_periods=self.min_periods
        )
        check_choice(self, ("left", "right"), closed=self.closed)

    @property
    def inputs(self) -> list[str]:
        return self.columns

    @abstractmethod
    def _what(self, stat: str) -> list[str]:
        """Return the part of a new column's name between the column's name and the keys'."""

    @property
    @abstractmethod
    def _least(self) -> int:
        """The least number of values in a window."""

    @property
    def makes(self) -> list[str]:
        return [self._name(name, *self._what(stat)) for name in self.columns for stat in as_list(self.stats)]

    def made_fields(self, schema: Schema) -> list[Field]:
        where, stats = type(self).__name__, as_list(self.stats)
        may_lack_key = any(schema[name].nullable for name in [*self.keys, *self.order])
        made = []
        for item in self._numbers(schema, self.columns):
            for stat in stats:
                dtype = "int64" if stat == "count" else "float64"
                new = Field.derived(self._name(item.name, *self._what(stat)), dtype, [item], where)
                made.append(replace(new, nullable=stat != "count" or may_lack_key))
        return made

    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        values = self._wanted_values(wanted)
        rows = self._in_order(_with_values(rows, values), backend)
        return self._in_place(self._of_rows(rows, values, schema, backend), backend)

    def _wanted_values(self, wanted: AbstractSet[str]) -> dict[str, dict[str, str]]:
        """Return the wanted statistics of each column, and their names."""
        stats = as_list(self.stats)
        found = {name: {stat: self._name(name, *self._what(stat)) for stat in stats} for name in self.columns}
        chosen = {name: {stat: out for stat, out in outs.items() if out in wanted} for name, outs in found.items()}
        return {name: outs for name, outs in chosen.items() if outs}

    def _of_rows(
        self, rows: pl.LazyFrame, values: Mapping[str, Mapping[str, str]], schema: Schema, backend: str
    ) -> pl.LazyFrame:
        """Make statistics of so many rows."""
        window, before = min(self._rows or _LONGEST, _LONGEST), {name: _value(name) for name in values}
        if self.closed == "left" and backend == "gpu":  # its engine takes no shift inside a window
            rows = rows.with_columns(self._over(value.shift(1), backend) for value in before.values())
        elif self.closed == "left":
            before = {name: value.shift(1) for name, value in before.items()}

        def aggregate(name: str, stat: str, least: int) -> pl.Expr:
            return _aggregate_last(before[name], stat, min(least, window), window)

        return self._select(rows, values, aggregate, schema, backend)

    def _select(
        self,
        rows: pl.LazyFrame,
        values: Mapping[str, Mapping[str, str]],
        aggregate: Callable[[str, str, int], pl.Expr],
        schema: Schema,
        backend: str,
    ) -> pl.LazyFrame:
        """Select the statistics, given what makes one of a column and the least number of values."""
        made = {}
        for name, outs in values.items():
            for stat, out in outs.items():
                value = self._over(aggregate(name, stat, 1 if stat == "count" else max(self._least, 1)), backend)
                if stat == "count" or (stat == "sum" and not self._least):
                    value = value.fill_null(0)
                made[out] = self._where_known(value, schema)
        return rows.select(ROW, **made)


class Rolling(_Windowed):
    """Rolling statistics of the last rows of the same key, or of the last days; pandas' `rolling(window)`.

    New columns are called `dep_delay_rolling_mean_3_by_tailnum` or `dep_delay_rolling_mean_7_days_by_tailnum`, and are
    float64; a `count` is int64.

    A window ends with the row itself. What is to be predicted from the past alone must not hold the row's own value:
    `closed="left"` ends the window before the row, and a window of time before all rows of the same time. Else rows
    alike in `order_by` stand as in the table, and earlier ones are in the window.

    Args:
        columns: numbers or booleans; missing values are left out.
        window: so many rows, or a time such as `"7 days"` or `"12 hours"`, for which `order_by` names one timestamp; a
            row without a time has missing values and is in no window.
        stats: of `"count"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1), `"min"`, `"max"`.
        by: the key columns; this and the next as for `Lag`.
        order_by: the columns that put the rows of a key in order.
        min_periods: so many values a window has to have, or its statistics (but not `count`) are missing. By default as
            many as it has rows, or one where the window is a time, as in pandas.
        closed: `"right"` for the window (t - w, t], `"left"` for [t - w, t), in rows as in time.

    Raises:
        BadConfig: no such window, statistic, `closed` or `min_periods`; a window of time without one time as order; or
            a column of a new one's name is there.
        SchemaMismatch: a column holds no numbers, or the order is no time.

    Memory: as `Lag`, and two float64 columns for each statistic.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a", "a"], "delay": [5.0, 1.0, 3.0, 7.0]})
        >>> step = Rolling("delay", 2, "mean", by="plane", min_periods=1, closed="left")
        >>> step.transform(frame)["delay_rolling_mean_2_by_plane"].tolist()
        [nan, nan, 5.0, 4.0]
    """

    def __init__(
        self,
        columns: str | Sequence[str],
        window: int | str,
        stats: str | Sequence[str] = "mean",
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        min_periods: int | None = None,
        closed: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        if not is_integer(window, 1) and not (isinstance(window, str) and parse_duration_us(window)):
            expected = "a number of rows, or one of seconds, minutes, hours, days or weeks"
            raise refuse_argument(self, "window", window, expected, "window='7 days'")
        self.columns = as_list(columns)
        self.window, self.stats, self.min_periods, self.closed = window, stats, min_periods, closed
        self._check_window()

    def made_fields(self, schema: Schema) -> list[Field]:
        if self._microseconds is not None:
            times = [schema[name] for name in self.order]
            if len(times) != 1:
                raise BadConfig(
                    "Rolling",
                    "a window of time goes by one time",
                    got=self.order_by,
                    expected="one timestamp column as order_by",
                    remedy="order_by='time_hour'",
                )
            if times[0].dtype != "timestamp":
                raise SchemaMismatch(
                    f"Rolling, column {times[0].name!r}",
                    "it is no time, and the window is one",
                    got=times[0].dtype,
                    expected="a timestamp",
                    remedy="window=7, which are rows",
                )
        return super().made_fields(schema)

    def _what(self, stat: str) -> list[str]:
        return ["rolling", stat, re.sub(r"\s+", "_", str(self.window).strip())]

    @property
    def _least(self) -> int:
        if self.min_periods is not None:
            return self.min_periods
        return self._rows or 1

    @property
    def _rows(self) -> int | None:
        return None if isinstance(self.window, str) else int(self.window)

    @property
    def _microseconds(self) -> int | None:
        """The window's length in time; None where it is one in rows."""
        return parse_duration_us(self.window) if isinstance(self.window, str) else None

    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        if self._microseconds is None:
            return super().plan(rows, schema, wanted, backend)
        values, (time,) = self._wanted_values(wanted), self.order
        lacking = rows.filter(pl.col(time).is_null()).select(ROW)
        rows = rows.filter(pl.col(time).is_not_null()) if schema[time].nullable else rows
        rows = _with_values(rows, values)
        window = self._find_window(rows, time) if backend == "cpu" else None
        if window is None:  # the plan for a GPU takes rows of any times
            rows = self._in_place(self._of_times(rows, time, values, schema), "gpu")
        else:
            aggregate = partial(_aggregate_window, by=window[0], window=window[1], closed=self.closed)
            rows = self._select(self._in_order(rows, backend), values, aggregate, schema, backend)
            rows = self._in_place(rows, backend)
        return pl.concat([rows, lacking], how="diagonal").sort(ROW) if schema[time].nullable else rows

    @property
    def _period(self) -> str:
        """The window as Polars has it, which counts what is no days in nanoseconds, of which 292 years fit."""
        assert self._microseconds is not None
        days, rest = divmod(self._microseconds, _DAY)
        return f"{days}d{rest}us"

    def _find_window(self, rows: pl.LazyFrame, time: str) -> tuple[pl.Expr, str] | None:
        """Return what orders the rows of a key, and the window in it, which holds only earlier ones of the same time.

        The row at place p of its key has the number nt + p, with n above any place, and the window is nw: it holds no
        row at t - w, whose place is lower, and all later ones. Where that exceeds 63 bits, places are counted from the
        first row of the same time; a window of 2nw - n + 1 numbers 2nt + p has the same rows. None if that does, too.
        """
        if self.closed == "left":
            return pl.col(time), self._period
        assert self._microseconds is not None
        at, place, unit = pl.col(time).cast(pl.Int64), pl.int_range(pl.len()), 1
        ends = rows.select(at.min().alias("low"), at.max().alias("high"), pl.len())
        low, high, most = ends.collect(engine="streaming").row(0)
        if self.keys:
            sizes = rows.drop_nulls(self.keys).group_by(self.keys).len().select(pl.col("len").max())
            most = sizes.collect(engine="streaming").item()
        if not most:
            return at, "1i"
        span = high - low + 1
        if most * span >= _MOST_NUMBERS:
            divides = [(at % one == 0).all().alias(str(one)) for one in _UNITS]
            unit = _UNITS[rows.select(divides).collect(engine="streaming").row(0).index(True)]
            span = (high - low) // unit + 1
        offset, length = (at - low) // unit, min(-(-self._microseconds // unit), span)
        if most * span < _MOST_NUMBERS:
            return offset * most + place, f"{length * most}i"
        sizes = rows.drop_nulls(self.keys).group_by([*self.keys, time]).len().select(pl.col("len").max())
        most = sizes.collect(engine="streaming").item()
        if 2 * most * span >= _MOST_NUMBERS:
            return None
        first = pl.when(at != at.shift(1)).then(place).forward_fill().fill_null(0)
        return offset * (2 * most) + place - first, f"{2 * length * most - most + 1}i"

    def _of_times(
        self, rows: pl.LazyFrame, time: str, values: Mapping[str, Mapping[str, str]], schema: Schema
    ) -> pl.LazyFrame:
        """Make statistics of a window of time from those of earlier times and those of the same time."""
        parts, find = _PARTS, _merge_sides
        closed: Literal["left", "none"] = "none"
        if self.closed == "left":
            parts = {stat: ("count", stat) if self._counts(stat) else (stat,) for stat in _STATS}
            closed, find = "left", _read_earlier
        asked = sorted({(name, part) for name, outs in values.items() for stat in outs for part in parts[stat]})
        made = [getattr(_value(name), stat)().alias(_EARLIER.format(name, stat)) for name, stat in asked]
        same = [*self.keys, time]
        rolled = rows.sort(same).rolling(time, period=self._period, group_by=self.keys, closed=closed).agg(made)
        rows = rows.join(rolled.unique(same, keep="any"), on=same, how="left", nulls_equal=True)
        if self.closed == "right":
            rows = rows.with_columns(
                _aggregate_last(_value(name), stat, 1, _LONGEST)
                .over(same, order_by=ROW)
                .alias(_SAME.format(name, stat))
                for name, stat in asked
            )
        found = {}
        for name, outs in values.items():
            for stat, out in outs.items():
                value = find(name, stat)
                if stat != "count" and self._counts(stat):
                    least = self._least if stat == "sum" else max(self._least, 1)
                    value = pl.when(find(name, "count") >= least).then(value)
                found[out] = self._where_known(value, schema)
        return rows.select(ROW, **found)

    def _counts(self, stat: str) -> bool:
        """Return whether a window's values have to be counted for a statistic."""
        return stat in ("count", "sum") or self._least > 1 or self.closed == "right"


class Expanding(_Windowed):
    """Expanding statistics of all rows of the same key up to a row; pandas' `groupby(by).expanding()`.

    New columns are called `dep_delay_expanding_mean_by_tailnum`; a cumulative sum is `stats="sum"`. What is to be
    predicted from the past alone must not hold the row's own value: `closed="left"` leaves it out, see `Rolling`.

    Args:
        columns: numbers or booleans; missing values are left out.
        stats: as for `Rolling`.
        by: the key columns; this and the next as for `Lag`.
        order_by: the columns that put the rows of a key in order.
        min_periods: so many values there have to be, or the statistics (but not `count`) are missing.
        closed: `"left"` leaves the row itself out, `"right"` does not.

    Raises:
        BadConfig: no such statistic or `closed`; or a column of a new one's name is there.
        SchemaMismatch: a column holds no numbers.

    Memory: as `Rolling`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a"], "delay": [5.0, 1.0, 3.0]})
        >>> Expanding("delay", "sum", by="plane").transform(frame)["delay_expanding_sum_by_plane"].tolist()
        [5.0, 1.0, 8.0]
    """

    def __init__(
        self,
        columns: str | Sequence[str],
        stats: str | Sequence[str] = "mean",
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        min_periods: int = 1,
        closed: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        self.columns = as_list(columns)
        self.stats, self.min_periods, self.closed = stats, min_periods, closed
        self._check_window()

    def _what(self, stat: str) -> list[str]:
        return ["expanding", stat]

    @property
    def _least(self) -> int:
        return 1 if self.min_periods is None else self.min_periods


def _with_values(rows: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Add the values as floats, in columns of their own: one may be a key, too."""
    return rows.with_columns(pl.col(name).cast(pl.Float64).alias(f"⟨value⟩ {name}") for name in names)


def _value(name: str) -> pl.Expr:
    return pl.col(f"⟨value⟩ {name}")


def _choose_function(value: pl.Expr, stat: str) -> tuple[pl.Expr, str]:
    """Name the function of Polars that makes a statistic, and what of; a count is the sum of ones."""
    return (value.is_not_null().cast(pl.Int64), "sum") if stat == "count" else (value, stat)


def _aggregate_last(value: pl.Expr, stat: str, least: int, rows: int) -> pl.Expr:
    """Make a statistic of so many last rows."""
    value, function = _choose_function(value, stat)
    made: pl.Expr = getattr(value, f"rolling_{function}")(rows, min_samples=least)
    return made


def _aggregate_window(name: str, stat: str, least: int, *, by: pl.Expr, window: str, closed: str) -> pl.Expr:
    """Make a statistic of the rows that lie in a window of another column."""
    value, function = _choose_function(_value(name), stat)
    made: pl.Expr = getattr(value, f"rolling_{function}_by")(by, window, closed=closed, min_samples=least)
    return made


def _read_earlier(name: str, stat: str) -> pl.Expr:
    value = pl.col(_EARLIER.format(name, stat))
    return value.fill_null(0) if stat in ("count", "sum") else value


def _merge_sides(name: str, stat: str) -> pl.Expr:
    """Put the statistics of earlier times and of the same time together.

    Source: for deviations Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979.
    """
    if stat in ("count", "sum"):
        return _read_earlier(name, stat) + pl.col(_SAME.format(name, stat)).fill_null(0)
    if stat == "mean":
        return _merge_sides(name, "sum") / _merge_sides(name, "count")
    if stat == "std":
        return _merge_sides(name, "var").sqrt()
    one, other = (pl.col(text.format(name, stat)) for text in (_EARLIER, _SAME))
    if stat != "var":
        return pl.min_horizontal(one, other) if stat == "min" else pl.max_horizontal(one, other)
    counts = [pl.col(text.format(name, "count")).fill_null(0) for text in (_EARLIER, _SAME)]
    sums = [pl.col(text.format(name, "sum")) for text in (_EARLIER, _SAME)]
    shift, count = sums[0] / counts[0] - sums[1] / counts[1], counts[0] + counts[1]
    apart = (
        pl.when((counts[0] > 0) & (counts[1] > 0)).then(shift * shift * counts[0] * counts[1] / count).otherwise(0.0)
    )
    squares = sum(part.fill_null(0.0) * (number - 1) for part, number in zip((one, other), counts, strict=True))
    return pl.when(count > 1).then((squares + apart) / (count - 1))
