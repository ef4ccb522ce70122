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
from tests.raising import raises

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
        (pa.array([90210]), pa.array(["7", None, "01234"]), "01234", 3),
        (pa.array([[90210]]), pa.array([["7"], ["01234"]]), "01234", 2),
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


TEXT_READERS = {"csv": gp.read_csv, "jsonl": gp.read_json}


def read_texts(folder: Path, kind: str, *texts: str, **options: Any) -> gp.Dataset:
    for number, text in enumerate(texts):
        (folder / f"{number}.{kind}").write_text(text)
    return TEXT_READERS[kind](folder, **options)


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("csv", "v\n1\n", 'v\n3.0\n""\n5.0\n', [1, 3, None, 5]),
        ("csv", "v\n1\n", "v\nTrue\nFalse\n", [1, 1, 0]),
        ("csv", "v\nTrue\n", "v\n0.0\n1.0\n", [True, False, True]),
        ("csv", "w,v\n2,1\n", "w,v\n3.0,4.0\n5,6\n", [1, 4, 6]),
        ("jsonl", '{"v": 1}\n', '{"v": 3.0}\n{"w": 0}\n{"v": 5.0}\n', [1, 3, None, 5]),
        ("jsonl", '{"v": [1]}\n', '{"v": [3.0, 4.0]}\n{"v": null}\n', [[1], [3, 4], None]),
    ],
)
def test_text_of_another_type_is_cast(
    tmp_path: Path, kind: str, first: str, second: str, expected: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = read_texts(tmp_path, kind, first, second, on_mismatch="cast")
    assert values(dataset, "v") == expected
    assert f"{tmp_path}/1.{kind}: cast, column " in caplog.text
    assert dataset.schema["v"].dtype == TEXT_READERS[kind](tmp_path / f"0.{kind}").schema["v"].dtype


@pytest.mark.parametrize(
    ("kind", "second", "row", "value"),
    [
        ("csv", 'v\n3.0\n""\n5.5\n', 4, 5.5),
        ("csv", "v\n3.0\nx\n", 2, "3.0"),
        ("csv", "v\n1234\n01234\n", 3, "01234"),
        ("csv", "v\n3.0\n01234\n", 3, "01234"),
        ("csv", "v\n1\n36893488147419103232\n", 3, "36893488147419103232"),
        ("jsonl", '{"v": "7"}\n{"v": "01234"}\n', 2, "01234"),
        ("jsonl", '{"v": 3.0}\n{"v": null}\n{"v": 5.5}\n', 3, 5.5),
    ],
)
def test_text_whose_cast_would_lose_something_is_an_error(
    tmp_path: Path, kind: str, second: str, row: int, value: object
) -> None:
    first = {"csv": "v\n1\n", "jsonl": '{"v": 1}\n'}[kind]
    with raises(SchemaMismatch, where=f"1.{kind}", got=value, match=f"row {row}, column 'v'"):
        read_texts(tmp_path, kind, first, second, on_mismatch="cast").compute()


@pytest.mark.parametrize(("first", "second"), [("2024-01-01", "20240102"), ("20240102", "2024-01-01")])
def test_a_number_in_text_becomes_no_time(tmp_path: Path, first: str, second: str) -> None:
    with raises(SchemaMismatch, where="1.csv", got=second):
        read_texts(tmp_path, "csv", f"v\n{first}\n", f"v\n{second}\n", on_mismatch="cast")


@pytest.mark.parametrize("kind", TEXT_READERS)
def test_the_remedies_for_text_of_another_type(tmp_path: Path, kind: str) -> None:
    first, second = {"csv": ("v\n1\n", "v\n3.0\n"), "jsonl": ('{"v": 1}\n', '{"v": 3.0}\n')}[kind]
    with pytest.raises(SchemaMismatch) as caught:
        read_texts(tmp_path, kind, first, second)
    remedy = caught.value.remedy
    assert "dtypes={'v': 'float64'}" in remedy and "columns=" not in remedy
    assert "on_mismatch='cast'" in remedy and "on_mismatch='quarantine'" in remedy
    assert values(TEXT_READERS[kind](tmp_path, dtypes={"v": "float64"}), "v") == [1.0, 3.0]
    assert values(TEXT_READERS[kind](tmp_path, on_mismatch="cast"), "v") == [1, 3]
    assert values(TEXT_READERS[kind](tmp_path, on_mismatch="quarantine"), "v") == [1]
    with pytest.raises(SchemaMismatch) as caught:  # of a type that was asked for
        TEXT_READERS[kind](tmp_path, dtypes={"v": "int64"}, on_mismatch="cast")
    assert "cast" not in caught.value.remedy


def test_leading_zeros_of_a_later_file_are_offered_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        read_texts(tmp_path, "csv", "zip\n90210\n", "zip\n01234\n1234\n", on_mismatch="cast")
    assert "dtypes={'zip': 'string'}" in caught.value.remedy and not caplog.text
    dataset = gp.read_csv(tmp_path, on_mismatch="cast", dtypes={"zip": "string"})
    assert values(dataset, "zip") == ["90210", "01234", "1234"]
    asked = gp.read_csv(tmp_path, on_mismatch="cast", dtypes={"zip": "int64"})
    assert values(asked, "zip") == [90210, 1234, 1234]


def test_numbers_of_a_later_file_of_json_are_no_text_unless_they_are_cast(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"code": "A1"}\n{"code": "7"}\n')
    (tmp_path / "b.jsonl").write_text('{"code": 5}\n{"code": null}\n{}\n')
    with pytest.raises(SchemaMismatch, match="row 1, column 'code' does not fit, got 5") as caught:
        gp.read_json(tmp_path)
    assert caught.value.remedy is not None and caught.value.remedy.startswith("on_mismatch='cast'")
    assert gp.read_json(tmp_path, on_mismatch="cast").compute()["code"].tolist()[:3] == ["A1", "7", "5"]
    assert len(gp.read_json(tmp_path, on_mismatch="skip").compute()) == 2
