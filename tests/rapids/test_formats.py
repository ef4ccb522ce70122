"""Every format on the GPU twin's stand-ins: what is decoded where, files that differ, and many small ones."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe.backend.columns import Backend
from gpupipe.errors import BadFile

TABLE = pa.table(
    {
        "n": pa.array([1, None, 3, 4], pa.int32()),
        "x": [0.5, None, float("nan"), 2.0],
        "s": ["a", None, "b", "a"],
        "at": pa.array([0, 1, None, 3], pa.timestamp("us")),
        "ok": [True, None, False, True],
    }
)


def hive(folder: Path) -> gp.Dataset:
    for key in ("b", "__HIVE_DEFAULT_PARTITION__", "a"):
        (folder / f"k={key}").mkdir()
        pq.write_table(TABLE, folder / f"k={key}" / "1.parquet", row_group_size=3)
    return gp.read_parquet(folder)


def cast(folder: Path) -> gp.Dataset:
    pq.write_table(TABLE, folder / "1.parquet")
    wider = TABLE.set_column(0, "n", TABLE["n"].cast(pa.float64())).drop_columns(["at"])
    pq.write_table(wider, folder / "2.parquet")
    return gp.read_parquet(folder, on_mismatch="cast")


def untold(folder: Path) -> gp.Dataset:
    """The first file has no value, and so no types."""
    pq.write_table(pa.table({name: pa.nulls(3) for name in TABLE.column_names}), folder / "1.parquet")
    pq.write_table(TABLE, folder / "2.parquet")
    return gp.read_parquet(folder)


def as_csv(folder: Path) -> gp.Dataset:
    (folder / "1.csv").write_text("n,s,at,ok\n1,,,\n")
    (folder / "2.csv").write_text("n,s,at,ok\n,a,2013-01-01,true\n3,b,,\n")
    return gp.read_csv(folder)


def many(folder: Path) -> gp.Dataset:
    for number in range(130):
        pq.write_table(TABLE.slice(number % 4), folder / f"{number:03d}.parquet")
    return gp.read_parquet(folder)


def as_orc(folder: Path) -> gp.Dataset:
    table = TABLE.append_column("day", TABLE["at"].cast(pa.date32(), safe=False))
    early = pa.array([-1, None, 0, 1_500_000_001], pa.timestamp("ns"))
    orc.write_table(table.append_column("early", early), folder / "1.orc", batch_size=1, stripe_size=1)
    return gp.read_orc(folder)


def partly_as_orc(folder: Path) -> gp.Dataset:
    """Columns that cuDF's reader has otherwise are decoded on the host, all of the file."""
    at = TABLE["at"].cast(pa.timestamp("us", "Europe/Oslo"))
    orc.write_table(TABLE.append_column("zoned", at), folder / "1.orc")
    orc.write_table(TABLE.set_column(0, "n", TABLE["n"].cast(pa.int64())), folder / "2.orc")
    return gp.read_orc(folder, columns=["n", "s"], on_mismatch="cast")


def as_ipc(folder: Path) -> gp.Dataset:
    feather.write_feather(TABLE, folder / "1.feather")
    return gp.read_ipc(folder)


def as_json(folder: Path) -> gp.Dataset:
    (folder / "1.jsonl").write_text('{"s": "a", "n": 1}\n{"n": null, "x": 0.5}\n{}\n')
    return gp.read_json(folder, dtypes={"x": "float32"})


def fragments(folder: Path) -> gp.Dataset:
    pads.write_dataset(TABLE, folder, format="parquet", partitioning=["s"], partitioning_flavor="hive")
    return gp.from_frame(pads.dataset(folder, partitioning="hive"))


@pytest.mark.parametrize("make", [hive, cast, untold, many, as_csv, as_orc, partly_as_orc, as_ipc, as_json, fragments])
def test_a_format_gives_the_same_on_both_backends(
    rehearsed_backend: Backend, tmp_path: Path, make: Callable[[Path], gp.Dataset]
) -> None:
    dataset = make(tmp_path)
    host = gp.backend.select("cpu")
    (partition,) = dataset.partitions
    _, rest = partition.split_at(2)
    for part in (partition, rest):
        held = dataset.of_partitions([part])
        found = rehearsed_backend.to_arrow(held.read(part, None, rehearsed_backend))
        wanted = host.to_arrow(held.read(part, None, host))
        assert found.num_rows == part.num_rows
        pd.testing.assert_frame_equal(found.to_pandas(), wanted.to_pandas(), check_dtype=False)


def test_orc_is_decoded_on_the_device_but_for_what_differs_there(
    rehearsed_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = TABLE["at"].cast(pa.timestamp("us", "Europe/Oslo"))
    price = pa.array([decimal.Decimal("0.50"), None, None, None], pa.decimal128(20, 2))
    table = TABLE.append_column("zoned", at).append_column("price", price)
    orc.write_table(table, tmp_path / "1.orc")
    dataset = gp.read_orc(tmp_path)
    on_host: list[list[str]] = []
    monkeypatch.setattr(
        type(dataset.source.files[0]), "table", lambda _, groups, names: on_host.append(names) or table.select(names)
    )
    for name in TABLE.column_names:
        assert len(dataset.read(dataset.partitions[0], [name], rehearsed_backend)) == 4
    assert on_host == []
    dataset.read(dataset.partitions[0], ["n", "zoned"], rehearsed_backend)
    assert on_host == [["n", "zoned"]]


def test_a_damaged_stripe_is_a_fault_of_the_file(rehearsed_backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "1.orc"
    orc.write_table(TABLE, path)
    dataset = gp.read_orc(path)
    path.write_bytes(b"ORC" + bytes(path.stat().st_size))
    with pytest.raises(BadFile) as caught:
        dataset.read(dataset.partitions[0], None, rehearsed_backend)
    assert caught.value.where == str(path) and isinstance(caught.value.__cause__, OSError)
