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
import pyarrow.parquet as pq
from lab import Lab, check, flights_like

import gpupipe as gp

__all__ = ["whole_tables"]

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


@contextmanager
def worked_on(way: str) -> Iterator[None]:
    """Have plans run that way."""
    if way == "streaming":
        engine = import_module("gpupipe.io.relational.gpu_engine")
        collect = engine.collect
        with patch.object(engine, "collect", lambda plan, _, path=None: collect(plan, 1 << 62, path)):
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
