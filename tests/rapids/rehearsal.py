"""The GPU twin on stand-ins: `gpupipe/backend/gpu.py` as it is, imported with them in RAPIDS' place.

What passes here calls RAPIDS rightly and is right under RAPIDS' rules as read. It proves nothing about a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cudf_polars
import cuml.cluster
import cuml.decomposition
import numpy as np
import polars as pl
import pytest
import rmm as real_rmm
import sklearn.cluster
import sklearn.decomposition
from cudf_polars import containers
from cudf_polars.dsl import ir
from cudf_polars.dsl import translate as translation
from cudf_polars.dsl.translate import Translator

import gpupipe.backend
from gpupipe.io.relational import gpu_engine
from tests.as_cudf_writes import rewrite

from . import standin_plans
from .signatures import check, checked, signature_of
from .standin_cupy import DeviceArray, cupy
from .standin_frame import cudf
from .standin_lists import plc

FREE, TOTAL = 70 << 30, 80 << 30


class Estimator:
    """cuML's, fitted by scikit-learn's of the same name; takes and gives device arrays."""

    def __init__(self, **params: Any) -> None:
        check(f"cuml.{type(self).__name__}", self.real, (), params)
        defaults = {name: p.default for name, p in signature_of(self.real).parameters.items()}
        self.params = defaults | params
        if self.params["output_type"] != "cupy":
            raise AssertionError("the output's type would follow a thread-local setting")

    def fitted(self, model: Any, block: DeviceArray, *names: str) -> Any:
        if block.dtype.name not in ("float32", "float64") or min(block.shape) == 0:
            raise ValueError("cuML would convert this input, or refuse it")
        model.fit(block.host)
        for name in names:
            setattr(self, name, DeviceArray(getattr(model, name)))
        return self


class KMeans(Estimator):
    real = cuml.cluster.KMeans

    @checked("cuml.KMeans.fit", cuml.cluster.KMeans.fit)
    def fit(self, block: DeviceArray) -> Any:
        if self.params["n_init"] != 1:
            raise AssertionError("with given centres cuML's default runs ten times")
        same = {name: self.params[name] for name in ("n_clusters", "init", "n_init", "max_iter")}
        # cuML hands `tol` on as it is, and stops by the squared shift of the centres; scikit-learn's is relative.
        tol = self.params["tol"] / block.host.var(axis=0).mean()
        return self.fitted(sklearn.cluster.KMeans(tol=tol, **same), block, "cluster_centers_", "n_iter_")


class PCA(Estimator):
    real = cuml.decomposition.PCA

    @checked("cuml.PCA.fit", cuml.decomposition.PCA.fit)
    def fit(self, block: DeviceArray) -> Any:
        if min(block.shape) < 2:
            raise ValueError("cuML's PCA asks for two rows and two columns")
        if self.params["n_components"] > block.shape[1]:
            raise ValueError("more components than columns")
        model = sklearn.decomposition.PCA(n_components=self.params["n_components"], svd_solver="covariance_eigh")
        self.fitted(model, block, "mean_", "components_", "explained_variance_")
        block.host[:] = np.nan  # it may centre its input in place
        return self


class Resources:
    """`rmm.mr`: the resource in use, and the default class that tells whether anybody has set one."""

    class CudaMemoryResource:
        pass

    def __init__(self) -> None:
        self.current: Any = self.CudaMemoryResource()

    def get_current_device_resource(self) -> Any:
        return self.current

    def set_current_device_resource(self, *args: Any, **kwargs: Any) -> None:
        check("rmm.mr.set_current_device_resource", real_rmm.mr.set_current_device_resource, args, kwargs)
        (self.current,) = args

    def available_device_memory(self) -> tuple[int, int]:
        return FREE, TOTAL

    def CudaAsyncViewMemoryResource(self, *args: Any, **kwargs: Any) -> Any:
        check("rmm.mr.CudaAsyncViewMemoryResource", real_rmm.mr.CudaAsyncViewMemoryResource, args, kwargs)
        return SimpleNamespace(pool=args[0])

    class PoolMemoryResource:
        def __init__(self, num_bytes: int) -> None:
            self.num_bytes = num_bytes

        def pool_size(self) -> int:
            return self.num_bytes

        def get_upstream(self) -> Any:
            return Resources.CudaMemoryResource()

    class StatisticsResourceAdaptor:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            check("rmm.mr.StatisticsResourceAdaptor", real_rmm.mr.StatisticsResourceAdaptor, args, kwargs)
            (self.upstream,) = args
            self.allocation_counts = SimpleNamespace(current_bytes=0)

        def get_upstream(self) -> Any:
            return self.upstream

    class LimitingResourceAdaptor:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            check("rmm.mr.LimitingResourceAdaptor", real_rmm.mr.LimitingResourceAdaptor, args, kwargs)
            self.upstream, self.limit = args

        def get_allocation_limit(self) -> int:
            return self.limit

        def get_allocated_bytes(self) -> int:
            return 0


def standins() -> dict[str, Any]:
    """The modules that `gpu.py` imports, by name."""
    runtime = SimpleNamespace(cudaMemPool_t=int)
    return {
        "cudf": cudf,
        "cupy": cupy,
        "pylibcudf": plc,
        "rmm": SimpleNamespace(mr=Resources()),
        "cuml": SimpleNamespace(),
        "cuml.cluster": SimpleNamespace(KMeans=KMeans),
        "cuml.decomposition": SimpleNamespace(PCA=PCA),
        "cuda": SimpleNamespace(),
        "cuda.bindings": SimpleNamespace(runtime=runtime),
    }


def rehearsed_module(modules: dict[str, Any]) -> ModuleType:
    """`gpupipe.backend.gpu` with these in RAPIDS' place; the names are bound at import, so nothing else sees them."""
    spec = util.find_spec("gpupipe.backend.gpu")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, standin in modules.items():  # cuML is imported by the steps that call it
            patch.setitem(sys.modules, name, None if name.startswith("cuml") else standin)
        patch.setitem(sys.modules, spec.name, module)  # where dataclasses look
        spec.loader.exec_module(module)
    module._is_on_device = standin_plans.Flag()  # type: ignore[attr-defined]
    return module


@contextmanager
def rehearsed() -> Iterator[Any]:
    """A `GpuBackend` on stand-ins, which is also what `select("gpu")` and `select("auto")` give meanwhile.

    Its device is the CPU, so that torch's side of a hand-over works. Plans over whole tables are translated by
    cudf-polars, and run by Polars on the CPU.
    """
    modules = standins()
    module = rehearsed_module(modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "gpupipe.backend.gpu", module)
        patch.setattr(
            gpupipe.backend, "choose_backend", lambda name, found: ("cpu" if name == "cpu" else "gpu", "rehearsal")
        )
        for name in ("cuml", "cuml.cluster", "cuml.decomposition"):
            patch.setitem(sys.modules, name, modules[name])
        for owner, name in ((containers, "DataFrame"), (ir, "IRExecutionContext"), (translation, "Translator")):
            patch.setattr(owner, name, getattr(standin_plans, name))
        patch.setattr(gpu_engine, "rmm", modules["rmm"])
        patch.setattr(cudf_polars, "execute_with_cudf", translate)
        write = gpu_engine.write

        def write_as_cudf(plan: pl.LazyFrame, group_rows: int, num_bytes: int, path: Path) -> None:
            write(plan, group_rows, num_bytes, path)
            rewrite(path)

        patch.setattr(gpu_engine, "write", write_as_cudf)
        _forget_backends()
        backend = gpupipe.backend.select("gpu")
        backend.device = "cpu"
        yield backend
    _forget_backends()


def translate(plan: Any, _: int | None, *, config: pl.GPUEngine) -> None:
    """Do of `cudf_polars.execute_with_cudf` what it does before it runs a plan, which Polars then runs itself."""
    translator = Translator(plan, config)
    translator.translate_ir()
    if config.config["raise_on_fail"] and (error := translator.unsupported_operations_error()):
        raise error


def _forget_backends() -> None:
    for value in vars(gpupipe.backend).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
