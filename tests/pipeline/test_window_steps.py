"""Pipelines with steps that look at other rows: fitted, loaded, scored, written and resumed like any other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.io.stores import MANIFEST
from tests.io.meeting import few_bytes
from tests.pipeline.daily_sales import AHEAD, BY_STORE, make_sales

PARTITIONS = (1, 2, 7, 16)
STEPS = [
    T.Derive(late="dep_delay > 15"),
    T.Filter("dep_delay < 600", when="always"),
    T.Lag(["dep_delay", "origin"], by="tailnum", order_by="time_hour"),
    T.Rolling("dep_delay", 3, ["mean", "max"], by="tailnum", order_by="time_hour", closed="left", min_periods=1),
    T.Derive(worse="dep_delay_lag_1_by_tailnum > dep_delay_rolling_mean_3_by_tailnum"),
]
NUMBERS = ["dep_delay_lag_1_by_tailnum", "dep_delay_rolling_mean_3_by_tailnum", "dep_delay_rolling_max_3_by_tailnum"]


def features(**more: Any) -> gp.Features:
    return gp.Features(
        (NUMBERS, [pre.SimpleImputer(), pre.StandardScaler()]),
        (["origin_lag_1_by_tailnum"], pre.Categorify()),
        (["worse"], pre.SimpleImputer(strategy="most_frequent")),
        target="arr_delay > 15",
        keep=["flight"],
        **more,
    )


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    path = Path(__file__).parents[2] / "data" / "flights.parquet"
    names = ["tailnum", "origin", "time_hour", "dep_delay", "arr_delay", "flight", "month"]
    frame = pd.read_parquet(path, columns=names, filters=[("tailnum", "in", PLANES)])
    assert len(frame) > 1000 and frame["dep_delay"].isna().any()
    return frame.reset_index(drop=True)


PLANES = ["N725MQ", "N722MQ", "N723MQ", "N711MQ", "N713MQ"]


def parts_of(frame: pd.DataFrame, parts: int) -> gp.Dataset:
    return gp.from_frame(frame, num_partitions=parts, backend="cpu")


@pytest.mark.slow
def test_any_partitioning_learns_and_gives_the_same(flights: pd.DataFrame) -> None:
    wanted = None
    for parts in PARTITIONS:
        pipeline = gp.Pipeline(STEPS, features(), backend="cpu").fit(parts_of(flights, parts))
        block = pipeline.loader(parts_of(flights, parts)).table
        found = [
            pipeline.features.groups[0].steps[1].mean_,
            block.words[: len(block)].numpy(),
            pipeline.transform(parts_of(flights, parts)).compute().drop(columns="worse"),
        ]
        wanted = wanted or found
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-9)
        np.testing.assert_allclose(found[1].view("float32")[:, :3], wanted[1].view("float32")[:, :3], rtol=1e-5)
        pd.testing.assert_frame_equal(found[2], wanted[2])
    on_a_frame = pipeline.transform(flights).drop(columns="worse").reset_index(drop=True)
    pd.testing.assert_frame_equal(on_a_frame, wanted[2])


@pytest.mark.slow
def test_it_is_saved_and_predicts_on_new_rows(flights: pd.DataFrame, tmp_path: Path) -> None:
    """The history is what the new data holds."""
    train, today = flights[flights["month"] < 10], flights[flights["month"] >= 10].reset_index(drop=True)
    pipeline = gp.Pipeline(STEPS, features(), backend="cpu").fit(parts_of(train, 3))
    torch.manual_seed(0)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,))
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run", backend="cpu")
    unlabelled = today.drop(columns="arr_delay")
    wanted = scorer.predict_proba(unlabelled)
    for parts in PARTITIONS:
        found = scorer.predict_proba(parts_of(unlabelled, parts)).compute()
        pd.testing.assert_frame_equal(found, wanted.reset_index(drop=True), rtol=1e-6)
    kept = today["dep_delay"] < 600
    lagged = scorer.pipeline.transform(unlabelled)[NUMBERS[0]]
    mean, scale = pipeline.features.groups[0].steps[1].mean_[0], pipeline.features.groups[0].steps[1].scale_[0]
    ordered = today[kept].sort_values("time_hour", kind="stable")
    plain = ordered.groupby("tailnum")["dep_delay"].shift().reindex(today.index[kept])
    fill = pipeline.features.groups[0].steps[0].statistics_[NUMBERS[0]]
    np.testing.assert_allclose(lagged, (plain.fillna(fill) - mean) / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_job_is_resumed_and_no_new_file_is_added(flights: pd.DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for month in (1, 2, 3):
        flights[flights["month"] == month].to_parquet(folder / f"{month}.parquet", index=False)
    data = gp.read_parquet(folder, partition_bytes=1, backend="cpu")
    assert data.num_partitions == 3
    pipeline = gp.Pipeline(STEPS, features(), backend="cpu").fit(data)
    first = pipeline.transform(data).write_parquet(tmp_path / "out")
    assert first.num_done == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.parquet")}
    again = pipeline.transform(gp.read_parquet(folder, partition_bytes=1, backend="cpu"))
    assert again.write_parquet(tmp_path / "out").num_done == 3
    flights[flights["month"] == 4].to_parquet(folder / "4.parquet", index=False)
    more = pipeline.transform(gp.read_parquet(folder, partition_bytes=1, backend="cpu"))
    with pytest.raises(errors.BadFile):
        more.write_parquet(tmp_path / "out")
    more.write_parquet(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / MANIFEST).is_file()
    found = pd.concat([pd.read_parquet(path) for path in sorted((tmp_path / "out").glob("*.parquet"))])
    wanted = pipeline.transform(flights[flights["month"] <= 4].sort_values("month", kind="stable"))
    np.testing.assert_allclose(found[NUMBERS], wanted[NUMBERS], rtol=1e-5)
    assert len(before) == 3


@pytest.mark.parametrize("parts", [1, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [None, 100_000])
def test_windows_are_written_as_they_are_read(
    flights: pd.DataFrame, tmp_path: Path, parts: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that nothing else has to be done to are written without a frame between."""
    if limit:
        few_bytes(monkeypatch, limit)
    own: Any = {"by": "tailnum", "order_by": "time_hour"}
    steps = [
        T.Lag(["origin", "time_hour", "flight"], [1, -1], **own),
        T.Rolling("dep_delay", "9 days", ["mean", "count"], **own),
        T.Lag("dep_delay_rolling_mean_9_days_by_tailnum", **own),
    ]
    data = parts_of(flights, parts)
    found = gp.Pipeline(steps, backend="cpu").fit(data).transform(data)
    half, _ = found.split(fraction=0.5)
    last = found.columns[-1]
    for number, one in enumerate([found, half, found.select(["month", last]), found.select([last])]):
        wanted = one.compute()
        for file in (f"{number}.parquet", f"{number}"):
            one.write_parquet(tmp_path / file)
            pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / file).compute(), wanted)
    found.write_parquet(tmp_path / "shuffled.parquet", shuffle="partition")
    shuffled = gp.read_parquet(tmp_path / "shuffled.parquet").compute()
    order = [*shuffled.columns]
    assert not shuffled.equals(found.compute())
    pd.testing.assert_frame_equal(*(each.sort_values(order, ignore_index=True) for each in (shuffled, found.compute())))


@pytest.mark.slow
def test_rows_may_be_cut_into_other_parts(flights: pd.DataFrame, tmp_path: Path) -> None:
    pipeline = gp.Pipeline(STEPS, backend="cpu").fit(flights)
    made = pipeline.transform(parts_of(flights, 7))
    wanted = made.compute()
    made.write_parquet(tmp_path / "out", files=3)
    found = pd.concat([pd.read_parquet(path) for path in sorted((tmp_path / "out").glob("*.parquet"))])
    found = found.reset_index(drop=True).astype(wanted.dtypes.to_dict())
    pd.testing.assert_frame_equal(found, wanted)
    pd.testing.assert_frame_equal(made.head(20), wanted.head(20))
    early, late = made.split(by="month", at=7)
    assert len(early) + len(late) == len(wanted)
    pd.testing.assert_frame_equal(late.compute(), wanted[wanted["month"] >= 7].reset_index(drop=True))


@dataclass
class Roomy:
    """Does not fit in memory for frames of more rows."""

    most: int

    def __call__(self, frame: Any) -> Any:
        if len(frame) > self.most:
            raise MemoryError(f"no room for {len(frame)} rows")
        frame["twice"] = frame["dep_delay"] * 2
        return frame


@pytest.mark.slow
def test_partitions_worked_on_in_halves_see_the_same_rows(flights: pd.DataFrame) -> None:
    lag = T.Lag("twice", by="tailnum", order_by="time_hour")
    for position in (0, 1):  # before rows meet, and when their columns are looked up
        results = []
        for most in (10**9, 100):
            room = T.Map(Roomy(most), reads=["dep_delay"], adds=["twice"])
            steps = [room, lag] if not position else [T.Derive(twice="dep_delay * 2"), lag, T.Drop("twice"), room]
            chosen = gp.Features((["twice_lag_1_by_tailnum", "twice"], pre.SimpleImputer(strategy="median")))
            pipeline = gp.Pipeline(steps, chosen, backend="cpu").fit(parts_of(flights, 3))
            results.append(pipeline.features.groups[0].steps[0].statistics_)
        assert results[0] == results[1]


def test_rows_of_an_earlier_pipeline_are_numbered_anew(flights: pd.DataFrame) -> None:
    first = gp.Pipeline([T.Filter("dep_delay > 0", when="always")], backend="cpu").fit(flights)
    second = gp.Pipeline([T.Lag("dep_delay", by="tailnum")], backend="cpu").fit(flights)
    found = second.transform(first.transform(parts_of(flights, 7))).compute()
    pd.testing.assert_frame_equal(found, second.transform(first.transform(flights)).reset_index(drop=True))


def test_a_join_that_repeats_rows_is_refused_before_such_a_step(flights: pd.DataFrame) -> None:
    pairs = pd.DataFrame({"origin": ["LGA", "LGA", "JFK", "EWR"], "gate": [1, 2, 3, 4]})
    join, lag = T.Join(pairs, on="origin", many=True), T.Lag("dep_delay", by="tailnum", order_by="time_hour")
    with pytest.raises(errors.BadConfig, match="follows a join that repeats rows"):
        gp.Pipeline([join, lag], backend="cpu").fit(flights).transform(parts_of(flights, 2))
    pipeline = gp.Pipeline([lag, join], backend="cpu").fit(flights)
    found = pipeline.transform(parts_of(flights, 5)).compute()
    pd.testing.assert_frame_equal(found, pipeline.transform(flights).reset_index(drop=True), check_dtype=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int16", "float32"])
@pytest.mark.parametrize("made", [[], ["third"]])
def test_columns_stored_as_another_type_are_those_of_the_fit(
    flights: pd.DataFrame, dtype: str, made: list[str]
) -> None:
    frame = flights.dropna(subset=["dep_delay"]).reset_index(drop=True)
    divide = T.Map(lambda rows: rows.assign(third=rows["dep_delay"] / 3), reads="dep_delay", adds="third")
    lag = T.Lag(["dep_delay", *made], by="tailnum", order_by="time_hour")
    again = T.Lag("dep_delay_lag_1_by_tailnum", by="tailnum", order_by="time_hour")
    pipeline = gp.Pipeline([*([divide] if made else []), lag, again], backend="cpu").fit(frame)
    wanted, other = pipeline.transform(frame), frame.astype({"dep_delay": dtype})
    pd.testing.assert_frame_equal(pipeline.transform(other), wanted)
    pd.testing.assert_frame_equal(pipeline.transform(parts_of(other, 3)).compute(), wanted)


def test_it_is_explained() -> None:
    told = gp.Pipeline([*STEPS, T.Expanding("dep_delay")], features()).explain()
    assert "before: Lag of dep_delay, origin brings all rows of each tailnum together" in told
    assert "before: Expanding of dep_delay brings all rows of the table together" in told


def test_what_is_not_wanted_is_not_made(flights: pd.DataFrame) -> None:
    data = parts_of(flights, 4)
    chosen = gp.Features((["dep_delay"], [pre.SimpleImputer(), pre.StandardScaler()]))
    pipeline = gp.Pipeline(STEPS, chosen, backend="cpu").fit(data)
    assert pipeline.fit_report is not None and pipeline.fit_report.num_reads == 1
    needs = gp.Pipeline(STEPS, gp.Features((NUMBERS[:1], pre.SimpleImputer())), backend="cpu").fit(data)
    assert needs.fit_report is not None and needs.fit_report.num_reads == 2


def test_a_part_without_its_history_is_warned_of(flights: pd.DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    data = parts_of(flights, 2)

    def told(part: gp.Dataset) -> list[str]:
        caplog.clear()
        gp.Pipeline(STEPS).fit(data).transform(part).head(3)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    early, late = data.split(by="time_hour", at="2013-06-01")
    (warning,) = told(late)
    assert warning.startswith("Lag, Rolling: a split part") and "fit(data, rows=" in warning and "history=" in warning
    caplog.clear()
    gp.Pipeline(STEPS).fit(data).transform(late, history=early).head(3)
    assert not caplog.records
    assert len(told(data.split(fraction=0.5)[0])) == 1
    assert not told(early) and not told(data.split(fraction=0.5, by="tailnum")[1])
    assert not told(data.filter("dep_delay < 60"))
    whole = gp.Pipeline(STEPS).fit(data).transform(data).split(by="time_hour", at="2013-06-01")[1]
    caplog.clear()
    whole.head(3)
    assert not caplog.records


# A forecast six weeks ahead per store: one pipeline, from the fit on a part of the history to the reloaded scorer.
FORECAST = [
    T.Derive(log="log1p(sales)"),
    T.Lag("log", AHEAD, **BY_STORE),
    T.Lag("sales", AHEAD - 1, **BY_STORE),
    T.Rolling("sales_lag_41_by_store", 7, closed="left", min_periods=1, **BY_STORE),
]
FORECAST_NUMBERS = ["log_lag_42_by_store", "sales_lag_41_by_store_rolling_mean_7_by_store"]
TRAIN, VALID = "date < '2024-04-01'", "date >= '2024-04-01'"


def compute_by_hand(frame: pd.DataFrame) -> pd.DataFrame:
    stores = frame.sort_values("date").groupby("store")["sales"]
    before = stores.shift(AHEAD).groupby(frame["store"]).rolling(7, min_periods=1).mean().droplevel(0)
    made = {"promo": frame["promo"].astype("float64")}
    made |= dict(zip(FORECAST_NUMBERS, [np.log1p(stores.shift(AHEAD)), before], strict=True))
    return pd.DataFrame(made, index=frame.index)


def fit_forecast(data: Any, **more: Any) -> gp.Pipeline:
    columns = (["promo", *FORECAST_NUMBERS], pre.SimpleImputer(strategy="constant", fill_value=-1.0))
    chosen = gp.Features(columns, target="sales", task="regression", target_transform=None, keep=["store"])
    return gp.Pipeline(FORECAST, chosen, backend="cpu").fit(data, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frame", "dataset", "files"])
def test_a_forecast_is_one_artifact(kind: str, tmp_path: Path) -> None:
    past, tomorrow = make_sales()
    by_hand = compute_by_hand(pd.concat([past, tomorrow.assign(sales=np.nan)], ignore_index=True)).fillna(-1.0)
    days = by_hand[: len(past)]
    data: Any = past
    if kind != "frame":
        data = parts_of(past, 4)
    if kind == "files":
        data.write_parquet(tmp_path / "sales", files=3)
        data = gp.read_parquet(tmp_path / "sales", partition_bytes=1)
    pipeline = fit_forecast(data, rows=TRAIN)
    assert pipeline.fit_report is not None and pipeline.fit_report.num_rows == (past["date"] < "2024-04-01").sum()
    for rows, is_in in ((TRAIN, past["date"] < "2024-04-01"), (VALID, past["date"] >= "2024-04-01")):
        loader = pipeline.loader(data, rows=rows)
        batches = torch.cat([batch.numeric for batch in loader]).numpy()
        np.testing.assert_allclose(batches, days[is_in], rtol=1e-6)
        made = pipeline.transform(data, rows=rows)
        made = made if kind == "frame" else made.compute()
        np.testing.assert_allclose(made[days.columns], days[is_in], rtol=1e-6)
        assert kind != "frame" or [*made.index] == [*days.index[is_in]]
    torch.manual_seed(0)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,))
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run", backend="cpu")
    valid = past[past["date"] >= "2024-04-01"]
    before = past[past["date"] < "2024-04-01"]
    metrics, apart = scorer.evaluate(data, rows=VALID), scorer.evaluate(valid, history=before)
    assert metrics["rmse"] == pytest.approx(apart["rmse"], rel=1e-5)
    errors_of = np.sort((valid["sales"] - scorer.predict(valid, history=before)["prediction"]).abs())
    for calibrated in (gp.calibrate(scorer, data, rows=VALID), gp.calibrate(scorer, valid, history=before)):
        assert calibrated.calibrator is not None and calibrated.calibrator.conformal is not None
        rank = math.ceil((len(valid) + 1) * 0.9)
        assert calibrated.calibrator.conformal.limits == pytest.approx([errors_of[rank - 1]], rel=1e-5)
    ahead: Any = tomorrow if kind == "frame" else parts_of(tomorrow, 3)
    made = scorer.transform(ahead, history=data)
    predicted = scorer.predict(ahead, history=data)
    if kind == "frame":
        assert [*made.index] == [*predicted.index] == [*tomorrow.index]
    else:
        predicted.write_parquet(tmp_path / "predicted.parquet")
        made, predicted = made.compute(), gp.read_parquet(tmp_path / "predicted.parquet").compute()
    np.testing.assert_allclose(made[days.columns], by_hand[len(past) :], rtol=1e-6)
    assert [*predicted["store"]] == [*tomorrow["store"]] and predicted["prediction"].nunique() > AHEAD
    is_next = (tomorrow["date"] == tomorrow["date"].min()).to_numpy()  # lags count rows, and none is between
    records = [{**row, "date": str(row["date"])} for row in tomorrow[is_next].to_dict("records")]
    answers = scorer.predict(records, history=data)
    np.testing.assert_allclose([row["prediction"] for row in answers], predicted["prediction"][is_next], rtol=1e-5)


def test_a_forecast_refuses_what_it_cannot_compute() -> None:
    past, tomorrow = make_sales()
    pipeline = fit_forecast(past, rows=TRAIN)
    for call in (fit_forecast, pipeline.loader, pipeline.transform):
        with pytest.raises(errors.BadData, match="rows=: it selects no row, got \"date > '2030-01-01'\""):
            call(past, rows="date > '2030-01-01'")
    with pytest.raises(errors.BadConfig, match=r"Pipeline\(rows=\)"):
        pipeline.transform(past, rows=past["date"] > "2024-04-01")
    with pytest.raises(errors.ColumnNotFound, match="history=: column 'sales' not found"):
        pipeline.transform(tomorrow, history=past.drop(columns="sales"))
    for lacking in ("promo", "date"):
        with pytest.raises(errors.ColumnNotFound, match=f"the data: column '{lacking}' not found"):
            pipeline.transform(tomorrow.drop(columns=lacking), history=past)
    with pytest.raises(errors.ColumnNotFound, match=r"the data: column 'sales' not found[^!]*Try: history=, a table"):
        pipeline.transform(tomorrow)
    near = fit_forecast(past.assign(sale=1.0), rows=TRAIN)  # a name that is like the missing one
    for history, remedy in ((None, "history=, a table of earlier rows with"), (tomorrow, "a table that has")):
        with pytest.raises(errors.ColumnNotFound) as caught:
            near.transform(tomorrow.assign(sale=1.0), history=history)
        assert caught.value.remedy.startswith(f"{remedy} 'sales'")
    with pytest.raises(errors.ColumnNotFound, match="'Sales' \\(the closest name\\)"):
        near.transform(tomorrow.assign(sale=1.0, Sales=2))
    of_itself = gp.Pipeline([T.Rolling("sales", 2, **BY_STORE)], backend="cpu").fit(past)
    with pytest.raises(errors.ColumnNotFound, match="the data: column 'sales' not found"):
        of_itself.transform(tomorrow, history=past)
    filtered = gp.Pipeline([T.Lag("sales", **BY_STORE), T.Filter("sales > 1", when="always"), T.Drop("sales")])
    with pytest.raises(errors.ColumnNotFound, match="the data: column 'sales' not found"):
        filtered.fit(past).transform(tomorrow, history=past)
    with pytest.raises(errors.SchemaMismatch, match="column 'store': another type than in fit"):
        pipeline.transform(tomorrow, history=past.assign(store=1))
    alone = gp.Pipeline([], gp.Features(["promo"], target="sales", task="regression")).fit(past)
    with pytest.raises(errors.BadConfig, match="history=: no feature is computed from other rows"):
        alone.transform(tomorrow, history=past)
