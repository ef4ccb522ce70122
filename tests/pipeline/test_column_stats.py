"""What a fit notes of its columns, whoever has looked at them."""

from __future__ import annotations

import numpy as np
import pandas as pd

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import Column, select
from gpupipe.pipeline.column_stats import ColumnStats, collect_stats
from gpupipe.pipeline.plan import ColumnUses
from gpupipe.preprocessing.summaries import Extremes, Moments
from gpupipe.schema import Field, Schema

CPU = select("cpu")
COLUMNS = {
    "x": Column("float64", np.array([3.0, np.nan, -2.0])),
    "n": Column("int64", np.array([7, 8, 9]), np.array([True, False, True])),
    "none": Column("float64", np.full(3, np.nan)),
}


def test_summaries_with_a_range_tell_it() -> None:
    schema = Schema([Field(name, column.dtype) for name, column in COLUMNS.items()])
    features = gp.Features((list(COLUMNS), pre.StandardScaler()))
    expected = {"x": ColumnStats(1, -2.0, 3.0), "n": ColumnStats(1, 7.0, 9.0), "none": ColumnStats(3)}
    for kind in (Extremes, Moments):
        found = {("extremes", 0): kind.of(COLUMNS, CPU, "test")}
        assert collect_stats(found, ColumnUses.of(features, schema)) == expected


def test_ranges_are_those_of_the_outputs_whichever_step_looked() -> None:
    frame = pd.DataFrame({"x": np.arange(100.0), "y": np.where(np.arange(100) % 3, np.arange(100.0), np.nan)})
    data = gp.from_frame(frame, num_partitions=3)
    for step in (pre.StandardScaler(), pre.MinMaxScaler(), pre.RobustScaler()):
        pipeline = gp.Pipeline([], gp.Features((list(frame), step))).fit(data)
        made = pipeline.transform(frame)
        for name in frame:
            assert pipeline.schema.ranges[name] == (made[name].min(), made[name].max())
