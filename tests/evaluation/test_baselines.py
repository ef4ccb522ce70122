"""Baselines on the block: the same figures as scikit-learn by hand, in one table with the network."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_squared_error, roc_auc_score

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import baselines
from gpupipe.errors import BackendMissing, BadConfig, SchemaMismatch
from gpupipe.models import MLP
from tests.raising import raises

FAST = ["linear", "hist-gradient-boosting"]


def frame_of(rows: int = 600, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2))
    name = draw.integers(0, 4, rows)
    y = x[:, 0] - x[:, 1] + 2.0 * (name == 1) + 0.3 * draw.normal(size=rows)
    return pd.DataFrame(
        {
            "a": x[:, 0],
            "b": 100 * x[:, 1],
            "name": np.array(["red", "green", "blue", "black"])[name],
            "y": y,
            "size": pd.cut(y, [-99, -1, 1, 99], labels=["S", "M", "L"]).astype("str"),
            "weight": draw.integers(0, 3, rows) + 0.5,
        }
    )


def loaders(target: Any, *, valid: pd.DataFrame | None = None, **more: Any) -> tuple[Any, Any, gp.Pipeline]:
    train, other = frame_of(), frame_of(300, seed=4) if valid is None else valid
    features = gp.Features(["a", "b"], (["name"], pre.Categorify()), target=target, **more)
    pipeline = gp.Pipeline([], features, backend="cpu").fit(train)
    return pipeline.loader(train, shuffle="rows"), pipeline.loader(other, batch_size=64), pipeline


def arrays(loader: Any) -> tuple[Any, Any, Any]:
    block = loader.table
    one_hot = np.eye(6)[block.codes[:, 0].numpy()]
    weight = None if block.weight is None else block.weight.numpy()
    return np.hstack([block.numeric.numpy(), one_hot]), block.target.numpy(), weight


@pytest.mark.parametrize("weighted", [False, True])
def test_the_linear_model_is_scikit_learns_by_hand(weighted: bool) -> None:
    train, valid, _ = loaders("y > 0", **({"weight": "weight"} if weighted else {}))
    found = gp.baselines(train, valid, only=["linear"])["LogisticRegression"]
    (x, y, w), (other, truth, other_w) = arrays(train), arrays(valid)
    spread = x[:, :2].std(0)
    x[:, :2] /= spread
    other[:, :2] /= spread
    oracle = LogisticRegression(max_iter=1000).fit(x, y, sample_weight=w)
    chances = oracle.predict_proba(other)[:, 1]
    assert found["auc"] == pytest.approx(roc_auc_score(truth, chances, sample_weight=other_w), abs=2e-4)
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, chances >= 0.5, sample_weight=other_w), abs=5e-3)
    assert found["seconds"] > 0


def test_gradient_boosting_is_scikit_learns_with_ids_as_categories() -> None:
    train, valid, _ = loaders("y > 0")
    found = gp.baselines(train, valid, only=["hist-gradient-boosting"], seed=5)["HistGradientBoostingClassifier"]

    def matrix(loader: Any) -> Any:
        return np.hstack([loader.table.numeric.numpy(), loader.table.codes.numpy()])

    oracle = HistGradientBoostingClassifier(categorical_features=[False, False, True], random_state=5)
    oracle.fit(matrix(train), arrays(train)[1])
    area = roc_auc_score(arrays(valid)[1], oracle.predict_proba(matrix(valid))[:, 1])
    assert found["auc"] == pytest.approx(area, abs=1e-6)


def test_a_regression_is_compared_in_the_targets_own_units() -> None:
    train, valid, _ = loaders("y", target_transform=[pre.StandardScaler()])
    found = gp.baselines(train, valid, only=FAST)
    (x, y, _), (other, _, _) = arrays(train), arrays(valid)
    spread = x[:, :2].std(0)
    x[:, :2] /= spread
    other[:, :2] /= spread
    truth, scale = frame_of(300, seed=4)["y"], frame_of()["y"]
    output = Ridge().fit(x, y).predict(other) * scale.std(ddof=0) + scale.mean()
    assert found["Ridge"]["rmse"] == pytest.approx(mean_squared_error(truth, output) ** 0.5, rel=2e-3)
    assert [row["model"] for row in found.rows] == ["Ridge", "HistGradientBoostingRegressor"]  # the smaller the better


def test_several_targets() -> None:
    train, valid, _ = loaders(["y", "weight"])
    found = gp.baselines(train, valid)
    models = {"Ridge", "RandomForestRegressor", "HistGradientBoostingRegressor"}
    assert models <= {row["model"] for row in found.rows}
    block = train.table
    oracle = HistGradientBoostingRegressor(categorical_features=[False, False, True], random_state=0)
    matrix = np.hstack([block.numeric.numpy(), block.codes.numpy()])
    other = np.hstack([valid.table.numeric.numpy(), valid.table.codes.numpy()])
    known, truth = train.arrays()["target"], valid.arrays()["target"]  # in their own units
    errors = [mean_squared_error(truth[:, t], oracle.fit(matrix, known[:, t]).predict(other)) ** 0.5 for t in range(2)]
    assert found["HistGradientBoostingRegressor"]["rmse"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_classes_and_one_that_training_never_met() -> None:
    train, valid, pipeline = loaders("size")
    found = gp.baselines(train, valid)
    assert all(row["accuracy"] > 0.7 for row in found.rows)
    part = frame_of()
    some = pipeline.loader(part[part["size"] != "S"])
    fewer = gp.baselines(some, valid, only=FAST, metrics=["accuracy", "log_loss"])
    present = 1 - (frame_of(300, seed=4)["size"] == "S").mean()
    assert all(0.5 < row["accuracy"] <= present and np.isfinite(row["log_loss"]) for row in fewer.rows)


def test_networks_stand_in_the_same_table_with_the_trainers_figures() -> None:
    train, valid, pipeline = loaders("y > 0")
    model = MLP.from_schema(pipeline.schema, hidden=(8,))
    trainer = gp.Trainer(model, max_epochs=2, device="cpu", progress=False)
    trainer.fit(train)
    found = gp.baselines(train, valid, {"small": trainer, "again": trainer}, only=["linear"])
    figures = trainer.evaluate(valid)
    assert found["small"]["auc"] == pytest.approx(figures["auc"], abs=1e-6)
    assert found["small"]["accuracy"] == pytest.approx(figures["accuracy"], abs=1e-6)
    assert found["small"]["seconds"] is None
    areas = [row["auc"] for row in found.rows]
    assert areas == sorted(areas, reverse=True)
    assert "MLP" in repr(gp.baselines(train, valid, trainer, only=["linear"]))


def test_the_order_of_a_shuffled_valid_loader_does_not_matter() -> None:
    train, valid, pipeline = loaders("y > 0")
    shuffled = pipeline.loader(frame_of(300, seed=4), batch_size=64, shuffle="rows", seed=9)
    trainer = gp.Trainer(MLP.from_schema(pipeline.schema, hidden=(8,)), max_epochs=1, device="cpu", progress=False)
    one, other = (gp.baselines(train, loader, trainer, only=["linear"]) for loader in (valid, shuffled))
    assert one["MLP"]["auc"] == pytest.approx(other["MLP"]["auc"], abs=1e-7)


def test_numbers_alone_and_ids_alone() -> None:
    frame = frame_of()
    for given in (gp.Features(["a"], target="y > 0"), gp.Features((["name"], pre.Categorify()), target="y > 0")):
        loader = gp.Pipeline([], given, backend="cpu").fit(frame).loader(frame)
        assert all(row["auc"] > 0.6 for row in gp.baselines(loader, loader, only=FAST).rows)


def test_it_reads_well() -> None:
    train, valid, _ = loaders("y > 0")
    found = gp.baselines(train, valid, only=["linear"])
    head, line = repr(found).splitlines()
    assert head.split() == ["model", "auc", "accuracy", "seconds"]
    assert line.startswith("LogisticRegression")
    assert found._repr_html_().count("<tr>") == 2


def test_xgboost_asked_for_by_name_has_to_be_there() -> None:
    train, valid, _ = loaders("y > 0")
    if importlib.util.find_spec("xgboost"):
        assert gp.baselines(train, valid, only=["xgboost"])["XGBClassifier"]["auc"] > 0.9
        train, valid, _ = loaders(["y", "weight"])
        assert gp.baselines(train, valid, only=["xgboost"])["XGBRegressor"]["rmse"] < 1
    else:
        with raises(BackendMissing, where="baselines(only=)", got="xgboost") as caught:
            gp.baselines(train, valid, only=["xgboost"])
        assert caught.value.remedy == "pip install xgboost"
        every = baselines.make_baselines(baselines.BASELINES, baselines.MatrixLayout(1, [], "binary", 1), on_gpu=False)
        assert len(every) == len(baselines.BASELINES) - 1


def test_what_makes_no_sense_is_refused() -> None:
    train, valid, _ = loaders("y > 0")
    with raises(BadConfig, where="baselines(only=)", got="forrest"):
        gp.baselines(train, valid, only=["forrest"])
    with raises(BadConfig, where="baselines(valid=)", got="list"):
        gp.baselines(train, [])
    frame = frame_of()
    other = gp.Pipeline([], gp.Features(["a"], target="y > 0"), backend="cpu").fit(frame).loader(frame)
    with raises(SchemaMismatch, where="baselines", got=["a", "target"]):
        gp.baselines(train, other)
    plain = gp.Pipeline([], gp.Features(["a"]), backend="cpu").fit(frame).loader(frame)
    with raises(BadConfig, where="baselines", got=["a"]):
        gp.baselines(plain, plain)
