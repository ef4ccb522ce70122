"""Bytes of a row that go from the device to the host, as the backend's counter has them in the rehearsal.

The table stands in `docs/what-runs-where.md`; `GPUPIPE_WRITE_PAGES=1` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cudf_polars", reason="the RAPIDS wheels are not installed here")

import rmm

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.io.relational import gpu_engine

from .test_plans import StandIn

PAGE = Path(gp.__file__).parent.parent / "docs" / "what-runs-where.md"
BEGIN, END = "<!-- bytes of a row: made by tests/rapids/test_hops.py -->\n", "<!-- their end -->\n"
SIZES = 2000, 4000
WINDOWS = [T.Lag("f0", by="t0", order_by="time"), T.Rolling("f1", "3h", by="t1", order_by="time")]


def make_rows(num_rows: int) -> pd.DataFrame:
    """A row of 8 numbers, 4 short texts and a time, as of `facts/gpu-audit.md`."""
    random = np.random.default_rng(5)
    texts = {f"t{n}": random.choice([f"text {n} {value}" for value in range(50)], num_rows) for n in range(4)}
    times = pd.Timestamp("2013-01-01") + pd.to_timedelta(random.permutation(num_rows), "min")
    floats = {f"f{n}": random.normal(size=num_rows) for n in range(8)}
    return pd.DataFrame(floats | texts | {"time": times, "id": random.permutation(num_rows)})


def read_on_device(data: gp.Dataset) -> None:
    """Read all rows as the loader and a fit do."""
    backend = gp.backend.select("gpu")
    for partition in data.partitions:
        data.read(partition, None, backend)


def pass_windows(data: gp.Dataset, *before: Any) -> gp.Dataset:
    return gp.Pipeline([*before, *WINDOWS]).fit(data).transform(data)


def window_frame(data: gp.Dataset) -> None:
    backend = gp.backend.select("gpu")
    frame = data.read(data.partitions[0], None, backend)
    before = backend.transfers.num_bytes
    for step in WINDOWS:
        step.transform(backend.decode(frame))
    assert backend.transfers.num_bytes - before < 20_000


Road = Callable[[gp.Dataset, gp.Dataset], "gp.Dataset | None"]
ROADS: dict[str, Road] = {
    "read Parquet": lambda d, _: d,
    "`sort`": lambda d, _: d.sort(["t0", "time"]),
    "`shuffle`": lambda d, _: d.shuffle(1),
    "`join`": lambda d, other: d.join(other, on="id", suffix="_r"),
    "`join_asof`": lambda d, other: d.join_asof(other, on="time", by="t0"),
    "`group_by().agg`": lambda d, _: d.group_by("id").agg(a=("f0", "mean"), b=("t0", "first"), c=("id", "sum")),
    "window steps in a pipeline": lambda d, _: pass_windows(d),
    "window steps behind a step that computes": lambda d, _: pass_windows(d, T.Derive(f9="f0 + f1")),
    "window steps on a frame": lambda d, _: window_frame(d),
    "`sort` of rows that a filter computes": lambda d, _: d.filter("f0 * f0 < 100").sort("time"),
    "`sort`, then `join`, then `group_by`": lambda d, other: (
        d.sort("time").join(other.sort("id"), on="id", suffix="_r").group_by("id").agg(a=("f0_r", "max"))
    ),
    "`deduplicate` (the ids of rows that stay)": lambda d, _: d.deduplicate("id"),
}
BEYOND: dict[str, Road] = {
    "`sort`, streaming, into the host's memory": ROADS["`sort`"],
    "`sort`, streaming, into a temporary file": ROADS["`sort`"],
}


WRITERS: dict[str, dict[str, Any]] = {
    "`write_parquet` of sorted rows": {},
    "`write_parquet(partition_by=)` of sorted rows": {"partition_by": ["t0"]},
}


def write(path: Path, options: dict[str, Any], data: gp.Dataset, _: gp.Dataset) -> None:
    data.sort("time").write_parquet(path, overwrite=True, **options)


def count_bytes(road: Road, tmp_path: Path) -> float:
    """Count the bytes that each further row adds: the dictionaries of texts are copied once, whatever the rows are."""
    backend, counts = gp.backend.select("gpu"), []
    for size in SIZES:
        make_rows(size).to_parquet(tmp_path / "rows.parquet", row_group_size=SIZES[0], index=False)
        make_rows(size)[["id", "time", "t0", "f0"]].to_parquet(tmp_path / "other.parquet", index=False)
        data, other = (gp.read_parquet(tmp_path / f"{name}.parquet", backend="gpu") for name in ("rows", "other"))
        before = backend.transfers.num_bytes
        found = road(data, other)
        if found is not None:
            read_on_device(found)
        counts.append(backend.transfers.num_bytes - before)
    return (counts[1] - counts[0]) / (SIZES[1] - SIZES[0])


def test_rows_whose_results_fit_stay_on_the_device(
    rehearsed_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {name: count_bytes(road, tmp_path) for name, road in ROADS.items()}
    for name, options in WRITERS.items():
        counted[name] = count_bytes(partial(write, tmp_path / "out", options), tmp_path)
    assert [name for name, size in counted.items() if round(size) and "deduplicate" not in name] == []
    monkeypatch.setattr(gpu_engine, "SPMDEngine", StandIn)
    monkeypatch.setattr(rmm.mr, "get_current_device_resource", gpu_engine.rmm.mr.get_current_device_resource)
    monkeypatch.setattr(gpu_engine, "_free_memory", lambda: 0)
    for name, road in BEYOND.items():
        if "file" in name:
            monkeypatch.setattr(gpu_engine, "get_table_limit", lambda: 0)
        counted[name] = count_bytes(road, tmp_path)
    lines = ["| road | bytes a row |", "|---|---|", *(f"| {name} | {round(size)} |" for name, size in counted.items())]
    table = "\n".join(lines) + "\n"
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if os.environ.get("GPUPIPE_WRITE_PAGES"):
        PAGE.write_text(head + BEGIN + table + END + tail)
    assert f"{BEGIN}{table}{END}" in PAGE.read_text()
