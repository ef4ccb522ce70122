"""Rows of a batch: the order of an epoch, which is a formula and not a list, and each rank's part of its batches.

Every order can be asked for any stretch of it, so an epoch can be resumed anywhere at no cost. Those that are cut into
windows (`InOrder`, `ByBlocks`) serve tables that are streamed: the rows of a window come before those of the next.
"""

from __future__ import annotations

import atexit
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, distributed

from gpupipe.backend.columns import get_array_module
from gpupipe.errors import BadConfig, BadData
from gpupipe.support.validation import is_integer, is_one_of, is_sequence

# Few bits need many rounds before all orders are alike, and cost nothing there.
_ROUNDS, _ROUNDS_UP_TO_16_BITS = 8, 24
_HOST_CHUNK, _DEVICE_CHUNK = 1 << 15, 1 << 24  # positions at a time: on the CPU what is computed stays in its cache
_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's
_SCALE_BITS = 44  # of all weights together: 17,000 steps for the average of a billion rows, and a bias below 1e-5

Rows: TypeAlias = slice | Tensor  # of a table: a stretch of it, or int64 row numbers on its device
Order: TypeAlias = Callable[[int, int, torch.device], Rows]
"""The order of an epoch: gives the rows at the positions from the first number to before the second."""
Ranges: TypeAlias = list[tuple[int, int]]


class Permutation:
    """Permutation of n rows in one epoch, counted from 0; `seed` is any integer.

    Raises `BadConfig`: `num_rows` is negative.
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
        self._word = 32 if bits < 32 else 64
        self._left_bits, self._right_bits = bits // 2, bits - bits // 2
        state = _stream_key(seed, epoch)
        rounds = range(_ROUNDS_UP_TO_16_BITS if bits <= 16 else _ROUNDS)
        keys = [(_mix(state + number) | 1, _mix(state - number - 1)) for number in rounds]
        self._keys = [(_to_signed(factor, self._word), _to_signed(summand, self._word)) for factor, summand in keys]

    def at(self, positions: Any) -> Any:
        """Return the rows at positions of the order: int64, a NumPy or CuPy array or torch tensor of one dimension.

        Memory: a few temporary arrays of that length, on the device of `positions`.
        """
        xp = torch if isinstance(positions, Tensor) else get_array_module(positions)
        return self._walk(positions, xp.empty_like(positions), xp)

    def order(self, device: torch.device | str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the order, or the part from position `start` to before `stop`, int64 on `device`.

        Memory: 8 bytes per row of it there; at most as much again while it is made.
        """
        stop = self.num_rows if stop is None else stop
        order = torch.arange(start, stop, dtype=torch.int64, device=device)
        # NumPy's calls cost a fraction of torch's, and with chunks that fit a cache the calls are what it costs.
        values: Any = order.numpy() if order.device.type == "cpu" else order
        self._walk(values, values, np if order.device.type == "cpu" else torch)
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


def _stream_key(seed: int, epoch: int) -> int:
    """Derive 64 bits from a seed and an epoch."""
    return _mix(_mix(seed & _MASK) ^ (epoch & _MASK))


def _mix(value: int) -> int:
    """Mix the bits of a value by SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _to_signed(value: int, bits: int = 64) -> int:
    """Return the low bits of a value as a signed word."""
    half = 1 << bits - 1
    return ((value + half) & 2 * half - 1) - half


class InOrder:
    """Order of the table itself, in windows: `starts` has the first position of each, and the number of rows."""

    def __init__(self, starts: Sequence[int]) -> None:
        self._starts = starts

    def window_of(self, position: int) -> int:
        """Return the number of the window with that position."""
        return bisect_right(self._starts, position) - 1

    def starts_at(self, window: int) -> int:
        """Return the window's first position; of the number after the last window, the number of rows."""
        return self._starts[window]

    def ranges(self, window: int) -> Ranges:
        """Return the row ranges of the table in the window, ascending."""
        return [(self.starts_at(window), self.starts_at(window + 1))]

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """Return the rows at the positions from `start` to before `stop`; see `Order`."""
        return slice(start, stop)

    def inside(self, window: int, start: int, stop: int, device: torch.device) -> Rows:
        """Return what `at` does, but counted among the window's own rows."""
        first = self.starts_at(window)
        return slice(start - first, stop - first)


class ByBlocks(InOrder):
    """Shuffle of blocks of consecutive rows, and the rows of `window` blocks at a time. Memory: 8 bytes per block."""

    def __init__(self, num_rows: int, block_rows: int, window: int, *, seed: int, epoch: int) -> None:
        self._num_rows, self._block_rows, self._seed, self._epoch = num_rows, block_rows, seed, epoch
        num_blocks = -(-num_rows // block_rows)
        blocks = Permutation(num_blocks, seed=seed, epoch=epoch).order("cpu").numpy()
        # Ascending in each window, as files are read; so the short block is the last of its window.
        self._blocks = [np.sort(blocks[first : first + window]) for first in range(0, num_blocks, window)]
        rows = (sum(last - first for first, last in self.ranges(number)) for number in range(len(self._blocks)))
        super().__init__(list(accumulate(rows, initial=0)))

    def ranges(self, window: int) -> Ranges:
        firsts = (int(block) * self._block_rows for block in self._blocks[window])
        return [(first, min(first + self._block_rows, self._num_rows)) for first in firsts]

    def inside(self, window: int, start: int, stop: int, device: torch.device) -> Tensor:
        first, last = self.starts_at(window), self.starts_at(window + 1)
        # Another permutation for each window: epochs do not come near 2^32.
        mixed = Permutation(last - first, seed=self._seed, epoch=self._epoch + (window + 1 << 32))
        return mixed.order(device, start - first, stop - first)

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        parts = []
        while start < stop:
            window = self.window_of(start)
            end = min(stop, self.starts_at(window + 1))
            among = self.inside(window, start, end, device)
            firsts = torch.from_numpy(self._blocks[window] * self._block_rows).to(device)
            parts.append(firsts[among // self._block_rows] + among % self._block_rows)
            start = end
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else slice(start, start)


class Drawn:
    """Order of n weighted draws with replacement; `sums` is the running sum of the rows' weights, n int64.

    Draw p is the p-th number of SplitMix64's stream for seed and epoch: integers, and so the same on every device.
    """

    def __init__(self, sums: Tensor, *, seed: int, epoch: int) -> None:
        self._sums, self._total = sums, int(sums[-1]) if len(sums) else 0
        self._key = _stream_key(seed, epoch)

    def at(self, start: int, stop: int, device: torch.device) -> Rows:
        """Return the rows at the draws from `start` to before `stop`; see `Order`."""
        if device.type == "cpu":
            values = torch.from_numpy(self._draw(np.arange(start + 1, stop + 1, dtype="int64")))
        else:
            values = self._draw(torch.arange(start + 1, stop + 1, device=device))
        return torch.searchsorted(self._sums, values, right=True)

    def _draw(self, counters: Any) -> Any:
        """Draw a number from 0 to below the total for each; NumPy's and torch's int64 wrap alike."""
        value = counters * _to_signed(_GAMMA) + _to_signed(self._key)
        for bits, factor in ((30, _FIRST), (27, _SECOND)):
            value = (value ^ _shift_right(value, bits)) * _to_signed(factor)
        return _shift_right(value ^ _shift_right(value, 31), 2) % self._total


def _shift_right(value: Any, bits: int) -> Any:
    """Shift right, with zeros coming in from the left."""
    return (value >> bits) & (1 << 64 - bits) - 1


def sum_weights(sampler: str | Tensor, num_rows: int, target: Tensor | None, weight: Tensor | None) -> Tensor:
    """Return the running sum of a sampler's weights of the rows, n int64; see `Loader`."""
    if isinstance(sampler, Tensor):
        shares = _check_weights(sampler, num_rows)
    elif is_one_of(sampler, ["balanced"]):
        shares = _compute_class_weights(target)
    elif not is_one_of(sampler, ["weights"]):
        raise _bad("no such sampler", sampler, "'balanced', 'weights' or a weight for each row", "sampler='balanced'")
    elif weight is None:
        raise _bad("the table has no weights", sampler, "Features(..., weight=...)", "sampler='balanced'")
    else:
        shares = _check_weights(weight, num_rows)
    return torch.cumsum(shares, 0)


def _compute_class_weights(target: Tensor | None) -> Tensor:
    if target is None or target.ndim != 1 or (target.is_floating_point() and bool((target != target.round()).any())):
        got = "none" if target is None else f"{target.ndim} dimensions of {target.dtype}"
        raise _bad("the target has no classes", got, "one target of class numbers, or of 0 and 1", "sampler='weights'")
    _, classes, counts = torch.unique(target, return_inverse=True, return_counts=True)
    each = (1 << _SCALE_BITS) // (counts * len(counts)).clamp(min=1)
    return torch.index_select(each, 0, classes)


def _check_weights(weights: Tensor, num_rows: int) -> Tensor:
    if weights.shape != (num_rows,):
        raise _bad("not a weight for each row", tuple(weights.shape), (num_rows,), "sampler=weights of that shape")
    weights = weights.double()
    total = float(weights.sum())
    if num_rows and not (total > 0 and total < float("inf") and bool((weights >= 0).all())):
        problem, got = "rows cannot be drawn by these weights", f"from {float(weights.min())} to {float(weights.max())}"
        expected, remedy = "finite weights of 0 or more, some above 0", "a weight of 0 for rows that are never drawn"
        raise BadData("loader(sampler=)", problem, got=got, expected=expected, remedy=remedy)
    # By a power of two, which changes no digit of a weight.
    return (weights * 2.0 ** (_SCALE_BITS - int(np.frexp(total)[1]))).long()


def _bad(problem: str, got: object, expected: object, remedy: str) -> BadConfig:
    return BadConfig("loader(sampler=)", problem, got=got, expected=str(expected), remedy=remedy)


class Step(NamedTuple):
    """Part of one batch on one rank: positions of the epoch's order, and the rows that are given, padding included."""

    start: int
    stop: int
    size: int


@dataclass(frozen=True)
class Sharding:
    """Sharding of the rows of an epoch over the ranks, so that all take equally many steps."""

    num_rows: int  # of this rank's table
    batch_size: int  # rows of all ranks in a step
    drop_last: bool  # leave out steps that are not full
    rank: int = 0
    world_size: int = 1
    shards: tuple[int, ...] | None = None  # the rows of each rank's own table; None where all have the same table

    def __len__(self) -> int:
        """Return the number of steps of an epoch, the same on all ranks."""
        each, rows = self.batch_size, self.shards or (self.num_rows,)
        if self.shards is not None:
            each = -(-each // self.world_size)
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
    def largest(self) -> int:
        """The number of rows of this rank's largest batch."""
        return self.step(0).size if len(self) else 0

    def step(self, number: int) -> Step:
        """Return this rank's part of step `number`."""
        if self.shards is None:
            first = number * self.batch_size
            rows = min(self.batch_size, self.num_rows - first)
            size = -(-rows // self.world_size)
            start = first + min(self.rank * size, rows)
            return Step(start, min(start + size, first + rows), size)
        each = -(-self.batch_size // self.world_size)
        first = number * each
        size = min(each, max(self.shards) - first)
        return Step(min(first, self.num_rows), min(first + size, self.num_rows), size)


def get_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks; by default torch.distributed's, or torchrun's."""
    if rank is None and world_size is None:
        join()
        return (distributed.get_rank(), distributed.get_world_size()) if is_joined() else (0, 1)
    if rank is None or world_size is None or not (is_integer(rank, 0) and is_integer(world_size, rank + 1)):
        got, expected = f"rank={rank}, world_size={world_size}", "both, and a rank from 0 to below world_size"
        remedy = "rank=0, world_size=1; or neither, which asks torch.distributed"
        raise BadConfig("loader", "no rank of a group", got=got, expected=expected, remedy=remedy)
    return rank, world_size


def gather_row_counts(
    sharded: Literal[True] | Sequence[int], num_rows: int, rank: int, world_size: int
) -> tuple[int, ...]:
    """Return the number of rows of each rank's own table; with True by a collective call that all ranks must make."""
    if sharded is True and world_size == 1:
        return (num_rows,)
    if sharded is True and is_joined():
        with make_host_group(_MEETING) as group:
            return tuple(gather_tensors(torch.tensor(num_rows), group).tolist())
    if sharded is True:
        problem = "the ranks cannot tell each other how many rows they have"
        got, remedy = "sharded=True without torch.distributed", "sharded=[rows of rank 0, rows of rank 1, ...]"
        expected = "an initialised process group, or the numbers"
        raise BadConfig("loader", problem, got=got, expected=expected, remedy=remedy)
    if not is_sequence(sharded) or len(sharded) != world_size or sharded[rank] != num_rows:
        got = f"{sharded} for rank {rank} of {world_size}, whose table has {num_rows} rows"
        expected, remedy = "the rows of each rank's table, in the order of ranks", "sharded=True, which asks the ranks"
        raise BadConfig("loader", "the shards are not those of these ranks", got=got, expected=expected, remedy=remedy)
    return tuple(sharded)


_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# To meet for the first time; ranks read their tables before that, some of them longer than others.
_MEETING = timedelta(minutes=30)
_log = logging.getLogger(__name__)


def is_joined() -> bool:
    """Return whether this process is in a group of torch.distributed."""
    return distributed.is_available() and distributed.is_initialized()


def join() -> None:
    """Join the group in the environment, as torchrun sets it; do nothing without one, or in a group of one.

    The process takes the GPU of its number on this machine, where it sees several, and leaves the group at its end.
    """
    launched = all(name in os.environ for name in _LAUNCHED)
    if not launched or os.environ["WORLD_SIZE"] == "1" or not distributed.is_available() or is_joined():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    distributed.init_process_group(_backends(), timeout=_MEETING)
    atexit.register(lambda: distributed.destroy_process_group() if is_joined() else None)
    _log.info("this is rank %d of %d", distributed.get_rank(), distributed.get_world_size())


@contextmanager
def open_group(store: Any, rank: int, world_size: int, timeout: float) -> Iterator[None]:
    """Make this process a rank of a group that meets at a torch store and answers within `timeout` seconds."""
    limit = timedelta(seconds=timeout)
    distributed.init_process_group(_backends(), store=store, rank=rank, world_size=world_size, timeout=limit)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@contextmanager
def make_host_group(timeout: timedelta) -> Iterator[Any]:
    """Open a gloo group of all ranks, for data on the host, whatever backend the program's own group has."""
    group = distributed.new_group(backend="gloo", timeout=timeout)
    try:
        yield group
    finally:
        distributed.destroy_process_group(group)


def gather_tensors(tensor: Tensor, group: Any) -> Tensor:
    """Stack a tensor of every rank of such a group; all of them have the same shape."""
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(parts, tensor, group=group)
    return torch.stack(parts)


def open_store(address: tuple[str, int] | None = None, *, timeout: float = 10.0) -> Any:
    """Open a torch store for messages among processes, a new one here or that at a host and port; seconds to answer."""
    host, port = address or ("127.0.0.1", 0)
    store: Any = cast(Any, distributed).TCPStore
    limit = timedelta(seconds=timeout)
    return store(host, port, is_master=address is None, timeout=limit, wait_for_workers=False)


def _backends() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and distributed.is_nccl_available() else "gloo"
