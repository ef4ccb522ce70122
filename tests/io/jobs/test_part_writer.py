from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import files
from gpupipe import transforms as T
from gpupipe.backend import Backend, Column
from gpupipe.errors import BadConfig, BadFile, PartitionFailed
from gpupipe.io.jobs import part_writer
from gpupipe.io.planning.table import map_frames
from gpupipe.schema import Field, Schema
from tests.examples import examples
from tests.io.tables import DATA, plain, tables, values
from tests.raising import raises

several = examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@several
@given(table=tables(), group=st.integers(1, 9), shuffle=st.sampled_from([False, "partition"]))
def test_rows_that_no_function_has_made_are_written_as_frames_are(
    tmp_path: Path, table: pa.Table, group: int, shuffle: Any
) -> None:
    """They go from file to file as Arrow columns."""
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=group)
    data = gp.read_parquet(tmp_path / "in.parquet", partition_bytes=500, backend="cpu")
    drawn = data.split(fraction=0.6, seed=1)[0]
    for each in (data, drawn, data.select(data.columns[::-1])):
        framed = map_frames(each, lambda frame, _: frame, each.schema, each.columns, keeps_rows=True)
        for name, written in (("one", each), ("other", framed)):
            written.write_parquet(tmp_path / f"{name}.parquet", shuffle=shuffle, seed=3, overwrite=True)
        one, other = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("one", "other"))
        assert one.schema.equals(other.schema, check_metadata=True)
        assert plain(one) == plain(other)


@several
@given(table=tables(), parts=st.sampled_from([1, 2, 7]), folder=st.booleans(), group=st.integers(1, 9))
def test_what_is_written_is_read_again(tmp_path: Path, table: pa.Table, parts: int, folder: bool, group: int) -> None:
    path = tmp_path / ("out" if folder else "out.parquet")
    gp.from_frame(table, num_partitions=parts).write_parquet(path, rows_per_group=group, overwrite=True)
    again = gp.read_parquet(path)
    assert plain(again.compute()) == plain(table)
    assert plain(pq.read_table(path)) == plain(table)
    if folder:
        parts_written = [f"part-{n:05d}.parquet" for n in range(parts)]
        assert sorted(p.name for p in path.iterdir()) == ["_manifest.json", *parts_written]
    else:
        metadata = pq.read_metadata(path)
        sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        assert all(size <= group for size in sizes)


def test_the_flights_are_written_as_others_expect_them(tmp_path: Path) -> None:
    path = tmp_path / "flights.parquet"
    gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20).write_parquet(path, compression="zstd")
    expected = pl.read_parquet(DATA / "flights.parquet")
    assert pl.read_parquet(path).cast(expected.schema).equals(expected)
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 1
    chunks = {metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i) for i in range(19)}
    assert chunks["tailnum"].has_dictionary_page
    assert not chunks["dep_delay"].has_dictionary_page
    assert chunks["flight"].physical_type == "INT32"
    assert chunks["dep_delay"].statistics.null_count == expected["dep_delay"].null_count()
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}


@pytest.mark.parametrize(
    ("distinct", "cardinality", "is_coded", "num_counted"),
    [
        (100, 102, True, 0),
        (100, None, True, 100_000),
        (3000, 50_000, True, 100_000),
        (9000, 9002, False, 20_000),
        (80_000, None, False, 20_000),
    ],
)
def test_values_are_counted_as_far_as_they_decide_on_a_dictionary(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    distinct: int,
    cardinality: int | None,
    is_coded: bool,
    num_counted: int,
) -> None:
    """Of 80,000 int32 9,000 different ones take 14 bits a row, and their dictionary 3.6: more than half of 32."""
    counted, count = [], part_writer.pc.count_distinct

    def note(part: pa.Array) -> pa.Scalar:
        counted.append(len(part))
        return count(part)

    monkeypatch.setattr(part_writer.pc, "count_distinct", note)
    schema = Schema([Field("x", "int32", cardinality=cardinality)])
    table = pa.table({"x": pa.array(np.arange(80_000, dtype=np.int32) % distinct)})
    part_writer.write_file([table], schema, tmp_path / "x.parquet", part_writer.ParquetOptions())
    assert pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(0).has_dictionary_page == is_coded
    assert sum(counted) == num_counted


def test_a_mapped_dataset_is_written_in_the_types_of_its_schema(tmp_path: Path) -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": [1, 2, 3, 4]}), num_partitions=2, backend="cpu")

    def halves(frame: pd.DataFrame, backend: object) -> pd.DataFrame:
        # Without a missing value in the first partition, with one in the second.
        n = frame["n"].to_numpy()
        return pd.DataFrame({"n": pd.array(np.where(n == 3, None, n), "Int32") if 3 in n else n.astype("int32")})

    map_frames(dataset, halves, Schema([Field("n", "int32")]), ["n"]).write_parquet(tmp_path / "n.parquet")
    table = pq.read_table(tmp_path / "n.parquet")
    assert (table.schema.field("n").type, table.column("n").to_pylist()) == (pa.int32(), [1, 2, None, 4])


def test_what_is_there_stays_unless_it_may_go(tmp_path: Path) -> None:
    one, two = (gp.from_frame(pd.DataFrame({"n": [n]})) for n in (1, 2))
    for name in ("a.parquet", "folder"):
        one.write_parquet(tmp_path / name)
        with pytest.raises(BadFile, match=rf"{name}: something is there already.\n.*\nTry: overwrite=True"):
            two.write_parquet(tmp_path / name)
        assert values(gp.read_parquet(tmp_path / name), "n") == [1]
        two.write_parquet(tmp_path / name, overwrite=True)
        assert values(gp.read_parquet(tmp_path / name), "n") == [2]
    with raises(BadConfig, where="write_parquet(compression=)", got="zip"):
        one.write_parquet(tmp_path / "b.parquet", compression="zip")
    with raises(BadConfig, where="write_parquet(rows_per_group=)", got=0):
        one.write_parquet(tmp_path / "b.parquet", rows_per_group=0)
    with pytest.raises(BadFile, match="its folder does not exist"):
        one.write_parquet(tmp_path / "nowhere" / "a.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "folder"]


def test_what_others_put_there_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (gp.from_frame(pd.DataFrame({"n": [n], "k": ["a"]})) for n in (1, 2))
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "sub" / "mine.txt").write_text("precious")
    (tmp_path / "note.txt").write_text("precious")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for place in ("../work", "../note.txt", ".", ".."):
        for overwrite in (False, True):
            with pytest.raises(BadFile) as refused:
                two.write_parquet(place, overwrite=overwrite)
            assert (refused.value.problem, refused.value.remedy) == (
                "something is there that write_parquet did not write",
                "another path",
            )
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(BadFile) as refused:
        two.write_parquet(tmp_path / "folder.parquet", overwrite=True)
    assert refused.value.problem == "a folder has this name"
    for empty in ("", b""):
        with pytest.raises(BadConfig) as nowhere:
            two.write_parquet(empty, overwrite=True)  # type: ignore[arg-type]
        assert (nowhere.value.where, nowhere.value.got) == ("write_parquet(path=)", empty)
    two.write_parquet(tmp_path / "empty")
    assert values(gp.read_parquet(tmp_path / "empty"), "n") == [2]
    one.write_parquet(tmp_path / "out", partition_by="k", files=1)
    for kept in ("mine.txt", "k=a/mine.txt", "sub/mine.txt"):
        (tmp_path / "out" / kept).parent.mkdir(exist_ok=True)
        (tmp_path / "out" / kept).write_text("precious")
    (tmp_path / "out" / "link").symlink_to("nowhere")
    two.write_parquet(tmp_path / "out", overwrite=True)
    inside = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    files = {"mine.txt", "k=a/mine.txt", "sub/mine.txt", "link", "part-00000.parquet", "_manifest.json"}
    assert inside == files | {"k=a", "sub"}
    assert values(gp.read_parquet(tmp_path / "out"), "n") == [2]
    assert (tmp_path / "work" / "sub" / "mine.txt").read_text() == (tmp_path / "note.txt").read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, *args: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(folder))

    monkeypatch.setattr(Path, "mkdir", refuse)  # as /proc does
    with pytest.raises(BadFile) as refused:
        gp.from_frame(pd.DataFrame({"n": [1]})).write_parquet(tmp_path / "out")
    assert refused.value.where == str(tmp_path / "out")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("read", "out"),
    [
        ("in", "in/clean"),
        ("in", "in/clean.parquet"),
        ("link", "in/clean"),
        ("in", "link/deep/clean"),
        ("in/*.parquet", "in/clean.parquet"),
        ("link/*.parquet", "in/clean.parquet"),
        ("in/**/*.parquet", "in/clean"),
        ("in/**", "in/_clean"),
        ("*", "clean"),
        ("i*", "in/clean"),
    ],
)
def test_a_job_does_not_write_where_its_input_is_read(tmp_path: Path, read: str, out: str, overwrite: bool) -> None:
    folder = tmp_path / "data"
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "in")
    pd.DataFrame({"x": [1, 2]}).to_parquet(folder / "in" / "day.parquet")
    with raises(BadFile, where=out, match="the next call would read what is written there") as refusal:
        gp.read_parquet(folder / read).write_parquet(folder / out, overwrite=overwrite)
    assert not (folder / out).exists()
    beside = refusal.value.remedy.strip("'")
    gp.read_parquet(folder / "in").write_parquet(beside, overwrite=overwrite)
    assert values(gp.read_parquet(beside), "x") == [1, 2]


@pytest.mark.parametrize(
    ("read", "out"),
    [
        ("in", "in/_clean"),
        ("in", "in/.clean.parquet"),
        ("in", "in-clean"),
        ("in", "clean.parquet"),
        ("in/*.parquet", "in/clean"),
        ("in/*.parquet", "in/clean.parq/x.parquet"),
        ("in/day.parquet", "in/clean.parquet"),
        ("in/day.parquet", "in/clean"),
        ("written", "written/clean"),
    ],
)
def test_a_job_may_write_where_the_next_call_does_not_read(tmp_path: Path, read: str, out: str) -> None:
    (tmp_path / "in" / "clean.parq").mkdir(parents=True)
    pd.DataFrame({"x": [1, 2]}).to_parquet(tmp_path / "in" / "day.parquet")
    gp.read_parquet(tmp_path / "in").write_parquet(tmp_path / "written")
    for _ in range(2):
        gp.read_parquet(tmp_path / read).write_parquet(tmp_path / out, overwrite=True)
        assert values(gp.read_parquet(tmp_path / out), "x") == values(gp.read_parquet(tmp_path / read), "x") == [1, 2]


def test_a_job_may_write_below_a_folder_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("x\n1\n2\n")
    for _ in range(2):
        gp.read_csv(tmp_path).write_parquet(tmp_path / "clean", overwrite=True)
        assert values(gp.read_parquet(tmp_path / "clean"), "x") == [1, 2]


@pytest.mark.parametrize("verb", ["join", "join_asof", "concat", "sort", "group_by", "T.Join", "transform"])
def test_no_table_that_a_job_reads_has_its_result_among_its_files(tmp_path: Path, verb: str) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        pd.DataFrame({"k": [1, 2], name: [3.0, 4.0]}).to_parquet(tmp_path / name / "day.parquet")
    left, right = (gp.read_parquet(tmp_path / name) for name in ("left", "right"))
    whole = gp.from_frame(left.compute())
    table = {
        "join": lambda: whole.join(right, on="k"),
        "join_asof": lambda: whole.join_asof(right, on="k"),
        "concat": lambda: gp.concat([gp.from_frame(right.compute()), right]),
        "sort": lambda: right.sort("k"),
        "group_by": lambda: right.group_by("k").agg(n=("right", "sum")),
        "T.Join": lambda: gp.Pipeline([T.Join(right, on="k")]).fit(left).transform(left),
        "transform": lambda: gp.Pipeline([T.Derive(z="k + 1")]).fit(right).transform(right),
    }[verb]()
    with raises(BadFile, where="right/out", remedy=repr(f"{tmp_path}/out")):
        table.write_parquet(tmp_path / "right" / "out", overwrite=True)
    assert [file.name for file in (tmp_path / "right").iterdir()] == ["day.parquet"]


def test_a_file_may_be_replaced_by_what_is_read_from_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    gp.from_frame(pd.DataFrame({"n": range(10)})).write_parquet(path)
    gp.read_parquet(path).filter("n > 6").write_parquet(path, overwrite=True)
    assert values(gp.read_parquet(path), "n") == [7, 8, 9]


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_an_error_on_the_way_leaves_the_old_result(
    tmp_path: Path, name: str, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:  # a system that cannot swap two names
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    path = tmp_path / name
    old = gp.from_frame(pd.DataFrame({"n": [1, 2, 3]}), num_partitions=3)
    old.write_parquet(path)

    def fail(frame: pd.DataFrame, backend: object) -> pd.DataFrame:
        if 2 in frame["n"].to_numpy():
            raise RuntimeError("no")
        return frame

    with pytest.raises(RuntimeError, match="no"):
        map_frames(old, fail, old.schema, ["n"]).write_parquet(path, overwrite=True)
    assert values(gp.read_parquet(path), "n") == [1, 2, 3]
    old.filter("n > 1").write_parquet(path, overwrite=True)
    assert values(gp.read_parquet(path), "n") == [2, 3]
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_nothing_is_taken_away_before_the_new_is_there(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": [1, 2]}))
    dataset.write_parquet(tmp_path / name)
    seen = []

    def swap(draft: Path, path: Path) -> None:
        seen.extend(values(gp.read_parquet(where), "n") for where in (draft, path))
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_swap", swap)
    with pytest.raises(KeyboardInterrupt):
        dataset.filter("n > 1").write_parquet(tmp_path / name, overwrite=True)
    assert seen == [[2], [1, 2]]
    assert values(gp.read_parquet(tmp_path / name), "n") == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_what_is_written_does_not_depend_on_the_threads(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = gp.read_parquet(DATA / "flights.parquet", partition_bytes=2 << 20).filter("distance > 1000")
    assert dataset.num_partitions > 4
    written = []
    for threads in (1, 2, 4):
        monkeypatch.setattr("gpupipe.cluster.executor.default_threads", lambda threads=threads: threads)
        path = tmp_path / str(threads) / name
        path.parent.mkdir()
        dataset.write_parquet(path, rows_per_group=20_000)
        files = [path] if path.is_file() else sorted(path.iterdir())
        written.append([(file.name, file.read_bytes()) for file in files])
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize("fault", ["made", "written"])
@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_a_failure_names_its_partition_and_leaves_nothing_running(
    tmp_path: Path, name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.cluster.executor.default_threads", lambda: 2)
    dataset = gp.from_frame(pd.DataFrame({"n": range(20)}), num_partitions=20)
    made = []

    def mapped(frame: pd.DataFrame, backend: Backend) -> pd.DataFrame:
        number = int(frame["n"].iloc[0])
        made.append(number)
        if number == 5 and fault == "made":
            raise RuntimeError("no")
        column = Column("float64", backend.xp.asarray([0.5 if number == 5 else 1.0]))
        return backend.frame({"n": column}, 1)

    with pytest.raises((PartitionFailed, ValueError)) as caught:  # Arrow writes no 0.5 to a column of integers
        map_frames(dataset, mapped, dataset.schema, ["n"]).write_parquet(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert not any(thread.name.startswith("gpupipe") for thread in threading.enumerate())
    assert 5 in made and len(made) < 10
    if fault == "made" or name == "out":
        assert str(caught.value).startswith("rows 5 to 6 of a frame: partition 5 failed")


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    data, path = gp.from_frame(pd.DataFrame({"n": [1]}), backend="cpu"), tmp_path / "out"
    (tmp_path / "other").mkdir()

    def intrude(frame: pd.DataFrame, backend: object) -> pd.DataFrame:
        with pytest.raises(BadFile) as refused:
            data.write_parquet(path)
        assert (refused.value.where, refused.value.problem) == (str(path), "another process is writing it")
        data.write_parquet(tmp_path / "other")
        return frame

    map_frames(data, intrude, data.schema, ["n"]).write_parquet(path)
    assert sorted(inside.name for inside in tmp_path.iterdir()) == ["other", "out"]
    assert values(gp.read_parquet(path), "n") == values(gp.read_parquet(tmp_path / "other"), "n") == [1]


@pytest.mark.parametrize("seen", [9, 10, 11])
def test_tables_are_cut_into_row_groups(tmp_path: Path, seen: int) -> None:
    data = gp.from_frame(pd.DataFrame({"n": range(seen)}), num_partitions=4, backend="cpu")
    manifest = data.write_parquet(tmp_path / "a.parquet", rows_per_group=5)
    assert manifest.parts[0].files == {"a.parquet": [5] * (seen // 5) + [seen % 5] * (seen % 5 > 0)}


WRITER = """
import sys, time
import pandas as pd
import gpupipe as gp
from gpupipe.io.jobs import part_writer
from gpupipe.io.planning.table import map_frames

def slow(frame, backend):
    print("working", flush=True)
    time.sleep(600)  # it is killed
    return frame

dataset = gp.from_frame(pd.DataFrame({"n": [10, 20, 30]}), num_partitions=3)
first, rest = dataset.split(by="n", at=20)
mapped = map_frames(dataset, lambda f, b: slow(f, b) if 20 in f["n"].to_numpy() else f, dataset.schema, ["n"])
mapped.write_parquet(sys.argv[1], rows_per_group=1, overwrite=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_a_writer_that_is_killed_leaves_the_old_result(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    gp.from_frame(pd.DataFrame({"n": [1, 2]})).write_parquet(path)
    repository = Path(__file__).parents[3]
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(
        command, cwd=repository, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(repository)}
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"working\n"
            # The first partition is on the disk under another name.
            deadline = time.monotonic() + 120
            while len(list(tmp_path.iterdir())) == 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(list(tmp_path.iterdir())) == 2
        finally:
            writer.kill()
    assert writer.returncode == -signal.SIGKILL
    assert values(gp.read_parquet(path), "n") == [1, 2]
    whole = str(tmp_path / "*.parquet") if name.endswith("parquet") else path
    assert values(gp.read_parquet(whole), "n") == [1, 2]
    gp.from_frame(pd.DataFrame({"n": [3]})).write_parquet(path, overwrite=True)
    assert values(gp.read_parquet(path), "n") == [3]


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("value", [7, "a", pd.Timestamp("2024-05-01 10:00:00")])
@pytest.mark.slow
def test_the_first_missing_value_in_a_new_file_makes_no_other_job(tmp_path: Path, form: str, value: Any) -> None:
    def add(day: int, column: list[Any]) -> None:
        frame = pd.DataFrame({"id": range(3 * day, 3 * day + 3), "x": pd.array(column)})
        path = tmp_path / "in" / f"{day}.{form}"
        if form == "parquet":
            frame.astype({"x": "datetime64[us]"} if isinstance(value, pd.Timestamp) else {}).to_parquet(path)
        elif form == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_json(path, orient="records", lines=True, date_format="iso")

    (tmp_path / "in").mkdir()
    read = {"csv": gp.read_csv, "parquet": gp.read_parquet, "jsonl": gp.read_json}[form]
    jobs = {
        "plain": lambda data: data,
        "verbs": lambda data: data.filter("id >= 0").assign(y="coalesce(x == x, False)").select(["x", "y"]),
        "steps": lambda data: gp.Pipeline([T.Derive(has="notnull(x)")]).fit(data).transform(data),
    }
    for day, column in enumerate([[value] * 3, [value, None, value], [value] * 3]):
        add(day, column)
        for name, job in jobs.items():
            manifest = job(read(tmp_path / "in")).write_parquet(tmp_path / name)
            assert (manifest.rows_out, manifest.num_done) == (3 * day + 3, day)
            assert gp.read_parquet(tmp_path / name).compute()["x"].isna().sum() == min(day, 1)


def test_writing_again_is_offered_with_the_files_whose_rows_it_would_lose(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for day in range(3):
        pd.DataFrame({"x": [day]}).to_parquet(tmp_path / "in" / f"{day}.parquet")
        gp.read_parquet(tmp_path / "in").write_parquet(tmp_path / "out")
    other = gp.read_parquet(tmp_path / "in").assign(y="x + 1")
    where = str(tmp_path / "out")
    with raises(BadFile, where=where, remedy="another path, or overwrite=True, which writes everything again"):
        other.write_parquet(tmp_path / "out")
    (tmp_path / "in" / "0.parquet").unlink()
    (tmp_path / "in" / "1.parquet").unlink()
    lost = f"which leaves out the rows of files that are not read any more: {tmp_path}/in/0.parquet and 1 more"
    with raises(BadFile, where=where, remedy=f"another path, or overwrite=True, {lost}"):
        gp.read_parquet(tmp_path / "in").assign(y="x + 1").write_parquet(tmp_path / "out")
    assert gp.read_parquet(tmp_path / "in").write_parquet(tmp_path / "out").rows_out == 3
