"""pyarrow datasets, of which Delta tables are one kind."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe.errors import BadConfig, BadFile
from tests.io.tables import arrow, damage, flights, plain, values
from tests.raising import raises


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of two row groups; n ascends through all."""
    for number in (0, 1):
        n = np.arange(20) + 20 * number
        table = pa.table({"n": n, "text": [f"t{i // 10}" for i in n], "share": n / 40})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=10)
    return tmp_path


def as_delta_gives_it(folder: Path) -> pads.Dataset:
    """Fragments with a partition and with the bounds of their values, in a file system of their own."""
    files = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    form = pads.ParquetFileFormat()
    fragments = []
    for number in (0, 1):
        told = (pads.field("part") == f"p{number}") & (pads.field("n") >= 20 * number) & pads.field("n").is_valid()
        fragments.append(form.make_fragment(f"{number}.parquet", files, partition_expression=told))
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("share", pa.float64()), ("part", pa.string())])
    return pads.FileSystemDataset(fragments, schema, form, files)


def test_files_are_read_as_pyarrow_reads_them(folder: Path) -> None:
    for source in (pads.dataset(folder), as_delta_gives_it(folder)):
        dataset = gp.from_frame(source, partition_bytes=1)
        assert dataset.num_partitions == 4
        assert plain(dataset.compute()) == plain(source.to_table())
        assert len(dataset) == 40
        assert dict(dataset.reads.row_groups) == {(0, 0): 1, (0, 1): 1, (1, 0): 1, (1, 1): 1}
        again = pickle.loads(pickle.dumps(dataset.filter("n > 35").select(["n", "text"])))
        assert plain(again.compute()) == [{"n": n, "text": "t3"} for n in (36, 37, 38, 39)]


def test_conditions_and_columns_are_pushed_down(folder: Path) -> None:
    for name, group in (("0", 0), ("0", 1), ("1", 1)):
        damage(folder / f"{name}.parquet", group, "n")
    for group in (0, 1):
        damage(folder / "1.parquet", group, "text")
    dataset = gp.from_frame(as_delta_gives_it(folder), partition_bytes=1)
    assert values(dataset.filter("n >= 20 and n < 30").select(["n"]), "n") == list(range(20, 30))
    assert values(dataset.filter("part == 'p1' and n < 30").select(["n", "part"]), "part") == ["p1"] * 10
    assert set(dataset.reads.row_groups) == {(1, 0)}
    assert dataset.filter("part == 'p0'").num_partitions == 2
    with pytest.raises(BadFile, match=r"0\.parquet: row group 0 cannot be read"):
        dataset.filter("n < 5").compute()


def test_the_rows_of_half_a_row_group(folder: Path) -> None:
    dataset = gp.from_frame(pads.dataset(folder), partition_bytes=1)
    _, right = dataset.partitions[1].split_at(4)
    part = dataset.of_partitions([right])
    assert values(part, "n") == [14, 15, 16, 17, 18, 19]
    drawn = values(dataset.split(fraction=0.5, seed=1)[0], "n")
    assert drawn == values(gp.read_parquet(folder).split(fraction=0.5, seed=1)[0], "n")


def test_a_filtered_dataset_stays_filtered(folder: Path) -> None:
    dataset = gp.from_frame(pads.dataset(folder).filter(pads.field("n") > 36))
    assert values(dataset, "n") == [37, 38, 39]


def test_datasets_of_other_kinds(folder: Path, tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "day": pa.array([1, 2], pa.date32())})
    assert plain(gp.from_frame(pads.dataset(table)).compute()) == plain(gp.from_frame(table).compute())
    both = pads.dataset([pads.dataset(folder / "0.parquet"), pads.dataset(folder / "1.parquet")])
    assert values(gp.from_frame(both), "n") == list(range(40))
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("n,s\n1,a\n2,\n")
    csv = gp.from_frame(pads.dataset(tmp_path / "csv", format="csv"))
    assert plain(csv.compute()) == [{"n": 1, "s": "a"}, {"n": 2, "s": ""}]
    with raises(BadConfig, where="from_frame", got=3):
        gp.from_frame(both, num_partitions=3)


def test_columns_that_a_file_lacks_or_has_in_another_type(folder: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([40], pa.int8())}), folder / "2.parquet")
    dataset = gp.from_frame(pads.dataset(folder, schema=pads.dataset(folder / "0.parquet").schema))
    assert plain(dataset.filter("n >= 39").compute()) == [
        {"n": 39, "text": "t3", "share": 39 / 40},
        {"n": 40, "text": None, "share": None},
    ]


def test_a_job_over_fragments_knows_its_inputs(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for source in (pads.dataset(folder / "0.parquet"), pads.dataset([folder / "0.parquet", folder / "1.parquet"])):
        manifest = gp.from_frame(source).write_parquet(out)
    assert (manifest.num_done, len(manifest.inputs), manifest.rows_out) == (1, 2, 40)
    assert values(gp.read_parquet(out), "n") == list(range(40))


def test_a_file_that_is_gone(folder: Path) -> None:
    source = pads.dataset(folder)
    (folder / "1.parquet").unlink()
    with pytest.raises(BadFile, match=r"1\.parquet: cannot be opened"):
        gp.from_frame(source)


@pytest.mark.slow
def test_the_flights_by_partition(tmp_path: Path) -> None:
    keys = pads.partitioning(pa.schema([("month", pa.int16())]), flavor="hive")
    pads.write_dataset(flights(), tmp_path, format="parquet", partitioning=keys)
    source = pads.dataset(tmp_path, partitioning=keys)
    dataset = gp.from_frame(source).filter("month == 3 and dep_delay > 60")
    expected = pl.DataFrame(source.to_table(filter=(pads.field("month") == 3) & (pads.field("dep_delay") > 60)))
    found = pl.DataFrame(arrow(dataset.compute())).cast(expected.schema)
    assert found.equals(expected)
    assert {span.file for part in dataset.partitions for span in part.spans} == {5}
