"""Kernels for whole columns: learned steps as programs, moments, scaling, filling, hashing, and indexes of integers.

Hashes and random bits are functions of a seed and the value alone, equal on both backends. Of floats NaN is missing; a
loop on a CPU and array code on a GPU give the same up to a sum's last digits. A sum is vectorised only if it may be
added up in another order (`reassoc`); nothing else about floats is relaxed, for NaN is a missing value, and infinities
are refused later. The least and the greatest float are found among integers that have the same order, because vectors
of floats have no minimum that passes over NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gpupipe.backend.columns import Array, Backend, Column, RawColumn, gather
from gpupipe.backend.compiled import Loop, compile_loop, inline
from gpupipe.schema import FLOATS

_ORDER = ("fill", "clip", "log", "scale")
_STEP = 0x9E3779B97F4A7C15
_MISSING = np.uint64(0x2545F4914F6CDD1D)  # any one value: all missing rows belong together
_CHUNK = 1 << 16
_FEW_DRAWS = 32
_SHUFFLE = -1  # counter of the seed of a shuffle, apart from those of draws
# Keys that span at most this many values, or twice as many as there are, are found by direct address (4 bytes each).
_DIRECT_SPAN = 1 << 22
_ALL_BUT_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_INFINITY = np.int64(0x7FF0_0000_0000_0000)  # what is above it, without its sign, is NaN


@dataclass(frozen=True, slots=True)
class Scale:
    """Affine scaling: `(x - offset) / divisor * multiplier + shift`, clipped to `low` and `high`."""

    offset: float
    divisor: float
    multiplier: float = 1.0
    shift: float = 0.0
    low: float = -inf
    high: float = inf

    @property
    def moves(self) -> bool:
        """Whether the scale does more than subtract and divide."""
        return (self.multiplier, self.shift, self.low, self.high) != (1.0, 0.0, -inf, inf)


@dataclass(frozen=True, slots=True)
class ElementwiseProgram:
    """Elementwise program: fill, clip, log1p, scale, in this order; each part may be absent.

    It is computed in float64 and gives the bits that the steps give one after the other: where a step in the middle
    rounds to float32, as a logarithm does, so does its part. `dtype` is what the steps store the result as.
    """

    fill: float | None = None
    clip: tuple[float, float] | None = None
    log: bool = False
    scale: Scale | None = None
    dtype: str = "float32"

    @property
    def parts(self) -> list[str]:
        """The names of the present parts, in order."""
        values = {name: getattr(self, name) for name in _ORDER}
        return [name for name, part in values.items() if part is not None and part is not False]

    def then(self, after: ElementwiseProgram) -> ElementwiseProgram | None:
        """Combine both programs into one; None if that is not the order of the parts."""
        first, second = self.parts, after.parts
        if first and second and _ORDER.index(first[-1]) >= _ORDER.index(second[0]):
            return None
        return replace(self, dtype=after.dtype, **{name: getattr(after, name) for name in second})


class DeferredColumn(Column):
    """Deferred column: its numbers are computed by the steps on first access; to any reader a column like others.

    The fused kernel uses `source` and `program` instead, and never computes the column. The program fills missing
    values, or returns floats.
    """

    source: RawColumn
    program: ElementwiseProgram
    _compute: Callable[[], Column]

    def __init__(self, source: RawColumn, program: ElementwiseProgram, compute: Callable[[], Column]) -> None:
        attributes = {"dtype": program.dtype, "source": source, "program": program, "_compute": compute}
        for name, value in (attributes | dict.fromkeys(("valid", "dictionary", "elements"))).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.source.data)

    def __reduce__(self) -> tuple[type[Column], tuple[str, Array]]:
        """Pickle the numbers only: the source and the program are larger."""
        return Column, (self.dtype, self.data)

    def __repr__(self) -> str:
        return f"DeferredColumn({self.source!r}, {self.program!r})"

    @cached_property
    def data(self) -> Array:
        return self._compute().data


def split_program(column: Column) -> tuple[RawColumn, ElementwiseProgram]:
    """Return the stored values of a column and the program that is still to be run on them; compute nothing."""
    if isinstance(column, DeferredColumn):
        return column.source, column.program
    return RawColumn(column.data), ElementwiseProgram()


def find_bounds(block: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Compute the number of missing values, the min and the max of n float64 (+inf and -inf if all are missing)."""
    if xp is np:
        missing, low, high, *_ = compute_moments(block, xp, 0.0)
        return missing, low, high
    absent = xp.isnan(block)
    low, high = xp.where(absent, xp.inf, block).min(), xp.where(absent, -xp.inf, block).max()
    return xp.count_nonzero(absent), low, high


def compute_moments(block: Array, xp: ModuleType, centre: float) -> tuple[Any, ...]:
    """Compute missing values, min and max as `find_bounds`, and sum and sum of squares of the values less `centre`."""
    if xp is np:
        missing, *figures = compute_moments_each(block[None], np.array([centre]), max(len(block), 1))[0, 0].tolist()
        return int(missing), *figures
    deviations = block - centre
    xp.copyto(deviations, 0.0, where=xp.isnan(deviations))
    return *find_bounds(block, xp), deviations.sum(), deviations.dot(deviations)


def compute_moments_each(values: Array, centres: Array, size: int) -> Array:
    """Compute the moments of blocks of each row of k x n float64 on a CPU, as `compute_moments` given k centres.

    Returns B x k x 5 for B blocks of at most `size` numbers, one where there are none.
    """
    blocks = np.ascontiguousarray(values)
    table = np.empty((max(-(-blocks.shape[1] // size), 1), len(blocks), 5))
    _sum_blocks(table, table.view(np.int64), blocks, blocks.view(np.int64), np.ascontiguousarray(centres), size)
    return table


def scale_into(out: Array, block: Array, by: Scale, xp: ModuleType) -> Any:
    """Scale n float64 into float32, and return whether one of them is infinite."""
    if xp is np:
        offsets, divisors = np.array([[by.offset], [by.divisor]], dtype=np.float64)
        return scale_each(out[None], block[None], offsets, divisors, by)
    number = (block - by.offset) / by.divisor
    if by.moves:
        number *= by.multiplier
        number += by.shift
        number = xp.clip(number, by.low, by.high)
    out[:] = number
    return xp.isinf(out).any()


def scale_each(out: Array, blocks: Array, offsets: Array, divisors: Array, by: Scale) -> bool:
    """Scale each row of k x n float64 on a CPU, as `scale_into`, with k offsets and divisors; the rest from `by`."""
    # A range may be of whole numbers, for which the loop would be compiled once more.
    parameters = map(float, (by.multiplier, by.shift, by.low, by.high))
    return _write(_scale_rows, out, np.ascontiguousarray(blocks), offsets, divisors, by.moves, *parameters)


def fill_into(out: Array, values: Array, instead: Array, xp: ModuleType) -> Any:
    """Write n floats, on a CPU also k rows of them, missing ones as `instead`; return whether one is infinite."""
    if xp is np:
        fill_values = np.atleast_1d(instead).astype(values.dtype)
        return _write(_fill_rows, np.atleast_2d(out), np.ascontiguousarray(np.atleast_2d(values)), fill_values)
    out[:] = values
    xp.copyto(out, out.dtype.type(instead), where=xp.isnan(out))
    return xp.isinf(out).any()


class GroupedFloats(NamedTuple):
    """Statistics of the values of each of G groups; missing values are left out."""

    count: Array  # of values, int64; all others are float64
    total: Array
    squares: Array  # the squared deviations from their mean
    low: Array  # +inf where there is none
    high: Array  # -inf where there is none


def aggregate_floats(values: Array, groups: Array, num_groups: int) -> GroupedFloats:
    """Aggregate n float64 on a CPU in two passes, NaN where missing, given the number (int64) of each row's group.

    What an addition rounds off is summed separately, or the mean of a group far from 0 would be farther off than its
    values spread. What the mean itself is rounded by is taken off the squares again. Sources: Neumaier,
    "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974; Chan, Golub, LeVeque, "Algorithms
    for computing the sample variance: analysis and recommendations", 1983.
    """
    count, sums = np.zeros(num_groups, np.int64), np.zeros((6, num_groups))
    total, squares, low, high, rounded_off, residuals = sums
    low[:], high[:] = np.inf, -np.inf
    values, groups = np.ascontiguousarray(values), np.ascontiguousarray(groups)
    _sum_groups(count, total, low, high, rounded_off, groups, values)
    total += np.where(np.isfinite(rounded_off), rounded_off, 0.0)  # with infinities it is NaN
    divisors = np.maximum(count, 1)
    _sum_deviations(squares, residuals, total / divisors, groups, values)
    squares -= np.where(np.isfinite(squares), residuals * residuals / divisors, 0.0)
    return GroupedFloats(count, total, np.maximum(squares, 0.0), low, high)


def _write(loop: Loop, out: Array, *arguments: Any) -> bool:
    """Run a loop that writes, by way of another array where `out` is not C-contiguous."""
    buffer = out if out.flags.c_contiguous else np.empty(out.shape, dtype=out.dtype)
    infinite = loop(buffer, *arguments)
    if buffer is not out:
        out[:] = buffer
    return bool(infinite)


def sort_unique(values: Array, xp: ModuleType) -> Array:
    """Sort distinct values; without counts NumPy's `unique` hashes integers, which takes it fifty times as long."""
    return xp.unique(values, return_counts=True)[0]


def splitmix64(seed: int, counters: Array) -> Array:
    """Draw 64 well mixed bits for each counter, distinct for distinct counters.

    The seed is mixed before the counters are added to it, so that neighbouring seeds give independent streams, and no
    shifted copies of each other; seed 0 gives the published stream.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    return _mix((counters.astype("uint64") + np.uint64(1)) * np.uint64(_STEP) + mix_seed(seed))


def draw_positions(seed: int, first: int, count: int, limit: int, xp: ModuleType) -> Array:
    """Draw the positions of those of `count` consecutive counters whose `splitmix64` is below a limit, ascending."""
    if xp is np:
        positions = np.empty(count, np.int64)
        num_drawn = _find_drawn(positions, np.uint64(first), mix_seed(seed), np.uint64(limit))
        return positions[:num_drawn].copy()
    counters = xp.arange(first, first + count, dtype="uint64")
    return xp.flatnonzero(splitmix64(seed, counters) < np.uint64(limit))


def shuffle_seed(seed: int) -> int:
    """Derive the seed of the 64 bits, distinct for each row, that a table is shuffled by."""
    return int(splitmix64(seed, np.array([_SHUFFLE]))[0])


def mix_seed(seed: int) -> np.uint64:
    """Mix a seed to the start of its `splitmix64` stream."""
    return np.uint64(_mix(np.array([int(seed) % 2**64], dtype=np.uint64))[0])


def hash_column(column: Column, seed: int, backend: Backend) -> Array:
    """Hash each value of a column to 64 bits: an integer alike in any width, all missing values to one hash."""
    xp = backend.xp
    if column.dictionary is not None:
        return splitmix64(seed, gather(column, hash_strings(column.dictionary), _MISSING, backend))
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
    distinct, sums, slots = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    num_keys, dtype = 0, np.int64
    for keys, counts in parts:
        dtype, room = keys.dtype, num_keys + len(keys)
        if room > len(distinct):
            room = max(room, num_keys * 3 // 2)  # many small parts would be copied each time
            distinct, sums = (
                np.concatenate([item[:num_keys], np.empty(room - num_keys, np.int64)]) for item in (distinct, sums)
            )
            slots = _build_slots(distinct[:num_keys], room)
        num_keys = _add_counts(
            slots, distinct, sums, num_keys, np.ascontiguousarray(keys).view(np.int64), np.ascontiguousarray(counts)
        )
    return distinct[:num_keys].view(dtype).copy(), sums[:num_keys].copy()


def _build_slots(keys: Any, room: int) -> Any:
    """Build a hash table of distinct int64, half full with `room` keys: each slot has a key's position, or -1."""
    slots = np.full(1 << _count_bits(2 * room), -1, np.int32)
    _fill_slots(slots, keys)
    return slots


class KeyIndex:
    """Index of distinct int64 or uint64: by direct address, by a compiled hash table, on a GPU by binary search."""

    def __init__(self, keys: Any) -> None:
        self._keys = np.ascontiguousarray(keys)
        self._low = self._keys.min() if len(keys) else self._keys.dtype.type(0)
        self._span = int(self._keys.max()) - int(self._low) + 1 if len(keys) else 0
        self._is_direct = self._span <= max(_DIRECT_SPAN, 2 * len(keys))

    def positions(self, values: Array, backend: Backend) -> Array:
        """Find the position of each integer among the keys, int32; -1 if it is absent."""
        xp = backend.xp
        if xp is np:
            return self.find(values)
        if self._is_direct:
            return backend.to_device(self._table)[self._offsets(values, xp)]
        order, ordered = map(backend.to_device, self._sorted)
        positions = xp.minimum(xp.searchsorted(ordered, values), len(ordered) - 1)
        return xp.where(ordered[positions] == values, order[positions], np.int32(-1))

    def find(self, values: Any) -> Any:
        """Find the positions of integers on the host, as `positions`."""
        if self._is_direct:
            return self._table[self._offsets(values, np)]
        positions = np.empty(len(values), np.int32)
        numbers = np.ascontiguousarray(values).view(np.int64)
        _find_keys(positions, self._slots, self._keys.view(np.int64), numbers)
        return positions

    def _offsets(self, values: Array, xp: ModuleType) -> Array:
        # As unsigned numbers values below the lowest are large, like those beyond the span: all find the last.
        return xp.minimum((values - self._low).view("uint64"), np.uint64(self._span)).view("int64")

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
        return _build_slots(self._keys.view(np.int64), len(self._keys))


@compile_loop("reassoc", "nsz")
def _sum_blocks(table: Array, table_bits: Array, values: Array, bits: Array, centres: Array, size: int) -> int:
    """Compute missing values, min, max, sum and squares less its row's centre of each block; bits are of the same."""
    for block in range(table.shape[0]):
        for row in range(values.shape[0]):
            missing, low, high, centre = 0, _ALL_BUT_SIGN, -_ALL_BUT_SIGN, centres[row]
            total = squares = 0.0
            start, stop = block * size, (block + 1) * size
            numbers, patterns = values[row, start:stop], bits[row, start:stop]
            for number in range(numbers.size):
                bit = patterns[number]
                is_present = (bit & _ALL_BUT_SIGN) <= _INFINITY
                deviation = numbers[number] - centre if is_present else 0.0
                missing += not is_present
                total += deviation
                squares += deviation * deviation
                key = bit ^ ((bit >> 63) & _ALL_BUT_SIGN)
                low = min(low, key if is_present else _ALL_BUT_SIGN)
                high = max(high, key if is_present else -_ALL_BUT_SIGN)
            out = table[block, row]
            out[0], out[1], out[2], out[3], out[4] = missing, np.inf, -np.inf, total, squares
            if low != _ALL_BUT_SIGN:
                table_bits[block, row, 1] = low ^ ((low >> 63) & _ALL_BUT_SIGN)
                table_bits[block, row, 2] = high ^ ((high >> 63) & _ALL_BUT_SIGN)
    return 0


@compile_loop()
def _scale_rows(
    out: Array,
    values: Array,
    offsets: Array,
    divisors: Array,
    moves: bool,
    multiplier: float,
    shift: float,
    low: float,
    high: float,
) -> bool:
    """Scale each row as `Scale` defines, written as float32; return whether a result is infinite."""
    infinite = False
    for row in range(values.shape[0]):
        offset, divisor = offsets[row], divisors[row]
        for item in range(values.shape[1]):
            number = (values[row, item] - offset) / divisor
            if moves:
                number = number * multiplier + shift
                number = low if number < low else number  # noqa: FURB136
                number = high if number > high else number  # noqa: FURB136
            out[row, item] = number
            infinite |= abs(out[row, item]) == np.inf
    return infinite


@compile_loop()
def _fill_rows(out: Array, values: Array, instead: Array) -> bool:
    """Write the values, missing ones replaced by their row's `instead`; return whether one is infinite."""
    infinite = False
    for row in range(values.shape[0]):
        fill_value = instead[row]
        for item in range(values.shape[1]):
            number = values[row, item]
            out[row, item] = fill_value if np.isnan(number) else number
            infinite |= abs(out[row, item]) == np.inf
    return infinite


@compile_loop()
def _sum_groups(
    count: Array, total: Array, low: Array, high: Array, rounded_off: Array, groups: Array, values: Array
) -> int:
    """Add each value to the count, the sum, what its addition rounds off, and the min and max of its group."""
    for row in range(values.size):
        value, group = values[row], groups[row]
        if not np.isnan(value):
            count[group] += 1
            subtotal = total[group]
            total[group] = subtotal + value
            large, small = (subtotal, value) if abs(subtotal) >= abs(value) else (value, subtotal)
            rounded_off[group] += (large - total[group]) + small
            low[group] = min(low[group], value)
            high[group] = max(high[group], value)
    return 0


@compile_loop()
def _sum_deviations(squares: Array, residuals: Array, mean: Array, groups: Array, values: Array) -> int:
    """Add the deviation of each value from the mean of its group, and the square of it."""
    for row in range(values.size):
        value, group = values[row], groups[row]
        if not np.isnan(value):
            apart = value - mean[group]
            residuals[group] += apart
            squares[group] += apart * apart
    return 0


@inline
def _count_bits(size: int) -> int:
    """Return the bits of a table's slot numbers, of which there are at least `size`."""
    bits = 1
    while (1 << bits) < size:
        bits += 1
    return bits


@inline
def _mix(bits: Any) -> Any:
    """Mix 64 bits: the last three rounds of splitmix64."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@inline
def _find_slot(key: Any, bits: int) -> np.int64:
    """Hash a key to its first slot: the upper bits of its mix."""
    return np.int64(_mix(np.uint64(key)) >> np.uint64(64 - bits))


@compile_loop()
def _find_drawn(out: Array, first: Any, seed: Any, limit: Any) -> int:
    """Find which counters from `first` on have a splitmix64, given the mixed seed, below the limit; return how many."""
    num_drawn, bits = 0, (first + np.uint64(1)) * np.uint64(_STEP) + seed
    for start in range(0, out.size, _FEW_DRAWS):
        size = min(_FEW_DRAWS, out.size - start)
        if _count_drawn(bits, size, limit):  # seldom, and without a branch it takes half the time
            for number in range(size):
                out[num_drawn] = start + number
                num_drawn += _count_drawn(bits + np.uint64(number) * np.uint64(_STEP), 1, limit)
        bits += np.uint64(size) * np.uint64(_STEP)
    return num_drawn


@inline
def _count_drawn(bits: Any, size: int, limit: Any) -> int:
    """Count how many of `size` steps of a stream from these bits on are below the limit once they are mixed."""
    num_drawn = 0
    for _ in range(size):
        num_drawn += _mix(bits) < limit
        bits += np.uint64(_STEP)
    return num_drawn


@compile_loop()
def _fill_slots(slots: Array, keys: Array) -> int:
    """Enter distinct int64 into an empty hash table of 2**bits slots, probed linearly.

    Source: Knuth, "The Art of Computer Programming", volume 3, section 6.4.
    """
    bits = _count_bits(slots.size)
    for position in range(keys.size):
        slot = _find_slot(keys[position], bits)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = position
    return 0


@compile_loop()
def _find_keys(out: Array, slots: Array, keys: Array, values: Array) -> int:
    """Find each int64 in the table that `_build_slots` made of the keys: its position as int32, or -1."""
    bits = _count_bits(slots.size)
    for row in range(values.size):
        slot = _find_slot(values[row], bits)
        while slots[slot] >= 0 and keys[slots[slot]] != values[row]:
            slot = (slot + 1) & (slots.size - 1)
        out[row] = slots[slot]
    return 0


@compile_loop()
def _add_counts(slots: Array, distinct: Array, sums: Array, num_distinct: int, keys: Array, counts: Array) -> int:
    """Add the counts (or one for all) of int64 keys to the sums of known and new ones; return how many are known."""
    bits = _count_bits(slots.size)
    for row in range(keys.size):
        slot = _find_slot(keys[row], bits)
        while slots[slot] >= 0 and distinct[slots[slot]] != keys[row]:
            slot = (slot + 1) & (slots.size - 1)
        if slots[slot] < 0:
            slots[slot] = num_distinct
            distinct[num_distinct], sums[num_distinct] = keys[row], 0
            num_distinct += 1
        sums[slots[slot]] += counts[row if counts.size > 1 else 0]
    return num_distinct
