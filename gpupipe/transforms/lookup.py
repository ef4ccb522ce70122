"""Key lookup in a small table with unique keys: integer arithmetic and one gather, in the rows' order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import whole_numbers
from gpupipe.backend.dictionaries import Dictionary, find_positions
from gpupipe.errors import BadConfig, BadData

__all__ = ["Lookup"]

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

    Args:
        keys: the table's key columns by name, R rows; no two rows may have the same key. Rows with a missing key are
            never found.
        where: the step, for error messages.
        remedy: for keys that a lookup table cannot hold.

    Raises:
        BadData: several rows have the same key.
        BadConfig: a key that is a fraction, infinite or a float beyond int64, or keys that span 2^62 combinations.

    Memory: one int32 per possible key (direct) or 12 bytes per row of the table (sorted), on the device. Keys go to the
    host once.
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
