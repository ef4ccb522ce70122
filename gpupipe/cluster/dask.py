"""Dask and Dask-CUDA workers as an executor."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from threading import Event, Thread
from typing import Any, TypeVar

import cloudpickle
from distributed import Client, Future
from distributed import TimeoutError as DaskTimeout
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from gpupipe.errors import ClusterLost

__all__ = ["DaskExecutor"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_EVERY = 1.0
"""Seconds between two looks at whether the scheduler and workers are still there."""


class DaskExecutor:
    """The workers of a Dask scheduler.

    Args:
        client: connected.
        patience: seconds without a scheduler, or without any worker, before the work is given up.
    """

    in_process = False

    def __init__(self, client: Client, patience: float) -> None:
        self._client, self._patience = client, patience

    @property
    def num_workers(self) -> int:
        """Threads of all workers there are now."""
        return sum(self._client.nthreads().values())

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int | None = None
    ) -> Iterator[Result]:
        """The results of `function` over `items`, in order; two for each worker are under way.

        Raises:
            ClusterLost: no scheduler or no worker for as long as patience lasts, or an item killed several workers.
            Exception: what `function` raised, at the place of its item; later items are abandoned.
        """
        # A task of its own: the scheduler can make it again on any worker, where scattered data would be lost.
        shared = self._client.submit(pickle.loads, cloudpickle.dumps(function), pure=False)
        self._wait(shared)
        self._client.replicate([shared])  # or Dask would run all items where the function is, until others steal them
        room = at_once or 2 * max(1, self.num_workers)
        waiting: deque[Future] = deque()
        try:
            for item in items:
                if len(waiting) >= room:
                    yield self._result(waiting.popleft())
                waiting.append(self._client.submit(_applied, shared, item, pure=False))
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def _wait(self, future: Future) -> None:
        """Until the future is done; looks at the cluster in between, so that no wait is longer than patience."""
        done = Event()
        future.add_done_callback(lambda _: done.set())
        last_seen = time.monotonic()
        while not done.wait(_LOOK_EVERY):
            if self._answers():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > self._patience:
                raise self._lost()

    def _result(self, future: Future) -> Any:
        self._wait(future)
        try:
            return future.result(timeout=self._patience)
        except KilledWorker as cause:
            raise ClusterLost(
                "cluster",
                f"the same partition ended several workers ({cause})",
                expected="workers that outlive their work",
                remedy="smaller partitions (partition_bytes=), or a larger memory_limit=",
            ) from cause
        except (CancelledError, CommClosedError, DaskTimeout) as cause:
            raise self._lost() from cause

    def _answers(self) -> bool:
        """Whether the scheduler answers and has a worker; asked in a thread, since an answer may never come."""
        found: list[int] = []
        asking = Thread(target=lambda: found.append(self.num_workers), daemon=True)
        if self._client.status == "running":
            asking.start()
            asking.join(self._patience)
        return bool(found and found[0])

    def _lost(self) -> ClusterLost:
        there = "no scheduler" if self._client.status != "running" else "no worker"
        return ClusterLost(
            "cluster",
            f"{there} answered for {self._patience:.0f} s",
            expected="a scheduler with at least one worker",
            remedy="a look at their logs; then the same call again: files that are written whole are not written twice",
        )


def _applied(function: Callable[[Item], Result], item: Item) -> Result:
    return function(item)
