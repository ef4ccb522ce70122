"""Joins with another table, on equal keys or as of a time, and key lookup in a small table with unique keys."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Lock
from types import ModuleType
from typing import Any, Literal, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend, is_frame, select
from gpupipe.backend.arrow import read_stream
from gpupipe.backend.columns import (
    Distance,
    as_key,
    check_distance,
    convert_distance,
    key_dtype,
    one_key_type,
    order_dtype,
    require_comparable,
    require_comparable_times,
    whole_numbers,
    with_missing_row,
)
from gpupipe.backend.dictionaries import Dictionary, find_positions
from gpupipe.backend.groups import group_by_keys
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.validation import (
    as_list,
    check_bool,
    check_choice,
    check_name,
    check_names,
    parse_duration_us,
    refuse_argument,
)
from gpupipe.transforms.transform import Transform


class TableJoin(Transform):
    """Base class of steps that add columns of a table, saved with the pipeline or named when it is loaded."""

    def __init__(self, right: Any, columns: str | Sequence[str] | None, suffix: str, name: str | None) -> None:
        schema: Schema | None = None
        if hasattr(right, "__arrow_c_stream__") and hasattr(right, "schema") and not _is_dataset(right):
            table, fields = read_stream(right, type(self).__name__)
            right, schema = select("cpu").from_arrow(table, fields), Schema(fields)  # frames have no dates and zones
        if not (_is_dataset(right) or is_frame(right)):
            raise refuse_argument(self, "right", right, "a Dataset or a frame", "gp.from_frame(right)")
        check_names(self, None, columns=columns)
        check_name(self, suffix=suffix)
        check_name(self, None, name=name)
        self.right = right
        self.columns = None if columns is None else as_list(columns)
        self.suffix = suffix
        self.name = name or "_".join(self.keys)
        self.when = "always"
        self._lock = Lock()
        self._tables: dict[str, Any] = {}
        self._schema = schema
        self.reset()

    @property
    @abstractmethod
    def keys(self) -> list[str]:
        """The columns that are compared, of the same names on both sides."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what every process prepares for itself."""
        return self.__dict__ | {"_lock": None, "_tables": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": Lock()}

    def __copy__(self) -> Self:
        """Copy the step: it shares the prepared table, but not the count."""
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        return made

    def reset(self) -> None:
        """Reset the count of unmatched rows."""
        self.rows_seen_ = 0
        self.rows_unmatched_ = 0

    @property
    def unmatched_share(self) -> float:
        """The fraction of rows since the last `fit` (or load) without a match on the right; 0 before any."""
        return self.rows_unmatched_ / self.rows_seen_ if self.rows_seen_ else 0.0

    @property
    def right_schema(self) -> Schema:
        """The schema of the right table."""
        if self._schema is None:
            if _is_dataset(self.right):
                self._schema = self.right.schema
            else:
                backend = infer_backend(self.right)
                names = list(self.right.columns) if self.columns is None else [*self.keys, *self.columns]
                there = [name for name in dict.fromkeys(names) if name in self.right.columns]
                right = backend.select(self.right, there)
                self._schema = backend.schema_of(backend.encode(right), backend.classify(right))
        return self._schema

    def _check_keys(self, left: Schema, equal: Sequence[str]) -> None:
        """Check that both sides have the columns of the join, and keys that can be equal."""
        left.require(self.keys, f"{self._where} left")
        names, where = [*self.keys, *(self.columns or ())], f"{self._where} right"
        if _is_dataset(self.right):
            self.right.require(names, where)
        known = list(self.right.columns)
        for name in names:
            if name not in known:
                raise ColumnNotFound.among(where, name, known)
        require_comparable(left.select(equal), f"{self._where} left")
        for ours, theirs in ((left[key], self.right_schema[key]) for key in equal):
            if ours.dtype != theirs.dtype and not {ours.dtype, theirs.dtype} <= {*INTEGERS, *FLOATS}:
                raise SchemaMismatch(
                    self._where,
                    f"key {ours.name!r} is {ours.dtype} on the left and {theirs.dtype} on the right",
                    expected="the same type on both sides, or two types of numbers",
                    remedy=one_key_type(ours, theirs),
                )
            require_comparable_times(ours, theirs, f"{self._where}, left and right")

    def table(self, backend: Backend) -> Frame:
        """Read the right table as a coded frame: the keys and the columns the join adds."""
        names = list(dict.fromkeys([*self.keys, *self._names_out(Schema())]))
        if _is_dataset(self.right):
            return backend.concat([self.right.read(part, names, backend) for part in self.right.partitions])
        owner = infer_backend(self.right)
        frame = owner.encode(owner.select(self.right, names))
        if owner.name == backend.name:
            return frame
        return backend.from_arrow(owner.to_arrow(frame), list(self.right_schema.select(names)))

    @property
    def _where(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _names_out(self, left: Schema) -> dict[str, str]:
        """Return the right columns that are added, and their names in the result."""
        chosen = self.columns
        if chosen is None:
            chosen = [name for name in self.right_schema.names if name not in self.keys]
        return {name: name + self.suffix if name in left else name for name in chosen}

    def _added_fields(self, left: Schema) -> list[Field]:
        """Return the added columns, each computed from the keys and from a lineage of its own."""
        keys, right, where = [left[key] for key in self.keys], self.right_schema, type(self).__name__
        names = self._names_out(left)
        self._check_unique(names, left)
        return [
            Field.derived(out, item.dtype, [*keys, self._source(item)], where, written_as=item.written_as)
            for name, out in names.items()
            for item in [right[name]]
        ]

    def _source(self, item: Field) -> Field:
        """Return a right column as the start of a lineage of its own."""
        return replace(item, lineage=frozenset({f"{self.name}.{item.name}"}))

    def _check_unique(self, names: Mapping[str, str], left: Schema) -> None:
        taken = {name: f"the left column {name!r}" for name in left.names}
        for name, out in names.items():
            if out in taken:
                raise BadConfig(
                    self._where,
                    f"{taken[out]} and the right column {name!r} would both be called {out!r}",
                    expected="a name of its own for each column",
                    remedy=f"another suffix than {self.suffix!r}, or one of the two renamed before the join",
                )
            taken[out] = f"the right column {name!r}"

    def _count(self, num_rows: int, unmatched: Any) -> None:
        """Count the rows without a match, given their mask."""
        with self._lock:
            self.rows_seen_ += num_rows
            self.rows_unmatched_ += int(unmatched.sum())


def take_or_missing(column: Column, rows: Any) -> Column:
    """Take the values at these rows, missing at -1, without a mask where all are there."""
    taken = column.take(rows)
    if taken.valid is not None and bool(taken.valid.all()):
        return replace(taken, valid=None)
    return taken


def _is_dataset(table: Any) -> bool:
    return hasattr(table, "partitions") and hasattr(table, "read")


# A table of direct addresses is used up to this many entries of 4 bytes, or 16 per row of the table if that is more.
_DIRECT_ENTRIES = 4_000_000


@dataclass(frozen=True)
class _TextKey:
    """Text key: codes of another dictionary to ids in this one."""

    dictionary: Dictionary

    @property
    def size(self) -> int:
        return len(self.dictionary)

    def ids(self, column: Column, backend: Backend) -> Array:
        """Return n ids, -1 where the value is missing or not in the dictionary."""
        table = np.append(find_positions(column.dictionary, self.dictionary), -1)
        return backend.to_device(table.astype(np.int64))[column.data]


@dataclass(frozen=True)
class _NumberKey:
    """Number key: values `low + id * step`, of low's type."""

    low: np.int64 | np.uint64
    step: int
    size: int

    def ids(self, column: Column, backend: Backend) -> Array:
        """Return n ids, -1 where the value is missing or not one of these."""
        values, found = whole_numbers(column, self.low.dtype, backend.xp)
        # Differences are taken modulo 2^64, in which no two values have the same: what is below `low` is far above.
        offset = (values - self.low).view("uint64")
        ids = offset // np.uint64(self.step)
        found = found & (ids < np.uint64(self.size)) & (ids * np.uint64(self.step) == offset)
        return backend.xp.where(found, ids.view("int64"), -1)


@dataclass(frozen=True)
class _RankKey:
    """Ranked key: values by their position in a sorted list, where the spread is too wide for arithmetic."""

    values: Array  # sorted, unique, at least one, int64 or uint64, on the device

    @property
    def size(self) -> int:
        return len(self.values)

    def ids(self, column: Column, backend: Backend) -> Array:
        """Return n ids, -1 where the value is missing or not in the list."""
        values, found = whole_numbers(column, self.values.dtype, backend.xp)
        there, place = self.places(values, backend.xp)
        return backend.xp.where(found & there, place, -1)

    def places(self, values: Array, xp: ModuleType) -> tuple[Array, Array]:
        """Return whether each value (of the list's type) is in the list, and its position."""
        place = xp.minimum(xp.searchsorted(self.values, values), self.size - 1)
        return self.values[place] == values, place


class Lookup:
    """Key lookup: the rows of a table by key.

    Numbers are equal where their values are, whatever their types: 2.0 finds 2, 2.5 and -1 find nothing among uint64.
    """

    def __init__(self, keys: Mapping[str, Column], backend: Backend, where: str, remedy: str) -> None:
        self._parts = {name: _part(name, column, backend, where, remedy) for name, column in keys.items()}
        size = math.prod(part.size for part in self._parts.values())
        if size >= 2**62:
            raise BadConfig(
                where,
                f"the keys {list(keys)} span too many combinations",
                got=size,
                expected="fewer than 2^62",
                remedy=remedy,
            )
        ids = self._ids(keys, backend)
        rows = backend.to_host(backend.xp.flatnonzero(ids >= 0))
        ids = backend.to_host(ids)[rows]
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], rows[order]
        _check_unique(ids, rows, keys, backend, where)
        self._sorted = None
        if size <= max(_DIRECT_ENTRIES, 16 * len(rows)):
            table = np.full(size + 1, -1, dtype=np.int32)
            table[ids] = rows
        else:
            # One more id than there are, for a list of at least one.
            table = np.append(rows, -1).astype(np.int32)
            self._sorted = _RankKey(backend.to_device(np.append(ids, size)))
        self._table = backend.to_device(table)

    def find(self, keys: Mapping[str, Column], backend: Backend) -> Array:
        """Return n row numbers of the table, -1 where the key is missing or not there. `keys` as named in the table."""
        ids = self._ids(keys, backend)
        if self._sorted is None:
            return self._table[ids]
        found, place = self._sorted.places(ids, backend.xp)
        return backend.xp.where(found, self._table[place], -1)

    def _ids(self, keys: Mapping[str, Column], backend: Backend) -> Array:
        """Return one id per row from all its keys, in mixed radix; -1 where one is not in the table."""
        total: Array = None
        for name, part in self._parts.items():
            ids = part.ids(keys[name], backend)
            both = total is not None and (total >= 0) & (ids >= 0)
            total = ids if total is None else backend.xp.where(both, total * part.size + ids, -1)
        return total


def _check_unique(ids: Any, rows: Any, keys: Mapping[str, Column], backend: Backend, where: str) -> None:
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if len(twice):
        row = int(rows[twice[0]])
        key = {name: _value_at(column, row, backend) for name, column in keys.items()}
        raise BadData(
            where,
            f"{len(twice)} rows of the right table repeat a key, for instance {key}",
            expected="unique keys on the right",
            remedy="many=True for every pair, or drop the duplicates on the right",
        )


def _part(name: str, column: Column, backend: Backend, where: str, remedy: str) -> _TextKey | _NumberKey | _RankKey:
    if column.dictionary is not None:
        return _TextKey(column.dictionary)
    missing = column.missing(backend.xp)
    present = np.unique(backend.to_host(column.data if missing is None else column.data[~missing]))
    kind = np.dtype(np.uint64 if present.dtype == np.uint64 else np.int64)
    values, found = whole_numbers(Column(column.dtype, present), kind, np)
    if not found.all():
        raise BadConfig(
            where,
            f"key column {name!r} holds a number that is no int64",
            got=present[~found][0].item(),
            expected="whole numbers, strings or timestamps as keys",
            remedy=remedy,
        )
    if not len(values):
        return _NumberKey(np.int64(0), 1, 0)
    spread = int(values[-1]) - int(values[0])
    if spread < 2**62:
        step = max(int(np.gcd.reduce(np.diff(values))), 1)
        size = spread // step + 1
        if size < 2**31:
            return _NumberKey(values[0], step, size)
    return _RankKey(backend.to_device(values))


def _value_at(column: Column, row: int, backend: Backend) -> Any:
    value = backend.to_host(column.data[row : row + 1])[0]
    if column.dictionary is not None:
        return column.dictionary[int(value)].as_py()
    return str(np.datetime64(int(value), "us")) if column.dtype == "timestamp" else value.item()


class Join(TableJoin):
    """Join a table on equal keys: a lookup that keeps the rows and their order, or with `many=True` a general merge.

    Args:
        right: the table, a Dataset, a frame, or another library's that `from_frame` takes. It is read once, and has to
            fit in memory.
        on: the key column or columns, named alike on both sides. A missing key matches nothing; numbers match by
            value, whatever their types.
        how: `"left"` keeps every row, `"inner"` those with a match (predictions then have the surviving rows only).
        columns: the right columns to add; all but the keys by default.
        suffix: put behind the name of a right column that the left has too. Names on the left never change.
        many: whether several right rows may have the same key; a row of the left then comes out once per match.
        name: what the table is called in `fit_report`, in a saved pipeline and in `gp.load(..., tables={name: table})`;
            by default the keys joined by `_`. Two joins of one pipeline have two names.

    Raises:
        BadData: a key repeats on the right and `many` is False; names a key.
        SchemaMismatch: a key is a list, or of another kind on the right (text and numbers; times with a zone and
            without).
        BadConfig: a column it adds would have another column's name, or a key on the right is no whole number and
            `many` is False.

    Memory: the right table stays in memory; one new column per right column asked for.

    Example:
        >>> import pandas as pd
        >>> weather = pd.DataFrame({"origin": ["JFK", "LGA"], "temp": [39.0, 41.0]})
        >>> Join(weather, on="origin").transform(pd.DataFrame({"origin": ["LGA", None]}))
          origin  temp
        0    LGA  41.0
        1    NaN   NaN
    """

    def __init__(
        self,
        right: Any,
        *,
        on: str | Sequence[str],
        how: Literal["left", "inner"] = "left",
        columns: str | Sequence[str] | None = None,
        suffix: str = "_right",
        many: bool = False,
        name: str | None = None,
    ) -> None:
        check_names(self, empty=False, on=on)
        check_choice(self, ("left", "inner"), how=how)
        check_bool(self, many=many)
        self.on = as_list(on)
        self.how = how
        self.many = many
        self.changes_rows = many or how == "inner"
        super().__init__(right, columns, suffix, name)

    @property
    def keys(self) -> list[str]:
        return self.on

    def output_schema(self, schema: Schema) -> Schema:
        self._check_keys(schema, self.on)
        return schema.assign(self._added_fields(schema))

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        added = set(self._names_out(schema).values())
        if not self.changes_rows and not wanted & added:
            return set(wanted)
        return {*(wanted - added), *self.on}

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        names = self._names_out(schema)
        asked = {name: out for name, out in names.items() if out in wanted}
        if not asked and not self.changes_rows:
            return frame
        table, lookup = self._prepared(backend)
        if lookup is None:
            return self._merged(frame, table, asked, backend)
        rows = lookup.find({key: backend.column(frame, key) for key in self.on}, backend)
        unmatched = rows < 0
        self._count(len(frame), unmatched)
        if self.how == "inner":
            frame, rows = backend.filter(frame, ~unmatched), rows[~unmatched]
        return backend.assign(
            frame, {out: take_or_missing(backend.column(table, name), rows) for name, out in asked.items()}
        )

    def _merged(self, frame: Frame, table: Frame, asked: Mapping[str, str], backend: Backend) -> Frame:
        """Return every pair of rows with equal keys; keys of two types are compared in columns of their own."""
        right = backend.rename(backend.select(table, [*self.on, *asked]), asked)
        sides = frame, right
        on: list[str] = []
        added: tuple[dict[str, Column], dict[str, Column]] = {}, {}
        for key in self.on:
            columns = [backend.column(side, key) for side in sides]
            dtype = key_dtype({column.dtype for column in columns})
            alike = all(column.dtype == dtype for column in columns)
            on.append(key if alike else f"⟨key⟩ {key}")
            if not alike:
                for made, column in zip(added, columns, strict=True):
                    made[on[-1]] = as_key(column, dtype, backend.xp)
        if not added[0]:
            return backend.merge(frame, right, on, self.how, self.suffix)
        left, right = (backend.assign(side, made) for side, made in zip(sides, added, strict=True))
        merged = backend.merge(left, backend.select(right, [*on, *asked.values()]), on, self.how, self.suffix)
        return backend.select(merged, [*frame.columns, *asked.values()])

    def _names_out(self, left: Schema) -> dict[str, str]:
        return {name: out for name, out in super()._names_out(left).items() if name not in self.on}

    def _prepared(self, backend: Backend) -> tuple[Frame, Lookup | None]:
        with self._lock:
            if backend.name not in self._tables:
                table = self.table(backend)
                if self.many:
                    self._tables[backend.name] = table, None
                else:
                    keys = {key: backend.column(table, key) for key in self.on}
                    lookup = Lookup(keys, backend, self._where, "many=True, which merges without a lookup table")
                    extended = {n: with_missing_row(backend.column(table, n), backend.xp) for n in table.columns}
                    self._tables[backend.name] = backend.frame(extended, len(table) + 1), lookup
            found: tuple[Frame, Lookup | None] = self._tables[backend.name]
            return found


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
        self._check_keys(schema, self._by)
        dtype = order_dtype(schema[self.on], self.right_schema[self.on], self._where)
        for given, value in {"tolerance": self.tolerance, "lag": self.lag}.items():
            convert_distance(value, dtype, f"JoinAsOf({given}=)")
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
            examples = {name: key.take(found.examples) for name, key in keys.items()}
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
