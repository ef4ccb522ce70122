"""Partition runs: one pass with read-ahead, a progress bar, and errors that name their partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from gpupipe.backend.device.host_memory import is_out_of_memory
from gpupipe.cluster import get_executor
from gpupipe.errors import GpupipeError, PartitionFailed
from gpupipe.io.planning.partitions import Partition, Source
from gpupipe.io.planning.table import AnyTable
from gpupipe.step import IN_STEP
from gpupipe.support.text import format_count

Result = TypeVar("Result")
Tell = Callable[[str], None]
_log = logging.getLogger("gpupipe")


def run_partitions(
    work: Callable[[AnyTable], Result], dataset: AnyTable, backend: str, title: str, *, whole: bool = False
) -> Generator[Result]:
    """Yield `work` of a dataset of one partition, for each, in order, by the executor in force.

    A partition that does not fit in memory is worked on in halves, which give a result each. On one GPU partitions
    come one after the other: its kernels already use the whole device. Whoever may stop before the end closes it
    (`contextlib.closing`), which ends what is under way.

    Args:
        work: sent to the workers of a cluster, with what it holds.
        dataset: whose partitions are worked on.
        backend: `"cpu"` or `"gpu"`.
        title: of the progress bar.
        whole: whether a partition gives one result, and `work` itself sees to what does not fit.

    Raises:
        PartitionFailed: see `in_partition`.

    Memory: at most one partition per worker at a time, and a few results.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> numbers = gp.from_frame(pd.DataFrame({"n": range(10)}), num_partitions=3)
        >>> list(run_partitions(len, numbers, "cpu", "count"))
        [3, 3, 4]
    """
    executor, parts = get_executor(), dataset.partitions
    at_once = 1 if backend == "gpu" and executor.in_process else None
    # The query goes to a worker once, with the tables it joins; what goes with each partition is its own source.
    function = partial(_on_source, _as_one if whole else in_halves, work, dataset.of_partitions([]))
    results = executor.map(function, (part.source for part in dataset.parts()), at_once=at_once)
    for partition in tqdm(parts, title, disable=None, leave=False):
        with in_partition(partition):  # whatever becomes of its worker
            found, halved = next(results)
        for told in halved:
            _log.warning(told)
        yield from found


def _on_source(
    how: Callable[[Callable[[AnyTable], Result], AnyTable, Tell], Iterator[Result]],
    work: Callable[[AnyTable], Result],
    dataset: AnyTable,
    source: Source,
) -> tuple[list[Result], list[str]]:
    """Return the results, and messages for the program to report, as a worker's log may be anywhere."""
    halved: list[str] = []
    return list(how(work, replace(dataset, source=source), halved.append)), halved


def _as_one(work: Callable[[AnyTable], Result], part: AnyTable, _: Tell) -> Iterator[Result]:
    (partition,) = part.partitions
    with in_partition(partition):
        try:
            found = work(part)
        except Exception as cause:
            if not is_out_of_memory(cause):
                raise
            raise PartitionFailed(
                str(partition.description),
                f"its {format_count(partition.num_rows, 'row')} are needed together, and memory does not suffice "
                f"({cause})",
                expected="partitions that fit in memory three times per worker",
                remedy="a smaller partition_bytes where the files are read, or fewer workers",
            ) from cause
    yield found


def in_halves(work: Callable[[AnyTable], Result], part: AnyTable, tell: Tell = _log.warning) -> Iterator[Result]:
    """Apply `work` to a dataset of one partition; recursively to its halves where memory does not suffice.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> def few(part):
        ...     if len(part) > 3:
        ...         raise MemoryError("no room")
        ...     return len(part)
        >>> list(in_halves(few, gp.from_frame(pd.DataFrame({"n": range(10)}))))
        [2, 3, 2, 3]
    """
    (partition,) = part.partitions
    with in_partition(partition):
        try:
            found = [work(part)]
        except Exception as cause:
            if partition.num_rows < 2 or not is_out_of_memory(cause):
                raise
            found, reason = [], str(cause).partition("\n")[0] or type(cause).__name__
    if found:
        yield from found
        return
    rows = format_count(partition.num_rows, "row")
    tell(f"{partition.description}: {rows} are too large for memory ({reason}), worked on in halves")
    for half in partition.split_at(partition.num_rows // 2):
        yield from in_halves(work, part.of_partitions([half]), tell)


@contextmanager
def in_partition(partition: Partition) -> Iterator[None]:
    """Name the partition in whatever fails inside.

    Raises:
        PartitionFailed: around an error that is not one of ours; ours pass with a note.

    Example:
        >>> with in_partition(Partition(3, (), "rows 20 to 30")):
        ...     1 / 0
        Traceback (most recent call last):
        ...
        gpupipe.errors.PartitionFailed: rows 20 to 30: partition 3 failed (ZeroDivisionError: division by zero).
        Expected a partition every step can work on.
        Try: the cause above, on this partition alone
    """
    try:
        yield
    except GpupipeError as error:
        note = f"in partition {partition.index}: {partition.description}"
        if not isinstance(error, PartitionFailed) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    except Exception as error:
        step = "".join(f" {note}" for note in getattr(error, "__notes__", ()) if note.startswith(IN_STEP))
        raise PartitionFailed(
            str(partition.description),
            f"partition {partition.index} failed{step} ({type(error).__name__}: {error})",
            expected="a partition every step can work on",
            remedy="the cause above, on this partition alone",
        ) from error
