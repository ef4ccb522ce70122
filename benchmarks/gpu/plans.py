"""Questions about whole tables: are the rows those of the CPU, in whichever way a GPU works on them?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pandas as pd
import polars as pl
import pyarrow.parquet as pq
from lab import Lab, check, flights_like

import gpupipe as gp
from gpupipe.io.relational import gathering

__all__ = ["hops_of_a_sort", "large_sort", "text_files", "whole_tables"]

TEXT_ROWS = 400_000  # at most: the CPU reads every file, too

FUNCTIONS = ("size", "count", "sum", "mean", "std", "min", "max", "first", "last", "median", "nunique")
VERBS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "sort": lambda data: data.sort(["word", "price"], ascending=[False, True]),
    "shuffle": lambda data: data.shuffle(3),
    "deduplicate": lambda data: data.deduplicate(["word", "open", "count"], keep="last"),
    "group": lambda data: data.group_by(["word", "count"], dropna=False).agg(
        **{f"price_{function}": ("price", function) for function in FUNCTIONS}
    ),
    "join": lambda data: data.join(data.filter("y > 40").deduplicate("count"), on="count", columns=["x", "at"]),
    "outer join": lambda data: data.filter("x > 1").join(
        data.filter("x < -1").deduplicate("count"), "count", how="outer"
    ),
    "sample": lambda data: data.sample(n=100, seed=2),
}


@check
def whole_tables(lab: Lab) -> dict[str, Any]:
    """Are the rows and their order those of the CPU, in memory, in buckets and streaming; how long does each take?"""
    ways = ["in memory", "in buckets", *(["streaming"] if lab.gpu else [])]
    seen: dict[str, Any] = {"free_before": lab.free()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(flights_like(lab.rows), path, row_group_size=max(1, lab.rows // 8))
        for name, verb in VERBS.items():
            wanted = verb(gp.read_parquet(path, backend="cpu")).to_pandas()
            seen[name] = {}
            for way in ways:
                started = time.perf_counter()
                with worked_on(way):
                    found = verb(gp.read_parquet(path, backend=lab.backend.name)).to_pandas()
                seen[name][way] = {"differs": difference(found, wanted), "seconds": time.perf_counter() - started}
    return seen | {"free_after": lab.free()}


@check
def text_files(lab: Lab) -> dict[str, Any]:
    """Are the naive and the zoned times of CSV and JSON lines those of the CPU, and joined with times of Parquet?"""
    rows, seen = min(lab.rows, TEXT_ROWS), {}
    hours = pl.datetime(2013, 1, 1) + pl.duration(hours=pl.int_range(rows))
    table = pl.select(at=hours, zoned=hours.dt.strftime("%Y-%m-%dT%H:%M:%S+02:00"), x=pl.int_range(rows) + 0.5)
    texts = table.with_columns(pl.col("at").dt.strftime("%Y-%m-%d %H:%M:%S"))
    with TemporaryDirectory() as name:
        folder = Path(name)
        texts.write_csv(folder / "rows.csv")
        texts.write_ndjson(folder / "rows.json")
        table.select("at", y="x").write_parquet(folder / "times.parquet")
        for read, path in ((gp.read_csv, folder / "rows.csv"), (gp.read_json, folder / "rows.json")):
            started = time.perf_counter()
            found, wanted = (read(path, backend=backend) for backend in (lab.backend.name, "cpu"))
            seconds = time.perf_counter() - started
            found_types, wanted_types = (
                [(item.dtype, item.zone, item.written_as) for item in data.schema] for data in (found, wanted)
            )
            times = gp.read_parquet(folder / "times.parquet", backend=lab.backend.name)
            seen[path.name] = {
                "rows": rows,
                "types": {item.name: [item.dtype, item.zone] for item in found.schema},
                "same_types": found_types == wanted_types,
                "differs": difference(found.to_pandas(), wanted.to_pandas()),
                "joined_by_time": int(found.join(times, on="at").to_pandas()["y"].notna().sum()),
                "seconds_of_both": seconds,
            }
    return seen


@check
def large_sort(lab: Lab) -> dict[str, Any]:
    """Are a sort too large for memory, which the engine writes to files, and its join by the time those of the CPU?"""
    with TemporaryDirectory() as folder, ExitStack() as patches:
        path = Path(folder) / "rows.parquet"
        pq.write_table(flights_like(lab.rows), path, row_group_size=max(1, lab.rows // 8))

        def run(backend: str) -> tuple[pd.DataFrame, pd.DataFrame]:
            data = gp.read_parquet(path, backend=backend)
            rows = data.select(["y", "at"]).sort("y")
            times = data.select(["at", "x"]).filter("not isnull(at)")
            return rows.to_pandas(), rows.join(times, on="at").to_pandas()

        wanted = run("cpu")
        patches.enter_context(patch("gpupipe.io.relational.gathering.get_table_limit", lambda: 0))
        if lab.backend.name == "gpu":
            engine = import_module("gpupipe.io.relational.gpu_engine")
            patches.enter_context(patch.object(engine, "get_table_limit", lambda: 0))
            patches.enter_context(
                patch.object(engine, "run", lambda rows, plan, *sizes: engine.gather(rows, [plan], *sizes))
            )
        described = patches.enter_context(patch("gpupipe.io.relational.gathering.SpillFile", wraps=gathering.SpillFile))
        found = run(lab.backend.name)
        return {
            "in_files": described.call_count,
            "differs": difference(found[0], wanted[0]),
            "joined_by_time": difference(found[1], wanted[1]),
        }


@check
def hops_of_a_sort(lab: Lab) -> dict[str, Any]:
    """How many bytes a row go to the host: as the plan's result, and as the frame that is asked for?"""
    with TemporaryDirectory() as folder:
        path, table = Path(folder) / "rows.parquet", flights_like(lab.rows)
        pq.write_table(table, path, row_group_size=max(1, lab.rows // 8))
        transfers = lab.backend.transfers
        before = transfers.num_bytes
        frame = gp.read_parquet(path, backend=lab.backend.name).sort("y").compute()
        planned = transfers.num_bytes
        lab.backend.to_arrow(lab.backend.encode(frame))
        return {
            "file": path.stat().st_size / lab.rows,
            "arrow": table.nbytes / lab.rows,
            "plan_to_host": (planned - before) / lab.rows,
            "frame_to_host": (transfers.num_bytes - planned) / lab.rows,
        }


@contextmanager
def worked_on(way: str) -> Iterator[None]:
    """Have plans run that way."""
    if way == "streaming":
        engine = import_module("gpupipe.io.relational.gpu_engine")
        with patch.object(engine, "_try_in_memory", lambda *_: None):
            yield
    elif way == "in buckets":
        with ExitStack() as patches:
            for module in ("engine", "join", "sort"):
                patches.enter_context(patch(f"gpupipe.io.relational.{module}.count_buckets", lambda *_: 5))
            yield
    else:
        yield


def difference(found: pd.DataFrame, wanted: pd.DataFrame) -> str | None:
    """In words, what is not the same; sums of floats may differ in their last digits."""
    try:
        pd.testing.assert_frame_equal(found, wanted, check_dtype=False, rtol=1e-9, atol=1e-12)
    except AssertionError as error:
        return str(error)
    return None
