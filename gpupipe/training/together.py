"""Several processes that train one model: the few things they ask each other, each a call that all of them make.

Each rank learns its part of a batch. Gradients of sum(weight * loss) and the sum of weights are added up over the ranks
in one call per step, and divided there: every row counts once, whichever rank has how many of them.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from gpupipe.errors import BadConfig, ClusterLost
from gpupipe.tensors.ranks import who_am_i
from gpupipe.training.many import copy_, entries
from gpupipe.training.rollcall import RollCall, host_for

__all__ = ["Together", "meeting"]

Value = TypeVar("Value")

_LOOK_EVERY = timedelta(seconds=1)


class Together:
    """The ranks of one fit as one of them sees them; a process alone is rank 0 of 1, and asks nobody.

    Args:
        rank: this one, from 0.
        size: how many there are.
        talk: a group of gloo's, for what lies on the host.
        roll: where word is left of failures.
    """

    def __init__(self, rank: int = 0, size: int = 1, talk: Any = None, roll: RollCall | None = None) -> None:
        self.rank, self.size = rank, size
        self._talk, self._roll = talk, roll
        self._statistics: list[Tensor] = []

    @property
    def first(self) -> bool:
        """Whether this is the rank that saves, logs and shows."""
        return self.rank == 0

    def share(self, model: nn.Module) -> None:
        """Give all ranks the first one's weights and buffers; running statistics are averaged at each step from now."""
        if self.size == 1:
            return
        for tensor in filter(torch.is_tensor, model.state_dict().values()):
            self._done(tensor, partial(distributed.broadcast, tensor, 0))
        running = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
        self._statistics = [b for module in running for b in module.buffers(recurse=False) if b.is_floating_point()]

    def sum_gradients(self, parameters: Sequence[nn.Parameter], weight: Tensor) -> None:
        """Add up gradients and `weight` over the ranks, in place, and average running statistics: one call per dtype.

        Sparse gradients get the entries of all ranks, which must have as many each.

        Memory: the gradients once more meanwhile.
        """
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:  # this rank's rows had no use for it
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = self._all_entries(parameter.grad)
        for statistic in self._statistics:
            statistic.div_(self.size)
        dense = [g for parameter in parameters if (g := parameter.grad) is not None and not g.is_sparse]
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in [weight, *self._statistics, *dense]:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for tensors in by_dtype.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self._sum(flat)
            parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in tensors])
            copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, which have as many each, one rank after the other."""
        if self.size == 1:
            return tensor
        mine = tensor.detach().contiguous()
        as_bytes = mine.to(torch.uint8) if mine.dtype == torch.bool else mine
        found = [torch.empty_like(as_bytes) for _ in range(self.size)]
        self._done(as_bytes, partial(distributed.all_gather, found, as_bytes))
        return torch.cat(found).to(tensor.dtype)

    def each(self, tensor: Tensor) -> Tensor:
        """A small tensor of every rank, stacked."""
        return self.rows(tensor[None])

    def any(self, flag: bool) -> bool:
        """Whether it is so on some rank."""
        return bool(self.each(torch.tensor(flag)).any()) if self.size > 1 else flag

    def gather(self, value: Value) -> list[Value]:
        """A plain value of every rank, in their order, on all of them."""
        if self.size == 1:
            return [value]
        content = _as_bytes(value)
        sizes = self.each(torch.tensor(len(content))).tolist()
        padded = self.each(torch.cat([content, content.new_zeros(max(sizes) - len(content))]))
        return [_from_bytes(row[:size]) for row, size in zip(padded, sizes, strict=True)]

    def from_first(self, make: Callable[[], Value]) -> Value:
        """What the first rank makes, on all of them; what it raises, too."""
        if self.size == 1:
            return make()
        made: tuple[Any, Exception | None] = (None, None)
        if self.first:
            try:
                made = make(), None
            except Exception as error:  # noqa: BLE001 - raised below, on all ranks
                made = None, error
        value, failure = self._broadcast(made)
        if failure is not None:
            raise failure
        return value  # type: ignore[no-any-return]

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank goes, and why."""
        if self._roll is None or isinstance(error, SystemExit):  # which all of them have agreed on
            return
        if not isinstance(error, ClusterLost):
            self._roll.leave(f"{type(error).__name__}: {error}".partition("\n")[0])
        self._roll.linger()

    def _broadcast(self, value: Any) -> Any:
        content = _as_bytes(value)
        size = torch.tensor([len(content)])
        self._done(size, partial(distributed.broadcast, size, 0))
        if not self.first:
            content = torch.empty(int(size), dtype=torch.uint8)
        self._done(content, partial(distributed.broadcast, content, 0))
        return _from_bytes(content)

    def _all_entries(self, gradient: Tensor) -> Tensor:
        indices, values = entries(gradient)
        return torch.sparse_coo_tensor(
            self.rows(indices)[None], self.rows(values), gradient.shape, check_invariants=False
        )

    def _sum(self, tensor: Tensor) -> None:
        self._done(tensor, partial(distributed.all_reduce, tensor))

    def _done(self, tensor: Tensor, call: Callable[..., Any]) -> None:
        """Make a call of torch.distributed's; on the host no longer than all others are there.

        What lies on a GPU goes by the group's own way, NCCL, behind what was enqueued before; the host does not wait.

        Raises:
            ClusterLost: another rank failed, is gone or hangs.
        """
        assert self._roll is not None
        try:
            if tensor.is_cuda:
                call()
                return
            work = call(group=self._talk, async_op=True)
            while not self._waited(work):
                if self._roll.alarm():
                    work.wait(_LOOK_EVERY)  # the last time
        except RuntimeError as cause:
            raise self._roll.lost(cause) from cause

    @staticmethod
    def _waited(work: Any) -> bool:
        """Whether it is done, after a second at the latest; what went wrong in it is raised."""
        try:
            work.wait(_LOOK_EVERY)
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # it may have come to its end just now
        return True


def _as_bytes(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _from_bytes(content: Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())  # noqa: S301 - from the same program's other ranks


@contextmanager
def meeting(loader: object, patience: float, *, alone: bool = False) -> Iterator[Together]:
    """The ranks that train together, of torch.distributed's group; inside, what fails on one of them ends all.

    Args:
        loader: which deals its rows to them; one that deals to nobody (`world_size` 1) trains alone.
        patience: seconds that one waits for another.
        alone: whether what is no loader of ours deals to nobody, too.

    Raises:
        BadConfig: ranks with more batches than others, or a loader that deals to other ranks than there are.
        ClusterLost: a rank failed, is gone or hangs.
    """
    rank, size = who_am_i(None, None)
    if size == 1 or getattr(loader, "world_size", 1 if alone else size) == 1:
        yield Together()
        return
    talk = distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience))
    try:
        together = Together(rank, size, talk, _roll_call(rank, size, talk))
        try:
            _check(together, loader)
            yield together
        except BaseException as error:
            together.leave(error)
            raise
    finally:
        distributed.destroy_process_group(talk)


def _roll_call(rank: int, size: int, talk: Any) -> RollCall:
    """The store, which rank 0 opens and the others are told of."""
    hosts: list[Any] = [None] * size
    distributed.all_gather_object(hosts, socket.gethostname(), group=talk)
    mine = RollCall(rank, size) if rank == 0 else None
    told: list[Any] = [(host_for(hosts), mine.port) if mine is not None else None]
    distributed.broadcast_object_list(told, src=0, group=talk)
    return mine or RollCall(rank, size, told[0])


def _check(together: Together, loader: Any) -> None:
    dealt = getattr(loader, "world_size", together.size)
    if dealt != together.size:
        raise BadConfig(
            "Trainer.fit",
            "the train loader deals its rows to other ranks than there are",
            got=dealt,
            expected=f"{together.size}, as in torch.distributed's group",
            remedy="pipeline.loader(...) without rank and world_size",
        )
    steps = together.gather(len(loader))
    if len(set(steps)) > 1:
        raise BadConfig(
            "Trainer.fit",
            "ranks have different numbers of batches, and would wait for each other",
            got=steps,
            expected="as many on each",
            remedy="pipeline.loader(..., sharded=True), which pads what is short with rows of weight 0",
        )
