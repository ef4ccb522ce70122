"""Hashing and random bits: functions of a seed and the value alone, equal on both backends and any partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.schema import FLOATS

_STEP = 0x9E3779B97F4A7C15
_MISSING = np.uint64(0x2545F4914F6CDD1D)  # any one value: all missing rows belong together
_CHUNK = 1 << 16
_SHUFFLE = -1  # counter of the seed of a shuffle, apart from those of draws


def splitmix64(seed: int, counters: Array) -> Array:
    """Draw 64 well mixed bits for each counter, distinct for distinct counters.

    The seed is mixed before the counters are added to it, so that neighbouring seeds give independent streams, and no
    shifted copies of each other; seed 0 gives the published stream.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    Args:
        seed: any integer.
        counters: n integers, NumPy or CuPy; row numbers, for instance.

    Memory: three arrays of n uint64 at a time.

    Example:
        >>> splitmix64(0, np.arange(2))
        array([16294208416658607535,  7960286522194355700], dtype=uint64)
    """
    return _mix_bits((counters.astype("uint64") + np.uint64(1)) * np.uint64(_STEP) + mix_seed(seed))


def shuffle_bits(seed: int, row_ids: Array) -> Array:
    """Draw 64 distinct random bits for each row: the sort key of a shuffled table.

    Example:
        >>> len(np.unique(shuffle_bits(7, np.arange(1000))))
        1000
    """
    return splitmix64(shuffle_seed(seed), row_ids)


def shuffle_seed(seed: int) -> int:
    """Derive the seed of the bits that a table is shuffled by."""
    return int(splitmix64(seed, np.array([_SHUFFLE]))[0])


def mix_seed(seed: int) -> np.uint64:
    """Mix a seed to the start of its `splitmix64` stream.

    Example:
        >>> mix_seed(0)
        np.uint64(0)
    """
    start: np.uint64 = _mix_bits(np.array([int(seed) % 2**64], dtype=np.uint64))[0]
    return start


def _mix_bits(bits: Array) -> Array:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def hash_column(column: Column, seed: int, backend: Backend) -> Array:
    """Hash each value of a column to 64 bits; all missing values have one hash.

    An integer has the same bits in any width. Strings are hashed once per distinct value, on the host.

    Memory: four arrays of n uint64 at a time.

    Example:
        >>> from gpupipe.backend import select
        >>> one, same, other = hash_column(Column("int8", np.array([7, 7, 9], "int8")), 0, select("cpu"))
        >>> one == same, one == other
        (np.True_, np.False_)
    """
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
    """Hash each string to a uint64, on the host: a polynomial in its UTF-8 bytes.

    Memory: 32 bytes per byte of text, a chunk of 65,536 strings at a time.

    Example:
        >>> hash_strings(pa.array(["a", "", "ba"], pa.large_string())).tolist()[1]
        0
    """
    chunks = [_hash_chunk(values.slice(start, _CHUNK)) for start in range(0, len(values), _CHUNK)]
    return np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.uint64)


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
