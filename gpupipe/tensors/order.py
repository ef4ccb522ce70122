"""Row order of an epoch: a formula, not a list, the same wherever the table is stored.

Every order can be asked for any stretch of it, so an epoch can be resumed anywhere at no cost. Those that are cut into
windows (`ByBlocks`, `InOrder`) serve tables that are streamed: the rows of a window come before those of the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gpupipe.tensors.permutation import Permutation

__all__ = ["ByBlocks", "ByRows", "InOrder", "Order", "Rows", "Windowed"]

Rows: TypeAlias = slice | Tensor
"""Rows of a table: a stretch of it, or int64 row numbers on its device."""
Ranges: TypeAlias = list[tuple[int, int]]


class Order(Protocol):
    """Base class of the order of one epoch."""

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """Return the rows at the order's positions from `start` to before `stop`."""


class Windowed(Order, Protocol):
    """Base class of orders whose rows come a window of the table at a time."""

    def window_of(self, position: int) -> int:
        """Return the number of the window with that position."""

    def starts_at(self, window: int) -> int:
        """Return the window's first position; of the number after the last window, the number of rows."""

    def ranges(self, window: int) -> Ranges:
        """Return the row ranges of the table in the window, ascending."""

    def inside(self, window: int, start: int, stop: int, device: torch.device) -> Rows:
        """Return what `at` does, but counted among the window's own rows."""


class ByRows:
    """Shuffle of all rows.

    Memory: 8 bytes per position asked for, and a few temporary arrays of that length.
    """

    def __init__(self, num_rows: int, *, seed: int, epoch: int) -> None:
        self._permutation = Permutation(num_rows, seed=seed, epoch=epoch)

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """See `Order`."""
        return self._permutation.order(device, start, stop)


class ByBlocks:
    """Shuffle of blocks of consecutive rows, and of the rows of so many blocks at a time (a window).

    Args:
        num_rows: of the table.
        block_rows: rows of a block; the table's last block may be shorter.
        window: blocks whose rows are mixed.
        seed: any integer.
        epoch: from 0, below 2^32.

    Memory: 8 bytes per block.

    Example:
        >>> order = ByBlocks(8, 2, 2, seed=0, epoch=0)
        >>> [order.ranges(window) for window in (0, 1)]
        [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    """

    def __init__(self, num_rows: int, block_rows: int, window: int, *, seed: int, epoch: int) -> None:
        self._num_rows, self._block_rows, self._window = num_rows, block_rows, window
        self._seed, self._epoch = seed, epoch
        num_blocks = -(-num_rows // block_rows)
        blocks = Permutation(num_blocks, seed=seed, epoch=epoch).order("cpu").numpy()
        # Ascending in each window, as files are read; so the short block is the last of its window.
        self._blocks = [np.sort(blocks[first : first + window]) for first in range(0, num_blocks, window)]
        rows = [sum(last - first for first, last in self.ranges(number)) for number in range(len(self._blocks))]
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])

    def window_of(self, position: int) -> int:
        """See `Windowed`."""
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def starts_at(self, window: int) -> int:
        """See `Windowed`."""
        return int(self._starts[window])

    def ranges(self, window: int) -> Ranges:
        """See `Windowed`."""
        firsts = (int(block) * self._block_rows for block in self._blocks[window])
        return [(first, min(first + self._block_rows, self._num_rows)) for first in firsts]

    def inside(self, window: int, start: int, stop: int, device: torch.device) -> Rows:
        """See `Windowed`."""
        first, last = self.starts_at(window), self.starts_at(window + 1)
        # Another permutation for each window: epochs do not come near 2^32.
        mixed = Permutation(last - first, seed=self._seed, epoch=self._epoch + (window + 1 << 32))
        return mixed.order(device, start - first, stop - first)

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """See `Order`."""
        parts = []
        while start < stop:
            window = self.window_of(start)
            end = min(stop, self.starts_at(window + 1))
            among = self.inside(window, start, end, device)
            assert isinstance(among, Tensor)
            firsts = torch.from_numpy(self._blocks[window] * self._block_rows).to(device)
            parts.append(firsts[among // self._block_rows] + among % self._block_rows)
            start = end
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else slice(start, start)


class InOrder:
    """Order of the table itself.

    Args:
        starts: the first row of each window, and the number of rows.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        self._starts = starts

    def window_of(self, position: int) -> int:
        """See `Windowed`."""
        return bisect_right(self._starts, position) - 1

    def starts_at(self, window: int) -> int:
        """See `Windowed`."""
        return self._starts[window]

    def ranges(self, window: int) -> Ranges:
        """See `Windowed`."""
        return [(self.starts_at(window), self.starts_at(window + 1))]

    def inside(self, window: int, start: int, stop: int, device: torch.device) -> Rows:
        """See `Windowed`."""
        first = self.starts_at(window)
        return slice(start - first, stop - first)

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """See `Order`."""
        return slice(start, stop)
