"""Join with another table on equal keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.columns import (
    as_key,
    key_dtype,
    one_key_type,
    require_comparable,
    require_comparable_times,
    with_missing_row,
)
from gpupipe.errors import SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_bool, check_choice, check_names
from gpupipe.transforms.lookup import Lookup
from gpupipe.transforms.table_join import TableJoin, take_or_missing

__all__ = ["Join"]


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
        right = self.right_schema
        schema.require(self.on, f"{self._where} left")
        self._require_right()
        require_comparable(schema.select(self.on), f"{self._where} left")
        for key in self.on:
            if _family(schema[key]) != _family(right[key]):
                raise SchemaMismatch(
                    self._where,
                    f"key {key!r} is {schema[key].dtype} on the left and {right[key].dtype} on the right",
                    expected="the same type on both sides, or two types of numbers",
                    remedy=one_key_type(schema[key], right[key]),
                )
            require_comparable_times(schema[key], right[key], f"{self._where}, left and right")
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


def _family(item: Field) -> str:
    """Return the class of types that a type can be compared with: all numbers are one."""
    return "number" if item.dtype in (*INTEGERS, *FLOATS) else item.dtype
