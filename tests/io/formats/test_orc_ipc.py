"""ORC and Arrow IPC: read by group."""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyarrow import feather, orc

import gpupipe as gp
from gpupipe.errors import BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.formats import ipc
from gpupipe.io.stores import Input, peek
from tests.examples import examples
from tests.io.tables import DATA, arrow, flights, plain, tables, values
from tests.raising import raises

several = examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_orc(table: pa.Table, path: Path, rows: int = 10_000) -> None:
    # A stripe ends with the batch that makes it full.
    orc.write_table(table, path, batch_size=rows, stripe_size=1)


def write_ipc(table: pa.Table, path: Path, rows: int = 10_000) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_stream(table: pa.Table, path: Path, rows: int = 10_000) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


FORMATS = {
    "orc": (write_orc, gp.read_orc),
    "arrow": (write_ipc, gp.read_ipc),
    "arrows": (write_stream, gp.read_ipc),
}
every_format = pytest.mark.parametrize("kind", FORMATS)
lazy_formats = pytest.mark.parametrize("kind", ["orc", "arrow"])


def written(kind: str, table: pa.Table, path: Path, rows: int = 10_000) -> Callable[..., gp.Dataset]:
    write, read = FORMATS[kind]
    write(table, path, rows)
    return read


@pytest.mark.slow
@every_format
def test_the_flights_are_what_polars_reads(tmp_path: Path, kind: str) -> None:
    read = written(kind, flights(), tmp_path / f"flights.{kind}")
    dataset = read(tmp_path, partition_bytes=4 << 20)
    expected = pl.read_parquet(DATA / "flights.parquet")
    assert dataset.num_partitions > 5
    assert dataset.columns == expected.columns
    assert len(dataset) == expected.height
    assert pl.DataFrame(arrow(dataset.compute())).cast(expected.schema).equals(expected)
    kept = dataset.filter("month == 2 and origin == 'JFK'").select(["distance", "tailnum"])
    wanted = expected.filter((pl.col("month") == 2) & (pl.col("origin") == "JFK")).select(["distance", "tailnum"])
    assert pl.DataFrame(arrow(kept.compute())).cast(wanted.schema).equals(wanted)
    assert read(tmp_path, columns="dest").columns == ["dest"]
    with pytest.raises(ColumnNotFound, match="Try: 'dest'"):
        read(tmp_path, columns=["destt"])


@pytest.mark.slow
@every_format
@several
@given(table=tables(), rows=st.integers(1, 12), limit=st.sampled_from([1, 300, 1 << 20]))
def test_any_table_comes_back_in_any_partitions(
    tmp_path: Path, kind: str, table: pa.Table, rows: int, limit: int
) -> None:
    if kind == "orc":  # has no unsigned integers, and its times are nanoseconds
        table = table.drop_columns(["big"])
    read = written(kind, table, tmp_path / f"any.{kind}", rows)
    dataset = read(tmp_path / f"any.{kind}", partition_bytes=limit)
    assert plain(dataset.compute()) == plain(table)
    assert [row for frame in dataset for row in plain(frame)] == plain(table)
    assert len(dataset) == table.num_rows
    drawn, rest = dataset.split(fraction=0.5, seed=3)
    whole = read(tmp_path / f"any.{kind}").split(fraction=0.5, seed=3)[0]
    assert plain(drawn.compute()) == plain(whole.compute())
    assert len(drawn) + len(rest) == table.num_rows


@lazy_formats
def test_groups_are_read_alone_and_only_the_columns_that_are_asked_for(tmp_path: Path, kind: str) -> None:
    table = pa.table({"n": np.arange(5_000), "text": [f"t{n % 7}" for n in range(5_000)]})
    read = written(kind, table, tmp_path / f"a.{kind}", 1024)
    dataset = read(tmp_path / f"a.{kind}", partition_bytes=1)
    assert [part.num_rows for part in dataset.partitions] == [1024, 1024, 1024, 1024, 904]
    unit = {"orc": "stripe", "arrow": "record batch"}[kind]
    assert dataset.partitions[2].description.startswith(f"{tmp_path / 'a.'}{kind} {unit} 2 (")
    assert "over the limit of 1: one" in dataset.partitions[2].description
    assert values(dataset.head(3), "n") == [0, 1, 2]
    assert dict(dataset.reads.row_groups) == {(0, 0): 1}
    dataset.select("n").compute()
    assert dict(dataset.reads.columns) == {"n": 6, "text": 1}
    left, right = dataset.partitions[1].split_at(24)
    backend = gp.backend.select("cpu")
    assert dataset.of_partitions([right]).read(right, ["n"], backend)["n"].tolist() == list(range(1048, 2048))
    again = pickle.loads(pickle.dumps(dataset.of_partitions([left])))
    assert values(again, "n") == list(range(1024, 1048))


@every_format
def test_rows_of_no_file_and_no_rows(tmp_path: Path, kind: str) -> None:
    table = pa.table({"n": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    read = written(kind, table, tmp_path / f"a.{kind}")
    dataset = read(tmp_path)
    assert (len(dataset), dataset.num_partitions, dataset.columns) == (0, 1, ["n", "s"])
    assert dataset.compute().columns.to_list() == ["n", "s"]


@every_format
def test_bad_files_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    read = written(kind, pa.table({"n": range(10_000)}), path, 1_000)
    whole = path.read_bytes()
    for content, message in (
        (b"", r"a\.\w+: the file is empty \(0 bytes\)"),
        (b"n,text\n1,a\n", r"not an \w+ file, its first bytes differ, got b'n,text.*\n.*\nTry: gp\.read_csv"),
        (b"PAR1" + bytes(80), "not an .* file, its first bytes differ"),
        (whole[: len(whole) // 2], "damaged or cut off"),
        (whole[:-30], "damaged or cut off"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=message):
            read(path)
    with pytest.raises(BadFile, match="no such file"):
        read(tmp_path / "b")


@lazy_formats
def test_a_file_that_was_replaced_is_no_silent_change(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    read = written(kind, pa.table({"n": range(100)}), path)
    dataset = read(path)
    written(kind, pa.table({"n": range(50)}), path)
    with pytest.raises(BadFile, match=r"(stripe|record batch) 0 holds? other rows than before, got 50"):
        dataset.compute()
    path.unlink()
    with pytest.raises(BadFile, match=r"(stripe|record batch) 0 cannot be read"):
        dataset.compute()


@every_format
def test_files_that_differ(tmp_path: Path, kind: str) -> None:
    write, read = FORMATS[kind]
    write(pa.table({"n": [1], "s": ["a"]}), tmp_path / f"1.{kind}")
    write(pa.table({"s": ["b"], "n": [2]}), tmp_path / f"2.{kind}")
    assert values(read(tmp_path), "n") == [1, 2]
    write(pa.table({"n": [3.0], "s": ["c"]}), tmp_path / f"3.{kind}")
    with pytest.raises(SchemaMismatch, match=rf"3\.{kind}: column 'n' is float64\.\nExpected int64, as in .*1\.{kind}"):
        read(tmp_path)
    assert values(read(tmp_path, on_mismatch="cast"), "n") == [1, 2, 3]
    assert values(read(tmp_path, on_mismatch="skip"), "n") == [1, 2]


def test_lists_of_lists_are_carried(tmp_path: Path) -> None:
    table = pa.table({"tags": [[["a"]], []], "n": [1, 2]})
    for kind in ("orc", "arrow"):
        dataset = written(kind, table, tmp_path / f"a.{kind}")(tmp_path / f"a.{kind}")
        assert plain(dataset.compute()) == table.to_pylist()


def test_feather_and_what_polars_and_pandas_write(tmp_path: Path) -> None:
    table = flights().slice(0, 5_000)
    expected = pl.DataFrame(table)
    feather.write_feather(table, tmp_path / "1.feather")
    expected.write_ipc(tmp_path / "2.arrow", compression="zstd")
    expected.write_ipc_stream(tmp_path / "3.arrows")
    table.to_pandas().to_feather(tmp_path / "4.feather")
    table.to_pandas().to_orc(tmp_path / "5.orc")
    for name in ("1.feather", "2.arrow", "3.arrows", "4.feather"):
        read = gp.read_ipc(tmp_path / name)
        assert pl.DataFrame(arrow(read.compute())).cast(expected.schema).equals(expected)
    read = gp.read_orc(tmp_path / "5.orc")
    assert pl.DataFrame(arrow(read.compute())).cast(expected.schema).equals(expected)


def test_codes_of_several_batches(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array(["b", None, "a", "b"]).dictionary_encode()})
    write_ipc(table, tmp_path / "a.arrow", 2)
    assert values(gp.read_ipc(tmp_path / "a.arrow", partition_bytes=1), "c") == ["b", None, "a", "b"]


def test_notes_on_streams_name_the_first_and_the_columns_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the threads that open them is the first to be done."""
    table = pa.table({"n": pa.array([1], pa.float16()), "at": pa.array([1], pa.timestamp("ms"))})
    for number in range(2):
        write_stream(table, tmp_path / f"{number}.arrows")
    is_open, opened = Event(), ipc._open_stream

    def wait(one: Input) -> Any:
        assert one.path.endswith("1.arrows") or is_open.wait(10)
        return peek(one)

    def open_stream(one: Input, *others: Any) -> Any:
        found = opened(one, *others)
        is_open.set()
        return found

    monkeypatch.setattr(ipc, "peek", wait)
    monkeypatch.setattr(ipc, "_open_stream", open_stream)
    (note,) = gp.read_ipc(tmp_path, columns="n").conversions
    assert (note.file, note.column) == (str(tmp_path / "0.arrows"), "n")


@pytest.mark.slow
def test_a_stream_is_kept_as_long_as_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for number in range(3):
        write_stream(pa.table({"n": [number]}), tmp_path / f"{number}.arrows")
    dataset = gp.read_ipc(tmp_path)
    assert values(dataset.filter("n > 0"), "n") == [1, 2]
    del dataset
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []


@lazy_formats
def test_a_url(tmp_path: Path, kind: str) -> None:
    read = written(kind, pa.table({"n": [1, 2], "s": ["x", None]}), tmp_path / "a")
    with fsspec.open(f"memory://host/a.{kind}", "wb") as file:
        file.write((tmp_path / "a").read_bytes())
    dataset: Any = read(f"memory://host/*.{kind}")
    assert plain(dataset.filter("n > 1").compute()) == [{"n": 2, "s": None}]


@pytest.mark.parametrize("way", ["frame", "stream", "ipc", "ipc stream", "parquet", "pyarrow dataset", "many files"])
def test_a_dictionary_that_names_a_value_twice(tmp_path: Path, way: str) -> None:
    codes, texts = pa.array([0, 1, 2, None, 2], pa.int32()), pa.array(["a", "b", "a"])
    strings = pa.DictionaryArray.from_arrays(codes, texts)
    table = pa.table({"s": strings, "l": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4, 5]), strings)})
    path = tmp_path / "1.arrow"
    if way == "parquet":
        pq.write_table(table, path)
    elif way == "ipc stream":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    else:
        feather.write_feather(table, path)
    copies = 2 if way == "many files" else 1
    if copies == 2:
        feather.write_feather(table, tmp_path / "2.arrow")
    dataset = {
        "frame": lambda: gp.from_frame(table),
        "stream": lambda: gp.from_frame(table.to_reader()),
        "parquet": lambda: gp.read_parquet(path),
        "pyarrow dataset": lambda: gp.from_frame(pads.dataset(path, format="ipc")),
    }.get(way, lambda: gp.read_ipc(tmp_path))()
    assert values(dataset, "s") == ["a", "b", "a", None, "a"] * copies
    assert values(dataset, "l") == [["a"], ["b"], ["a"], [None], ["a"]] * copies
    assert values(dataset.filter("s == 'a'"), "s") == ["a"] * 3 * copies
    assert values(dataset.group_by("s").agg(n=("s", "count")), "n") == [3 * copies, copies]
    assert [found.num_distinct for found in dataset.describe().columns] == [2, 2]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_that_the_reader_of_orc_cannot_hold_is_named(tmp_path: Path, zone: str | None) -> None:
    until = pa.array([253_402_214_400_000_000, None], pa.timestamp("us", zone))
    orc.write_table(pa.table({"until": until, "k": [1, 2]}), tmp_path / "a.orc")
    with pytest.raises(BadFile) as refused:
        gp.read_orc(tmp_path / "a.orc").compute()
    assert (refused.value.got, refused.value.remedy.partition(",")[0]) == (["until"], "columns= without 'until'")
    assert values(gp.read_orc(tmp_path / "a.orc", columns=["k"]), "k") == [1, 2]
    until = pa.array([-14_831_769_600_000_000] * 20_000, pa.timestamp("us", zone))
    for columns in ({}, {"text": [f"{row:050d}" for row in range(20_000)]}):
        orc.write_table(pa.table({"until": until, **columns}), tmp_path / "b.orc", stripe_size=1, batch_size=10_000)
        with raises(BadFile, where="b.orc", got=["until"]):
            gp.read_orc(tmp_path / "b.orc").compute()
    assert len(gp.read_orc(tmp_path / "b.orc", columns=["text"])) == 20_000
