"""Executor: runs plain functions over partitions on threads of this process, or on a cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from gpupipe.backend import resolve
from gpupipe.errors import BadConfig, PartitionFailed

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_threads() -> int:
    """Return the number of usable cores, at most four: each thread holds a partition in memory."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)


class Executor:
    """Executor on the threads of this process, and base class of `Cluster`; NumPy and decoding release the lock."""

    in_process = True  # so functions may share its memory; a cluster's, and their items, are pickled

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_threads = num_workers or default_threads()

    @property
    def num_workers(self) -> int:
        """The number of items processed at once."""
        return self._num_threads

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int | None = None
    ) -> Iterator[Result]:
        """Yield the results of `function` over `items`, in order, computed ahead; one thread means the caller's."""
        threads = at_once or self.num_workers
        if threads <= 1:
            yield from map(function, items)
            return
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="gpupipe") as pool:
            try:
                for item in items:
                    if len(waiting) >= threads:
                        yield waiting.popleft().result()
                    waiting.append(_submit(pool, function, item))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def call(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Run `function` on one item, in the caller's thread."""
        return function(item)

    def resolve(self, backend: str = "auto") -> str:
        """Return the name of the backend for `backend` on this machine."""
        return resolve(backend)


def _submit(pool: ThreadPoolExecutor, function: Callable[[Item], Result], item: Item) -> Future[Result]:
    try:
        return pool.submit(function, item)
    except RuntimeError as cause:
        problem, expected = f"no thread can be started ({cause})", f"memory for {default_threads()} threads"
        remedy = "larger limits (ulimit -v, ulimit -u, the container's); or one core (taskset -c 0), and no threads"
        raise PartitionFailed("executor", problem, expected=expected, remedy=remedy) from cause


_open: list[Executor] = []


def get_executor() -> Executor:
    """Return the innermost open cluster, or else the threads of this process."""
    return _open[-1] if _open else Executor()


@contextmanager
def use_executor(executor: Executor | None) -> Iterator[Executor]:
    """Set the active executor inside `with`; None changes nothing."""
    if executor is None:
        yield get_executor()
        return
    if not hasattr(executor, "in_process"):
        expected, remedy = "a gp.Cluster, or None", "with gp.Cluster(): ..."
        raise BadConfig("executor", "no cluster", got=executor, expected=expected, remedy=remedy)
    _open.append(executor)
    try:
        yield executor
    finally:
        _open.remove(executor)
