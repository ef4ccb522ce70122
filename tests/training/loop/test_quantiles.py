"""Quantile regression: the loss and the metrics are scikit-learn's, from the schema to what a saved model predicts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_pinball_loss

import gpupipe as gp
from gpupipe import models
from gpupipe import preprocessing as pre
from gpupipe.errors import ArtifactError, BadConfig
from gpupipe.models.tabular import Tabular
from gpupipe.saving.artifact import write_manifest
from gpupipe.training.loop.quantiles import PinballLoss, compute_pinball
from tests.io.tables import DATA
from tests.raising import raises

LEVELS = (0.05, 0.5, 0.975)
NETWORKS = [
    cls
    for cls in map(models.__dict__.get, models.__all__)
    if inspect.isclass(cls) and issubclass(cls, Tabular) and "quantiles" in inspect.signature(cls).parameters
    if cls is not models.XGB  # no network; tests/models/test_xgb.py
]


def table(num_rows: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Rows whose spread grows with x, in thousands."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 3, num_rows)
    y = 5000 + 1000 * x + rng.normal(size=num_rows) * 100 * (1 + x)
    return pd.DataFrame({"x": x, "kind": np.where(x > 1, "a", "b"), "y": y, "w": rng.integers(1, 4, num_rows) * 1.0})


def pipeline_of(frame: pd.DataFrame, **options: Any) -> gp.Pipeline:
    options = {"target": "y"} | options
    features = gp.Features((["x"], pre.StandardScaler()), (["kind"], pre.Categorify()), **options)
    return gp.Pipeline([], features, backend="cpu").fit(frame)


def trained(pipeline: gp.Pipeline, frame: pd.DataFrame, **options: Any) -> gp.Trainer:
    model = models.MLP.from_schema(pipeline.schema, quantiles=LEVELS, hidden=(32,), seed=1)
    trainer = gp.Trainer(model, max_epochs=20, lr=0.01, device="cpu", progress=False, **options)
    trainer.fit(pipeline.loader(frame, batch_size=100, shuffle=True))
    return trainer


def test_the_loss_is_scikit_learns() -> None:
    rng = np.random.default_rng(3)
    output, target, weight = rng.normal(size=(50, 3)), rng.normal(size=50), rng.random(50)
    rows = compute_pinball(LEVELS, torch.from_numpy(output), torch.from_numpy(target)).numpy()
    columns = zip(LEVELS, output.T, strict=True)
    wanted = np.mean([mean_pinball_loss(target, each, alpha=q, sample_weight=weight) for q, each in columns])
    assert (rows * weight).sum() / weight.sum() == pytest.approx(wanted, rel=1e-12)
    batch = gp.Batch(torch.zeros(50, 0), torch.zeros(50, 0), torch.from_numpy(target))
    assert PinballLoss(LEVELS)(torch.from_numpy(output), batch).tolist() == rows.tolist()
    single = PinballLoss((0.9,))(torch.from_numpy(output[:, 0]), batch)
    assert single.mean().item() == pytest.approx(mean_pinball_loss(target, output[:, 0], alpha=0.9))


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, "w"])
def test_metrics_are_scikit_learns_in_the_targets_own_units(weight: str | None) -> None:
    frame = table()
    pipeline = pipeline_of(frame, weight=weight)
    trainer = trained(pipeline, frame)
    figures = trainer.evaluate(pipeline.loader(frame))
    outputs = trainer.predict(pipeline.loader(frame)).numpy()
    y, weights = frame["y"].to_numpy(), None if weight is None else frame["w"]
    losses = [
        mean_pinball_loss(y, column, alpha=q, sample_weight=weights)
        for q, column in zip(LEVELS, outputs.T, strict=True)
    ]
    assert list(figures) == ["loss", "pinball", "coverage"]
    assert figures["pinball"] == pytest.approx(np.mean(losses), rel=1e-5)
    inside = (outputs[:, 0] <= y) & (y <= outputs[:, 2])
    assert figures["coverage"] == pytest.approx(np.average(inside, weights=weights), abs=1e-3)
    assert figures["loss"] == pytest.approx(figures["pinball"] / y.std(), rel=1e-4)  # of the standardised target


@pytest.mark.slow
def test_quantiles_are_where_they_should_be() -> None:
    frame, new = table(4000), table(4000, seed=9)
    pipeline = pipeline_of(frame)
    predicted = gp.Scorer(pipeline, trained(pipeline, frame).model).predict(new)
    assert list(predicted) == ["prediction_q05", "prediction_q50", "prediction_q975"]
    for q, column in zip(LEVELS, predicted, strict=True):
        theirs = HistGradientBoostingRegressor(loss="quantile", quantile=q).fit(frame[["x"]], frame["y"])
        bar = mean_pinball_loss(new["y"], theirs.predict(new[["x"]]), alpha=q)
        assert mean_pinball_loss(new["y"], predicted[column], alpha=q) < 1.03 * bar
        assert (new["y"] <= predicted[column]).mean() == pytest.approx(q, abs=0.03)


@pytest.mark.slow  # 30,000 flights, three boosted models besides
def test_flights_are_as_well_known_as_to_a_boosted_tree() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", filters="notnull(arr_delay)").split(0.12, seed=1)[0]
    train, test = flights.split(by="time_hour", at="2013-10-01")
    numbers = [pre.SimpleImputer(), pre.StandardScaler()]
    ids = (["carrier", "origin", "dest"], pre.Categorify(min_frequency=20))
    features = gp.Features((["dep_delay", "distance", "hour"], numbers), ids, target="arr_delay")
    pipeline = gp.Pipeline([], features).fit(train)
    trainer = gp.Trainer(models.MLP.from_schema(pipeline.schema, quantiles=LEVELS, seed=1), max_epochs=8)
    trainer.fit(pipeline.loader(train, batch_size=512, shuffle=True))
    outputs = trainer.predict(pipeline.loader(test)).numpy()
    learned, judged = (pipeline.loader(part).arrays() for part in (train, test))
    x, new = (np.hstack([part["numeric"], part["codes"]]) for part in (learned, judged))
    for q, column in zip(LEVELS, outputs.T, strict=True):
        theirs = HistGradientBoostingRegressor(loss="quantile", quantile=q).fit(x, learned["target"]).predict(new)
        bar = mean_pinball_loss(judged["target"], theirs, alpha=q)
        assert mean_pinball_loss(judged["target"], column, alpha=q) < 1.06 * bar
        assert (judged["target"] <= column).mean() == pytest.approx(q, abs=0.08)  # another season


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS, ids=lambda cls: cls.__name__)
def test_every_network_predicts_quantiles(network: type[Tabular]) -> None:
    frame = table(300)
    pipeline = pipeline_of(frame)
    model = network.from_schema(pipeline.schema, quantiles=np.array(LEVELS))
    config = model.get_config()
    assert (config["quantiles"], config["outputs"], model.quantiles) == (list(LEVELS), 3, LEVELS)
    again = type(model)(**config)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    trainer = gp.Trainer(model, max_epochs=1, device="cpu", progress=False)
    history = trainer.fit(pipeline.loader(frame, batch_size=100), pipeline.loader(frame))
    assert {"valid_loss", "valid_pinball", "valid_coverage"} <= history.rows[0].keys()
    outputs = trainer.predict(pipeline.loader(frame))
    assert outputs.shape == (300, 3) and bool((outputs.diff(dim=1) >= 0).all())
    one = network.from_schema(pipeline.schema, quantiles=[0.9])
    assert one.eval()(next(iter(pipeline.loader(frame)))).shape == (300,)


def test_they_cross_in_training_and_never_in_evaluation() -> None:
    model = models.Linear(1, quantiles=(0.1, 0.9))
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1.0, -1.0]))
    batch = gp.Batch(torch.zeros(2, 1), torch.zeros(2, 0).int())
    assert model.train()(batch).tolist() == [[1.0, -1.0]] * 2
    assert model.eval()(batch).tolist() == [[-1.0, 1.0]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, [pre.Log1p(), pre.StandardScaler()]])
def test_they_go_through_a_target_transform(transform: Any) -> None:
    frame = table().assign(y=lambda rows: np.exp(rows["x"] + np.random.default_rng(0).normal(size=len(rows)) / 3))
    pipeline = pipeline_of(frame, target_transform=transform)
    predicted = gp.Scorer(pipeline, trained(pipeline, frame).model).predict(frame)
    assert [(frame["y"] <= predicted[name]).mean() for name in predicted] == pytest.approx(LEVELS, abs=0.03)
    assert str(predicted.dtypes.iloc[0]) == ("float32" if transform is None else "float64")


def test_a_saved_model_predicts_them(tmp_path: Path) -> None:
    frame = table(300)
    pipeline = pipeline_of(frame, keep=["w"])
    model = models.MLP.from_schema(pipeline.schema, quantiles=(0.005, 0.1, 0.25), hidden=(8,), seed=3)
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run")
    assert scorer.model is not None and scorer.model.quantiles == (0.005, 0.1, 0.25)
    predicted = scorer.predict(frame)
    assert list(predicted) == ["prediction_q005", "prediction_q10", "prediction_q25", "w"]
    pd.testing.assert_frame_equal(predicted, gp.Scorer(pipeline, model).predict(frame))
    assert scorer.predict(frame[:0]).shape == (0, 4)
    classes = pipeline_of(frame.assign(y=frame["y"] > 7000))
    with raises(BadConfig, where="MLP(quantiles=)", got="binary of ['y']"):
        gp.save(tmp_path / "classes", classes, model)
    for bad in ([0.5, 0.1, 0.9], [0.1, 0.2], [0.0, 0.5, 1.0]):
        text = (tmp_path / "run" / "model.json").read_text()
        forge(tmp_path / "run", text.replace("0.005,\n   0.1,\n   0.25", ",\n   ".join(map(str, bad))))
        with pytest.raises(ArtifactError):
            gp.load(tmp_path / "run")
        forge(tmp_path / "run", text)


def forge(folder: Path, text: str) -> None:
    """Write another model.json, and checksums that go with it."""
    assert (folder / "model.json").exists()
    (folder / "model.json").write_text(text)
    (folder / "manifest.json").unlink()
    write_manifest(folder)


@pytest.mark.parametrize(
    "bad", [(0.5, 0.05), (0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (), 0.5, "0.5", ("0.5",), (float("nan"),), [[0.1, 0.9]]]
)
def test_quantiles_out_of_order_or_range_are_refused(bad: Any) -> None:
    schema = pipeline_of(table(100)).schema
    for make in (lambda: models.MLP(3, quantiles=bad), lambda: models.Linear.from_schema(schema, quantiles=bad)):
        with pytest.raises(BadConfig, match=r"\(quantiles=\).*\nExpected ascending numbers between 0 and 1"):
            make()


def test_calls_that_make_no_sense() -> None:
    frame = table(100)
    pipeline = pipeline_of(frame)
    with raises(BadConfig, where="MLP(outputs=)", got=2):
        models.MLP(3, outputs=2, quantiles=LEVELS)
    for target in ("y > 6000", "kind", ["x", "y"]):
        schema = gp.Pipeline([], gp.Features(["w"], target=target)).fit(frame).schema
        with raises(BadConfig, where="MLP.from_schema(quantiles=)"):
            models.MLP.from_schema(schema, quantiles=LEVELS)
    plain = models.MLP.from_schema(pipeline.schema)
    remedy = "gp.models.MLP.from_schema(pipeline.schema, quantiles=(0.05, 0.5, 0.95))"
    with raises(BadConfig, where="Trainer(loss=)", got="pinball", remedy=remedy):
        gp.Trainer(plain, max_epochs=1, loss="pinball")
    for name in ("pinball", "coverage"):
        with raises(BadConfig, where="Trainer(metrics=)", got=name, remedy=remedy):
            gp.Trainer(plain, max_epochs=1, metrics=[name])
    model = models.MLP.from_schema(pipeline.schema, quantiles=LEVELS)
    with raises(BadConfig, where="Trainer(loss=)", got="mse", remedy="loss='auto'"):
        gp.Trainer(model, max_epochs=1, loss="mse")
    with raises(BadConfig, where="Trainer(metrics=)", got="rmse"):
        gp.Trainer(model, max_epochs=1, metrics=["rmse"])
    with raises(BadConfig, where="Trainer(label_smoothing=)"):
        gp.Trainer(model, max_epochs=1, label_smoothing=0.1).fit(pipeline.loader(frame))
    gp.Trainer(model, max_epochs=1, loss="pinball", metrics="pinball", progress=False).fit(pipeline.loader(frame))


def test_the_loss_by_scikit_learns_name_says_what_to_write() -> None:
    with raises(BadConfig, where="Trainer(loss=)", got="quantile", match="quantiles=\\(0.05, 0.5, 0.95\\)"):
        gp.Trainer(gp.models.MLP(1), loss="quantile")
