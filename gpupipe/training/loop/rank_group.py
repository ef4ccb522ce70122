"""Rank group: the collectives of the processes that train one model; all ranks make each call or all hear of a failure.

Gradients of sum(weight * loss) and the sum of weights are reduced over the ranks in one call per step, then divided:
every row counts once, however many each rank has. torch's DistributedDataParallel reduces in the backward pass, and
hangs if a rank has no rows or learns its batch in more parts; its collectives cannot be left when another rank failed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor, distributed, nn

from gpupipe.errors import BadConfig, ClusterLost
from gpupipe.tensors.order import gather_tensors, get_rank, make_host_group, open_store
from gpupipe.training.loop.batches import join_tensors, num_batches, split_tensors
from gpupipe.training.optim.optimizers import get_entries

Value = TypeVar("Value")

ANSWER = 5.0  # seconds in which each rank that lives can have noticed that another failed
_ALARM = "alarm"
_LOOK_EVERY = timedelta(seconds=1)
_DENSE = -1


def _pack_tree(value: object) -> Tensor:
    """Serialize a tree of tensors, numbers, strings, booleans and None to bytes on the host: uint8."""
    text, tensors = split_tensors(value)
    tensors["text"] = torch.frombuffer(bytearray(json.dumps(text).encode()), dtype=torch.uint8)
    return torch.frombuffer(bytearray(bytes_of(tensors)), dtype=torch.uint8)


def _unpack_tree(content: Tensor) -> Any:
    tensors = tensors_from(content.numpy().tobytes())
    return join_tensors(json.loads(tensors["text"].numpy().tobytes()), tensors)


def _all_gather_object(value: Value, each: Callable[[Tensor], Tensor]) -> list[Value]:
    """Gather a plain value of every rank, in rank order, on all ranks; `each` stacks a small tensor of every rank."""
    content = _pack_tree(value)
    sizes = each(torch.tensor(len(content))).tolist()
    padded = each(torch.cat([content, content.new_zeros(max(sizes) - len(content))]))
    return [_unpack_tree(row[:size]) for row, size in zip(padded, sizes, strict=True)]


class FailureStore:
    """Failure store of one fit, as one of its ranks sees it; rank 0 opens it, the others reach it at `address`."""

    def __init__(self, rank: int, size: int, address: tuple[str, int] | None = None) -> None:
        self.rank, self.size = rank, size
        self._store = open_store(address)
        self.port: int = self._store.port
        self._waits_for = {number for number in range(size) if number != rank}

    def any_failed(self) -> bool:
        """Return whether some rank has failed, or rank 0 is gone and the store with it."""
        try:
            return bool(self._store.check([_ALARM]))
        except RuntimeError:
            return True

    def report(self, reason: str) -> None:
        """Write why this rank ends; an empty reason means that it ends because another rank failed."""
        with suppress(RuntimeError):  # rank 0 is gone, and the store with it
            self._store.set(f"rank {self.rank}", reason)
            self._store.set(_ALARM, "")

    def make_lost_error(self, cause: Exception) -> ClusterLost:
        """Make the error of a rank that waits in vain: which ranks failed and why, and which do not answer."""
        self.report("")
        peers, deadline = {*range(self.size)} - {self.rank}, time.monotonic() + ANSWER
        try:
            failed, silent = self._read_reasons(peers)
            while silent and not failed and time.monotonic() <= deadline:
                time.sleep(0.05)
                failed, silent = self._read_reasons(peers)
            self._store.set(f"read {self.rank}", "")
        except RuntimeError:
            failed, silent = {}, {0}
        self._waits_for -= {*silent, *failed}
        reports = [f"rank {rank} failed ({reason})" for rank, reason in failed.items()]
        if silent and not failed:
            reports.append(f"rank {', '.join(map(str, sorted(silent)))} is gone or hangs")
        where = f"Trainer.fit, rank {self.rank} of {self.size}"
        problem = f"it cannot go on alone: {'; '.join(reports) or str(cause).partition(chr(10))[0]}"
        remedy = "read that rank's own output; then fit(..., resume='latest') where there are checkpoints"
        return ClusterLost(where, problem, expected="all ranks at work until the end", remedy=remedy)

    def wait_for_readers(self) -> None:
        """Keep the store on rank 0 until the ranks that live have read it or failed, or for some seconds."""
        deadline = time.monotonic() + ANSWER
        while self.rank == 0 and self._waits_for and time.monotonic() < deadline:
            left = self._waits_for - {*self._read_reasons(self._waits_for)[0]}
            self._waits_for = {rank for rank in left if not self._store.check([f"read {rank}"])}
            time.sleep(0.05)

    def _read_reasons(self, ranks: Collection[int]) -> tuple[dict[int, str], set[int]]:
        """Read the reasons of those of these ranks that failed by themselves, and which have not written any."""
        senders = [rank for rank in ranks if self._store.check([f"rank {rank}"])]
        reasons = {rank: self._store.get(f"rank {rank}").decode() for rank in senders}
        return {rank: reason for rank, reason in reasons.items() if reason}, {*ranks} - {*senders}


class RankGroup:
    """Ranks of one fit, as one of them sees them; a single process is rank 0 of 1 and makes no calls."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        talk: Any = None,
        failures: FailureStore | None = None,
        *,
        host: str = "127.0.0.1",
        timeout: float = 600.0,
    ) -> None:
        self.rank, self.size = rank, size
        self.host, self.timeout = host, timeout  # where rank 0 is reached, and how long a rank waits for the others
        self._talk, self._failures = talk, failures  # a gloo group, for tensors on the host
        self._statistics: list[Tensor] = []
        self._tables: set[nn.Parameter] = set()

    @property
    def is_main(self) -> bool:
        """True on the rank that saves, logs and prints."""
        return self.rank == 0

    def broadcast_model(self, model: nn.Module) -> None:
        """Broadcast rank 0's weights and buffers; running statistics are averaged at each later step."""
        if self.size == 1:
            return
        for tensor in filter(torch.is_tensor, model.state_dict().values()):
            self._call_collective(tensor, partial(distributed.broadcast, tensor, 0))
        running = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
        self._statistics = [b for module in running for b in module.buffers(recurse=False) if b.is_floating_point()]
        sparse = [module for module in model.modules() if getattr(module, "sparse", False) is True]
        self._tables = {parameter for module in sparse for parameter in module.parameters(recurse=False)}

    def sum_gradients(self, parameters: Sequence[nn.Parameter], weight: Tensor) -> None:
        """Add up gradients and `weight` over the ranks, in place, and average running statistics, a call per dtype."""
        if self.size == 1:
            return
        if tables := [parameter for parameter in parameters if parameter in self._tables]:
            self._gather_sparse(tables)
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
            self._call_collective(flat, partial(distributed.all_reduce, flat))
            parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in tensors])
            torch._foreach_copy_(tensors, [part.view_as(to) for part, to in zip(parts, tensors, strict=True)])

    def all_gather_rows(self, tensor: Tensor) -> Tensor:
        """Concatenate the rows of all ranks, equally many on each, in rank order."""
        if self.size == 1:
            return tensor
        mine = tensor.detach().contiguous()
        as_bytes = mine.to(torch.uint8) if mine.dtype == torch.bool else mine
        parts = [torch.empty_like(as_bytes) for _ in range(self.size)]
        self._call_collective(as_bytes, partial(distributed.all_gather, parts, as_bytes))
        return torch.cat(parts).to(tensor.dtype)

    def all_gather_scalar(self, tensor: Tensor) -> Tensor:
        """Stack a small tensor of every rank."""
        return self.all_gather_rows(tensor[None])

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on some rank."""
        return bool(self.all_gather_scalar(torch.tensor(flag)).any()) if self.size > 1 else flag

    def gather(self, value: Value) -> list[Value]:
        """Gather a plain value of every rank, in rank order, on all ranks."""
        return [value] if self.size == 1 else _all_gather_object(value, self.all_gather_scalar)

    def broadcast_object(self, make: Callable[[], Value]) -> Value:
        """Broadcast a plain value that rank 0 makes; if it raises there, the other ranks raise `ClusterLost`."""
        if self.size == 1:
            return make()
        content = _pack_tree(make()) if self.is_main else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor(len(content))
        self._call_collective(size, partial(distributed.broadcast, size, 0))
        content = content if self.is_main else content.new_empty(int(size))
        self._call_collective(content, partial(distributed.broadcast, content, 0))
        value: Value = _unpack_tree(content)
        return value

    def make_lost_error(self, cause: Exception) -> ClusterLost:
        """Make the error of a rank whose call to the others failed; see `FailureStore`."""
        assert self._failures is not None
        return self._failures.make_lost_error(cause)

    def close(self) -> None:
        """Drop the connections: where an error's traceback keeps this object, others would wait for their end."""
        self._talk = None

    def _gather_sparse(self, tables: Sequence[nn.Parameter]) -> None:
        """Give sparse gradients the entries of all ranks, which may have different numbers of them, or none."""
        gradients = [parameter.grad for parameter in tables]
        mine = [0 if g is None else len(get_entries(g)[0]) if g.is_sparse else _DENSE for g in gradients]
        counts = self.all_gather_scalar(torch.tensor(mine))
        for parameter, gradient, of_ranks in zip(tables, gradients, counts.T.tolist(), strict=True):
            if _DENSE in of_ranks:  # on some rank, so on all
                if gradient is not None and gradient.is_sparse:
                    parameter.grad = gradient.to_dense()
                continue
            if gradient is None:
                rows, values = torch.empty(0, dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
            else:
                rows, values = get_entries(gradient)
            rows, values = self._gather_unequal_rows(rows, of_ranks), self._gather_unequal_rows(values, of_ranks)
            parameter.grad = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)

    def _gather_unequal_rows(self, tensor: Tensor, counts: Sequence[int]) -> Tensor:
        """Concatenate the rows of all ranks, whose numbers are `counts`."""
        most = max(*counts, 1)
        padded = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        parts = self.all_gather_rows(padded).view(self.size, most, *tensor.shape[1:])
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _call_collective(self, tensor: Tensor, call: Callable[..., Any]) -> None:
        """Make a call, of NCCL in stream order, or of gloo until another rank fails or hangs: `ClusterLost`."""
        assert self._failures is not None
        try:
            if tensor.is_cuda:
                call()
            else:
                _wait_for(call(group=self._talk, async_op=True), self._failures)
        except RuntimeError as cause:
            lost = self._failures.make_lost_error(cause)
        else:
            return
        raise lost  # without its cause, whose traceback would keep connections open that others wait for


def _wait_for(work: Any, failures: FailureStore) -> None:
    """Wait for a call, and raise its error, or that of a wait of a second once another rank has failed."""
    last = False
    while True:
        try:
            work.wait(_LOOK_EVERY)
        except RuntimeError:
            if last:
                raise
            if not work.is_completed():
                last = failures.any_failed()
                continue
            work.wait()  # it may have come to its end just now
        return


@contextmanager
def rank_group(loader: Any, timeout: float, *, alone: bool = False) -> Iterator[RankGroup]:
    """Open the group of ranks that train together; an unsharded loader (`alone`: another library's) trains alone."""
    rank, size = get_rank(None, None)
    dealt = getattr(loader, "world_size", 1 if alone else size)
    if size == 1 or dealt == 1:
        yield RankGroup()
        return
    with make_host_group(timedelta(seconds=timeout)) as talk:
        mine = FailureStore(rank, size) if rank == 0 else None
        address = (socket.gethostname(), mine.port if mine else 0)
        hosts, ports = zip(*_all_gather_object(address, partial(gather_tensors, group=talk)), strict=True)
        host = choose_host(hosts)
        failures = mine or FailureStore(rank, size, (host, ports[0]))
        ranks = RankGroup(rank, size, talk, failures, host=host, timeout=timeout)
        try:
            _check_deal(ranks, loader, dealt)
            yield ranks
        except SystemExit:  # which all of them have agreed on
            raise
        except BaseException as error:
            if not isinstance(error, ClusterLost):
                failures.report(f"{type(error).__name__}: {error}".partition("\n")[0])
            failures.wait_for_readers()
            raise
        finally:
            ranks.close()


def _check_deal(ranks: RankGroup, loader: Any, dealt: int) -> None:
    if dealt != ranks.size:
        problem = "the train loader deals its rows to other ranks than there are"
        expected = f"{ranks.size}, as in torch.distributed's group"
        remedy = "pipeline.loader(...) without rank and world_size"
        raise BadConfig("Trainer.fit", problem, got=dealt, expected=expected, remedy=remedy)
    steps = ranks.gather(num_batches(loader))
    if len(set(steps)) > 1:
        problem = "ranks have different numbers of batches, and would wait for each other"
        remedy = "pipeline.loader(..., sharded=True), which pads what is short with rows of weight 0"
        raise BadConfig("Trainer.fit", problem, got=steps, expected="as many on each", remedy=remedy)


def choose_host(hosts: Sequence[str]) -> str:
    """Return the name by which ranks on these hosts reach the first: one machine needs no network."""
    return "127.0.0.1" if len(set(hosts)) == 1 else os.environ.get("MASTER_ADDR") or socket.gethostbyname(hosts[0])
