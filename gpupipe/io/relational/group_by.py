"""Group-by: one row of aggregates for each distinct key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, cast

import polars as pl

from gpupipe.backend import select
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import AttributeNotFound, BadConfig, BadData, SchemaMismatch
from gpupipe.io.planning.table import AnyTable
from gpupipe.io.relational.engine import PlannedRun, assign_ranges, count_buckets, has_many_groups
from gpupipe.io.relational.gathering import plan_rows
from gpupipe.io.relational.scan import scan
from gpupipe.schema import FLOATS, LISTS, ROW, Field, Schema, is_passenger, suggest_conversion, to_list_dtype
from gpupipe.support.origins import Origins, When, forget_order, keep_lookups, keep_shared, shift
from gpupipe.support.text import arguments, derive
from gpupipe.support.validation import is_number

_WHOLE = ("median", "quantile", "mode", "nunique", "list")
_FUNCTIONS = ("size", "count", "sum", "mean", "var", "std", "min", "max", "first", "last", *_WHOLE)
_IN_ORDER = ("first", "last", "list")
_OF_LISTS = ("size", "count", "first", "last")
_OF_NUMBERS = ("sum", "mean", "var", "std", "median", "quantile")
_ALIASES = {"len": "size", "amin": "min", "amax": "max", "average": "mean", "avg": "mean", "unique": "nunique"}
_HIGH, _HALF, _ABOVE = "⟨high⟩", 2**32, "⟨above⟩"


@dataclass(frozen=True)
class GroupBy(Generic[AnyTable]):
    """Table with the keys to group it by; made by `Dataset.group_by`."""

    table: AnyTable
    keys: Sequence[str]
    dropna: bool

    if not TYPE_CHECKING:  # for which any name would be one

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeNotFound for pandas' `mean()` and the like, with the call of `agg` for it."""
            if name.startswith("_"):
                return object.__getattribute__(self, name)
            raise self._refuse_name(name, [self._suggest_column()], name if name in _FUNCTIONS else "mean")

    def __getitem__(self, names: Any) -> NoReturn:
        """Raise AttributeNotFound for pandas' choice of columns, with the call of `agg` for it."""
        columns = [name for name in (names if isinstance(names, list | tuple) else [names]) if isinstance(name, str)]
        raise self._refuse_name(repr(names), columns or [self._suggest_column()], "mean")

    def _refuse_name(self, name: str, columns: Sequence[str], function: str) -> AttributeNotFound:
        calls = ", ".join(f"{column}_{function}=({column!r}, {function!r})" for column in columns)
        expected = f"agg, with some of {', '.join(_FUNCTIONS)}"
        return AttributeNotFound(f"group_by.{name}", "no such name", expected=expected, remedy=f"agg({calls})")

    def _suggest_call(self, argument: Any) -> str:
        """Suggest the call with named aggregates for an argument in the style of pandas."""
        by_column = argument if isinstance(argument, Mapping) else {self._suggest_column(): argument}
        pairs = {
            f"{column}_{function}": (column, function)
            for column, functions in by_column.items()
            for function in map(_name_function, functions if isinstance(functions, list | tuple) else [functions])
        }
        return f"agg({arguments(pairs)})"

    def _suggest_pair(self, name: str, value: Any) -> str:
        """Suggest `agg(name=(column, function))` for what stands in place of the pair, such as `"sum"` or `np.mean`."""
        parts = list(value) if isinstance(value, list | tuple) else [value]
        columns = [part for part in [*parts, name] if isinstance(part, str) and part in self.table.schema]
        functions = [_name_function(part) for part in parts if not (isinstance(part, str) and part in columns)]
        pair = (columns[0] if columns else self._suggest_column(), functions[0] if functions else "mean")
        return f"agg({name}={pair!r})"

    def _suggest_column(self) -> str:
        """Return the name of a column to group, of numbers where there is one."""
        items = [item for item in self.table.schema if item.name not in self.keys] or list(self.table.schema)
        numbers = [item for item in items if item.dtype in FLOATS or "int" in item.dtype]
        return (numbers or items)[0].name

    def agg(self, *unnamed: object, **named: tuple[str, str] | tuple[str, str, float]) -> AnyTable:
        """Compute one row for each distinct key, sorted by the keys, a missing one last.

        `named` has for each new column the column it is made of and a function: `"size"` (rows), `"count"` (values),
        `"sum"`, `"mean"`, `"var"` and `"std"` (with n - 1), `"min"`, `"max"`, `"first"`, `"last"`, `"median"`, `"mode"`
        (the most frequent value, of several the least), `"nunique"` or `"list"`; `("x", "quantile", 0.9)` has a number
        from 0 to 1 behind it, and is interpolated linearly. pandas' `agg({"x": "mean"})` is
        `agg(x_mean=("x", "mean"))`. Missing values are left out: `sum` of none is 0, and all but the counts give a
        missing value. But a list has an element for each row, in their order, so that `sort("time").group_by("user")`
        gives each user's values by time.

        Raises:
            BadConfig, ColumnNotFound: nothing is asked for; a name is missing or a key's; no such function or column; a
                quantile without its number, or with one that is not from 0 to 1.
            SchemaMismatch: a sum and the like of what is no number; any but a count, the first or the last of lists.
            BadData: a sum of integers does not fit 64 bits; names column and group, when rows are first asked for.

        Memory: a few numbers for each group; all rows where a median, a quantile, a mode, a number of distinct values
            or a list is asked for. Beyond the memory, as `Dataset.sort`; all rows of the largest group have to fit. A
            mode is computed on the CPU, whatever the backend.

        Example:
            >>> import gpupipe as gp
            >>> flights = gp.read_parquet("data/flights.parquet")
            >>> flights.group_by("origin").agg(longest=("distance", "max")).compute()["longest"].tolist()
            [4963.0, 4983.0, 1620.0]
        """
        if unnamed:
            argument, expected = unnamed[0], "name=(column, function) for each new column"
            remedy = self._suggest_call(argument)
            raise BadConfig("agg", "new columns need names", got=argument, expected=expected, remedy=remedy)
        for name, parts in cast(dict[str, Any], named).items():
            is_pair = isinstance(parts, tuple) and all(isinstance(part, str) for part in parts[:2])
            is_quantile = is_pair and parts[1:2] == ("quantile",)
            if is_quantile and len(parts) == 3 and is_number(parts[2]) and 0 <= parts[2] <= 1:
                continue
            if is_quantile or not (is_pair and len(parts) == 2):
                expected, remedy = "a column and a function, as (column, function)", self._suggest_pair(name, parts)
                if is_quantile:
                    expected, remedy = "a number from 0 to 1 behind it", f"agg({name}=({parts[0]!r}, 'quantile', 0.9))"
                raise BadConfig(f"agg({name}=)", "makes no sense", got=parts, expected=expected, remedy=remedy)
        aggregates = [_Aggregate(name, *pair) for name, pair in named.items()]
        self._check(aggregates)
        return _plan_groups(self.table, self.keys, aggregates, dropna=self.dropna)

    def _check(self, aggregates: Sequence[_Aggregate]) -> None:
        if not aggregates:
            expected, remedy = "a name for each column", f"agg(rows=({self._suggest_column()!r}, 'size'))"
            raise BadConfig("agg", "nothing is asked for", expected=expected, remedy=remedy)
        for agg in aggregates:
            where = f"agg({agg.name}=)"
            if agg.function not in _FUNCTIONS:
                functions = ", ".join(_FUNCTIONS)
                raise BadConfig(where, "no such function", got=agg.function, expected=functions, remedy="'mean'")
            if agg.name in self.keys:
                raise BadConfig(where, "a key has that name", expected="another", remedy=f"agg({agg.name}_=...)")
            self.table.require([agg.column], where)
            dtype = self.table.schema[agg.column].dtype
            if (dtype in LISTS or is_passenger(dtype)) and agg.function not in _OF_LISTS:
                length = f"T.{derive(agg.column, 'len({})', f'{agg.column}_length')} before it"
                problem = f"column {agg.column!r} holds {'lists' if dtype in LISTS else dtype}"
                remedy = length if dtype in LISTS else suggest_conversion(agg.column, dtype)
                raise SchemaMismatch(where, problem, got=agg.function, expected=", ".join(_OF_LISTS), remedy=remedy)
            if agg.function in _OF_NUMBERS and dtype in ("string", "timestamp"):
                problem = f"column {agg.column!r} holds no numbers"
                expected = f"numbers or booleans for {agg.function!r}"
                remedy = "'min', 'max', 'first', 'last', 'count' or 'nunique'"
                raise SchemaMismatch(where, problem, got=dtype, expected=expected, remedy=remedy)


def _name_function(function: Any) -> str:
    """Return the name of a function of groups for one such as `np.max`; `"mean"` where there is none."""
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    name = _ALIASES.get(name, name)
    return name if name in _FUNCTIONS and name != "quantile" else "mean"


@dataclass(frozen=True)
class _Aggregate:
    name: str
    column: str
    function: str
    q: float = 0.5  # of a quantile

    def field(self, item: Field, keys: Origins = frozenset()) -> Field:
        """Return the field of the result, with the type that pandas gives it, of groups by keys of these origins."""
        whens = (When.GROUP, When.POSITION) if self.function in _IN_ORDER else (When.GROUP,)
        origins = shift(keep_lookups(keep_shared(item.origins, keys), keys), *whens)
        return replace(self._type(item), lineage=frozenset({self.name}), origins=origins)

    def _type(self, item: Field) -> Field:
        if self.function in ("size", "count", "nunique"):
            return Field(self.name, "int64", nullable=False)
        if self.function == "list":
            return Field(self.name, to_list_dtype(item.dtype), nullable=False)
        if self.function == "sum":
            wide = "uint64" if item.dtype.startswith("uint") else "int64"
            return Field(self.name, item.dtype if item.dtype in FLOATS else wide, nullable=False)
        if self.function in _OF_NUMBERS:
            alike = item.dtype == "float32" and self.function != "mean"
            return Field(self.name, "float32" if alike else "float64")
        return Field(self.name, item.dtype, nullable=item.nullable, written_as=item.written_as)

    def expression(self, item: Field, backend: str) -> pl.Expr:
        """Build the expression of the result; on a GPU the rows may be in any order, except for lists."""
        values, wide = pl.col(self.column), self.field(item).dtype
        match self.function:
            case "size":
                result = pl.len()
            case "count":
                result = values.count()
            case "nunique":
                result = values.drop_nulls().n_unique()
            case "list":
                result = values
            case "sum":
                result = values.cast({"uint64": pl.UInt64, "int64": pl.Int64}.get(wide, pl.Float64)).sum()
            case "first" if backend == "gpu":
                result = values.sort_by(values.is_null(), ROW).first()
            case "last" if backend == "gpu":  # cudf-polars does not translate `last(ignore_nulls=True)`
                result = values.sort_by(values.is_not_null(), ROW).last()
            case "first" | "last":
                result = getattr(values, self.function)(ignore_nulls=True)
            case "median" | "quantile":  # `median` goes from the lower value by a half of the distance: NaN from -inf
                way: Any = "midpoint" if self.function == "median" else "linear"
                result = values.cast(pl.Float64).quantile(float(self.q), way)
            case "mode":
                values = _drop_zero_sign(self.column) if item.dtype in FLOATS else values
                result = values.drop_nulls().mode().min()
            case "mean" | "var" | "std":
                result = getattr(values.cast(pl.Float64), self.function)()
            case _:  # "min" and "max"
                result = getattr(values, self.function)()
        return result.alias(self.name)


def _plan_groups(table: AnyTable, keys: Sequence[str], aggregates: Sequence[_Aggregate], *, dropna: bool) -> AnyTable:
    columns = list(dict.fromkeys([*keys, *(agg.column for agg in aggregates)]))
    backend = get_executor().resolve(table.backend)
    backend = "cpu" if any(agg.function == "mode" for agg in aggregates) else backend  # cudf-polars has no mode
    aggregations = [agg.expression(table.schema[agg.column], backend) for agg in aggregates]
    sums = [
        agg for agg in aggregates if agg.function == "sum" and table.schema[agg.column].dtype in ("int64", "uint64")
    ]
    aggregations += [(pl.col(agg.column) // _HALF).sum().alias(agg.name + _HIGH) for agg in sums]
    quantiles = [agg for agg in aggregates if agg.function == "quantile" and table.schema[agg.column].dtype in FLOATS]
    aggregations += [
        pl.col(agg.column).cast(pl.Float64).quantile(float(agg.q), "higher").alias(agg.name + _ABOVE)
        for agg in quantiles
    ]

    holds_rows = any(agg.function in _WHOLE for agg in aggregates)
    ends = [agg for agg in aggregates if agg.function in ("min", "max") and table.schema[agg.column].dtype in FLOATS]

    def plan(frame: pl.LazyFrame, dictionaries: Mapping[str, pl.Series]) -> pl.LazyFrame:
        frame = frame.drop_nulls(keys) if dropna and holds_rows else frame
        if backend == "gpu" and any(agg.function == "list" for agg in aggregates):
            frame = frame.sort(ROW)
        groups = frame.group_by(keys).agg(aggregations)
        groups = groups.drop_nulls(keys) if dropna else groups  # a few groups, where all rows would be copied before
        groups = groups.with_columns(_drop_zero_sign(agg.name) for agg in ends)
        groups = groups.with_columns(pl.lit(text).gather(pl.col(key)).alias(key) for key, text in dictionaries.items())
        groups = groups.with_columns(_mend_infinite_quantile(agg.name) for agg in quantiles)
        return groups.with_columns(_mask_wrapped_sum(agg.name) for agg in sums).sort(keys, nulls_last=True)

    def check(groups: pl.LazyFrame) -> None:
        for agg in sums:
            device = select(backend if get_executor().in_process else "cpu")
            lost = device.run_plan(groups.filter(pl.col(agg.name).is_null()), list(schema.select(keys)))
            if len(lost):
                dtype, got = schema[agg.name].dtype, device.to_arrow(lost).slice(0, 1).to_pylist()[0]
                problem = f"the sum of column {agg.column!r} does not fit {dtype} in a group"
                expected = "sums from 0 to 2**64 - 1" if dtype == "uint64" else "sums from -2**63 to 2**63 - 1"
                remedy = f"T.{derive(agg.column, 'float({})')} before it, which returns float64"
                raise BadData(f"agg({agg.name}=)", problem, got=got, expected=expected, remedy=remedy)

    def groups() -> PlannedRun:
        # Codes are grouped in less time than text; in buckets, which are ranges of keys, they would be out of order.
        coded = set(keys).difference(agg.column for agg in aggregates) if backend == "cpu" else ()
        rows = scan(table, columns, "group", coded=coded)
        if rows.dictionaries and count_buckets([rows], backend) > 1:
            rows = scan(table, columns, "group")

        def cut(num_buckets: int) -> list[pl.Expr]:
            return [assign_ranges(rows, keys, [True] * len(keys), num_buckets)]

        large = holds_rows or has_many_groups(rows, keys, backend)
        finish = partial(plan, dictionaries=rows.dictionaries)
        return PlannedRun(finish, [rows], list(schema), backend, "group", cut if large else None, check)

    before = table.locate_origins()
    of_keys = [
        replace(item, nullable=item.nullable and not dropna, origins=forget_order(item.origins))
        for item in before.select(keys)
    ]
    key_origins: Origins = frozenset().union(*(item.origins for item in of_keys))
    groups_by = shift(key_origins, When.KEY)
    fields = (agg.field(before[agg.column], key_origins) for agg in aggregates)
    schema = Schema([*of_keys, *(replace(item, origins=item.origins | groups_by) for item in fields)])
    return plan_rows(table, schema, "group", (keys, dropna, aggregates), groups)


def _drop_zero_sign(name: str) -> pl.Expr:
    """Make -0.0 of floats 0.0; adding 0.0 would do that on some engines only."""
    values = pl.col(name)
    return pl.when(values == 0.0).then(values.abs()).otherwise(values).alias(name)


def _mask_wrapped_sum(name: str) -> pl.Expr:
    """Replace a sum that has wrapped with a missing value: cudf-polars has no sums of 128 bits.

    The sum of the values' high halves approximates the sum: the low halves of a group of up to 2**30 rows add less than
    2**62, while a sum that has wrapped is off by 2**64.
    """
    total, high = pl.col(name), pl.col(name + _HIGH)
    off = total.cast(pl.Float64) - high.cast(pl.Float64) * float(_HALF)
    return pl.when(off.abs() < 2.0**63).then(total).alias(name)


def _mend_infinite_quantile(name: str) -> pl.Expr:
    """Replace NaN between minus infinity and a number: the way between the two is infinite, at any part of it."""
    value = pl.col(name)
    return pl.when(value.is_nan() & pl.col(name + _ABOVE).is_finite()).then(float("-inf")).otherwise(value).alias(name)
