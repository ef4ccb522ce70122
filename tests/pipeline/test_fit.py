"""What a fit observes of partitions adds up, and what it keeps of them in memory."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.pipeline.column_stats import collect_stats
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.partition_pass import FrameCache, PartitionPass, merge_summaries
from gpupipe.pipeline.plan import ColumnUses, mark_source, plan_passes
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.preprocessing.summaries import Moments

FRAME = pd.DataFrame({"x": np.arange(100.0), "c": list("abcd") * 25, "y": np.arange(100) % 2})


def observed(data: gp.Dataset) -> tuple[dict[Any, Any], dict[str, Any]]:
    """All that a first pass observes, and the statistics of the columns."""
    features = Features((["x"], [pre.SimpleImputer(), pre.StandardScaler()]), (["c"], pre.Categorify()), target="y")
    steps = [T.Expect("x", max=50), T.Join(pd.DataFrame({"c": ["a"], "z": [1.0]}), on="c", name="z")]
    source = mark_source(steps, features, data.schema)
    plan = TransformPlan(steps, source, {"x", "c", "y", "z"}, counting=True)
    tasks = plan_passes(features)[0]
    found = merge_summaries(PartitionPass(plan, "cpu", features, tasks, of_target=True, total=100), data, "test")
    return found, collect_stats(found, ColumnUses.of(features, plan.output_schema))


@pytest.mark.parametrize("parts", [2, 7])
def test_the_summaries_of_partitions_add_up_to_that_of_all_rows(parts: int) -> None:
    whole, stats = observed(gp.from_frame(FRAME))
    added, added_stats = observed(gp.from_frame(FRAME, num_partitions=parts))
    assert whole.keys() == added.keys()
    assert added_stats == stats == {"x": (0, 0.0, 99.0), "c": (0, np.inf, -np.inf)}
    assert added["partitions"] == Counter(range(parts))
    for key in ("rows", "described", ("join", "z"), ("missing", "c")):
        assert added[key] == whole[key]
    assert added["join", "z"] == Counter(seen=100, lost=75)
    assert added["expect", 0].totals == whole["expect", 0].totals == {("x", "max"): 49}
    assert added["sample"].num_rows == 100
    np.testing.assert_array_equal(added["sample"].sorted_values["x"], whole["sample"].sorted_values["x"])


def test_a_summary_that_steps_share_is_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    merge, merged = Moments.__add__, Counter[tuple[str, ...]]()

    def counted(self: Moments, other: Moments) -> Moments:
        merged[self.names] += 1
        return merge(self, other)

    monkeypatch.setattr(Moments, "__add__", counted)
    features = Features((["x"], [pre.SimpleImputer(), pre.StandardScaler()]), target="y")
    gp.Pipeline([], features, backend="cpu").fit(gp.from_frame(FRAME, num_partitions=5))
    assert merged == {("x",): 4, ("y",): 4}


def test_frames_are_cached_all_or_none() -> None:
    small, large = FrameCache(1 << 20), FrameCache(100)
    for number in range(3):
        small.put(number, FRAME)
        large.put(number, FRAME)
    assert (len(small), len(large)) == (3, 0)
    assert small.take(1) is FRAME and small.take(1) is None and len(small) == 2


def test_a_partition_that_comes_in_halves_is_not_cached() -> None:
    cache = FrameCache(1 << 20)
    for number in (0, 1, 0):
        cache.put(number, FRAME)
    assert cache.take(0) is None and cache.take(1) is FRAME


def test_a_cache_is_sent_empty() -> None:
    cache = FrameCache(1 << 20)
    cache.put(0, FRAME)
    assert len(pickle.loads(pickle.dumps(cache))) == 0


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("values", [np.nan, pd.array([pd.NA] * 100, "boolean"), pd.array([pd.NA] * 100, "Int64")])
def test_a_column_without_a_value_that_a_constant_fills_is_named(parts: int, values: Any) -> None:
    data = gp.from_frame(FRAME.assign(gap=values, seldom=FRAME["x"].where(FRAME["x"] == 7)), num_partitions=parts)
    columns = ["gap", "seldom"]
    report = gp.Pipeline([], gp.Features((columns, pre.SimpleImputer("constant")), target="y")).fit(data).fit_report
    assert report is not None
    assert [note for note in report.notes if "row of the fit" in note] == ["gap: no value in any row of the fit"]


@pytest.mark.parametrize("name", ["flag", "number", "is_there"])
def test_a_join_is_counted_whatever_its_columns_are_used_for(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Booleans and numbers that are features without a step need no pass of their own."""
    table = pd.DataFrame({"c": ["A", "B"], "flag": [True, False], "number": np.array([1, 2], "int8")})
    steps = [
        T.Join(table, on="c", name="t"),
        T.Derive(is_there="notnull(number)"),
        T.Derive(flag="coalesce(flag, False)", number="coalesce(number, 0)"),
    ]
    report = gp.Pipeline(steps, Features((["x"], pre.StandardScaler()), [name], target="y")).fit(FRAME).fit_report
    assert report is not None and report.unmatched == {"t": 1.0} and report.num_reads == 1
    assert "Join('t'): no row has a match" in caplog.text


def test_rows_to_predict_of_which_none_has_a_match_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """The weather that is saved with a forecast ends before the days ahead."""
    days = pd.date_range("2024-01-01", periods=60)
    weather = pd.DataFrame({"day": days[:30], "heat": np.arange(30.0)})
    features = Features((["heat"], [pre.SimpleImputer(), pre.StandardScaler()]), target="y")
    pipeline = gp.Pipeline([T.Join(weather, on="day", name="weather")], features)
    pipeline.fit(pd.DataFrame({"day": days[:30], "y": np.arange(30.0)}))
    message = "Join('weather'): none of 30 rows has a match, and all are after the table's last one, by 'day'"
    for data in (pd.DataFrame({"day": days[30:]}), gp.from_frame(pd.DataFrame({"day": days[30:]}))):
        caplog.clear()
        output = pipeline.transform(data)
        _ = output.compute() if isinstance(output, gp.Dataset) else output
        assert caplog.text.count(message) == 1 and "tables={'weather': ...}" in caplog.text
    caplog.clear()
    pipeline.transform(pd.DataFrame({"day": days[20:50]}))
    assert "Join('weather')" not in caplog.text
    pipeline.transform(pd.DataFrame({"day": days[:30] - pd.Timedelta("1h")}))
    assert "after the table's last one" not in caplog.text


def test_rows_to_predict_without_a_match_are_told_where_rows_of_the_fit_had_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys written in capitals tomorrow; of a table of holidays few rows have a match at any time."""
    shops = pd.DataFrame({"shop": list("abcd"), "size": np.arange(4.0)})
    sales = pd.DataFrame({"shop": list("abcd") * 30, "y": np.arange(120.0) % 5})
    capitals = sales.assign(shop=sales["shop"].str.upper())
    features = Features((["size"], [pre.SimpleImputer(), pre.StandardScaler()]), target="y", task="regression")
    message = "Join('shops'): none of 120 rows has a match, as most rows of the fit had: are the values of ['shop'] on"
    for table, warns in ((shops, True), (shops[:1], False)):
        pipeline = gp.Pipeline([T.Join(table, on="shop", name="shops")], features).fit(sales)
        gp.save(tmp_path / str(warns), pipeline)
        for each in (pipeline, gp.load(tmp_path / str(warns)).pipeline):
            for data, says in ((capitals, warns), (sales, False), (capitals[:9], False)):
                caplog.clear()
                each.transform(data)
                assert (message in caplog.text) == says and ("none of" in caplog.text) == says


def test_rows_to_predict_long_after_the_last_one_of_an_as_of_join_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Prices that are saved with a forecast are not brought again; or their keys are written otherwise."""
    days = pd.date_range("2024-01-01", periods=120)
    prices = pd.DataFrame({"day": days[:60:6], "shop": ["a", "b"] * 5, "price": np.arange(10.0)})
    features = Features((["price"], [pre.SimpleImputer(), pre.StandardScaler()]), target="y")
    pipeline = gp.Pipeline([T.JoinAsOf(prices, on="day", by="shop", name="prices")], features)
    sales = pd.DataFrame({"day": days, "shop": ["a", "b"] * 60})
    pipeline.fit(sales[:60].assign(y=np.arange(60.0)))
    late = "JoinAsOf('prices'): 40 rows are at least 26 days, 0:00:00 after the table's last one, by 'day', and it has"
    alike = "JoinAsOf('prices'): none of 40 rows has a match, as most rows of the fit had: are the values of ['shop']"
    capitals = sales.assign(shop=sales["shop"].str.upper())
    for data, message in (
        (sales[80:], late),
        (sales[58:], ""),
        (sales[80:84], ""),
        (capitals[80:], alike),
        (capitals[80:84], ""),
    ):
        for table in (data, gp.from_frame(data.reset_index(drop=True))):
            caplog.clear()
            output = pipeline.transform(table)
            _ = output.compute() if isinstance(output, gp.Dataset) else output
            assert caplog.text.count("JoinAsOf") == (message != "") and message in caplog.text


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_join_that_matches_no_row_is_named(how: Any, caplog: pytest.LogCaptureFixture) -> None:
    crime = pd.DataFrame({"region": ["A", "b"], "n": [1.0, 2.0]})
    features = gp.Features((["n"], pre.SimpleImputer("constant")), target="x")
    gp.Pipeline([T.Join(crime, left_on="c", right_on="region", how=how)], features).fit(FRAME)
    assert "no row has a match" not in caplog.text
    pipeline = gp.Pipeline([T.Join(crime.head(1), left_on="c", right_on="region", how=how)], features)
    with nullcontext() if how == "left" else pytest.raises(gp.errors.BadData):
        pipeline.fit(FRAME)
    keys = "['c'] on the left and ['region'] on the right"
    assert f"Join('c'): no row has a match: are the values of {keys} written alike?" in caplog.text


def test_an_as_of_join_that_matches_no_row_is_named() -> None:
    later = pd.DataFrame({"x": [1000.0], "c": ["a"], "n": [1.0]})
    early, alike = "are times of 'x' on the right early enough?", "are the values of ['c'] on the left and ['c'] on the"
    for by, doubt in ((None, early), ("c", alike)):
        join = T.JoinAsOf(later, on="x", by=by)
        report = (
            gp.Pipeline([join], gp.Features((["n"], pre.SimpleImputer("constant")), target="y")).fit(FRAME).fit_report
        )
        assert report is not None and report.notes[0].startswith(
            f"JoinAsOf({join.name!r}): no row has a match: {doubt}"
        )


def build_requests(num_rows: int = 1_000, num_partitions: int = 2) -> tuple[gp.Dataset, pd.DataFrame]:
    """Return requests, and in another table, by their id, what became of them."""
    rng = np.random.default_rng(0)
    loss = (rng.random(num_rows) < 0.15).astype(int)
    rows = pd.DataFrame({"request": range(num_rows), "amount": rng.gamma(2, 500, num_rows), "loss": loss})
    ends = pd.DataFrame({"loan": range(num_rows), "written_off": np.where(loss == 1, "ja", "nein"), "paid": 100 - loss})
    return gp.from_frame(rows, num_partitions=num_partitions, backend="cpu"), ends


@pytest.mark.parametrize("num_partitions", [1, 2])
def test_a_fit_warns_of_a_column_by_hand_that_alone_tells_the_target(
    num_partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    data, ends = build_requests(num_partitions=num_partitions)
    join = T.Join(ends, left_on="request", right_on="loan", name="ends")

    def list_hints(**options: Any) -> list[str]:
        numbers, words = (["amount", "paid"], pre.StandardScaler()), (["written_off"], pre.Categorify())
        pipeline = gp.Pipeline([join], gp.Features(numbers, words, target="loss", **options), backend="cpu").fit(data)
        return [note for note in pipeline.fit_report.notes if "known before" in note]

    end = f"it alone tells 'loss' in the first {1_000 // num_partitions:,} rows: is it known before that is?"
    expected = [f"feature {name!r}: {end}" for name in ("paid", "written_off")]
    assert list_hints() == expected
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == expected
    assert list_hints(allow_leak=["paid"]) == expected[1:]
    assert list_hints(allow_leak="written_off") == expected[:1]


def test_a_fit_does_not_repeat_what_automatic_features_have_said() -> None:
    data, ends = build_requests()
    joined = data.join(gp.from_frame(ends), left_on="request", right_on="loan")
    features = gp.Features.auto(joined, target="loss")
    notes = gp.Pipeline([], features, backend="cpu").fit(joined).fit_report.notes
    assert sorted(note.split(": ")[0] for note in notes if "known before" in note) == [
        "Features.auto takes paid",
        "Features.auto takes written_off",
    ]


def test_a_fit_says_nothing_of_groups_that_a_split_has_kept_together() -> None:
    patients = np.repeat(np.arange(200), 6)
    rows = pd.DataFrame({"patient": [f"p{each}" for each in patients], "ill": patients * 7 % 11 % 2})
    features = gp.Features((["patient"], pre.Categorify()), target="ill")
    for data, is_noted in ((gp.from_frame(rows), True), (gp.from_frame(rows).split(0.8, by="patient")[0], False)):
        notes = gp.Pipeline([], features, backend="cpu").fit(data).fit_report.notes
        assert any("feature 'patient': rows alike in it" in note for note in notes) == is_noted


def test_hints_of_many_features_are_counted() -> None:
    rows = pd.DataFrame({f"x{number}": [number, -number] * 50 for number in range(1, 20)})
    features = gp.Features((list(rows), pre.StandardScaler()), target="y")
    notes = gp.Pipeline([], features, backend="cpu").fit(rows.assign(y=[0, 1] * 50)).fit_report.notes
    hints = [note for note in notes if "alone tells" in note]
    assert len(hints) == 12 and "as much may be said of 7 features more" in notes
