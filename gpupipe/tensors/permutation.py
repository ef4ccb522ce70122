"""Permutation of 0..n-1 that is computed, not stored: the order of rows in an epoch.

A Feistel network over the bits of n-1, walked until it lands below n (Black and Rogaway, "Ciphers with arbitrary finite
domains", 2002). Integer arithmetic that wraps is the same in NumPy, CuPy and PyTorch, so the order depends on n, seed
and epoch alone: not on backend, device, threads or number of ranks.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpupipe.backend.ragged import get_array_module
from gpupipe.errors import BadConfig

__all__ = ["Permutation", "stream_key"]

# Few bits need many rounds before all orders are alike, and cost nothing there.
_ROUNDS, _ROUNDS_UP_TO_16_BITS = 8, 24
_HOST_CHUNK, _DEVICE_CHUNK = 1 << 15, 1 << 24  # positions at a time: on the CPU what is computed stays in its cache
_MASK = (1 << 64) - 1


class Permutation:
    """Permutation of the rows in one epoch.

    Args:
        num_rows: n.
        seed: any integer.
        epoch: from 0.

    Raises:
        BadConfig: `num_rows` is negative.

    Memory: none; 8 bytes per position asked for.

    Example:
        >>> Permutation(5, seed=0, epoch=0).order("cpu").sort().values.tolist()
        [0, 1, 2, 3, 4]
    """

    def __init__(self, num_rows: int, *, seed: int = 0, epoch: int = 0) -> None:
        if num_rows < 0:
            raise BadConfig(
                "Permutation", "fewer than no rows", got=num_rows, expected="0 or more", remedy="num_rows=0"
            )
        self.num_rows = num_rows
        bits = max((num_rows - 1).bit_length(), 2)
        self._word = 32 if bits < 32 else 64
        self._left_bits, self._right_bits = bits // 2, bits - bits // 2
        state = stream_key(seed, epoch)
        rounds = _ROUNDS_UP_TO_16_BITS if bits <= 16 else _ROUNDS
        self._keys = [(self._signed(_mix(state + i) | 1), self._signed(_mix(state - i - 1))) for i in range(rounds)]

    def at(self, positions: Any) -> Any:
        """Return the rows at these positions of the order.

        Args:
            positions: int64, a NumPy or CuPy array or a torch tensor of one dimension, each in 0..n-1.

        Returns:
            int64 of the same kind and length.

        Memory: a few temporary arrays of that length, on the device of `positions`.

        Example:
            >>> import numpy as np
            >>> sorted(Permutation(4, seed=1).at(np.arange(4)).tolist())
            [0, 1, 2, 3]
        """
        xp = torch if isinstance(positions, Tensor) else get_array_module(positions)
        return self._walk(positions, xp.empty_like(positions), xp)

    def order(self, device: torch.device | str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the order, or the part from position `start` to before `stop`, int64 on `device`.

        Memory: 8 bytes per row of it there; at most as much again while it is made.
        """
        stop = self.num_rows if stop is None else stop
        order = torch.arange(start, stop, dtype=torch.int64, device=device)
        if order.device.type == "cpu":
            # NumPy's calls cost a fraction of torch's, and with chunks that fit a cache the calls are what it costs.
            self._walk(order.numpy(), order.numpy(), np)
        else:
            self._walk(order, order, torch)
        return order

    def _walk(self, positions: Any, rows: Any, xp: ModuleType) -> Any:
        """Fill `rows` with the rows at these positions; the two may be the same memory."""
        step = _HOST_CHUNK if xp is np else _DEVICE_CHUNK
        for start in range(0, len(rows), step):
            chunk = xp.asarray(positions[start : start + step], dtype=xp.int32 if self._word == 32 else xp.int64)
            rows[start : start + step] = self._stir(chunk, xp)
        outside = xp.argwhere(rows >= self.num_rows)[:, 0]
        if len(outside):
            walked = rows[outside]
            rows[outside] = self._walk(walked, walked, xp)
        return rows

    def _stir(self, positions: Any, xp: ModuleType) -> Any:
        """Apply a bijection of 0..2^bits-1, in words of 32 or 64 bits.

        Each half is kept as a signed number of its own bits, so that the arithmetic shift of a product is in its range.
        """
        left_offset, right_offset = 1 << self._left_bits - 1, 1 << self._right_bits - 1
        left = (positions >> self._right_bits) - left_offset
        right = (positions & 2 * right_offset - 1) - right_offset
        mixed = xp.empty_like(left)
        for number, (factor, summand) in enumerate(self._keys):
            read, write, bits = (left, right, self._right_bits) if number % 2 else (right, left, self._left_bits)
            # The high bits of a square: without it a half moves along a line, which unlucky keys let shine through.
            xp.multiply(read, factor, out=mixed)
            mixed += summand
            mixed *= mixed
            mixed >>= self._word - bits
            write ^= mixed
        left += left_offset
        left <<= self._right_bits
        left += right
        left += right_offset
        return left

    def _signed(self, value: int) -> int:
        """Return the value's low bits as a signed word."""
        half = 1 << self._word - 1
        return ((value + half) & 2 * half - 1) - half


def stream_key(seed: int, epoch: int) -> int:
    """Derive 64 bits from a seed and an epoch.

    Example:
        >>> stream_key(0, 1) != stream_key(1, 0)
        True
    """
    return _mix(_mix(seed & _MASK) ^ (epoch & _MASK))


def _mix(value: int) -> int:
    """Mix the bits of a value by SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
