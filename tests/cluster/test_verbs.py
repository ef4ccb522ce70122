"""Whole-table verbs on workers: the same rows in the same order as on threads, or from fewer partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.cluster.executor import use_executor

KNOWN = pd.DataFrame({"dep_delay_lag_1_by_tailnum": [-100.0, 0.0, 15.0], "kind": ["early", "late", "very late"]})
VERBS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "sort": lambda d: d.sort(["carrier", "dep_delay"], ascending=[True, False]),
    "shuffle": lambda d: d.shuffle(4),
    "deduplicate": lambda d: d.deduplicate(["tailnum", "day"], keep="last"),
    "group_by": lambda d: d.group_by(["origin", "carrier"]).agg(n=("flight", "size"), late=("dep_delay", "median")),
    "join": lambda d: d.join(
        d.group_by("dest").agg(usual=("distance", "min")).filter("usual > 300"), on="dest", how="inner"
    ),
    "sample": lambda d: d.sample(n=500, seed=2),
    "as-of join": lambda d: d.filter("flight % 2 == 0").join_asof(
        d, on="day", by="tailnum", allow_exact_matches=False, columns=["dep_delay", "dest"]
    ),
    "windows": lambda d: windows().fit(d).transform(d),
}


def windows() -> gp.Pipeline:
    """Steps that look at other rows, one of them at what another made."""
    steps = [
        T.Filter("dep_delay < 300"),
        T.Lag("dep_delay", by="tailnum", order_by="day"),
        T.JoinAsOf(KNOWN, on="dep_delay_lag_1_by_tailnum"),
        T.Rolling("dep_delay_lag_1_by_tailnum", 3, ["mean", "max"], by=["origin", "carrier"], min_periods=1),
    ]
    return gp.Pipeline(steps, backend="cpu")


@pytest.mark.parametrize("verb", VERBS)
def test_workers_do_what_threads_do(cluster: gp.Cluster, flights: gp.Dataset, days: Path, verb: str) -> None:
    data = flights.select(["day", "carrier", "origin", "dest", "tailnum", "flight", "dep_delay", "distance"])
    with use_executor(cluster):
        found = VERBS[verb](data).compute()
    pd.testing.assert_frame_equal(found, VERBS[verb](data).compute())
    whole = gp.read_parquet(days, columns=data.columns, backend="cpu")
    assert whole.num_partitions == 1
    pd.testing.assert_frame_equal(found, VERBS[verb](whole).compute())


def test_a_full_shuffle_is_written_by_workers(cluster: gp.Cluster, flights: gp.Dataset, tmp_path: Path) -> None:
    with use_executor(cluster):
        flights.write_parquet(tmp_path / "workers", files=3, shuffle="full", seed=1)
    flights.write_parquet(tmp_path / "threads", files=3, shuffle="full", seed=1)
    for part in sorted((tmp_path / "threads").glob("*.parquet")):
        assert part.read_bytes() == (tmp_path / "workers" / part.name).read_bytes()
