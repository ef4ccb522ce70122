"""Joins and writers lose no time of day, date or zone; what names their columns is checked."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.backend import select
from gpupipe.errors import BadConfig, BadData
from gpupipe.io.planning.table import map_frames


@pytest.mark.parametrize("options", [{}, {"partition_by": "x_right"}])
def test_a_time_of_day_among_dates_is_an_error(tmp_path: Path, options: dict[str, Any]) -> None:
    days = gp.from_frame(pa.table({"t": [date(2024, 1, 1)], "x": [1]}), backend="cpu")
    times = gp.from_frame(pd.DataFrame({"t": pd.to_datetime(["2024-01-02 05:00"]), "x": [2]}), backend="cpu")
    joined = days.join(times, on="t", how="outer")
    with pytest.raises(BadData) as caught:
        joined.write_parquet(tmp_path / "out", **options)
    assert "'t'" in caught.value.where and "Cast" in (caught.value.remedy or "")
    right = gp.Pipeline([T.Cast({"t": "timestamp"})]).fit(joined).transform(joined)
    right.write_parquet(tmp_path / "out", overwrite=True)
    written = gp.read_parquet(tmp_path / "out").compute()["t"].tolist()
    assert written == [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02 05:00")]


@pytest.mark.parametrize("step", [T.Join, T.JoinAsOf])
def test_dates_and_zones_of_an_arrow_table_are_kept(tmp_path: Path, step: Any) -> None:
    zoned = pa.array([0], pa.timestamp("us", "Europe/Oslo"))
    right = pa.table({"k": [1], "day": pa.array([date(2024, 1, 1)]), "at": zoned})
    left = gp.from_frame(pd.DataFrame({"k": [1]}), backend="cpu")
    gp.Pipeline([step(right, on="k")]).fit(left).transform(left).write_parquet(tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert [pq.read_schema(file).field(name).type for name in ("day", "at")] == [pa.date32(), zoned.type]


@pytest.mark.parametrize(
    "join",
    [
        lambda a: a.join(a, on="t", columns=3),
        lambda a: a.join(a, on="t", suffix=None),
        lambda a: a.join_asof(a, on="t", by=3),
        lambda a: a.join_asof(a, on="t", columns=3),
    ],
)
def test_names_of_a_join_are_names(join: Any) -> None:
    with pytest.raises(BadConfig):
        join(gp.from_frame(pd.DataFrame({"t": [1], "x": [2]}), backend="cpu"))


def test_a_time_of_day_among_dates_is_an_error_of_the_plan_for_polars() -> None:
    days = gp.from_frame(pa.table({"t": [date(2024, 1, 1), None], "x": [1, 2]}), backend="cpu")
    times = gp.from_frame(pd.DataFrame({"t": pd.to_datetime(["2024-01-02 05:00"]), "x": [2]}), backend="cpu")
    assert days.to_polars().collect()["t"].to_list() == [date(2024, 1, 1), None]
    plan = days.join(times, on="t", how="outer").to_polars()
    for engine in ("in-memory", "streaming"):
        with pytest.raises(pl.exceptions.PolarsError, match="a time of day in a column of dates: 2024-01-02 05:00"):
            plan.collect(engine=engine)


def test_a_time_of_day_among_dates_is_an_error_of_a_devices_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The CPU's backend has no writer of its own; this one asks for the frames, as the GPU's does.
    asked = []

    def write(frames: Any, *_: Any) -> bool:
        asked.extend(frame() for frame in frames)
        return False

    monkeypatch.setattr(type(select("cpu")), "write_parquet", lambda _, *given: write(*given))
    days = gp.from_frame(pa.table({"t": [date(2024, 1, 1), None], "x": [1, 2]}), backend="cpu")
    days.write_parquet(tmp_path / "days.parquet")
    assert len(asked) == 1
    later = map_frames(
        days, lambda frame, _: frame.assign(t=frame["t"] + pd.Timedelta(1, "us")), days.schema, ["t", "x"]
    )
    for path in ("times.parquet", "times"):
        with pytest.raises(BadData) as caught:
            later.write_parquet(tmp_path / path)
        assert "'t'" in caught.value.where and str(caught.value.got) == "2024-01-01 00:00:00.000001"
