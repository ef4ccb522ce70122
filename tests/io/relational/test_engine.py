"""Whole tables as plans of Polars: by files or by partitions, in memory or by buckets, the same rows."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable
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
from gpupipe.backend.kernels import splitmix64
from gpupipe.errors import BackendMissing, BadConfig, BadFile, PlanFailed, SchemaMismatch
from gpupipe.io.jobs.part_writer import write_file
from gpupipe.io.relational.engine import run
from gpupipe.io.relational.gathering import Gathered
from gpupipe.io.relational.scan import random_bits, scan
from gpupipe.schema import ROW
from tests.io.meeting import few_bytes, meetings, rows_of, several
from tests.io.tables import DATA

COLUMNS = ["month", "origin", "tailnum", "dep_delay", "flight", "time_hour"]
OF_GROUPS = {
    "rows": ("flight", "size"),
    "late": ("dep_delay", "mean"),
    "first": ("dep_delay", "first"),
    "last": ("time_hour", "last"),
    "flights": ("flight", "sum"),
}
VERBS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "sort": lambda d: d.sort(["origin", "dep_delay"], ascending=[False, True]),
    "sort by texts": lambda d: d.sort(["tailnum", "time_hour"]),
    "shuffle": lambda d: d.shuffle(3),
    "few groups": lambda d: d.group_by("origin").agg(**OF_GROUPS),
    "few groups, rows held": lambda d: d.group_by("origin").agg(
        late=("dep_delay", "median"), planes=("tailnum", "list")
    ),
    "many groups": lambda d: d.group_by(["tailnum", "time_hour"], dropna=False).agg(**OF_GROUPS),
}


VERBS["deduplicate"] = lambda d: d.deduplicate(["tailnum", "flight", "dep_delay"], keep="last")
VERBS["sample"] = lambda d: d.sample(n=300, seed=2)
for how in ("left", "inner", "right", "outer"):
    VERBS[f"{how} join"] = lambda d, how=how: (  # type: ignore[misc]
        d.filter("origin != 'JFK'").join(d.filter("flight % 2 == 0"), on=["tailnum", "flight"], how=how, many=True)
    )


def flights() -> gp.Dataset:
    data = gp.read_parquet(DATA / "flights.parquet", columns=COLUMNS, partition_bytes=1 << 20, backend="cpu")
    return data.filter("month == 1 and flight + 0 < 300")  # which is evaluated by partitions


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_rows_beyond_the_memory_are_cut_into_buckets(
    verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = VERBS[verb](flights()).compute()
    few_bytes(monkeypatch, 200_000)
    with caplog.at_level("INFO", "gpupipe"):
        found = VERBS[verb](flights()).compute()
    assert ("cut into" in caplog.text) == (verb not in ("few groups", "sample"))
    pd.testing.assert_frame_equal(found, whole)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["left", "inner", "right", "outer"])
def test_a_join_of_many_rows_keeps_their_order(how: Any) -> None:
    """More rows than an engine's thread takes at a time, keys that repeat on both sides."""
    random = np.random.default_rng(1)
    left = pd.DataFrame({"k": random.integers(0, 60_000, 150_000), "x": range(150_000)})
    right = pd.DataFrame({"k": random.integers(30_000, 90_000, 80_000), "y": range(80_000)})
    found = gp.from_frame(left, num_partitions=3).join(gp.from_frame(right), on="k", how=how, many=True).compute()
    wanted = left.merge(right, on="k", how="outer", sort=False).sort_values(["x", "y"], na_position="last")
    unmatched = {"left": ["x"], "inner": ["x", "y"], "right": ["y"], "outer": []}[how]
    wanted = wanted.dropna(subset=unmatched).reset_index(drop=True)
    pd.testing.assert_frame_equal(found.astype("float64"), wanted.astype("float64"))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 7])
def test_groups_of_many_rows_have_their_first_and_last(parts: int) -> None:
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"k": random.integers(0, 500, 400_000), "x": random.standard_normal(400_000)})
    frame.loc[random.random(400_000) < 0.3, "x"] = None
    asked = {name: ("x", name) for name in ("first", "last", "median", "nunique", "std")}
    found = gp.from_frame(frame, num_partitions=parts).group_by("k").agg(**asked, values=("x", "list")).compute()
    wanted = frame.groupby("k").agg(**asked).reset_index()
    pd.testing.assert_frame_equal(found.drop(columns="values"), wanted)
    values = pd.Series([value for values in found["values"] for value in values], dtype="float64")
    np.testing.assert_array_equal(values, np.concatenate(frame.groupby("k")["x"].agg(list).tolist()))


@pytest.mark.slow
@several
@given(table=meetings(60), data=st.data())
def test_buckets_of_any_keys_are_in_order(table: pa.Table, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(table.column_names[:-1]), min_size=1, max_size=3, unique=True))
    upward = [data.draw(st.booleans()) for _ in names]
    frame = gp.from_frame(table, num_partitions=2)
    whole = rows_of(frame.sort(names, ascending=upward))
    with pytest.MonkeyPatch.context() as patch:
        few_bytes(patch, 500)
        assert rows_of(frame.sort(names, ascending=upward)) == whole


def test_files_are_scanned_as_partitions_are(tmp_path: Path) -> None:
    """A row has the same identity and the same values."""
    for number in range(3):
        table = pa.table(
            {
                "n": pa.array(range(10 * number, 10 * number + 10), pa.int16()),
                "x": pa.array([float("nan"), None, *range(8)], pa.float32()),
                "day": pa.array([None, *range(9)], pa.date32()),
                "at": pa.array([None, *range(9)], pa.timestamp("ms")),
                "text": ["é", None] * 5,
                "ok": [True, None] * 5,
            }
        )
        pq.write_table(table, tmp_path / f"[{number}].parquet", row_group_size=3)
    data = gp.read_parquet(tmp_path, backend="cpu")
    by_files = scan(data, data.columns, "test")
    by_parts = scan(data.filter("n + 0 >= 0"), data.columns, "test")
    assert "PARQUET" in by_files.frame.explain().upper()
    assert "PARQUET" not in by_parts.frame.explain().upper()
    found, wanted = by_files.frame.collect(), by_parts.frame.collect()
    assert found.equals(wanted)
    assert found.schema == wanted.schema
    assert found[ROW][10] == 1 << 40
    assert data.reads.passes == 2


def test_a_file_that_is_not_what_it_was_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(1000)}), path)
    data = gp.read_parquet(path, backend="cpu")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(100) + whole[200:])
    for _ in range(2):
        with pytest.raises(BadFile) as caught:
            data.sort("x").compute()
        assert caught.value.where == str(path)
    path.unlink()
    with pytest.raises(BadFile) as caught:
        data.sort("x").compute()
    assert caught.value.where == str(path)


def test_a_plan_that_fails_says_so() -> None:
    rows = scan(flights(), ["origin"], "sort")
    with pytest.raises(PlanFailed) as caught:
        run(lambda f: f.with_columns(pl.col("origin").cast(pl.Int8)), [rows], flights().schema, "cpu", "sort", len)
    assert caught.value.where == "sort"


def test_a_panic_of_the_engine_is_an_error_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("OS can't spawn worker thread")

    monkeypatch.setattr(pl.LazyFrame, "collect_batches", panic)
    monkeypatch.setattr(pl.LazyFrame, "collect", panic)
    with pytest.raises(PlanFailed, match="PanicException: OS can't spawn worker thread"):
        flights().sort("origin").compute()


def test_a_plan_for_a_gpu_never_moves_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = scan(flights(), ["origin"], "sort")
    monkeypatch.setattr("gpupipe.io.relational.engine.find_spec", lambda name: None)
    with pytest.raises(BackendMissing) as caught:
        run(lambda frame: frame, [rows], rows.fields, "gpu", "sort", None)
    assert "cudf-polars" in caught.value.problem


@pytest.mark.parametrize("num_bytes", [1 << 40, 10_000])
def test_a_lazy_frame_is_run_and_given_back(num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_bytes(monkeypatch, num_bytes)
    frame = pl.DataFrame(
        {
            "n": range(5000),
            "x": [None, 0.5] * 2500,
            "kind": pl.Series(["a", "b"] * 2500, dtype=pl.Categorical),
            "day": pl.Series([None, 1] * 2500).cast(pl.Date),
            "at": pl.Series([None, 1] * 2500).cast(pl.Datetime("us", "Europe/Oslo")),
            "price": pl.Series(["1.5", None] * 2500).cast(pl.Decimal(10, 2)),
            "place": [{"city": "Oslo"}, None] * 2500,
        }
    )
    plain = frame.with_columns(pl.col("kind").cast(pl.String))
    for each in (frame, frame.lazy()):
        found = gp.from_polars(each, backend="cpu")
        assert found.to_polars().collect().equals(plain)
    assert found.to_polars().collect().schema == plain.schema
    assert len(gp.from_polars(frame.lazy().head(0))) == 0
    plain.select("n", "x", "day").write_parquet(tmp_path / "a.parquet")
    lazy = gp.read_parquet(tmp_path / "a.parquet", backend="cpu").to_polars()
    assert "PARQUET" in lazy.explain().upper()
    assert lazy.collect().equals(plain.select("n", "x", "day"))


def test_what_is_no_frame_of_polars_is_said() -> None:
    with pytest.raises(BadConfig) as caught:
        gp.from_polars([1])  # type: ignore[arg-type]
    assert caught.value.got == "list"
    with pytest.raises(PlanFailed) as failed:
        gp.from_polars(pl.LazyFrame({"x": ["a"]}).with_columns(pl.col("x").cast(pl.Int8)))
    assert failed.value.where == "from_polars"
    wide = gp.from_frame(pa.table({"x": pa.array([1], pa.decimal256(50, 4))}))
    with pytest.raises(SchemaMismatch) as refused:
        wide.to_polars()
    assert refused.value.where == "to_polars"


@pytest.mark.slow
def test_an_interrupted_plan_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    few_bytes(monkeypatch, 20_000_000)
    data = gp.from_frame(pd.DataFrame({"x": np.random.default_rng(0).permutation(3_000_000)}), num_partitions=4)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _ = [len(data.sort("x")) for _ in range(50)]
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    gc.collect()
    assert list(folder.iterdir()) == []


@given(seed=st.integers(-(2**64), 2**64), counters=st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_bits_are_drawn_as_elsewhere(seed: int, counters: list[int]) -> None:
    frame = pl.DataFrame({"n": pl.Series(counters, dtype=pl.UInt64)})
    found: Any = frame.select(random_bits(seed, pl.col("n")))["n"].to_numpy()
    np.testing.assert_array_equal(found, splitmix64(seed, np.array(counters, np.uint64)))


# written as they come ------------------------------------------------------------------------------------------------
WRITTEN: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "sort": lambda d: d.sort("x", ascending=False),
    "shuffle": lambda d: d.shuffle(3),
    "group": lambda d: d.group_by("k").agg(n=("x", "size"), last=("s", "last")),
    "none": lambda d: d.filter("x < 0").sort("x"),
    "left": lambda d: d.join(d.filter("x % 2 == 0"), on="x"),
    "many": lambda d: d.join(d.filter("x % 2 == 0"), on="k", how="outer", many=True),
    "two plans": lambda d: d.sort("x", ascending=False).group_by("k").agg(first=("x", "first")),
}


def few_files(folder: Path) -> gp.Dataset:
    """Two files of two partitions each, with missing values."""
    folder.mkdir()
    for number in range(2):
        xs = range(200 * number, 200 * number + 200)
        table = pa.table({"x": xs, "k": [x % 7 or None for x in xs], "s": [f"s{x % 11}" for x in xs]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=100)
    return gp.read_parquet(folder, partition_bytes=2000, backend="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("verb", WRITTEN)
def test_rows_that_are_only_written_are_not_gathered(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = few_files(tmp_path / "in")
    assert data.num_partitions == 4
    wanted = WRITTEN[verb](data)
    wanted.compute().to_parquet(tmp_path / "wanted.parquet")
    rows = pq.read_table(tmp_path / "wanted.parquet").to_pylist()
    gathered, made = Gathered.source, list[str]()

    def counted(self: Gathered, rows: int, title: str, *args: Any) -> Any:
        made.append(title)
        return gathered(self, rows, title, *args)

    monkeypatch.setattr(Gathered, "source", counted)
    whole, several_parts, again = (WRITTEN[verb](data) for _ in range(3))
    assert whole.write_parquet(tmp_path / "one.parquet").rows_out == len(rows)
    manifest = several_parts.write_parquet(tmp_path / "parts", rows_per_group=60)
    assert made == (["sort", "sort"] if verb == "two plans" else [])
    assert again.write_parquet(tmp_path / "parts", rows_per_group=60).num_done == len(manifest.parts)
    written = pq.read_table(tmp_path / "one.parquet")
    assert written.to_pylist() == rows
    by_parts = [pq.read_table(tmp_path / "parts" / name) for name in manifest.files]
    assert pa.concat_tables(by_parts).to_pylist() == rows
    assert {part.num_rows for part in by_parts[:-1]} <= {100}
    assert manifest.rows_in == manifest.rows_out == len(rows)
    # What has been gathered is not made once more.
    monkeypatch.setattr("gpupipe.io.relational.engine._batches", None)
    assert wanted.write_parquet(tmp_path / "kept.parquet").rows_out == len(rows)
    assert pq.read_table(tmp_path / "kept.parquet").equals(written)


def test_parts_that_were_written_before_a_crash_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = few_files(tmp_path / "in").sort("x", ascending=False)
    calls = list[str]()

    def failing(tables: Any, schema: Any, path: Path, options: Any) -> None:
        calls.append(path.name)
        if len(calls) == 3:
            raise OSError("no space left")
        write_file(tables, schema, path, options)

    monkeypatch.setattr("gpupipe.io.jobs.part_writer.write_file", failing)
    with pytest.raises(BadFile):
        data.write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert data.write_parquet(tmp_path / "out").num_done == 2
    assert calls == [f"part-0000{number}.parquet" for number in (0, 1, 2, 2, 3)]
    assert pq.read_table(tmp_path / "out")["x"].to_pylist() == list(range(399, -1, -1))


def test_a_file_that_changes_before_a_plan_runs_is_named(tmp_path: Path) -> None:
    data = few_files(tmp_path / "in").sort("x")
    (tmp_path / "in" / "1.parquet").write_bytes((tmp_path / "in" / "0.parquet").read_bytes() + b" ")
    with pytest.raises(BadFile) as caught:
        data.write_parquet(tmp_path / "out.parquet")
    assert caught.value.where == str(tmp_path / "in" / "1.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_dataset_of_a_plan_travels(tmp_path: Path) -> None:
    found = few_files(tmp_path / "in").sort("x", ascending=False)
    copy = pickle.loads(pickle.dumps(found))
    pd.testing.assert_frame_equal(copy.compute(), found.compute())


@pytest.mark.slow
def test_what_rows_were_made_of_goes_when_they_are_there() -> None:
    frame = pd.DataFrame({"x": [2, 3, 1]})
    data = gp.from_frame(frame)
    found, source = data.sort("x"), weakref.ref(data.source)
    del data
    gc.collect()
    assert source() is not None
    assert len(found) == 3
    gc.collect()
    assert source() is None
    assert found.compute()["x"].tolist() == [1, 2, 3]


def test_a_frame_in_memory_is_scanned_without_a_pass_over_partitions() -> None:
    frame = pd.DataFrame(
        {"key": ["b", None, "a", "b"], "x": [1.5, np.nan, -0.0, 2.0], "at": pd.to_datetime([0, 1, None, 3])}
    )
    data = gp.from_frame(frame, num_partitions=2)
    plain, coded = (scan(data, ["key", "x", "at"], "test", coded=coded) for coded in ((), ("key",)))
    assert plain.frame.select("key", "x").collect().rows() == [("b", 1.5), (None, None), ("a", -0.0), ("b", 2.0)]
    assert plain.frame.select("at").collect().to_series().null_count() == 1
    codes = coded.frame.collect()
    assert codes["key"].dtype.is_integer()
    assert coded.dictionaries["key"].gather(codes["key"]).to_list() == ["b", None, "a", "b"]
    part = scan(data.of_partitions(data.partitions[1:]), ["x"], "test").frame.collect()
    assert part[ROW].to_list() == [2, 3]
    assert part["x"].to_list() == [-0.0, 2.0]


def test_groups_of_texts_by_codes_are_those_of_a_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"key": ["b", None, "a", "b", "a"], "x": [1.5, np.nan, -0.0, 2.0, 0.0]})
    gp.from_frame(frame).write_parquet(tmp_path / "rows")
    for dropna in (True, False):
        made = [
            table.group_by("key", dropna=dropna).agg(low=("x", "min"), all=("x", "size"), last=("x", "last")).compute()
            for table in (gp.from_frame(frame, num_partitions=2), gp.read_parquet(tmp_path / "rows"))
        ]
        pd.testing.assert_frame_equal(*made)
        assert made[0]["key"].dropna().tolist() == ["a", "b"]
        assert np.signbit(made[0]["low"].dropna()).tolist() == [False, False]
