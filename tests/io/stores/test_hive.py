from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData, BadFile, SchemaMismatch
from gpupipe.io import inspect
from gpupipe.io.stores import MANIFEST
from tests.examples import examples
from tests.io.tables import DATA, arrow, damage, flights, plain, tables, values
from tests.raising import raises

several = examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def months(tmp_path: Path) -> Path:
    """The flights as another library writes them: a folder per month, one per origin in it."""
    table = flights().select(["flight", "month", "origin", "distance"])
    pads.write_dataset(
        table,
        tmp_path / "flights",
        format="parquet",
        partitioning=pads.partitioning(pa.schema([("month", pa.int16()), ("origin", pa.string())]), flavor="hive"),
        use_threads=False,  # keeps the order of rows
    )
    return tmp_path / "flights"


@pytest.mark.slow
def test_folders_give_columns_as_polars_sees_them(months: Path) -> None:
    dataset = gp.read_parquet(months)
    expected = pl.read_parquet(months / "**/*.parquet", hive_partitioning=True)
    assert {item.name: item.dtype for item in dataset.schema} == {
        "flight": "int32",
        "distance": "float64",
        "month": "int64",
        "origin": "string",
    }
    assert not dataset.schema["month"].nullable
    # Both libraries take the files by name: month=10 before month=2.
    assert pl.DataFrame(arrow(dataset.compute())).cast(expected.schema).equals(expected)
    assert list(dict.fromkeys(values(dataset, "month")))[:3] == [1, 10, 11]


@pytest.mark.slow
def test_a_condition_on_a_folder_reads_no_other(months: Path) -> None:
    for path in months.rglob("*.parquet"):
        if "month=7" not in str(path) or "origin=LGA" not in str(path):
            damage(path, 0, "flight")
    dataset = gp.read_parquet(months, partition_bytes=1)
    kept = dataset.filter("month >= 7 and month < 8 and origin == 'LGA'")
    expected = flights().to_pandas().query("month == 7 and origin == 'LGA'")
    assert len({span.file for part in kept.partitions for span in part.spans}) == 1
    assert len(kept) == len(expected)
    assert values(kept, "flight") == expected["flight"].tolist()
    december = dataset.split(by="month", at=12)[1]
    assert len({span.file for part in december.partitions for span in part.spans}) == 3
    assert gp.read_parquet(months, columns="month").compute()["month"].sum() == flights()["month"].to_pandas().sum()


@pytest.mark.slow
def test_a_pattern_and_single_files(months: Path) -> None:
    assert set(values(gp.read_parquet(str(months / "month=1*" / "*" / "*.parquet")), "month")) == {1, 10, 11, 12}
    # What stands before the first wildcard was chosen by the caller, who knows it.
    assert gp.read_parquet(str(months / "month=1" / "*" / "*.parquet")).columns == ["flight", "distance", "origin"]
    assert gp.read_parquet(months / "month=1").columns == ["flight", "distance", "origin"]
    # A pattern that matches folders alone stands for what is below them.
    folders = gp.read_parquet(str(months / "month=1*"), on_mismatch="raise")
    assert (set(values(folders, "month")), folders.columns) == ({1, 10, 11, 12}, gp.read_parquet(months).columns)
    one = next(months.rglob("month=1/*/*.parquet"))
    assert gp.read_parquet(one).columns == ["flight", "distance"]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["größe", "tiny", "big", "ok", "名", "at"])
@several
@given(table=tables())
def test_what_is_written_in_folders_is_read_again(tmp_path: Path, key: str, table: pa.Table) -> None:
    path = tmp_path / "out"
    table = table.filter(pa.compute.is_valid(table[key])) if key == "größe" else table
    gp.from_frame(table, num_partitions=2).write_parquet(path, partition_by=key, overwrite=True)
    if table.num_rows == 0:
        with raises(BadFile, where="out", got=["_manifest.json"]):
            gp.read_parquet(path)
        return
    again = gp.read_parquet(path)
    assert again.schema[key].dtype == gp.from_frame(table).schema[key].dtype
    found = plain(again.select(table.column_names).compute())
    assert sorted(map(repr, found)) == sorted(map(repr, plain(table)))


def test_names_that_are_escaped_missing_or_no_numbers(tmp_path: Path) -> None:
    for folder in ("code=007", "code=a%2Fb", "code=", "code=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / folder / "a.parquet")
    dataset = gp.read_parquet(tmp_path)
    assert values(dataset, "code") == ["", "", "007", "007", None, None, "a/b", "a/b"]
    assert dataset.schema["code"].nullable
    assert len(dataset.filter("code == '007'")) == 2
    assert len(dataset.filter("isnull(code)")) == 2
    with raises(gp.errors.BadData, where="split(by='code')", match="missing in 2"):
        dataset.split(by="code", at="a")


def test_names_of_keys_are_escaped(tmp_path: Path) -> None:
    table = pa.table({"a=b": ["x/y", "50%", None], "miles/hour": [1, 2, 3], "größe": ["", "é", "="], "n": [1, 2, 3]})
    gp.from_frame(table).write_parquet(tmp_path / "out", partition_by=["a=b", "miles/hour", "größe"])
    again = gp.read_parquet(tmp_path / "out")
    assert sorted(plain(again.select(table.column_names).compute()), key=lambda row: row["n"]) == table.to_pylist()
    assert (tmp_path / "out" / "a%3Db=x%2Fy" / "miles%2Fhour=1").is_dir()
    assert len(again.filter("n > 1")) == 2


@pytest.mark.parametrize("keys", ["a", ["a", "b"], ["b", "a", "b"]])
def test_a_column_has_to_be_left_for_the_files(tmp_path: Path, keys: str | list[str]) -> None:
    table = pa.table({"a": [1, 1, 2], "b": ["x", "x", "y"]})
    dataset = gp.from_frame(table.select(["a"]) if keys == "a" else table)
    with pytest.raises(BadConfig) as refused:
        dataset.write_parquet(tmp_path / "out", partition_by=keys)
    assert refused.value.where == "write_parquet(partition_by=)"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["a\0b", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_a_folder_cannot_hold_is_an_error(tmp_path: Path, text: str) -> None:
    dataset = gp.from_frame(pa.table({"k": ["a", None, text], "n": [1, 2, 3]}), num_partitions=2)
    with pytest.raises(BadData) as refused:
        dataset.write_parquet(tmp_path / "out", partition_by="k")
    assert (refused.value.where, refused.value.got) == ("write_parquet(partition_by=)", text)
    replaced = gp.Pipeline([gp.transforms.Replace({"k": {text: "other"}})]).fit(dataset).transform(dataset)
    replaced.write_parquet(tmp_path / "out", partition_by="k")
    assert values(gp.read_parquet(tmp_path / "out").sort("n"), "k") == ["a", None, "other"]


def test_a_column_that_the_files_hold_too_is_theirs(tmp_path: Path) -> None:
    for month in (1, 2):
        (tmp_path / f"month={month}").mkdir()
        table = pa.table({"month": pa.array([month], pa.int8()), "n": [month * 10]})
        pq.write_table(table, tmp_path / f"month={month}" / "a.parquet")
    dataset = gp.read_parquet(tmp_path)
    assert dataset.columns == ["month", "n"]
    assert dataset.schema["month"].dtype == "int8"
    assert values(dataset.filter("month == 2"), "n") == [20]


def test_a_file_outside_the_folders_is_named(tmp_path: Path) -> None:
    (tmp_path / "year=2013").mkdir()
    for folder in ("year=2013", "."):
        pq.write_table(pa.table({"n": [1]}), tmp_path / folder / "z.parquet")
    with pytest.raises(SchemaMismatch, match=r"/z\.parquet: column 'year' is not there"):
        gp.read_parquet(tmp_path)
    assert values(gp.read_parquet(tmp_path, on_mismatch="cast"), "year") == [2013, None]


def test_other_formats_have_folders_too(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.csv").write_text(f"n\n{day * 10}\n")
        (tmp_path / f"day={day}" / "a.jsonl").write_text(json.dumps({"n": day * 10}) + "\n")
    for dataset in (gp.read_csv(tmp_path), gp.read_json(tmp_path)):
        assert plain(dataset.compute()) == [{"n": 10, "day": 1}, {"n": 20, "day": 2}]
        assert values(dataset.filter("day == 2"), "n") == [20]
    assert values(gp.read_csv(tmp_path, columns="day"), "day") == [1, 2]
    assert values(gp.read_json(tmp_path, columns=["day"]), "day") == [1, 2]


# our own folders ------------------------------------------------------------------------------------------------------
def test_a_folder_with_a_manifest_is_what_that_lists(tmp_path: Path) -> None:
    path = tmp_path / "out"
    gp.from_frame(pa.table({"n": range(6)}), num_partitions=3).write_parquet(path)
    pq.write_table(pa.table({"n": [99]}), path / "part-00003.parquet")  # of an append that is not finished
    assert values(gp.read_parquet(path), "n") == list(range(6))
    assert values(gp.read_parquet(str(path / "*.parquet")), "n") == [*range(6), 99]
    (path / "part-00001.parquet").unlink()
    with pytest.raises(BadFile, match=r"part-00001\.parquet: it cannot be read \(FileNotFoundError"):
        gp.read_parquet(path)
    (path / MANIFEST).write_text("{}")
    with pytest.raises(BadFile, match=r"_manifest\.json: damaged"):
        gp.read_parquet(path)


def test_appended_parts_come_last_whatever_their_folders(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number in (0, 1):
        table = pa.table({"n": [number * 2, number * 2 + 1], "month": [9, 3]})
        pq.write_table(table, inputs / f"{number}.parquet")
        gp.read_parquet(inputs).write_parquet(tmp_path / "out", partition_by=["month"])
    again = gp.read_parquet(tmp_path / "out")
    assert values(again, "n") == [1, 0, 3, 2]
    assert again.schema["month"].dtype == "int64"


@pytest.mark.slow
def test_the_flights_round_trip_by_folders(tmp_path: Path) -> None:
    gp.read_parquet(DATA / "flights.parquet").write_parquet(tmp_path / "out", partition_by=["origin", "month"])
    again = gp.read_parquet(tmp_path / "out")
    assert again.schema["month"].dtype == gp.read_parquet(DATA / "flights.parquet").schema["month"].dtype
    names = flights().column_names
    order = ["time_hour", "carrier", "flight", "origin", "sched_dep_time", "tailnum"]
    expected = pl.read_parquet(DATA / "flights.parquet")
    read = pl.DataFrame(arrow(again.select(names).compute())).cast(expected.schema)
    assert read.sort(order).equals(expected.sort(order))


@pytest.mark.parametrize("on_mismatch", ["raise", "cast"])
def test_a_column_that_is_in_the_files_too(tmp_path: Path, on_mismatch: str, caplog: pytest.LogCaptureFixture) -> None:
    for key in (7, 8):
        (tmp_path / f"v={key}").mkdir()
        pq.write_table(pa.table({"v": [1, 2], "n": [3, 4]}), tmp_path / f"v={key}" / "a.parquet")
    dataset = gp.read_parquet(tmp_path, on_mismatch=on_mismatch)
    assert values(dataset, "v") == [1, 2, 1, 2]
    assert len(dataset.filter("v == 7")) == 0
    (note,) = inspect(dataset).notes
    assert note.file == str(tmp_path / "v=7" / "a.parquet")
    assert "column 'v' is in the file and in its folder's name" in note.reason
    assert note.reason in caplog.text


def test_leading_zeros_of_a_folders_name_are_noted(tmp_path: Path) -> None:
    for key in ("7", "012", "-03"):
        (tmp_path / f"k={key}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"k={key}" / "a.parquet")
    dataset = gp.read_parquet(tmp_path)
    assert sorted(values(dataset, "k")) == [-3, 7, 12]
    assert [(note.column, note.action) for note in dataset.conversions] == [("k", "converted")]
    gp.read_parquet(tmp_path).write_parquet(tmp_path.with_name("out"), partition_by="k")
    assert gp.read_parquet(tmp_path.with_name("out")).conversions == ()
    text = gp.from_frame(pa.table({"x": [1], "k": ["007"]}))
    text.write_parquet(tmp_path.with_name("text"), partition_by="k")
    again = gp.read_parquet(tmp_path.with_name("text"))
    assert (values(again, "k"), again.conversions) == (["007"], ())


def test_more_folders_than_files_can_be_open_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.io.jobs.part_writer.MOST_FOLDERS", 10)
    data = gp.from_frame(pd.DataFrame({"k": range(11), "x": 1.0}), backend="cpu")
    with raises(BadData, where="write_parquet(partition_by=['k'])", expected="at most 10 folders of a part's rows"):
        data.write_parquet(tmp_path / "out", partition_by="k")
    data.filter("k < 10").write_parquet(tmp_path / "out", partition_by="k")
    assert len(gp.read_parquet(tmp_path / "out")) == 10


def test_a_table_without_rows_has_no_folders_and_says_so(tmp_path: Path) -> None:
    data = gp.from_frame(pd.DataFrame({"k": [1, 2], "x": 1.0}), backend="cpu").filter("x > 9")
    data.write_parquet(tmp_path / "out", partition_by="k")
    with raises(BadFile, where=str(tmp_path / "out"), remedy="write_parquet without partition_by="):
        gp.read_parquet(tmp_path / "out")
