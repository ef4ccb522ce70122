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
import dask_cuda
import torch
from dask_cuda.plugins import RMMSetup
from distributed import LocalCluster, Nanny

import gpupipe as gp
from gpupipe import errors
from gpupipe.backend.shortage import is_out_of_memory
from gpupipe.cluster import start

ROOT = Path(__file__).parents[2]


class Stopped(Exception):
    pass


@pytest.mark.parametrize(("n_workers", "ucx_there", "protocol"), [(1, True, None), (2, True, "ucx"), (2, False, None)])
def test_every_keyword_is_one_of_dask_cudas(
    monkeypatch: pytest.MonkeyPatch, n_workers: int, ucx_there: bool, protocol: str | None
) -> None:
    given: dict[str, Any] = {}

    def stand_in(**keywords: Any) -> None:
        given.update(keywords)
        raise Stopped

    taken = inspect.signature(dask_cuda.LocalCUDACluster).parameters
    passed_on = {**inspect.signature(LocalCluster).parameters, **inspect.signature(Nanny).parameters}
    monkeypatch.setattr(dask_cuda, "LocalCUDACluster", stand_in)
    monkeypatch.setattr(start, "find_spec", {"distributed_ucxx": ucx_there}.__getitem__)
    with pytest.raises(errors.BackendMissing, match="Stopped"):
        gp.Cluster(n_workers, gpu=True, device_memory="10 GB", memory_limit="4 GB")
    assert {name for name in given if name not in taken} == {"dashboard_address", "silence_logs", "death_timeout"}
    assert given.keys() - taken.keys() <= passed_on.keys()
    assert (given["n_workers"], given["protocol"], given["rmm_async"]) == (n_workers, protocol, True)
    assert (given["rmm_maximum_pool_size"], given["memory_limit"]) == ("10 GB", "4 GB")
    assert (given["enable_cudf_spill"], given["device_memory_limit"]) == (False, None)


def test_rmms_asynchronous_resource_takes_a_limit() -> None:
    """Dask-CUDA's documentation says that it does not."""
    setup = RMMSetup(None, "10 GB", False, True, None, None, False, None)
    assert "LimitingResourceAdaptor" in inspect.getsource(type(setup).setup)
    assert setup.maximum_pool_size == "10 GB"


WITHOUT_GPU = """
import json, os, sys
import psutil
import gpupipe as gp
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
