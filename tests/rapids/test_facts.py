"""What the GPU code relies on in RAPIDS without using it: names, defaults, parents. Red means: read RAPIDS again."""

from __future__ import annotations

import inspect
from importlib.metadata import files
from typing import Any

import pytest

cudf = pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import cupy  # noqa: E402
import kvikio.defaults  # noqa: E402
import rmm  # noqa: E402
import torch  # noqa: E402
from cuda.bindings import runtime  # noqa: E402
from cudf_polars.dsl.ir import Sink  # noqa: E402
from cudf_polars.engine.dask import DaskEngine  # noqa: E402
from cudf_polars.engine.persisted_result import PersistedQueryResult  # noqa: E402
from cudf_polars.engine.spmd import SPMDEngine  # noqa: E402
from cudf_polars.utils.config import resolve_kvikio_task_size  # noqa: E402
from cuml.cluster import KMeans  # noqa: E402
from cuml.decomposition import PCA  # noqa: E402
from packaging.version import Version  # noqa: E402

from gpupipe.backend.device.probe import CUPY_VERSION  # noqa: E402


def default(target: Any, name: str) -> Any:
    return inspect.signature(target).parameters[name].default


@pytest.mark.parametrize("name", ["__dlpack__", "__dlpack_device__", "values_host", "to_torch"])
def test_cudf_has_no_other_way_out_than_to_cupy(name: str) -> None:
    assert not hasattr(cudf.Series, name) and not hasattr(cudf.DataFrame, name)


@pytest.mark.parametrize("owner", [cudf.Series, cudf.DataFrame])
def test_cudf_makes_no_host_copy_by_itself(owner: Any) -> None:
    with pytest.raises(TypeError):
        owner.__array__(object.__new__(owner))


def test_defaults_that_are_not_ours() -> None:
    assert default(cudf.read_parquet, "ignore_missing_columns") is True
    assert default(cudf.read_parquet, "use_pandas_metadata") is True
    assert default(cudf.Series.to_cupy, "na_value") is None
    assert default(cudf.DataFrame.merge, "how") == "inner" and default(cudf.DataFrame.merge, "suffixes") == ("_x", "_y")
    assert default(KMeans, "n_init") == "auto" and default(KMeans, "output_type") is None
    assert cudf.get_option("mode.pandas_compatible") is False


def test_estimators_take_keywords_only() -> None:
    for estimator in (KMeans, PCA):
        assert {p.kind for p in inspect.signature(estimator).parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}


def test_what_running_out_of_memory_raises() -> None:
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def test_a_pool_handle_is_what_rmm_asks_for() -> None:
    assert int(runtime.cudaMemPool_t(77)) == 77
    with pytest.raises(ValueError, match="cudaMemPool_t"):
        rmm.mr.CudaAsyncViewMemoryResource(77)


def test_cupy_is_one_that_counts_nothing_and_repeats_by_an_array() -> None:
    assert Version(cupy.__version__) >= Version(CUPY_VERSION)
    assert "cupy.ndarray" in cupy.repeat.__doc__.partition("Returns")[0].partition("repeats (")[2]


def test_cupy_differs_from_numpy_where_we_think() -> None:
    assert not hasattr(cupy, "bfloat16")
    assert not hasattr(cupy.ndarray, "__index__")
    assert cupy.float32 is __import__("numpy").float32


def test_dtypes_are_named_as_we_name_them() -> None:
    assert str(cudf.dtype("datetime64[us]")) == "datetime64[us]"
    assert cudf.api.types.is_string_dtype(cudf.dtype("str")) and not cudf.api.types.is_string_dtype(
        cudf.ListDtype("int64")
    )


def read_source(wheel: str, name: str) -> str:
    return next(path for path in files(wheel) or [] if str(path).endswith(name)).read_text()


def test_what_decision_028_refuses_is_as_it_was() -> None:
    for engine in (SPMDEngine, DaskEngine):
        assert "UnstableWarning" in engine.execute.__doc__
    told = " ".join(PersistedQueryResult.__doc__.split())
    assert "must be collected or executed only with the engine that produced it" in told
    assert "Collection is one-shot" in told
    written = inspect.getsource(Sink)
    assert not any(option in written for option in ("utc_timestamps", "key_value_metadata", "set_nullability"))
    assert "params.metric = DistanceType.L2Expanded" in read_source("cuml-cu13", "cuml/cluster/kmeans.pyx")


def test_kvikios_defaults_are_those_of_the_page() -> None:
    assert kvikio.defaults.get("task_size") == 4 << 20 and resolve_kvikio_task_size({}) == 16 << 20
    header = read_source("libcudf-cu13", "cudf/io/config_utils.hpp")
    assert "KVIKIO_COMPAT_MODE is not set, enable it by default" in " ".join(header.replace("*", "").split())
    assert "KVIKIO_NTHREADS, defaulting to 4 if unset" in header
