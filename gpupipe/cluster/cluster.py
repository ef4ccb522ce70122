"""Workers on this machine, or those of a scheduler that runs already."""

from __future__ import annotations

import importlib
import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from distributed import Client, LocalCluster

from gpupipe.cluster.dask import DaskExecutor
from gpupipe.cluster.executor import in_force
from gpupipe.cluster.guard import check_main_guard
from gpupipe.cluster.local import default_threads
from gpupipe.errors import BackendMissing, BadConfig, ClusterLost

__all__ = ["Cluster"]

_log = logging.getLogger("gpupipe")


class Cluster(DaskExecutor):
    """Dask workers: inside `with`, datasets and pipelines run on them.

    A partition is worked on again when its worker dies. Results are put together in order, so they do not depend on
    how many workers there are. With `gpu=True` there is one worker per GPU, and this process touches none.

    Args:
        n_workers: processes to start here; as many as cores (four at most), or as GPUs.
        address: of a scheduler that runs already, instead; gpupipe and the files have to be within its workers' reach.
        gpu: start Dask-CUDA's workers.
        memory_limit: of each worker's host memory, as Dask takes it.
        device_memory: of each GPU, what RMM may take, as Dask-CUDA takes it; None for all of it.
        patience: seconds without a scheduler, or without any worker, before work is given up.

    Raises:
        BadConfig: in a script without the `__main__` guard, which every worker would run again.
        BackendMissing: `gpu=True` without Dask-CUDA.
        ClusterLost: no scheduler answers at `address`.

    Memory: a partition per worker; in this process two results per worker.

    Example:
        >>> import gpupipe as gp
        >>> with gp.Cluster(n_workers=1):
        ...     len(gp.read_parquet("data/airports.parquet").filter("alt > 6000"))
        39
    """

    def __init__(
        self,
        n_workers: int | None = None,
        *,
        address: str | None = None,
        gpu: bool = False,
        memory_limit: str | int = "auto",
        device_memory: str | int | None = None,
        patience: float = 60.0,
    ) -> None:
        if address is not None and n_workers is not None:
            raise BadConfig(
                "Cluster",
                "n_workers and address exclude each other",
                expected="one of them",
                remedy="Cluster(address=...)",
            )
        self._open = ExitStack()
        self._in_force = ExitStack()
        try:
            if address is None:
                check_main_guard("Cluster")
                started = _started(n_workers, gpu, memory_limit, device_memory)
                address = self._open.enter_context(started).scheduler_address
            client = self._open.enter_context(_connected(address, patience))
        except BaseException:
            self._open.close()
            raise
        super().__init__(client, patience)
        self.dashboard_link: str = client.dashboard_link
        _log.info("cluster at %s, dashboard at %s", address, self.dashboard_link)

    def release(self) -> None:
        """Stop the workers it started and give their memory back; a scheduler that ran before goes on without it."""
        self._in_force.close()
        self._open.close()

    def __enter__(self) -> Self:
        self._in_force.enter_context(in_force(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Cluster({self.num_workers} workers, dashboard {self.dashboard_link})"


def _started(n_workers: int | None, gpu: bool, memory_limit: str | int, device_memory: str | int | None) -> Any:
    if not gpu:
        return LocalCluster(
            n_workers=n_workers or default_threads(),
            threads_per_worker=1,
            memory_limit=memory_limit,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,  # what fails is raised here
        )
    try:
        dask_cuda = importlib.import_module("dask_cuda")
    except ImportError as cause:
        raise BackendMissing(
            "Cluster(gpu=True)",
            f"Dask-CUDA cannot be imported ({cause})",
            expected="the CUDA extra",
            remedy="pip install '.[cuda13]'; gpupipe doctor tells more",
        ) from cause
    return dask_cuda.LocalCUDACluster(
        n_workers=n_workers,
        threads_per_worker=1,
        memory_limit=memory_limit,
        rmm_async=True,
        rmm_maximum_pool_size=device_memory,
        device_memory_limit=None,
        enable_cudf_spill=False,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )


def _connected(address: str, patience: float) -> Client:
    try:
        return Client(address, timeout=patience, set_as_default=False)
    except OSError as cause:
        raise ClusterLost(
            f"Cluster(address={address!r})",
            f"no scheduler answers ({cause})",
            expected="a running Dask scheduler",
            remedy="dask scheduler; dask worker tcp://host:8786",
        ) from cause
