"""Start of Dask workers, or connection to a scheduler, within a time limit; and the check of the `__main__` guard."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from gpupipe.cluster.executor import default_threads
from gpupipe.errors import BackendMissing, BadConfig, ClusterLost


def check_main_guard(where: str) -> None:
    """Raise `BadConfig` if the running script calls this outside `if __name__ == "__main__":`.

    Notebooks, `python -c` and packages run with `python -m` (which workers do not import) need no guard.
    """
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return
    try:
        source = Path(path).read_text(encoding="utf-8")
        guarded = _is_guarded(source, _find_main_line())
    except (OSError, ValueError, SyntaxError):  # not a file of Python's that workers could import
        return
    if not guarded:
        raise BadConfig(
            where,
            f"it is started outside a guard in {path}, which every worker process imports",
            expected="what starts a cluster behind the guard",
            remedy='if __name__ == "__main__": main()',
        )


def _find_main_line() -> int | None:
    """Return the line at the top level of the main file that led here; None in other threads."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guarded(source: str, line: int | None) -> bool:
    """Return whether a line is in a top-level `if` that compares `__name__`; for None, whether there is such an `if`.

    Example:
        >>> text = "run()" + chr(10) + "if __name__ == '__main__': run()"
        >>> _is_guarded(text, 1), _is_guarded(text, 2), _is_guarded(text, None)
        (False, True, True)
    """
    guards = [node for node in ast.parse(source).body if isinstance(node, ast.If) and _names_main(node.test)]
    return any(line is None or node.lineno <= line <= (node.end_lineno or 0) for node in guards)


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


_FOR_RAPIDS = "RAPIDS_NO_INITIALIZE"
_PRE_SPAWN, _AT_START = "distributed.nanny.pre-spawn-environ", "distributed.nanny.environ"
# Dask's own setting gives every freed buffer back to the system; getting it anew was up to half of a worker's time.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": 512 << 20, "MALLOC_MMAP_THRESHOLD_": 32 << 20}
_FOR_WORKERS = [*dask.config.get(_PRE_SPAWN), *_MALLOC, "PYTHONHASHSEED", "__DASK_PARENT_PID"]
_log = logging.getLogger("gpupipe")


@contextmanager
def local_workers(
    n_workers: int | None,
    *,
    gpu: bool,
    memory_limit: str | int,
    device_memory: int | None,
    timeout: float,
) -> Iterator[Any]:
    """Start worker processes with a scheduler in this one; they stop at the end, or when this process ends.

    Args:
        n_workers: how many; as many as cores (four at most) or as GPUs for None.
        gpu: whether each has a GPU of its own; else they work on the CPU, unless the GPU backend is asked for by name.
        memory_limit: see `Cluster`.
        device_memory: bytes; see `Cluster`.
        timeout: seconds they may take to come up, and to stop.

    Raises:
        BackendMissing: Dask-CUDA cannot be imported, or finds no GPU.
        ClusterLost: the workers did not come up within `timeout`.
    """
    options = {
        "n_workers": n_workers,
        "threads_per_worker": 1,
        "memory_limit": memory_limit,
        "dashboard_address": ":0",
        "silence_logs": logging.CRITICAL,  # what fails is raised here
        "death_timeout": timeout,
    }
    ours = {"GPUPIPE_BACKEND": None if gpu else "cpu", "GPUPIPE_DEVICE_MEMORY": device_memory}
    environment = {
        _PRE_SPAWN: dask.config.get(_PRE_SPAWN) | _MALLOC,
        _AT_START: dask.config.get(_AT_START) | {name: value for name, value in ours.items() if value is not None},
    }
    # Dask gives up a worker that is not there so long after it died, though by then it may have died a second time and
    # be starting again.
    forever = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"})
    with _keep_environment([_FOR_RAPIDS]), forever:  # a worker that is started again needs it too
        with _keep_environment(_FOR_WORKERS), dask.config.set(environment):
            started = _dask_cuda(options) if gpu else _dask(options)
        try:
            yield started
        finally:
            with _keep_environment(_FOR_WORKERS):
                _close(started, timeout)


@contextmanager
def connect(address: Any, timeout: float) -> Iterator[Client]:
    """Connect to a scheduler, given its address, a Dask cluster object, or a client, which stays open.

    Raises:
        ClusterLost: no scheduler answers within `timeout`.
    """
    if isinstance(address, Client):
        yield address
        return
    try:
        # Not the default: Dask collections elsewhere in the program are none of this cluster's business.
        client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, RuntimeError, ValueError) as cause:
        raise ClusterLost(
            f"Cluster(address={address!r})",
            f"no scheduler answers ({cause})",
            expected="a running Dask scheduler",
            remedy="dask scheduler; dask worker tcp://host:8786",
        ) from cause
    try:
        yield client
    finally:
        _close(client, timeout)


def _dask(options: dict[str, Any]) -> Any:
    try:
        return LocalCluster(**options | {"n_workers": options["n_workers"] or default_threads()})
    except (OSError, RuntimeError) as cause:
        raise ClusterLost(
            "Cluster",
            f"the workers did not come up ({type(cause).__name__}: {cause})".replace(": )", ")"),
            expected=f"worker processes within {options['death_timeout']:g} s",
            remedy="a look at what this program does when it is imported; a larger timeout= on a slow machine",
        ) from cause


def _dask_cuda(options: dict[str, Any]) -> Any:
    try:
        # No memory resource of Dask-CUDA's: nobody could give back what its pool keeps, so each worker's backend makes
        # its own. Results that wait are on the host, and small: nothing to spill.
        return importlib.import_module("dask_cuda").LocalCUDACluster(
            **options, device_memory_limit=None, enable_cudf_spill=False
        )
    except Exception as cause:
        raise BackendMissing(
            "Cluster(gpu=True)",
            f"Dask-CUDA does not start ({type(cause).__name__}: {cause})",
            expected="the CUDA extra, and a GPU that is visible",
            remedy="pip install '.[cuda13]'; gpupipe doctor tells more; gpu=False for workers without GPUs",
        ) from cause


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
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
