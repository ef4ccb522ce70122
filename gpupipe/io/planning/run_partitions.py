"""Passes over partitions: work on each, in order, by threads or a cluster's workers; in halves where memory ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TypeAlias, TypeVar

from gpupipe.backend import is_out_of_memory
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import GpupipeError, PartitionFailed
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.planning.table import AnyTable, Source
from gpupipe.progress import Progress
from gpupipe.step import IN_STEP
from gpupipe.support.text import format_count

Tell: TypeAlias = Callable[[str], None]
Result = TypeVar("Result")

_log = logging.getLogger("gpupipe")


def run_partitions(
    work: Callable[[AnyTable], Result], dataset: AnyTable, backend: str, title: str, *, whole: bool = False
) -> Generator[Result]:
    """Yield `work` of a dataset of one partition, for each, in order, by the executor in force.

    A partition that does not fit in memory is worked on in halves, which give a result each; one that is needed `whole`
    gives one result, and is an error then. `work` goes to the workers of a cluster, with what it holds; `backend` is
    `"cpu"` or `"gpu"`, and `title` the progress bar's. On one GPU partitions come one after the other: its kernels
    already use the whole device. Whoever may stop before the end closes it (`contextlib.closing`), which ends what is
    under way. An error that is not one of ours is wrapped in PartitionFailed; ours pass with a note.

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
    function = partial(_on_source, work, dataset.of_partitions([]), whole)
    results = executor.map(function, (dataset.source.only([part]) for part in parts), at_once=at_once)
    for partition in Progress(parts, title, count_rows=attrgetter("num_rows"), unit=" parts", leave=False):
        with _in_partition(partition):  # whatever becomes of its worker
            done, messages = next(results)
        for message in messages:
            _log.warning(message)
        yield from done


def _on_source(
    work: Callable[[AnyTable], Result], dataset: AnyTable, whole: bool, source: Source
) -> tuple[list[Result], list[str]]:
    """Return the results, and messages for the program to report, as a worker's log may be anywhere."""
    messages: list[str] = []
    return list(in_halves(work, replace(dataset, source=source), messages.append, whole=whole)), messages


def in_halves(
    work: Callable[[AnyTable], Result], part: AnyTable, tell: Tell = _log.warning, *, whole: bool = False
) -> Iterator[Result]:
    """Apply `work` to a dataset of one partition; recursively to its halves where memory does not suffice.

    A partition that is needed `whole` is PartitionFailed then.

    Example:
        >>> import pandas as pd, gpupipe as gp
        >>> rows = gp.from_frame(pd.DataFrame({"n": range(10)}))
        >>> list(in_halves(lambda part: len(part) if len(part) < 4 else bytes(1 << 60), rows))
        [2, 3, 2, 3]
    """
    (partition,) = part.partitions
    rows = format_count(partition.num_rows, "row")
    with _in_partition(partition):
        try:
            results = [work(part)]
        except Exception as cause:
            if not is_out_of_memory(cause) or (partition.num_rows < 2 and not whole):
                raise
            if whole:
                problem = f"its {rows} are needed together, and memory does not suffice ({cause})"
                expected = "partitions that fit in memory three times per worker"
                remedy = "a smaller partition_bytes where the files are read, or fewer workers"
                raise PartitionFailed(partition.description, problem, expected=expected, remedy=remedy) from cause
            results, reason = [], str(cause).partition("\n")[0] or type(cause).__name__
    if results:
        yield from results
        return
    tell(f"{partition.description}: {rows} are too large for memory ({reason}), worked on in halves")
    for half in partition.split_at(partition.num_rows // 2):
        yield from in_halves(work, part.of_partitions([half]), tell)


@contextmanager
def _in_partition(partition: Partition) -> Iterator[None]:
    """Name the partition in whatever fails inside: wrap an error that is not ours, add a note to one of ours."""
    try:
        yield
    except GpupipeError as error:
        note = f"in partition {partition.index}: {partition.description}"
        if not isinstance(error, PartitionFailed) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    except Exception as error:
        step = "".join(f" {note}" for note in getattr(error, "__notes__", ()) if note.startswith(IN_STEP))
        problem = f"partition {partition.index} failed{step} ({type(error).__name__}: {error})"
        expected, remedy = "a partition every step can work on", "the cause above, on this partition alone"
        raise PartitionFailed(partition.description, problem, expected=expected, remedy=remedy) from error
