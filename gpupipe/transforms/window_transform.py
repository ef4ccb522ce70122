"""Window transforms, by a Polars plan: lags, differences, counts, rolling and expanding statistics."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any, Literal, Self, TypeAlias

import polars as pl

from gpupipe.backend import Backend, Frame
from gpupipe.backend.columns import columns_by_plan, require_comparable, require_time_order
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, ROW, Field, Kind, Schema, suggest_times
from gpupipe.support.origins import ANY_ROW, Origins, When, is_in_other_order, list_shared, shift
from gpupipe.support.validation import (
    as_list,
    check_choice,
    check_integer,
    check_names,
    is_integer,
    is_sequence,
    parse_duration_us,
    refuse_argument,
)
from gpupipe.transforms.transform import Names, Transform

TIE = Field("⟨tie⟩", "bool")
"""Whether a row has the key and the order of the row before it, in the plans of the steps that `break_ties`."""


class WholeTableTransform(Transform):
    """Base class of steps that add columns from other rows of the same key; rows and order stay the same.

    A frame is taken to hold all rows there are. Of a Dataset a pipeline makes the columns before its first pass, of the
    columns in `reads` alone; see docs/decisions/012. `by` are the key columns, `order_by` those that put the rows of a
    key in order. At `output_schema` lists as keys raise SchemaMismatch, and a new name that is taken BadConfig.
    """

    _has_ties = False

    def __init__(self, by: Names | None, order_by: Names | None) -> None:
        check_names(self, None, by=by, order_by=order_by)
        self.by, self.order_by = by, order_by

    @property
    def breaks_ties(self) -> bool:
        """Whether rows alike in `order_by` are earlier and later ones as the table has them, and `plan` has `TIE`."""
        return False

    def with_ties(self) -> Self:
        """Return the step for rows of which some are alike in key and order: earlier ones may be of the same time."""
        step = copy(self)
        vars(step).update(_has_ties=True)
        return step

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
        """Return the new columns, named as in `makes`; a column of a type that does not go raises SchemaMismatch."""

    def get_whens(self, name: str) -> set[When]:
        """Return which rows a new column holds values of, in the order of the window; by default its own."""
        return {When.NOW}

    @abstractmethod
    def plan(self, rows: pl.LazyFrame, schema: Schema, outputs: AbstractSet[str], backend: str) -> pl.LazyFrame:
        """Build the plan of the new columns in `outputs`, with the rows' identities and in their order.

        `rows` has the columns in `reads` and the row's identity, `schema.ROW`, in its order: of a frame or a Dataset
        all rows, or all rows of some keys. No float is NaN. A step that `breaks_ties` adds `TIE` to the columns.
        `schema` has all columns before the step, `outputs` maybe others than new ones; the engine of `backend`, `"cpu"`
        or `"gpu"`, runs the plan.
        """

    @property
    def reads(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.keys, *self.order, *self.inputs]))

    def output_schema(self, schema: Schema) -> Schema:
        where, order = type(self).__name__, [*self.keys, *self.order]
        schema.require(self.reads, where)
        require_comparable(schema.select(dict.fromkeys(order)), where)
        fields, makes = self.made_fields(schema), self.makes
        for name in makes:
            if name in schema or makes.count(name) > 1:
                problem, expected = "a new column would have another one's name", "a name of its own for each column"
                remedy = f"Rename({{{name!r}: {name + '_before'!r}}}) before it"
                raise BadConfig(where, problem, got=name, expected=expected, remedy=remedy)
        keys = [schema[name] for name in order]
        sources = [Field.derived(item.name, item.dtype, [item, *keys], where) for item in fields]
        key_origins = shift(frozenset().union(*(key.origins for key in keys)), When.KEY)
        time_origins: Origins = schema[self.order[0]].origins if self.order else frozenset()
        key_origins |= shift(time_origins, When.TIME)
        if not self.order or self._has_ties:  # which rows are earlier is what the table was sorted by
            rows = next((item.origins for item in schema if item.origins), frozenset())
            key_origins |= shift(rows, When.POSITION)
        added, groups = [], [schema[name] for name in self.keys if schema[name].is_unchanged]
        group_origins: Origins = frozenset().union(*(key.origins for key in groups))
        for item, of in zip(fields, sources, strict=True):
            is_ordered = self.order and not is_in_other_order(item.origins, time_origins)
            whens = self.get_whens(item.name) if is_ordered else {*ANY_ROW}
            whens |= {When.NOW} if self._has_ties else set()
            origins = shift(item.origins, *whens) | list_shared(item.origins, group_origins) | key_origins
            added.append(replace(item, lineage=of.lineage, origins=origins, role=of.role, step=where))
        return schema.assign(added)

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        names = set(self.makes)
        return {*(outputs - names), *self.reads} if outputs & names else set(outputs)

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        if outputs.isdisjoint(self.makes):
            return frame
        self.check_order(frame, backend)
        fields = [item for item in self.made_fields(schema) if item.name in outputs]
        inputs = list(schema.select(self.reads))
        plan = partial(self.plan, schema=schema, outputs=outputs, backend=backend.name)
        return backend.assign(frame, columns_by_plan(plan, frame, inputs, fields, backend))

    def check_order(self, frame: Frame, backend: Backend) -> None:
        """Raise `BadData` where a column that orders the rows of this coded frame holds dates as text."""
        for name in self.order:
            require_time_order(backend.column(frame, name), name, self.class_name)

    def _sorts(self, backend: str) -> bool:
        """Return whether all rows are sorted at once; those of each key are slow to sort by several columns."""
        return bool(self.order) and not (self.keys and (len(self.order) == 1 or backend == "gpu"))

    def _in_order(self, rows: pl.LazyFrame, backend: str) -> pl.LazyFrame:
        """Sort rows in window order, where `_over` does not do so."""
        return rows.sort(self.order, nulls_last=True, maintain_order=True) if self._sorts(backend) else rows

    def _over(self, value: pl.Expr, backend: str) -> pl.Expr:
        """Compute a value of the rows of each key in their order."""
        if not self.keys:
            return value
        if backend == "gpu":  # whose engines keep no order
            return value.over(self.keys, order_by=[*self.order, ROW], nulls_last=True)
        if self._sorts(backend) or not self.order:
            return value.over(self.keys)
        return value.over(self.keys, order_by=self.order, nulls_last=True)

    def _select(self, rows: pl.LazyFrame, columns: dict[str, pl.Expr], schema: Schema, backend: str) -> pl.LazyFrame:
        """Select new columns and `TIE`, missing where a key is, and sort rows that were moved back by their ids."""
        if self.order:
            columns = {**columns, TIE.name: self._compare_order(schema, backend)}
        gaps = [pl.col(key).is_null() for key in self.keys if schema[key].nullable]
        if gaps:
            columns = {name: pl.when(~pl.any_horizontal(gaps)).then(value) for name, value in columns.items()}
        rows = rows.select(ROW, **columns)
        return rows.sort(ROW) if self._sorts(backend) or backend == "gpu" else rows

    def _compare_order(self, schema: Schema, backend: str) -> pl.Expr:
        """Compare the order of each row with that of the row before it."""
        before = {name: pl.col(name).shift(1) for name in (*self.order, ROW)}
        if backend == "gpu":  # its engine computes nothing of what is shifted inside a window
            before = {name: self._over(value, backend) for name, value in before.items()}
        is_same = [pl.col(name).eq_missing(before[name]) for name in self.order]
        if all(schema[name].nullable for name in self.order):  # the first row, whose order may be missing, has none
            is_same.append(before[ROW].is_not_null())
        is_tie = reduce(and_, is_same)
        return is_tie if backend == "gpu" else self._over(is_tie, backend)

    def _name(self, column: str, *what: object) -> str:
        """Return the name of a new column: `dep_delay_lag_1_by_tailnum`."""
        keys = ["by", *self.keys] if self.keys else []
        return "_".join([*([column] if column else []), *map(str, what), *keys])


class _OfColumns(WholeTableTransform):
    """Base class of the steps that make columns of each of their columns, one for each number of rows or statistic."""

    columns: list[str]

    @property
    def breaks_ties(self) -> bool:
        return bool(self.order)

    @property
    @abstractmethod
    def _choices(self) -> list[Any]:
        """The numbers of rows or statistics."""

    @abstractmethod
    def _what(self, choice: Any) -> list[Any]:
        """Return the part of a new column's name between the column's name and the keys'."""

    @property
    def inputs(self) -> list[str]:
        return self.columns

    @property
    def makes(self) -> list[str]:
        return [out for _, _, out in self._outputs]

    @property
    def _outputs(self) -> list[tuple[str, Any, str]]:
        """The column, the choice and the name of each new column."""
        return [
            (column, choice, self._name(column, *self._what(choice)))
            for column in self.columns
            for choice in self._choices
        ]

    def get_whens(self, name: str) -> set[When]:
        return next(self._whens(choice) for _, choice, out in self._outputs if out == name)

    @abstractmethod
    def _whens(self, choice: Any) -> set[When]:
        """Return which rows the columns of a choice hold values of; see `get_whens`."""

    def _asked(self, outputs: AbstractSet[str]) -> list[tuple[str, Any, str]]:
        return [output for output in self._outputs if output[2] in outputs]

    def _require_numbers(self, schema: Schema, *dtypes: str) -> None:
        """Raise `SchemaMismatch` for a column that holds neither numbers nor one of these types."""
        for name in self.columns:
            if schema[name].dtype not in (*FLOATS, *INTEGERS, "bool", *dtypes):
                where, expected = f"{type(self).__name__}, column {name!r}", ["numbers", "booleans"]
                expected += [f"{dtype}s" for dtype in dtypes]
                remedy, got = "another column, or numbers made of it before", schema[name].dtype
                raise SchemaMismatch(where, "not a number", got=got, expected=" or ".join(expected), remedy=remedy)


class _Shifted(_OfColumns):
    """Base class of the steps that read the row so many rows back."""

    def __init__(
        self,
        columns: Names,
        periods: int | Sequence[int] = 1,
        *,
        by: Names | None = None,
        order_by: Names | None = None,
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        numbers: Any = periods if is_sequence(periods) else [periods]
        if not len(numbers) or not all(is_integer(number) and number for number in numbers):
            raise refuse_argument(self, "periods", periods, "an integer other than 0, or several")
        self.columns, self.periods = as_list(columns), periods

    @property
    def _choices(self) -> list[Any]:
        return list(map(int, self.periods if isinstance(self.periods, Iterable) else [self.periods]))

    def plan(self, rows: pl.LazyFrame, schema: Schema, outputs: AbstractSet[str], backend: str) -> pl.LazyFrame:
        columns = {}
        for name, periods, out in self._asked(outputs):
            before = self._over(pl.col(name).shift(periods), backend)
            columns[out] = self._value(pl.col(name), before, schema[name].dtype)
        return self._select(self._in_order(rows, backend), columns, schema, backend)

    @abstractmethod
    def _value(self, now: pl.Expr, before: pl.Expr, dtype: str) -> pl.Expr:
        """Compute a new column from the values of a row and of the one so many rows back."""


class Lag(_Shifted):
    """Lag: the value of an earlier row of the same key; pandas' `groupby(by)[column].shift(periods)`.

    New columns are called `dep_delay_lag_1_by_tailnum`, or `dep_delay_lead_1_by_tailnum` where `periods` is negative:
    that is a value of the future, unknown at prediction. The first rows of a key have a missing value.

    Args:
        columns: of any type, which stays.
        periods: how many rows back, or several such numbers; 0 raises BadConfig, as does a new name that is taken.
        by: the key columns; a row with a missing key has missing values. Without any, all rows belong together, and
            have to fit in memory together.
        order_by: the columns that put the rows of a key in order, such as a time, missing values last; rows alike in
            them stand as in the table, and without any of these so do all.

    Memory: four times the columns that are read, and the new ones. Of a Dataset see `docs/guide-groups.md`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"plane": ["a", "b", "a"], "hour": [9, 8, 7], "delay": [5.0, 1.0, 3.0]})
        >>> Lag("delay", by="plane", order_by="hour").transform(frame)["delay_lag_1_by_plane"].tolist()
        [3.0, nan, nan]
    """

    def made_fields(self, schema: Schema) -> list[Field]:
        return [replace(schema[name], name=out, nullable=True) for name, _, out in self._outputs]

    def _whens(self, choice: int) -> set[When]:
        return {When.BEFORE if choice > 0 else When.AFTER}

    def _what(self, choice: int) -> list[Any]:
        return ["lag" if choice > 0 else "lead", abs(choice)]

    def _value(self, now: pl.Expr, before: pl.Expr, dtype: str) -> pl.Expr:
        return before


class Difference(_Shifted):
    """Difference from an earlier row of the same key; pandas' `groupby(by)[column].diff(periods)`.

    New columns are called `dep_delay_diff_1_by_tailnum` and are float64; of times they are seconds. A negative number
    of `periods` compares with a later row, unknown at prediction. `columns` are numbers, booleans or times (text raises
    SchemaMismatch); for the other arguments, BadConfig and memory see `Lag`.

    Memory: as `Lag`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"hour": [9, 8, 7], "delay": [5.0, 1.0, 3.0]})
        >>> Difference("delay", order_by="hour").transform(frame)["delay_diff_1"].tolist()
        [4.0, -2.0, nan]
    """

    def made_fields(self, schema: Schema) -> list[Field]:
        self._require_numbers(schema, "timestamp")
        return [Field.derived(out, "float64", [schema[name]], "Difference") for name, _, out in self._outputs]

    def _whens(self, choice: int) -> set[When]:
        return {When.NOW, When.BEFORE if choice > 0 else When.AFTER}

    def _what(self, choice: int) -> list[Any]:
        return ["diff", choice]

    def _value(self, now: pl.Expr, before: pl.Expr, dtype: str) -> pl.Expr:
        if dtype == "timestamp":
            return (now.cast(pl.Int64) - before.cast(pl.Int64)) / 1e6
        changes = [a - b for a, b in zip(_split_number(now, dtype), _split_number(before, dtype), strict=True)]
        return sum(changes[1:], start=changes[0])


def _split_number(value: pl.Expr, dtype: str) -> list[pl.Expr]:
    """Split a number into floats whose sum it is: two where one would round, as it does integers beyond 2^53."""
    if dtype not in ("int64", "uint64"):
        return [value.cast(pl.Float64)]
    low = value & pl.lit((1 << 32) - 1, pl.Int64 if dtype == "int64" else pl.UInt64)
    return [(value - low).cast(pl.Float64), low.cast(pl.Float64)]


class CumulativeCount(WholeTableTransform):
    """Cumulative count of earlier rows with the same key, from 0; pandas' `groupby(by).cumcount()`.

    The new column is called `cumcount_by_tailnum`, and is int64. Arguments and BadConfig as for `Lag`; `by` is needed.

    Memory: as `Lag`.

    Example:
        >>> import pandas as pd
        >>> CumulativeCount("plane").transform(pd.DataFrame({"plane": ["a", "b", "a"]}))["cumcount_by_plane"].tolist()
        [0, 0, 1]
    """

    def __init__(self, by: Names, *, order_by: Names | None = None) -> None:
        check_names(self, empty=False, by=by)
        super().__init__(by, order_by)

    @property
    def breaks_ties(self) -> bool:
        return bool(self.order)

    @property
    def inputs(self) -> list[str]:
        return []

    @property
    def makes(self) -> list[str]:
        return [self._name("", "cumcount")]

    def made_fields(self, schema: Schema) -> list[Field]:
        ranked = [schema[name] for name in self.order if schema[name].kind != Kind.TIME]  # the count is a rank by these
        origins: Origins = frozenset().union(*(item.origins for item in ranked))
        nullable = any(schema[name].nullable for name in self.keys)
        return [Field(self.makes[0], "int64", nullable=nullable, origins=origins)]

    def plan(self, rows: pl.LazyFrame, schema: Schema, outputs: AbstractSet[str], backend: str) -> pl.LazyFrame:
        count = self._over(pl.col(ROW).is_not_null().cast(pl.Int64).cum_sum(), backend) - 1
        return self._select(self._in_order(rows, backend), {self.makes[0]: count}, schema, backend)


_Roll: TypeAlias = Callable[[str, str, int], pl.Expr]  # of a column, a statistic and the least number of values
_STATS = ("count", "sum", "mean", "std", "var", "min", "max")  # of the values that are not missing
_LONGEST = 1 << 30  # rows of the longest window there is: cuDF counts rows by int32
_PARTS: dict[str, tuple[str, ...]] = {  # what a statistic of two parts of a window is made of
    **{stat: ("count", stat) for stat in ("count", "sum", "min", "max")},
    "mean": ("count", "sum"),
    **dict.fromkeys(("var", "std"), ("count", "sum", "var")),
}
_EARLIER, _SAME = "⟨earlier⟩ {} {}", "⟨same time⟩ {} {}"  # what the columns of the two parts are called
_DAY = 86_400_000_000
_UNITS = (_DAY, 3_600_000_000, 60_000_000, 1_000_000, 1000, 1)  # microseconds that all times may be multiples of
_MOST_NUMBERS = 1 << 63


class _Windowed(_OfColumns):
    """Base class of the steps with a window before each row."""

    def __init__(
        self,
        columns: Names,
        stats: Names,
        by: Names | None,
        order_by: Names | None,
        min_periods: int | None,
        closed: Literal["left", "right"],
    ) -> None:
        super().__init__(by, order_by)
        check_names(self, columns=columns)
        check_names(self, empty=False, stats=stats)
        for stat in as_list(stats):
            check_choice(self, _STATS, stats=stat)
        check_integer(self, f"[0, {self._rows}]" if self._rows else "[0, inf)", None, min_periods=min_periods)
        check_choice(self, ("left", "right"), closed=closed)
        self.columns, self.stats, self.min_periods, self.closed = as_list(columns), stats, min_periods, closed

    @property
    def _choices(self) -> list[Any]:
        return as_list(self.stats)

    def _whens(self, choice: str) -> set[When]:
        return {When.BEFORE} if self.closed == "left" else {When.BEFORE, When.NOW}

    @property
    def _rows(self) -> int | None:
        """The largest number of rows in a window, where there is one."""
        return None

    @property
    def _least(self) -> int:
        """The least number of values in a window."""
        return (self._rows or 1) if self.min_periods is None else self.min_periods

    def made_fields(self, schema: Schema) -> list[Field]:
        self._require_numbers(schema)
        may_lack_key = any(schema[name].nullable for name in [*self.keys, *self.order])
        fields = []
        for name, stat, out in self._outputs:
            new = Field.derived(out, "int64" if stat == "count" else "float64", [schema[name]], type(self).__name__)
            fields.append(replace(new, nullable=stat != "count" or may_lack_key))
        return fields

    def plan(self, rows: pl.LazyFrame, schema: Schema, outputs: AbstractSet[str], backend: str) -> pl.LazyFrame:
        rows = self._in_order(self._with_values(rows), backend)
        window, is_left = min(self._rows or _LONGEST, _LONGEST), self.closed == "left"
        if is_left and backend == "gpu":  # its engine takes no shift inside a window
            rows = rows.with_columns(self._over(_value(name).shift(1), backend) for name in self.columns)

        def roll(name: str, stat: str, least: int) -> pl.Expr:
            before = _value(name).shift(1) if is_left and backend != "gpu" else _value(name)
            return _roll(before, stat, "", window, min_samples=min(least, window))

        return self._aggregate(rows, roll, schema, outputs, backend)

    def _with_values(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add the values as floats, in columns of their own: one may be a key, too."""
        return rows.with_columns(pl.col(name).cast(pl.Float64).alias(f"⟨value⟩ {name}") for name in self.columns)

    def _aggregate(
        self, rows: pl.LazyFrame, roll: _Roll, schema: Schema, outputs: AbstractSet[str], backend: str
    ) -> pl.LazyFrame:
        """Select the wanted statistics, given what makes one of a column, its name and the least number of values."""
        columns = {}
        for name, stat, out in self._asked(outputs):
            value = self._over(roll(name, stat, 1 if stat == "count" else max(self._least, 1)), backend)
            columns[out] = value.fill_null(0) if stat == "count" or (stat == "sum" and not self._least) else value
        return self._select(rows, columns, schema, backend)


class Rolling(_Windowed):
    """Rolling statistics of the last rows of the same key, or of the last days; pandas' `rolling(window)`.

    New columns are called `dep_delay_rolling_mean_3_by_tailnum` or `dep_delay_rolling_mean_7_days_by_tailnum`, and are
    float64; a `count` is int64. A window ends with the row itself, after earlier rows alike in `order_by`. What is to
    be predicted from the past alone must not hold the row's own value: `closed="left"` ends the window before the row,
    and a window of time before all rows of the same time.

    Args:
        columns: numbers or booleans; missing values are left out.
        window: so many rows, or a time such as `"7 days"` or `"12 hours"`, for which `order_by` names one timestamp; a
            row without a time has missing values and is in no window.
        stats: of `"count"`, `"sum"`, `"mean"`, `"std"` and `"var"` (with n - 1), `"min"`, `"max"`.
        by, order_by: as for `Lag`.
        min_periods: so many values a window has to have, or its statistics (but not `count`) are missing; by default as
            many as it has rows, or one where the window is a time.
        closed: `"right"` for the window (t - w, t], `"left"` for [t - w, t), in rows as in time.

    Raises:
        BadConfig: arguments that make no sense; a window of time without one time as order; a new name that is taken.
        SchemaMismatch: a column holds no numbers, or the order is no time.

    Memory: as `Lag`, and two float64 columns for each statistic.

    Example:
        >>> import pandas as pd
        >>> step = Rolling("delay", 2, "mean", min_periods=1, closed="left")
        >>> step.transform(pd.DataFrame({"delay": [5.0, 3.0, 7.0]}))["delay_rolling_mean_2"].tolist()
        [nan, 5.0, 4.0]
    """

    def __init__(
        self,
        columns: Names,
        window: int | str,
        stats: Names = "mean",
        *,
        by: Names | None = None,
        order_by: Names | None = None,
        min_periods: int | None = None,
        closed: Literal["left", "right"] = "right",
    ) -> None:
        if not is_integer(window, 1) and not (isinstance(window, str) and parse_duration_us(window)):
            expected = "a number of rows, or one of seconds, minutes, hours, days or weeks"
            raise refuse_argument(self, "window", window, expected, "window='7 days'")
        self.window = window
        super().__init__(columns, stats, by, order_by, min_periods, closed)

    @property
    def _rows(self) -> int | None:
        return None if isinstance(self.window, str) else self.window

    @property
    def breaks_ties(self) -> bool:
        return super().breaks_ties and not (self._microseconds and self.closed == "left")

    @property
    def _microseconds(self) -> int:
        """The window's length in time; 0 where it is one in rows."""
        return parse_duration_us(self.window) or 0

    def made_fields(self, schema: Schema) -> list[Field]:
        if self._microseconds and len(self.order) != 1:
            problem, expected = "a window of time goes by one time", "one timestamp column as order_by"
            times = [name for name in (*self.order, *schema.names) if schema[name].dtype == "timestamp"]
            remedy = f"order_by={times[0]!r}" if times else "window=7, which are rows"
            raise BadConfig("Rolling", problem, got=self.order_by, expected=expected, remedy=remedy)
        if self._microseconds and (dtype := schema[self.order[0]].dtype) != "timestamp":
            where, problem = f"Rolling, column {self.order[0]!r}", "it is no time, and the window is one"
            remedy = suggest_times(self.order[0], dtype) if dtype == "string" else "window=7, which are rows"
            raise SchemaMismatch(where, problem, got=dtype, expected="a timestamp", remedy=remedy)
        return super().made_fields(schema)

    def _what(self, choice: str) -> list[Any]:
        return ["rolling", choice, re.sub(r"\s+", "_", str(self.window).strip())]

    def plan(self, rows: pl.LazyFrame, schema: Schema, outputs: AbstractSet[str], backend: str) -> pl.LazyFrame:
        if not self._microseconds:
            return super().plan(rows, schema, outputs, backend)
        (time,) = self.order
        lacking = rows.filter(pl.col(time).is_null()).select(ROW)
        rows = rows.filter(pl.col(time).is_not_null()) if schema[time].nullable else rows
        rows = self._with_values(rows)
        pair = self._find_window(rows, time) if backend == "cpu" else None
        if pair is None:  # the plan for a GPU takes rows of any times
            rows = self._merge_times(rows, time, schema, outputs)
        else:
            by, window = pair

            def roll(name: str, stat: str, least: int) -> pl.Expr:
                return _roll(_value(name), stat, "_by", by, window, closed=self.closed, min_samples=least)

            rows = self._aggregate(self._in_order(rows, backend), roll, schema, outputs, backend)
        return pl.concat([rows, lacking], how="diagonal").sort(ROW) if schema[time].nullable else rows

    @property
    def _period(self) -> str:
        """The window as Polars has it, which counts what is no days in nanoseconds, of which 292 years fit."""
        days, microseconds = divmod(self._microseconds, _DAY)
        return f"{days}d{microseconds}us"

    def _find_window(self, rows: pl.LazyFrame, time: str) -> tuple[pl.Expr, str] | None:
        """Return what orders the rows of a key, and the window in it, which holds only earlier ones of the same time.

        The row at place p of its key has the number nt + p, with n above any place, and the window is nw: it holds no
        row at t - w, whose place is lower, and all later ones. Where that exceeds 63 bits, places are counted from the
        first row of the same time; a window of 2nw - n + 1 numbers 2nt + p has the same rows. None if that does, too.
        """
        if self.closed == "left":
            return pl.col(time), self._period
        at, position, unit = pl.col(time).cast(pl.Int64), pl.int_range(pl.len()), 1
        ends = rows.select(at.min().alias("low"), at.max().alias("high"), pl.len())
        low, high, most = ends.collect(engine="streaming").row(0)
        if self.keys:
            most = self._count_largest_group(rows, self.keys)
        if not most:
            return at, "1i"
        span = high - low + 1
        if most * span >= _MOST_NUMBERS:
            divides = [(at % divisor == 0).all().alias(str(divisor)) for divisor in _UNITS]
            unit = _UNITS[rows.select(divides).collect(engine="streaming").row(0).index(True)]
            span = (high - low) // unit + 1
        offset, length = (at - low) // unit, min(-(-self._microseconds // unit), span)
        if most * span < _MOST_NUMBERS:
            return offset * most + position, f"{length * most}i"
        most = self._count_largest_group(rows, [*self.keys, time])
        if 2 * most * span >= _MOST_NUMBERS:
            return None
        first = pl.when(at != at.shift(1)).then(position).forward_fill().fill_null(0)
        return offset * (2 * most) + position - first, f"{2 * length * most - most + 1}i"

    def _count_largest_group(self, rows: pl.LazyFrame, columns: Sequence[str]) -> Any:
        """Count the rows of the largest group of rows that are alike in some columns; None if there are no rows."""
        sizes = rows.drop_nulls(self.keys).group_by(columns).len().select(pl.col("len").max())
        return sizes.collect(engine="streaming").item()

    def _merge_times(self, rows: pl.LazyFrame, time: str, schema: Schema, outputs: AbstractSet[str]) -> pl.LazyFrame:
        """Make statistics of a window of time from those of earlier times and those of the same time."""
        parts, find = _PARTS, _merge_sides
        closed: Literal["left", "none"] = "none"
        if self.closed == "left":
            parts = {stat: ("count", stat) if self._counts(stat) else (stat,) for stat in _STATS}
            closed, find = "left", _read_earlier
        pairs = sorted({(name, part) for name, stat, _ in self._asked(outputs) for part in parts[stat]})
        statistics = [getattr(_value(name), stat)().alias(_EARLIER.format(name, stat)) for name, stat in pairs]
        same = [*self.keys, time]
        rolled = rows.sort(same).rolling(time, period=self._period, group_by=self.keys, closed=closed).agg(statistics)
        rows = rows.join(rolled.unique(same, keep="any"), on=same, how="left", nulls_equal=True)
        if self.closed == "right":
            rows = rows.with_columns(
                _roll(_value(name), stat, "", _LONGEST, min_samples=1)
                .over(same, order_by=ROW)
                .alias(_SAME.format(name, stat))
                for name, stat in pairs
            )
        columns = {}
        for name, stat, out in self._asked(outputs):
            columns[out] = find(name, stat)
            if stat != "count" and self._counts(stat):
                least = self._least if stat == "sum" else max(self._least, 1)
                columns[out] = pl.when(find(name, "count") >= least).then(columns[out])
        return self._select(rows, columns, schema, "gpu")

    def _counts(self, stat: str) -> bool:
        """Return whether a window's values have to be counted for a statistic."""
        return stat in ("count", "sum") or self._least > 1 or self.closed == "right"


class Expanding(_Windowed):
    """Expanding statistics of all rows of the same key up to a row; pandas' `groupby(by).expanding()`.

    New columns are called `dep_delay_expanding_mean_by_tailnum`; a cumulative sum is `stats="sum"`. Arguments and
    errors (BadConfig, SchemaMismatch) are as for `Rolling`; `closed="left"` leaves the row itself out.

    Memory: as `Rolling`.

    Example:
        >>> import pandas as pd
        >>> Expanding("x", "sum").transform(pd.DataFrame({"x": [5.0, 1.0, 3.0]}))["x_expanding_sum"].tolist()
        [5.0, 6.0, 9.0]
    """

    def __init__(
        self,
        columns: Names,
        stats: Names = "mean",
        *,
        by: Names | None = None,
        order_by: Names | None = None,
        min_periods: int = 1,
        closed: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(columns, stats, by, order_by, min_periods, closed)

    def _what(self, choice: str) -> list[Any]:
        return ["expanding", choice]


def _value(name: str) -> pl.Expr:
    return pl.col(f"⟨value⟩ {name}")


def _roll(value: pl.Expr, stat: str, kind: str, *window: Any, **options: Any) -> pl.Expr:
    """Make a statistic by Polars' `rolling_...` or `rolling_..._by`; a count is the sum of ones."""
    if stat == "count":
        value, stat = value.is_not_null().cast(pl.Int64), "sum"
    statistic: pl.Expr = getattr(value, f"rolling_{stat}{kind}")(*window, **options)
    return statistic


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
    earlier, same = (pl.col(text.format(name, stat)) for text in (_EARLIER, _SAME))
    if stat != "var":
        return pl.min_horizontal(earlier, same) if stat == "min" else pl.max_horizontal(earlier, same)
    counts = [pl.col(text.format(name, "count")).fill_null(0) for text in (_EARLIER, _SAME)]
    sums = [pl.col(text.format(name, "sum")) for text in (_EARLIER, _SAME)]
    shift, count = sums[0] / counts[0] - sums[1] / counts[1], counts[0] + counts[1]
    are_both = (counts[0] > 0) & (counts[1] > 0)
    apart = pl.when(are_both).then(shift * shift * counts[0] * counts[1] / count).otherwise(0.0)
    squares = sum(part.fill_null(0.0) * (number - 1) for part, number in zip((earlier, same), counts, strict=True))
    return pl.when(count > 1).then((squares + apart) / (count - 1))
