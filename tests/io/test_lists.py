"""Columns of lists in files, and under everything that moves rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import gpupipe as gp
from gpupipe import errors

N = 60
RNG = np.random.default_rng(4)
TABLE = pa.table(
    {
        "id": pa.array(range(N), pa.int64()),
        "user": pa.array(RNG.choice(["ann", "bob", "eve"], N).tolist()),
        "words": pa.array([None if n % 7 == 0 else ["a", "b", None, "c"][: n % 5] for n in range(N)]),
        "counts": pa.array([list(range(n % 4)) if n % 3 else None for n in range(N)], pa.list_(pa.int32())),
        "prices": pa.array([[n / 2, None][: n % 3] for n in range(N)], pa.list_(pa.float64())),
        "at": pa.array([[n * 10**6] * (n % 2) for n in range(N)], pa.list_(pa.timestamp("us"))),
    }
)
ROWS = TABLE.to_pylist()


def rows(dataset: gp.Dataset) -> list[dict[str, Any]]:
    return pa.Table.from_pandas(dataset.to_pandas(), preserve_index=False).to_pylist()


def parquet(path: Path) -> gp.Dataset:
    pq.write_table(TABLE, path / "t.parquet", row_group_size=7)
    return gp.read_parquet(path, partition_bytes=1)


def old_parquet(path: Path) -> gp.Dataset:
    pq.write_table(TABLE, path / "t.parquet", use_compliant_nested_type=False, row_group_size=50)
    return gp.read_parquet(path)


def arrow(path: Path) -> gp.Dataset:
    with pa.OSFile(str(path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as file:
        file.write_table(TABLE, max_chunksize=11)
    return gp.read_ipc(path)


def arrow_stream(path: Path) -> gp.Dataset:
    with pa.OSFile(str(path / "t.arrows"), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as file:
        file.write_table(TABLE, max_chunksize=11)
    return gp.read_ipc(path)


def orc_file(path: Path) -> gp.Dataset:
    orc.write_table(TABLE, path / "t.orc")
    return gp.read_orc(path)


def json_lines(path: Path) -> gp.Dataset:
    (path / "t.jsonl").write_text("".join(json.dumps(row, default=str) + "\n" for row in ROWS))
    return gp.read_json(path, dtypes={"counts": "list<int32>", "at": "list<timestamp>"})


def frame(path: Path) -> gp.Dataset:
    return gp.from_frame(TABLE.to_pandas(), num_partitions=3)


def stream(path: Path) -> gp.Dataset:
    return gp.from_frame(TABLE.to_reader(max_chunksize=9))


@pytest.mark.slow
@pytest.mark.parametrize(
    "opened", [parquet, old_parquet, arrow, arrow_stream, orc_file, json_lines, frame, stream], ids=lambda f: f.__name__
)
def test_every_source_gives_lists(opened: Callable[[Path], gp.Dataset], tmp_path: Path) -> None:
    dataset = opened(tmp_path)
    dtypes = {item.name: item.dtype for item in dataset.schema}
    assert dtypes["words"] == "list<string>" and dtypes["prices"] == "list<float64>"
    found = dataset.select(["id", "words", "prices", "counts", "at"])
    wanted = TABLE.select(["id", "words", "prices", "counts", "at"]).to_pylist()
    assert rows(found) == wanted
    found.write_parquet(tmp_path / "_out", rows_per_group=13)
    assert rows(gp.read_parquet(tmp_path / "_out")) == wanted


def test_a_partition_is_cut_by_what_lists_hold(tmp_path: Path) -> None:
    long = pa.table({"x": [list(range(1000))] * 100, "y": range(100)})
    pq.write_table(long, tmp_path / "t.parquet", row_group_size=10)
    assert gp.read_parquet(tmp_path, partition_bytes=200_000).num_partitions >= 5


def test_lists_of_lists_are_carried(tmp_path: Path) -> None:
    pq.write_table(pa.table({"deep": [[[1]]], "x": [1]}), tmp_path / "t.parquet")
    assert gp.read_parquet(tmp_path).schema["deep"].dtype == "list<item: list<item: int64>>"
    assert rows(gp.read_parquet(tmp_path, columns=["deep"])) == [{"deep": [[1]]}]


def test_files_differ_by_the_elements(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [["a"]]}), tmp_path / "b.parquet")
    with pytest.raises(errors.SchemaMismatch, match=r"column 'x' is list<string>(.|\n)*list<int64>"):
        gp.read_parquet(tmp_path)


def test_narrower_elements_are_cast_where_that_is_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([[2], []], pa.list_(pa.int8()))}), tmp_path / "b.parquet")
    dataset = gp.read_parquet(tmp_path, on_mismatch="cast")
    assert [row["x"] for row in rows(dataset)] == [[1], None, [2], []]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_lists_go_with_their_rows(parts: int) -> None:
    dataset = gp.from_frame(TABLE, num_partitions=parts)
    by_id = {row["id"]: row for row in ROWS}

    def check(found: gp.Dataset, ids: list[int]) -> None:
        got = rows(found)
        assert [row["id"] for row in got] == ids
        assert all(row[name] == by_id[row["id"]][name] for row in got for name in TABLE.column_names)

    check(dataset.sort("id", ascending=False), list(range(N))[::-1])
    check(dataset.filter("id % 5 == 0"), list(range(0, N, 5)))
    check(dataset.filter("len(words) >= 3"), [row["id"] for row in ROWS if len(row["words"] or "") >= 3])
    check(dataset.filter("isnull(counts)"), [row["id"] for row in ROWS if row["counts"] is None])
    shuffled = dataset.shuffle(3)
    check(shuffled, [row["id"] for row in rows(shuffled)])
    check(dataset.deduplicate("user"), [row["id"] for row in rows(dataset.deduplicate("user"))])
    joined = dataset.join(gp.from_frame(TABLE.select(["id", "words"]).slice(5, 9)), on="id")
    check(joined, list(range(N)))
    assert [row["words_right"] for row in rows(joined)] == [
        row["words"] if 5 <= row["id"] < 14 else None for row in ROWS
    ]


@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_rows_are_gathered_into_lists_as_pandas_does(parts: int) -> None:
    plain = (
        TABLE.select(["id", "user"])
        .to_pandas()
        .assign(delay=RNG.permutation(N), note=[None if n % 4 == 0 else str(n) for n in range(N)])
    )
    found = (
        gp.from_frame(plain, num_partitions=parts)
        .sort("delay")
        .group_by("user")
        .agg(ids=("id", "list"), notes=("note", "list"), last=("note", "last"), n=("id", "size"))
    )
    assert found.schema["ids"].dtype == "list<int64>" and not found.schema["ids"].nullable
    groups = plain.sort_values("delay").groupby("user")
    wanted = [
        {
            "user": user,
            "ids": own["id"].tolist(),
            "notes": [None if pd.isna(note) else note for note in own["note"]],
            "last": own["note"].dropna().iloc[-1],
            "n": len(own),
        }
        for user, own in groups
    ]
    assert rows(found) == wanted


def test_the_first_list_of_a_group() -> None:
    found = gp.from_frame(TABLE, num_partitions=4).group_by("user").agg(first=("words", "first"))
    wanted = {}
    for row in ROWS:
        if row["words"] is not None:
            wanted.setdefault(row["user"], row["words"])
    assert {row["user"]: row["first"] for row in rows(found)} == wanted


@pytest.mark.parametrize(
    "verb",
    [
        lambda d: d.sort("words"),
        lambda d: d.group_by("words"),
        lambda d: d.group_by("user").agg(x=("words", "max")),
        lambda d: d.group_by("user").agg(x=("words", "list")),
        lambda d: d.deduplicate(),
        lambda d: d.join(d, on="words"),
        lambda d: d.split(by="words", fraction=0.5),
        lambda d: d.split(stratify="words", fraction=0.5),
        lambda d: d.write_parquet("nowhere", partition_by="words"),
        lambda d: d.filter("words == 'a'"),
    ],
)
def test_what_compares_values_refuses_lists(verb: Callable[[gp.Dataset], Any]) -> None:
    with pytest.raises(errors.GpupipeError, match="words") as raised:
        verb(gp.from_frame(TABLE.select(["user", "words"])))
    assert not isinstance(raised.value, errors.PartitionFailed)
