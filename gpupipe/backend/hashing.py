"""Hashing and random bits, functions of a seed and the value alone, equal on both backends; indexes of integer keys."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.schema import FLOATS

_STEP = 0x9E3779B97F4A7C15
_MISSING = np.uint64(0x2545F4914F6CDD1D)  # any one value: all missing rows belong together
_CHUNK = 1 << 16
_SHUFFLE = -1  # counter of the seed of a shuffle, apart from those of draws
# Keys that span at most this many values, or twice as many as there are, are found by direct address (4 bytes each).
_DIRECT_SPAN = 1 << 22


@cache
def load_loops() -> Any:
    """Import the compiled loops on first use: Numba takes half a second to import."""
    return import_module("gpupipe.backend.numba_kernels")


def splitmix64(seed: int, counters: Array) -> Array:
    """Draw 64 well mixed bits for each counter, distinct for distinct counters.

    The seed is mixed before the counters are added to it, so that neighbouring seeds give independent streams, and no
    shifted copies of each other; seed 0 gives the published stream.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    return _mix_bits((counters.astype("uint64") + np.uint64(1)) * np.uint64(_STEP) + mix_seed(seed))


def shuffle_seed(seed: int) -> int:
    """Derive the seed of the 64 bits, distinct for each row, that a table is shuffled by."""
    return int(splitmix64(seed, np.array([_SHUFFLE]))[0])


def mix_seed(seed: int) -> np.uint64:
    """Mix a seed to the start of its `splitmix64` stream."""
    return np.uint64(_mix_bits(np.array([int(seed) % 2**64], dtype=np.uint64))[0])


def _mix_bits(bits: Array) -> Array:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def hash_column(column: Column, seed: int, backend: Backend) -> Array:
    """Hash each value of a column to 64 bits: an integer alike in any width, all missing values to one hash."""
    xp = backend.xp
    if column.dictionary is not None:
        table = backend.to_device(np.append(hash_strings(column.dictionary), _MISSING))
        return splitmix64(seed, table[column.data])
    if column.dtype in FLOATS:
        bits = (column.data.astype("float64") + 0.0).view("uint64")  # -0.0 becomes 0.0
    else:
        bits = column.data.astype("int64").view("uint64")
    missing = column.missing(xp)
    return splitmix64(seed, bits if missing is None else xp.where(missing, _MISSING, bits))


def hash_strings(values: pa.LargeStringArray) -> Any:
    """Hash each string to a uint64, on the host: a polynomial in its UTF-8 bytes."""
    chunks = [_hash_chunk(values.slice(start, _CHUNK)) for start in range(0, len(values), _CHUNK)]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *chunks])


def _hash_chunk(values: pa.LargeStringArray) -> Any:
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    if data_buffer is None or offsets[-1] == offsets[0]:
        return np.zeros(len(values), dtype=np.uint64)
    text = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    lengths = np.diff(offsets)
    powers = np.cumprod(np.full(lengths.max(), _STEP, dtype=np.uint64))
    if lengths.min() == len(powers):  # identifiers, mostly: a table with a row for each
        return text.reshape(len(values), -1).astype(np.uint64) @ powers + powers.sum()
    places = np.arange(len(text)) - np.repeat(offsets[:-1], lengths)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((text + np.uint64(1)) * powers[places])])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def count_keys(parts: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Add the counts of equal keys, on the host: the distinct keys in order of first appearance, and their sums."""
    loops = load_loops()
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
    """Index of distinct int64 or uint64: by direct address, by a compiled hash table, on a GPU by binary search."""

    def __init__(self, keys: Any) -> None:
        self._keys = np.ascontiguousarray(keys)
        self._low = self._keys.min() if len(keys) else self._keys.dtype.type(0)
        self._span = int(self._keys.max()) - int(self._low) + 1 if len(keys) else 0
        self._is_direct = self._span <= max(_DIRECT_SPAN, 2 * len(keys))

    def positions(self, wanted: Array, backend: Backend) -> Array:
        """Find the position of each integer among the keys, int32; -1 if it is absent."""
        xp = backend.xp
        if xp is np:
            return self.find(wanted)
        if self._is_direct:
            return backend.to_device(self._table)[self._offsets(wanted, xp)]
        order, ordered = map(backend.to_device, self._sorted)
        place = xp.minimum(xp.searchsorted(ordered, wanted), len(ordered) - 1)
        return xp.where(ordered[place] == wanted, order[place], np.int32(-1))

    def find(self, wanted: Any) -> Any:
        """Find the positions of integers on the host, as `positions`."""
        if self._is_direct:
            return self._table[self._offsets(wanted, np)]
        keys, wanted = self._keys.view(np.int64), np.ascontiguousarray(wanted).view(np.int64)
        return load_loops().find_keys(self._slots, keys, wanted)

    def _offsets(self, wanted: Array, xp: ModuleType) -> Array:
        # As unsigned numbers values below the lowest are large, like those beyond the span: all find the last.
        return xp.minimum((wanted - self._low).view("uint64"), np.uint64(self._span)).view("int64")

    @cached_property
    def _table(self) -> Any:
        table = np.full(self._span + 1, -1, dtype=np.int32)
        table[(self._keys - self._low).astype(np.int64)] = np.arange(len(self._keys))
        return table

    @cached_property
    def _sorted(self) -> tuple[Any, Any]:
        order = np.argsort(self._keys).astype(np.int32)
        return order, self._keys[order]

    @cached_property
    def _slots(self) -> Any:
        return load_loops().build_slots(self._keys.view(np.int64), len(self._keys))
