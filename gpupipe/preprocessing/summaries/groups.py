"""Group summaries, merged over partitions: a row for each group of keys, medians, modes; and the group of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, find_positions, unite_dictionaries
from gpupipe.backend.groups import Groups, State, aggregate_rows, group_by_keys, merge_states
from gpupipe.backend.hashing import KeyIndex
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind
from gpupipe.support.text import derive


def key_field(fields: Sequence[Field], name: str, where: str) -> Field:
    """Return the field of that name; `ColumnNotFound` or `SchemaMismatch` where it cannot be a group key."""
    found = [item for item in fields if item.name == name]
    if not found:
        raise ColumnNotFound.among(f"{where}(by=...)", name, [item.name for item in fields])
    if found[0].dtype not in ("string", "bool", *INTEGERS):
        raise SchemaMismatch(
            f"{where}, column {name!r}",
            "its values are no groups",
            got=found[0].dtype,
            expected="strings, integers or booleans",
            remedy=f"T.{derive(name, 'len({})', f'{name}_length')} and by={f'{name}_length'!r}"
            if found[0].kind == Kind.LIST
            else f"Cast({{{name!r}: 'int64'}}) for whole numbers",
        )
    return found[0]


class GroupKeys:
    """Group index by the ids of the keys.

    The first key's id is a code; its place among the codes there are, with the next key's id, makes another one, and so
    on: no number is ever larger than the groups times the ids of one key.

    Args:
        ids: of the keys of each group, N x K integers from 0; no two rows are alike.
        sizes: of each key, one more than the largest id there is.

    Example:
        >>> from gpupipe.backend import select
        >>> keys = GroupKeys(np.array([[2, 3], [3, 2]]), [4, 4])
        >>> keys.places([np.array([3, 2, 3]), np.array([2, 3, 3])], select("cpu")).tolist()
        [1, 0, 2]
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
        """Return the group of each row, the number of groups where it has none.

        Memory: four arrays of n int64 at a time.
        """
        place: Any = 0
        for column, size, level in zip(ids, self._sizes, self._levels, strict=True):
            # After a code that is not there (-1) the next one is below 0, and is not there either.
            place = level.positions((place * size + column).astype("int64"), backend).astype("int64")
        return backend.to_device(self._groups)[place]


# Parts wait to be merged until together they have this many groups.
_WAITING = 1 << 18


@dataclass(frozen=True)
class GroupTable:
    """Group-by table: the groups, and the statistics of each one's values.

    Args:
        keys: the columns in which the rows of a group are alike; two missing values are alike.
        states: what is known of each group, numbers as float64.
        parts: Arrow tables on the host, in each of which a group occurs once.
    """

    keys: tuple[Field, ...]
    states: tuple[State, ...]
    parts: tuple[Any, ...]

    @classmethod
    def of(cls, columns: Columns, by: Sequence[str], states: Sequence[State], backend: Backend) -> Self:
        """Group the rows of one partition.

        Memory: the values as float64, and three arrays of 8 bytes a row at a time; a row per group goes to the host.
        """
        values = {state.column: _numbers(columns[state.column], backend) for state in states}
        keys = {name: columns[name] for name in by}
        frame = backend.frame(values | keys, len(columns[by[0]]))
        table = backend.to_arrow(
            aggregate_rows(frame, group_by_keys(list(keys.values()), backend), by, states, backend)
        )
        return cls(tuple(Field(name, columns[name].dtype) for name in by), tuple(states), (table,))

    def __add__(self, other: Self) -> Self:
        parts = (*self.parts, *other.parts)
        sizes = [64 + part.num_rows for part in parts]
        both = replace(self, parts=parts)
        if sum(sizes) <= max(_WAITING, 2 * max(sizes)):
            return both
        return replace(self, parts=(select("cpu").to_arrow(both.merged()),))

    def merged(self) -> Frame:
        """Return a row for each group, on the host."""
        cpu, fields = select("cpu"), [*self.keys, *(state.field for state in self.states)]
        frame = cpu.concat([cpu.from_arrow(part, fields) for part in self.parts])
        names = [item.name for item in self.keys]
        groups = group_by_keys([cpu.column(frame, name) for name in names], cpu)
        return merge_states(frame, groups, names, self.states)

    def overall(self, merged: Frame) -> Frame:
        """Return one row for all groups together, or none where there is none."""
        size = len(merged)
        everything = Groups(np.zeros(size, dtype=np.int64), np.full(min(size, 1), size), np)
        return merge_states(merged, everything, [], self.states)


def _numbers(column: Column, backend: Backend) -> Column:
    """Return columns to sum as float64; text and times, which can only be counted, unchanged."""
    is_number = column.dtype in (*FLOATS, *INTEGERS, "bool")
    return Column("float64", floats(column, backend.xp)) if is_number else column


@dataclass(frozen=True)
class GroupedValues:
    """Value counts by group of one column: distinct pairs of group and value, in that order.

    Args:
        categories: the N groups.
        places: of each pair's group, P int64; N where the group is missing.
        values: P float64.
        counts: rows, P int64.
    """

    categories: Dictionary
    places: Any
    values: Any
    counts: Any

    @classmethod
    def of(cls, codes: Array, categories: Dictionary, values: Array, backend: Backend) -> Self:
        """Count the pairs of one partition, for values without missing ones.

        Memory: four arrays of n numbers on the device; the distinct pairs go to the host.
        """
        xp = backend.xp
        values = values + 0.0  # both zeros are one value
        order = xp.lexsort(xp.stack([values, codes.astype("float64")]))
        codes, values = codes[order], values[order]
        first = xp.append(
            xp.ones(min(len(codes), 1), dtype=bool), (codes[1:] != codes[:-1]) | (values[1:] != values[:-1])
        )
        starts = xp.flatnonzero(first)
        counts = xp.diff(xp.append(starts, len(codes)))
        places, values, counts = (backend.to_host(item) for item in (codes[starts], values[starts], counts))
        used, places = np.unique(np.append(places, len(categories)).astype(np.int64), return_inverse=True)
        return cls(categories.take(used[:-1]), places[:-1], values, counts.astype(np.int64))

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Merge the pairs of all parts."""
        categories = unite_dictionaries([part.categories for part in parts])
        size = len(categories)
        moved = [np.append(find_positions(part.categories, categories), size)[part.places] for part in parts]
        places = np.concatenate(moved).astype(np.int64)
        values, counts = (np.concatenate(item) for item in zip(*((p.values, p.counts) for p in parts), strict=True))
        order = np.lexsort([values, places])
        places, values, counts = places[order], values[order], counts[order]
        last = np.flatnonzero(np.append((places[1:] != places[:-1]) | (values[1:] != values[:-1]), True)[: len(places)])
        return cls(categories, places[last], values[last], np.diff(np.cumsum(counts)[last], prepend=0))

    def overall(self) -> Self:
        """Return the pairs with all rows in one group, the first."""
        alone = type(self)(self.categories[:0], np.zeros_like(self.places), self.values, self.counts)
        return type(self).merged([alone])

    def statistics(self, strategy: str) -> Any:
        """Return the `"median"` or the least `"most_frequent"` value of each group: N + 1 float64."""
        size = len(self.categories) + 1
        made = np.full(size, np.nan)
        if strategy == "most_frequent":
            order = np.lexsort([self.values, -self.counts, self.places])
            groups, first = np.unique(self.places[order], return_index=True)
            made[groups] = self.values[order][first]
            return made
        total = np.bincount(self.places, weights=self.counts, minlength=size).astype(np.int64)
        start, ends = np.cumsum(total) - total, np.cumsum(self.counts)
        there = total > 0
        ranks = [(start + (total - 1) // 2)[there], (start + total // 2)[there]]
        below, above = (self.values[np.searchsorted(ends, rank, side="right")] for rank in ranks)
        made[there] = below + (above - below) / 2
        return made
