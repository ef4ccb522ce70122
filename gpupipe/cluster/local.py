"""Running a function over partitions with the threads of this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["default_threads", "ordered_map"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_threads() -> int:
    """As many threads as this process may use cores, four at most: each works on a partition of its own in memory.

    Example:
        >>> 1 <= default_threads() <= 4
        True
    """
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """The results of `function` over `items`, in order, worked out ahead by a few threads.

    Reading, decoding and NumPy release the interpreter lock, so the next partition is prepared while one is consumed.
    With one thread everything runs in the caller's.

    Raises:
        Exception: what `function` raised, at the place of its item; later items are abandoned.

    Memory: at most `threads` results wait.

    Example:
        >>> list(ordered_map(abs, [-1, -2, -3]))
        [1, 2, 3]
    """
    threads = default_threads() if threads is None else threads
    if threads <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="gpupipe") as pool:
        try:
            for item in items:
                if len(waiting) >= threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
