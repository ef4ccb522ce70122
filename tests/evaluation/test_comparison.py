"""Comparisons: scikit-learn's figures by hand, all models on equal terms, and the best one saved."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_squared_error, roc_auc_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend import candidates
from gpupipe.errors import BackendMissing, BadConfig, BadData, GpupipeError, SchemaMismatch
from gpupipe.evaluation.entrants import TrainRows
from gpupipe.evaluation.host_rows import make_layout
from gpupipe.models import MLP
from tests.raising import raises

FAST = ["linear", "hist-gradient-boosting"]
NEEDS_XGBOOST = pytest.mark.skipif(not importlib.util.find_spec("xgboost"), reason="XGBoost is not installed")


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


def test_a_model_is_made_by_what_the_fit_knows_of_the_rows() -> None:
    """The choice of `gp.models.auto` goes by their number, and networks embed numbers by the edges of their bins."""
    train, valid, pipeline = loaders("y > 0")
    assert train.schema.edges.keys() == {"a", "b"} and train.schema.edges == pipeline.schema.edges

    def make(schema: gp.Schema) -> MLP:
        assert (schema.num_rows, schema.edges, schema.ranges) == (600, pipeline.schema.edges, pipeline.schema.ranges)
        assert type(gp.models.auto(schema)) is type(gp.models.auto(pipeline.schema)) is gp.models.TabM
        return MLP.from_schema(schema, hidden=(4,))

    assert gp.compare(train, valid, ["linear", make])["MLP"]["auc"] > 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_the_linear_model_is_scikit_learns_by_hand(weighted: bool) -> None:
    train, valid, _ = loaders("y > 0", **({"weight": "weight"} if weighted else {}))
    row = gp.compare(train, valid, ["linear"])["linear"]
    (x, y, w), (other, truth, other_w) = arrays(train), arrays(valid)
    spread = x[:, :2].std(0)
    x[:, :2] /= spread
    other[:, :2] /= spread
    oracle = LogisticRegression(max_iter=1000).fit(x, y, sample_weight=w)
    chances = oracle.predict_proba(other)[:, 1]
    assert row["auc"] == pytest.approx(roc_auc_score(truth, chances, sample_weight=other_w), abs=2e-4)
    assert row["accuracy"] == pytest.approx(accuracy_score(truth, chances >= 0.5, sample_weight=other_w), abs=5e-3)
    assert row["fit_seconds"] > 0 and row["predict_seconds"] > 0 and row["bytes"] >= 4 * (2 + 6 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["categories", "numbers"])
def test_gradient_boosting_is_scikit_learns_with_either_encoding(encoding: str) -> None:
    train, valid, _ = loaders("y > 0")

    def matrix(loader: Any) -> Any:
        return np.hstack([loader.table.numeric.numpy(), loader.table.codes.numpy()])

    masked = [False, False, True] if encoding == "categories" else None
    oracle = HistGradientBoostingClassifier(categorical_features=masked, random_state=5)
    oracle.fit(matrix(train), arrays(train)[1])
    candidate = candidates.make_named("hist-gradient-boosting", "trees", make_layout(train.schema), 5)
    rows = TrainRows(train, candidate.layout, 0).host
    candidate.fit(rows, encoding)
    other = TrainRows(valid, candidate.layout, 0).host
    chances = oracle.predict_proba(matrix(valid))[:, 1]
    np.testing.assert_allclose(1 / (1 + np.exp(-candidate.predict(other))), chances, atol=1e-6)
    row = gp.compare(train, valid, ["hist-gradient-boosting"], seed=5)["hist-gradient-boosting"]
    if row["ids"] == encoding:
        assert row["auc"] == pytest.approx(roc_auc_score(arrays(valid)[1], chances), abs=1e-6)


def noisy_ids(seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Three useful numbers beside three columns of 180 to 250 values that mean nothing; 7 % of the rows are true."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(8000, 3)), columns=["a", "b", "c"])
    frame = frame.assign(y=frame.sum(axis=1) + draw.normal(size=8000) > 3)
    for name, size in (("p", 180), ("q", 210), ("r", 250)):
        frame[name] = draw.integers(0, size, 8000).astype("str")
    return frame[:4000], frame[4000:]


NOISY = gp.Features(["a", "b", "c"], (["p", "q", "r"], pre.Categorify()), target="y")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ids_that_mean_nothing_do_not_handicap_a_boosted_tree(seed: int) -> None:
    train, valid = noisy_ids(seed)
    pipeline = gp.Pipeline([], NOISY, backend="cpu").fit(train)
    loader, other = pipeline.loader(train), pipeline.loader(valid)
    row = gp.compare(loader, other, ["hist-gradient-boosting"])["hist-gradient-boosting"]
    block, judged = loader.table, other.table
    oracle = HistGradientBoostingClassifier(random_state=0).fit(block.numeric.numpy(), block.target)
    area = roc_auc_score(judged.target, oracle.predict_proba(judged.numeric.numpy())[:, 1])
    oracle.set_params(categorical_features=[False] * 3 + [True] * 3)
    matrices = [np.hstack([table.numeric.numpy(), table.codes.numpy()]) for table in (block, judged)]
    handicapped = roc_auc_score(judged.target, oracle.fit(matrices[0], block.target).predict_proba(matrices[1])[:, 1])
    assert handicapped < area - 0.05  # what all ids as categories cost
    assert row["auc"] > area - 0.015 and row["ids"] == "numbers"


@pytest.mark.slow
def test_ids_that_matter_are_categories_and_the_table_says_by_what() -> None:
    draw = np.random.default_rng(0)
    effect = draw.normal(size=60)
    place = draw.integers(0, 60, 6000)
    frame = pd.DataFrame({"x": draw.normal(size=6000), "place": place.astype("str")})
    frame["few"] = draw.choice(["a", "b"], 6000)
    frame["y"] = effect[place] + 0.5 * draw.normal(size=6000)
    features = gp.Features(["x"], (["place", "few"], pre.Categorify()), target="y")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame[:3000])
    train, valid = pipeline.loader(frame[:3000]), pipeline.loader(frame[3000:])
    comparison = gp.compare(train, valid, {"line": "linear", "trees": "hist-gradient-boosting"})
    assert comparison["trees"]["ids"] == "categories" and comparison["line"]["ids"] == "one-hot"
    (note,) = comparison.notes
    assert note.startswith("trees: takes ids as categories, by a tenth of train (categories 0.5")
    assert "categories up to 4 ids" in note and "numbers" in note
    held = TrainRows(train, make_layout(train.schema), 0).parts[1]
    assert len(held) == 300  # and none of them is of valid
    rows = {tuple(row.tolist()) for row in held.words[:, :1]}
    assert rows <= {tuple(row.tolist()) for row in train.table.words[:, :1]}


@pytest.mark.slow
def test_classes_of_few_rows_do_not_make_gradient_boosting_diverge() -> None:
    draw = np.random.default_rng(1)
    classes = np.concatenate([np.arange(8, 16).repeat(3), draw.integers(0, 8, 4000)])
    points = 3 * draw.normal(size=(16, 2))[classes] + 0.3 * draw.normal(size=(len(classes), 2))
    frame = pd.DataFrame(points, columns=["x", "y"]).assign(state=[f"s{each}" for each in classes])
    pipeline = gp.Pipeline([], gp.Features(["x", "y"], target="state"), backend="cpu").fit(frame)
    loader = pipeline.loader(frame)
    comparison = gp.compare(loader, loader, ["hist-gradient-boosting"], metric="log_loss")
    block, row = loader.table, comparison["hist-gradient-boosting"]
    plain = HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    diverged = plain.fit(block.numeric.numpy(), block.target).score(block.numeric.numpy(), block.target)
    assert diverged < 0.7 and row["accuracy"] > 0.95 and row["log_loss"] < 0.2  # of the very rows they learned from
    assert "l2_regularization=1" in repr(comparison)


@pytest.mark.slow
def test_a_regression_is_compared_in_the_targets_own_units() -> None:
    train, valid, _ = loaders("y", target_transform=[pre.StandardScaler()])
    comparison = gp.compare(train, valid, FAST)
    (x, y, _), (other, _, _) = arrays(train), arrays(valid)
    spread = x[:, :2].std(0)
    x[:, :2] /= spread
    other[:, :2] /= spread
    truth, scale = frame_of(300, seed=4)["y"], frame_of()["y"]
    output = Ridge().fit(x, y).predict(other) * scale.std(ddof=0) + scale.mean()
    assert comparison["linear"]["rmse"] == pytest.approx(mean_squared_error(truth, output) ** 0.5, rel=2e-3)
    assert [row["model"] for row in comparison.rows] == ["linear", "hist-gradient-boosting"]  # the smaller the better
    assert comparison["linear"]["parameters"] == 2 + 6 + 1 and comparison["hist-gradient-boosting"]["nodes"] > 100
    assert comparison.rows[1]["difference"] == comparison.rows[1]["rmse"] - comparison.rows[0]["rmse"] > 0


@pytest.mark.slow
def test_several_targets() -> None:
    train, valid, _ = loaders(["y", "weight"])
    comparison = gp.compare(train, valid)
    assert {row["model"] for row in comparison.rows} >= {*candidates.ESTIMATORS}
    block, row = train.table, comparison["hist-gradient-boosting"]
    oracle = HistGradientBoostingRegressor(
        categorical_features=[False, False, True] if row["ids"] == "categories" else None, random_state=0
    )
    matrix = np.hstack([block.numeric.numpy(), block.codes.numpy()])
    other = np.hstack([valid.table.numeric.numpy(), valid.table.codes.numpy()])
    learned, truth = train.arrays()["target"], valid.arrays()["target"]  # in their own units
    errors = [
        mean_squared_error(truth[:, t], oracle.fit(matrix, learned[:, t]).predict(other)) ** 0.5 for t in range(2)
    ]
    assert row["rmse"] == pytest.approx(np.mean(errors), rel=1e-4)


@pytest.mark.slow
def test_classes_and_one_that_training_never_met() -> None:
    train, valid, pipeline = loaders("size")
    assert all(row["accuracy"] > 0.7 for row in gp.compare(train, valid).rows)
    part = frame_of()
    some = pipeline.loader(part[part["size"] != "S"])
    fewer = gp.compare(some, valid, metric="log_loss")
    present = 1 - (frame_of(300, seed=4)["size"] == "S").mean()
    assert all(0.5 < row["accuracy"] <= present and np.isfinite(row["log_loss"]) for row in fewer.rows)
    losses = [row["log_loss"] for row in fewer.rows]
    assert losses == sorted(losses)


def test_estimators_as_objects_get_a_frame_and_stay_as_they_were() -> None:
    train, valid, _ = loaders("y > 0", weight="weight")
    seen: list[pd.DataFrame] = []

    class Probe(ClassifierMixin, BaseEstimator):
        def fit(self, frame: Any, target: Any) -> Probe:
            seen.append(frame)
            self.share_ = target.mean()
            return self

        def predict_proba(self, frame: Any) -> Any:
            return np.tile([1 - self.share_, self.share_], (len(frame), 1))

    forest = RandomForestClassifier(n_estimators=20, random_state=3)
    comparison = gp.compare(train, valid, [forest, GaussianNB(), Probe(), "linear"])
    assert [*seen[0].columns] == ["a", "b", "name"] and [*map(str, seen[0].dtypes)] == ["float32", "float32", "int32"]
    assert not hasattr(forest, "estimators_") and comparison["RandomForestClassifier"]["ids"] == "numbers"
    assert comparison.notes == ["Probe: takes no weights, so it learned without"]
    matrix, other = (np.hstack([each.table.numeric.numpy(), each.table.codes.numpy()]) for each in (train, valid))
    _, truth, weight = arrays(valid)
    oracle = forest.fit(matrix, arrays(train)[1], sample_weight=arrays(train)[2])
    area = roc_auc_score(truth, oracle.predict_proba(other)[:, 1], sample_weight=weight)
    assert comparison["RandomForestClassifier"]["auc"] == pytest.approx(area, abs=1e-6)
    assert comparison["Probe"]["auc"] == 0.5
    assert comparison.models["GaussianNB"].predict(seen[0]).shape == (600,)


def test_estimators_get_targets_and_weights_without_gaps_between_their_values() -> None:
    class Probe(RegressorMixin, BaseEstimator):  # like LightGBM's, which hands C the arrays as they are
        def fit(self, frame: Any, target: Any, sample_weight: Any = None) -> Probe:
            assert target.flags.c_contiguous and sample_weight.flags.c_contiguous
            return self

        def predict(self, frame: Any) -> Any:
            return np.zeros(len(frame))

    train, valid, _ = loaders("y", weight="weight")
    assert "Probe" in [row["model"] for row in gp.compare(train, valid, [Probe()]).rows]


def test_objects_of_trees_choose_their_encoding_unless_their_settings_have() -> None:
    train, valid, _ = loaders("y > 0")
    settled = HistGradientBoostingClassifier(categorical_features=["name"], max_iter=20)
    models = {"free": HistGradientBoostingClassifier(max_iter=20), "settled": settled}
    comparison = gp.compare(train, valid, models)
    (note,) = comparison.notes
    assert note.startswith("free: takes ids as") and comparison["settled"]["ids"] == "numbers"
    assert comparison.models["settled"].is_categorical_.tolist() == [False, False, True]


@pytest.mark.slow
@NEEDS_XGBOOST
def test_xgboost_by_name_is_our_trees_which_can_be_saved(tmp_path: Path) -> None:
    train, valid, pipeline = loaders("y > 0")
    comparison = gp.compare(train, valid, ["xgboost"], seed=2)
    model, row = comparison.models["xgboost"], comparison["xgboost"]
    assert isinstance(model, gp.models.XGB) and row["auc"] > 0.9
    held = TrainRows(train, make_layout(train.schema), 2).parts[1]
    areas = {}
    for encoding, most in (("categories", 1024), ("numbers", 0)):
        alone = gp.models.XGB.from_schema(pipeline.schema, max_categories=most, seed=2)
        learned = TrainRows(train, make_layout(train.schema), 2)
        gp.Trainer(alone, progress=False).fit(*map(learned.make_loader, learned.parts))
        whole = held.batch_of(held.words)
        areas[encoding] = roc_auc_score(whole.target, alone(whole).detach())
    assert row["ids"] == max(areas, key=areas.__getitem__)
    scores = f"categories {areas['categories']:.4g}, numbers {areas['numbers']:.4g}"
    assert comparison.notes == [f"xgboost: takes ids as {row['ids']}, by a tenth of train ({scores})"]
    gp.save(tmp_path / "run", pipeline, model)
    frame = frame_of(300, seed=4)
    chances = gp.load(tmp_path / "run").predict_proba(frame)["probability"]
    assert roc_auc_score(frame["y"] > 0, chances) == pytest.approx(row["auc"], abs=1e-6)


@NEEDS_XGBOOST
def test_our_trees_as_objects_keep_their_encoding() -> None:
    train, valid, pipeline = loaders("y > 0")
    model = gp.models.XGB.from_schema(pipeline.schema, n_estimators=20, max_categories=0)
    trainer = gp.Trainer(gp.models.XGB.from_schema(pipeline.schema, n_estimators=20), progress=False)
    comparison = gp.compare(train, valid, {"numbers": model, "categories": trainer})
    assert all(row["ids"] == row["model"] and row["auc"] > 0.9 for row in comparison.rows)
    assert comparison.notes == [] and trainer.history is not None
    again = gp.compare(train, valid, {"categories": trainer})
    assert again["categories"]["fit_seconds"] is None
    assert again["categories"]["auc"] == comparison["categories"]["auc"]


@NEEDS_XGBOOST
def test_xgboosts_own_estimator_takes_both_encodings_and_gaps_between_classes() -> None:
    own = importlib.import_module("xgboost").XGBClassifier(n_estimators=20, enable_categorical=True)
    _, valid, pipeline = loaders("size")
    part = frame_of()
    some = pipeline.loader(part[part["size"] != "M"])
    row = gp.compare(some, valid, {"xgb": own})["xgb"]
    assert row["accuracy"] > 0.3 and row["ids"] in ("categories", "numbers")
    features = gp.Features(["a", "b"], (["na<me"], pre.Categorify()), target="y > 0")
    frame = part.rename(columns={"name": "na<me"})
    named = gp.Pipeline([], features, backend="cpu").fit(frame).loader(frame)
    assert gp.compare(named, named, {"xgb": own})["xgb"]["auc"] > 0.9


@pytest.mark.slow
@NEEDS_XGBOOST
def test_models_of_the_same_quantiles_are_compared_by_them() -> None:
    train, valid, pipeline = loaders("y")
    levels = (0.1, 0.5, 0.9)
    line = gp.models.Linear.from_schema(pipeline.schema, quantiles=levels)
    trees = gp.models.XGB.from_schema(pipeline.schema, quantiles=levels, n_estimators=20)
    trainer = gp.Trainer(trees, progress=False)
    trainer.fit(train)
    comparison = gp.compare(train, valid, {"trees": trainer, "line": gp.Trainer(line, max_epochs=8, progress=False)})
    assert list(comparison.rows[0])[:4] == ["model", "pinball", "difference", "coverage"]
    assert comparison["trees"]["pinball"] == pytest.approx(trainer.evaluate(valid)["pinball"], rel=1e-6)
    assert comparison["trees"]["nodes"] == trees.num_nodes > 60 and comparison["trees"]["parameters"] is None
    assert comparison["line"]["parameters"] == (2 + 6 + 1) * 3 and comparison["line"]["nodes"] is None
    assert comparison["trees"]["ids"] == "categories"
    named = gp.compare(train, valid, [trainer, "xgboost"], metric="coverage")
    assert named.models["xgboost"].quantiles == levels and named.metric == "coverage"
    for other in ("linear", gp.models.Linear.from_schema(pipeline.schema, quantiles=(0.5,))):
        with raises(BadConfig, where="compare(models=)", match="another model quantiles"):
            gp.compare(train, valid, [trainer, other])


@pytest.mark.slow
def test_xgboost_asked_for_by_name_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.evaluation.entrants.find_spec", lambda name: None)
    train, valid, _ = loaders("y > 0")
    with raises(BackendMissing, where="compare(models=)", got="xgboost") as caught:
        gp.compare(train, valid, ["xgboost"])
    assert caught.value.remedy == "pip install xgboost-cpu"
    assert {row["model"] for row in gp.compare(train, valid).rows} == {*candidates.ESTIMATORS}


def test_trained_networks_are_judged_as_they_are(tmp_path: Path) -> None:
    train, valid, pipeline = loaders("y > 0")
    trainer = gp.Trainer(MLP.from_schema(pipeline.schema, hidden=(8,)), max_epochs=2, device="cpu", progress=False)
    trainer.fit(train)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    gp.save(tmp_path / "run", pipeline, trainer.model)
    comparison = gp.compare(train, valid, {"small": trainer, "saved": gp.load(tmp_path / "run"), "line": "linear"})
    figures = trainer.evaluate(valid)
    for name in ("small", "saved"):
        assert comparison[name]["auc"] == pytest.approx(figures["auc"], abs=1e-6)
        assert comparison[name]["accuracy"] == pytest.approx(figures["accuracy"], abs=1e-6)
        assert comparison[name]["fit_seconds"] is None and f"{name}: trained before" in repr(comparison)
    assert all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())
    assert comparison["small"]["bytes"] == sum(value.nbytes for value in weights.values())
    areas = [row["auc"] for row in comparison.rows]
    assert areas == sorted(areas, reverse=True)


@pytest.mark.slow
def test_untrained_networks_learn_from_nine_tenths_and_stop_by_the_last() -> None:
    train, valid, pipeline = loaders("y > 0")
    counted: list[int] = []

    class Counter(MLP):
        def forward(self, batch: gp.Batch) -> Any:
            counted.append(len(batch)) if self.training else None
            return super().forward(batch)

    model = Counter.from_schema(pipeline.schema, hidden=(8,), seed=3)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    waiting = gp.Trainer(MLP.from_schema(pipeline.schema, hidden=(8,)), max_epochs=2, device="cpu", progress=False)
    comparison = gp.compare(train, valid, {"bare": model, "waiting": waiting, "line": "linear"})
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())  # a copy was fitted
    assert sum(counted) % 540 == 0 and max(counted) == 128  # nine tenths, in batches by their number
    assert waiting.history is not None and len(waiting.history) == 2
    assert "valid_auc" in waiting.history.rows[-1] and comparison["bare"]["fit_seconds"] > 0
    assert comparison.models["waiting"] is waiting.model
    assert comparison["waiting"]["auc"] == pytest.approx(waiting.evaluate(valid)["auc"], abs=1e-6)


def test_the_tenth_is_of_each_class_and_follows_the_seed() -> None:
    train, _, _ = loaders("size")
    layout = make_layout(train.schema)
    learned, held = TrainRows(train, layout, 0).parts
    assert (len(learned), len(held)) == (540, 60)
    shares = [torch.bincount(part.target.long()) / len(part) for part in (train.table, held)]
    assert (shares[0] - shares[1]).abs().max() < 0.02
    both = torch.cat([learned.words, held.words])
    assert {tuple(row) for row in both.tolist()} == {tuple(row) for row in train.table.words.tolist()}
    again, other = TrainRows(train, layout, 0).parts[1], TrainRows(train, layout, 1).parts[1]
    assert torch.equal(again.words, held.words) and not torch.equal(other.words, held.words)


@pytest.mark.slow
def test_the_best_network_is_saved_and_an_estimator_is_refused_with_what_to_take(tmp_path: Path) -> None:
    train, valid, pipeline = loaders("y > 0")
    model = MLP.from_schema(pipeline.schema, hidden=(16,))
    trainer = gp.Trainer(model, max_epochs=30, lr=0.03, device="cpu", progress=False)
    comparison = gp.compare(train, valid, {"net": trainer, "neighbors": KNeighborsClassifier(300)})
    assert comparison.best == "net"
    gp.save(tmp_path / "run", pipeline, comparison.models[comparison.best])
    frame = frame_of(300, seed=4)
    chances = gp.load(tmp_path / "run").predict_proba(frame)["probability"]
    assert roc_auc_score(frame["y"] > 0, chances) == pytest.approx(comparison["net"]["auc"], abs=1e-3)
    with raises(BadConfig, where="save(model=)") as caught:
        gp.save(tmp_path / "other", pipeline, comparison.models["neighbors"])
    assert "gp.models.Linear" in caught.value.expected and "gp.models.XGB" in caught.value.remedy


def test_the_order_of_a_shuffled_valid_loader_does_not_matter() -> None:
    train, valid, pipeline = loaders("y > 0")
    shuffled = pipeline.loader(frame_of(300, seed=4), batch_size=64, shuffle="rows", seed=9)
    trainer = gp.Trainer(MLP.from_schema(pipeline.schema, hidden=(8,)), max_epochs=1, device="cpu", progress=False)
    trainer.fit(train)
    first, second = (gp.compare(train, loader, [trainer, "linear"]) for loader in (valid, shuffled))
    assert first["MLP"]["auc"] == pytest.approx(second["MLP"]["auc"], abs=1e-7)


def test_numbers_alone_and_ids_alone() -> None:
    frame = frame_of()
    for features in (gp.Features(["a"], target="y > 0"), gp.Features((["name"], pre.Categorify()), target="y > 0")):
        loader = gp.Pipeline([], features, backend="cpu").fit(frame).loader(frame)
        comparison = gp.compare(loader, loader, FAST)
        assert all(row["auc"] > 0.6 for row in comparison.rows)
        assert ("ids" in comparison.rows[0]) == bool(loader.schema.categorical)


def test_it_reads_well() -> None:
    train, valid, _ = loaders("y > 0")
    comparison = gp.compare(train, valid, ["linear", "forest"])
    head, line, *_ = repr(comparison).splitlines()
    columns = ["model", "auc", "difference", "accuracy", "fit_seconds", "predict_seconds", "bytes"]
    columns += ["parameters", "nodes", "ids"]
    assert head.split() == columns
    assert line.split()[0] == comparison.best and comparison[comparison.best]["difference"] == 0
    frame = comparison.to_frame()
    assert isinstance(frame, pd.DataFrame) and [*frame.columns] == columns and len(frame) == 2
    page = comparison._repr_html_()
    assert page.count("<tr>") == 3 and "width:0px" in page and "width:120px" in page
    with raises(BadConfig, where="Comparison", got="forrest") as caught:
        comparison["forrest"]
    assert caught.value.remedy == "['forest']"


def test_a_metric_that_is_not_defined_is_last() -> None:
    rows = [{"model": "a", "auc": None}, {"model": "b", "auc": 0.5}, {"model": "c", "auc": 0.75}]
    comparison = gp.Comparison(rows, "auc", higher_is_better=True)
    assert [row["model"] for row in comparison.rows] == ["c", "b", "a"] and comparison["a"]["difference"] is None


class Stubborn:
    """Estimator that no row suits."""

    def fit(self, frame: Any, target: Any) -> None:
        raise RuntimeError("no")

    def predict_proba(self, frame: Any) -> Any: ...


BAD: dict[str, tuple[Any, type[GpupipeError], str, str]] = {
    "no models": ([], BadConfig, "models=", "no models"),
    "one name": ("linear", BadConfig, "models=", "no models"),
    "an unknown name": (["forrest"], BadConfig, "models=", "no such choice"),
    "a number": ([3], BadConfig, "models=", "no fit"),
    "no fit": ([pre.StandardScaler()], BadConfig, "models=", "no predict_proba"),
    "no probabilities": ([LinearSVC()], BadConfig, "models=", "no predict_proba"),
    "a class": ([LogisticRegression], BadConfig, "models=", "class in place of an object"),
    "two of a name": ([GaussianNB(), GaussianNB()], BadConfig, "models=", "two models are called 'GaussianNB'"),
    "a name that is none": ({1: GaussianNB()}, BadConfig, "models=", "makes no sense"),
    "a network of other columns": ([MLP(numeric=1)], SchemaMismatch, "MLP", "another pipeline"),
    "a network of quantiles": (
        [MLP(numeric=2, cardinalities=[6], quantiles=(0.1, 0.9))],
        BadConfig,
        "MLP(quantiles=)",
        "quantiles are of one target",
    ),
    "an estimator that fails": ({"mine": Stubborn()}, BadData, "mine", "RuntimeError: no"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("models", "error", "where", "problem"), BAD.values(), ids=BAD)
def test_models_that_are_none(models: Any, error: Any, where: str, problem: str) -> None:
    train, valid, _ = loaders("y > 0")
    with pytest.raises(error) as caught:
        gp.compare(train, valid, models)
    assert where in caught.value.where and problem in caught.value.problem
    if caught.value.problem == "no such choice":
        remedy = eval(caught.value.remedy.removeprefix("models="))
        assert [row["model"] for row in gp.compare(train, valid, remedy).rows] == remedy


def test_what_makes_no_sense_is_refused() -> None:
    train, valid, pipeline = loaders("y > 0")
    with raises(BadConfig, where="compare(valid=)", got="list"):
        gp.compare(train, [])
    with raises(BadConfig, where="compare(metric=)", got="auk") as caught:
        gp.compare(train, valid, metric="auk")
    assert "'auc'" in caught.value.expected
    with raises(BadConfig, where="compare(seed=)"):
        gp.compare(train, valid, seed=-1)
    with raises(BadConfig, where="compare(models=)", match="no predict_proba") as caught:
        gp.compare(train, valid, [Ridge()])
    assert caught.value.remedy.startswith("models=['linear']")
    frame = frame_of()
    with raises(BadConfig, where="compare(train=)") as caught:
        gp.compare(pipeline.loader(frame, residency="stream"), valid)
    assert "memory" in caught.value.problem
    with raises(BadData, where="compare(train=)", got=9):
        gp.compare(pipeline.loader(frame[:9]), valid)
    with raises(BadData, where="compare(valid=)", got=True):
        gp.compare(train, pipeline.loader(frame[frame["y"] > 0]))
    other = gp.Pipeline([], gp.Features(["a"], target="y > 0"), backend="cpu").fit(frame).loader(frame)
    with raises(SchemaMismatch, where="compare", got=["a", "target"]):
        gp.compare(train, other)
    plain = gp.Pipeline([], gp.Features(["a"]), backend="cpu").fit(frame).loader(frame)
    with raises(BadConfig, where="compare", got=["a"]):
        gp.compare(plain, plain)


@pytest.mark.slow
def test_tables_with_a_target_are_compared_and_the_best_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, valid = gp.from_frame(frame_of(), backend="cpu").filter("notnull(y)").split(0.7)
    models = {"net": lambda schema: MLP.from_schema(schema, hidden=(4,)), "line": gp.models.Linear, "linear": "linear"}
    comparison = gp.compare(train, valid, models, target="y > 0", seed=3)
    pipeline = gp.Pipeline([], gp.Features.auto(train, target="y > 0"), backend="cpu").fit(train)
    by_hand = gp.compare(pipeline.loader(train, shuffle=True, seed=3), pipeline.loader(valid), models, seed=3)
    seconds = ("fit_seconds", "predict_seconds")
    rows, by_hand_rows = ([dict(row, **dict.fromkeys(seconds)) for row in each.rows] for each in (comparison, by_hand))
    assert rows == by_hand_rows and {row["model"] for row in rows} == {*models}
    gp.save(tmp_path / "best", comparison.scorer)
    assert gp.load(tmp_path / "best").evaluate(valid)["auc"] == pytest.approx(comparison.rows[0]["auc"], abs=1e-6)
    with raises(
        BadConfig, where="Comparison.scorer", remedy=f"gp.Scorer(pipeline, comparison.models[{by_hand.best!r}])"
    ):
        _ = by_hand.scorer
    with raises(BadConfig, where="Comparison.scorer", remedy="models=['linear', 'xgboost']"):
        _ = gp.compare(train, valid, [GaussianNB()], target="y > 0").scorer
    better = gp.Comparison(
        [{"model": "forest", "auc": 0.9}, {"model": "line", "auc": 0.7}],
        "auc",
        higher_is_better=True,
        models={"forest": GaussianNB(), "line": comparison.models["line"]},
        pipeline=comparison.pipeline,
    )
    assert better.scorer.model is comparison.models["line"] and "forest" in caplog.records[-1].message


def test_a_metric_of_another_task_is_refused() -> None:
    train, valid, _ = loaders("y")
    with raises(BadConfig, where="compare(metric=)", got="auc"):
        gp.compare(train, valid, metric="auc")
    assert gp.compare(train, valid, ["linear"], metric="mae").rows[0]["difference"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["y > 0", "size", "y", ["y", "weight"], ["y > 0", "weight > 1"]])
def test_the_linear_model_is_a_network_that_is_saved(target: Any, tmp_path: Path) -> None:
    train, valid, pipeline = loaders(target)
    comparison = gp.compare(train, valid, ["linear"])
    model = comparison.models["linear"]
    layout = make_layout(train.schema)
    candidate = candidates.make_named("linear", "line", layout, 0)
    candidate.fit(TrainRows(train, layout, 0).host, "one-hot")
    oracle = torch.as_tensor(candidate.predict(TrainRows(valid, layout, 0).host))
    output = torch.cat([model(batch) for batch in valid]).detach()
    if layout.task == "multiclass":
        output = output.log_softmax(1)
    torch.testing.assert_close(output.double(), oracle.double(), rtol=1e-4, atol=1e-4)
    gp.save(tmp_path / "line", pipeline, model)
    report = gp.load(tmp_path / "line").evaluate(frame_of(300, seed=4))
    assert report[comparison.metric] == pytest.approx(comparison["linear"][comparison.metric], rel=1e-6)


def test_a_class_that_the_linear_model_has_not_met_is_the_least_likely() -> None:
    _, valid, pipeline = loaders("size")
    for others in (["S", "L"], ["L"]):
        rows = frame_of()
        part = rows[rows["size"].isin([*others, "M"])]
        comparison = gp.compare(pipeline.loader(part), valid, ["linear"])
        output = torch.cat([comparison.models["linear"](batch) for batch in valid])
        assert output.shape == (300, 3) and bool(output.isfinite().all())
        assert (output.argmax(1) == pipeline.schema.target.classes.index("S")).any() == ("S" in others)
