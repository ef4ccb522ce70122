"""Vocabulary lookup: from values to ids, prepared once for a vocabulary and used for every partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, find_positions, find_positions_by_hash, index_hashes, value_type
from gpupipe.backend.hashing import hash_column, hash_strings, splitmix64
from gpupipe.backend.key_index import KeyIndex
from gpupipe.errors import SchemaMismatch
from gpupipe.preprocessing.numeric import row_blocks
from gpupipe.preprocessing.summaries.counts import integers

__all__ = [
    "FIRST",
    "MISSING",
    "MOST_BUCKETS",
    "UNKNOWN",
    "Lookup",
    "Lookups",
    "assign_buckets",
    "make_lookup",
    "take_values",
]

MISSING, UNKNOWN, FIRST = 0, 1, 2

# An id is an int32.
MOST_BUCKETS = 2**31 - 1 - FIRST

# Beyond this many strings the vocabulary is not hashed again for every partition.
_RESIDENT = 1 << 16


class Lookup(Protocol):
    """Base class of lookups in one prepared vocabulary."""

    vocabulary: Dictionary

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0) -> Array:
        """Return n int32: 0 missing, 1 not in the vocabulary, 2 and up by the position in it.

        With buckets, what is not in the vocabulary has one of the `num_buckets` ids behind it, by its hash.
        """

    def gathered(self, column: Column, table: Any, backend: Backend) -> Array:
        """Return `table[ids]` for a table on the host, of the table's type."""


def make_lookup(vocabulary: Dictionary, *, text: bool) -> Lookup:
    """Prepare a vocabulary.

    Memory: for numbers 12 bytes per value or 4 per value of a dense range; for more than 65,536 strings 16 each.
    """
    return _TextLookup(vocabulary) if text else _NumberLookup(vocabulary)


class Lookups:
    """Cache of a step's lookups by column name; every process, and every copy, prepares its own."""

    def __init__(self) -> None:
        self._prepared: dict[str, Lookup] = {}

    def of(self, name: str, column: Column, vocabulary: Dictionary, dtype: str, where: str) -> Lookup:
        """Return the lookup in a vocabulary learned from a column of type `dtype`, prepared once.

        Raises:
            SchemaMismatch: the column holds text where numbers were learned, or the other way round.
        """
        if value_type(column.dtype) != value_type(dtype):
            raise SchemaMismatch(
                f"{where}, column {name!r}",
                "another type than in fit",
                got=column.dtype,
                expected=dtype,
                remedy=f"Cast({{{name!r}: {dtype!r}}})",
            )
        found = self._prepared.get(name)
        if found is None or found.vocabulary is not vocabulary:
            same = [item for item in list(self._prepared.values()) if item.vocabulary is vocabulary]
            found = self._prepared[name] = same[0] if same else make_lookup(vocabulary, text=dtype == "string")
        return found

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def assign_buckets(bits: Array, num_buckets: int) -> Array:
    """Return the bucket of each 64 well mixed bits, int32 from 0 up."""
    return (bits % np.uint64(num_buckets)).astype("int32")


def take_values(places: Array, vocabulary: Dictionary, dtype: str, backend: Backend) -> Column:
    """Return the vocabulary's values at these positions (integers), missing where a position is outside it."""
    known = (places >= 0) & (places < len(vocabulary))
    places = backend.xp.where(known, places, -1).astype("int32")
    if dtype == "string":
        return Column(dtype, places, None, vocabulary)
    values = vocabulary.to_numpy()
    values = np.append(values, values.dtype.type(0)).astype(dtype)
    return Column(dtype, backend.to_device(values)[places], known)


class _TextLookup:
    """Lookup of text: one search per distinct string of a partition, on the host, and one gather."""

    def __init__(self, vocabulary: Dictionary) -> None:
        self.vocabulary = vocabulary
        self._index = index_hashes(vocabulary) if len(vocabulary) > _RESIDENT else None

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0) -> Array:
        assert column.dictionary is not None
        ids = self._ids_of(column.dictionary)
        if num_buckets:
            unknown = np.flatnonzero(ids == UNKNOWN)
            bits = splitmix64(0, hash_strings(column.dictionary.take(unknown)))
            ids[unknown] = assign_buckets(bits, num_buckets) + (len(self.vocabulary) + FIRST)
        return _by_code(column, ids, backend)

    def gathered(self, column: Column, table: Any, backend: Backend) -> Array:
        assert column.dictionary is not None
        return _by_code(column, table[self._ids_of(column.dictionary)], backend)

    def _ids_of(self, dictionary: Dictionary) -> Any:
        """Return the id of each distinct string, and of a missing one."""
        if self._index is None:
            places = find_positions(dictionary, self.vocabulary)
        else:
            places = find_positions_by_hash(dictionary, self.vocabulary, self._index)
        return np.append(np.where(places < 0, UNKNOWN, places + FIRST), MISSING).astype(np.int32)


def _by_code(column: Column, values: Any, backend: Backend) -> Array:
    """Return, for each row, the value of its entry of the dictionary, or that of a missing string."""
    table = backend.to_device(values)
    out = backend.xp.empty(len(column), dtype=values.dtype)
    for rows in row_blocks(len(column), backend):
        out[rows] = table[column.data[rows]]
    return out


class _NumberLookup:
    """Lookup of numbers: a search for each number of a partition."""

    def __init__(self, vocabulary: Dictionary) -> None:
        self.vocabulary = vocabulary
        self._index = KeyIndex(vocabulary.to_numpy())

    def ids(self, column: Column, backend: Backend, num_buckets: int = 0) -> Array:
        xp = backend.xp
        out = xp.empty(len(column), dtype="int32")
        for rows, found in self._blocks(column, backend):
            out[rows] = found
            if num_buckets:
                bucket = assign_buckets(hash_column(column.take(rows), 0, backend), num_buckets)
                out[rows] = xp.where(found == UNKNOWN, bucket + (len(self.vocabulary) + FIRST), found)
        return out

    def gathered(self, column: Column, table: Any, backend: Backend) -> Array:
        device = backend.to_device(table)
        out = backend.xp.empty(len(column), dtype=table.dtype)
        for rows, found in self._blocks(column, backend):
            out[rows] = device[found]
        return out

    def _blocks(self, column: Column, backend: Backend) -> Iterator[tuple[slice, Array]]:
        """Yield blocks of rows and their ids."""
        for rows in row_blocks(len(column), backend):
            places = self._index.positions(integers(column.data[rows], column.dtype), backend)
            found = places + np.int32(FIRST)  # of one that is not there, at -1, UNKNOWN
            if column.valid is not None:
                found[~column.valid[rows]] = MISSING
            yield rows, found
