"""Executor on Dask and Dask-CUDA workers."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from concurrent.futures import Future as Answer
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import cloudpickle
import dask
from distributed import Client, Future, get_worker
from distributed.comm import CommClosedError

from gpupipe.backend import resolve
from gpupipe.config import settings
from gpupipe.errors import BackendMissing, BadConfig, ClusterLost, GpupipeError

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_EVERY = 1.0
"""Seconds between two checks that the scheduler and workers are alive."""
_LOOK_OFTEN, _LEAVE = 0.2, 20.0
"""Seconds between two checks of workers that wait for each other, and the grace period after one failed."""


class DaskExecutor:
    """Executor on the workers of a Dask scheduler.

    Nothing here waits for an answer alone: every call that asks the scheduler or a worker is made in a thread, and is
    given up when for `timeout` seconds nobody was there who could answer.

    Args:
        client: connected.
        timeout: seconds without a scheduler, or without a worker that takes work, before the work is given up.
    """

    in_process = False

    def __init__(self, client: Client, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        self._backends: dict[str, str] = {}

    @property
    def num_workers(self) -> int:
        """The number of threads of all current workers."""
        threads: dict[str, int] = self._wait_for(self._client.nthreads)
        return sum(threads.values())

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int | None = None
    ) -> Iterator[Result]:
        """Yield the results of `function` over `items`, in order; two items per worker are in flight.

        An item is worked on again when its worker dies.

        Raises:
            ClusterLost: no scheduler, or no worker that takes work, within `timeout`.
            BadConfig: the function cannot be sent to a worker.
            Exception: what `function` raised, at the place of its item; later items are abandoned. Dask's
                `KilledWorker` where the same item ended several workers.
        """
        shared = self._broadcast(function)
        waiting: deque[Future] = deque()
        try:
            for item in items:
                while len(waiting) >= (at_once or 2 * max(1, self.num_workers)):
                    yield self._wait_for(waiting.popleft().result)
                waiting.append(self._submit(_run_item, shared, item))
            while waiting:
                yield self._wait_for(waiting.popleft().result)
        finally:
            for future in (*waiting, shared):
                future.release()

    def call(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Run `function` on one item, on one worker; again on another one if that one dies.

        Raises:
            ClusterLost, BadConfig, Exception: as `map`.

        Memory: the item and the result travel, through the scheduler.
        """
        future = self._submit_pickled(_run_pickled, _pickle_call((function, item)))
        try:
            result: Result = self._wait_for(future.result)
            return result
        finally:
            future.release()

    def resolve(self, backend: str = "auto") -> str:
        """Return the name of the workers' backend for `backend`; asks them once, and waits for the first one.

        Raises:
            BackendMissing: `"gpu"`, and a worker has none that works; or some workers have one, and others do not.
            ClusterLost: as `map`.
        """
        asked = settings().backend if backend == "auto" else backend
        if asked not in self._backends:
            self._backends[asked] = asked if asked == "cpu" else self._resolve_on_workers(asked)
        return self._backends[asked]

    def _resolve_on_workers(self, asked: str) -> str:
        """Return the backend that all workers resolve to."""
        self._wait_for(self._submit(abs, 0).result)  # somebody is there
        answers: dict[str, Any] = self._wait_for(partial(self._client.run, resolve, asked, on_error="return"))
        for address, answer in answers.items():
            if isinstance(answer, Exception):
                answer.add_note(f"on worker {address}")
                raise self._convert_error(answer)
        if len({*answers.values()}) > 1:
            raise BackendMissing(
                "Cluster",
                "some workers can use a GPU, and others cannot",
                got=answers,
                expected="workers of one kind",
                remedy="backend='cpu' for all of them, or a cluster of the workers with GPUs only",
            )
        return str(next(iter(answers.values())))

    def list_workers(self) -> list[str]:
        """Return the sorted addresses of the current workers."""
        return sorted(self._wait_for(self._client.nthreads))

    def run_on_each(self, function: Callable[[Item], Result], items: Mapping[str, Item]) -> list[Result]:
        """Run `function` on exactly these workers at the same time, an item for each address.

        Raises:
            ClusterLost: one of the workers is gone; the functions on the others are given some seconds to notice.
            Exception: what `function` raised on one of them; a `ClusterLost` only where none raised anything else.
        """
        shared = self._broadcast(function)
        running = {
            address: self._submit(_run_item, shared, item, workers=[address], allow_other_workers=False)
            for address, item in items.items()
        }
        try:
            gone: set[str] = set()
            deadline = float("inf")
            while time.monotonic() < deadline and not all(future.done() for future in running.values()):
                time.sleep(_LOOK_OFTEN)
                gone |= set(items) - set(self.list_workers())  # one may come back, under the same address
                if deadline == float("inf") and (gone or any(f.status == "error" for f in running.values())):
                    deadline = time.monotonic() + _LEAVE
            failed = [self._wait_for(future.exception) for future in running.values() if future.status == "error"]
            if gone:
                ranks = ", ".join(f"{list(items).index(address)} ({address})" for address in sorted(gone))
                raise self._make_error(f"the worker of rank {ranks} is gone")
            if failed:
                raise min(failed, key=lambda error: isinstance(error, ClusterLost))
            return [self._wait_for(future.result) for future in running.values()]
        finally:
            for future in (*running.values(), shared):
                future.release()

    def call_all(self, function: Callable[[Client], Result]) -> Result:
        """Run a function, given the client, that makes all workers cooperate.

        Raises:
            ClusterLost: one of the workers is gone, for which the others would wait.
            Exception: what the function raised.
        """
        there, answer = set(self.list_workers()), _start_thread(function, self._client)
        while not wait([answer], _LOOK_EVERY).done:
            if gone := there - set(self.list_workers()):
                raise self._make_error(f"the worker {', '.join(sorted(gone))} is gone")
        return self._wait_for(answer.result)  # type: ignore[no-any-return]

    def _broadcast(self, function: Callable[[Item], Result]) -> Future:
        """Send the function to every worker once, however many items there are."""
        shared = self._submit_pickled(pickle.loads, _pickle_call(function))
        failure = self._wait_for(shared.exception)
        if isinstance(failure, ImportError | AttributeError):
            raise BadConfig(
                "Cluster",
                f"a worker cannot load what it is sent ({type(failure).__name__}: {failure})",
                expected="gpupipe and the program's own modules at the workers, in the versions that are here",
                remedy="installing them there; client.upload_file(...) for a single module",
            ) from failure
        if failure is not None:
            raise self._convert_error(failure)
        # Or Dask would run all items where the function is, until other workers steal them.
        self._wait_for(self._client.replicate, [shared])
        return shared

    def _submit_pickled(self, function: Callable[[bytes], Any], packed: bytes) -> Future:
        """Submit a function of pickled data.

        The scheduler can make it again on any worker, where scattered data would be lost. It may be large, which Dask
        would warn of.
        """
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self._submit(function, packed)

    def _submit(self, function: Callable[..., Any], *args: Any, **where: Any) -> Future:
        return self._wait_for(partial(self._client.submit, function, *args, pure=False, **where))

    def _wait_for(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a blocking Dask call, made in a thread while the cluster is monitored."""
        answer, last_well = _start_thread(call, *args), time.monotonic()
        while not wait([answer], _LOOK_EVERY).done:
            trouble = self._find_trouble()
            if not trouble:
                last_well = time.monotonic()
            elif time.monotonic() - last_well > self._timeout:
                raise self._make_error(f"{trouble} for {self._timeout:g} s")
        cause = answer.exception()
        if cause is not None:
            raise self._convert_error(cause)
        return answer.result()

    def _convert_error(self, cause: BaseException) -> BaseException:
        """Convert an error that means a lost scheduler to `ClusterLost`; return any other unchanged."""
        gone = self._client.status != "running" or isinstance(cause, CancelledError | CommClosedError)
        if isinstance(cause, GpupipeError) or not gone:
            return cause
        lost = self._make_error("the connection to the scheduler broke")
        lost.__cause__ = cause
        return lost

    def _find_trouble(self) -> str:
        """Return why no work can run at the moment, in words; empty if nothing is wrong."""
        if self._client.status != "running":
            return "no scheduler was there"
        answer = _start_thread(self._client.scheduler_info, -1)
        if not wait([answer], self._timeout).done:
            return "the scheduler did not answer"
        if answer.exception() is not None:
            return f"the scheduler gave no answer ({answer.exception()})"
        workers = answer.result()["workers"].values()
        if not workers:
            return "no worker was there"
        # A worker that is nearly out of memory pauses: it ends what it has begun, and begins nothing.
        able = any(w["status"] == "running" or w["metrics"]["task_counts"].get("executing") for w in workers)
        return "" if able else "every worker was paused, nearly out of memory,"

    def _make_error(self, problem: str) -> ClusterLost:
        return ClusterLost(
            "cluster",
            problem,
            expected="a scheduler with at least one worker that takes work",
            remedy="a look at their logs, a larger timeout= where workers come late; "
            "then the same call again: parts that are written are not written twice",
        )


def _start_thread(call: Callable[..., Any], *args: Any) -> Answer[Any]:
    """Start a call in a daemon thread, which does not delay the end of the program."""
    answer: Answer[Any] = Answer()

    def run() -> None:
        try:
            answer.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asked
            answer.set_exception(error)

    Thread(target=run, name="gpupipe-asks-dask", daemon=True).start()
    return answer


def _pickle_call(value: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as cause:
        raise BadConfig(
            "Cluster",
            f"a function cannot be sent to the workers ({type(cause).__name__}: {cause})",
            expected="functions and tables that can be pickled",
            remedy="a function that opens files and takes locks when it is called, and holds none",
        ) from cause


def _run_pickled(packed: bytes) -> Any:
    return _run_item(*pickle.loads(packed))  # noqa: S301 - from the program


def _run_item(function: Callable[[Item], Result], item: Item) -> Result:
    try:
        return function(item)
    except GpupipeError as error:
        error.add_note(f"on worker {get_worker().address}")
        raise
