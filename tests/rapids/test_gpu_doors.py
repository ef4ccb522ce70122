"""`GpuBackend` on stand-ins: Parquet, the door to the host, estimators, memory."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import rmm

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend.columns import Backend, Column
from gpupipe.errors import BackendMissing, BadFile, OutOfDeviceMemory
from gpupipe.schema import Field
from tests.io.tables import damage
from tests.raising import raises

from .oracle import CPU, TYPES, both, host, same
from .rehearsal import FREE, rehearsed_module, standins


def test_parquet_row_groups(rehearsed_backend: Backend, tmp_path: Any) -> None:
    table = pa.table(
        {
            name: pa.array([None, *([value] * 5)], TYPES[name])
            for name, value in {"byte": 3, "price": 0.5, "città": "a", "open": True}.items()
        }
    )
    path = tmp_path / "città=Roma" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, row_group_size=2)
    fields = [Field("price", "float32"), Field("città", "string"), Field("byte", "int64"), Field("open", "bool")]
    for groups in ([1, 2], [0], []):
        found = rehearsed_backend.to_arrow(rehearsed_backend.read_parquet([path], [groups], fields))
        same(found, CPU.to_arrow(CPU.read_parquet([path], [groups], fields)))


@pytest.mark.parametrize("index", ["range", "named", "without a name"])
def test_parquet_whose_index_was_written_by_pandas(rehearsed_backend: Backend, tmp_path: Any, index: str) -> None:
    frame = pd.DataFrame({"id": [5, 9, 7], "x": [1.0, 2.0, 3.0]})
    if index != "range":
        frame = frame.set_index("id")
    name = "id"
    if index == "without a name":
        frame.index.name, name = None, "__index_level_0__"
    frame.to_parquet(tmp_path / "x", row_group_size=2)
    coded = rehearsed_backend.read_parquet([tmp_path / "x"], [[1]], [Field("x", "float64"), Field(name, "int64")])
    assert rehearsed_backend.to_arrow(coded).to_pydict() == {"x": [3.0], name: [7]}
    assert host(rehearsed_backend.positions(coded)).tolist() == [0]
    assert rehearsed_backend.to_arrow(
        rehearsed_backend.read_parquet([tmp_path / "x"], [[1]], [Field("x", "float64")])
    ).to_pydict() == {"x": [3.0]}


def test_a_column_that_is_not_in_the_file_is_no_silence(rehearsed_backend: Backend, tmp_path: Any) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(OSError, match="non-existent column"):
        rehearsed_backend.read_parquet([tmp_path / "x.parquet"], [[0]], [Field("y", "int64")])


def test_damaged_bytes_are_a_fault_of_the_file(rehearsed_backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": [1, 2, 3]}), path, row_group_size=2)
    damage(path, 0, "x")
    dataset = gp.read_parquet(path)
    assert len(dataset.select(["y"]).compute()) == 3
    for read in (dataset.compute, lambda: gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()))).fit(dataset)):
        with pytest.raises(BadFile, match=r"x\.parquet: row groups 0-1 cannot be read \(CUDF failure") as caught:
            read()
        assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("cause", "raised"),
    [
        (RuntimeError("CUDA error encountered at: x.cu:1: 700 cudaErrorIllegalAddress"), RuntimeError),
        (RuntimeError("exception occurred: std::bad_alloc"), RuntimeError),
        (MemoryError("std::bad_alloc: out_of_memory"), OutOfDeviceMemory),
        (IndexError("vector::_M_range_check"), OSError),
    ],
)
def test_a_fault_of_the_device_is_none_of_the_file(tmp_path: Path, cause: Exception, raised: type[Exception]) -> None:
    modules = standins()
    modules["cudf"] = SimpleNamespace(**vars(modules["cudf"]) | {"read_parquet": throwing(cause)})
    with pytest.raises(raised) as caught:
        rehearsed_module(modules).GpuBackend().read_parquet([tmp_path / "x.parquet"], [[0]], [Field("x", "int64")])
    assert not issubclass(raised, RuntimeError) or caught.value is cause


def throwing(cause: Exception) -> Any:
    def read_parquet(*args: Any, **kwargs: Any) -> None:
        raise cause

    return read_parquet


class Elsewhere(MemoryFileSystem):
    """A place whose files cannot be read whole."""

    protocol = "elsewhere"
    fetched = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        assert start is not None and end is not None
        type(self).fetched += end - start
        return super().cat_file(path, start, end, **kwargs)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        assert "w" in mode or not self.fetched, "of an open file cuDF reads all there is"
        return super()._open(path, mode, **kwargs)


def test_of_a_file_elsewhere_only_a_part_is_fetched(rehearsed_backend: Backend) -> None:
    fsspec.register_implementation("elsewhere", Elsewhere)
    table = pa.table({"n": range(40_000), "noise": np.random.default_rng(0).random(40_000)})
    with fsspec.open("elsewhere://x.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=10_000)
    dataset = gp.read_parquet("elsewhere://x.parquet", partition_bytes=1)
    Elsewhere.fetched = 0
    found = rehearsed_backend.to_arrow(dataset.read(dataset.partitions[2], ["noise"]))
    assert found.to_pylist() == table.slice(20_000, 10_000).select(["noise"]).to_pylist()
    assert 80_000 < Elsewhere.fetched < 100_000
    assert len(dataset.filter("n > 12").compute()) == 39_987


def test_the_door_is_counted(rehearsed_backend: Backend) -> None:
    frame, _ = both(rehearsed_backend, pa.table({"città": ["a", "b", "a"], "price": [1.0, 2.0, 3.0]}))
    before = rehearsed_backend.transfers.num_bytes
    rehearsed_backend.column(frame, "price")
    assert rehearsed_backend.transfers.num_bytes == before
    codes = rehearsed_backend.column(frame, "città").data
    assert 0 < rehearsed_backend.transfers.num_bytes - before < 64
    assert rehearsed_backend.to_host(codes).tolist() == [0, 1, 0] and codes.dtype == "int32"
    assert rehearsed_backend.transfers.num_bytes > before + codes.nbytes


def test_a_dictionary_comes_to_the_host_once(rehearsed_backend: Any) -> None:
    """Rows that are taken, columns renamed and frames made of them share it; another column has its own."""
    gpu = rehearsed_backend
    frame, _ = both(gpu, pa.table({"città": ["a", "b", "a"]}))
    other, _ = both(gpu, pa.table({"città": ["c", "b", "a"]}))
    dictionary, before = gpu.column(frame, "città").dictionary, gpu.transfers.num_bytes
    for again in (frame, gpu.take(frame, gpu.xp.arange(2)), gpu.rename(gpu.select(frame, ["città"]), {"città": "x"})):
        assert gpu.column(again, again.columns[0]).dictionary is dictionary
    assert gpu.transfers.num_bytes == before
    assert sorted(gpu.column(other, "città").dictionary.to_pylist()) == ["a", "b", "c"]
    assert gpu.transfers.num_bytes > before
    before = gpu.transfers.num_bytes
    made = gpu.assign(frame, {"y": Column("string", gpu.xp.zeros(3, dtype="int32"), None, dictionary)})
    assert gpu.column(made, "y").dictionary is dictionary
    assert gpu.transfers.num_bytes == before, "what is written is known on the host"


def test_dictionaries_are_kept_as_long_as_their_columns(rehearsed_backend: Any) -> None:
    before = len(rehearsed_backend._dictionaries)
    frame, _ = both(rehearsed_backend, pa.table({"città": ["a", "b", "a"]}))
    rehearsed_backend.column(frame, "città")
    assert len(rehearsed_backend._dictionaries) == before + 1
    del frame
    gc.collect()
    assert len(rehearsed_backend._dictionaries) == before


@pytest.mark.parametrize("columns", [1, 4])
def test_estimators(rehearsed_backend: Backend, columns: int) -> None:
    block = np.random.default_rng(0).standard_normal((200, columns)) * np.arange(1, columns + 1)
    wanted, found = CPU.pca(block.copy(), 1), rehearsed_backend.pca(rehearsed_backend.to_device(block), 1)
    np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-12)
    np.testing.assert_allclose(np.abs(found.components), np.abs(wanted.components), atol=1e-9)
    np.testing.assert_allclose(found.explained_variance, wanted.explained_variance)
    centres = block[:3]
    np.testing.assert_allclose(
        rehearsed_backend.kmeans(rehearsed_backend.to_device(block), centres, 100, 1e-6),
        CPU.kmeans(block.copy(), centres, 100, 1e-6),
        atol=1e-9,
    )


@pytest.mark.parametrize(("method", "module"), [("kmeans", "cuml.cluster"), ("pca", "cuml.decomposition")])
def test_without_cuml_only_what_it_fits_is_refused(
    method: str, module: str, rehearsed_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    block = rehearsed_backend.to_device(np.ones((4, 2)))
    arguments = (np.ones((2, 2)), 100, 1e-6) if method == "kmeans" else (1,)
    with raises(BackendMissing, where={"kmeans": "k-means", "pca": "PCA"}[method], match="(?s)does not load.*cuml-cu1"):
        getattr(rehearsed_backend, method)(block, *arguments)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_k_means_stops_where_it_does_on_a_cpu_whatever_the_columns_size(
    rehearsed_backend: Backend, size: float
) -> None:
    block = np.random.default_rng(3).standard_normal((500, 2)) * size
    wanted = CPU.kmeans(block.copy(), block[:5], 100, 1e-2)
    found = rehearsed_backend.kmeans(rehearsed_backend.to_device(block), block[:5], 100, 1e-2)
    np.testing.assert_allclose(found, wanted, atol=1e-12 * size)
    assert np.abs(wanted - CPU.kmeans(block.copy(), block[:5], 100, 0.0)).max() > 1e-3 * size, "it stopped early"


def test_the_default_resource_is_replaced_by_a_limited_pool() -> None:
    modules = standins()
    backend = rehearsed_module(modules).GpuBackend()
    resources = modules["rmm"].mr
    assert (
        backend.device == "cuda:0"
        and resources.current.limit == FREE - (8 << 30)
        and resources.current.upstream.pool == 77
    )
    backend.make_room(20 << 30)
    assert resources.current.limit == FREE - (28 << 30)
    with pytest.raises(OutOfDeviceMemory):
        backend.make_room(FREE)


class Pool:
    """A resource of the user's that tells its pool, as RMM's view of CUDA's pools does."""

    def pool_handle(self) -> int:
        return 12


class Around:
    """One that is put around another: it limits, counts or logs."""

    def __init__(self, upstream: Any) -> None:
        self.get_upstream = lambda: upstream


@pytest.mark.parametrize(
    ("chosen", "trimmed", "level"),
    [
        (object(), [], "WARNING"),
        (Around(object()), [], "WARNING"),
        (Pool(), [12], "INFO"),
        (Around(Pool()), [12], "INFO"),
    ],
)
def test_a_resource_the_user_has_set_is_kept_and_trimmed_if_it_can_be(
    chosen: Any, trimmed: list[int], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    modules: dict[str, Any] = standins()
    found: list[int] = []
    modules["rmm"].mr.current = chosen
    with caplog.at_level(logging.INFO, "gpupipe"):
        module: Any = rehearsed_module(modules)
        backend = module.GpuBackend()
    assert [(record.levelname, type(chosen).__name__ in record.getMessage()) for record in caplog.records] == [
        (level, True)
    ]
    runtime = SimpleNamespace(deviceSynchronize=lambda: None, memPoolTrimTo=lambda pool, _: found.append(pool))
    module.cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    backend.make_room(1 << 30)
    assert modules["rmm"].mr.current is chosen
    assert found == trimmed


@pytest.mark.parametrize("around", [False, True])
def test_what_is_free_in_a_users_pool_counts_as_free(around: bool) -> None:
    """Of 70 GiB free, 60 GiB became the user's pool, of which frames of ours hold 5 GiB."""
    modules: dict[str, Any] = standins()
    mr = modules["rmm"].mr
    pool = mr.PoolMemoryResource(60 << 30)
    mr.current = Around(pool) if around else pool
    backend = rehearsed_module(modules).GpuBackend()
    assert mr.current.get_upstream() is (mr.current.upstream if around else pool), "it is counted, and still the user's"
    assert backend.free_bytes() == FREE + (60 << 30)
    mr.current.allocation_counts.current_bytes = 5 << 30
    assert backend.free_bytes() == FREE + (55 << 30)


def test_adaptors_and_pools_of_rmm_tell_what_we_ask() -> None:
    assert hasattr(rmm.mr.PoolMemoryResource, "pool_size")
    counter = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
    assert counter.allocation_counts.current_bytes == 0
    assert hasattr(rmm.mr.CudaAsyncViewMemoryResource, "pool_handle")
    for adaptor in (rmm.mr.LimitingResourceAdaptor, rmm.mr.StatisticsResourceAdaptor, rmm.mr.PoolMemoryResource):
        assert hasattr(adaptor, "get_upstream")
    assert not hasattr(rmm.mr.CudaMemoryResource, "get_upstream")


def test_memory_errors_say_what_was_done(rehearsed_backend: Backend) -> None:
    with pytest.raises(OutOfDeviceMemory, match="merging"):
        raise_in_merge(rehearsed_backend)


def raise_in_merge(backend: Backend) -> None:
    class Full:
        columns = ("k",)

        def __getitem__(self, names: Any) -> Any:
            raise MemoryError("std::bad_alloc: out_of_memory: CUDA error (failed to allocate 64 bytes)")

    backend.merge(Full(), Full(), ["k"], "left", "_right")
