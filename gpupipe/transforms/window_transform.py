"""Window transforms: new columns from other rows of the same key, by a Polars plan; lags, differences and counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from gpupipe.backend import Backend, Frame
from gpupipe.backend.arrow import columns_by_plan
from gpupipe.backend.columns import require_comparable
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, ROW, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_names, is_integer, is_sequence, refuse_argument
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
        """Return the fields of these columns.

        Raises:
            SchemaMismatch: one holds neither numbers or booleans, nor one of the other types.
        """
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
