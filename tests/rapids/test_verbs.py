"""Whole-table verbs on stand-ins, through temporary Parquet files: the rows that the CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.columns import Backend

DATA = Path(__file__).parents[2] / "data"
COLUMNS = ["month", "origin", "dest", "tailnum", "distance", "dep_delay", "time_hour"]
FUNCTIONS = ["size", "count", "sum", "mean", "var", "std", "min", "max", "first", "last", "median", "nunique"]
OF_NUMBERS = ["sum", "mean", "var", "std", "median"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every hundredth flight, as Parquet of several row groups."""
    frame = pd.read_parquet(DATA / "flights.parquet", columns=COLUMNS).iloc[::100].reset_index(drop=True)
    path = tmp_path_factory.mktemp("verbs") / "flights.parquet"
    frame.assign(short=frame["distance"] < 500).to_parquet(path, index=False, row_group_size=800)
    return path


def grouped(data: gp.Dataset, keys: list[str]) -> gp.Dataset:
    of = ("dep_delay", "time_hour", "tailnum", "short", "month")
    named = {
        f"{column}_{function}": (column, function)
        for column in of
        for function in FUNCTIONS
        if column not in keys and (column not in ("time_hour", "tailnum") or function not in OF_NUMBERS)
    }
    return data.group_by(keys, dropna=False).agg(**named)


VERBS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "sort": lambda d: d.sort(["origin", "dep_delay", "time_hour"], ascending=[False, True, False]),
    "shuffle": lambda d: d.shuffle(4),
    "deduplicate": lambda d: d.deduplicate(["tailnum", "month"], keep="last"),
    "few groups": lambda d: grouped(d, ["origin", "month"]),
    "many groups": lambda d: grouped(d, ["tailnum", "distance"]),
    "left join": lambda d: d.join(d.deduplicate("dest").select(["dest", "distance", "short"]), on="dest"),
    "outer join": lambda d: d.filter("month < 7").join(d.filter("month > 6"), on="tailnum", how="outer", many=True),
    "join by value": lambda d: d.join(
        d.group_by("distance").agg(n=("month", "size")), left_on="month", right_on="distance", how="inner"
    ),
    "as-of join": lambda d: d.filter("month < 7").join_asof(
        d, on="time_hour", by="tailnum", direction="nearest", allow_exact_matches=False, columns=["dep_delay", "dest"]
    ),
    "sample": lambda d: d.sample(n=500, seed=2),
    "windows": lambda d: windows(d.backend).fit(d).transform(d),
    "statistics of groups": lambda d: statistics(d.backend).fit(d).transform(d),
}


def windows(backend: str) -> gp.Pipeline:
    """Steps that look at other rows, in memory and across partitions."""
    own = {"by": "tailnum", "order_by": "time_hour"}
    stats = ["count", "sum", "mean", "std", "min", "max"]
    steps = [
        T.Lag(["dep_delay", "origin", "time_hour", "short"], [1, -1], **own),
        T.Difference(["dep_delay", "time_hour", "month"], 2, **own),
        T.CumulativeCount(["origin", "month"], order_by="time_hour"),
        T.Rolling("dep_delay", 3, stats, min_periods=1, closed="left", **own),
        T.Rolling("dep_delay", "30 days", stats, **own),
        T.Expanding("distance", stats, by="origin"),
    ]
    return gp.Pipeline(steps, backend=backend)


def statistics(backend: str) -> gp.Pipeline:
    stats = ["size", "count", "nunique", "sum", "mean", "std", "min", "max"]
    columns = ["origin", "month", "dep_delay", "distance", "short"]
    return gp.Pipeline(
        [],
        gp.Features(
            (columns, pre.GroupStats(["origin", "month"], stats)),
            (["tailnum", "dep_delay"], pre.GroupStats("tailnum", handle_unknown="missing")),
            (["origin", "tailnum"], pre.GroupStats("origin", "nunique")),
        ),
        backend=backend,
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_gives_the_same(rehearsed_backend: Backend, sample: Path, verb: str) -> None:
    found, wanted = (
        VERBS[verb](gp.read_parquet(sample, partition_bytes=40_000, backend=name)).compute() for name in ("gpu", "cpu")
    )
    same_frames(found.to_pandas(), wanted)


def test_to_pandas_is_what_the_cpu_computes(rehearsed_backend: Backend, sample: Path) -> None:
    there, here = (gp.read_parquet(sample, partition_bytes=40_000, backend=name) for name in ("gpu", "cpu"))
    assert there.num_partitions > 1
    wanted = here.filter("distance > 500").compute()
    assert isinstance(wanted, pd.DataFrame) and len(wanted)
    pd.testing.assert_frame_equal(there.filter("distance > 500").to_pandas(), wanted)


def same_frames(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    assert list(found.columns) == list(wanted.columns)
    assert len(found) == len(wanted) > 0 or not len(wanted)
    for name in wanted.columns:
        missing = wanted[name].isna().to_numpy()
        np.testing.assert_array_equal(found[name].isna().to_numpy(), missing, err_msg=name)
        values: list[Any] = [frame[name][~missing].to_numpy() for frame in (found, wanted)]
        if wanted[name].dtype.kind == "f":
            np.testing.assert_allclose(*values, rtol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(*values, err_msg=name)


def test_a_shuffled_table_is_written(rehearsed_backend: Backend, sample: Path, tmp_path: Path) -> None:
    for name in ("gpu", "cpu"):
        data = gp.read_parquet(sample, partition_bytes=40_000, backend=name)
        data.write_parquet(tmp_path / name, files=2, shuffle="full")
        data.write_parquet(tmp_path / f"{name}.parquet", shuffle="partition")
    for kind in ("", ".parquet"):
        gpu, cpu = (pd.read_parquet(tmp_path / f"{name}{kind}") for name in ("gpu", "cpu"))
        pd.testing.assert_frame_equal(gpu, cpu)
