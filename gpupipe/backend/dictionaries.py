"""Arrow arrays of distinct values without nulls, on the host: union, merged counts, lookup of one in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow import combine
from gpupipe.backend.kernels import KeyIndex, count_keys, hash_strings, sort_unique, splitmix64
from gpupipe.errors import BadFile
from gpupipe.files import ScratchFolder
from gpupipe.schema import FLOATS

Dictionary: TypeAlias = pa.Array
_BUCKETS, _FILE = 64, "counts.arrow"


def is_dictionary(value: object) -> bool:
    """Return whether an object can be a dictionary: an Arrow array without nulls."""
    return isinstance(value, pa.Array) and not value.null_count


def strings(values: Any) -> Dictionary:
    """Build a dictionary of strings from a list, or from the categories of a pandas column."""
    return combine(pa.array(values, pa.large_string()))  # pandas gives no chunk for no value


def value_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a column's distinct values: the widest of their kind."""
    wide = {"string": pa.large_string(), "uint64": pa.uint64(), **dict.fromkeys(FLOATS, pa.float64())}
    return wide.get(dtype, pa.int64())


def make_dictionary(values: Any, dtype: str) -> Dictionary:
    """Build a dictionary from a column's distinct values (a list, or a NumPy or Arrow array)."""
    if isinstance(values, pa.Array):
        return values.cast(value_type(dtype))
    return pa.array(np.asarray(values).astype(value_type(dtype).to_pandas_dtype(), copy=False), value_type(dtype))


def parse_values(values: Any, dtype: str) -> tuple[Dictionary, bool]:
    """Parse the values a user lists for a column, in their order, and whether missing is one of them."""
    if isinstance(values, str) or not hasattr(values, "__getitem__"):
        raise TypeError("no list; a set has no order, and what is gone through once is empty the next time")
    # Arrow guesses the type, but for integers that only uint64 can hold.
    guess = pa.uint64() if dtype == "uint64" and isinstance(values, list | tuple) else None
    array = combine(values if isinstance(values, pa.Array) else pa.array(values, guess, from_pandas=True))
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    tests = {"string": (pa.types.is_string, pa.types.is_large_string), "bool": (pa.types.is_boolean,)}
    # A list of integers with a NaN comes as floats.
    fits = any(test(array.type) for test in tests.get(dtype, (pa.types.is_integer, pa.types.is_floating)))
    if not fits and array.null_count < len(array):
        raise TypeError(f"{array.type} for a column of type {dtype}")
    present = array.drop_null()
    return present.cast(value_type(dtype)), len(present) < len(array)


def get_bits(values: Dictionary) -> Any:
    """Return 64 bits of each value, a string's hash; distinct for distinct numbers."""
    return hash_strings(values) if pa.types.is_large_string(values.type) else values.to_numpy().view("uint64")


def unite_dictionaries(dictionaries: Sequence[Dictionary]) -> Dictionary:
    """Compute the union of dictionaries of one type, in order of first appearance."""
    return pc.unique(dictionaries[0] if len(dictionaries) == 1 else pa.concat_arrays(dictionaries))


def sort_values(values: Dictionary) -> Dictionary:
    """Sort values in ascending order, each once."""
    distinct = pc.unique(values)
    return distinct.take(pc.array_sort_indices(distinct))


def merge_counts(parts: Sequence[tuple[Dictionary, Any]]) -> tuple[Dictionary, Any]:
    """Merge value counts: the distinct values with the sums of their counts (int64), in an unspecified order."""
    if len(parts) == 1:
        return parts[0][0], np.asarray(parts[0][1], dtype=np.int64)
    if pa.types.is_integer(parts[0][0].type):
        keys, sums = count_keys((values.to_numpy(), counts) for values, counts in parts)
        return pa.array(keys), sums
    encoded = pa.concat_arrays([values for values, _ in parts]).dictionary_encode()
    sums = np.zeros(len(encoded.dictionary), dtype=np.int64)
    np.add.at(sums, encoded.indices.to_numpy(), np.concatenate([counts for _, counts in parts]))
    return encoded.dictionary, sums


def filter_frequent(values: Dictionary, counts: Any, min_count: int) -> tuple[Dictionary, Any]:
    """Filter values that occur at least `min_count` times, with their counts."""
    mask = counts >= min_count
    return (values, counts) if mask.all() else (values.filter(pa.array(mask)), counts[mask])


def find_positions(values: Dictionary, vocabulary: Dictionary) -> Any:
    """Find the position of each value in `vocabulary` (int64 NumPy array), -1 if it is absent."""
    indices = pc.index_in(values, value_set=vocabulary.cast(values.type))
    return indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)


def find_known(values: Dictionary, vocabulary: Dictionary) -> Any:
    """Find which of distinct values are in `vocabulary`, as NumPy booleans; only the shorter of both is hashed."""
    if len(vocabulary) <= len(values):
        return find_positions(values, vocabulary) >= 0
    positions, is_known = find_positions(vocabulary, values), np.zeros(len(values), dtype=bool)
    is_known[positions[positions >= 0]] = True
    return is_known


def index_hashes(vocabulary: Dictionary) -> KeyIndex | None:
    """Index strings by their hashes, for `find_positions_by_hash`; None if two strings have the same hash."""
    hashes = hash_strings(vocabulary)
    return KeyIndex(hashes) if len(sort_unique(hashes, np)) == len(hashes) else None


def find_positions_by_hash(values: Dictionary, vocabulary: Dictionary, index: KeyIndex) -> Any:
    """Find the position of each string as `find_positions` does, in time that grows with `values` alone."""
    positions = index.find(hash_strings(values)).astype(np.int64)
    near = vocabulary.take(pa.array(np.maximum(positions, 0)))  # another string may have the same hash
    same = pc.equal(near, values.cast(vocabulary.type)).to_numpy(zero_copy_only=False)
    return np.where(same, positions, -1)


def sort_by_count(values: Dictionary, counts: Any) -> tuple[Dictionary, Any]:
    """Sort values and counts by count descending, then value ascending."""
    if pa.types.is_integer(values.type) and len(values):
        wide = pa.uint64() if pa.types.is_uint64(values.type) else pa.int64()
        numbers, most = values.cast(wide).to_numpy(), int(counts.max())
        low = numbers.min()
        width = (int(numbers.max()) - int(low)).bit_length()
        # One number has both keys, which NumPy sorts ten times as fast as Arrow two: the count's distance from the
        # greatest, then the value's from the least. Values 7, 5, 9 of counts 2, 3, 3 are (1, 2), (0, 0), (0, 4), in
        # bits 1010, 0000 and 0100; in ascending order they are 5, 9, 7.
        if width + most.bit_length() < 64:
            ranks = (most - counts).astype(np.uint64) << np.uint64(width) | (numbers - low).astype(np.uint64)
            ranks.sort()
            offsets = ranks & np.uint64((1 << width) - 1)
            ordered = pa.array(offsets.astype(numbers.dtype) + low).cast(values.type)
            return ordered, most - (ranks >> np.uint64(width)).astype(np.int64)
    table = pa.table({"value": values, "count": counts})
    order = pc.sort_indices(table, sort_keys=[("count", "descending"), ("value", "ascending")])
    return values.take(order), np.asarray(counts)[order.to_numpy()]


@dataclass(frozen=True)
class SpilledCounts:
    """Spilled value counts: files of values and counts, each in buckets by the values' hashes."""

    runs: tuple[ScratchFolder, ...] = field(default=(), repr=False)  # of which each goes with the last object it is in

    def with_run(self, values: Dictionary, counts: Any) -> Self:
        """Write distinct values (Arrow) and their counts (int64) to a new file."""
        bits = get_bits(values)
        buckets = (splitmix64(0, bits) >> np.uint64(58)).astype(np.int64)  # 64 of them
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=_BUCKETS))
        batch = pa.record_batch({"value": values.take(pa.array(order)), "count": pa.array(np.asarray(counts)[order])})
        folder = ScratchFolder()
        try:
            with pa.ipc.new_file(str(folder.path / _FILE), batch.schema) as file:
                for start, end in zip([0, *ends[:-1]], ends, strict=True):
                    file.write_batch(batch.slice(start, end - start))
        except OSError as cause:
            problem = f"distinct values cannot be set down there ({cause})"
            expected = f"room for {batch.nbytes:,} bytes more"
            remedy = "TMPDIR= or gp.configure(scratch=...) with a larger disk, or min_frequency= and fewer columns"
            raise BadFile(str(folder.path), problem, expected=expected, remedy=remedy) from cause
        return type(self)((*self.runs, folder))

    def __add__(self, other: Self) -> Self:
        return type(self)((*self.runs, *other.runs))

    def merge(self, min_count: int) -> tuple[Dictionary, Any]:
        """Merge the files: the distinct values that occur at least `min_count` times and their counts, unordered."""
        files = [pa.ipc.open_file(pa.memory_map(str(folder.path / _FILE))) for folder in self.runs]
        buckets = []
        for bucket in range(_BUCKETS):
            batches = [file.get_batch(bucket) for file in files]
            parts = [(batch["value"], batch["count"].to_numpy()) for batch in batches]
            buckets.append(filter_frequent(*merge_counts(parts), min_count))
        values, counts = zip(*buckets, strict=True)
        return pa.concat_arrays(values), np.concatenate(counts)
