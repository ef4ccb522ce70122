"""Columns of another table, found by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from threading import Lock
from typing import Any, Literal, Self

from gpupipe.backend import Backend, Column, Frame, backend_of, is_frame, select
from gpupipe.backend.arrow import fields_of
from gpupipe.backend.columns import as_key, key_dtype, require_comparable, require_comparable_times, with_missing_row
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.validation import check_bool, check_choice, check_name, check_names, refuse_argument
from gpupipe.transforms.lookup import Lookup
from gpupipe.transforms.transform import Transform
from gpupipe.words import as_list

__all__ = ["Join"]


class Join(Transform):
    """Join a table on equal keys: a lookup that keeps the rows and their order, or with `many=True` a general merge.

    Args:
        right: the table, a Dataset, a frame, or another library's that `from_frame` takes. It is read once, and has to
            fit in memory.
        on: the key column or columns, named alike on both sides. A missing key matches nothing; numbers match by
            value, whatever their types.
        how: `"left"` keeps every row, `"inner"` those with a match (predictions then have the surviving rows only).
        columns: the right columns to add; all but the keys by default.
        suffix: put behind the name of a right column that the left has too. Names on the left never change.
        many: whether a key may stand in several right rows; a row of the left then comes out once per match.
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
        if hasattr(right, "__arrow_c_stream__") and hasattr(right, "schema") and not _is_dataset(right):
            right = select("cpu").from_arrow(*fields_of(right, "Join"))
        if not (_is_dataset(right) or is_frame(right)):
            raise refuse_argument(self, "right", right, "a Dataset or a frame", "gp.from_frame(right)")
        check_names(self, empty=False, on=on)
        check_choice(self, ("left", "inner"), how=how)
        check_names(self, None, columns=columns)
        check_name(self, suffix=suffix)
        check_bool(self, many=many)
        check_name(self, None, name=name)
        self.right = right
        self.on = as_list(on)
        self.how = how
        self.columns = None if columns is None else as_list(columns)
        self.suffix = suffix
        self.many = many
        self.name = name or "_".join(self.on)
        self.changes_rows = many or how == "inner"
        self.when = "always"
        self._lock = Lock()
        self._tables: dict[str, tuple[Frame, Lookup | None]] = {}
        self._schema: Schema | None = None
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        """Without what every process makes for itself."""
        return self.__dict__ | {"_lock": None, "_tables": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": Lock()}

    def __copy__(self) -> Self:
        """Shares the prepared table, but not the count."""
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        return made

    def reset(self) -> None:
        """Begin the count of unmatched rows anew."""
        self.rows_seen_ = 0
        self.rows_unmatched_ = 0

    @property
    def unmatched_share(self) -> float:
        """The share of rows seen since the last `fit` (or load) that had no match on the right; 0 before any."""
        return self.rows_unmatched_ / self.rows_seen_ if self.rows_seen_ else 0.0

    def output_schema(self, schema: Schema) -> Schema:
        right = self.right_schema
        schema.require(self.on, f"{self._where} left")
        right.require([*self.on, *(self.columns or ())], f"{self._where} right")
        require_comparable(schema.select(self.on), f"{self._where} left")
        for key in self.on:
            if _family(schema[key]) != _family(right[key]):
                raise SchemaMismatch(
                    self._where,
                    f"key {key!r} is {schema[key].dtype} on the left and {right[key].dtype} on the right",
                    expected="the same type on both sides, or two types of numbers",
                    remedy=f"Cast({{{key!r}: {right[key].dtype!r}}}) before the join",
                )
            require_comparable_times(schema[key], right[key], f"{self._where}, left and right")
        names = self._names_out(schema)
        self._check_unique(names, schema)
        keys = [schema[key] for key in self.on]
        return schema.assign(
            Field.derived(
                out, right[name].dtype, [*keys, self._source(right[name])], "Join", written_as=right[name].written_as
            )
            for name, out in names.items()
        )

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
        with self._lock:
            self.rows_seen_ += len(frame)
            self.rows_unmatched_ += int(unmatched.sum())
        if self.how == "inner":
            frame, rows = backend.filter(frame, ~unmatched), rows[~unmatched]
        return backend.assign(frame, {out: _gathered(backend.column(table, name), rows) for name, out in asked.items()})

    def _merged(self, frame: Frame, table: Frame, asked: Mapping[str, str], backend: Backend) -> Frame:
        """Every pair of rows with equal keys; keys of two types are compared in columns of their own."""
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

    @property
    def right_schema(self) -> Schema:
        """The schema of the right table."""
        if self._schema is None:
            if _is_dataset(self.right):
                self._schema = self.right.schema
            else:
                backend = backend_of(self.right)
                names = [*self.on, *self.columns] if self.columns is not None else list(self.right.columns)
                right = backend.select(self.right, [name for name in names if name in self.right.columns])
                self._schema = backend.schema_of(backend.encode(right), backend.classify(right))
        return self._schema

    def table(self, backend: Backend) -> Frame:
        """The right table as a coded frame: the keys and the columns the join adds."""
        names = [*self.on, *self._names_out(Schema())]
        if _is_dataset(self.right):
            return backend.concat([self.right.read(part, names, backend) for part in self.right.partitions])
        owner = backend_of(self.right)
        frame = owner.encode(owner.select(self.right, names))
        if owner.name == backend.name:
            return frame
        return backend.from_arrow(owner.to_arrow(frame), list(self.right_schema.select(names)))

    @property
    def _where(self) -> str:
        return f"Join({self.name!r})"

    def _source(self, item: Field) -> Field:
        """A right column as the start of a lineage of its own."""
        return replace(item, lineage=frozenset({f"{self.name}.{item.name}"}))

    def _names_out(self, left: Schema) -> dict[str, str]:
        """The right columns that are added, and their names in the result."""
        chosen = self.columns if self.columns is not None else self.right_schema.names
        return {name: name + self.suffix if name in left else name for name in chosen if name not in self.on}

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

    def _prepared(self, backend: Backend) -> tuple[Frame, Lookup | None]:
        with self._lock:
            if backend.name not in self._tables:
                table = self.table(backend)
                if self.many:
                    self._tables[backend.name] = table, None
                else:
                    keys = {key: backend.column(table, key) for key in self.on}
                    lookup = Lookup(keys, backend, self._where)
                    extended = {n: with_missing_row(backend.column(table, n), backend.xp) for n in table.columns}
                    self._tables[backend.name] = backend.frame(extended, len(table) + 1), lookup
            return self._tables[backend.name]


def _is_dataset(table: Any) -> bool:
    return hasattr(table, "partitions") and hasattr(table, "read")


def _family(item: Field) -> str:
    """Types whose values can be compared: all numbers."""
    return "number" if item.dtype in (*INTEGERS, *FLOATS) else item.dtype


def _gathered(column: Column, rows: Any) -> Column:
    """The column's values at these rows, missing at -1, without a mask where all are there."""
    taken = column.take(rows)
    if taken.valid is not None and bool(taken.valid.all()):
        return replace(taken, valid=None)
    return taken
