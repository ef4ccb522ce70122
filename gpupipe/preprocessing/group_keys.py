"""The group of each row by the values of its keys, for groups learned before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend
from gpupipe.backend.dictionaries import searched
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.schema import INTEGERS, Field

__all__ = ["GroupKeys", "key_field"]

# Codes are looked up by direct address where they span at most this many (4 bytes each).
_DIRECT_SPAN = 1 << 22


def key_field(fields: Sequence[Field], name: str, where: str) -> Field:
    """The field of that name; `ColumnNotFound` or `SchemaMismatch` where rows cannot be grouped by it."""
    found = [item for item in fields if item.name == name]
    if not found:
        raise ColumnNotFound.among(f"{where}(by=...)", name, [item.name for item in fields])
    if found[0].dtype not in ("string", "bool", *INTEGERS):
        raise SchemaMismatch(
            f"{where}, column {name!r}",
            "its values are no groups",
            got=found[0].dtype,
            expected="strings, integers or booleans",
            remedy=f"Cast({{{name!r}: 'int64'}}) for whole numbers",
        )
    return found[0]


class GroupKeys:
    """Groups by the ids of their keys.

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
        self._sizes, self._levels = sizes, []
        place = np.zeros(len(ids), dtype=np.int64)
        for number, size in enumerate(sizes):
            codes, place = np.unique(place * size + ids[:, number], return_inverse=True)
            self._levels.append(_Level.of(codes, np.arange(len(codes))))
        group = np.empty(len(ids), dtype=np.int64)
        group[place] = np.arange(len(ids))  # the groups keep the order they were given in
        self._levels[-1] = _Level.of(codes, group)

    def places(self, ids: Sequence[Array], backend: Backend) -> Array:
        """The group of each row, the number of groups where it is of none.

        Memory: four arrays of n int64 at a time.
        """
        place: Any = 0
        for column, size, level in zip(ids, self._sizes, self._levels, strict=True):
            place = level.places(place * size + column, backend)
        return place


@dataclass(frozen=True)
class _Level:
    """Codes and what stands for each; their number stands for any other."""

    codes: Any
    values: Any
    table: Any | None

    @classmethod
    def of(cls, codes: Any, values: Any) -> _Level:
        span = int(codes[-1]) + 1 if len(codes) else 0
        if span > max(_DIRECT_SPAN, 2 * len(codes)):
            return cls(codes, values, None)
        table = np.full(span + 1, len(codes), dtype=np.int32)
        table[codes] = values
        return cls(codes, values, table)

    def places(self, codes: Array, backend: Backend) -> Array:
        xp = backend.xp
        if self.table is not None:
            return backend.to_device(self.table)[xp.minimum(codes, len(self.table) - 1)].astype("int64")
        known = backend.to_device(self.codes)
        found = xp.minimum(searched(known, codes, xp), len(known) - 1)
        return xp.where(known[found] == codes, backend.to_device(self.values)[found], len(known))
