"""Cluster of Dask workers, started on this machine or connected to a running scheduler."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures import Future as Answer
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from html import escape
from importlib.util import find_spec
from math import inf
from pathlib import Path
from threading import Thread
from typing import Any, Self

import cloudpickle
import dask
from dask.utils import parse_bytes
from distributed import Client, Future, LocalCluster, get_worker
from distributed.comm import CommClosedError

from gpupipe.backend import resolve
from gpupipe.cluster.executor import Executor, Item, Result, default_threads, use_executor
from gpupipe.config import settings
from gpupipe.errors import BackendMissing, BadConfig, ClusterLost, GpupipeError
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_bool, check_integer, check_number, is_number, is_one_of, refuse_argument

# Seconds between two checks that the scheduler and workers are alive, and of workers that wait for each other; the
# grace period after one failed.
_LOOK_EVERY, _LOOK_OFTEN, _LEAVE = 1.0, 0.2, 20.0
_FOR_RAPIDS = "RAPIDS_NO_INITIALIZE"
_PRE_SPAWN, _AT_START = "distributed.nanny.pre-spawn-environ", "distributed.nanny.environ"
# Dask's own setting gives every freed buffer back to the system; getting it anew was up to half of a worker's time.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": 512 << 20, "MALLOC_MMAP_THRESHOLD_": 32 << 20}
_FOR_WORKERS = [*dask.config.get(_PRE_SPAWN), *_MALLOC, "PYTHONHASHSEED", "__DASK_PARENT_PID"]
_log = logging.getLogger("gpupipe")


@answer_calls
class Cluster(Executor):
    """Cluster of Dask workers: inside `with`, datasets and pipelines run on them.

    A partition is worked on again when its worker dies. Results are put together in order, so they do not depend on
    how many workers there are. With GPUs there is one worker on each; this process uses a GPU only to train. What
    travels is in host memory and goes by TCP. A pipeline's or dataset's backend `"auto"` is the workers' own.

    Args:
        n_workers: processes to start here; as many as cores (four at most), or as GPUs.
        address: of a scheduler that runs already, instead: its address, or a Dask cluster object (dask-jobqueue,
            dask-kubernetes, Coiled) or client, which stays open. gpupipe, the program's own modules and the files have
            to be within its workers' reach.
        gpu: start Dask-CUDA's workers; by default where the GPU backend would be used. False keeps workers on the CPU.
        memory_limit: of each worker's host memory, as Dask takes it.
        device_memory: of each GPU, what frames and arrays may take: bytes or `"60 GB"`; None for what training leaves.
        timeout: seconds without a scheduler, or any worker that takes work, before work is given up; long enough for
            workers to come up, where a queue starts them.

    Raises:
        BadConfig: in a script without the `__main__` guard, which every worker would run again.
        BackendMissing: Dask-CUDA cannot start.
        ClusterLost: the workers did not come up, or no scheduler answers at `address`.

    Memory: a partition per worker; in this process one result, in the workers two each.

    Example:
        >>> import gpupipe as gp
        >>> with gp.Cluster(n_workers=1):
        ...     len(gp.read_parquet("data/airports.parquet").filter("alt > 6000"))
        37
    """

    # Nothing here waits for an answer alone: every call that asks the scheduler or a worker is made in a thread, and is
    # given up when for `timeout` seconds nobody was there who could answer.
    in_process = False

    def __init__(
        self,
        n_workers: int | None = None,
        *,
        address: Any = None,
        gpu: bool | None = None,
        memory_limit: str | int = "auto",
        device_memory: str | int | None = None,
        timeout: float = 60.0,
    ) -> None:
        if gpu is None and address is None:
            gpu = resolve() == "gpu"
        options = {"n_workers": n_workers, "gpu": gpu, "device_memory": device_memory}
        if not is_one_of(memory_limit, ["auto"]):
            options["memory_limit"] = memory_limit
        _check(options, address, timeout)
        self._open, self._stays = ExitStack(), address is not None
        with ExitStack() as opening:
            if not self._stays:
                _check_main_guard()
                workers = local_workers(
                    n_workers, gpu=bool(gpu), memory_limit=memory_limit, device_memory=device_memory, timeout=timeout
                )
                address = opening.enter_context(workers)
            self._client, self._timeout = opening.enter_context(connect(address, timeout)), timeout
            self._backends: dict[str, str] = {}
            self.dashboard_link: str | None = None
            if self._stays or find_spec("bokeh") is not None:  # a remote scheduler is assumed to have Bokeh
                with suppress(KeyError):  # a scheduler without that service
                    self.dashboard_link = str(self._wait_for(lambda: self._client.dashboard_link))
            self._open = opening.pop_all()
        _log.info("%r", self)
        if sys.stderr.isatty():
            sys.stderr.write(f"{self!r}\n")

    def before_release(self, call: Callable[[], object]) -> None:
        """Register a call for before the connection to external workers closes; workers started here need none."""

        @self._open.callback
        def call_if_connected() -> None:
            if self._stays and self._client.status == "running":
                with suppress(ClusterLost):
                    call()

    def release(self) -> None:
        """Stop the workers it started and give their memory back; a scheduler that ran before goes on without it."""
        self._open.close()

    def __enter__(self) -> Self:
        self._open.enter_context(use_executor(self))
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        if self._client.status != "running":
            return "Cluster(released)"
        dashboard = f", dashboard at {self.dashboard_link}" if self.dashboard_link else ""
        return f"Cluster({self.num_workers} workers{dashboard})"

    def _repr_html_(self) -> str:
        text, link = escape(repr(self)), escape(self.dashboard_link or "")
        return f"<p>{text.replace(link, f'<a href={link!r}>{link}</a>') if link else text}</p>"

    @property
    def num_workers(self) -> int:
        """The number of threads of all current workers."""
        return int(sum(self._wait_for(self._client.nthreads).values()))

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int | None = None
    ) -> Iterator[Result]:
        """Yield the results of `function` over `items`, in order; two items per worker are in flight.

        An item is worked on again when its worker dies; Dask's `KilledWorker` says that it ended several. What
        `function` raised comes at the place of its item, and later items are abandoned.
        """
        shared, waiting = self._broadcast(function), deque[Future]()
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
        """Run `function` on one item, on one worker; again on another one if that one dies."""
        future = self._submit_pickled(_run_pickled, (function, item))
        try:
            return self._wait_for(future.result)  # type: ignore[no-any-return]
        finally:
            future.release()

    def resolve(self, backend: str = "auto") -> str:
        """Return the name of the workers' backend for `backend`; asks them once, and waits for the first one.

        Raises `BackendMissing`: `"gpu"`, and a worker has none that works; or some workers have one, and others do not.
        """
        name = settings().backend if backend == "auto" else backend
        if name == "cpu" or name in self._backends:
            return self._backends.get(name, name)
        answers: dict[str, Any] = {}
        while not answers:
            self._wait_for(self._submit(abs, 0).result)  # somebody is there
            replies = self._wait_for(partial(self._client.run, resolve, name, on_error="return"))
            # A worker that dies meanwhile has no answer; another takes its place, or does its work.
            answers = {address: answer for address, answer in replies.items() if not isinstance(answer, OSError)}
        for address, answer in answers.items():
            if isinstance(answer, Exception):
                answer.add_note(f"on worker {address}")
                raise self._convert_error(answer)
        if len({*answers.values()}) > 1:
            problem = "some workers can use a GPU, and others cannot"
            remedy = "backend='cpu' for all of them, or a cluster of the workers with GPUs only"
            raise BackendMissing("Cluster", problem, got=answers, expected="workers of one kind", remedy=remedy)
        self._backends[name] = str(next(iter(answers.values())))
        return self._backends[name]

    def list_workers(self) -> list[str]:
        """Return the sorted addresses of the current workers."""
        return sorted(self._wait_for(self._client.nthreads))

    def run_on_each(self, function: Callable[[Item], Result], items: Mapping[str, Item]) -> list[Result]:
        """Run `function` on exactly these workers at the same time, an item for each address.

        Where one is gone, the others are given some seconds to notice; a `ClusterLost` is raised if nothing else was.
        """
        shared = self._broadcast(function)
        running = {
            address: self._submit(_run_item, shared, item, workers=[address], allow_other_workers=False)
            for address, item in items.items()
        }
        try:
            lost_workers, deadline = set[str](), inf
            while time.monotonic() < deadline and not all(future.done() for future in running.values()):
                time.sleep(_LOOK_OFTEN)
                lost_workers |= items.keys() - {*self.list_workers()}  # one may come back, under the same address
                if deadline == inf and (lost_workers or any(future.status == "error" for future in running.values())):
                    deadline = time.monotonic() + _LEAVE
            failed = [self._wait_for(future.exception) for future in running.values() if future.status == "error"]
            if lost_workers:
                ranks = ", ".join(f"{list(items).index(address)} ({address})" for address in sorted(lost_workers))
                raise _make_error(f"the worker of rank {ranks} is gone")
            if failed:
                raise min(failed, key=lambda error: isinstance(error, ClusterLost))
            return [self._wait_for(future.result) for future in running.values()]
        finally:
            for future in (*running.values(), shared):
                future.release()

    def call_all(self, function: Callable[[Client], Result]) -> Result:
        """Run a function, given the client, that makes all workers cooperate; `ClusterLost` as soon as one is gone."""
        workers, answer = set(self.list_workers()), _start_thread(function, self._client)
        while not wait([answer], _LOOK_EVERY).done:
            if lost_workers := workers - set(self.list_workers()):
                raise _make_error(f"the worker {', '.join(sorted(lost_workers))} is gone")
        return self._wait_for(answer.result)  # type: ignore[no-any-return]

    def _broadcast(self, function: Callable[[Item], Result]) -> Future:
        """Send the function to every worker once, however many items there are."""
        shared = self._submit_pickled(pickle.loads, function)
        failure = self._wait_for(shared.exception)
        if isinstance(failure, ImportError | AttributeError):
            problem = f"a worker cannot load what it is sent ({type(failure).__name__}: {failure})"
            expected = "gpupipe and the program's own modules at the workers, in the versions that are here"
            remedy = "installing them there; client.upload_file(...) for a single module"
            raise BadConfig("Cluster", problem, expected=expected, remedy=remedy) from failure
        if failure is not None:
            raise self._convert_error(failure)
        # Or Dask would run all items where the function is, until other workers steal them. They do so where a worker
        # dies meanwhile: the scheduler counts it among those that get a copy, and fails.
        with suppress(AssertionError, KeyError, ValueError):
            self._wait_for(self._client.replicate, [shared])
        return shared

    def _submit_pickled(self, function: Callable[[bytes], Any], value: Any) -> Future:
        """Submit a function of a pickled value, which, as no scattered data, the scheduler can make again anywhere."""
        try:
            packed = bytes(cloudpickle.dumps(value))
        except Exception as cause:
            problem = f"a function cannot be sent to the workers ({type(cause).__name__}: {cause})"
            expected = "functions and tables that can be pickled"
            remedy = "a function that opens files and takes locks when it is called, and holds none"
            raise BadConfig("Cluster", problem, expected=expected, remedy=remedy) from cause
        # It may be large, which Dask would warn of.
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
                raise _make_error(f"{trouble} for {self._timeout:g} s")
        cause = answer.exception()
        if cause is not None:
            raise self._convert_error(cause)
        return answer.result()

    def _convert_error(self, cause: BaseException) -> BaseException:
        """Convert an error that means a lost scheduler to `ClusterLost`; return any other unchanged."""
        is_lost = self._client.status != "running" or isinstance(cause, CancelledError | CommClosedError)
        if isinstance(cause, GpupipeError) or not is_lost:
            return cause
        lost = _make_error("the connection to the scheduler broke")
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


def _make_error(problem: str) -> ClusterLost:
    expected = "a scheduler with at least one worker that takes work"
    again = "then the same call again: parts that are written are not written twice"
    remedy = f"a look at their logs, a larger timeout= where workers come late; {again}"
    return ClusterLost("cluster", problem, expected=expected, remedy=remedy)


def _check(options: Mapping[str, Any], address: Any, timeout: float) -> None:
    """Check the arguments; `options` are those of workers that are started here."""
    count = options["n_workers"]
    if isinstance(count, str):
        raise refuse_argument("Cluster", "n_workers", count, "an integer in [1, inf), or None", f"address={count!r}")
    check_integer("Cluster", "[1, inf)", None, n_workers=count)
    check_bool("Cluster", None, gpu=options["gpu"])
    check_number("Cluster", "(0, inf]", timeout=timeout)
    named = [name for name, value in options.items() if value is not None]
    if address is not None and named:
        problem = f"{' and '.join(named)} cannot be had of workers that run already"
        remedy = "them, where the workers are started: dask worker --nworkers 4 --memory-limit 8GB"
        raise BadConfig("Cluster", problem, expected="address= without them", remedy=remedy)
    if not (address is None or isinstance(address, str | Client) or hasattr(address, "scheduler_address")):
        expected = "a scheduler's address, a Dask cluster or a Dask client"
        raise BadConfig("Cluster", "no address", got=address, expected=expected, remedy="address='tcp://host:8786'")
    if getattr(address, "asynchronous", False):
        expected, remedy = "one that answers when it is asked", "asynchronous=False where it is made"
        raise BadConfig("Cluster", "the Dask object is asynchronous", expected=expected, remedy=remedy)
    if options["device_memory"] is not None and not options["gpu"]:
        problem, remedy = "device_memory without GPUs", "gpu=True, or memory_limit= for the host's memory"
        raise BadConfig(
            "Cluster", problem, got=options["device_memory"], expected="workers with a GPU each", remedy=remedy
        )
    for name, least in (("memory_limit", 0), ("device_memory", 1)):  # for the host's memory Dask accepts a fraction
        value = options.get(name)
        try:
            size = parse_bytes(value) if isinstance(value, str) else value
            good = size is None or (is_number(size) and size > 0 and size >= least)
        except ValueError:
            good = False
        if not good:
            raise refuse_argument("Cluster", name, value, "a number and a unit, or a number of bytes", "'8 GB'")


def _check_main_guard() -> None:
    """Raise `BadConfig` if a script calls this without the `__main__` guard; `python -c` and `python -m` need none."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return
    frame = inspect.currentframe()
    while frame and (frame.f_globals.get("__name__"), frame.f_code.co_name) != ("__main__", "<module>"):
        frame = frame.f_back
    try:
        nodes = ast.parse(Path(path).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):  # not a file of Python's that workers could import
        return
    tests = {
        node: {getattr(part, "id", "") for part in ast.walk(node.test)} for node in nodes if isinstance(node, ast.If)
    }
    guards = [node for node, names in tests.items() if "__name__" in names]
    # Without a frame of the main file, as in another thread, any guard will do.
    if not any(frame is None or node.lineno <= frame.f_lineno <= (node.end_lineno or 0) for node in guards):
        problem = f"it is started outside a guard in {path}, which every worker process imports"
        remedy = 'if __name__ == "__main__": main()'
        raise BadConfig("Cluster", problem, expected="what starts a cluster behind the guard", remedy=remedy)


@contextmanager
def local_workers(
    n_workers: int | None, *, gpu: bool, memory_limit: str | int, device_memory: str | int | None, timeout: float
) -> Iterator[Any]:
    """Start worker processes with a scheduler in this one; they stop at the end, or when this process ends."""
    options = {"n_workers": n_workers, "threads_per_worker": 1, "memory_limit": memory_limit, "death_timeout": timeout}
    options |= {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}  # what fails is raised here
    # Without a GPU they work on the CPU, unless the GPU backend is asked for by name.
    variables: dict[str, Any] = {} if gpu else {"GPUPIPE_BACKEND": "cpu"}
    if device_memory is not None:
        variables["GPUPIPE_DEVICE_MEMORY"] = parse_bytes(device_memory)
    environment = {_PRE_SPAWN: dask.config.get(_PRE_SPAWN) | _MALLOC, _AT_START: dask.config.get(_AT_START) | variables}
    # Dask gives up a worker that is not there so long after it died, though by then it may have died a second time and
    # be starting again.
    forever = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"})
    with _keep_environment([_FOR_RAPIDS]), forever:  # a worker that is started again needs it too
        with _keep_environment(_FOR_WORKERS), dask.config.set(environment):
            started = _start(options, gpu=gpu)
        try:
            yield started
        finally:
            with _keep_environment(_FOR_WORKERS):
                _close(started, timeout)


@contextmanager
def connect(address: Any, timeout: float) -> Iterator[Client]:
    """Connect to a scheduler, given its address, a Dask cluster object, or a client, which stays open."""
    if isinstance(address, Client):
        yield address
        return
    try:
        # Not the default: Dask collections elsewhere in the program are none of this cluster's business.
        client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, RuntimeError, ValueError) as cause:
        where, problem = f"Cluster(address={address!r})", f"no scheduler answers ({cause})"
        expected, remedy = "a running Dask scheduler", "dask scheduler; dask worker tcp://host:8786"
        raise ClusterLost(where, problem, expected=expected, remedy=remedy) from cause
    try:
        yield client
    finally:
        _close(client, timeout)


def _start(options: dict[str, Any], *, gpu: bool) -> Any:
    if gpu:
        try:
            # No memory resource of Dask-CUDA's: nobody could give back what its pool keeps, so each worker's backend
            # makes its own. Results that wait are on the host, and small: nothing to spill.
            start = importlib.import_module("dask_cuda").LocalCUDACluster
            return start(**options, device_memory_limit=None, enable_cudf_spill=False)
        except Exception as cause:
            problem = f"Dask-CUDA does not start ({type(cause).__name__}: {cause})"
            expected = "the CUDA extra, and a GPU that is visible"
            remedy = "pip install '.[cuda13]'; gpupipe doctor tells more; gpu=False for workers without GPUs"
            raise BackendMissing("Cluster(gpu=True)", problem, expected=expected, remedy=remedy) from cause
    try:
        return LocalCluster(**options | {"n_workers": options["n_workers"] or default_threads()})
    except (OSError, RuntimeError) as cause:
        problem = f"the workers did not come up ({type(cause).__name__}: {cause})".replace(": )", ")")
        expected = f"worker processes within {options['death_timeout']:g} s"
        remedy = "a look at what this program does when it is imported; a larger timeout= on a slow machine"
        raise ClusterLost("Cluster", problem, expected=expected, remedy=remedy) from cause


def _close(opened: Any, timeout: float) -> None:
    try:
        opened.close(timeout=timeout)
    except (TimeoutError, OSError) as error:
        _log.warning("cluster: %s did not close within %g s (%s)", type(opened).__name__, timeout, error)


@contextmanager
def _keep_environment(names: Sequence[str]) -> Iterator[None]:
    """Restore environment variables afterwards: Dask sets a worker's variables in this process, and leaves them."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


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


def _run_pickled(packed: bytes) -> Any:
    return _run_item(*pickle.loads(packed))  # noqa: S301 - from the program


def _run_item(function: Callable[[Item], Result], item: Item) -> Result:
    try:
        return function(item)
    except GpupipeError as error:
        error.add_note(f"on worker {get_worker().address}")
        raise
