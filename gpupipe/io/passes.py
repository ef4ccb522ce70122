"""One pass over the partitions: a few worked on ahead, a progress bar, every failure named by its partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

from gpupipe.cluster import active
from gpupipe.errors import GpupipeError, PartitionFailed
from gpupipe.io.source import Partition

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["in_halves", "in_partition", "over_partitions"]

Result = TypeVar("Result")
_log = logging.getLogger("gpupipe")


def over_partitions(work: Callable[[Dataset], Result], dataset: Dataset, backend: str, title: str) -> Iterator[Result]:
    """`work` of a dataset of one partition, for each, in order, by the executor in force.

    A partition that does not fit in memory is worked on in halves, which give a result each. On one GPU partitions
    come one after the other: its kernels already use the whole device.

    Args:
        work: sent to the workers of a cluster, with what it holds.
        dataset: whose partitions are worked on.
        backend: `"cpu"` or `"gpu"`.
        title: of the progress bar.

    Raises:
        PartitionFailed: see `in_partition`.

    Memory: at most one partition per worker at a time, and a few results.
    """
    executor = active()
    at_once = 1 if backend == "gpu" and executor.in_process else None
    results = executor.map(partial(in_halves, work), dataset.parts(), at_once=at_once)
    for found in tqdm(results, title, dataset.num_partitions, disable=None, leave=False):
        yield from found


def in_halves(work: Callable[[Dataset], Result], part: Dataset) -> list[Result]:
    """`work` of a dataset of one partition; of its halves where memory does not suffice, and so on."""
    (partition,) = part.partitions
    with in_partition(partition):
        try:
            return [work(part)]
        except MemoryError as cause:
            if partition.num_rows < 2:
                raise
            reason = str(cause) or type(cause).__name__
    _log.warning("%s: too large for memory (%s), worked on in halves", partition.description, reason)
    halves = partition.split_at(partition.num_rows // 2)
    return [result for half in halves for result in in_halves(work, part.of_partitions([half]))]


@contextmanager
def in_partition(partition: Partition) -> Iterator[None]:
    """Name the partition in whatever fails inside.

    Raises:
        PartitionFailed: around an error that is not one of ours; ours pass with a note.
    """
    try:
        yield
    except GpupipeError as error:
        error.add_note(f"in partition {partition.index}: {partition.description}")
        raise
    except Exception as error:
        raise PartitionFailed(
            str(partition.description),
            f"partition {partition.index} failed ({type(error).__name__}: {error})",
            expected="a partition every step can work on",
            remedy="the cause above, on this partition alone",
        ) from error
