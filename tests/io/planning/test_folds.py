"""Folds forward in time: scikit-learn's TimeSeriesSplit where no two rows are of one time; and how folds show."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import TimeSeriesSplit

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData
from tests.examples import examples
from tests.io.tables import DATA, values
from tests.raising import raises


def rows(part: gp.Dataset) -> list[int]:
    return values(part, "row")


@examples(25)
@given(num_rows=st.integers(4, 90), n_splits=st.integers(2, 6), gap=st.integers(0, 5), seed=st.integers(0, 99))
def test_they_are_scikit_learns(num_rows: int, n_splits: int, gap: int, seed: int) -> None:
    frame = pd.DataFrame({"row": np.random.default_rng(seed).permutation(num_rows)})
    try:
        expected = list(TimeSeriesSplit(n_splits=n_splits, gap=gap).split(np.zeros(num_rows)))
    except ValueError:
        with pytest.raises(BadConfig):
            gp.from_frame(frame).kfold(n_splits, by="row", forward=True, gap=gap or None)
        return
    for num_partitions in (1, 4):
        data = gp.from_frame(frame, num_partitions=num_partitions)
        folds = data.kfold(n_splits, by="row", forward=True, gap=gap or None)
        assert [(sorted(rows(a)), sorted(rows(b))) for a, b in folds] == [
            (train.tolist(), valid.tolist()) for train, valid in expected
        ]


def test_rows_of_one_time_stay_together_and_none_is_later_than_what_it_validates() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", columns=["time_hour"], partition_bytes=1 << 19)
    folds = flights.kfold(4, by="time_hour", forward=True, gap="7 days")
    ends = []
    for train, valid in folds:
        before, after = (part.to_pandas()["time_hour"] for part in (train, valid))
        assert before.max() < after.min() - pd.Timedelta("7D") + pd.Timedelta("1us")
        assert before.min() == pd.Timestamp("2013-01-01 10:00")
        assert abs(len(after) - len(flights) / 5) < 200  # the rows of an hour
        ends.append((after.min(), after.max()))
    assert all(one[1] < other[0] for one, other in pairwise(ends))
    assert ends[-1][1] == flights.to_pandas()["time_hour"].max()


def test_a_filtered_dataset_is_cut_by_its_own_rows() -> None:
    data = gp.from_frame(pd.DataFrame({"row": range(100)})).filter("row % 2 == 0 and row < 60")
    assert [len(valid) for _, valid in data.kfold(4, by="row", forward=True)] == [6] * 4


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pd.date_range("2013-01-01", periods=30), "timestamp"),
        ([f"2013-01-{day:02}" for day in range(1, 31)], "string"),
        (np.linspace(-1.5, 1.5, 30), "float64"),
    ],
)
def test_any_ordered_column_will_do(column: Any, kind: str) -> None:
    data = gp.from_frame(pd.DataFrame({"row": range(30), "at": column}))
    assert data.schema["at"].dtype == kind
    assert [len(valid) for _, valid in data.kfold(2, by="at", forward=True)] == [10, 10]


def test_they_show_themselves_in_a_few_lines() -> None:
    days = pd.DataFrame({"row": range(9), "day": pd.date_range("2013-01-01", periods=9)})
    folds = gp.from_frame(days).kfold(2, by="day", forward=True, gap="1 day")
    assert repr(folds) == (
        "2 folds forward by day, gap 1 day\n"
        "fold  train              valid\n"
        "1     before 2013-01-03  2013-01-04 to before 2013-01-07\n"
        "2     before 2013-01-06  from 2013-01-07"
    )
    assert "<td" in folds._repr_html_() and len(folds) == 2
    drawn = gp.from_frame(days).kfold(3, seed=5)
    assert repr(drawn).splitlines()[:3] == ["3 folds, by rows, seed 5", "fold  train  valid", "1     66.7%  33.3%"]
    again = pickle.loads(pickle.dumps(drawn))
    assert repr(again) == repr(drawn) and [rows(valid) for _, valid in again] == [rows(valid) for _, valid in drawn]


def test_calls_that_make_no_sense() -> None:
    days = pd.DataFrame({"row": range(9), "day": pd.date_range("2013-01-01", periods=9), "class": [0, 1, 2] * 3})
    data = gp.from_frame(days)
    with raises(BadConfig, where="kfold(by=)", got="day", remedy="kfold(5, by='day', forward=True)"):
        data.kfold(5, by="day")
    with raises(BadConfig, where="kfold(gap=)", got="1 day", remedy="kfold(3, by='day', forward=True, gap='1 day')"):
        data.kfold(3, by="day", gap="1 day")
    for call in ({}, {"by": "row", "stratify": "class"}):
        with raises(BadConfig, where="kfold(forward=True)"):
            data.kfold(3, forward=True, **call)
    with raises(BadConfig, where="kfold(forward=)", got="yes"):
        data.kfold(3, by="day", forward="yes")  # type: ignore[arg-type]
    for by, gap in (("day", 3), ("row", "1 day"), ("row", 0), ("day", "soon")):
        with raises(BadConfig, where=f"kfold(by={by!r}, gap=)", got=gap):
            data.kfold(3, by=by, forward=True, gap=gap)
    with raises(BadConfig, where="kfold(by='row', gap=)", match="reaches back to the first value"):
        data.kfold(3, by="row", forward=True, gap=3)
    with raises(BadConfig, where="kfold(by='class', forward=True)", got=3):
        data.kfold(3, by="class", forward=True)
    with raises(BadConfig, where="kfold(by='row', forward=True)", got=9):
        data.kfold(9, by="row", forward=True)
    with raises(BadData, where="kfold(by='day', forward=True)", match="missing in 1 row"):
        gp.from_frame(pd.concat([days, pd.DataFrame({"row": [9]})])).kfold(2, by="day", forward=True)
