from __future__ import annotations

import gc
import pickle
import tempfile
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.backend import select
from gpupipe.errors import BadConfig, SchemaMismatch
from tests.io.tables import DATA, arrow, flights, plain, tables, values
from tests.raising import raises

several = settings(deadline=None, max_examples=25)


@pytest.mark.slow
@several
@given(table=tables(), parts=st.sampled_from([1, 2, 7]), kind=st.sampled_from(["arrow", "polars", "stream", "chunks"]))
def test_any_table_comes_back_from_any_library(table: pa.Table, parts: int, kind: str) -> None:
    chunked = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    if kind == "stream":
        dataset = gp.from_frame(chunked.to_reader(2), partition_bytes=200)
    else:
        given_ = {"arrow": table, "chunks": chunked, "polars": pl.from_arrow(table)}[kind]
        dataset = gp.from_frame(given_, num_partitions=parts)
        assert dataset.num_partitions == parts
    assert plain(dataset.compute()) == plain(table)
    assert [row for frame in dataset for row in plain(frame)] == plain(table)
    assert {item.name: item.dtype for item in dataset.schema}["at"] == "timestamp"


@pytest.mark.slow
@several
@given(table=tables(), parts=st.sampled_from([1, 2, 7]), arrow=st.booleans(), shuffled=st.booleans())
def test_any_pandas_frame_comes_back(table: pa.Table, parts: int, arrow: bool, shuffled: bool) -> None:
    frame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}.get)
    for name, dtype in (("tiny", "Int8"), ("big", "UInt64")):
        frame[name] = pd.array(table.column(name).to_pylist(), dtype=dtype)
    if arrow:
        frame["名"] = frame["名"].astype("category")
    if shuffled:
        frame.index = pd.Index([7] * len(frame))
    dataset = gp.from_frame(frame, num_partitions=parts)
    assert plain(dataset.compute()) == plain(table)


def test_pandas_types_keep_their_width() -> None:
    frame = pd.DataFrame(
        {name: np.zeros(3, name) for name in ("int8", "uint16", "int64", "float32", "float64", "bool")}
    )
    frame["str"] = pd.Series(["a", None, "é"], dtype="str")
    frame["object"] = pd.Series(["a", None, "b"], dtype="object")
    frame["category"] = pd.Categorical(["b", None, "a"], categories=["z", "b", "a"])
    frame["ns"] = pd.to_datetime(["2013-01-01 00:00:00.123456789"] * 3).astype("datetime64[ns]")
    frame["zone"] = pd.to_datetime(["2013-07-01"] * 3).tz_localize("America/New_York")
    frame["Int64"] = pd.array([2**53 + 1, None, -(2**63)], "Int64")
    dataset = gp.from_frame(frame)
    assert {item.name: item.dtype for item in dataset.schema} == {
        **{name: name for name in ("int8", "uint16", "int64", "float32", "float64", "bool")},
        **dict.fromkeys(("str", "object", "category"), "string"),
        **dict.fromkeys(("ns", "zone"), "timestamp"),
        "Int64": "int64",
    }
    first, second, third = plain(dataset.compute())
    assert (first["category"], second["category"], third["category"]) == ("b", None, "a")
    assert first["ns"] == datetime.fromisoformat("2013-01-01T00:00:00.123456")
    assert first["zone"] == datetime.fromisoformat("2013-07-01T04:00+00:00")
    assert dataset.schema["zone"].zone == "America/New_York"
    assert (first["Int64"], second["Int64"], third["Int64"]) == (2**53 + 1, None, -(2**63))
    assert {item.name for item in dataset.schema if not item.nullable} == {
        *("int8", "uint16", "int64", "bool", "ns", "zone", "float32", "float64")
    }


def test_partitions_of_a_frame_share_its_memory() -> None:
    frame = pd.DataFrame({"x": np.arange(1000.0), "n": np.arange(1000)})
    dataset = gp.from_frame(frame, partition_bytes=1600)
    assert [part.num_rows for part in dataset.partitions] == [100] * 10
    backend = select("cpu")
    for part in dataset.partitions:
        read = dataset.read(part, ["x", "n"], backend)
        assert read.index.equals(pd.RangeIndex(100))
        for name in ("x", "n"):
            assert np.shares_memory(backend.column(read, name).data, frame[name].to_numpy())
    arrow = pa.table({"x": np.arange(1000.0)})
    shared = gp.from_frame(arrow, num_partitions=2)
    column = backend.column(shared.read(shared.partitions[1], ["x"], backend), "x").data
    assert np.shares_memory(column, arrow.column("x").chunk(0).to_numpy())


def test_columns_of_an_arrow_table_that_cannot_be_carried() -> None:
    table = pa.table({"n": [1, 2], "span": pa.array([(1, 2, 3), None], pa.month_day_nano_interval())})
    for one in (table, table.to_reader()):
        dataset = gp.from_frame(one)
        assert dataset.columns == ["n"]
        assert [(note.action, note.column) for note in dataset.conversions] == [("left out", "span")]
        with raises(SchemaMismatch, where="column 'span'", got="month_day_nano_interval") as caught:
            dataset.select(["span"])
        assert caught.value.got == "month_day_nano_interval"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1])
def test_tables_with_hardly_a_row(rows: int) -> None:
    for table in (flights().slice(0, rows), flights().slice(0, rows).to_reader(), flights().slice(0, rows).to_pandas()):
        dataset = gp.from_frame(table)
        assert (len(dataset), dataset.num_partitions, len(dataset.compute())) == (rows, 1, rows)
    assert gp.from_frame(flights().slice(0, rows), num_partitions=3).num_partitions == 3


@pytest.mark.slow
def test_a_stream_is_read_once_and_its_file_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    served = []

    def batches() -> object:
        for batch in flights().to_batches(10_000):
            served.append(batch.num_rows)
            yield batch

    stream = pa.RecordBatchReader.from_batches(flights().schema, batches())
    dataset = gp.from_frame(stream, partition_bytes=4 << 20)
    assert sum(served) == len(dataset) == 336_776
    assert dataset.num_partitions > 5
    expected = pl.read_parquet(DATA / "flights.parquet")
    for _ in range(2):
        assert pl.DataFrame(arrow(dataset.compute())).cast(expected.schema).equals(expected)
    assert len(list(tmp_path.iterdir())) == 1
    with raises(BadConfig, where="from_frame", got=3):
        gp.from_frame(flights().to_reader(), num_partitions=3)
    del dataset
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_datasets_of_every_origin_travel_between_processes(tmp_path: Path) -> None:
    table = flights().slice(0, 100)
    table.to_pandas()[["flight", "origin"]].to_csv(tmp_path / "a.csv", index=False)
    for dataset in (gp.from_frame(table), gp.from_frame(table.to_reader()), gp.read_csv(tmp_path / "a.csv")):
        kept = dataset.filter("origin == 'JFK'").select(["flight"])
        again = pickle.loads(pickle.dumps(kept))
        assert values(again, "flight") == values(kept, "flight")
        del again
        gc.collect()
        assert len(kept.compute()) == len(kept)


def test_a_partition_in_memory_is_pickled_with_its_rows_alone() -> None:
    data = gp.from_frame(pd.DataFrame({"n": np.arange(30_000), "m": 1.5}), num_partitions=3)
    part = data.of_partitions([data.partitions[1]])
    again = pickle.loads(pickle.dumps(part))
    assert len(pickle.dumps(part)) < 200_000 < len(pickle.dumps(data))
    for dataset in (part, again, pickle.loads(pickle.dumps(again))):
        assert dataset.select(["n"]).compute()["n"].tolist() == list(range(10_000, 20_000))
        assert dataset.compute()["m"].tolist() == [1.5] * 10_000
    assert data.select(["m", "n"]).compute()["n"].tolist() == list(range(30_000))


def test_what_is_no_table() -> None:
    for thing in ([1, 2], {"n": [1]}, "flights.parquet", 3):
        with pytest.raises(SchemaMismatch, match="not a table"):
            gp.from_frame(thing)
    with pytest.raises(SchemaMismatch, match="not a table"):
        gp.from_frame(pa.chunked_array([[1, 2]]))
    with raises(SchemaMismatch, where="from_frame", got=["n"]):
        gp.from_frame(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"]))
    with raises(SchemaMismatch, where="from_frame", got=["n"]):
        gp.from_frame(pd.DataFrame([[1, 2]], columns=["n", "n"]))
    with raises(SchemaMismatch, where="frame", got=0):
        gp.from_frame(pd.DataFrame([[1, 2]]))
    with raises(BadConfig, where="from_frame(num_partitions=)", got=0):
        gp.from_frame(pd.DataFrame({"x": [1]}), num_partitions=0)
