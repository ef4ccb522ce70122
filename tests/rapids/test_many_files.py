"""Several Parquet files of a partition in one call of cuDF's reader, on stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe.backend.columns import Backend
from gpupipe.errors import BadFile
from tests.io.tables import damage

from .oracle import CPU, same
from .standin_frame import cudf

TABLE = pa.table({"n": [1, None, 3, 4], "s": ["a", "b", None, "a"], "x": [0.5, None, 2.0, 3.0]})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each call of `cudf.read_parquet` is given."""
    found: list[int] = []
    read = cudf.read_parquet

    def counted(sources: Any, **options: Any) -> Any:
        found.append(len(sources))
        return read(sources, **options)

    monkeypatch.setattr(cudf, "read_parquet", counted)
    return found


def write(folder: Path, *tables: pa.Table) -> gp.Dataset:
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2)
    return gp.read_parquet(folder, on_mismatch="cast")


def check(dataset: gp.Dataset, backend: Backend) -> None:
    (partition,) = dataset.partitions
    found, wanted = (dataset.read(partition, None, reader) for reader in (backend, CPU))
    same(backend.to_arrow(found), CPU.to_arrow(wanted))
    assert backend.to_host(backend.positions(found)).tolist() == CPU.positions(wanted).tolist()


def test_files_of_one_schema_are_read_in_one_call(rehearsed_backend: Backend, tmp_path: Path, calls: list[int]) -> None:
    dataset = write(tmp_path, TABLE, TABLE.slice(1), TABLE)
    check(dataset, rehearsed_backend)
    check(dataset.filter("n > 3"), rehearsed_backend)
    assert calls == [3, 3]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(TABLE.set_column(0, "n", TABLE["n"].cast(pa.int32())), id="another type"),
        pytest.param(TABLE.append_column("more", TABLE["n"]), id="another column"),
        pytest.param(TABLE.select(["x", "n", "s"]), id="another order"),
    ],
)
def test_files_that_differ_are_read_one_by_one(
    rehearsed_backend: Backend, tmp_path: Path, calls: list[int], other: pa.Table
) -> None:
    check(write(tmp_path, TABLE, other), rehearsed_backend)
    assert 2 not in calls


def test_a_part_of_a_row_group_is_read_alone(rehearsed_backend: Backend, tmp_path: Path, calls: list[int]) -> None:
    dataset = write(tmp_path, TABLE, TABLE)
    _, rest = dataset.partitions[0].split_at(1)
    check(dataset.of_partitions([rest]), rehearsed_backend)
    assert calls == [1, 1]


def test_the_damaged_file_among_several_is_named(rehearsed_backend: Backend, tmp_path: Path, calls: list[int]) -> None:
    dataset = write(tmp_path, TABLE, TABLE, TABLE)
    damage(tmp_path / "1.parquet", 0, "x")
    with pytest.raises(BadFile) as caught:
        dataset.select(["x"]).read(dataset.partitions[0], None, rehearsed_backend)
    assert caught.value.where == str(tmp_path / "1.parquet")
    assert calls == [3, 1, 1]


def test_a_file_that_is_replaced_meanwhile_is_named(
    rehearsed_backend: Backend, tmp_path: Path, calls: list[int]
) -> None:
    dataset = write(tmp_path, TABLE, TABLE)
    pq.write_table(TABLE.slice(0), tmp_path / "1.parquet", row_group_size=2, compression="zstd")
    with pytest.raises(BadFile) as caught:
        dataset.read(dataset.partitions[0], None, rehearsed_backend)
    assert caught.value.where == str(tmp_path / "1.parquet")
