"""Cluster of Dask workers, started on this machine or connected to a running scheduler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from html import escape
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from dask.utils import parse_bytes
from distributed import Client

from gpupipe.backend import resolve
from gpupipe.cluster.dask import DaskExecutor
from gpupipe.cluster.executor import use_executor
from gpupipe.cluster.start import check_main_guard, connect, local_workers
from gpupipe.errors import BadConfig, ClusterLost
from gpupipe.support.validation import (
    check_bool,
    check_integer,
    check_number,
    is_number,
    is_one_of,
    refuse_argument,
)

_log = logging.getLogger("gpupipe")


class Cluster(DaskExecutor):
    """Cluster of Dask workers: inside `with`, datasets and pipelines run on them.

    A partition is worked on again when its worker dies. Results are put together in order, so they do not depend on
    how many workers there are. With GPUs there is one worker on each; this process uses a GPU only to train. What
    travels between processes is in host memory and goes by TCP. The backend of a pipeline or a dataset left at
    `"auto"` is the workers' own.

    Args:
        n_workers: processes to start here; as many as cores (four at most), or as GPUs.
        address: of a scheduler that runs already, instead: its address, a Dask cluster object (dask-jobqueue,
            dask-kubernetes, Coiled), or a Dask client. gpupipe, the program's own modules and the files have to be
            within its workers' reach. The object stays open.
        gpu: start Dask-CUDA's workers; by default where the GPU backend would be used. With False workers are on the
            CPU, whatever the machine has.
        memory_limit: of each worker's host memory, as Dask takes it.
        device_memory: of each GPU, what frames and arrays may take: bytes or `"60 GB"`; None for what training leaves.
        timeout: seconds without a scheduler, or without any worker that takes work, before work is given up. Long
            enough for workers to come up, where a queue starts them.

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
        own = {"n_workers": n_workers, "gpu": gpu, "device_memory": device_memory}
        if not is_one_of(memory_limit, ["auto"]):
            own["memory_limit"] = memory_limit
        _check(own, address, timeout)
        starts = address is None
        self._open, self._in_force = ExitStack(), ExitStack()
        self._stays = not starts
        with ExitStack() as opening:
            if starts:
                check_main_guard("Cluster")
                address = opening.enter_context(
                    local_workers(
                        n_workers,
                        gpu=bool(gpu),
                        memory_limit=memory_limit,
                        device_memory=parse_bytes(device_memory) if device_memory is not None else None,
                        timeout=timeout,
                    )
                )
            client = opening.enter_context(connect(address, timeout))
            super().__init__(client, timeout)
            self.dashboard_link = self._dashboard_link(known=not starts)
            self._open = opening.pop_all()
        _log.info("%r", self)
        if sys.stderr.isatty():
            sys.stderr.write(f"{self!r}\n")

    def before_release(self, call: Callable[[], object]) -> None:
        """Register a call for before the connection to external workers closes; workers started here need none."""
        if self._stays:
            self._open.callback(self._call_if_connected, call)

    def _call_if_connected(self, call: Callable[[], object]) -> None:
        if self._client.status == "running":
            with suppress(ClusterLost):
                call()

    def release(self) -> None:
        """Stop the workers it started and give their memory back; a scheduler that ran before goes on without it."""
        self._in_force.close()
        self._open.close()

    def __enter__(self) -> Self:
        self._in_force.enter_context(use_executor(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        if self._client.status != "running":
            return "Cluster(released)"
        seen = f", dashboard at {self.dashboard_link}" if self.dashboard_link else ""
        return f"Cluster({self.num_workers} workers{seen})"

    def _repr_html_(self) -> str:
        shown = escape(repr(self))
        link = escape(self.dashboard_link or "")
        return f"<p>{shown.replace(link, f'<a href={link!r}>{link}</a>') if link else shown}</p>"

    def _dashboard_link(self, *, known: bool) -> str | None:
        """Return the URL of the scheduler's dashboard, if it has Bokeh; a remote scheduler is assumed to.

        Args:
            known: whether the scheduler is remote.
        """
        if not known and find_spec("bokeh") is None:
            return None
        try:
            return str(self._wait_for(lambda: self._client.dashboard_link))
        except KeyError:  # a scheduler without that service
            return None


def _check(own: Mapping[str, Any], address: Any, timeout: float) -> None:
    """Check the arguments; `own` are the options of workers that are started here."""
    workers = own["n_workers"]
    if isinstance(workers, str):
        raise refuse_argument(
            "Cluster", "n_workers", workers, "an integer in [1, inf), or None", f"address={workers!r}"
        )
    check_integer("Cluster", "[1, inf)", None, n_workers=workers)
    check_bool("Cluster", None, gpu=own["gpu"])
    check_number("Cluster", "(0, inf]", timeout=timeout)
    named = [name for name, value in own.items() if value is not None]
    if address is not None:
        if named:
            raise BadConfig(
                "Cluster",
                f"{' and '.join(named)} cannot be had of workers that run already",
                expected="address= without them",
                remedy="them, where the workers are started: dask worker --nworkers 4 --memory-limit 8GB",
            )
        if not isinstance(address, str | Client) and not hasattr(address, "scheduler_address"):
            raise BadConfig(
                "Cluster",
                "no address",
                got=address,
                expected="a scheduler's address, a Dask cluster or a Dask client",
                remedy="address='tcp://host:8786'",
            )
        if getattr(address, "asynchronous", False):
            raise BadConfig(
                "Cluster",
                "the Dask object is asynchronous",
                expected="one that answers when it is asked",
                remedy="asynchronous=False where it is made",
            )
    if own["device_memory"] is not None and not own["gpu"]:
        raise BadConfig(
            "Cluster",
            "device_memory without GPUs",
            got=own["device_memory"],
            expected="workers with a GPU each",
            remedy="gpu=True, or memory_limit= for the host's memory",
        )
    for name in ("memory_limit", "device_memory"):
        _check_bytes(name, own.get(name))


def _check_bytes(name: str, value: Any) -> None:
    try:
        size = parse_bytes(value) if isinstance(value, str) else value
        least = 1 if name == "device_memory" else 0  # for the host's memory Dask accepts a fraction, too
        good = size is None or (is_number(size) and size > 0 and size >= least)
    except ValueError:
        good = False
    if not good:
        raise refuse_argument("Cluster", name, value, "a number and a unit, or a number of bytes", "'8 GB'")
