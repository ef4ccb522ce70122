"""Parquet that the GPU twin writes on stand-ins: read back, it is what pyarrow writes of the same rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe.backend.columns import Backend
from gpupipe.io import inspect
from gpupipe.io.jobs import part_writer

TIMES = [dt.datetime(1969, 12, 31, 23, 0, 0, 1), None, dt.datetime(2013, 1, 1), dt.datetime(2262, 6, 1)]  # noqa: DTZ001
TABLE = pa.table(
    {
        "n": pa.array([1, None, 3, 2**53 + 1], pa.int64()),
        "u": pa.array([0, 1, 255, None], pa.uint8()),
        "x": pa.array([0.5, None, -0.0, 2.0], pa.float32()),
        "s": pa.array(["a", None, "", "a"], pa.large_string()),
        "ok": [True, None, False, True],
        "day": pa.array([dt.date(1969, 12, 31), None, dt.date(2013, 1, 1), dt.date(1, 1, 1)]),
        "ids": pa.array([[1, None], [], None, [4]], pa.large_list(pa.int64())),
        "words": pa.array([["a", None], [], None, ["b"]], pa.large_list(pa.large_string())),
    }
).append_column(pa.field("speed", pa.float64(), metadata={"units": "m/s"}), pa.array([1.0, 2.0, None, 4.0]))
DAYS = pa.array([dt.date(1969, 12, 31), None, dt.date(2013, 1, 1), dt.date(2013, 1, 1)])
NAIVE = pa.array(TIMES, pa.timestamp("us"))
ZONED = pa.array(TIMES, pa.timestamp("us", "Europe/Oslo"))


def written(path: Path, table: pa.Table, backend: str, **options: Any) -> pq.ParquetFile:
    gp.from_frame(table, backend=backend, num_partitions=options.pop("parts", 1)).write_parquet(path, **options)
    return pq.ParquetFile(path)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "lz4", "none"])
@pytest.mark.parametrize("times", [[], [NAIVE], [ZONED], [ZONED, ZONED]])
def test_a_file_is_what_pyarrow_writes(
    rehearsed_backend: Backend, tmp_path: Path, times: list[pa.Array], compression: str
) -> None:
    table = TABLE
    for place, array in enumerate(times):
        table = table.append_column(f"at{place}", array)
    before = rehearsed_backend.transfers.num_bytes
    dataset = gp.from_frame(table, backend="gpu")
    copied = rehearsed_backend.transfers.num_bytes
    dataset.write_parquet(tmp_path / "gpu.parquet", compression=compression)
    assert rehearsed_backend.transfers.num_bytes == copied, before
    found = pq.ParquetFile(tmp_path / "gpu.parquet")
    wanted = written(tmp_path / "cpu.parquet", table, "cpu", compression=compression)
    assert found.schema_arrow.equals(wanted.schema_arrow, check_metadata=True)
    assert found.read().equals(wanted.read())
    for place in range(found.metadata.num_columns):
        one, other = (file.metadata.row_group(0).column(place) for file in (found, wanted))
        assert (one.path_in_schema, one.physical_type) == (other.path_in_schema, other.physical_type)
        assert one.compression == other.compression
        assert one.statistics == other.statistics
    assert gp.read_parquet(tmp_path / "gpu.parquet").schema == gp.read_parquet(tmp_path / "cpu.parquet").schema


@pytest.mark.parametrize(
    ("table", "options"),
    [
        pytest.param(TABLE.append_column("at", NAIVE).append_column("zoned", ZONED), {}, id="times of both kinds"),
        pytest.param(TABLE.append_column("at", NAIVE), {"parts": 2}, id="times without a zone, in parts"),
        pytest.param(TABLE, {"compression": "gzip"}, id="a codec that it has not"),
        pytest.param(TABLE, {"rows_per_group": 2}, id="small row groups"),
    ],
)
def test_what_its_writer_cannot_write_is_copied_to_the_host_and_counted(
    rehearsed_backend: Backend, tmp_path: Path, table: pa.Table, options: dict[str, Any]
) -> None:
    before = rehearsed_backend.transfers.num_bytes
    found = written(tmp_path / "gpu.parquet", table, "gpu", **options.copy())
    assert rehearsed_backend.transfers.num_bytes - before > 100
    wanted = written(tmp_path / "cpu.parquet", table, "cpu", **options)
    assert found.schema_arrow.equals(wanted.schema_arrow, check_metadata=True) and found.read().equals(wanted.read())


def test_a_layout_for_gpus(rehearsed_backend: Backend, tmp_path: Path) -> None:
    numbers = pa.table({"n": np.arange(60_000), "x": np.arange(60_000) / 7})
    written(tmp_path / "gpu.parquet", numbers, "gpu", layout="gpu")
    found = inspect(gp.read_parquet(tmp_path / "gpu.parquet", backend="cpu")).layout
    assert found is not None and found.pages_per_chunk == 12 and found.groups == (60_000,)


@pytest.mark.parametrize("times", [[], [ZONED]])
def test_partitions_are_written_to_one_file_one_by_one(
    rehearsed_backend: Backend, tmp_path: Path, times: list[pa.Array]
) -> None:
    table = TABLE if not times else TABLE.append_column("at", times[0])
    copied = rehearsed_backend.transfers.count
    found = written(tmp_path / "gpu.parquet", table, "gpu", parts=2)
    assert rehearsed_backend.transfers.count == copied
    wanted = written(tmp_path / "cpu.parquet", table, "cpu")
    assert found.schema_arrow.equals(wanted.schema_arrow, check_metadata=True) and found.read().equals(wanted.read())
    assert found.metadata.num_row_groups == 2


def test_a_folder_is_written_part_by_part_and_goes_on(rehearsed_backend: Backend, tmp_path: Path) -> None:
    numbers = pa.table({"n": np.arange(20_000), "text": [f"t{n % 7}" for n in range(20_000)]})
    pq.write_table(numbers, tmp_path / "in.parquet", row_group_size=10_000)
    dataset = gp.read_parquet(tmp_path / "in.parquet", partition_bytes=1, backend="gpu")
    copied = rehearsed_backend.transfers.count
    manifest = dataset.write_parquet(tmp_path / "out", rows_per_group=5_000, shuffle="partition", seed=3)
    assert rehearsed_backend.transfers.count == copied
    assert [list(part.files.values()) for part in manifest.parts] == [[[5_000, 5_000]]] * 2
    host = gp.read_parquet(tmp_path / "in.parquet", partition_bytes=1, backend="cpu")
    host.write_parquet(tmp_path / "wanted", shuffle="partition", seed=3)
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").equals(
        pq.read_table(tmp_path / "wanted" / "part-00000.parquet")
    )
    assert dataset.write_parquet(tmp_path / "out", rows_per_group=5_000, shuffle="partition", seed=3).num_done == 2


def test_without_memory_on_the_device_a_part_is_written_on_the_host(
    rehearsed_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(frames: Any, types: Any, path: Path, layout: Any) -> bool:
        path.write_bytes(b"PAR1")
        raise MemoryError("std::bad_alloc: out_of_memory")

    monkeypatch.setattr(rehearsed_backend, "write_parquet", write)
    manifest = gp.from_frame(TABLE, backend="gpu").write_parquet(tmp_path / "out")
    assert "out_of_memory" in manifest.parts[0].halved[0]
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").equals(TABLE)


@pytest.mark.parametrize("keys", [["s"], ["n", "ok"], ["day", "s"]])
def test_folders_by_key_are_what_pyarrow_writes(
    rehearsed_backend: Backend, tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.concat_tables([TABLE.set_column(4 + 1, "day", [DAYS])] * 3)
    dataset = gp.from_frame(table, backend="gpu", num_partitions=2)
    with monkeypatch.context() as patch:
        patch.setattr(part_writer, "_write_hive", None)
        dataset.write_parquet(tmp_path / "gpu", partition_by=keys)
    gp.from_frame(table, backend="cpu", num_partitions=2).write_parquet(tmp_path / "cpu", partition_by=keys)
    there, here = (sorted(path.rglob("*.parquet")) for path in (tmp_path / "gpu", tmp_path / "cpu"))
    names = [[file.relative_to(tmp_path / side) for file in files] for side, files in (("gpu", there), ("cpu", here))]
    assert names[0] == names[1]
    for one, other in zip(there, here, strict=True):
        assert pq.ParquetFile(one).read().equals(pq.ParquetFile(other).read(), check_metadata=True)


def test_folders_of_what_the_device_does_not_write_are_written_on_the_host(
    rehearsed_backend: Backend, tmp_path: Path
) -> None:
    gp.from_frame(TABLE, backend="gpu").write_parquet(tmp_path / "gpu", partition_by=["s"], compression="gzip")
    assert len(gp.read_parquet(tmp_path / "gpu", backend="cpu").to_pandas()) == 4


def test_folders_that_take_more_than_the_device_has_are_written_on_the_host(
    rehearsed_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("std::bad_alloc: out_of_memory: RMM failure at: x.hpp: Exceeded memory limit")

    monkeypatch.setattr(rehearsed_backend, "run_plan", fail)
    gp.from_frame(TABLE, backend="gpu").write_parquet(tmp_path / "gpu", partition_by=["s"])
    assert "written on the host" in caplog.text
    assert len(gp.read_parquet(tmp_path / "gpu", backend="cpu").to_pandas()) == 4
