"""Windows that see fewer rows than one would think, or the same twice, and the warning of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.pipeline.daily_sales import BY_STORE, make_sales


def test_a_history_that_holds_the_rows_themselves_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A lag of one row would be the row's own value, as its history has it, too."""
    past, _ = make_sales()
    pipeline = gp.Pipeline([T.Lag("sales", **BY_STORE)]).fit(past)
    is_late = past["date"] >= "2024-04-01"
    before = gp.from_frame(past[~is_late])
    pipeline.transform(past[is_late], history=before)
    assert "overlaps" not in caplog.text
    assert before.reads.columns["store"] == 2, "the window reads it, and where it ends; overlaps are known without"
    pipeline.transform(past[is_late], history=past)
    assert f"overlaps the data: {is_late.sum()} rows of it have the store, date of rows there" in caplog.text


def test_a_history_in_which_no_row_has_a_past_is_told(caplog: pytest.LogCaptureFixture) -> None:
    past, tomorrow = make_sales()
    tomorrow = tomorrow.assign(sales=np.nan)
    pipeline = gp.Pipeline([T.Lag("sales", **BY_STORE)]).fit(past)
    later = past.assign(date=past["date"] + pd.Timedelta("999D"))
    warning = "history= gives no row of the data a value of sales_lag_1_by_store"
    for history, warns in ((past, False), (past[:0], True), (past.assign(store="?"), True), (later, True)):
        for data in (tomorrow, gp.from_frame(tomorrow, num_partitions=2).filter("date > '2000-01-01'")):
            caplog.clear()
            pipeline.transform(data, history=history)
            assert (warning in caplog.text) == warns
    caplog.clear()
    pipeline.transform(tomorrow[:0], history=past)
    assert warning not in caplog.text


def test_a_history_that_is_too_short_for_some_rows_is_told(caplog: pytest.LogCaptureFixture) -> None:
    past, ahead = make_sales()
    tomorrow = ahead[ahead["date"] == ahead["date"].min()].assign(sales=np.nan)
    pipeline = gp.Pipeline([T.Lag("sales", **BY_STORE)]).fit(past)
    pipeline.transform(tomorrow, history=past[past["store"] == "a"])
    assert "history= gives 2 of 3 rows of the data no value of sales_lag_1_by_store" in caplog.text
    caplog.clear()
    pipeline.transform(past[past["date"] > "2024-02-01"], history=past[past["date"] < "2024-01-15"].assign(store="new"))
    assert "history= gives" not in caplog.text, "the first row of each store alone lacks a value"


def test_a_history_that_ends_too_early_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Yesterday's file is not there: a lag of one row would be the sales of the day before yesterday."""
    past, tomorrow = make_sales()
    pipeline = gp.Pipeline([T.Lag("sales", **BY_STORE)]).fit(past)
    last, hole = past["date"].max(), "history= ends 2 days, 0:00:00 before the data, by 'date', and has no gap as long"
    tomorrow = tomorrow[tomorrow["date"] == last + pd.Timedelta("1D")].assign(sales=np.nan)
    weekdays = past[past["date"].dt.day_of_week < 5]
    for history, warns in (
        (past, False),
        (past[past["date"] < last], True),
        (gp.from_frame(past[past["date"] < last], num_partitions=3), True),
        (past[~past["date"].isin([last, pd.Timestamp("2024-02-01")])], False),
        (weekdays[weekdays["date"] < last], False),
    ):
        caplog.clear()
        pipeline.transform(tomorrow, history=history)
        assert (hole in caplog.text) == warns


@pytest.mark.slow
def test_a_short_history_that_ends_too_early_is_told_by_the_gaps_of_the_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A history of a week knows no weekend; the fit does, and so does what is loaded."""
    days = pd.date_range("2024-01-01", periods=200)
    frame = pd.DataFrame({"date": np.repeat(days, 2), "store": ["a", "b"] * 200, "sales": np.arange(400.0) % 11})
    lag = T.Lag("sales", **BY_STORE)
    for every_day in (True, False):
        sales = frame if every_day else frame[frame["date"].dt.day_of_week < 5].reset_index(drop=True)
        fitted = gp.Pipeline([lag], gp.Features(([*lag.makes], pre.SimpleImputer()), target="sales", task="regression"))
        fitted.fit(gp.from_frame(sales[sales["date"] < "2024-05-01"], num_partitions=3))
        gp.save(tmp_path / str(every_day), fitted)
        monday = pd.Timestamp("2024-06-10")
        ahead = sales[sales["date"] >= monday].drop(columns="sales")
        for pipeline in (fitted, gp.load(tmp_path / str(every_day)).pipeline):
            for missing, length, warns in ((0, 7, False), (3, 7, True), (4, 5, True), (10, 30, True), (40, 3, True)):
                caplog.clear()
                last = monday - pd.Timedelta(days=missing + 1)
                past = sales[(sales["date"] <= last) & (sales["date"] > last - pd.Timedelta(days=length))]
                pipeline.transform(ahead, history=past)
                assert ("before the data, by 'date', and has no gap as long" in caplog.text) == warns


@pytest.mark.parametrize("order", ["times", "numbers"])
def test_keys_whose_history_ends_before_that_of_others_are_told(order: str, caplog: pytest.LogCaptureFixture) -> None:
    """The file of one store came late: its lag of one row would be the sales of another week."""
    past, tomorrow = make_sales()
    last = past["date"].max()
    tomorrow = tomorrow[tomorrow["date"] == last + pd.Timedelta("1D")].assign(sales=np.nan)
    if order == "numbers":
        past, tomorrow = (frame.assign(date=frame["date"].dt.day_of_year) for frame in (past, tomorrow))
    pipeline = gp.Pipeline([T.Lag("sales", **BY_STORE)]).fit(past)
    days = past["date"].drop_duplicates().sort_values().tolist()
    is_c, gap = past["store"] == "c", "7 days 00:00:00" if order == "times" else "7"
    for late, warns in (
        (is_c & (past["date"] > days[-8]), True),
        (is_c & (past["date"] > days[-3]), False),  # a weekend
        (is_c & (past["date"] < days[-8]), False),
        (past["date"] > past["store"].map({"a": days[-9], "b": days[-5], "c": days[-1]}), False),  # customers
    ):
        caplog.clear()
        pipeline.transform(tomorrow, history=past[~late])
        assert ("history= ends for" in caplog.text) == warns
        if warns:
            assert f"1 of 3 keys up to {gap} before it ends for the others, by 'date', as for store c" in caplog.text


def test_numbers_in_order_that_a_history_lacks_before_the_data_are_told(caplog: pytest.LogCaptureFixture) -> None:
    weeks = pd.DataFrame({"week": range(1, 41), "sales": range(40)})
    pipeline = gp.Pipeline([T.Lag("sales", order_by="week")]).fit(weeks)
    for num_rows, warns in ((40, False), (38, True)):
        caplog.clear()
        pipeline.transform(pd.DataFrame({"week": [41], "sales": [np.nan]}), history=weeks[:num_rows])
        assert ("history= ends 3 before the data, by 'week', and has no gap as long" in caplog.text) == warns


@pytest.mark.slow
def test_rows_that_a_history_has_twice_are_told(caplog: pytest.LogCaptureFixture) -> None:
    past, tomorrow = make_sales()
    tomorrow = tomorrow.assign(sales=np.nan)
    pipeline = gp.Pipeline([T.Lag("sales", **BY_STORE)]).fit(past)
    for history, num_copies in ((past, 0), (pd.concat([past, past[-5:]]), 5), (pd.concat([past, past]), len(past))):
        for table in (history, gp.from_frame(history.reset_index(drop=True), num_partitions=3)):
            caplog.clear()
            pipeline.transform(tomorrow, history=table)
            assert (f"history= has {num_copies} rows again, and windows see both" in caplog.text) == (num_copies > 0)
    wanted = pipeline.transform(tomorrow, history=past)
    caplog.clear()
    pd.testing.assert_frame_equal(pipeline.transform(tomorrow, history=table.deduplicate()), wanted)
    assert "again" not in caplog.text


def test_rows_without_those_before_them_are_told(caplog: pytest.LogCaptureFixture) -> None:
    past, tomorrow = make_sales()
    last = tomorrow["date"].min() - pd.Timedelta("1D")
    day = past[past["date"] == last]
    dataset = gp.from_frame(past, num_partitions=2)
    warning = "no row of the data has a value of sales_lag_1_by_store: Lag sees the rows that are given alone"
    for data, options, warns in (
        (day, {}, True),
        (dataset.filter(f"date == '{last:%Y-%m-%d}'"), {}, True),
        (past[past["date"] >= last - pd.Timedelta("1D")], {}, False),
        (dataset, {"rows": f"date == '{last:%Y-%m-%d}'"}, False),
        (day, {"history": past[past["date"] < last]}, False),
        (day[:0], {}, False),
    ):
        for steps in ([], [T.Filter("store != '?'"), T.Filter(f"store == '{day['store'].iloc[0]}'", when="always")]):
            filtered = gp.Pipeline([*steps, T.Lag("sales", **BY_STORE)]).fit(past)
            caplog.clear()
            filtered.transform(data, **options)
            assert (warning in caplog.text) == warns


@pytest.mark.parametrize("step", [T.CumulativeCount("store", order_by="date"), T.Lag("promo", **BY_STORE)])
@pytest.mark.slow
def test_rows_after_those_of_the_fit_without_a_history_are_told(
    step: T.Transform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts begin at 0 again, and the lags of all days but the first have a value: nothing else would say so."""
    past, tomorrow = make_sales()
    (name,) = set(gp.Pipeline([step]).fit_transform(past)) - set(past)
    features = gp.Features((["promo", name], pre.SimpleImputer()), target="sales", task="regression")
    pipeline = gp.Pipeline([step], features).fit(past)
    gp.save(tmp_path / "run", pipeline)
    is_late = past["date"] >= "2024-04-01"
    part = gp.Pipeline([step], features).fit(past, rows="date < '2024-04-01'")
    for fitted in (pipeline, gp.load(tmp_path / "run", backend="cpu").pipeline):
        for new, options, warns in (
            (tomorrow, {}, True),
            (tomorrow, {"history": past}, False),
            (past, {}, False),
            (past[is_late], {}, False),
            (pd.concat([past, tomorrow]), {"rows": "date > '2024-05-01'"}, False),
        ):
            for data in (new, gp.from_frame(new.reset_index(drop=True), num_partitions=3)):
                caplog.clear()
                result = fitted.transform(data, **options)
                assert len(result if isinstance(data, pd.DataFrame) else result.compute())
                warning = f"{step.class_name}: all rows of the data are after those of the fit, by date"
                assert (warning in caplog.text) == warns
    caplog.clear()
    part.transform(past, rows="date >= '2024-04-01'")
    assert "after those of the fit" not in caplog.text
    part.transform(past[is_late])  # windows of its fit have seen them, but those of this call see none before
    assert "after those of the fit" in caplog.text
    assert "2024-01-01 00:00:00 to 2024-04-29 00:00:00" in str(pipeline._source)
