"""A permutation of 0..n-1 that is computed, not stored: the order of rows in an epoch.

A Feistel network over the bits of n-1, walked until it lands below n (Black and Rogaway, "Ciphers with arbitrary finite
domains", 2002). Integer arithmetic that wraps at 64 bits is the same in NumPy, CuPy and PyTorch, so the order depends on
n, seed and epoch alone: not on backend, device, threads or number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadConfig

__all__ = ["Permutation"]

# Few bits need many rounds before all orders are alike; see the uniformity tests.
_ROUNDS, _ROUNDS_BELOW_256 = 8, 24
_CHUNK = 16_384  # positions at a time on the CPU: the intermediate arrays stay in its cache
_MASK = (1 << 64) - 1


class Permutation:
    """The order of one epoch.

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
            expected = "0 or more"
            raise BadConfig("Permutation", "fewer than no rows", got=num_rows, expected=expected, remedy="num_rows=0")
        self.num_rows = num_rows
        bits = max((num_rows - 1).bit_length(), 2)
        self._right_bits = bits - bits // 2
        self._left_mask, self._right_mask = (1 << bits // 2) - 1, (1 << self._right_bits) - 1
        rounds = _ROUNDS if bits >= 8 else _ROUNDS_BELOW_256
        state = _mixed(_mixed(seed & _MASK) ^ (epoch & _MASK))
        self._keys = [(_signed(_mixed(state + 2 * i) | 1), _signed(_mixed(state + 2 * i + 1))) for i in range(rounds)]

    def at(self, positions: Any) -> Any:
        """The rows at these positions of the order.

        Args:
            positions: int64, a NumPy or CuPy array or a torch tensor, each in 0..n-1.

        Returns:
            int64 of the same kind and length.

        Memory: a few temporary arrays of that length, on the device of `positions`.

        Example:
            >>> import numpy as np
            >>> sorted(Permutation(4, seed=1).at(np.arange(4)).tolist())
            [0, 1, 2, 3]
        """
        rows = self._stir(positions)
        outside = rows >= self.num_rows
        while bool(outside.any()):
            rows[outside] = self._stir(rows[outside])
            outside = rows >= self.num_rows
        return rows

    def order(self, device: torch.device | str) -> Tensor:
        """The whole order, n int64 on `device`.

        Memory: 8 bytes per row there.
        """
        order = torch.arange(self.num_rows, dtype=torch.int64, device=device)
        size = _CHUNK if order.device.type == "cpu" else max(self.num_rows, 1)
        for start in range(0, self.num_rows, size):
            chunk = order[start : start + size]
            chunk.copy_(self.at(chunk))
        return order

    def _stir(self, positions: Any) -> Any:
        """One pass through the network: a bijection of 0..2^bits-1."""
        left, right = positions >> self._right_bits, positions & self._right_mask
        for number, (factor, summand) in enumerate(self._keys):
            # Multiply, add, take high bits: each bit of the result depends on all bits of the half.
            mixed = (left if number % 2 else right) * factor
            mixed += summand
            mixed >>= 32
            if number % 2:
                mixed &= self._right_mask
                right ^= mixed
            else:
                mixed &= self._left_mask
                left ^= mixed
        left <<= self._right_bits
        left |= right
        return left


def _mixed(value: int) -> int:
    """SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
