"""Tables of libraries that are installed for the tests alone: Delta, DuckDB, Hugging Face, each on the real thing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile
from tests.io.tables import flights, plain, values


def test_a_delta_table(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed here")
    table = flights().select(["month", "origin", "flight", "dep_delay", "time_hour"])
    for months in ([1, 2], [3]):
        some = table.filter(pc.is_in(table["month"], pa.array(months, table["month"].type)))
        deltalake.write_deltalake(str(tmp_path / "t"), some, partition_by=["month"], mode="append")
    delta = deltalake.DeltaTable(str(tmp_path / "t"))
    dataset = gp.from_frame(delta.to_pyarrow_dataset())
    assert len(dataset) == delta.to_pyarrow_dataset().count_rows()
    kept = dataset.filter("month == 2 and dep_delay > 60").select(["flight", "month"])
    # The log's partitions and statistics leave one file.
    assert len({span.file for part in kept.partitions for span in part.spans}) == 1
    wanted = table.filter((pc.field("month") == 2) & (pc.field("dep_delay") > 60))
    assert sorted(values(kept, "flight")) == sorted(wanted["flight"].to_pylist())
    assert set(dataset.reads.columns) == {"flight", "month", "dep_delay"}
    # What a later version has rewritten is not read, and an earlier version still is.
    delta.delete("month = 2")
    assert len(gp.from_frame(delta.to_pyarrow_dataset()).filter("month == 2")) == 0
    first = deltalake.DeltaTable(str(tmp_path / "t"), version=1)
    assert len(gp.from_frame(first.to_pyarrow_dataset()).filter("month == 2")) == len(
        table.filter(pc.field("month") == 2)
    )
    for path in (tmp_path / "t").rglob("month=3/*.parquet"):
        path.unlink()
    with pytest.raises(BadFile, match=r"month=3/.*: cannot be opened"):
        gp.from_frame(delta.to_pyarrow_dataset())


def test_a_duckdb_relation() -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed here")
    connection = duckdb.connect()
    connection.register("flights", flights())
    relation = connection.sql(
        "select origin, count(*) as n, max(time_hour) as last from flights group by all order by 1"
    )
    dataset = gp.from_frame(relation)
    assert {item.name: item.dtype for item in dataset.schema} == {"origin": "string", "n": "int64", "last": "timestamp"}
    assert plain(dataset.select(["origin", "n"]).compute()) == [
        {"origin": origin, "n": n} for origin, n in (("EWR", 120_835), ("JFK", 111_279), ("LGA", 104_662))
    ]


def test_a_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed here")
    table = {"text": ["a", None, "b"], "label": [0, 1, 1]}
    kept = datasets.Dataset.from_dict(table).filter(lambda row: row["label"] == 1).with_format("arrow")
    expected = [{"text": None, "label": 1}, {"text": "b", "label": 1}]
    assert plain(gp.from_frame(kept[:]).compute()) == expected
    # A part at a time, as docs/guide-files.md shows it.
    batches = (batch for part in kept.iter(batch_size=1) for batch in part.to_batches())
    assert (
        plain(gp.from_frame(pa.RecordBatchReader.from_batches(kept.features.arrow_schema, batches)).compute())
        == expected
    )
