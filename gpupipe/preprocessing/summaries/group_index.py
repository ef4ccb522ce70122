"""Group index: the learned group of each row by the values of its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend
from gpupipe.backend.key_index import KeyIndex
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.schema import INTEGERS, Field, Kind
from gpupipe.support.text import derive

__all__ = ["GroupKeys", "key_field"]


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
