"""Rows as dicts: predicted as a frame's are, and given back as plain values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import BadData, ColumnNotFound, SchemaMismatch
from tests.raising import raises

FRAME = pd.DataFrame(
    {
        "x": np.linspace(0, 1, 40),
        "n": pd.array([1, None] * 20, dtype="Int64"),
        "k": ["a", "b", None, "a"] * 10,
        "at": pd.date_range("2013-01-01", periods=40, freq="h"),
        "day": pd.Series(pd.date_range("2013-01-01", periods=40)).dt.date,
        "m": pd.array([1, None] * 20, dtype="Int64"),
        "zoned": pd.date_range("2013-01-01", periods=40, freq="h", tz="Europe/Berlin"),
        "words": [["a"], ["b", "a"]] * 20,
        "numbers": [[1], [2, 3]] * 20,
        "y": ["no", "yes", "yes", "no"] * 10,
    }
)

GOOD: dict[str, Any] = dict.fromkeys(FRAME.columns.drop("y")) | {"x": 1.0, "n": 1, "k": "a", "at": "2013-01-01"}


@pytest.fixture(scope="module")
def scorer() -> gp.Scorer:
    features = gp.Features(
        (["x", "n", "hour"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["k"], pre.Categorify()),
        target="y",
        keep=["at", "day", "m", "zoned", "words", "numbers"],
    )
    pipeline = gp.Pipeline([T.Derive(hour="hour(at)")], features).fit(FRAME)
    return gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1))


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {name: None if value is pd.NA else value for name, value in row.items()} for row in frame.to_dict("records")
    ]


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_a_row_and_rows_are_predicted_as_a_frame_is(scorer: gp.Scorer, method: str) -> None:
    predict = getattr(scorer, method)
    expected = predict(FRAME.head(3))
    found = predict(rows(FRAME.head(3)))
    assert [list(row) for row in found] == [list(expected.columns)] * 3
    for name in expected.columns[:-6]:
        assert [row[name] for row in found] == expected[name].tolist()
    assert predict(rows(FRAME.head(1))[0])[expected.columns[0]] == found[0][expected.columns[0]]
    assert [row["m"] for row in found] == [1, None, 1] and found[0]["at"] == datetime(2013, 1, 1)  # noqa: DTZ001
    assert [row["zoned"] for row in found] == FRAME["zoned"].head(3).tolist()
    assert (
        predict(rows(FRAME.head(1))[0] | {"zoned": found[2]["zoned"]})["zoned"].isoformat().endswith("02:00:00+01:00")
    )
    assert predict([]) == []


def test_what_json_brings_and_takes(scorer: gp.Scorer) -> None:
    asked = json.loads(
        '{"x": 1, "n": 2, "m": 2, "k": "b", "at": "2013-01-01T05:00:00", "day": "2013-01-02", "more": [],'
        ' "zoned": "2013-01-01T06:00:00+01:00", "words": ["a"], "numbers": []}'
    )
    found = scorer.predict(asked)
    assert found["prediction"] in ("no", "yes")
    frame = pd.DataFrame([asked]).assign(at=pd.Timestamp("2013-01-01T05:00:00"), day=FRAME["day"].head(1).to_numpy())
    frame["zoned"] = pd.to_datetime(frame["zoned"])
    assert scorer.predict(frame)["prediction"].tolist() == [found["prediction"]]
    assert json.loads(json.dumps({name: found[name] for name in ("prediction", "m")}))["m"] == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("x", "40"), ("x", [1]), ("n", 1.5), ("n", 2**70), ("k", True), ("k", 7), ("x", {})],
        *[("at", "nine"), ("at", 1_357_000_000), ("at", datetime(2013, 1, 1, tzinfo=UTC)), ("at", "2013-01-01T05Z")],
        *[("zoned", datetime(2013, 1, 1)), ("zoned", "2013-01-01T05:00"), ("day", 15_706)],  # noqa: DTZ001
        *[
            ("words", "a"),
            ("words", {"a": 1}),
            ("words", {"a", "b"}),
            ("words", [1]),
            ("numbers", [1.5]),
            ("numbers", ["1"]),
        ],
    ],
)
def test_a_value_of_another_type_is_named(scorer: gp.Scorer, name: str, value: Any) -> None:
    with raises(SchemaMismatch, where=f"column {name!r}", got=value):
        scorer.predict([GOOD, GOOD | {name: value}])


def test_a_day_is_its_midnight_and_some_times_are_missing(scorer: gp.Scorer) -> None:
    days = [date(2013, 1, 1), pd.Timestamp("2013-01-01"), pd.NaT, pd.NA, float("nan"), None]
    found = [row["at"] for row in scorer.predict([GOOD | {"at": day} for day in days])]
    assert found == [datetime(2013, 1, 1)] * 2 + [None] * 4  # noqa: DTZ001


def test_a_column_that_no_row_has_is_named(scorer: gp.Scorer) -> None:
    with raises(ColumnNotFound, where="the data", column="k"):
        scorer.predict({name: value for name, value in GOOD.items() if name != "k"})


def test_a_column_that_one_row_lacks_is_named(scorer: gp.Scorer) -> None:
    row = {name: value for name, value in GOOD.items() if name != "k"}
    with raises(ColumnNotFound, where="row 1 of the data", column="k"):
        scorer.predict([GOOD, row])
    with raises(ColumnNotFound, where="row 1 of the data", column="k", remedy="'K' (the closest name)"):
        scorer.predict([GOOD, row | {"K": "a"}])
    assert scorer.predict([GOOD, row | {"k": None}])[1]["prediction"] in ("no", "yes")


def test_a_misspelt_key_is_offered(scorer: gp.Scorer) -> None:
    with raises(ColumnNotFound, where="the data", column="k", remedy="'K' (the closest name)"):
        scorer.predict({name.upper() if name == "k" else name: value for name, value in GOOD.items()})


def test_a_column_of_the_fit_is_no_other_misspelt() -> None:
    frame = pd.DataFrame({"wage": [1.0, 2.0] * 20, "age": [3, 4] * 20, "y": [0, 1] * 20})
    pipeline = gp.Pipeline([], gp.Features(["wage", "age"], target="y")).fit(frame)
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,), seed=1))
    for data in (frame[["age"]], {"age": 3}):
        with raises(ColumnNotFound, where="the data", column="wage", remedy="one of the names above"):
            scorer.predict(data)
    with raises(ColumnNotFound, where="row 1 of the data", column="wage", remedy="{'wage': None}"):
        scorer.predict([{"age": 3, "wage": 1.0}, {"age": 3}])


def test_features_of_a_scorer(scorer: gp.Scorer) -> None:
    pd.testing.assert_frame_equal(scorer.transform(FRAME), scorer.pipeline.transform(FRAME))


def test_a_value_of_another_type_is_an_error_only_where_the_column_is_read() -> None:
    frame = pd.DataFrame({"x": [float(number % 9) for number in range(60)], "fee": [None] * 60})
    data = gp.from_frame(frame.assign(y=2 * frame["x"], fee=frame["fee"].astype("float64")))
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="y")).fit(data)
    scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
    expected = scorer.predict({"x": 3.0})
    assert scorer.predict({"x": 3.0, "fee": "$70/mo"}) == expected
    with pytest.raises(SchemaMismatch, match="column 'x'"):
        scorer.predict([{"x": 3.0}, {"x": "many", "fee": "$70/mo"}])
    with pytest.raises(ColumnNotFound, match="'x'"):
        scorer.predict({"fee": "$70/mo"})


def test_true_and_1_stand_for_each_other_as_in_a_frame() -> None:
    frame = pd.DataFrame({"flag": [True, False] * 30, "n": [1, 0, 2] * 20, "y": [0.5 * number for number in range(60)]})
    features = gp.Features((["flag", "n"], pre.StandardScaler()), target="y")
    pipeline = gp.Pipeline([], features).fit(frame)
    scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
    for row in ({"flag": 1, "n": True}, {"flag": 0, "n": False}, {"flag": True, "n": 1}):
        assert scorer.predict(row)["prediction"] == scorer.predict(pd.DataFrame([row]))["prediction"][0]
    for name, value in (("flag", 2), ("flag", "yes"), ("n", "1")):
        with raises(SchemaMismatch, where=f"column {name!r}", got=value):
            scorer.predict({"flag": True, "n": 1} | {name: value})


def test_one_row_that_comes_out_as_none_or_as_several_has_no_one_answer() -> None:
    frame = pd.DataFrame({"k": np.arange(60), "x": np.arange(60.0), "y": np.arange(60.0) % 7})
    twice = gp.from_frame(pd.DataFrame({"k": np.repeat(np.arange(60), 2)}))
    for step, number in ((T.Join(twice, on="k", many=True), 2), (T.Filter("x > 5", when="always"), 0)):
        pipeline = gp.Pipeline([step], gp.Features(["x"], target="y", task="regression")).fit(frame)
        scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
        row = {"k": 3, "x": 3.0}
        assert len(scorer.predict([row])) == number
        with raises(BadData, where="the row", got=number, expected="one row", remedy="[row], for a list of all"):
            scorer.predict(row)
