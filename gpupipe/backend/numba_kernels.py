"""Loops over numbers that a CPU runs in one pass, compiled when they are first called and kept on disk; no GIL is held.

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

__all__ = ["add_up", "by_group", "fill", "find_keys", "look", "scale", "slots_of"]

# While it compiles, Numba tells whoever logs everything thousands of lines. A level that somebody has set stays.
if logging.getLogger("numba").level == logging.NOTSET:
    logging.getLogger("numba").setLevel(logging.INFO)

_ALL_BUT_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_INFINITY = np.int64(0x7FF0_0000_0000_0000)  # what is above it, without its sign, is NaN


def _compiled(*relaxed: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
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

    return compiled


@njit
def _floats(low, high):
    """The ends that these keys stand for; +inf and -inf where there was no value."""
    if low == _ALL_BUT_SIGN:
        return np.inf, -np.inf
    keys = np.array([low, high])
    found = (keys ^ ((keys >> 63) & _ALL_BUT_SIGN)).view(np.float64)
    return found[0], found[1]


@_compiled("reassoc", "nsz")
def look(values, bits, centres):
    """Of each row missing values, the least and the greatest of the others, their sum and squares less its centre.

    `bits` are the values' own, as int64. The result has a row of 5 float64 for each.
    """
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
        least, greatest = _floats(low, high)
        table[place, 0], table[place, 1], table[place, 2] = missing, least, greatest
        table[place, 3], table[place, 4] = total, squares
    return table


@_compiled()
def scale(out, values, offsets, divisors, moves, stretch, shift, floor, ceiling):
    """Write `(value - offset) / divisor` of each row as float32, as `Scale` says; whether one is infinite."""
    infinite = False
    for place in range(values.shape[0]):
        offset, divisor = offsets[place], divisors[place]
        for item in range(values.shape[1]):
            number = (values[place, item] - offset) / divisor
            if moves:
                number = number * stretch + shift
                number = floor if number < floor else number  # noqa: FURB136
                number = ceiling if number > ceiling else number  # noqa: FURB136
            out[place, item] = number
            infinite |= abs(out[place, item]) == np.inf
    return infinite


@_compiled()
def fill(out, values, instead):
    """Write the values, those that are missing as `instead` says for their row; whether one is infinite."""
    infinite = False
    for place in range(values.shape[0]):
        fill_value = instead[place]
        for item in range(values.shape[1]):
            number = values[place, item]
            out[place, item] = fill_value if np.isnan(number) else number
            infinite |= abs(out[place, item]) == np.inf
    return infinite


@_compiled()
def by_group(groups, values, num_groups):
    """Of each group's values how many, their sum, their squared deviations from their mean, the least, the greatest.

    What an addition rounds off is added up beside it, or the mean of a group far from 0 would be farther off than its
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
    total += np.where(np.isfinite(rounded_off), rounded_off, 0.0)  # beside infinities it is NaN
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
def _slot_of(key, bits):
    """The slot a key's search begins at: the upper bits of splitmix64's last three rounds."""
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(64 - bits))


@_compiled()
def slots_of(keys, room):
    """Make a hash table of distinct int64, at most half full with `room` keys: each slot has a key's position, or -1.

    A key whose slot is taken goes to the next one that is free (linear probing: Knuth, "The Art of Computer
    Programming", volume 3, section 6.4).
    """
    bits = 1
    while (1 << bits) < 2 * room:
        bits += 1
    slots = np.full(1 << bits, -1, np.int32)
    for place in range(keys.size):
        slot = _slot_of(keys[place], bits)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = place
    return slots


@_compiled()
def find_keys(slots, keys, wanted):
    """Find each int64 in the table that `slots_of` made of the keys: its position as int32, or -1."""
    bits = 0
    while (1 << bits) < slots.size:
        bits += 1
    out = np.empty(wanted.size, np.int32)
    for row in range(wanted.size):
        slot = _slot_of(wanted[row], bits)
        place = slots[slot]
        while place >= 0 and keys[place] != wanted[row]:
            slot = (slot + 1) & (slots.size - 1)
            place = slots[slot]
        out[row] = place
    return out


@_compiled()
def add_up(slots, known, sums, num_known, keys, counts):
    """Add the counts of int64 keys to the sums of the known ones; a new key is known from then on.

    Returns:
        How many keys are known; `slots`, `known` and `sums` have room for them. One count stands for all keys.
    """
    bits = 0
    while (1 << bits) < slots.size:
        bits += 1
    for row in range(keys.size):
        slot = _slot_of(keys[row], bits)
        while slots[slot] >= 0 and known[slots[slot]] != keys[row]:
            slot = (slot + 1) & (slots.size - 1)
        if slots[slot] < 0:
            slots[slot] = num_known
            known[num_known], sums[num_known] = keys[row], 0
            num_known += 1
        sums[slots[slot]] += counts[row if counts.size > 1 else 0]
    return num_known
