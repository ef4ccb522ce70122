"""One pass over the partitions: a few worked on ahead, a progress bar, every failure named by its partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

from gpupipe.backend import Backend
from gpupipe.cluster import ordered_map
from gpupipe.errors import GpupipeError, PartitionFailed
from gpupipe.io import Partition

__all__ = ["in_partition", "over_partitions"]

Result = TypeVar("Result")


def over_partitions(
    work: Callable[[Partition], Result], partitions: Sequence[Partition], backend: Backend, title: str
) -> Iterator[Result]:
    """`work(partition)` for each, in order.

    On the GPU one after the other: its kernels already use the whole device.

    Raises:
        PartitionFailed: see `in_partition`.

    Memory: at most one partition per thread at a time, and as many results.
    """

    def named(partition: Partition) -> Result:
        with in_partition(partition):
            return work(partition)

    results = ordered_map(named, partitions, threads=1 if backend.name == "gpu" else None)
    yield from tqdm(results, title, len(partitions), disable=None, leave=False)


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
