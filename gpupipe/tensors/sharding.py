"""Sharding of batches over processes, so that all of them take equally many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed

from gpupipe.errors import BadConfig
from gpupipe.support.validation import is_integer, is_sequence
from gpupipe.tensors.process_group import MEETING, gather_tensors, is_joined, join, make_host_group

__all__ = ["Sharding", "Step"]


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
