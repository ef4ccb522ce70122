"""Several processes that train one model: the few things they ask each other, each a call that all of them make.

Each rank learns its part of a batch. Gradients of sum(weight * loss) and the sum of weights are added up over the ranks
in one call per step, and divided there: every row counts once, whichever rank has how many of them. What torch has
cannot do that: DistributedDataParallel reduces in the backward pass, and waits for ever for a rank that has no rows or
learns its batch in more parts; its collectives of objects cannot be left when another rank has failed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from gpupipe.errors import BadConfig, ClusterLost
from gpupipe.tensors.process_group import gather_tensors, make_host_group
from gpupipe.tensors.sharding import get_rank
from gpupipe.training.distributed.collectives import packed, told_by_all, unpacked
from gpupipe.training.distributed.failure_store import RollCall, host_for
from gpupipe.training.optim.rowwise_adagrad import entries

__all__ = ["Together", "meeting"]

Value = TypeVar("Value")

_LOOK_EVERY = timedelta(seconds=1)
_DENSE = -1


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
        self._tables: set[nn.Parameter] = set()

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
        sparse = [module for module in model.modules() if getattr(module, "sparse", False) is True]
        self._tables = {parameter for module in sparse for parameter in module.parameters(recurse=False)}

    def sum_gradients(self, parameters: Sequence[nn.Parameter], weight: Tensor) -> None:
        """Add up gradients and `weight` over the ranks, in place, and average running statistics: one call per dtype.

        Sparse gradients of modules with `sparse=True` get the entries of all ranks; those of others are made dense.

        Memory: the gradients once more meanwhile.
        """
        if self.size == 1:
            return
        if tables := [parameter for parameter in parameters if parameter in self._tables]:
            self._join_entries(tables)
        for parameter in parameters:
            if parameter.grad is None:  # this rank's rows had no use for it
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse and parameter not in self._tables:  # others may not have it so
                parameter.grad = parameter.grad.to_dense()
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
            torch._foreach_copy_(tensors, [part.view_as(to) for part, to in zip(parts, tensors, strict=True)])

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
        return [value] if self.size == 1 else told_by_all(value, self.each)

    def from_first(self, make: Callable[[], Value]) -> Value:
        """What the first rank makes, a plain value, on all of them; where it raises, the others are told of it.

        Raises:
            ClusterLost: it raised, and this is another rank.
        """
        if self.size == 1:
            return make()
        content = packed(make()) if self.first else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor(len(content))
        self._done(size, partial(distributed.broadcast, size, 0))
        content = content if self.first else content.new_empty(int(size))
        self._done(content, partial(distributed.broadcast, content, 0))
        value: Value = unpacked(content)
        return value

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank goes, and why."""
        if self._roll is None or isinstance(error, SystemExit):  # which all of them have agreed on
            return
        if not isinstance(error, ClusterLost):
            self._roll.leave(f"{type(error).__name__}: {error}".partition("\n")[0])
        self._roll.linger()

    def close(self) -> None:
        """Let go of the connections: where an error's traceback keeps this object, others would wait for their end."""
        self._talk = None

    def _join_entries(self, tables: Sequence[nn.Parameter]) -> None:
        """Give sparse gradients the entries of all ranks, which may have different numbers of them, or none."""
        counts = self.each(torch.tensor([_num_entries(parameter.grad) for parameter in tables]))
        for parameter, of_ranks in zip(tables, counts.T.tolist(), strict=True):
            gradient = parameter.grad
            if _DENSE in of_ranks:  # on some rank, so on all
                if gradient is not None and gradient.is_sparse:
                    parameter.grad = gradient.to_dense()
                continue
            if gradient is None:
                rows, values = torch.empty(0, dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
            else:
                rows, values = entries(gradient)
            rows, values = self._rows_of(rows, of_ranks), self._rows_of(values, of_ranks)
            parameter.grad = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)

    def _rows_of(self, tensor: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks, which have so many each."""
        most = max(*counts, 1)
        padded = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        parts = self.rows(padded).view(self.size, most, *tensor.shape[1:])
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

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
            else:
                self._wait_for(call)
        except RuntimeError as cause:
            lost = self._roll.lost(cause)
        else:
            return
        raise lost  # without its cause, whose traceback would keep connections open that others wait for

    def _wait_for(self, call: Callable[..., Any]) -> None:
        assert self._roll is not None
        work = call(group=self._talk, async_op=True)
        while not self._waited(work):
            if self._roll.alarm():
                work.wait(_LOOK_EVERY)  # the last time

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


def _num_entries(gradient: Tensor | None) -> int:
    if gradient is None:
        return 0
    return len(entries(gradient)[0]) if gradient.is_sparse else _DENSE


@contextmanager
def meeting(loader: object, timeout: float, *, alone: bool = False) -> Iterator[Together]:
    """The ranks that train together, of torch.distributed's group; inside, what fails on one of them ends all.

    Args:
        loader: which deals its rows to them; one that deals to nobody (`world_size` 1) trains alone.
        timeout: seconds that one waits for another.
        alone: whether what is no loader of ours deals to nobody, too.

    Raises:
        BadConfig: ranks with more batches than others, or a loader that deals to other ranks than there are.
        ClusterLost: a rank failed, is gone or hangs.
    """
    rank, size = get_rank(None, None)
    if size == 1 or getattr(loader, "world_size", 1 if alone else size) == 1:
        yield Together()
        return
    with make_host_group(timedelta(seconds=timeout)) as talk:
        together = Together(rank, size, talk, _roll_call(rank, size, talk))
        try:
            _check(together, loader)
            yield together
        except BaseException as error:
            together.leave(error)
            raise
        finally:
            together.close()


def _roll_call(rank: int, size: int, talk: Any) -> RollCall:
    """The store, which rank 0 opens and tells the others of."""
    mine = RollCall(rank, size) if rank == 0 else None
    told = told_by_all((socket.gethostname(), mine.port if mine else 0), partial(gather_tensors, group=talk))
    hosts, ports = zip(*told, strict=True)
    return mine or RollCall(rank, size, (host_for(hosts), ports[0]))


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
