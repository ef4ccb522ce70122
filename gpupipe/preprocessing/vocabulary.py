"""Values to their ids: what is prepared once for a vocabulary, and asked for every partition."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, positions_by_hash, positions_in, searched, sorted_hashes
from gpupipe.preprocessing.blocks import row_blocks
from gpupipe.preprocessing.counts import integers

__all__ = ["FIRST", "MISSING", "UNKNOWN", "Lookup", "lookup_of"]

MISSING, UNKNOWN, FIRST = 0, 1, 2

# Integers are looked up by direct address where the vocabulary spans at most this many values (4 bytes each).
_DIRECT_SPAN = 1 << 22

# Beyond this many strings the vocabulary is not hashed again for every partition.
_RESIDENT = 1 << 16


class Lookup(Protocol):
    """One vocabulary, prepared."""

    vocabulary: Dictionary

    def ids(self, column: Column, backend: Backend) -> Array:
        """n int32: 0 missing, 1 not in the vocabulary, 2 and up by the place in it."""


def lookup_of(vocabulary: Dictionary, *, text: bool) -> Lookup:
    """Prepare a vocabulary.

    Memory: for numbers 12 bytes per value or 4 per value of a dense range; for more than 65,536 strings 16 each.
    """
    return _TextLookup(vocabulary) if text else _NumberLookup(vocabulary)


class _TextLookup:
    """One search per distinct string of a partition, on the host, and one gather."""

    def __init__(self, vocabulary: Dictionary) -> None:
        self.vocabulary = vocabulary
        self._hashes = sorted_hashes(vocabulary) if len(vocabulary) > _RESIDENT else None

    def ids(self, column: Column, backend: Backend) -> Array:
        assert column.dictionary is not None
        if self._hashes is None:
            places = positions_in(column.dictionary, self.vocabulary)
        else:
            places = positions_by_hash(column.dictionary, self.vocabulary, self._hashes)
        ids = np.append(np.where(places < 0, UNKNOWN, places + FIRST), MISSING)
        table = backend.to_device(ids.astype(np.int32))
        out = backend.xp.empty(len(column), dtype="int32")
        for rows in row_blocks(len(column), backend):
            out[rows] = table[column.data[rows]]
        return out


class _NumberLookup:
    """A gather from a table of direct addresses; a search among the sorted values where they lie too far apart."""

    def __init__(self, vocabulary: Dictionary) -> None:
        self.vocabulary = vocabulary
        values = vocabulary.to_numpy()
        order = np.argsort(values)
        self._ordered = values[order]
        self._ids = (order + FIRST).astype(np.int32)
        self._span = int(self._ordered[-1]) - int(self._ordered[0]) + 1 if len(values) else 0
        self._is_direct = self._span <= _DIRECT_SPAN
        if self._is_direct:
            table = np.full(self._span + 1, UNKNOWN, dtype=np.int32)
            if len(values):
                table[(self._ordered - self._ordered[0]).astype(np.int64)] = self._ids
            self._ids = table

    def ids(self, column: Column, backend: Backend) -> Array:
        xp = backend.xp
        ids, ordered = backend.to_device(self._ids), backend.to_device(self._ordered)
        low: Any = self._ordered[0] if self._span else 0
        out = xp.empty(len(column), dtype="int32")
        # A search through more values than a cache holds goes faster for many rows at once.
        for rows in row_blocks(len(column), backend) if self._is_direct else [slice(0, len(column))]:
            block = integers(column.data[rows], column.dtype)
            if self._is_direct:
                # As unsigned numbers values below `low` are large, like those beyond the span: all land on the last.
                offset = xp.minimum((block - block.dtype.type(low)).view("uint64"), np.uint64(self._span))
                out[rows] = ids[offset.view("int64")]
            else:
                place = xp.minimum(searched(ordered, block, xp), len(ordered) - 1)
                out[rows] = xp.where(ordered[place] == block, ids[place], np.int32(UNKNOWN))
            if column.valid is not None:
                out[rows][~column.valid[rows]] = MISSING
        return out
