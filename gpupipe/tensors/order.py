"""Row order of an epoch: a formula, not a list, and its batches over processes so that all take equally many steps.

Every order can be asked for any stretch of it, so an epoch can be resumed anywhere at no cost. Those that are cut into
windows (`ByBlocks`, `InOrder`) serve tables that are streamed: the rows of a window come before those of the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, distributed

from gpupipe.backend.protocol import get_array_module
from gpupipe.errors import BadConfig
from gpupipe.support.validation import is_integer, is_sequence
from gpupipe.tensors.process_group import MEETING, gather_tensors, is_joined, join, make_host_group

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


@dataclass(frozen=True, slots=True)
class Step:
    """Part of one batch on one rank.

    Args:
        start: its first position in the epoch's order.
        stop: the position after its last.
        size: rows that are given; those beyond `stop - start` are padding of weight 0.
    """

    start: int
    stop: int
    size: int


@dataclass(frozen=True)
class Sharding:
    """Sharding of the rows of an epoch over the ranks.

    Args:
        num_rows: of this rank's table.
        batch_size: rows of all ranks in a step.
        drop_last: leave out steps that are not full.
        rank: this one's number, from 0.
        world_size: how many ranks there are.
        shards: the rows of each rank's own table; None where all have the same table.

    Example:
        >>> ranks = Sharding(10, 4, False, rank=1, world_size=2)
        >>> [(step.start, step.stop, step.size) for step in map(ranks.step, range(len(ranks)))]
        [(2, 4, 2), (6, 8, 2), (9, 10, 1)]
        >>> short = Sharding(1, 4, False, rank=1, world_size=2, shards=(5, 1))
        >>> [(step.stop - step.start, step.size) for step in map(short.step, range(len(short)))]
        [(1, 2), (0, 2), (0, 1)]
    """

    num_rows: int
    batch_size: int
    drop_last: bool
    rank: int = 0
    world_size: int = 1
    shards: tuple[int, ...] | None = None

    def __len__(self) -> int:
        """Return the number of steps of an epoch, the same on all ranks."""
        each, rows = self.batch_size, [self.num_rows]
        if self.shards is not None:
            each, rows = self._each, list(self.shards)
        return min(rows) // each if self.drop_last else (max(rows) + each - 1) // each

    @property
    def pads(self) -> bool:
        """Whether some rank has rows of padding in some step."""
        if self.shards is not None:
            return not self.drop_last and len(set(self.shards)) > 1
        tail = 0 if self.drop_last else self.num_rows % self.batch_size
        full = self.batch_size if self.num_rows >= self.batch_size else 0
        return any(rows % self.world_size for rows in (full, tail))

    @property
    def total_rows(self) -> int:
        """The number of rows of all ranks together, each counted once."""
        return self.num_rows if self.shards is None else sum(self.shards)

    @property
    def largest(self) -> int:
        """The number of rows of this rank's largest batch."""
        return self.step(0).size if len(self) else 0

    @property
    def _each(self) -> int:
        return -(-self.batch_size // self.world_size)

    def step(self, number: int) -> Step:
        """Return this rank's part of step `number`."""
        if self.shards is None:
            first = number * self.batch_size
            rows = min(self.batch_size, self.num_rows - first)
            size = -(-rows // self.world_size)
            start = first + min(self.rank * size, rows)
            return Step(start, min(start + size, first + rows), size)
        first = number * self._each
        size = min(self._each, max(self.shards) - first)
        return Step(min(first, self.num_rows), min(first + size, self.num_rows), size)


def get_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks; by default torch.distributed's, or torchrun's.

    Raises:
        BadConfig: one of the two only, or an invalid rank.

    Example:
        >>> get_rank(None, None), get_rank(1, 4)
        ((0, 1), (1, 4))
    """
    if rank is None and world_size is None:
        join()
        if is_joined():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1
    both = rank is not None and world_size is not None and is_integer(rank, 0) and is_integer(world_size, 1)
    if rank is None or world_size is None or not both or rank >= world_size:
        raise BadConfig(
            "loader",
            "no rank of a group",
            got=f"rank={rank}, world_size={world_size}",
            expected="both, and a rank from 0 to below world_size",
            remedy="rank=0, world_size=1; or neither, which asks torch.distributed",
        )
    return rank, world_size


def gather_row_counts(
    sharded: bool | Sequence[int], num_rows: int, rank: int, world_size: int
) -> tuple[int, ...] | None:
    """Return the number of rows of each rank's own table; None where all have the same one.

    With True the ranks exchange them, a collective call that all of them must make.

    Raises:
        BadConfig: the numbers are not those of these ranks.
    """
    if sharded is False:
        return None
    if sharded is True:
        if world_size == 1:
            return (num_rows,)
        if not is_joined():
            raise BadConfig(
                "loader",
                "the ranks cannot tell each other how many rows they have",
                got="sharded=True without torch.distributed",
                expected="an initialised process group, or the numbers",
                remedy="sharded=[rows of rank 0, rows of rank 1, ...]",
            )
        with make_host_group(MEETING) as group:
            return tuple(gather_tensors(torch.tensor(num_rows), group).tolist())
    if not is_sequence(sharded) or len(sharded) != world_size or sharded[rank] != num_rows:
        raise BadConfig(
            "loader",
            "the shards are not those of these ranks",
            got=f"{sharded} for rank {rank} of {world_size}, whose table has {num_rows} rows",
            expected="the rows of each rank's table, in the order of ranks",
            remedy="sharded=True, which asks the ranks",
        )
    return tuple(sharded)
