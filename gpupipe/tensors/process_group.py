"""Process group: joined on the first question for the rank of a process that torchrun started."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, distributed

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# To meet for the first time; ranks read their tables before that, some of them longer than others.
MEETING = timedelta(minutes=30)

logger = logging.getLogger(__name__)


def is_joined() -> bool:
    """Return whether this process is in a group of torch.distributed.

    Example:
        >>> is_joined()
        False
    """
    return distributed.is_available() and distributed.is_initialized()


def join() -> None:
    """Join the group in the environment, as torchrun sets it; do nothing without one, or in a group of one.

    The process takes the GPU of its number on this machine, where it sees several, and leaves the group at its end.
    """
    told = all(name in os.environ for name in LAUNCHED)
    if not told or os.environ["WORLD_SIZE"] == "1" or not distributed.is_available() or is_joined():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    distributed.init_process_group(_backends(), timeout=MEETING)
    atexit.register(_leave)
    logger.info("this is rank %d of %d", distributed.get_rank(), distributed.get_world_size())


@contextmanager
def open_group(store: Any, rank: int, world_size: int, timeout: float) -> Iterator[None]:
    """Make this process, inside, a rank of a group that meets at a store of torch.distributed's.

    Args:
        store: which all of them reach.
        rank: this one.
        world_size: how many there are.
        timeout: seconds in which all have to come, and to answer each other.
    """
    limit = timedelta(seconds=timeout)
    distributed.init_process_group(_backends(), store=store, rank=rank, world_size=world_size, timeout=limit)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@contextmanager
def make_host_group(timeout: timedelta) -> Iterator[Any]:
    """Return a gloo group of all ranks, for data on the host, whatever backend the program's own group has.

    Args:
        timeout: in which each has to answer the others.
    """
    group = distributed.new_group(backend="gloo", timeout=timeout)
    try:
        yield group
    finally:
        distributed.destroy_process_group(group)


def gather_tensors(tensor: Tensor, group: Any) -> Tensor:
    """Concatenate a tensor of every rank of such a group; all of them have the same shape."""
    found = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, tensor, group=group)
    return torch.stack(found)


def open_store(address: tuple[str, int] | None = None, *, timeout: float = 10.0) -> Any:
    """Open a torch store for messages among processes: a new one here, or the one at an address.

    Args:
        address: host and port; None for a new one, whose `port` the others need.
        timeout: seconds that a question to it may take.
    """
    host, port = address or ("127.0.0.1", 0)
    store: Any = cast(Any, distributed).TCPStore
    limit = timedelta(seconds=timeout)
    return store(host, port, is_master=address is None, timeout=limit, wait_for_workers=False)


def _backends() -> str:
    """Return the communication backends of the ranks: gloo, and NCCL between GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and distributed.is_nccl_available() else "gloo"


def _leave() -> None:
    if is_joined():
        distributed.destroy_process_group()
