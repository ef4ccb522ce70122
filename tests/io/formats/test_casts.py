"""Files whose types differ, cast: every value as it was, or an error that names file, row, column and value."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc

import gpupipe as gp
from gpupipe.errors import SchemaMismatch
from gpupipe.io import inspect
from tests.io.tables import values

WRITERS = {
    "parquet": (lambda table, path: pq.write_table(table, path, row_group_size=2), gp.read_parquet),
    "arrow": (lambda table, path: feather.write_feather(table, path, chunksize=2), gp.read_ipc),
    "orc": (orc.write_table, gp.read_orc),
}


def read(folder: Path, kind: str, *arrays: pa.Array) -> gp.Dataset:
    write, reader = WRITERS[kind]
    for number, array in enumerate(arrays):
        write(pa.table({"v": array}), folder / f"{number}.{kind}")
    return reader(folder, on_mismatch="cast")


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("first", "second", "value", "row"),
    [
        (pa.array([True]), pa.array([0.0, 1.0, 7.5]), 7.5, 3),
        (pa.array([True]), pa.array([1, 0, 1, -128], pa.int16()), -128, 4),
        (pa.array([1]), pa.array([1.0, None, float("nan"), 2.5]), 2.5, 4),
        (pa.array([1.5], pa.float32()), pa.array([1, 2**24 + 1]), 2**24 + 1, 2),
        (pa.array([1.5]), pa.array([1, 2, 3, 2**53 + 1]), 2**53 + 1, 4),
        (pa.array([1]), pa.array(["7", None, "seven"]), "seven", 3),
        (pa.array([1]), pa.array(["7", "0x10"]), "0x10", 2),
        (pa.array([1.5]), pa.array(["7", "1e400"]), "1e400", 2),
        (pa.array([[1]]), pa.array([[1.0, 2.0], [], [3.0], [4.0, 4.5]]), 4.5, 4),
    ],
)
@pytest.mark.parametrize("one_partition", [True, False])
def test_what_does_not_fit_is_an_error_that_names_its_place(
    tmp_path: Path, kind: str, first: pa.Array, second: pa.Array, value: Any, row: int, one_partition: bool
) -> None:
    dataset = read(tmp_path, kind, first, second)
    if not one_partition:
        dataset = dataset.of_partitions([part.keep([span]) for part in dataset.partitions for span in part.spans])
    with pytest.raises(SchemaMismatch) as caught:
        dataset.compute()
    error = caught.value
    assert error.where == str(tmp_path / f"1.{kind}")
    assert f"row {row}, column 'v'" in error.problem
    assert error.got == value
    assert "skip" in error.remedy


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (pa.array([1.5], pa.float32()), pa.array([123456789.123, 0.1]), "float64"),
        (pa.array([0.1]), pa.array([1.5], pa.float32()), "float64"),
        (pa.array([1], pa.int8()), pa.array([2**40]), "int64"),
        (pa.array([-1], pa.int8()), pa.array([2**31], pa.int64()), "int64"),
        (pa.array([[1.5]], pa.list_(pa.float32())), pa.array([[0.1]]), "list<float64>"),
        (pa.array([None], pa.float32()), pa.array([0.1]), "float64"),
    ],
)
def test_numbers_of_one_kind_take_the_widest_type(
    tmp_path: Path, kind: str, first: pa.Array, second: pa.Array, dtype: str
) -> None:
    dataset = read(tmp_path, kind, first, second)
    assert dataset.schema["v"].dtype == dtype
    wide = first.cast(second.type) if first.type != pa.float64() else first
    assert values(dataset, "v") == wide.to_pylist() + second.to_pylist()
    narrow = "0" if first.type != pa.float64() else "1"
    assert [Path(note.file).stem for note in inspect(dataset).notes] == [narrow]


def test_the_widest_signed_type_of_a_signed_and_an_unsigned_one(tmp_path: Path) -> None:
    dataset = read(tmp_path, "parquet", pa.array([-1], pa.int32()), pa.array([2**32 - 1], pa.uint32()))
    assert dataset.schema["v"].dtype == "int64"
    assert values(dataset, "v") == [-1, 2**32 - 1]


def test_no_integer_type_holds_both(tmp_path: Path) -> None:
    assert values(read(tmp_path, "parquet", pa.array([-1]), pa.array([5], pa.uint64())), "v") == [-1, 5]
    dataset = read(tmp_path, "parquet", pa.array([-1]), pa.array([2**64 - 1], pa.uint64()))
    with pytest.raises(SchemaMismatch) as caught:
        dataset.compute()
    assert caught.value.got == 2**64 - 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_become_microseconds(tmp_path: Path, unit: str) -> None:
    at = pa.array([datetime.fromisoformat("2013-10-01 06:00")], pa.timestamp(unit))
    assert values(read(tmp_path, "arrow", pa.array([0]), at), "v") == [0, 1_380_607_200_000_000]


def test_numbers_become_text_as_everywhere(tmp_path: Path) -> None:
    assert values(read(tmp_path, "parquet", pa.array(["a"]), pa.array([1.5, None, 2.0])), "v") == [
        "a",
        "1.5",
        None,
        "2.0",
    ]


def test_a_pyarrow_dataset_of_files_that_differ(tmp_path: Path) -> None:
    for number, array in enumerate([pa.array([1.5], pa.float32()), pa.array([0.5, 123456789.123])]):
        pq.write_table(pa.table({"v": array}), tmp_path / f"{number}.parquet")
    with pytest.raises(SchemaMismatch) as caught:
        gp.from_frame(pads.dataset(tmp_path)).compute()
    assert caught.value.got == 123456789.123
    assert "row 2, column 'v'" in caught.value.problem
