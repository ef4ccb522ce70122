"""Index of integer keys: direct addressing, compiled hash tables on a CPU, binary search on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from gpupipe.backend.protocol import Array, Backend

_LOOPS = "gpupipe.backend.numba_kernels"

# Keys that span at most this many values, or twice as many as there are, are found by direct address (4 bytes each).
_DIRECT_SPAN = 1 << 22


def count_keys(parts: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Add the counts of equal keys, on the host: the distinct keys in order of first appearance, and their sums.

    Args:
        parts: pairs of n keys, int64 or uint64, and their counts, n int64 or one for all.

    Memory: 24 to 48 bytes a distinct key, and as much for each key of the largest part.

    Example:
        >>> keys, counts = count_keys([(np.array([7, 9]), np.array([1, 2])), (np.array([7]), np.array([3]))])
        >>> keys.tolist(), counts.tolist()
        ([7, 9], [4, 2])
    """
    loops: Any = import_module(_LOOPS)
    known, sums, slots, found, dtype = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), 0, np.int64
    for keys, counts in parts:
        dtype, room = keys.dtype, found + len(keys)
        if room > len(known):
            room = max(room, found * 3 // 2)  # many small parts would be copied each time
            known, sums = (np.concatenate([item[:found], np.empty(room - found, np.int64)]) for item in (known, sums))
            slots = loops.build_slots(known[:found], room)
        found = loops.add_up(slots, known, sums, found, np.ascontiguousarray(keys).view(np.int64), counts)
    return known[:found].view(dtype).copy(), sums[:found].copy()


class KeyIndex:
    """Index of distinct integer keys.

    Args:
        keys: n distinct int64 or uint64, on the host.

    Memory: 4 bytes for each value that the keys span where those are few; else, on a CPU, 8 to 16 bytes a key from the
        first search on, and on a GPU 12, copied to the device at each search.

    Example:
        >>> from gpupipe.backend import select
        >>> KeyIndex(np.array([30, 10, 20])).positions(np.array([20, 7]), select("cpu")).tolist()
        [2, -1]
    """

    def __init__(self, keys: Any) -> None:
        self._keys = np.ascontiguousarray(keys)
        self._low = self._keys.min() if len(keys) else self._keys.dtype.type(0)
        self._span = int(self._keys.max()) - int(self._low) + 1 if len(keys) else 0
        self._is_direct = self._span <= max(_DIRECT_SPAN, 2 * len(keys))

    def positions(self, wanted: Array, backend: Backend) -> Array:
        """Find the position of each integer among the keys, int32; -1 if it is absent.

        Args:
            wanted: m integers of the keys' type.
            backend: whose arrays they are.
        """
        xp = backend.xp
        if xp is np:
            return self.find(wanted)
        if self._is_direct:
            return backend.to_device(self._table)[self._offsets(wanted, xp)]
        order, ordered = (backend.to_device(item) for item in self._sorted)
        place = xp.minimum(xp.searchsorted(ordered, wanted), len(ordered) - 1)
        return xp.where(ordered[place] == wanted, order[place], np.int32(-1))

    def find(self, wanted: Any) -> Any:
        """Find the positions of integers on the host, as `positions`."""
        if self._is_direct:
            return self._table[self._offsets(wanted, np)]
        loops: Any = import_module(_LOOPS)
        return loops.find_keys(self._slots, self._keys.view(np.int64), np.ascontiguousarray(wanted).view(np.int64))

    def _offsets(self, wanted: Array, xp: ModuleType) -> Array:
        # As unsigned numbers values below the lowest are large, like those beyond the span: all find the last.
        return xp.minimum((wanted - self._low).view("uint64"), np.uint64(self._span)).view("int64")

    @cached_property
    def _table(self) -> Any:
        table = np.full(self._span + 1, -1, dtype=np.int32)
        table[(self._keys - self._low).astype(np.int64)] = np.arange(len(self._keys))
        return table

    @cached_property
    def _slots(self) -> Any:
        loops: Any = import_module(_LOOPS)
        return loops.build_slots(self._keys.view(np.int64), len(self._keys))

    @cached_property
    def _sorted(self) -> tuple[Any, Any]:
        order = np.argsort(self._keys).astype(np.int32)
        return order, self._keys[order]
