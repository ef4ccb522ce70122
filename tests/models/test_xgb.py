"""Trees as a model: XGBoost's by hand, from resident and streamed loaders, saved and loaded, and what is refused."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost as xgb

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.models import XGB
from gpupipe.models.booster import OBJECTIVES
from gpupipe.tensors.batch import Batch

SMALL = {"n_estimators": 60, "learning_rate": 0.6, "max_depth": 6, "early_stopping_rounds": 3}
TARGETS: dict[str, Any] = {
    "binary": "y > 0",
    "multiclass": "kind",
    "regression": "y",
    "two regressions": ["y", "z"],
    "multilabel": ["y > 0", "z > 1"],
}


def rows(count: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Numbers and names that tell a number in units far from 1, names with rare and missing ones, and weights."""
    draw = np.random.default_rng(seed)
    a, b, names = draw.normal(size=count), draw.normal(size=count), draw.choice(list("pqrstuvw"), count)
    y = 40 * (a * b + np.isin(names, list("qsv"))) + 5 * draw.normal(size=count) - 10
    kind = np.array(["low", "mid", "high"])[np.digitize(y, [-20, 30])]
    frame = pd.DataFrame({"a": a, "b": b, "name": names, "y": y, "z": b + a**2, "kind": kind})
    frame.loc[draw.random(count) < 0.05, "name"] = None
    return frame.assign(weight=draw.random(count).astype("float32"))


def fitted(target: Any, frame: pd.DataFrame, weight: str | None = "weight") -> gp.Pipeline:
    features = gp.Features(["a", "b"], (["name"], pre.Categorify()), target=target, weight=weight)
    return gp.Pipeline([], features, backend="cpu").fit(frame)


def trainer(model: torch.nn.Module, **more: Any) -> gp.Trainer:
    needed = (
        {"max_epochs": 1} if any(f.name == "max_epochs" and f.default is MISSING for f in fields(gp.Trainer)) else {}
    )
    return gp.Trainer(model, device="cpu", progress=False, **needed, **more)


def matrix(loader: Any, **options: Any) -> xgb.QuantileDMatrix:
    """The rows of a loader as XGBoost's matrix, made by hand."""
    numeric, codes = loader.table.numeric, loader.table.codes.float()
    values = torch.cat([numeric, torch.where(codes == 0, torch.nan, codes)], 1).numpy()
    target, weight = loader.table.target.numpy(), loader.table.weight
    options |= {} if weight is None else {"weight": weight.numpy()}
    types = ["q"] * numeric.shape[1] + ["c"] * codes.shape[1]
    return xgb.QuantileDMatrix(values, target, feature_types=types, enable_categorical=True, **options)


@pytest.mark.parametrize("task", TARGETS)
def test_it_is_xgboost_by_hand(task: str) -> None:
    frame = rows()
    pipeline = fitted(TARGETS[task], frame)
    train, valid = pipeline.loader(frame[:2400]), pipeline.loader(frame[2400:])
    model = XGB.from_schema(pipeline.schema, params={"subsample": 0.8, "reg_lambda": 2.0}, seed=5, **SMALL)
    history = trainer(model).fit(train, valid)
    learned = matrix(train)
    params = {
        "objective": OBJECTIVES[model.task],
        "eta": 0.6,
        "max_depth": 6,
        "subsample": 0.8,
        "lambda": 2.0,
        "seed": 5,
    }
    params |= {"num_class": 3} if task == "multiclass" else {}
    judged, losses = matrix(valid, ref=learned), {}
    found = xgb.train(
        params, learned, 60, evals=[(judged, "v")], early_stopping_rounds=3, evals_result=losses, verbose_eval=False
    )
    best = found.best_iteration + 1
    assert 1 < best < 57, "the fit is stopped"
    assert history.best["epoch"] == best and history.rows[-1]["epoch"] == best + 3
    by_hand = found[:best].predict(judged, output_margin=True)
    np.testing.assert_allclose(trainer(model).model(whole(valid)).numpy(), by_hand, rtol=0, atol=1e-6)
    (name, values), square = next(iter(losses["v"].items())), model.task == "regression"
    assert name in ("logloss", "mlogloss", "rmse")
    assert history.best["valid_loss"] == pytest.approx(values[best - 1] ** (2 if square else 1), rel=1e-6)
    assert trainer(model).evaluate(valid)["loss"] == pytest.approx(history.best["valid_loss"], rel=1e-5)


def whole(loader: Any) -> Batch:
    batch: Batch = loader.table.batch_of(loader.table.words)
    return batch
