"""Columns of lists through the GPU twin on stand-ins: the features, batches and tables that the CPU gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.columns import Backend
from gpupipe.tensors import Ragged

N = 60
TABLE = pa.table(
    {
        "user": [["ann", "bob", "eve"][n % 3] for n in range(N)],
        "words": [None if n % 7 == 0 else ["a", "b", None, "c"][: n % 5] for n in range(N)],
        "counts": pa.array([[n, -n, None][: n % 4] for n in range(N)], pa.list_(pa.int32())),
        "prices": [[n / 2] * (n % 3) for n in range(N)],
        "x": np.arange(N) / 4,
    }
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    pq.write_table(TABLE, folder / "t.parquet", row_group_size=11)
    return folder


def rows(data: gp.Dataset) -> list[dict[str, Any]]:
    frame = data.compute()
    table = pa.Table.from_pandas(frame) if data.backend == "cpu" else frame.to_arrow(preserve_index=False)
    return table.to_pylist()


def parts(lists: Ragged) -> tuple[list[float], list[int]]:
    return lists.values.tolist(), lists.offsets.tolist()


def test_features_and_batches_are_the_cpus(rehearsed_backend: Backend, path: Path) -> None:
    found: dict[str, Any] = {}
    for name in ("gpu", "cpu"):
        data = gp.read_parquet(path, partition_bytes=1, backend=name)
        pipeline = gp.Pipeline(
            [T.Filter("x > 1"), T.Derive(n="len(words)")],
            gp.Features(
                (["words"], [pre.Categorify(min_frequency=2), pre.ListSlice(-3)]),
                (["counts"], [pre.HashBucket(10), pre.ListSlice(2, pad=True)]),
                "prices",
                (["n"], pre.SimpleImputer(strategy="mean")),
                target="x",
            ),
            backend=name,
        )
        pipeline.fit(data)
        loader = pipeline.loader(data, batch_size=7, shuffle=True, device="cpu")
        batches = [[batch.numeric.tolist(), *map(parts, batch.lists.values())] for batch in loader]
        found[name] = (pipeline.schema.to_json(), rows(pipeline.transform(data)), batches)
    assert found["gpu"] == found["cpu"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda d: d.sort("x", ascending=False),
        lambda d: d.group_by("user").agg(xs=("x", "list"), first=("words", "first")),
        lambda d: d.join(d.deduplicate("user").select(["user", "counts"]), on="user"),
        lambda d: d.filter("len(counts) == 2 or isnull(words)"),
        lambda d: d.filter("sum(counts) > 2 and max(counts) < 9 or mean(prices) > 1 or contains(words, 'a')"),
    ],
)
def test_verbs_give_the_cpus_rows(rehearsed_backend: Backend, path: Path, verb: Any) -> None:
    gpu, cpu = (rows(verb(gp.read_parquet(path, partition_bytes=1, backend=name))) for name in ("gpu", "cpu"))
    assert gpu == cpu


def test_what_one_writes_the_other_reads(rehearsed_backend: Backend, path: Path, tmp_path: Path) -> None:
    for name in ("gpu", "cpu"):
        gp.read_parquet(path, backend=name).write_parquet(tmp_path / name)
    assert (
        pq.read_table(tmp_path / "gpu").to_pylist() == pq.read_table(tmp_path / "cpu").to_pylist() == TABLE.to_pylist()
    )
