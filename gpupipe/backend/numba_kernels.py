"""Numba kernels for the CPU: compiled on the first call, cached on disk, run without the GIL.

A sum is vectorised only if it may be added up in another order (`reassoc`); nothing else about floats is relaxed, for
NaN is a missing value, and infinities are refused later. The least and the greatest float are found among integers that
have the same order, because vectors of floats have no minimum that passes over NaN.
"""

# Numba compiles what is below, and ships no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import njit

# While it compiles, Numba logs thousands of debug lines. A level that somebody has set stays.
if logging.getLogger("numba").level == logging.NOTSET:
    logging.getLogger("numba").setLevel(logging.INFO)

_ALL_BUT_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_INFINITY = np.int64(0x7FF0_0000_0000_0000)  # what is above it, without its sign, is NaN


def _compile(*relaxed: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(relaxed), "error_model": "numpy"}
        try:
            loop: Callable[..., Any] = njit(cache=True, **options)(function)
        except RuntimeError:  # no folder to keep it in can be written to: each process compiles it
            loop = njit(**options)(function)

        @wraps(function)
        def run(*given: Any) -> Any:
            try:
                return loop(*given)
            except OSError:  # it is compiled, but the disk it is kept on is full: now it only runs
                return loop(*given)

        return run

    return decorate


@_compile("reassoc", "nsz")
def compute_moments(values, bits, centres):
    """Compute for each row the missing values, min, max, sum and squares less its centre; `bits` are the values'."""
    table = np.empty((values.shape[0], 5))
    for place in range(values.shape[0]):
        missing, low, high, centre = 0, _ALL_BUT_SIGN, -_ALL_BUT_SIGN, centres[place]
        total = squares = 0.0
        for number in range(values.shape[1]):
            bit = bits[place, number]
            there = (bit & _ALL_BUT_SIGN) <= _INFINITY
            rest = values[place, number] - centre if there else 0.0
            missing += not there
            total += rest
            squares += rest * rest
            key = bit ^ ((bit >> 63) & _ALL_BUT_SIGN)
            low = min(low, key if there else _ALL_BUT_SIGN)
            high = max(high, key if there else -_ALL_BUT_SIGN)
        table[place, 0], table[place, 1], table[place, 2] = missing, np.inf, -np.inf
        table[place, 3], table[place, 4] = total, squares
        if low != _ALL_BUT_SIGN:
            ends = np.array([low, high])
            table[place, 1:3] = (ends ^ ((ends >> 63) & _ALL_BUT_SIGN)).view(np.float64)
    return table


@_compile()
def scale(out, values, offsets, divisors, moves, multiplier, shift, low, high):
    """Scale each row as `Scale` defines, written as float32; return whether a result is infinite."""
    infinite = False
    for place in range(values.shape[0]):
        offset, divisor = offsets[place], divisors[place]
        for item in range(values.shape[1]):
            number = (values[place, item] - offset) / divisor
            if moves:
                number = number * multiplier + shift
                number = low if number < low else number  # noqa: FURB136
                number = high if number > high else number  # noqa: FURB136
            out[place, item] = number
            infinite |= abs(out[place, item]) == np.inf
    return infinite


@_compile()
def fill(out, values, instead):
    """Write the values, missing ones replaced by their row's `instead`; return whether one is infinite."""
    infinite = False
    for place in range(values.shape[0]):
        fill_value = instead[place]
        for item in range(values.shape[1]):
            number = values[place, item]
            out[place, item] = fill_value if np.isnan(number) else number
            infinite |= abs(out[place, item]) == np.inf
    return infinite


@_compile()
def aggregate_groups(groups, values, num_groups):
    """Compute for each group the count, sum, squared deviations from the mean, min and max.

    What an addition rounds off is summed separately, or the mean of a group far from 0 would be farther off than its
    values spread. What the mean itself is rounded by is taken off the squares again. Sources: Neumaier,
    "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974; Chan, Golub, LeVeque, "Algorithms
    for computing the sample variance: analysis and recommendations", 1983.
    """
    count = np.zeros(num_groups, np.int64)
    total, squares, rounded_off, rest = np.zeros((4, num_groups))
    low, high = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    for row in range(values.size):
        value, group = values[row], groups[row]
        if not np.isnan(value):
            count[group] += 1
            known = total[group]
            total[group] = known + value
            large, small = (known, value) if abs(known) >= abs(value) else (value, known)
            rounded_off[group] += (large - total[group]) + small
            low[group] = min(low[group], value)
            high[group] = max(high[group], value)
    total += np.where(np.isfinite(rounded_off), rounded_off, 0.0)  # with infinities it is NaN
    mean = total / np.maximum(count, 1)
    for row in range(values.size):
        value, group = values[row], groups[row]
        if not np.isnan(value):
            apart = value - mean[group]
            rest[group] += apart
            squares[group] += apart * apart
    squares -= np.where(np.isfinite(squares), rest * rest / np.maximum(count, 1), 0.0)
    return count, total, np.maximum(squares, 0.0), low, high


@njit
def _count_bits(size):
    """Return the bits of a table's slot numbers, of which there are at least `size`."""
    bits = 1
    while (1 << bits) < size:
        bits += 1
    return bits


@njit
def _find_slot(key, bits):
    """Hash a key to its first slot: the upper bits of splitmix64's last three rounds."""
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(64 - bits))


@_compile()
def build_slots(keys, room):
    """Build a hash table of distinct int64, at most half full with `room` keys: each slot has a key's position, or -1.

    Linear probing: Knuth, "The Art of Computer Programming", volume 3, section 6.4.
    """
    bits = _count_bits(2 * room)
    slots = np.full(1 << bits, -1, np.int32)
    for place in range(keys.size):
        slot = _find_slot(keys[place], bits)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = place
    return slots


@_compile()
def find_keys(slots, keys, wanted):
    """Find each int64 in the table that `build_slots` made of the keys: its position as int32, or -1."""
    bits, out = _count_bits(slots.size), np.empty(wanted.size, np.int32)
    for row in range(wanted.size):
        slot = _find_slot(wanted[row], bits)
        while slots[slot] >= 0 and keys[slots[slot]] != wanted[row]:
            slot = (slot + 1) & (slots.size - 1)
        out[row] = slots[slot]
    return out


@_compile()
def add_up(slots, known, sums, num_known, keys, counts):
    """Add the counts (or one for all) of int64 keys to the sums of known and new ones; return how many are known."""
    bits = _count_bits(slots.size)
    for row in range(keys.size):
        slot = _find_slot(keys[row], bits)
        while slots[slot] >= 0 and known[slots[slot]] != keys[row]:
            slot = (slot + 1) & (slots.size - 1)
        if slots[slot] < 0:
            slots[slot] = num_known
            known[num_known], sums[num_known] = keys[row], 0
            num_known += 1
        sums[slots[slot]] += counts[row if counts.size > 1 else 0]
    return num_known
