"""Every format on the GPU twin's stand-ins: what is decoded where, files that differ, and many small ones."""

from __future__ import annotations

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
from gpupipe.backend.protocol import Backend

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
    orc.write_table(TABLE, folder / "1.orc")
    return gp.read_orc(folder)


def as_ipc(folder: Path) -> gp.Dataset:
    feather.write_feather(TABLE, folder / "1.feather")
    return gp.read_ipc(folder)


def as_json(folder: Path) -> gp.Dataset:
    (folder / "1.jsonl").write_text('{"s": "a", "n": 1}\n{"n": null, "x": 0.5}\n{}\n')
    return gp.read_json(folder, dtypes={"x": "float32"})


def fragments(folder: Path) -> gp.Dataset:
    pads.write_dataset(TABLE, folder, format="parquet", partitioning=["s"], partitioning_flavor="hive")
    return gp.from_frame(pads.dataset(folder, partitioning="hive"))


@pytest.mark.parametrize("make", [hive, cast, untold, many, as_csv, as_orc, as_ipc, as_json, fragments])
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
