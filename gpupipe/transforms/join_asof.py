"""As-of join: columns of the last row of another table that was known at a row's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import one_key_type, require_comparable, require_comparable_times, with_missing_row
from gpupipe.backend.sorting import group_by_keys
from gpupipe.backend.time_distance import Distance, check_distance, convert_distance, order_dtype
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_bool, check_name, check_names, parse_duration_us
from gpupipe.transforms.join import Lookup, TableJoin, take_or_missing


class JoinAsOf(TableJoin):
    """Join the last row of a table that was known at a row's time; pandas' `merge_asof`, of rows in any order.

    Every row of the left stays, in its place. A right row is known from its own time on, or `lag` later; of several of
    one time the last one counts. Nothing of a later time is joined, so that features are what was known then.

    Args:
        right: the table, a Dataset, a frame, or another library's that `from_frame` takes. It is read once, and has to
            fit in memory; for a larger one there is `Dataset.join_asof`.
        on: the column of times or numbers, named alike on both sides. A missing one matches nothing.
        by: key columns that have to be equal, named alike on both sides; numbers match by value, and a missing key
            matches nothing.
        tolerance: how old a right row may be, by its own time: a number, or of times a timedelta or text as `"2h"`.
        lag: how much later a right row becomes known, in the same way: a day's sums are known a day after it began.
        allow_exact_matches: whether a right row that becomes known at the row's own time matches.
        columns: the right columns to add; all but `on` and `by` by default.
        suffix: put behind the name of a right column that the left has too. Names on the left never change.
        name: what the table is called, as for `Join`; by default `on` and the keys joined by `_`.

    Raises:
        SchemaMismatch: `on` holds text and the like, or types that no one type holds; a key is of another kind on the
            right.
        BadConfig: a tolerance or a lag below 0 or of another kind than `on`; a column it adds would have another
            column's name; or a key on the right is no whole number.
        BadData: the right table has no rows.
        LeakageError: at `fit`, where a feature is made of a column of the target, found in the table that is learned
            from, and no `lag` says when it is known.

    Memory: the right table stays in memory, sorted; four arrays of n int64, and one new column per right column.

    Example:
        >>> import pandas as pd
        >>> weather = pd.DataFrame({"hour": [9, 6], "temp": [41.0, 39.0]})
        >>> JoinAsOf(weather, on="hour").transform(pd.DataFrame({"hour": [8, 9, 5]}))
           hour  temp
        0     8  39.0
        1     9  41.0
        2     5   NaN
    """

    finds_own_rows: bool = False
    """Whether the right table holds rows that the pipeline learns from: its columns have the lineage of those."""

    def __init__(
        self,
        right: Any,
        *,
        on: str,
        by: str | Sequence[str] | None = None,
        tolerance: float | str | timedelta | None = None,
        lag: float | str | timedelta | None = None,
        allow_exact_matches: bool = True,
        columns: str | Sequence[str] | None = None,
        suffix: str = "_right",
        name: str | None = None,
    ) -> None:
        check_name(self, on=on)
        check_names(self, None, by=by)
        check_bool(self, allow_exact_matches=allow_exact_matches)
        for given, value in {"tolerance": tolerance, "lag": lag}.items():
            check_distance(value, f"JoinAsOf({given}=)")
        self.on, self.by = on, by
        self.tolerance, self.lag = _text(tolerance), _text(lag)
        self.allow_exact_matches = allow_exact_matches
        self.changes_rows = False
        super().__init__(right, columns, suffix, name)

    @property
    def keys(self) -> list[str]:
        return [self.on, *self._by]

    @property
    def _by(self) -> list[str]:
        return [] if self.by is None else as_list(self.by)

    def output_schema(self, schema: Schema) -> Schema:
        right = self.right_schema
        schema.require(self.keys, f"{self._where} left")
        self._require_right()
        require_comparable(schema.select(self._by), f"{self._where} left")
        dtype = order_dtype(schema[self.on], right[self.on], self._where)
        for given, value in {"tolerance": self.tolerance, "lag": self.lag}.items():
            convert_distance(value, dtype, f"JoinAsOf({given}=)")
        for key in self._by:
            require_comparable_times(schema[key], right[key], f"{self._where}, left and right")
            both = {schema[key].dtype, right[key].dtype}
            if len(both) > 1 and not both <= {*INTEGERS, *FLOATS}:
                raise SchemaMismatch(
                    self._where,
                    f"key {key!r} is {schema[key].dtype} on the left and {right[key].dtype} on the right",
                    expected="the same type on both sides, or two types of numbers",
                    remedy=one_key_type(schema[key], right[key]),
                )
        return schema.assign(self._added_fields(schema))

    def _source(self, item: Field) -> Field:
        return replace(item, lineage=frozenset({item.name})) if self.finds_own_rows else super()._source(item)

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        added = set(self._names_out(schema).values())
        return {*(wanted - added), *self.keys} if wanted & added else set(wanted)

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        names = {name: out for name, out in self._names_out(schema).items() if out in wanted}
        if not names:
            return frame
        dtype = order_dtype(schema[self.on], self.right_schema[self.on], self._where)
        table, lookup = self._prepared(dtype, backend)
        rows = lookup.find(backend.column(frame, self.on), {key: backend.column(frame, key) for key in self._by})
        self._count(len(frame), rows < 0)
        return backend.assign(frame, {out: take_or_missing(table[name], rows) for name, out in names.items()})

    def _prepared(self, dtype: str, backend: Backend) -> tuple[Mapping[str, Column], _History]:
        with self._lock:
            kind = f"{backend.name}, {dtype}"
            if kind not in self._tables:
                table = self.table(backend)
                if not len(table):
                    raise BadData(
                        self._where,
                        "the right table has no rows",
                        expected="rows to match",
                        remedy="a look at its files or its filter",
                    )
                lag = convert_distance(self.lag, dtype, "JoinAsOf(lag=)") or 0
                tolerance = convert_distance(self.tolerance, dtype, "JoinAsOf(tolerance=)")
                keys = {key: backend.column(table, key) for key in self._by}
                rules = lag, tolerance, self.allow_exact_matches
                history = _History(backend.column(table, self.on), keys, dtype, *rules, backend, self._where)
                columns = {name: with_missing_row(backend.column(table, name), backend.xp) for name in table.columns}
                self._tables[kind] = columns, history
            found: tuple[Mapping[str, Column], _History] = self._tables[kind]
            return found


class _History:
    """Index of a table by key, and of each key's rows by the time from which they are known."""

    def __init__(
        self,
        on: Column,
        keys: Mapping[str, Column],
        dtype: str,
        lag: Distance,
        tolerance: Distance | None,
        exact: bool,
        backend: Backend,
        where: str,
    ) -> None:
        xp = backend.xp
        self._dtype, self._tolerance, self._backend = dtype, tolerance, backend
        self._side = "right" if exact else "left"
        self._lookup, groups = None, xp.zeros(len(on), dtype="int64")
        if keys:
            found = group_by_keys(list(keys.values()), backend)
            examples = {name: key.take(found.first) for name, key in keys.items()}
            remedy = "Dataset.join_asof(...), which takes any numbers"
            self._lookup, groups = Lookup(examples, backend, where, remedy), found.ids
        times, there = _to_comparable(on, dtype, xp)
        if dtype != "float64":  # what becomes known beyond the last time there is never does
            there = there & (times <= np.iinfo(times.dtype).max - lag)
        rows = xp.flatnonzero(there)
        known = times[rows] + times.dtype.type(lag)
        self._times = xp.unique(known)
        places = groups[rows] * (len(self._times) + 1) + xp.searchsorted(self._times, known)
        order = xp.argsort(places, kind="stable")
        # One more, that no row finds, for a list of at least one.
        self._places = xp.append(places[order], np.iinfo(np.int64).max)
        self._rows = xp.append(rows[order], -1)
        self._own = xp.append(times[rows][order], times.dtype.type(0))

    def find(self, on: Column, keys: Mapping[str, Column]) -> Array:
        """Return n row numbers of the table, -1 where none is known."""
        xp = self._backend.xp
        times, there = _to_comparable(on, self._dtype, xp)
        groups = xp.zeros(len(on), dtype="int64") if self._lookup is None else self._lookup.find(keys, self._backend)
        first = groups * (len(self._times) + 1)
        rank = xp.searchsorted(self._times, times, side=self._side) - 1
        place = xp.searchsorted(self._places, first + rank, side="right") - 1
        there = there & (groups >= 0) & (rank >= 0) & (self._places[place] >= first) & (place >= 0)
        if self._tolerance is not None:
            distance = times - self._own[place]
            # Differences are taken modulo 2^64, in which one from an earlier number is exact.
            distance = distance if self._dtype == "float64" else distance.view("uint64")
            there &= distance <= distance.dtype.type(self._tolerance)
        return xp.where(there, self._rows[place], -1)


def _to_comparable(column: Column, dtype: str, xp: Any) -> tuple[Array, Array]:
    """Return the n times in the type they are compared in, and a mask of those that are not missing."""
    kind = "int64" if dtype == "timestamp" else dtype
    missing = column.missing(xp)
    there = xp.ones(len(column), dtype=bool) if missing is None else ~missing
    return column.data.astype(kind), there


def _text(length: Any) -> Any:
    """Write a length of time as text, which can be saved; a number stays one."""
    found = None if isinstance(length, str) else parse_duration_us(length, least=0)
    return length if found is None else f"{found}us"
