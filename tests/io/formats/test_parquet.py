from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.backend import select
from gpupipe.backend.cpu import CpuBackend
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound, ExpressionError, SchemaMismatch
from tests.io.tables import DATA, arrow, damage, flights, plain, tables, values
from tests.raising import raises

several = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Four row groups of ten rows: n ascends, text and share are beside it."""
    path = tmp_path / "numbers.parquet"
    n = np.arange(40)
    pq.write_table(pa.table({"n": n, "text": [f"t{i // 10}" for i in n], "share": n / 40}), path, row_group_size=10)
    return path


def test_the_shipped_flights_are_what_polars_reads() -> None:
    dataset = gp.read_parquet(DATA / "flights.parquet")
    expected = pl.read_parquet(DATA / "flights.parquet")
    assert len(dataset) == expected.height
    assert dataset.columns == expected.columns
    nullable = {item.name for item in dataset.schema if item.nullable}
    floats = {item.name for item in dataset.schema if item.dtype == "float64"}
    assert nullable == floats | {name for name in expected.columns if expected[name].null_count()}
    assert pl.DataFrame(arrow(dataset.compute())).cast(expected.schema).equals(expected)


@pytest.mark.slow
@several
@given(table=tables(), group=st.integers(1, 12), limit=st.sampled_from([1, 300, 1 << 20]))
def test_any_table_comes_back_in_any_partitions(tmp_path: Path, table: pa.Table, group: int, limit: int) -> None:
    path = tmp_path / "any.parquet"
    pq.write_table(table, path, row_group_size=group)
    dataset = gp.read_parquet(path, partition_bytes=limit)
    assert plain(dataset.compute()) == plain(table)
    assert [row for frame in dataset for row in plain(frame)] == plain(table)
    assert len(dataset) == table.num_rows
    for item in dataset.schema:
        # Footers tell of nulls, but not of NaN.
        known = item.dtype not in ("float32", "float64")
        assert item.nullable == (table.column(item.name).null_count > 0 if known else True)
    dtypes = dataset.compute().dtypes.astype(str).to_dict()
    assert dtypes["größe"] == ("Int64" if dataset.schema["größe"].nullable else "int64")


def test_unusual_types_are_read_as_the_nearest_of_ours(tmp_path: Path) -> None:
    table = pa.table(
        {
            "berlin": pa.array([0, None], pa.timestamp("ms", "Europe/Berlin")),
            "fine": pa.array([1_500, -1_500], pa.timestamp("ns")),
            "day": pa.array([1, 2], pa.date32()),
            "price": pa.array(["1.25", None]).cast(pa.decimal128(5, 2)),
            "half": pa.array(np.array([0.5, 1.0], "float16")),
            "nothing": pa.nulls(2),
            "code": pa.array(["b", None]).dictionary_encode(),
            "wide.name": pa.array([1, 2]),
        }
    )
    pq.write_table(table, tmp_path / "unusual.parquet")
    dataset = gp.read_parquet(tmp_path / "unusual.parquet")
    assert {item.name: item.dtype for item in dataset.schema} == {
        "berlin": "timestamp",
        "fine": "timestamp",
        "day": "timestamp",
        "price": "decimal128(5, 2)",
        "half": "float32",
        "nothing": "float64",
        "code": "string",
        "wide.name": "int64",
    }
    first, second = plain(dataset.compute())
    assert first["berlin"] == pd.Timestamp(0, tz="UTC")
    assert (str(first["berlin"].tzinfo), second["berlin"]) == ("Europe/Berlin", None)
    assert (first["fine"].microsecond, first["price"], second["price"]) == (1, Decimal("1.25"), None)
    assert second["fine"] == pd.Timestamp(-2, unit="us").to_pydatetime()
    assert (first["nothing"], first["code"], second["code"], second["wide.name"]) == (None, "b", None, 2)
    assert second["day"] == pd.Timestamp("1970-01-03").to_pydatetime()


def test_columns_inside_columns_are_not_mistaken_for_others(tmp_path: Path) -> None:
    table = pa.table({"n": [1], "tags": [[["a"]]], "place": [{"lat": 1.0}], "lat": [2]})
    pq.write_table(table, tmp_path / "nested.parquet")
    dataset = gp.read_parquet(tmp_path / "nested.parquet")
    assert plain(dataset.compute()) == table.to_pylist()
    assert plain(dataset.select(["lat"]).compute()) == [{"lat": 2}]
    assert plain(dataset.filter("lat > 1").select(["place"]).compute()) == [{"place": {"lat": 1.0}}]


def test_an_index_that_pandas_wrote_is_a_column_like_others(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.Index([7, 7], name="key"))
    frame.to_parquet(tmp_path / "indexed.parquet")
    assert plain(gp.read_parquet(tmp_path / "indexed.parquet").compute()) == [
        {"x": 1.0, "key": 7},
        {"x": 2.0, "key": 7},
    ]


# what is read ---------------------------------------------------------------------------------------------------------
def test_only_the_asked_columns_are_read(numbers: Path) -> None:
    for group in range(4):
        damage(numbers, group, "text")
    dataset = gp.read_parquet(numbers, partition_bytes=1)
    assert values(dataset.select(["n"]), "n") == list(range(40))
    assert gp.read_parquet(numbers, columns=["share"]).compute().columns.to_list() == ["share"]
    assert set(dataset.reads.columns) == {"n"}
    with pytest.raises(
        BadFile, match=r"numbers\.parquet: row group 0 cannot be read \(.*\)\.\nExpected the rows its footer"
    ):
        dataset.compute()


def test_a_predicate_reads_its_column_and_no_other(numbers: Path) -> None:
    for group in range(4):
        damage(numbers, group, "text")
    kept = gp.read_parquet(numbers).filter("n % 7 == 0").select(["share"])
    assert values(kept, "share") == [n / 40 for n in range(0, 40, 7)]
    assert len(kept) == 6
    assert kept.compute().columns.to_list() == ["share"]


def test_row_groups_that_cannot_hold_a_row_are_not_read(numbers: Path) -> None:
    for group in (0, 1, 3):
        damage(numbers, group, "n")
    dataset = gp.read_parquet(numbers, partition_bytes=1)
    assert values(dataset.filter("n >= 20 and n < 30"), "n") == list(range(20, 30))
    assert values(dataset.filter("text == 't2'").select(["n"]), "n") == list(range(20, 30))
    assert values(dataset.filter("n in [21, 25]"), "n") == [21, 25]
    _, middle, _ = dataset.split(by="n", at=[20, 30])
    assert values(middle, "n") == list(range(20, 30))
    assert middle.num_partitions == 1
    assert set(dataset.reads.row_groups) == {(0, 2)}


def test_pruned_rows_keep_their_identity(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers, partition_bytes=1 << 20)
    drawn = {row["n"] for row in plain(dataset.split(fraction=0.5, seed=3)[0].compute())}
    late = values(dataset.filter("n >= 20").split(fraction=0.5, seed=3)[0], "n")
    assert late == sorted(n for n in drawn if n >= 20)


def test_the_predicate_is_applied_where_statistics_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "bare.parquet"
    pq.write_table(pa.table({"n": np.arange(40)}), path, row_group_size=10, write_statistics=False)
    dataset = gp.read_parquet(path)
    assert dataset.schema["n"].nullable
    assert values(dataset.filter("n < 15"), "n") == list(range(15))
    assert [len(part) for part in dataset.split(by="n", at=15)] == [15, 25]


def test_nothing_left_is_one_empty_partition(numbers: Path) -> None:
    nothing = gp.read_parquet(numbers, partition_bytes=1).filter("n > 100")
    assert nothing.num_partitions == 1
    assert len(nothing) == 0
    assert nothing.compute().dtypes.astype(str).to_dict() == {"n": "int64", "text": "str", "share": "float64"}


def test_columns_and_filters_of_the_reader(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers, columns=["share"], filters="n < 3")
    assert dataset.columns == ["share"]
    assert values(dataset, "share") == [0.0, 1 / 40, 2 / 40]
    with raises(ColumnNotFound, where="filter", column="m"):
        gp.read_parquet(numbers, filters="m < 3")
    with raises(ExpressionError, where="filter('n + 3')"):
        gp.read_parquet(numbers, filters="n + 3")


# partitions -----------------------------------------------------------------------------------------------------------
def test_partitions_are_cut_by_decoded_bytes(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"n": np.arange(1000), "x": np.zeros(1000)}), path, row_group_size=100)
    assert gp.read_parquet(path, partition_bytes=1).num_partitions == 10
    dataset = gp.read_parquet(path, partition_bytes=5 * 100 * 16)
    assert [part.num_rows for part in dataset.partitions] == [500, 500]
    assert dataset.partitions[1].description == f"{path} row groups 5-9"
    assert dataset.partitions[1].first_row == 500
    assert gp.read_parquet(path).num_partitions == 1
    with raises(BadConfig, where="read(partition_bytes=)", got=0):
        gp.read_parquet(path, partition_bytes=0)
    with raises(BadConfig, where="read(backend=)", got="tpu"):
        gp.read_parquet(path, backend="tpu")


def test_small_files_share_a_partition_and_large_ones_do_not(tmp_path: Path) -> None:
    for number in range(6):
        pq.write_table(
            pa.table({"n": np.arange(10) + 10 * number, "s": ["a", str(number)] * 5}), tmp_path / f"{number}.parquet"
        )
    dataset = gp.read_parquet(tmp_path, partition_bytes=1000)
    assert 1 < dataset.num_partitions < 6
    assert values(dataset, "n") == list(range(60))
    assert values(dataset, "s") == [s for k in range(6) for s in ["a", str(k)] * 5]
    assert gp.read_parquet(tmp_path, partition_bytes=1).num_partitions == 6


def test_a_dataset_travels_between_processes(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers, partition_bytes=1).filter("n > 5").split(by="n", at=20)[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert plain(again.compute()) == plain(dataset.compute())
    assert again.reads.passes == 1


def test_reads_count_passes_columns_and_bytes(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers, partition_bytes=1)
    dataset.select(["n"]).compute()
    dataset.select(["n", "share"]).compute()
    assert dataset.reads.passes == 2
    assert dataset.reads.row_groups.total() == 8
    assert dict(dataset.reads.columns) == {"n": 8, "share": 4}
    metadata = pq.read_metadata(numbers)
    sizes = [sum(metadata.row_group(g).column(c).total_compressed_size for g in range(4)) for c in (0, 2)]
    assert dataset.reads.num_bytes == 2 * sizes[0] + sizes[1]


# paths ----------------------------------------------------------------------------------------------------------------
def test_a_list_a_pattern_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, value in (("a", 1), ("b", 2), ("deep/c", 3)):
        pq.write_table(pa.table({"n": [value]}), tmp_path / f"{name}.parquet")
    for name in ("_draft", ".hidden"):
        (tmp_path / f"{name}.parquet").write_bytes(b"no")
    (tmp_path / "README.md").write_text("no data")

    def read(path: object) -> list[int]:
        return values(gp.read_parquet(path), "n")

    assert read(tmp_path) == [1, 2, 3]
    assert sorted(read(str(tmp_path / "[!_]*.parquet"))) == [1, 2]
    assert read([tmp_path / "b.parquet", tmp_path / "a.parquet"]) == [2, 1]
    assert read(tmp_path / "deep" / "c.parquet") == [3]
    with pytest.raises(BadFile, match=r"no such file.\n.*\nTry: 'a\.parquet' \(the closest name there\)"):
        read(tmp_path / "aa.parquet")
    with pytest.raises(BadFile, match="the list of paths is empty"):
        read([])
    (tmp_path / "empty").mkdir()
    with raises(BadFile, where="empty", got=[]):
        read(tmp_path / "empty")


def test_a_url_that_fsspec_knows() -> None:
    memory = fsspec.filesystem("memory")
    with memory.open("/flights/a.parquet", "wb") as file:
        pq.write_table(pa.table({"n": [1, 2], "s": ["x", None]}), file)
    dataset = gp.read_parquet("memory://flights/*.parquet")
    assert plain(dataset.filter("n > 1").compute()) == [{"n": 2, "s": None}]


# bad files ------------------------------------------------------------------------------------------------------------
def test_files_that_are_no_whole_parquet(tmp_path: Path, numbers: Path) -> None:
    whole = numbers.read_bytes()
    broken = tmp_path / "broken.parquet"
    for content, message in (
        (b"", r"broken\.parquet: the file is empty \(0 bytes\)"),
        (b"n,text\n1,a\n2,b\n3,c\n", r"first bytes differ, got b'n,text.*\n.*PAR1.*\nTry: gp\.read_csv"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), r"not a Parquet file"),
        (whole[:-20], rf"damaged or cut off: {len(whole) - 20} bytes"),
        (whole[: len(whole) // 2] + bytes(len(whole) // 2 - 8) + whole[-8:], "the footer cannot be read"),
        (whole.replace(b"share", b"sh\xffre"), r"broken\.parquet: damaged: a column's name is no text .*0xff"),
    ):
        broken.write_bytes(content)
        with pytest.raises(BadFile, match=message):
            gp.read_parquet(broken)


def test_a_file_that_was_replaced_is_no_silent_change(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers)
    pq.write_table(pa.table({"n": [1]}), numbers)
    with pytest.raises(BadFile, match=r"row groups 0-3 (cannot be read|hold other rows)"):
        dataset.compute()


class _ReadsFooters(CpuBackend):
    """A backend that looks at the file anew, as cuDF does."""

    def read_parquet(self, source: Any, row_groups: Any, fields: Any, metadata: Any = None) -> Any:
        return super().read_parquet(source, row_groups, fields)


def test_a_file_that_was_replaced_is_noticed_by_its_rows(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers)
    pq.write_table(pa.table({"n": np.arange(12), "text": ["t"] * 12, "share": np.zeros(12)}), numbers, row_group_size=3)
    part = dataset.partitions[0]
    with raises(BadFile, where="numbers.parquet", got=12, match="row groups 0-3"):
        dataset.read(part, ["n"], _ReadsFooters())
    with raises(BadFile, where="numbers.parquet", got=6, match="row groups 0, 2"):
        dataset.read(part.keep(part.spans[::2]), ["n"], _ReadsFooters())


def test_a_file_without_rows_is_an_empty_dataset(tmp_path: Path) -> None:
    table = flights().slice(0, 0)
    pq.write_table(table, tmp_path / "none.parquet")
    dataset = gp.read_parquet(tmp_path / "none.parquet")
    assert (len(dataset), dataset.num_partitions, len(dataset.head())) == (0, 1, 0)
    assert dataset.compute().columns.to_list() == table.column_names
    both = gp.read_parquet([tmp_path / "none.parquet", DATA / "flights.parquet"])
    assert len(both) == 336_776


def test_files_that_differ_are_named_with_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "s": ["a"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"s": ["b"], "n": [2]}), tmp_path / "2.parquet")
    assert values(gp.read_parquet(tmp_path), "n") == [1, 2]
    pq.write_table(pa.table({"n": [1.5], "s": ["a"]}), tmp_path / "3.parquet")
    with pytest.raises(SchemaMismatch, match=r"3\.parquet: column 'n' is float64.\nExpected int64, as in .*1\.parquet"):
        gp.read_parquet(tmp_path)
    assert values(gp.read_parquet(tmp_path, columns=["s"]), "s") == ["a", "b", "a"]
    pq.write_table(pa.table({"n": [1]}), tmp_path / "3.parquet")
    with pytest.raises(SchemaMismatch, match="column 's' is not there"):
        gp.read_parquet(tmp_path)
    pq.write_table(pa.table({"n": [1], "s": ["a"], "new": [1]}), tmp_path / "3.parquet")
    assert values(gp.read_parquet(tmp_path), "n") == [1, 2, 1]
    with raises(ColumnNotFound, where="flights.parquet", column="distnce"):
        gp.read_parquet(DATA / "flights.parquet", columns=["distnce"])


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    pq.write_table(table, tmp_path / "twice.parquet")
    with raises(SchemaMismatch, where="twice.parquet", got=["n"]):
        gp.read_parquet(tmp_path / "twice.parquet")


def test_a_partition_is_read_for_the_backend_that_asks(numbers: Path) -> None:
    dataset = gp.read_parquet(numbers, partition_bytes=1)
    backend = select("cpu")
    frame = dataset.filter("n % 2 == 1").read(dataset.partitions[1], ["text", "n"], backend)
    assert frame.columns.to_list() == ["text", "n"]
    assert frame.index.tolist() == [1, 3, 5, 7, 9]
    assert backend.column(frame, "text").dictionary.to_pylist() == ["t1"]
    with raises(ColumnNotFound, where="read", column="nn"):
        dataset.read(dataset.partitions[0], ["nn"], backend)
