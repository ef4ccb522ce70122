"""Joins with another table, on equal keys or as of a time, and key lookup in a small table with unique keys."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Lock
from types import ModuleType
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend, is_frame, select
from gpupipe.backend.arrow import read_stream
from gpupipe.backend.columns import (
    Distance,
    as_key,
    check_distance,
    convert_distance,
    gather,
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
from gpupipe.backend.kernels import sort_unique
from gpupipe.errors import ArtifactError, BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.origins import (
    ANY_ROW,
    Origins,
    When,
    is_in_other_order,
    is_known,
    keep_related,
    keep_shared,
    leave_groups,
    look_up,
    pick,
    reveal_choice,
    shift,
)
from gpupipe.support.text import format_count
from gpupipe.support.validation import (
    as_list,
    check_bool,
    check_choice,
    check_name,
    check_names,
    get_sides,
    parse_duration_us,
    refuse_argument,
)
from gpupipe.transforms.transform import Names, Transform

_FEW_UNMATCHED = 0.1  # of the rows of a fit


class TableJoin(Transform):
    """Base class of steps that add columns of a table, saved with the pipeline or named when it is loaded."""

    _num_times: ClassVar[int] = 0  # the first keys, by whose order rows are found

    def __init__(self, right: Any, columns: Names | None, suffix: str, name: str | None) -> None:
        if len(self.keys) != len(self.right_keys):
            got, remedy = {"left": self.keys, "right": self.right_keys}, "on=, or left_on= and right_on= of one length"
            problem = "not as many keys on the right as on the left"
            raise BadConfig(self.class_name, problem, got=got, expected="pairs of columns", remedy=remedy)
        schema: Schema | None = None
        if hasattr(right, "__arrow_c_stream__") and hasattr(right, "schema") and not _is_dataset(right):
            backend = select("cpu")
            table, fields = read_stream(right, type(self).__name__)
            stated = {item.name: item.origins for item in fields}
            right = backend.from_arrow(table, fields)
            schema = Schema(fields).with_origins(backend.name_table(right), stated)  # frames have no dates and zones
        if not (_is_dataset(right) or is_frame(right)):
            raise refuse_argument(self, "right", right, "a Dataset or a frame", "gp.from_frame(right)")
        check_names(self, None, columns=columns)
        check_name(self, suffix=suffix)
        check_name(self, None, name=name)
        self.right, self.suffix, self.when = right, suffix, "always"
        self.columns = None if columns is None else as_list(columns)
        self.name = name or "_".join(self.keys)
        self._lock = Lock()
        self._tables: dict[str, Any] = {}
        self._schema = schema
        self.reset()

    @property
    def keys(self) -> list[str]:
        """The columns that are compared."""
        return self._sides()[0]

    @property
    def right_keys(self) -> list[str]:
        """The columns of the right table that these are compared with."""
        return self._sides()[1]

    @abstractmethod
    def _sides(self) -> tuple[list[str], list[str]]:
        """Return the keys of the left and those of the right, from the parameters."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what every process prepares for itself."""
        return self.__dict__ | {"_lock": None, "_tables": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": Lock()}

    def __copy__(self) -> Self:
        """Copy the step: it shares the prepared table, but not the count."""
        step = object.__new__(type(self))
        step.__dict__ |= self.__dict__
        return step

    def reset(self) -> None:
        """Reset the count of unmatched rows, and what a fit has learned by it."""
        self.rows_seen_ = self.rows_unmatched_ = 0
        self.matches_most_: bool | None = None  # whether nine of ten rows of the fit had a match, if it counted them

    def count_fit(self, num_rows: int, num_unmatched: int) -> None:
        """Take the counts of a fit's rows."""
        self.rows_seen_, self.rows_unmatched_ = num_rows, num_unmatched
        self.matches_most_ = self.unmatched_share <= _FEW_UNMATCHED if num_rows else None

    def get_state(self) -> dict[str, Any]:
        """Return whether most rows of the fit had a match."""
        return {"matches_most_": self.matches_most_}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        """Restore what `get_state` returned; returns self."""
        if not isinstance(state["matches_most_"], bool | None):
            expected, remedy = "true, false or null", "saving again, or a copy that is whole"
            raise ArtifactError(self._where, "its matches_most_", got=state, expected=expected, remedy=remedy)
        self.matches_most_ = state["matches_most_"]
        return self

    @property
    def unmatched_share(self) -> float:
        """The fraction of rows since the last `fit` (or load) without a match on the right; 0 before any."""
        return self.rows_unmatched_ / self.rows_seen_ if self.rows_seen_ else 0.0

    def explain_no_match(self) -> str:
        """Ask what may be wrong with the keys where no row has a match."""
        left, right = self.keys[self._num_times :], self.right_keys[self._num_times :]
        return f"are the values of {left} on the left and {right} on the right written alike?"

    @property
    def right_schema(self) -> Schema:
        """The schema of the right table."""
        if self._schema is None and _is_dataset(self.right):
            self._schema = self.right.locate_origins()
        elif self._schema is None:
            backend = infer_backend(self.right)
            readings = backend.classify(self.right)
            table = backend.encode(backend.select(self.right, [name for name, item in readings.items() if item.dtype]))
            names = list(self.right.columns) if self.columns is None else [*self.right_keys, *self.columns]
            right = backend.select(self.right, [name for name in dict.fromkeys(names) if name in self.right.columns])
            schema = backend.schema_of(backend.encode(right), backend.classify(right))
            self._schema = schema.with_origins(backend.name_table(table), {})
        return self._schema

    def _check_keys(self, left: Schema, first: int = 0) -> None:
        """Check that both sides have the columns of the join, and from the `first` key on such that can be equal."""
        left.require(self.keys, f"{self._where} left")
        names, where = [*self.right_keys, *(self.columns or ())], f"{self._where} right"
        if _is_dataset(self.right):
            self.right.require(names, where)
        for name in names:
            if name not in self.right.columns:
                raise ColumnNotFound.among(where, name, list(self.right.columns))
        require_comparable(left.select(self.keys[first:]), f"{self._where} left")
        for key, other in list(zip(self.keys, self.right_keys, strict=True))[first:]:
            left_field, right_field = left[key], self.right_schema[other]
            dtypes = {left_field.dtype, right_field.dtype}
            if len(dtypes) > 1 and not dtypes <= {*INTEGERS, *FLOATS}:
                problem = f"key {key!r} is {left_field.dtype} on the left and {right_field.dtype} on the right"
                expected, remedy = (
                    "the same type on both sides, or two types of numbers",
                    one_key_type(left_field, right_field),
                )
                raise SchemaMismatch(self._where, problem, expected=expected, remedy=remedy)
            require_comparable_times(left_field, right_field, f"{self._where}, left and right")

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        added = set(self._names_out(schema).values())
        return {*(outputs - added), *self.keys} if self.changes_rows or outputs & added else set(outputs)

    def table(self, backend: Backend) -> Frame:
        """Read the right table as a coded frame: the keys and the columns the join adds."""
        names = list(dict.fromkeys([*self.right_keys, *self._names_out(Schema())]))
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
        columns = self.columns
        if columns is None:
            columns = [name for name in self.right_schema.names if name not in self.right_keys]
        return {name: name + self.suffix if name in left else name for name in columns}

    def _added_fields(self, left: Schema) -> list[Field]:
        """Return the added columns, each computed from the keys and from a lineage of its own."""
        names, keys, where = self._names_out(left), [left[key] for key in self.keys], type(self).__name__
        owners = {name: f"the left column {name!r}" for name in left.names}
        for name, out in names.items():
            if out in owners:
                problem = f"{owners[out]} and the right column {name!r} would both be called {out!r}"
                remedy = f"another suffix than {self.suffix!r}, or one of the two renamed before the join"
                raise BadConfig(self._where, problem, expected="a name of its own for each column", remedy=remedy)
            owners[out] = f"the right column {name!r}"
        fields = []
        key_origins = shift(frozenset().union(*(key.origins for key in keys)), When.KEY)
        key_origins |= shift(frozenset().union(*(key.origins for key in keys[: self._num_times])), When.TIME)
        left_origins: Origins = frozenset().union(*(item.origins for item in left))
        right_origins: Origins = frozenset().union(*(self.right_schema[key].origins for key in self.right_keys))
        pairs = [(key, self.right_schema[name]) for key, name in zip(keys, self.right_keys, strict=True)]
        by_own_key = any(key.is_column_of(right_key) for key, right_key in pairs[: self._num_times or None])
        is_earlier = by_own_key and self._excludes_own_time(left) and all(map(is_known, right_origins))
        is_apart = not is_earlier and any(key.is_key_apart(right_key) for key, right_key in pairs)

        def find(origins: Origins) -> Origins:
            origins = self._look_up(origins, left, left_origins)
            return leave_groups(shift(origins, *ANY_ROW) if is_apart else origins, by_own_key=by_own_key)

        key_origins |= shift(find(keep_related(right_origins, left_origins)), When.KEY)
        for name, out in names.items():
            source = self.right_schema[name]
            start = replace(source, lineage=frozenset({f"{self.name}.{name}"}))
            item = Field.derived(out, source.dtype, [*keys, start], where, written_as=source.written_as)
            origins = reveal_choice(keep_shared(source.origins, right_origins), left_origins)
            fields.append(replace(item, origins=find(origins) | key_origins))
        return fields

    def _look_up(self, origins: Origins, left: Schema, left_origins: Origins) -> Origins:
        """Return the origins of a right column in the rows that find it."""
        return look_up(origins, [self.right_schema[key].origins for key in self.right_keys], left_origins)

    def _excludes_own_time(self, left: Schema) -> bool:
        """Return whether rows that are found are of earlier times alone, whatever the other keys are."""
        return False

    def _prepare_once(self, kind: str, prepare: Callable[[], Any]) -> Any:
        """Prepare the right table at the first call for a backend, or a backend and a type; return it."""
        with self._lock:
            if kind not in self._tables:
                self._tables[kind] = prepare()
            return self._tables[kind]

    def _count(self, unmatched: Array) -> None:
        """Count the rows without a match, given their mask."""
        with self._lock:
            self.rows_seen_ += len(unmatched)
            self.rows_unmatched_ += int(unmatched.sum())


def _is_dataset(table: Any) -> bool:
    return hasattr(table, "partitions") and hasattr(table, "read")


_DIRECT_ENTRIES = 4_000_000  # of 4 bytes, in a table of direct addresses at most; or 16 per row if that is more


def _rank(values: Array, queries: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Return whether each query is among sorted unique values of its type, and its position there."""
    positions = xp.minimum(xp.searchsorted(values, queries), len(values) - 1)
    return values[positions] == queries, positions


def _find_texts(dictionary: Dictionary, column: Column, backend: Backend) -> Array:
    """Return the n places of texts in a dictionary, -1 where one is missing or not there."""
    return gather(column, find_positions(column.dictionary, dictionary), -1, backend)


def _find_numbers(low: Any, step: int, size: int, column: Column, backend: Backend) -> Array:
    """Return n places of numbers among `low + place * step`, -1 where one is missing or not there."""
    values, is_member = whole_numbers(column, low.dtype, backend.xp)
    # Differences are taken modulo 2^64, in which no two values have the same: what is below `low` is far above.
    offset = (values - low).view("uint64")
    ids = offset // np.uint64(step)
    is_member = is_member & (ids < np.uint64(size)) & (ids * np.uint64(step) == offset)
    return backend.xp.where(is_member, ids.view("int64"), -1)


def _find_ranks(sorted_values: Array, column: Column, backend: Backend) -> Array:
    """Return n places of numbers in a sorted list, -1 where one is missing or not there."""
    values, is_whole = whole_numbers(column, sorted_values.dtype, backend.xp)
    is_member, ranks = _rank(sorted_values, values, backend.xp)
    return backend.xp.where(is_whole & is_member, ranks, -1)


class Lookup:
    """Key lookup: the rows of a table by key.

    Numbers are equal where their values are, whatever their types: 2.0 finds 2, 2.5 and -1 find nothing among uint64.
    """

    def __init__(self, keys: Mapping[str, Column], backend: Backend, where: str, remedy: str) -> None:
        self._parts = {name: _index_key(name, column, backend, where, remedy) for name, column in keys.items()}
        size = math.prod(size for size, _ in self._parts.values())
        if size >= 2**62:
            problem = f"the keys {list(keys)} span too many combinations"
            raise BadConfig(where, problem, got=size, expected="fewer than 2^62", remedy=remedy)
        ids = self._ids(keys, backend)
        rows = backend.to_host(backend.xp.flatnonzero(ids >= 0))
        ids = backend.to_host(ids)[rows]
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], rows[order]
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            key = {name: _value_at(column, int(rows[twice[0]]), backend) for name, column in keys.items()}
            problem = f"a key is repeated in {format_count(len(twice), 'row')} of the right table, for instance {key}"
            remedy = "many=True for every pair, or drop the duplicates on the right"
            raise BadData(where, problem, expected="unique keys on the right", remedy=remedy)
        self._sorted: Array = None
        if size <= max(_DIRECT_ENTRIES, 16 * len(rows)):
            table = np.full(size + 1, -1, dtype=np.int32)
            table[ids] = rows
        else:
            # One more id than there are, for a list of at least one.
            table = np.append(rows, -1).astype(np.int32)
            self._sorted = backend.to_device(np.append(ids, size))
        self._table = backend.to_device(table)

    def find(self, keys: Mapping[str, Column], backend: Backend) -> Array:
        """Return n row numbers of the table, -1 where the key is missing or not there. `keys` as named in the table."""
        ids = self._ids(keys, backend)
        if self._sorted is None:
            return self._table[ids]
        is_member, positions = _rank(self._sorted, ids, backend.xp)
        return backend.xp.where(is_member, self._table[positions], -1)

    def _ids(self, keys: Mapping[str, Column], backend: Backend) -> Array:
        """Return one id per row from all its keys, in mixed radix; -1 where one is not in the table."""
        total: Array = None
        for name, (size, find) in self._parts.items():
            ids = find(keys[name], backend)
            both = total is not None and (total >= 0) & (ids >= 0)
            total = ids if total is None else backend.xp.where(both, total * size + ids, -1)
        return total


def _index_key(
    name: str, column: Column, backend: Backend, where: str, remedy: str
) -> tuple[int, Callable[[Column, Backend], Array]]:
    """Return the number of places of a key's values, and what finds the places of others: text, whole numbers, times.

    Numbers are found by arithmetic, or in a sorted list where they spread too wide.
    """
    if column.dictionary is not None:
        return len(column.dictionary), partial(_find_texts, column.dictionary)
    missing = column.missing(backend.xp)
    present = sort_unique(backend.to_host(column.data if missing is None else column.data[~missing]), np)
    kind = np.dtype(np.uint64 if present.dtype == np.uint64 else np.int64)
    values, is_whole = whole_numbers(Column(column.dtype, present), kind, np)
    if not is_whole.all():
        problem, got = f"key column {name!r} holds a number that is no int64", present[~is_whole][0].item()
        raise BadConfig(where, problem, got=got, expected="whole numbers, strings or timestamps as keys", remedy=remedy)
    if not len(values):
        return 0, partial(_find_numbers, np.int64(0), 1, 0)
    spread = int(values[-1]) - int(values[0])
    if spread < 2**62:
        step = max(int(np.gcd.reduce(np.diff(values))), 1)
        size = spread // step + 1
        if size < 2**31:
            return size, partial(_find_numbers, values[0], step, size)
    return len(values), partial(_find_ranks, backend.to_device(values))


def _value_at(column: Column, row: int, backend: Backend) -> Any:
    value = backend.to_host(column.data[row : row + 1])[0]
    if column.dictionary is not None:
        return column.dictionary[int(value)].as_py()
    return str(np.datetime64(int(value), "us")) if column.dtype == "timestamp" else value.item()


def _take_rows(
    frame: Frame, rows: Array, columns: Mapping[str, Column], names: Mapping[str, str], backend: Backend
) -> Frame:
    """Add columns of `_with_missing_rows` by the right row of each left one; -1 is a missing value."""
    new_columns = {out: columns[name].take(rows) for name, out in names.items()}
    for out, column in new_columns.items():
        if column.valid is not None and bool(column.valid.all()):  # no mask where all are there
            new_columns[out] = replace(column, valid=None)
    return backend.assign(frame, new_columns)


def _with_missing_rows(table: Frame, backend: Backend) -> dict[str, Column]:
    """Return the columns of a table, each with a missing value at its end."""
    return {name: with_missing_row(backend.column(table, name), backend.xp) for name in table.columns}


class Join(TableJoin):
    """Join a table on equal keys: a lookup that keeps the rows and their order, or with `many=True` a general merge.

    Args:
        right: a Dataset, a frame, or another library's table that `from_frame` takes; read once, and kept in memory.
        on: the keys, named alike on both sides. A missing key matches nothing; numbers match by value.
        left_on, right_on: the keys here and in the table, in the same order, where they have other names.
        how: `"left"` keeps every row, `"inner"` those with a match (predictions then have the surviving rows only).
        columns: the right columns to add; all but the keys by default.
        suffix: put behind the name of a right column that the left has too. Names on the left never change.
        many: whether several right rows may have the same key; a row of the left then comes out once per match.
        name: what the table is called in `fit_report`, in a saved pipeline and in `gp.load(..., tables={name: table})`;
            by default the keys joined by `_`. Two joins of one pipeline have two names.

    Raises:
        BadData: a key repeats on the right and `many` is False; names a key.
        SchemaMismatch: a key is a list, or of another kind on the right: text and numbers, times with and without zone.
        BadConfig: two columns would share a name, or a key on the right is no whole number and `many` is False.

    Memory: the right table stays in memory; one new column per right column asked for.

    Example:
        >>> import pandas as pd
        >>> weather = pd.DataFrame({"origin": ["JFK", "LGA"], "temp": [39.0, 41.0]})
        >>> Join(weather, on="origin").transform(pd.DataFrame({"origin": ["LGA", None]}))["temp"].tolist()
        [41.0, nan]
    """

    def __init__(
        self,
        right: Any,
        *,
        on: Names | None = None,
        left_on: Names | None = None,
        right_on: Names | None = None,
        how: Literal["left", "inner"] = "left",
        columns: Names | None = None,
        suffix: str = "_right",
        many: bool = False,
        name: str | None = None,
    ) -> None:
        check_names(self, None, empty=False, on=on, left_on=left_on, right_on=right_on)
        check_choice(self, ("left", "inner"), how=how)
        check_bool(self, many=many)
        self.on, self.left_on, self.right_on, self.how, self.many = on, left_on, right_on, how, many
        self.changes_rows, self.adds_rows = many or how == "inner", many
        super().__init__(right, columns, suffix, name)

    def _sides(self) -> tuple[list[str], list[str]]:
        left, right = get_sides(self.on, self.left_on, self.right_on, self, "on")
        return as_list(left), as_list(right)

    def output_schema(self, schema: Schema) -> Schema:
        self._check_keys(schema)
        return schema.assign(self._added_fields(schema))

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        names = {name: out for name, out in self._names_out(schema).items() if out in outputs}
        if not names and not self.changes_rows:
            return frame
        if self.many:
            table = self._prepare_once(backend.name, lambda: self.table(backend))
            return self._merged(frame, table, names, backend)
        columns, lookup = self._prepare_once(backend.name, lambda: self._prepare(backend))
        rows = lookup.find({key: backend.column(frame, key) for key in self.keys}, backend)
        unmatched = rows < 0
        self._count(unmatched)
        if self.how == "inner":
            frame, rows = backend.filter(frame, ~unmatched), rows[~unmatched]
        return _take_rows(frame, rows, columns, names, backend)

    def _merged(self, frame: Frame, table: Frame, names: Mapping[str, str], backend: Backend) -> Frame:
        """Return every pair of rows with equal keys; those of two types or names in columns of their own."""
        left, right = frame, backend.rename(backend.select(table, [*self.right_keys, *names]), names)
        on: list[str] = []
        for key, other in zip(self.keys, self.right_keys, strict=True):
            left_column, right_column = backend.column(left, key), backend.column(table, other)
            on.append(key if left_column.dtype == right_column.dtype and key == other else f"⟨key⟩ {key}")
            if on[-1] != key:
                dtype = key_dtype({left_column.dtype, right_column.dtype})
                left = backend.assign(left, {on[-1]: as_key(left_column, dtype, backend.xp)})
                right = backend.assign(right, {on[-1]: as_key(right_column, dtype, backend.xp)})
        if on == self.keys:
            return backend.merge(frame, right, on, self.how, self.suffix)
        merged = backend.merge(left, backend.select(right, [*on, *names.values()]), on, self.how, self.suffix)
        return backend.select(merged, [*frame.columns, *names.values()])

    def _names_out(self, left: Schema) -> dict[str, str]:
        return {name: out for name, out in super()._names_out(left).items() if name not in self.right_keys}

    def _prepare(self, backend: Backend) -> tuple[dict[str, Column], Lookup]:
        table = self.table(backend)
        keys = {key: backend.column(table, name) for key, name in zip(self.keys, self.right_keys, strict=True)}
        lookup = Lookup(keys, backend, self._where, "many=True, which merges without a lookup table")
        return _with_missing_rows(table, backend), lookup


class JoinAsOf(TableJoin):
    """Join the last row of a table that was known at a row's time; pandas' `merge_asof`, of rows in any order.

    Every row of the left stays, in its place. A right row is known from its own time on, or `lag` later; of several of
    one time the last one counts. Nothing of a later time is joined, so that features are what was known then.

    The right row's time is left out, as its keys are, unless `columns` names it: to count the hours since then, name it
    there, or copy it before, `right.assign(at="time")` of a Dataset.

    Args:
        right, columns, suffix, name: as for `Join`; for a table larger than memory there is `Dataset.join_asof`.
        on: the column of times or numbers, named alike on both sides. A missing one matches nothing.
        left_on, right_on: the same where it has another name here than in the table.
        by: key columns that have to be equal, as `on` of `Join`.
        left_by, right_by: the same where they have other names here than in the table.
        tolerance: how old a right row may be, by its own time: a number, or of times a timedelta or text as `"2h"`.
        lag: how much later a right row becomes known, in the same way: a day's sums are known a day after it began.
        allow_exact_matches: whether a right row that becomes known at the row's own time matches.

    Raises:
        SchemaMismatch: `on` holds no times or numbers, or types that no one type holds; keys as for `Join`.
        BadConfig: as for `Join`; a tolerance or a lag below 0 or of another kind than `on`.
        BadData: the right table has no rows.
        LeakageError: at `fit`: a feature is made of a target's column in the learned table, without a `lag` or
            `allow_exact_matches=False`, which leave the row's own time out; or with other columns of that table for
            `left_on` and `right_on`, of which nobody knows which is earlier: see `Features(allow_leak=)`.

    Memory: the right table stays in memory, sorted; four arrays of n int64, and one new column per right column.

    Example:
        >>> import pandas as pd
        >>> weather = pd.DataFrame({"hour": [9, 6], "temp": [41.0, 39.0]})
        >>> JoinAsOf(weather, on="hour").transform(pd.DataFrame({"hour": [8, 9, 5]}))["temp"].tolist()
        [39.0, 41.0, nan]
    """

    _num_times = 1

    def __init__(
        self,
        right: Any,
        *,
        on: str | None = None,
        left_on: str | None = None,
        right_on: str | None = None,
        by: Names | None = None,
        left_by: Names | None = None,
        right_by: Names | None = None,
        tolerance: float | str | timedelta | None = None,
        lag: float | str | timedelta | None = None,
        allow_exact_matches: bool = True,
        columns: Names | None = None,
        suffix: str = "_right",
        name: str | None = None,
    ) -> None:
        check_name(self, None, on=on, left_on=left_on, right_on=right_on)
        check_names(self, None, by=by, left_by=left_by, right_by=right_by)
        check_bool(self, allow_exact_matches=allow_exact_matches)
        for parameter, value in {"tolerance": tolerance, "lag": lag}.items():
            check_distance(value, f"JoinAsOf({parameter}=)")
        self.on, self.left_on, self.right_on = on, left_on, right_on
        self.by, self.left_by, self.right_by = by, left_by, right_by
        self.tolerance, self.lag = _text(tolerance), _text(lag)
        self.allow_exact_matches = allow_exact_matches
        super().__init__(right, columns, suffix, name)

    def _sides(self) -> tuple[list[str], list[str]]:
        left_time, right_time = get_sides(self.on, self.left_on, self.right_on, self, "on")
        by = self.by, self.left_by, self.right_by
        left, right = ([], []) if all(names is None for names in by) else get_sides(*by, self, "by")
        return [left_time, *as_list(left)], [right_time, *as_list(right)]

    def output_schema(self, schema: Schema) -> Schema:
        self._check_keys(schema, 1)
        self._distances(self._order_dtype(schema))
        return schema.assign(self._added_fields(schema))

    def explain_no_match(self) -> str:
        of_times = f"are times of {self.right_keys[0]!r} on the right early enough?"
        return of_times if len(self.keys) == 1 else f"{super().explain_no_match()} And {of_times}"

    def _order_dtype(self, left: Schema) -> str:
        return order_dtype(left[self.keys[0]], self.right_schema[self.right_keys[0]], self._where)

    def _distances(self, dtype: str) -> list[Distance | None]:
        """Convert tolerance and lag to the units of the type that orders rows."""
        lengths = {"tolerance": self.tolerance, "lag": self.lag}
        return [convert_distance(value, dtype, f"JoinAsOf({name}=)") for name, value in lengths.items()]

    def _look_up(self, origins: Origins, left: Schema, left_origins: Origins) -> Origins:
        origins = pick(origins)
        if is_in_other_order(origins, self.right_schema[self.right_keys[0]].origins):
            return shift(origins, *ANY_ROW)
        return shift(origins, When.BEFORE if self._excludes_own_time(left) else When.NOW)

    def _excludes_own_time(self, left: Schema) -> bool:
        return not self.allow_exact_matches or bool(self._distances(self._order_dtype(left))[1])

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        names = {name: out for name, out in self._names_out(schema).items() if out in outputs}
        if not names:
            return frame
        columns, history = self._prepared(self._order_dtype(schema), backend)
        time, *keys = self.keys
        rows = history.find(backend.column(frame, time), {key: backend.column(frame, key) for key in keys})
        self._count(rows < 0)
        return _take_rows(frame, rows, columns, names, backend)

    def list_times(self, schema: Schema, backend: Backend) -> Array:
        """List the times at which rows of the table become known, distinct and ascending."""
        return self._prepared(self._order_dtype(schema), backend)[1].times

    def _prepared(self, dtype: str, backend: Backend) -> tuple[dict[str, Column], _History]:
        prepared: tuple[dict[str, Column], _History]
        prepared = self._prepare_once(f"{backend.name}, {dtype}", lambda: self._prepare(dtype, backend))
        return prepared

    def _prepare(self, dtype: str, backend: Backend) -> tuple[dict[str, Column], _History]:
        table = self.table(backend)
        if not len(table):
            problem, remedy = "the right table has no rows", "a look at its files or its filter"
            raise BadData(self._where, problem, expected="rows to match", remedy=remedy)
        tolerance, lag = self._distances(dtype)
        pairs = zip(self.keys[1:], self.right_keys[1:], strict=True)
        keys = {key: backend.column(table, name) for key, name in pairs}
        rules = lag or 0, tolerance, self.allow_exact_matches
        history = _History(backend.column(table, self.right_keys[0]), keys, dtype, rules, backend, self._where)
        return _with_missing_rows(table, backend), history


_Rules: TypeAlias = tuple[Distance, Distance | None, bool]  # lag, tolerance, and whether equal times match


class _History:
    """Index of a table by key, and of each key's rows by the time from which they are known."""

    def __init__(
        self, on: Column, keys: Mapping[str, Column], dtype: str, rules: _Rules, backend: Backend, where: str
    ) -> None:
        xp, (lag, self._tolerance, exact) = backend.xp, rules
        self._dtype, self._backend = dtype, backend
        self._side = "right" if exact else "left"
        self._lookup, groups = None, xp.zeros(len(on), dtype="int64")
        if keys:
            grouping = group_by_keys(list(keys.values()), backend)
            examples = {name: key.take(grouping.examples) for name, key in keys.items()}
            remedy = "Dataset.join_asof(...), which takes any numbers"
            self._lookup, groups = Lookup(examples, backend, where, remedy), grouping.ids
        times, is_present = _to_comparable(on, dtype, xp)
        if dtype != "float64":  # what becomes known beyond the last time there is never does
            is_present = is_present & (times <= np.iinfo(times.dtype).max - lag)
        rows = xp.flatnonzero(is_present)
        starts = times[rows] + times.dtype.type(lag)
        self.times = sort_unique(starts, xp)
        places = groups[rows] * (len(self.times) + 1) + xp.searchsorted(self.times, starts)
        order = xp.argsort(places, kind="stable")
        # One more, that no row finds, for a list of at least one.
        self._places = xp.append(places[order], np.iinfo(np.int64).max)
        self._rows = xp.append(rows[order], -1)
        self._row_times = xp.append(times[rows][order], times.dtype.type(0))

    def find(self, on: Column, keys: Mapping[str, Column]) -> Array:
        """Return n row numbers of the table, -1 where none is known."""
        xp = self._backend.xp
        times, is_match = _to_comparable(on, self._dtype, xp)
        groups = xp.zeros(len(on), dtype="int64") if self._lookup is None else self._lookup.find(keys, self._backend)
        first = groups * (len(self.times) + 1)
        rank = xp.searchsorted(self.times, times, side=self._side) - 1
        positions = xp.searchsorted(self._places, first + rank, side="right") - 1
        is_match = is_match & (groups >= 0) & (rank >= 0) & (self._places[positions] >= first) & (positions >= 0)
        if self._tolerance is not None:
            distance = times - self._row_times[positions]
            # Differences are taken modulo 2^64, in which one from an earlier number is exact.
            distance = distance if self._dtype == "float64" else distance.view("uint64")
            is_match &= distance <= distance.dtype.type(self._tolerance)
        return xp.where(is_match, self._rows[positions], -1)


def _to_comparable(column: Column, dtype: str, xp: Any) -> tuple[Array, Array]:
    """Return the n times in the type they are compared in, and a mask of those that are not missing."""
    kind = "int64" if dtype == "timestamp" else dtype
    missing = column.missing(xp)
    is_present = xp.ones(len(column), dtype=bool) if missing is None else ~missing
    return column.data.astype(kind), is_present


def _text(length: Any) -> Any:
    """Write a length of time as text, which can be saved; a number stays one."""
    microseconds = None if isinstance(length, str) else parse_duration_us(length, least=0)
    return length if microseconds is None else f"{microseconds}us"
