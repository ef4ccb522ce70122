"""Whole tables as plans of Polars: by files or by partitions, in memory or by buckets, the same rows."""

from __future__ import annotations

import gc
import os
import signal
import threading
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
from gpupipe.backend.hashing import splitmix64
from gpupipe.errors import BadFile, PlanFailed
from gpupipe.io.exchange import ROW
from gpupipe.io.relational.cuts import random_bits
from gpupipe.io.relational.engine import engine_of, run
from gpupipe.io.relational.scan import scan
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


def flights() -> gp.Dataset:
    data = gp.read_parquet(DATA / "flights.parquet", columns=COLUMNS, partition_bytes=1 << 20, backend="cpu")
    return data.filter("month == 1 and flight < 300")


@pytest.mark.parametrize("verb", VERBS)
def test_rows_beyond_the_memory_are_cut_into_buckets(
    verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = VERBS[verb](flights()).compute()
    few_bytes(monkeypatch, 200_000)
    with caplog.at_level("INFO", "gpupipe"):
        found = VERBS[verb](flights())
    assert ("cut into" in caplog.text) == (verb != "few groups")
    pd.testing.assert_frame_equal(found.compute(), whole)


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
    by_parts = scan(data.filter("n >= 0"), data.columns, "test")
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
            data.sort("x")
        assert caught.value.where == str(path)
    path.unlink()
    with pytest.raises(BadFile) as caught:
        data.sort("x")
    assert caught.value.where == str(path)


def test_a_plan_that_fails_says_so() -> None:
    rows = scan(flights(), ["origin"], "sort")
    with pytest.raises(PlanFailed) as caught:
        run(lambda f: f.with_columns(pl.col("origin").cast(pl.Int8)), [rows], flights().schema, "cpu", "sort", len)
    assert caught.value.where == "sort"
    assert engine_of("cpu") == "streaming"
    assert engine_of("gpu").config["raise_on_fail"] is True


def test_an_interrupted_plan_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    few_bytes(monkeypatch, 20_000_000)
    data = gp.from_frame(pd.DataFrame({"x": np.random.default_rng(0).permutation(3_000_000)}), num_partitions=4)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _ = [data.sort("x") for _ in range(50)]
    timer.join()
    gc.collect()
    assert list(folder.iterdir()) == []


@given(seed=st.integers(-(2**64), 2**64), counters=st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_bits_are_drawn_as_elsewhere(seed: int, counters: list[int]) -> None:
    frame = pl.DataFrame({"n": pl.Series(counters, dtype=pl.UInt64)})
    found: Any = frame.select(random_bits(seed, pl.col("n")))["n"].to_numpy()
    np.testing.assert_array_equal(found, splitmix64(seed, np.array(counters, np.uint64)))
