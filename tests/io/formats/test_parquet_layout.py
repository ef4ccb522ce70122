"""`write_parquet(layout="gpu")`, and what `inspect` tells of a file's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import BadConfig
from gpupipe.io import inspect
from gpupipe.io.inspect import ParquetFacts
from gpupipe.io.jobs.part_writer import ParquetOptions
from gpupipe.schema import Field, Schema
from tests.io.tables import plain, tables

several = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
N = 60_000
TABLE = pa.table(
    {
        "id": np.arange(N),
        "month": np.arange(N) % 12,
        "origin": [f"A{row % 300}" for row in range(N)],
        "note": [f"row {row}" for row in range(N)],
        "words": [[f"w{row % 5}", "x"] for row in range(N)],
        "x": np.arange(N) / 7,
    }
)


def facts(path: Path) -> ParquetFacts:
    found = inspect(gp.read_parquet(path, backend="cpu")).layout
    assert found is not None
    return found


@pytest.mark.slow
@several
@given(table=tables(), parts=st.sampled_from([1, 3]), folder=st.booleans())
def test_any_table_comes_back(tmp_path: Path, table: pa.Table, parts: int, folder: bool) -> None:
    path = tmp_path / ("out" if folder else "out.parquet")
    gp.from_frame(table, num_partitions=parts).write_parquet(path, layout="gpu", overwrite=True)
    assert plain(gp.read_parquet(path).compute()) == plain(table)


def test_partitions_become_row_groups_of_many_pages(tmp_path: Path) -> None:
    dataset = gp.from_frame(TABLE, num_partitions=7, backend="cpu")
    manifest = dataset.write_parquet(tmp_path / "gpu", layout="gpu")
    dataset.write_parquet(tmp_path / "default")
    assert [part.files for part in manifest.parts] == [{"part-00000.parquet": [N]}]
    assert pl.read_parquet(tmp_path / "gpu/*.parquet").equals(pl.read_parquet(tmp_path / "default/*.parquet"))
    found = facts(tmp_path / "gpu")
    assert found.groups == (N,) and found.pages_per_chunk == N / 5_000
    assert len(facts(tmp_path / "default").groups) == 7
    chunks = pq.read_metadata(tmp_path / "gpu" / "part-00000.parquet").row_group(0)
    coded = {name: chunks.column(place).has_dictionary_page for place, name in enumerate(TABLE.column_names)}
    assert coded == {"id": False, "month": True, "origin": True, "note": False, "words": True, "x": False}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["default", "gpu"])
def test_the_first_values_of_a_file_decide_on_a_dictionary(tmp_path: Path, layout: Any) -> None:
    """Of long lists too, no more than the first elements are counted; no values tell nothing against one."""
    lists = [[7] * 1_000_000 + list(range(1_500_000))] * 2
    columns = {"list": lists, "late": [None, "text"], "missing": [None, None], "flag": [True, False], "once": [1, 2]}
    kinds = pa.list_(pa.int64()), pa.string(), pa.string(), pa.bool_(), pa.int64()
    table = pa.table(columns, pa.schema(list(zip(columns, kinds, strict=True))))
    gp.from_frame(table).write_parquet(tmp_path / "out.parquet", rows_per_group=1, layout=layout)
    chunks = pq.read_metadata(tmp_path / "out.parquet").row_group(1)
    coded = {name: chunks.column(place).has_dictionary_page for place, name in enumerate(columns)}
    assert coded == {"list": True, "late": True, "missing": True, "flag": False, "once": False}


def test_row_groups_may_be_given_and_follow_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gp.from_frame(TABLE, num_partitions=3, backend="cpu")
    assert len(dataset.write_parquet(tmp_path / "a", layout="gpu", rows_per_group=25_000).parts) == 3
    assert len(dataset.write_parquet(tmp_path / "b", layout="gpu", files=2).parts) == 2
    monkeypatch.setattr("gpupipe.io.jobs.part_writer.default_threads", lambda: 1)
    gp.configure(memory_limit=4 * 20_000 * 8)
    manifest = dataset.select("id").write_parquet(tmp_path / "c", layout="gpu")
    assert [part.files[f"{part.name}.parquet"] for part in manifest.parts] == [[20_000]] * 3


@pytest.mark.parametrize(("dtype", "rows"), [("int64", 10_000_000), ("string", 8_000_000)])
def test_a_row_group_has_ten_million_rows_or_128_mb_of_a_column(dtype: str, rows: int) -> None:
    assert ParquetOptions(layout="gpu").lay_out(Schema([Field("x", dtype)])).rows_per_group == rows


def test_a_layout_that_there_is_not() -> None:
    with pytest.raises(BadConfig) as caught:
        gp.from_frame(TABLE).write_parquet("nowhere", layout="tpu")  # type: ignore[arg-type]
    assert caught.value.where == "write_parquet(layout=)" and caught.value.got == "tpu"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("rows", [1_000, 7_000, 20_000])
def test_pages_are_counted(tmp_path: Path, version: str, rows: int) -> None:
    """Long statistics make headers longer than what is first read of them."""
    table = TABLE.select(["id", "x"]).append_column("long", pa.array(["ä" * 3000] * N))
    options = {"data_page_version": version, "data_page_size": 1 << 30, "max_rows_per_page": rows}
    pq.write_table(table, tmp_path / "a.parquet", write_batch_size=100, dictionary_pagesize_limit=1 << 30, **options)
    assert facts(tmp_path / "a.parquet").pages_per_chunk == -(-N // rows)


@pytest.mark.parametrize(
    ("found", "costs"),
    [
        (ParquetFacts((10_000_000,), 500, ("PLAIN",), ("SNAPPY",)), 0),
        (ParquetFacts((9_000,), 1, ("PLAIN",), ("UNCOMPRESSED",)), 0),
        (ParquetFacts((9_000, 9_000), None, ("PLAIN",), ("SNAPPY",)), 1),
        (ParquetFacts((1_000_000, 1_000_000), 50, ("PLAIN",), ("GZIP", "SNAPPY")), 2),
    ],
)
def test_what_a_layout_costs(found: ParquetFacts, costs: int) -> None:
    assert len(found.costs) == costs
    assert ("layout='gpu'" in str(found)) == bool(costs)


def test_tables_that_are_no_parquet_files_have_no_layout(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    assert inspect(gp.read_csv(tmp_path / "a.csv")).layout is None
    assert inspect(gp.from_frame(TABLE.slice(0, 5))).layout is None
    pq.write_table(TABLE.slice(0, 0), tmp_path / "empty.parquet")
    assert inspect(gp.read_parquet(tmp_path / "empty.parquet")).layout is None
