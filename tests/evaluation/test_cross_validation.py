"""Cross-validation: a loop by hand gives the same, and scikit-learn's `cross_validate` on the same folds nearly so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import BadConfig, BadData, LeakageError
from tests.raising import raises

NUM_ROWS = 400


def table(num_rows: int = NUM_ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num_rows, 2))
    late = x[:, 0] + 0.5 * rng.normal(size=num_rows) > 0.5
    kind = np.array(["a", "b", "c"])[rng.integers(0, 3, num_rows)]
    name = pd.Series([f"N{row}" for row in range(num_rows)], dtype="str")
    return pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "late": late, "kind": kind, "y": 3 * x[:, 0] + 100, "name": name})


def make_fit(target: str = "late", keep: Any = ()) -> Callable[[gp.Dataset, gp.Dataset], Any]:
    def fit(train: gp.Dataset, valid: gp.Dataset) -> Any:
        features = gp.Features((["x", "z"], pre.StandardScaler()), target=target, keep=keep)
        pipeline = gp.Pipeline([], features, backend="cpu").fit(train)
        model = gp.models.Linear.from_schema(pipeline.schema)
        trainer = gp.Trainer(model, max_epochs=12, lr=0.1, weight_decay=0.0, device="cpu", progress=False)
        trainer.fit(pipeline.loader(train, batch_size=32, shuffle="rows"))
        return pipeline, trainer

    return fit


def test_a_kept_column_called_fold_stays() -> None:
    data = gp.from_frame(table().assign(fold=range(NUM_ROWS)))

    def fit(train: gp.Dataset, valid: gp.Dataset) -> Any:
        pipeline = gp.Pipeline([], gp.Features(["x"], target="late", keep=["fold"]), backend="cpu").fit(train)
        return pipeline, gp.models.Linear.from_schema(pipeline.schema)

    predictions = gp.cross_validate(fit, data.kfold(2, seed=2)).predictions
    assert list(predictions) == ["fold", "probability", "fold_keep"]
    assert predictions["fold_keep"].tolist() == list(range(NUM_ROWS)) and set(predictions["fold"]) == {1, 2}


@pytest.mark.slow
def test_it_is_a_loop_by_hand() -> None:
    frame = table()
    data, fit = gp.from_frame(frame, num_partitions=3), make_fit()
    folds = data.kfold(4, stratify="late", seed=2)
    scores = gp.cross_validate(fit, folds)
    rows, predictions = [], {}
    for number, (train, valid) in enumerate(folds, start=1):
        pipeline, trainer = fit(train, valid)
        loader = pipeline.loader(valid)
        report = trainer.evaluate(loader)
        figures = {name: report[name] for name in ("loss", "auc", "accuracy")}
        rows.append({"fold": number, "rows": len(valid), **figures})
        probabilities = gp.Scorer(pipeline, trainer.model).predict_proba(valid).to_pandas()["probability"]
        positions = frame.index[frame["x"].isin(valid.to_pandas()["x"])]
        predictions |= {position: (number, p) for position, p in zip(positions, probabilities, strict=True)}
    assert [{name: row[name] for name in row if name != "seconds"} for row in scores.rows] == rows
    assert all(row["seconds"] > 0 for row in scores.rows)
    found = scores.predictions
    assert found.index.tolist() == list(range(NUM_ROWS)) and list(found) == ["fold", "probability"]
    assert [*zip(found["fold"], found["probability"], strict=True)] == [predictions[row] for row in range(NUM_ROWS)]
    assert scores.predictions is found  # computed once
    assert scores.mean() == pytest.approx({name: np.mean([row[name] for row in rows]) for name in scores.mean()})
    assert scores.std()["auc"] == pytest.approx(np.std([row["auc"] for row in rows]))
    assert [type(scorer) for scorer in scores.scorers] == [gp.Scorer] * 4


@pytest.mark.slow
def test_it_is_scikit_learns() -> None:
    frame = table()
    folds = gp.from_frame(frame).kfold(5, seed=3)
    numbers = [np.flatnonzero(frame["x"].isin(valid.to_pandas()["x"])) for _, valid in folds]
    splits = [(np.setdiff1d(np.arange(NUM_ROWS), valid), valid) for valid in numbers]
    oracle, (x, y) = make_pipeline(StandardScaler(), LogisticRegression(C=1e6)), (frame[["x", "z"]], frame["late"])
    scores = gp.cross_validate(make_fit(), folds)
    theirs = cross_validate(oracle, x, y, cv=splits, scoring="roc_auc")["test_score"]
    assert [row["auc"] for row in scores.rows] == pytest.approx(theirs, abs=0.02)
    oof = cross_val_predict(oracle, x, y, cv=splits, method="predict_proba")[:, 1]
    assert np.abs(scores.predictions["probability"] - oof).max() < 0.12
    assert roc_auc_score(y, scores.predictions["probability"]) == pytest.approx(roc_auc_score(y, oof), abs=0.01)


@pytest.mark.slow
def test_rows_of_files_are_known_by_file_and_number(tmp_path: Path) -> None:
    frame = table()
    frame[:150].to_parquet(tmp_path / "a.parquet", row_group_size=40)
    frame[150:].to_parquet(tmp_path / "b.parquet", row_group_size=70)
    data = gp.read_parquet(tmp_path, partition_bytes=1).filter("z > -1")
    scores = gp.cross_validate(make_fit(keep=["name"]), data.kfold(3, by="name"))
    found, kept = scores.predictions, frame[frame["z"] > -1]
    assert found["name"].tolist() == kept["name"].tolist()
    assert found.index.tolist() == [row if row < 150 else (1 << 40) + row - 150 for row in kept.index]


def test_folds_forward_predict_their_own_rows() -> None:
    frame = table().assign(day=pd.date_range("2013-01-01", periods=NUM_ROWS, freq="h"))
    folds = gp.from_frame(frame, num_partitions=2).kfold(3, by="day", forward=True, gap="10h")
    scores = gp.cross_validate(make_fit("y"), folds)
    assert scores.predictions.index.tolist() == list(range(100, 400))
    assert scores.predictions["fold"].tolist() == [1] * 100 + [2] * 100 + [3] * 100
    assert np.abs(scores.predictions["prediction"] - frame["y"][100:]).max() < 3  # its own units, around 100
    assert scores.mean()["r2"] > 0.95


def test_a_scorer_a_model_and_other_metrics() -> None:
    data = gp.from_frame(table())
    folds = data.kfold(2)

    def of_scorer(train: gp.Dataset, valid: gp.Dataset) -> gp.Scorer:
        pipeline, trainer = make_fit("kind")(train, valid)
        return gp.Scorer(pipeline, trainer.model)

    def of_model(train: gp.Dataset, valid: gp.Dataset) -> Any:
        pipeline, trainer = make_fit("kind")(train, valid)
        return [pipeline, trainer.model]

    one, other = (gp.cross_validate(fit, folds, metrics=["auc", "f1"]) for fit in (of_scorer, of_model))
    assert list(one.mean()) == ["loss", "auc", "f1"] and one.mean() == other.mean()
    assert list(one.predictions) == ["fold", "probability_a", "probability_b", "probability_c"]


def test_a_scorer_is_judged_at_its_threshold_and_calibration() -> None:
    def fit(train: gp.Dataset, valid: gp.Dataset) -> gp.Scorer:
        pipeline, trainer = make_fit()(train.split(0.7)[0], valid)
        return gp.Scorer(pipeline, trainer.model, threshold=0.95)

    def calibrated(train: gp.Dataset, valid: gp.Dataset) -> gp.Scorer:
        return gp.calibrate(fit(train, valid), train.split(0.7)[1], method="temperature")

    folds = gp.from_frame(table()).kfold(2)
    strict, plain = (gp.cross_validate(each, folds, metrics=["recall", "log_loss"]) for each in (fit, calibrated))
    for scores in (strict, plain):
        for row, scorer, (_, valid) in zip(scores.rows, scores.scorers, folds, strict=True):
            report = scorer.evaluate(valid)
            assert (row["recall"], row["log_loss"]) == (report["recall"], report["log_loss"])
    assert strict.mean()["recall"] < plain.mean()["recall"] - 0.1
    assert strict.mean()["log_loss"] != plain.mean()["log_loss"]


def test_it_shows_figures_mean_and_deviation(caplog: pytest.LogCaptureFixture) -> None:
    def fit(train: gp.Dataset, valid: gp.Dataset) -> Any:
        gp.Features.auto(train, target="late")
        return make_fit()(train, valid)

    with caplog.at_level(logging.INFO, "gpupipe"):
        scores = gp.cross_validate(fit, gp.from_frame(table().assign(same=1.0)).kfold(2))
    assert sum("takes same: the same value in each of the first" in record.message for record in caplog.records) == 1
    lines = [record.message for record in caplog.records if record.message.startswith("cross_validate")]
    assert lines[0].startswith("cross_validate: fold 1 of 2: loss 0.") and "auc 0.9" in lines[1]
    assert repr(scores).splitlines()[0].split() == ["fold", "rows", "loss", "auc", "accuracy", "seconds"]
    assert [line.split()[0] for line in repr(scores).splitlines()[1:]] == ["1", "2", "mean", "std"]
    assert scores._repr_html_().count("<tr>") == 5


def test_a_fold_of_one_class_is_named_with_the_remedy() -> None:
    frame = table().assign(late=lambda rows: (rows.index >= 100) | (rows["x"] > 0))
    forward = gp.from_frame(frame.assign(row=range(NUM_ROWS))).kfold(3, by="row", forward=True)
    remedy = "kfold(..., stratify=) by the target's column, or fewer folds"
    with raises(BadData, where="cross_validate, fold 1", got=True, remedy=remedy, match="all rows to validate are of"):
        gp.cross_validate(make_fit(), forward)
    for first, where, match in (
        (100, "cross_validate, fold 1", "r2 is not defined for its 100 rows"),
        (0, "target 'y'", r"all rows have the same value, got 1.5.*\nin fold 1 of 3"),
    ):
        constant = frame.assign(y=frame["y"].where((frame.index < first) | (frame.index >= first + 100), 1.5))
        with raises(BadData, where=where, match=f"(?s){match}"):
            gp.cross_validate(
                make_fit("y"), gp.from_frame(constant.assign(row=frame.index)).kfold(3, by="row", forward=True)
            )
    few = gp.from_frame(frame[:3]).kfold(4)
    assert 0 in [len(valid) for _, valid in few]
    with pytest.raises(BadData, match="no row with a target to validate") as caught:
        gp.cross_validate(make_fit("y"), few)
    assert caught.value.__notes__[-1].startswith("in fold ")


def test_what_learned_from_an_earlier_fold_is_a_leak() -> None:
    frame = table()
    folds, fit = gp.from_frame(frame).kfold(2), make_fit()
    other = gp.from_frame(frame[::-1])  # what is not known for the rows of the folds
    outside, trainer = fit(other, other)

    def same_pipeline(train: gp.Dataset, valid: gp.Dataset) -> Any:
        return outside, gp.models.Linear.from_schema(outside.schema)

    def same_model(train: gp.Dataset, valid: gp.Dataset) -> Any:
        return fit(train, valid)[0], trainer

    for function, name in ((same_pipeline, "pipeline"), (same_model, "model")):
        with raises(LeakageError, where="cross_validate, fold 2", match=f"the {name} of an earlier fold"):
            gp.cross_validate(function, folds)


@pytest.mark.parametrize("part", ["all", "valid"])
def test_a_pipeline_that_was_fitted_on_rows_that_judge_it_is_a_leak(part: str) -> None:
    data, fit = gp.from_frame(table()), make_fit()
    with raises(LeakageError, where="cross_validate, fold 1", match="fitted on rows that judge it"):
        gp.cross_validate(lambda _, valid: fit(data if part == "all" else valid, valid), data.kfold(2))


def test_calls_that_make_no_sense() -> None:
    data = gp.from_frame(table())
    folds, fit = data.kfold(2), make_fit()
    with raises(BadConfig, where="cross_validate(fit=)", match="not a function"):
        gp.cross_validate(fit(data, data), folds)
    with raises(BadConfig, where="cross_validate(fit=)", match=r"the function takes \(train\)"):
        gp.cross_validate(lambda train: fit(train, train), folds)  # type: ignore[arg-type, misc]
    for bad in (data, 5, [], [data, data], [(data, data.to_pandas())], "folds", np.array(3), {}):
        with raises(BadConfig, where="cross_validate(folds=)", remedy="gp.from_frame(data).kfold(5)"):
            gp.cross_validate(fit, bad)  # type: ignore[arg-type]
    pipeline, trainer = fit(data, data)
    for result in (
        None,
        trainer,
        pipeline,
        trainer.model,
        (pipeline, None),
        (trainer, pipeline),
        gp.Scorer(pipeline, None),
    ):
        with raises(BadConfig, where="cross_validate, fold 1", remedy="return pipeline, trainer"):
            gp.cross_validate(lambda train, valid, result=result: result, folds)
    with raises(BadConfig, where="Trainer(metrics=)", got="aucc"):
        gp.cross_validate(fit, folds, metrics="aucc")

    def fails(train: gp.Dataset, valid: gp.Dataset) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        gp.cross_validate(fails, folds)
    assert caught.value.__notes__ == ["in fold 1 of 2"]


def test_classes_that_differ_between_folds_are_named() -> None:
    frame = table().assign(kind=lambda rows: np.where(rows.index < 10, "rare", rows["kind"]))

    def fit(train: gp.Dataset, valid: gp.Dataset) -> Any:
        return make_fit("kind")(train, valid)

    pairs = [
        (gp.from_frame(frame[10:]), gp.from_frame(frame[200:])),
        (gp.from_frame(frame), gp.from_frame(frame[::-1])),
    ]
    scores = gp.cross_validate(fit, pairs)
    with raises(BadData, where="cross_validate, fold 2", match="other columns"):
        _ = scores.predictions
    assert torch.is_tensor(next(iter(scores.scorers[0].model.parameters())))


def test_folds_of_two_tasks_are_refused() -> None:
    frame = table(60).assign(y=[1, 2, 3] * 20)
    few, many = ([gp.from_frame(part), gp.from_frame(part[::-1])] for part in (frame[:4], frame))
    fit = make_fit("y")
    with raises(BadConfig, where="cross_validate, fold 2", got="multiclass", remedy="Features(..., task='regression')"):
        gp.cross_validate(fit, [few, many])
