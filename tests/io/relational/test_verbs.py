from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound, PartitionFailed
from gpupipe.io.jobs.part_writer import write_file
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.table import map_frames
from gpupipe.io.relational.scan import scan
from tests.io.meeting import KEYS, PARTITIONS, few_bytes, meetings, pandas_of, rows_of, several
from tests.io.tables import DATA, values
from tests.raising import raises

names_of_keys = st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3, unique=True)
parts_of = st.sampled_from(PARTITIONS)


def numbers(num_rows: int = 1000, parts: int = 7) -> gp.Dataset:
    return gp.from_frame(pd.DataFrame({"x": range(num_rows)}), num_partitions=parts)


def xs(data: gp.Dataset) -> list[int]:
    return data.to_pandas()["x"].tolist()


def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with none in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the smallest table exceeds."""
    few_bytes(monkeypatch)


# sort ----------------------------------------------------------------------------------------------------------------
@several
@given(table=meetings(), by=names_of_keys, parts=parts_of, data=st.data())
def test_a_sorted_table_is_that_of_pandas(table: pa.Table, by: list[str], parts: int, data: st.DataObject) -> None:
    upward = [data.draw(st.booleans()) for _ in by]
    found = gp.from_frame(table, num_partitions=parts).sort(by, ascending=upward)
    wanted = pandas_of(table)
    for name, up in reversed(list(zip(by, upward, strict=True))):
        wanted = wanted.sort_values(name, ascending=up, kind="stable")
    assert rows_of(found) == rows_of(wanted)
    assert len(found) == table.num_rows


@pytest.mark.slow
def test_flights_are_sorted_in_ranges_that_a_partition_holds() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20, backend="cpu")
    found = flights.select(["origin", "distance", "flight"]).sort(["origin", "distance"], ascending=[True, False])
    assert found.num_partitions > 5
    whole = pd.read_parquet(DATA / "flights.parquet", columns=["origin", "distance", "flight"])
    whole = whole.sort_values("distance", ascending=False, kind="stable").sort_values("origin", kind="stable")
    pd.testing.assert_frame_equal(found.compute(), whole.reset_index(drop=True), check_dtype=False)


def test_equal_keys_are_divided_among_ranges() -> None:
    """A column of one value does not become one large partition."""
    found = gp.from_frame(pd.DataFrame({"k": 1, "x": range(20_000)}), num_partitions=8).sort("k")
    assert max(partition.num_rows for partition in found.partitions) < 5_000
    assert xs(found) == list(range(20_000))


def test_what_is_sorted_goes_on_like_any_dataset() -> None:
    found = numbers().sort("x", ascending=False)
    assert xs(found.filter("x < 3")) == [2, 1, 0]
    assert values(found.head(2), "x") == [999, 998]
    assert [len(part) for part in found.split(by="x", at=400)] == [400, 600]
    assert xs(found.sort("x")) == list(range(1000))
    assert xs(found.sample(n=3)) == sorted(xs(found.sample(n=3)), reverse=True)


# shuffle -------------------------------------------------------------------------------------------------------------
def test_a_shuffle_depends_on_its_seed_alone() -> None:
    orders = [xs(numbers(parts=parts).shuffle(3)) for parts in PARTITIONS]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(1000))
    assert xs(numbers().shuffle(4)) != orders[0]
    assert xs(numbers().filter("x < 500").shuffle(3)) == [x for x in orders[0] if x < 500]


def test_a_shuffle_is_a_full_one() -> None:
    """A row's new place says nothing of its old one, and any two input partitions meet in each output partition."""
    size, parts = 20_000, 8
    found = numbers(size, parts).shuffle(0)
    order = np.array(xs(found))
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 4 / np.sqrt(size)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 4 / np.sqrt(size)
    counts, _, _ = np.histogram2d(order, np.arange(size), bins=parts)
    expected = size / parts**2
    assert ((counts - expected) ** 2 / expected).sum() < (parts - 1) ** 2 + 6 * np.sqrt(2 * (parts - 1) ** 2)
    for partition in found.partitions:
        rows = found.read(partition)["x"].to_numpy()
        assert len(np.unique(rows * parts // size)) == parts


# deduplicate ---------------------------------------------------------------------------------------------------------
@several
@given(table=meetings(), on=st.none() | names_of_keys, parts=parts_of, keep=st.sampled_from(["first", "last"]))
def test_duplicates_are_those_of_pandas(table: pa.Table, on: list[str] | None, parts: int, keep: Any) -> None:
    table = table if on else table.select(["k", "x", "ok"])
    found = gp.from_frame(table, num_partitions=parts).deduplicate(on, keep=keep)
    assert rows_of(found) == rows_of(pandas_of(table).drop_duplicates(on, keep=keep))
    assert len(found) == len(rows_of(found))


@several
@given(table=meetings(), on=names_of_keys, keep=st.sampled_from(["first", "last"]))
def test_duplicates_in_files_are_those_of_pandas(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, on: list[str], keep: Any
) -> None:
    """Text that repeats in them is grouped as categories."""
    folder = tmp_path_factory.mktemp("files")
    many = pa.concat_tables([table] * 20)
    pq.write_table(many, folder / "a.parquet")
    pq.write_table(many.slice(many.num_rows // 2), folder / "b.parquet")
    found = gp.read_parquet([folder / "a.parquet", folder / "b.parquet"], backend="cpu").deduplicate(on, keep=keep)
    wanted = pandas_of(pa.concat_tables([many, many.slice(many.num_rows // 2)])).drop_duplicates(on, keep=keep)
    assert rows_of(found) == rows_of(wanted)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_text_that_repeats_in_files_is_known(tmp_path: Path, text: pa.DataType) -> None:
    few, many = pa.array(["a", "bb", None, "a"] * 500), pa.array([f"name {n}" for n in range(2000)])
    table = pa.table({"few": few.cast(text), "many": many.cast(text), "n": [1, 2] * 1000})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.set_column(0, "few", few), tmp_path / "b.parquet", use_dictionary=False)
    pq.write_table(table.set_column(0, "few", many), tmp_path / "c.parquet")
    for names, known in (("a", {"few"}), ("b", set()), ("ac", set())):
        data = gp.read_parquet([tmp_path / f"{name}.parquet" for name in names], backend="cpu")
        found = scan(data, ["few", "many", "n"], "read")
        assert found.repeating == known
        kinds = found.with_categories(["few", "many", "n"]).frame.collect_schema()
        assert kinds["few"] == (pl.Categorical if known else pl.String) and kinds["many"] == pl.String


def test_what_is_deduplicated_still_prunes_and_selects() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20, backend="cpu")
    once = flights.deduplicate(["tailnum", "month"])
    whole = pd.read_parquet(DATA / "flights.parquet")
    wanted = whole.drop_duplicates(["tailnum", "month"])
    assert len(once) == len(wanted)
    late = once.filter("month >= 11").select(["flight"]).compute()
    assert late["flight"].tolist() == wanted[wanted.month >= 11].flight.tolist()
    # Chosen before, other rows are the first of their kind.
    late = flights.filter("month >= 11").deduplicate("tailnum").select(["flight"]).compute()
    assert late["flight"].tolist() == whole[whole.month >= 11].drop_duplicates("tailnum").flight.tolist()


# sample --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [0, 1, 137, 1000])
def test_exactly_so_many_rows_are_drawn(n: int) -> None:
    drawn = [xs(numbers(parts=parts).sample(n=n, seed=5)) for parts in PARTITIONS]
    assert len(set(drawn[0])) == n
    assert drawn[0] == drawn[1] == drawn[2] == sorted(drawn[0])
    assert n in (0, 1000) or xs(numbers().sample(n=n, seed=6)) != drawn[0]


def test_a_share_is_drawn_without_a_pass() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", backend="cpu")
    flights.reads.reset()
    some = flights.sample(0.25, seed=1)
    assert flights.reads.passes == 0
    assert len(some) == pytest.approx(len(flights) / 4, rel=0.02)
    assert len(flights.sample(1.0)) == len(flights)


def test_rows_are_kept_in_partitions_of_several_files(tmp_path: Path) -> None:
    frame = pd.DataFrame({"k": np.arange(60) % 23, "x": np.arange(60)})
    for number in range(3):
        frame[20 * number : 20 * (number + 1)].to_parquet(tmp_path / f"{number}.parquet")
    data = gp.read_parquet(tmp_path, backend="cpu")
    assert data.num_partitions == 1
    for keep in ("first", "last"):
        wanted = frame.drop_duplicates("k", keep=keep).reset_index(drop=True)
        found = data.deduplicate("k", keep=keep)
        pd.testing.assert_frame_equal(found.compute(), wanted)
        found.write_parquet(tmp_path / f"_{keep}")
        pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / f"_{keep}").compute(), wanted)
    assert len(data.sample(n=17, seed=3).compute()) == 17


def test_a_sample_of_a_sample_and_of_filtered_rows() -> None:
    some = numbers().filter("x >= 500").sample(n=100).sample(n=50)
    assert len(set(xs(some))) == 50
    assert min(xs(some)) >= 500
    assert len(some.sample(0.5)) not in (0, 50)


# calls that make no sense --------------------------------------------------------------------------------------------
def test_what_makes_no_sense_is_said() -> None:
    data = numbers(10)
    with raises(ColumnNotFound, where="sort", column="y"):
        data.sort("y")
    with pytest.raises(BadConfig, match="no column is named"):
        data.sort([])
    with raises(BadConfig, where="sort", got=[True, False]):
        data.sort("x", ascending=[True, False])
    with raises(BadConfig, where="deduplicate(keep=)", got="none"):
        data.deduplicate(keep="none")  # type: ignore[arg-type]
    with raises(ColumnNotFound, where="deduplicate", column="y"):
        data.deduplicate("y")
    for call in ({}, {"n": 1, "fraction": 0.5}):
        with raises(BadConfig, where="sample", remedy="n=1000"):
            data.sample(**call)
    for fraction in (0.0, -1.0, 1.5):
        with raises(BadConfig, where="sample(fraction=)", remedy="fraction=0.1"):
            data.sample(fraction)
    with raises(BadConfig, where="sample", got=11):
        data.sample(n=11)
    with raises(BadConfig, where="sample(n=)", got=-1):
        data.sample(n=-1)


# temporary files and memory ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_temporary_files_go_with_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tight: None) -> None:
    folder = scratch(tmp_path, monkeypatch)
    found = numbers().sort("x", ascending=False)
    assert list(folder.iterdir()) == []  # nobody has asked for rows
    assert len(found) == 1000
    assert len(list(folder.iterdir())) == 1  # what was between is gone
    part = found.filter("x < 2")
    del found
    assert xs(part) == [1, 0]
    del part
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("verb", [lambda d: d.sort("x"), lambda d: d.deduplicate("x"), lambda d: d.shuffle()])
def test_a_temporary_file_that_is_gone_is_named(
    verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tight: None
) -> None:
    folder = scratch(tmp_path, monkeypatch)
    found = verb(numbers())
    assert len(found) == 1000
    for path in folder.rglob("*.*"):
        path.unlink()
    with pytest.raises(BadFile, match=r"a temporary file cannot be read(?s:.*)TMPDIR"):
        found.compute()


@pytest.mark.slow
def test_rows_that_do_not_fit_are_exchanged_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    def greedy(frame: Any, backend: Any) -> Any:
        if len(frame) > 60:
            raise MemoryError(f"no room for {len(frame)} rows")
        return frame

    data = numbers()
    tight = map_frames(data, greedy, data.schema, ["x"], keeps_rows=True)
    for verb in (
        lambda d: d.sort("x", ascending=False),
        lambda d: d.shuffle(1),
        lambda d: d.group_by("x").agg(n=("x", "size")),
        lambda d: d.join(d, on="x"),
        lambda d: d.sample(n=10),
    ):
        caplog.clear()
        found, wanted = verb(tight), verb(data)
        assert len(found) == len(wanted)
        assert "worked on in halves" in caplog.text
        if not found.query.stages:  # else a sample, still to be read
            assert rows_of(found) == rows_of(wanted)


def test_rows_that_are_needed_together_are_never_halved() -> None:
    def greedy(part: gp.Dataset) -> int:
        raise MemoryError("no room")

    with pytest.raises(PartitionFailed, match=r"needed together, and memory does not suffice(?s:.*)partition_bytes"):
        list(run_partitions(greedy, numbers(), "cpu", "sort", whole=True))


# written in a random order -------------------------------------------------------------------------------------------
def written(folder: Path) -> list[int]:
    return [x for path in sorted(folder.rglob("*.parquet")) for x in pq.read_table(path)["x"].to_pylist()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four files of 500 rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"x": range(500 * number, 500 * number + 500)}), folder / f"{number}.parquet")
    return folder


def test_a_full_shuffle_is_written(source: Path, tmp_path: Path) -> None:
    orders = []
    for bytes_ in (1000, 4000, 1 << 20):
        data = gp.read_parquet(source, partition_bytes=bytes_, backend="cpu")
        out = tmp_path / f"out{bytes_}"
        manifest = data.write_parquet(out, files=3, shuffle="full", seed=7)
        assert len(manifest.parts) == 3
        orders.append(written(out))
        for path in sorted(out.rglob("*.parquet")):
            assert set(np.array(pq.read_table(path)["x"]) // 500) == {0, 1, 2, 3}
    assert orders[0] == orders[1] == orders[2] == xs(data.shuffle(7))
    data.write_parquet(tmp_path / "one.parquet", shuffle="full", seed=7)
    assert pq.read_table(tmp_path / "one.parquet")["x"].to_pylist() == orders[0]


def test_a_shuffle_of_partitions_keeps_them_apart(source: Path, tmp_path: Path) -> None:
    data = gp.read_parquet(source, partition_bytes=4000, backend="cpu")
    assert data.num_partitions == 4
    data.write_parquet(tmp_path / "out", shuffle="partition")
    data.write_parquet(tmp_path / "other", shuffle="partition", seed=1)
    rows = np.array(written(tmp_path / "out")).reshape(4, 500)
    assert (rows // 500 == np.arange(4)[:, None]).all()
    assert all(abs(np.corrcoef(part, np.arange(500))[0, 1]) < 0.2 for part in rows)
    assert rows.ravel().tolist() != written(tmp_path / "other")
    with raises(BadConfig, where="write_parquet(shuffle=)", got="per_worker"):
        data.write_parquet(tmp_path / "third", shuffle="per_worker")  # type: ignore[arg-type]


def test_a_shuffled_folder_is_recognised(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call again writes nothing, exchanges nothing, reads no row; another order or new files are refused."""
    out = tmp_path / "out"

    def write(**options: Any) -> Any:
        data = gp.read_parquet(source, partition_bytes=4000, backend="cpu")
        manifest = data.write_parquet(out, **{"shuffle": "full", "seed": 1, **options})
        return manifest, data.reads.passes

    first, passes = write()
    assert passes == 1
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    folder = scratch(tmp_path, monkeypatch)
    again, passes = write()
    assert passes == 0
    assert list(folder.iterdir()) == []
    assert again.num_done == len(first.parts)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    for other in ({"seed": 2}, {"shuffle": "partition"}, {"shuffle": False}):
        with pytest.raises(BadFile, match="with other options"):
            write(**other)
    pq.write_table(pa.table({"x": [5000]}), source / "4.parquet")
    with pytest.raises(BadConfig, match=r"come from all input files together(?s:.*)overwrite=True"):
        write()
    write(overwrite=True)
    assert 5000 in written(out)


def test_a_shuffled_folder_is_finished_after_a_crash(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gp.read_parquet(source, partition_bytes=4000, backend="cpu")
    data.write_parquet(tmp_path / "whole", shuffle="full", files=5)
    calls: list[str] = []

    def failing(tables: Any, schema: Any, path: Path, options: Any) -> list[int]:
        calls.append(path.name)
        if path.name == "part-00003.parquet" and calls.count(path.name) == 1:
            raise OSError("no space left")
        return write_file(tables, schema, path, options)

    monkeypatch.setattr("gpupipe.io.jobs.part_writer.write_file", failing)
    with pytest.raises(BadFile, match="no space left"):
        data.write_parquet(tmp_path / "out", shuffle="full", files=5)
    assert not (tmp_path / "out").exists()
    manifest = data.write_parquet(tmp_path / "out", shuffle="full", files=5)
    assert manifest.num_done >= 3
    assert written(tmp_path / "out") == written(tmp_path / "whole")


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        (lambda d: d.sort("x", ascending=False), "come from all input files together"),
        (lambda d: d.group_by("x").agg(n=("x", "size")), "come from all input files together"),
        (lambda d: d.join(d, on="x"), "come from all input files together"),
        (lambda d: d.deduplicate(), "another pipeline, with other options"),
        (lambda d: d.sample(n=100), "another pipeline, with other options"),
    ],
)
def test_a_job_of_what_came_of_all_rows_is_recognised(verb: Any, told: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def write() -> Any:
        return verb(gp.read_parquet(source, partition_bytes=4000, backend="cpu")).write_parquet(out)

    first = write()
    assert set(first.inputs) == {str(path) for path in source.glob("*")}
    again = write()
    assert again.num_done == len(again.parts) == len(first.parts)
    pq.write_table(pa.table({"x": range(-500, 0)}), source / "4.parquet")
    with pytest.raises((BadConfig, BadFile), match=told):
        write()


# names ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
@pytest.mark.parametrize(
    "verb",
    [
        lambda data, name: data.sort(name, ascending=False),
        lambda data, name: data.assign(new="column_0 + 1").shuffle(seed=1),
        lambda data, name: data.deduplicate(name),
        lambda data, name: data.assign(new=f"col({name!r}) + 'x'").deduplicate(),
        lambda data, name: data.group_by(name).agg(total=("column_0", "sum")),
        lambda data, name: data.group_by("column_0").agg(last=(name, "max")),
        lambda data, name: data.join(
            data.assign(more="column_0 * 2").deduplicate(name).select([name, "more"]), on=name
        ),
        lambda data, name: data.join_asof(data.deduplicate("column_0"), on="column_0"),
        lambda data, name: gp.Pipeline([T.Lag(name, order_by="column_0")]).fit_transform(data),
        lambda data, name: gp.concat([data, data]).filter(f"col({name!r}) != 'b'").sort(["column_0", name]),
    ],
)
def test_a_column_without_a_name_is_one_like_any_other(verb: Any, kind: str, tmp_path: Path) -> None:
    """Row names, as pandas and R write them, beside the name that Polars gives such a column."""

    def run(name: str) -> pd.DataFrame:
        frame = pd.DataFrame({name: [*"badcab"], "column_0": [3, 1, 2, 6, 5, 4]})
        if kind == "csv":
            frame.to_csv(tmp_path / "rows.csv", index=False)
        frame.to_parquet(tmp_path / "rows.parquet", index=False)
        read = {"frame": lambda: gp.from_frame(frame), "csv": lambda: gp.read_csv(tmp_path / "rows.csv")}
        data = read.get(kind, lambda: gp.read_parquet(tmp_path / "rows.parquet"))()
        result: pd.DataFrame = verb(data, name).to_pandas()
        return result.set_axis(range(len(result.columns)), axis=1)

    pd.testing.assert_frame_equal(run(""), run("row"))
