"""Group summaries, merged over partitions: a row for each group of keys; and the group of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.aggregates import State, aggregate_rows, compute_result, merge_states
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, find_positions, sort_values
from gpupipe.backend.key_index import KeyIndex
from gpupipe.backend.sorting import Groups, group_by_keys
from gpupipe.errors import ColumnNotFound
from gpupipe.preprocessing.categories import FIRST, MISSING, check_categories
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, any_true, refuse
from gpupipe.preprocessing.summaries.target_stats import encode_values
from gpupipe.schema import FLOATS, INTEGERS, Field
from gpupipe.support.text import derive


def key_field(fields: Sequence[Field], name: str, where: str) -> Field:
    """Return the field of that name; `ColumnNotFound` or `SchemaMismatch` where it cannot be a group key."""
    found = [item for item in fields if item.name == name]
    if not found:
        raise ColumnNotFound.among(f"{where}(by=...)", name, [item.name for item in fields])
    of_lists = f"T.{derive(name, 'len({})', f'{name}_length')} and by={f'{name}_length'!r}"
    check_categories(found, where, "groups", of_lists)
    return found[0]


class GroupKeys:
    """Group index by the ids of the keys (N x K integers from 0, below `sizes`), no two rows alike.

    The first key's id is a code; its place among the codes there are, with the next key's id, makes another one, and so
    on: no number is ever larger than the groups times the ids of one key.
    """

    def __init__(self, ids: Any, sizes: Sequence[int]) -> None:
        self._sizes, self._levels = sizes, list[KeyIndex]()
        place = np.zeros(len(ids), dtype=np.int64)
        for number, size in enumerate(sizes):
            codes, place = np.unique(place * size + ids[:, number], return_inverse=True)
            self._levels.append(KeyIndex(codes))
        self._groups = np.full(len(ids) + 1, len(ids), dtype=np.int64)
        self._groups[place] = np.arange(len(ids))  # the groups keep the order they were given in

    def places(self, ids: Sequence[Array], backend: Backend) -> Array:
        """Return the group of each row, the number of groups where it has none."""
        place: Any = 0
        for column, size, level in zip(ids, self._sizes, self._levels, strict=True):
            # After a code that is not there (-1) the next one is below 0, and is not there either.
            place = level.positions((place * size + column).astype("int64"), backend).astype("int64")
        return backend.to_device(self._groups)[place]


# Parts wait to be merged until together they have this many groups.
_WAITING = 1 << 18


@dataclass(frozen=True)
class GroupTable:
    """Group-by table: the groups by their keys, where missing values are alike, and the statistics of their values.

    The parts are Arrow tables on the host, in each of which a group occurs once.
    """

    keys: tuple[Field, ...]
    states: tuple[State, ...]
    parts: tuple[Any, ...]

    @classmethod
    def of(cls, columns: Columns, by: Sequence[str], states: Sequence[State], backend: Backend) -> Self:
        """Group the rows of one partition."""
        values = {state.column: _numbers(columns[state.column], backend) for state in states}
        keys = {name: columns[name] for name in by}
        frame = backend.frame(values | keys, len(columns[by[0]]))
        found = aggregate_rows(frame, group_by_keys(list(keys.values()), backend), by, states, backend)
        fields = tuple(Field(name, columns[name].dtype) for name in by)
        return cls(fields, tuple(states), (backend.to_arrow(found),))

    @classmethod
    def of_pairs(cls, columns: Columns, by: Sequence[str], name: str, backend: Backend) -> Self:
        """Count the rows of one partition by group and value of a column, missing ones apart."""
        missing = columns[name].missing(backend.xp)
        there = {key: columns[key] if missing is None else columns[key].take(~missing) for key in (*by, name)}
        return cls.of(there, [*by, name], [State("size", by[0])], backend)

    def __add__(self, other: Self) -> Self:
        parts = (*self.parts, *other.parts)
        sizes = [64 + part.num_rows for part in parts]
        both = replace(self, parts=parts)
        if sum(sizes) <= max(_WAITING, 2 * max(sizes)):
            return both
        return replace(self, parts=(select("cpu").to_arrow(both.merged()),))

    def merged(self) -> Frame:
        """Return a row for each group, on the host."""
        cpu, fields = select("cpu"), [*self.keys, *(state.field(Field("", "float64")) for state in self.states)]
        frame = cpu.concat([cpu.from_arrow(part, fields) for part in self.parts])
        names = [item.name for item in self.keys]
        groups = group_by_keys([cpu.column(frame, name) for name in names], cpu)
        return merge_states(frame, groups, names, self.states, cpu)

    def overall(self, merged: Frame) -> Frame:
        """Return one row for all groups together, or none where there is none."""
        size = len(merged)
        everything = Groups(np.zeros(size, dtype=np.int64), np.full(min(size, 1), size), np)
        return merge_states(merged, everything, [], self.states, select("cpu"))


def _numbers(column: Column, backend: Backend) -> Column:
    """Return columns to sum as float64; text and times, which can only be counted, unchanged."""
    is_number = column.dtype in (*FLOATS, *INTEGERS, "bool")
    return Column("float64", floats(column, backend.xp)) if is_number else column


@dataclass(frozen=True)
class GroupTables:
    """Summary of groups by the same keys, in several tables."""

    names: tuple[str, ...]
    key_dtypes: tuple[str, ...]
    tables: tuple[GroupTable, ...]

    def __add__(self, other: Self) -> Self:
        return replace(self, tables=tuple(a + b for a, b in zip(self.tables, other.tables, strict=True)))


def learn_ids(column: Column) -> tuple[Any, Dictionary]:
    """Return the id of each value of a column on the host (see `categories`), and the distinct values in order."""
    codes, values = encode_values(column, select("cpu"))
    vocabulary = sort_values(values.take(np.unique(codes[codes < len(values)])))
    return np.append(find_positions(values, vocabulary) + FIRST, MISSING)[codes], vocabulary


def compute_statistic(function: str, table: Frame, name: str) -> Any:
    """Return a function of a column's values in each group of a merged table, as float64."""
    return floats(compute_result(function, table, Field(name, "float64"), select("cpu")), np)


def check_sizes(columns: Columns, backend: Backend, where: str) -> None:
    """Raise `BadData` for an infinity, or a value beyond 1e145."""
    blocks = (floats(column, backend.xp) for column in columns.values())
    if any_true([(backend.xp.abs(values) > LARGEST_SQUARED).any() for values in blocks], backend):
        refuse(columns, backend, where, too_large="a value is too large to be squared")
