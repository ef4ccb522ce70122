"""What is asked of Dask-CUDA exists there and takes what it is given; what is said where there is no GPU."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dask_cuda", reason="the RAPIDS wheels are not installed here")

import cupy
import dask
import dask_cuda
import rmm
import torch
from dask_cuda.plugins import RMMSetup
from distributed import LocalCluster, Nanny

import gpupipe as gp
from gpupipe import config, errors
from gpupipe.backend import is_out_of_memory

from .rehearsal import FREE, rehearsed_module, standins

ROOT = Path(__file__).parents[2]


class Stopped(Exception):
    pass


def test_every_keyword_is_one_of_dask_cudas(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    environment: dict[str, Any] = {}

    def stand_in(**keywords: Any) -> None:
        given.update(keywords)
        environment.update(dask.config.get("distributed.nanny.environ"))
        raise Stopped

    taken = inspect.signature(dask_cuda.LocalCUDACluster).parameters
    passed_on = {**inspect.signature(LocalCluster).parameters, **inspect.signature(Nanny).parameters}
    monkeypatch.setattr(dask_cuda, "LocalCUDACluster", stand_in)
    with pytest.raises(errors.BackendMissing, match="Stopped"):
        gp.Cluster(2, gpu=True, device_memory="10 GB", memory_limit="4 GB")
    assert {name for name in given if name not in taken} == {"dashboard_address", "silence_logs", "death_timeout"}
    assert given.keys() - taken.keys() <= passed_on.keys()
    assert (given["n_workers"], given["memory_limit"]) == (2, "4 GB")
    assert (given["enable_cudf_spill"], given["device_memory_limit"]) == (False, None)
    assert environment == {"GPUPIPE_DEVICE_MEMORY": 10_000_000_000}
    assert dask.config.get("distributed.nanny.environ") == {}


def test_what_we_ask_of_dask_cuda_leaves_the_memory_resource_to_the_workers_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what Dask-CUDA sets by default, none is a resource: `GpuBackend` makes a pool that it can trim."""
    defaults = {name: p.default for name, p in inspect.signature(dask_cuda.LocalCUDACluster).parameters.items()}
    setup = RMMSetup(
        defaults["rmm_pool_size"],
        defaults["rmm_maximum_pool_size"],
        defaults["rmm_managed_memory"],
        defaults["rmm_async"],
        defaults["rmm_release_threshold"],
        defaults["rmm_log_directory"],
        defaults["rmm_track_allocations"],
        defaults["rmm_allocator_external_lib_list"],
    )
    monkeypatch.setattr(rmm, "reinitialize", None)
    monkeypatch.setattr(rmm.mr, "set_current_device_resource", None)
    setup.setup(None)


def test_a_workers_backend_makes_a_pool_with_the_limit_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_in_force", [])
    monkeypatch.setenv("GPUPIPE_DEVICE_MEMORY", "10000000000")
    modules = standins()
    made = rehearsed_module(modules).GpuBackend()
    assert modules["rmm"].mr.current.limit == 10_000_000_000
    made.make_room(FREE // 2)
    assert modules["rmm"].mr.current.limit == 10_000_000_000
    made.make_room(FREE - (9 << 30))
    assert modules["rmm"].mr.current.limit == 1 << 30


WITHOUT_GPU = """
import json, os, sys
import psutil
import gpupipe as gp
import polars  # which sets a variable of its own
def main():
    before = dict(os.environ)
    try:
        gp.Cluster(gpu=True, device_memory="10 GB")
        said = "it started"
    except gp.errors.BackendMissing as error:
        said = str(error)
    loaded = [name for name in ("cudf", "cupy", "cuml", "numba", "gpupipe.backend.gpu") if name in sys.modules]
    print(json.dumps([said, loaded, len(psutil.Process().children()), dict(os.environ) == before]))
if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_started(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_GPU)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said, loaded, children, unchanged = json.loads(done.stdout.splitlines()[-1])
    assert said.startswith("Cluster(gpu=True): Dask-CUDA does not start (") and "a GPU that is visible" in said
    assert (loaded, children, unchanged) == ([], 0, True)


def test_each_librarys_word_for_too_little_memory_is_known() -> None:
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(cupy.cuda.memory.OutOfMemoryError(1, 2))
    assert is_out_of_memory(RuntimeError("cudaErrorMemoryAllocation: out of memory"))
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert not is_out_of_memory(cupy.cuda.runtime.CUDARuntimeError(700))
