"""A first model in one call: the program that it stands for, and what it takes."""

from __future__ import annotations

import importlib.util
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import BadCall, BadConfig, BadData, SchemaMismatch
from tests.raising import raises


def frame_of(rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    x, name = draw.normal(size=rows), draw.choice(["red", "green"], rows)
    late = x + (name == "red") + 0.5 * draw.normal(size=rows) > 0.5
    return pd.DataFrame({"x": x, "name": name, "late": late, "who": draw.integers(0, 9, rows).astype(str)})


@pytest.mark.slow
def test_it_is_the_program_that_it_stands_for() -> None:
    train, valid = gp.from_frame(frame_of(400, 1)), gp.from_frame(frame_of(200, 2))
    scorer = gp.fit(train, valid, target="late", keep="who", seed=3)
    pipeline = gp.Pipeline([], gp.Features.auto(train, target="late", keep="who")).fit(train)
    trainer = gp.Trainer(gp.models.auto(pipeline.schema, seed=3), seed=3)
    trainer.fit(pipeline.loader(train, shuffle=True, seed=3), pipeline.loader(valid))
    wanted = gp.Scorer(pipeline, trainer.model).predict_proba(frame_of(50, 4))
    pd.testing.assert_frame_equal(scorer.predict_proba(frame_of(50, 4)), wanted)
    with raises(BadConfig, where="evaluate", match="the rows have no target"):
        scorer.evaluate(frame_of(50, 4).drop(columns="late"))
    assert list(wanted) == ["probability", "who"] and scorer.evaluate(valid)["auc"] > 0.8


@pytest.mark.slow
def test_a_tenth_of_the_rows_says_when_to_stop() -> None:
    frame = frame_of(300, 1)
    learned, valid = gp.from_frame(frame).split(fraction=0.9, seed=5, stratify="late")
    kinds: list[type[torch.nn.Module]] = [gp.models.Linear]
    kinds += [gp.models.XGB] if importlib.util.find_spec("xgboost") else []
    for kind in kinds:
        one = gp.fit(frame, target="late", model=kind, seed=5)
        other = gp.fit(learned, valid, target="late", model=kind, seed=5)
        assert type(one.model) is kind
        pd.testing.assert_frame_equal(one.predict_proba(frame), other.predict_proba(frame))


@pytest.mark.parametrize("cut", ["split", "folds"])
def test_the_groups_by_which_rows_were_split_are_no_feature(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups of few rows, which left early, a network learns that a group without rows in train leaves, too."""
    frame = frame_of(300, 1).assign(who=np.arange(300) // 6)
    data, loaders = gp.from_frame(frame, num_partitions=3), list[Any]()
    train, other = data.split(by="who", fraction=0.8, seed=2) if cut == "split" else next(iter(data.kfold(4, by="who")))
    note = "who (rows were split by it: the other part has none of its values)"
    assert gp.Features.auto(train.assign(high="x > 1"), target="late").omitted == [note]
    for apart in (data, gp.concat([train, other]), data.split(0.8, stratify="who")[0]):
        assert not gp.Features.auto(apart, target="late").omitted
    monkeypatch.setattr(gp.Trainer, "fit", lambda trainer, *given: loaders.extend(given))
    gp.fit(train, target="late", keep="who", model=gp.models.Linear)
    learned, held_out = ({*loader.table.keep["who"].tolist()} for loader in loaders)
    assert learned and held_out and not learned & held_out


def test_groups_that_are_held_out_have_the_same_share_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few people who answer otherwise than the others say that the first epoch was the best."""
    who = np.arange(800) // 10
    frame = pd.DataFrame({"who": who, "x": np.arange(800) % 7, "yes": np.arange(800) % 10 < who % 10 + 0.5})
    train = gp.from_frame(frame).split(by="who", fraction=0.8, seed=1)[0]
    loaders = list[Any]()
    monkeypatch.setattr(gp.Trainer, "fit", lambda trainer, *given: loaders.extend(given))
    for seed in range(6):
        loaders.clear()
        gp.fit(train, target="yes", model=gp.models.Linear, seed=seed)
        shares = [float(loader.table.target.mean()) for loader in loaders]
        assert shares[1] == pytest.approx(shares[0], abs=0.03)


def test_a_function_of_the_schema_makes_the_model() -> None:
    def make(schema: gp.Schema) -> torch.nn.Module:
        return gp.models.MLP.from_schema(schema, hidden=(4,))

    assert gp.fit(frame_of(100, 1), target="late", model=make).model.get_config()["hidden"] == [4]  # type: ignore[union-attr,operator]


def test_what_steps_add_becomes_features() -> None:
    frame = frame_of(100, 1).assign(tags="a;b")
    steps = [T.Derive(tags="split(tags, ';')", high="x > 0"), T.Drop("who")]
    scorer = gp.fit(frame, target="late", steps=steps, model=gp.models.Linear)
    assert scorer.schema.names[:-1] == ["x", "high", "name", "tags"]
    assert len(scorer.predict(frame.drop(columns="late"))) == 100


@pytest.mark.slow
def test_a_forecast_is_fitted_with_its_windows(caplog: pytest.LogCaptureFixture) -> None:
    days = pd.date_range("2024-01-01", periods=60).repeat(2)
    sales = gp.from_frame(pd.DataFrame({"day": days, "shop": ["a", "b"] * 60, "sales": np.arange(120) * 7 % 11 + 0.5}))
    train, valid, ahead = sales.split(by="day", at=["2024-02-10", "2024-02-20"])
    steps = [T.Lag("sales", 10, by="shop", order_by="day"), T.Select(["sales", "sales_lag_10_by_shop"])]
    features = gp.Features.auto(gp.Pipeline(steps).fit_transform(train), target="sales")
    by_hand = gp.Pipeline(steps, features).fit(train)
    for rows, loader in ((None, None), (valid, by_hand.loader(valid, history=train))):
        scorer = gp.fit(train, rows, target="sales", steps=steps, model=gp.models.Linear)
        model = gp.models.Linear.from_schema(by_hand.schema)
        gp.Trainer(model).fit(by_hand.loader(train, shuffle=True), loader)
        past = gp.concat([train, valid])
        wanted = gp.Scorer(by_hand, model).predict(ahead, history=past).compute()
        pd.testing.assert_frame_equal(scorer.predict(ahead.compute().drop(columns="sales"), history=past), wanted)
    assert not [record for record in caplog.records if "split part" in record.message]
    own_row = T.Rolling("sales", 2, by="shop", order_by="day")  # a leak, left out, so that nothing looks at a history
    assert len(gp.fit(train, valid, target="sales", steps=own_row, model=gp.models.Linear).predict(ahead)) == 20


@pytest.mark.slow
def test_a_fold_is_fitted_in_one_call() -> None:
    data = gp.from_frame(frame_of(200, 1))
    scores = gp.cross_validate(
        lambda train, valid: gp.fit(train, target="late", model=gp.models.Linear), data.kfold(2, stratify="late")
    )
    assert len(scores.rows) == 2 and scores.mean()["auc"] > 0.8


@pytest.mark.parametrize(
    ("options", "error", "where"),
    [
        ({}, BadCall, "fit"),
        ({"target": "late", "model": "xgboost"}, BadConfig, "fit(model=)"),
        ({"target": "late", "model": gp.models.MLP(1)}, BadConfig, "fit(model=)"),
        ({"target": "late", "seed": "one"}, BadConfig, "fit(seed=)"),
        ({"target": "late", "steps": gp.Features(["x"])}, BadConfig, "fit(steps=)"),
        ({"target": "late", "steps": ["x > 0"]}, BadConfig, "Pipeline"),
        ({"target": "x > 99"}, BadData, "target 'x > 99'"),
    ],
)
def test_what_makes_no_sense_is_named(options: dict[str, Any], error: Any, where: str) -> None:
    with raises(error, where=where):
        gp.fit(frame_of(60, 1), **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_only_row_of_a_class_is_learned_from(seed: int) -> None:
    classes = ["a", "b", "odd", "rare"]
    frame = pd.DataFrame({"x": range(42), "y": [*["a", "b"] * 20, "odd", "rare"]})
    scorer = gp.fit(frame, target="y", model=gp.models.Linear, seed=seed)
    assert list(scorer.schema.target.classes or ()) == classes
    assert scorer.predict(frame.head(1)).shape == (1, 1)


def test_a_table_that_is_too_small_to_draw_from_is_learned_from_whole() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [0.5, 1.5, 2.5, 3.5]})
    assert gp.fit(frame, target="y", model=gp.models.XGB).schema.num_rows == 4


def test_a_target_whose_texts_are_money_says_so(caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"x": range(60), "price": [f"${number % 50}" for number in range(60)]})
    features = gp.Features.auto(frame, target="price")
    note = next(remark for remark in features.remarks if "price" in remark)
    assert note.startswith("the target price: its texts are amounts of money: T.Derive(price=")
    assert f"Features.auto takes {note}" in caplog.messages


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2", "mape", "top_2_accuracy"])
@pytest.mark.slow
def test_errors_of_numbers_are_no_metrics_of_logits(metric: str) -> None:
    frame = frame_of(60, 1)
    scorer = gp.fit(frame, target="late", model=gp.models.Linear)
    loader = scorer.pipeline.loader(frame)
    with raises(BadConfig, where="Trainer(metrics=)", got=metric, match="says nothing of a binary target"):
        gp.Trainer(scorer.model, metrics=[metric]).evaluate(loader)


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda number: Decimal(number) / 4, T.Cast({"y": "float64"})),
        (lambda number: [number] * number or None, T.Derive(y="len(y) + 0.5")),
    ],
)
def test_a_target_that_nothing_casts_is_refused_and_its_remedy_works(make: Any, step: Any) -> None:
    frame = pd.DataFrame({"x": range(60), "y": [make(number % 7) for number in range(60)]})
    for valid in (None, frame):
        with raises(SchemaMismatch, where="target, column 'y'"):
            gp.fit(frame, valid, target="y", model=gp.models.Linear)
    assert list(gp.fit(frame, target="y", model=gp.models.Linear, steps=step).predict(frame.head(1))) == ["prediction"]


def test_the_task_may_be_said_where_a_target_counts() -> None:
    frame = frame_of(400, 1).assign(claims=np.random.default_rng(2).poisson(1.0, 400))
    assert gp.fit(frame, target="claims", model=gp.models.Linear).schema.task == "multiclass"
    scorer = gp.fit(frame, target="claims", task="regression", model=gp.models.Linear)
    assert scorer.schema.task == "regression"
    comparison = gp.compare(frame, frame, ["linear"], target="claims", task="regression")
    assert comparison.metric == "rmse"
    assert "task='regression'" in repr(gp.Features.auto(frame, target="claims", task="regression"))


@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.slow
def test_the_only_row_of_a_class_is_learned_from_where_classes_are_floats(has_gaps: bool) -> None:
    """As pandas has whole numbers beside missing values."""
    classes = (np.arange(300) % 4).astype(float)
    classes[[5, 77, 201]] = [7, 8, 9]
    classes[::10] = np.nan if has_gaps else 0
    frame = pd.DataFrame({"x": np.arange(300.0) % 17, "y": classes})
    for seed in range(4):
        scorer = gp.fit(frame, target="y", task="classification", model=gp.models.Linear, seed=seed)
        assert "probability_9" in scorer.predict_proba(frame.head(2)).columns
