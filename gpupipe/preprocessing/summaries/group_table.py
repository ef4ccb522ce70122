"""Group-by table: a row for each group, with one or several keys, merged over partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gpupipe.backend import Backend, Column, Frame, select
from gpupipe.backend.aggregates import State, aggregate_rows, merge_states
from gpupipe.backend.sorting import Groups, group_by_keys
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import floats
from gpupipe.schema import FLOATS, INTEGERS, Field

__all__ = ["GroupTable"]

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
        cpu, fields = select("cpu"), [*self.keys, *(state.field(Field("", "float64")) for state in self.states)]
        frame = cpu.concat([cpu.from_arrow(part, fields) for part in self.parts])
        names = [item.name for item in self.keys]
        return merge_states(
            frame, group_by_keys([cpu.column(frame, name) for name in names], cpu), names, self.states, cpu
        )

    def overall(self, merged: Frame) -> Frame:
        """Return one row for all groups together, or none where there is none."""
        size = len(merged)
        everything = Groups(np.zeros(size, dtype=np.int64), np.full(min(size, 1), size), np)
        return merge_states(merged, everything, [], self.states, select("cpu"))


def _numbers(column: Column, backend: Backend) -> Column:
    """Return columns to sum as float64; text and times, which can only be counted, unchanged."""
    is_number = column.dtype in (*FLOATS, *INTEGERS, "bool")
    return Column("float64", floats(column, backend.xp)) if is_number else column
