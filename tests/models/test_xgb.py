"""Trees as a model: XGBoost's by hand, from resident and streamed loaders, saved and loaded, and what is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.ensemble import HistGradientBoostingClassifier

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import (
    ArtifactError,
    AttributeNotFound,
    BackendMissing,
    BadConfig,
    BadData,
    NotFitted,
    SchemaMismatch,
)
from gpupipe.models import XGB, xgboost_rows
from gpupipe.models.booster import MAX_CATEGORIES, OBJECTIVES, write_margins
from gpupipe.saving.artifact import write_manifest
from gpupipe.tensors.batch import Batch
from tests.raising import raises

xgb = pytest.importorskip("xgboost")

SMALL = {"n_estimators": 60, "learning_rate": 0.6, "max_depth": 6, "early_stopping_rounds": 3}
TARGETS: dict[str, Any] = {
    "binary": "y > 0",
    "multiclass": "kind",
    "regression": "y",
    "two regressions": ["y", "z"],
    "multilabel": ["y > 0", "z > 1"],
    "quantiles": "y",
}
LEVELS = (0.05, 0.5, 0.95)


def rows(count: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Numbers and names that tell a number in units far from 1, names with rare and missing ones, and weights."""
    draw = np.random.default_rng(seed)
    a, b, names = draw.normal(size=count), draw.normal(size=count), draw.choice(list("pqrstuvw"), count)
    y = 40 * (a * b + np.isin(names, list("qsv"))) + 5 * draw.normal(size=count) - 10
    kind = np.array(["low", "mid", "high"])[np.digitize(y, [-20, 30])]
    frame = pd.DataFrame({"a": a, "b": b, "name": names, "y": y, "z": b + a**2, "kind": kind})
    frame.loc[draw.random(count) < 0.05, "name"] = None
    return frame.assign(weight=draw.random(count).astype("float32"))


def fitted(target: Any, frame: Any, weight: str | None = "weight") -> gp.Pipeline:
    features = gp.Features(["a", "b"], (["name"], pre.Categorify()), target=target, weight=weight)
    return gp.Pipeline([], features, backend="cpu").fit(frame)


def trainer(model: torch.nn.Module, **more: Any) -> gp.Trainer:
    return gp.Trainer(model, device="cpu", progress=False, **more)


def matrix(loader: Any, **options: Any) -> xgb.QuantileDMatrix:
    """The rows of a loader as XGBoost's matrix, made by hand."""
    numeric, codes = loader.table.numeric, loader.table.codes.float()
    values = torch.cat([numeric, torch.where(codes == 0, torch.nan, codes)], 1).numpy()
    target, weight = loader.table.target.numpy(), loader.table.weight
    if weight is not None and "ref" not in options:
        weight = weight / float(f"{weight.double().mean().item():.3g}")
    options |= {} if weight is None else {"weight": weight.numpy()}
    types = ["q"] * numeric.shape[1] + ["c"] * codes.shape[1]
    return xgb.QuantileDMatrix(values, target, feature_types=types, enable_categorical=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("task", TARGETS)
def test_it_is_xgboost_by_hand(task: str) -> None:
    frame = rows()
    pipeline = fitted(TARGETS[task], frame)
    train, valid = pipeline.loader(frame[:2400]), pipeline.loader(frame[2400:])
    options = SMALL | {"n_estimators": 200, "params": {"subsample": 0.8, "reg_lambda": 2.0}, "seed": 5}
    quantiles = LEVELS if task == "quantiles" else None
    model = XGB.from_schema(pipeline.schema, **options, quantiles=quantiles)
    history = trainer(model).fit(train, valid)
    learned = matrix(train)
    params = {
        "objective": OBJECTIVES[model.task] if quantiles is None else "reg:quantileerror",
        "eta": 0.6,
        "max_depth": 6,
        "subsample": 0.8,
        "lambda": 2.0,
        "max_cat_threshold": 4,
        "min_child_weight": 5 if model.task == "regression" else 1,
        "seed": 5,
    }
    params |= {"num_class": 3} if task == "multiclass" else {}
    params |= {} if quantiles is None else {"quantile_alpha": quantiles}
    judged, losses = matrix(valid, ref=learned), {}
    found = xgb.train(
        params, learned, 200, evals=[(judged, "v")], early_stopping_rounds=3, evals_result=losses, verbose_eval=False
    )
    best = found.best_iteration + 1
    assert 1 < best < 197, "the fit is stopped"
    assert history.best["epoch"] == best and history.rows[-1]["epoch"] == best + 3
    by_hand = found[:best].predict(judged, output_margin=True)
    evaluated = trainer(model).evaluate(valid)["loss"]
    if quantiles is not None:
        assert (np.diff(by_hand) < 0).any() and evaluated < history.best["valid_loss"], "XGBoost's quantiles cross"
        by_hand, evaluated = np.sort(by_hand), history.best["valid_loss"]
    np.testing.assert_allclose(trainer(model).model(whole(valid)).numpy(), by_hand, rtol=0, atol=1e-6)
    ((name, values),) = losses["v"].items()
    square = name == "rmse"
    assert history.best["valid_loss"] == pytest.approx(values[best - 1] ** (2 if square else 1), rel=1e-6)
    assert evaluated == pytest.approx(history.best["valid_loss"], rel=1e-5)


def whole(loader: Any) -> Batch:
    batch: Batch = loader.table.batch_of(loader.table.words)
    return batch


@pytest.fixture(scope="module")
def learned() -> tuple[gp.Pipeline, pd.DataFrame, XGB]:
    frame = rows(1500)
    pipeline = fitted("y > 0", frame)
    model = XGB.from_schema(pipeline.schema, **SMALL)
    trainer(model).fit(pipeline.loader(frame[:1200]), pipeline.loader(frame[1200:]))
    return pipeline, frame, model


@pytest.mark.slow
def test_batches_of_any_size_streamed_or_not_give_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    frame = rows(2500)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=400)
    data = gp.read_parquet(tmp_path / "rows.parquet", partition_bytes=20_000, backend="cpu")
    pipeline = fitted("y", data)
    monkeypatch.setitem(xgboost_rows.CHUNK_BYTES, "cpu", 4 * 3 * 700)  # 700 rows at a time: other cuts than of batches
    found = []
    for options in ({"batch_size": 4096}, {"batch_size": 333}, {"residency": "stream", "batch_size": 100}):
        model = XGB.from_schema(pipeline.schema, **SMALL)
        loader = pipeline.loader(data, **options)
        assert loader.residency == options.get("residency", "device")
        history = trainer(model).fit(loader, loader)
        found.append((model.state_dict(), [row["valid_loss"] for row in history]))
    (first, losses), *others = found
    for state, other in others:
        assert other == losses
        assert all(torch.equal(state[name], first[name]) for name in first)


@pytest.mark.slow
def test_a_matrix_in_files_gives_the_same_trees() -> None:
    frame = rows()
    pipeline = fitted("kind", frame)
    loader, models = pipeline.loader(frame), []
    for external in (False, True):
        models.append(XGB.from_schema(pipeline.schema, external_memory=external, **SMALL))
        models[-1].fit_loaders(loader)
    torch.testing.assert_close(models[1](whole(loader)), models[0](whole(loader)), rtol=0, atol=1e-4)


CODE = """
import pandas as pd, gpupipe as gp, sys
folder = sys.argv[1]
scored = gp.load(f"{folder}/run", backend="cpu").predict_proba(pd.read_parquet(f"{folder}/in.parquet"))
scored.to_parquet(f"{folder}/out.parquet")
"""


@pytest.mark.slow
def test_another_process_predicts_the_same_bits(learned: tuple[gp.Pipeline, pd.DataFrame, XGB], tmp_path: Path) -> None:
    pipeline, frame, model = learned
    unlabelled = frame.drop(columns=["y", "z", "kind", "weight"])
    gp.save(tmp_path / "run", pipeline, model)
    unlabelled.to_parquet(tmp_path / "in.parquet")
    subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], check=True)
    here = gp.Scorer(pipeline, model).predict_proba(unlabelled)
    there = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(there, here, check_exact=True)
    margins = torch.from_numpy(there["probability"].to_numpy(copy=True)).logit()
    torch.testing.assert_close(margins, model(whole(pipeline.loader(frame))), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_regression_predicts_in_the_targets_units(tmp_path: Path) -> None:
    frame = rows()
    pipeline = fitted("y", frame)
    model = XGB.from_schema(pipeline.schema)
    history = trainer(model).fit(pipeline.loader(frame[:2400]), pipeline.loader(frame[2400:]))
    gp.save(tmp_path / "run", pipeline, model)
    predicted = gp.load(tmp_path / "run", backend="cpu").predict(frame[2400:])["prediction"]
    y, weight = frame["y"][2400:], frame["weight"][2400:]
    rmse = float(np.sqrt(np.average((predicted - y) ** 2, weights=weight)))
    assert rmse == pytest.approx(history.best["valid_rmse"], rel=1e-5)
    assert rmse < 0.4 * float(y.std()), "in minutes, not in deviations"


def test_quantiles_of_trees_are_saved_and_score_in_the_targets_units(tmp_path: Path) -> None:
    frame = rows(1500)
    pipeline = fitted("y", frame)
    model = XGB.from_schema(pipeline.schema, n_estimators=60, learning_rate=0.3, quantiles=np.array(LEVELS))
    history = trainer(model, loss="pinball").fit(pipeline.loader(frame[:1200]), pipeline.loader(frame[1200:]))
    assert {"valid_pinball", "valid_coverage"} <= history.best.keys()
    gp.save(tmp_path / "run", pipeline, model)
    predicted = gp.load(tmp_path / "run", backend="cpu").predict(frame[1200:])
    assert [*predicted.columns] == ["prediction_q05", "prediction_q50", "prediction_q95"]
    assert (np.diff(predicted) >= 0).all()
    inside = frame["y"][1200:].between(predicted["prediction_q05"], predicted["prediction_q95"])
    coverage = np.average(inside, weights=frame["weight"][1200:])
    assert 0.6 < coverage < 1 and coverage == pytest.approx(history.best["valid_coverage"], abs=1e-6)
    described = json.loads((tmp_path / "run" / "model.json").read_text())
    described["config"]["quantiles"] = [0.5, 0.05, 0.95]
    (tmp_path / "run" / "model.json").write_text(json.dumps(described))
    (tmp_path / "run" / "manifest.json").unlink()
    write_manifest(tmp_path / "run")
    with pytest.raises(ArtifactError, match="quantiles"):
        gp.load(tmp_path / "run")
    one = XGB.from_schema(pipeline.schema, n_estimators=3, quantiles=[0.9])
    one.fit_loaders(pipeline.loader(frame))
    assert one(whole(pipeline.loader(frame))).shape == (1500,)


def test_early_stopping_keeps_the_best_round(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, _ = learned
    train, valid = pipeline.loader(frame[:1200]), pipeline.loader(frame[1200:])
    options = {"n_estimators": 20, "learning_rate": 0.6, "early_stopping_rounds": 20}
    losses = [row["valid_loss"] for row in trainer(XGB.from_schema(pipeline.schema, **options)).fit(train, valid)]
    assert len(losses) == 20, "each round is in the history"
    best = next(n for n in range(1, 21) if losses[n - 1] == min(losses[: n + 3]))
    assert 1 < best < 17
    model = XGB.from_schema(pipeline.schema, **options | {"early_stopping_rounds": 3})
    history = trainer(model).fit(train, valid)
    assert history.best["epoch"] == best and len(model.state_dict()["num_nodes"]) == best
    assert [row["valid_loss"] for row in history] == losses[: best + 3]
    assert trainer(model).evaluate(valid)["auc"] == pytest.approx(history.best["valid_auc"])
    assert "best valid_loss" in repr(history)


def test_many_rounds_leave_few_rows_of_history_and_the_best_one() -> None:
    frame = rows(1500)
    pipeline = fitted("y > 0", frame)
    model = XGB.from_schema(pipeline.schema, n_estimators=400, max_depth=2, early_stopping_rounds=5)
    history = trainer(model).fit(pipeline.loader(frame[:1200]), pipeline.loader(frame[1200:]))
    epochs = [int(row["epoch"]) for row in history]
    best, last = int(history.best["epoch"]), epochs[-1]
    assert last == best + 5 < 400 and best % 20, "the best round is none of those between"
    assert epochs == sorted({*range(20, last, 20), best, last})
    assert all(("train_loss" in row) == (row["epoch"] != best) and "valid_auc" in row for row in history)
    assert len(model.state_dict()["num_nodes"]) == best


def test_without_a_valid_loader_all_rounds_are_kept(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, _ = learned
    model = XGB.from_schema(pipeline.schema, n_estimators=7)
    history = trainer(model).fit(pipeline.loader(frame))
    assert [row["epoch"] for row in history] == [*range(1, 8)] and history.monitor == "train_loss"
    assert len(model.state_dict()["num_nodes"]) == 7
    assert repr(model) == "XGB(binary, 7 rounds)"


def test_class_weights_are_weights_of_rows() -> None:
    frame = rows(1500)
    weights = {"low": 1.0, "mid": 5.0, "high": 0.5}
    weighted = frame.assign(weight=frame["weight"] * frame["kind"].map(weights))
    found = []
    for data, options in ((frame, {"class_weight": weights}), (weighted, {})):
        pipeline = fitted("kind", data)
        model = XGB.from_schema(pipeline.schema, n_estimators=10)
        trainer(model, **options).fit(pipeline.loader(data))
        found.append(model(whole(pipeline.loader(frame))))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("task", ["regression", "binary"])
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_weights_count_in_any_unit(task: str, unit: float) -> None:
    frame = rows(1500)
    outputs = []
    for data in (frame, frame.assign(weight=frame["weight"] * np.float32(unit))):
        pipeline = fitted(TARGETS[task], data)
        model = XGB.from_schema(pipeline.schema, n_estimators=10)
        trainer(model).fit(pipeline.loader(data))
        outputs.append(model(whole(pipeline.loader(frame))))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    assert outputs[1].std() > 0.1


def test_ids_of_single_rows_are_not_learned_by_heart() -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.random(600), "id": [f"id {number}" for number in draw.permutation(600)]})
    frame["y"] = 4 * frame["x"] + draw.normal(0, 0.2, 600)
    features = gp.Features(["x"], (["id"], pre.Categorify(min_frequency=1)), target="y")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = XGB.from_schema(pipeline.schema)
    trainer(model).fit(pipeline.loader(frame[:400]), pipeline.loader(frame[400:500]))
    assert trainer(model).evaluate(pipeline.loader(frame[500:]))["r2"] > 0.9


def test_ids_that_are_missing_unknown_or_many(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    model = learned[2]
    numeric = torch.zeros(4, 2)
    strange = Batch(numeric, torch.tensor([[-1], [10], [2**31 - 1], [1]], dtype=torch.int32))
    assert len(set(model(strange).tolist())) == 1, "an id beyond the column's is unknown"
    many = XGB(1, [MAX_CATEGORIES, MAX_CATEGORIES + 1])
    assert many.layout.feature_types == ["q", "c", "q"]
    out = torch.empty(1, 3)
    many.layout.write_matrix(Batch(torch.ones(1, 1), torch.tensor([[0, 5]], dtype=torch.int32)), out)
    assert out[0, 0] == 1 and out[0, 1].isnan() and out[0, 2] == 5


def test_importance_and_copies(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, model = learned
    loader = pipeline.loader(frame[1200:])
    assert gp.importance(trainer(model), loader, repeats=2)["a"]["mean"] > 0.05
    twin, batch = copy.deepcopy(model), whole(loader)
    assert torch.equal(twin(batch), model(batch))
    assert torch.equal(model.double()(batch), twin(batch)), "there is nothing to convert"
    again = XGB(**json.loads(json.dumps(model.get_config())))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(batch), twin(batch))
    assert model(Batch(batch.numeric[:0], batch.codes[:0])).shape == (0,)


def test_margins_for_other_readers_are_those_of_xgboost(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, model = learned
    batch = whole(pipeline.loader(frame))
    matrix = torch.empty(len(batch), model.layout.width)
    model.layout.write_matrix(batch, matrix)
    written = [
        xgb.Booster(model_file=bytearray(text)).inplace_predict(matrix.numpy())
        for text in write_margins(model.state_dict(), model.layout)
    ]
    np.testing.assert_allclose(np.stack(written, 1), model(batch).numpy().reshape(len(batch), -1), rtol=0, atol=2e-6)


def test_a_model_without_trees_is_no_model_yet(tmp_path: Path) -> None:
    frame = rows(100)
    pipeline = fitted("y > 0", frame)
    model = XGB.from_schema(pipeline.schema)
    for use in (
        lambda: model(whole(pipeline.loader(frame))),
        lambda: gp.save(tmp_path / "run", pipeline, model),
        lambda: gp.Scorer(pipeline, model),
    ):
        with raises(NotFitted, where="XGB"):
            use()
    assert not (tmp_path / "run").exists()


def test_trees_of_another_pipeline_are_refused(learned: tuple[gp.Pipeline, pd.DataFrame, XGB], tmp_path: Path) -> None:
    pipeline, frame, model = learned
    with raises(SchemaMismatch, where="XGB", got="regression"):
        gp.Scorer(fitted("y", frame), model)
    narrow = gp.Pipeline([], gp.Features(["a"], target="y > 0"), backend="cpu").fit(frame)
    with raises(SchemaMismatch, where="XGB"):
        gp.save(tmp_path / "run", narrow, model)
    other = XGB(2, [50])
    with pytest.raises(RuntimeError, match="no trees of such a model"):
        XGB(3).load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({"num_nodes": model.state_dict()["num_nodes"]})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict(model.state_dict() | {"weight": torch.ones(1)})
    gp.save(tmp_path / "run", pipeline, model)
    file = tmp_path / "run" / "model.safetensors"
    arrays = load_file(file)
    arrays["left_children"][0] = 2
    save_file(arrays, file)
    (tmp_path / "run" / "manifest.json").unlink()
    write_manifest(tmp_path / "run")
    with pytest.raises(ArtifactError, match="a node is reached twice, or never"):
        gp.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"task": "ranking"}, "task"),
        ({"task": "multiclass"}, "outputs"),
        ({"outputs": 3}, "outputs"),
        ({"n_estimators": 0}, "n_estimators"),
        ({"n_estimators": "many"}, "n_estimators"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"quantiles": (0.5,)}, "quantiles"),
        ({"quantiles": (0.5, 0.1), "task": "regression"}, "quantiles"),
        ({"max_depth": 65}, "max_depth"),
        ({"early_stopping_rounds": 0}, "early_stopping_rounds"),
        ({"external_memory": "yes"}, "external_memory"),
        ({"cardinalities": [2**24 + 1]}, "cardinalities"),
        ({"lists": {"basket": 10}}, "lists"),
        ({"params": {"objective": "rank:ndcg"}}, "params"),
        ({"params": {"min_child_wieght": 3}}, "params"),
        ({"params": {"gamma": float("nan")}}, "params"),
        ({"params": {"gamma": [1]}}, "params"),
        ({"params": "gamma"}, "params"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(options: dict[str, Any], name: str) -> None:
    with raises(BadConfig, where=f"XGB({name}=)") as caught:
        XGB(2, **options)
    if "min_child_wieght" in str(options):
        assert caught.value.remedy == "params={'min_child_weight': ...}"


@pytest.mark.parametrize("name", [(), ("tag",)])
def test_columns_computed_of_lists_are_offered_instead(name: tuple[str, ...]) -> None:
    frame = pd.DataFrame({"my basket": [["a", "b"], [], ["b"], ["a"]] * 20, "y": [0, 1] * 40})
    pipeline = gp.Pipeline([], gp.Features((["my basket"], pre.Categorify(), *name), target="y")).fit(frame)
    with raises(BadConfig, where="XGB(lists=)") as caught:
        XGB.from_schema(pipeline.schema)
    step = eval(caught.value.remedy.partition(" and ")[0], {"T": T})
    pipeline = gp.Pipeline([step], gp.Features(["num_my basket"], target="y")).fit(frame)
    assert XGB.from_schema(pipeline.schema).layout.width == 1


def test_an_argument_is_no_attribute_to_set() -> None:
    with raises(AttributeNotFound, where="XGB.n_estimators") as caught:
        XGB(2).n_estimators = 5
    assert "from_schema(pipeline.schema, n_estimators=5)" in caught.value.remedy


@pytest.mark.parametrize("name", ["fit", "predict", "predict_proba", "score"])
def test_names_of_scikit_learn_are_answered(name: str) -> None:
    for model in (XGB(2), gp.models.MLP(2)):
        with raises(AttributeNotFound, where=f"{type(model).__name__}.{name}") as caught:
            getattr(model, name)
        assert caught.value.remedy.startswith("gp.Trainer(model)" if name == "fit" else "gp.Scorer(pipeline, model)")
        assert not hasattr(model, name) and not hasattr(model, "nothing")


def test_parameters_that_xgboost_refuses(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, _ = learned
    model = XGB.from_schema(pipeline.schema, params={"subsample": 3.0})
    with raises(BadConfig, where="XGB(params=)", match="subsample"):
        model.fit_loaders(pipeline.loader(frame))


def test_rows_that_no_tree_can_learn_from(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, _ = learned
    model = XGB.from_schema(pipeline.schema)
    loader = pipeline.loader(frame)
    batch = whole(loader)
    with raises(BadData, where="XGB, train rows", match="no rows"):
        model.fit_loaders(pipeline.loader(frame[:0]))
    with raises(BadData, where="XGB, valid rows", match="no rows"):
        model.fit_loaders(loader, pipeline.loader(frame[:0]))
    with raises(BadData, where="XGB, train rows", match="sum to 0"):
        model.fit_loaders(pipeline.loader(frame.assign(weight=0.0)))
    with raises(BadData, where="XGB", match="no target"):
        model.fit_loaders([Batch(batch.numeric, batch.codes)])
    with raises(BadData, where="XGB, train rows", match="inf"):
        model.fit_loaders([Batch(batch.numeric / 0, batch.codes, batch.target)])
    with raises(SchemaMismatch, where="XGB"):
        model.fit_loaders([Batch(batch.numeric[:, :1], batch.codes, batch.target)])


class Interrupted(list[Batch]):
    """Batches in which Ctrl-C is pressed."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        raise KeyboardInterrupt


def test_an_interrupt_among_the_rows_ends_the_fit(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, _ = learned
    with pytest.raises(KeyboardInterrupt):
        XGB.from_schema(pipeline.schema).fit_loaders(Interrupted([whole(pipeline.loader(frame))]))


@pytest.mark.slow
def test_a_missing_package_is_named() -> None:
    code = """
import sys
sys.modules["xgboost"] = None
import gpupipe as gp, pandas as pd
frame = pd.DataFrame({"x": range(300), "y": [v // 100 % 2 for v in range(300)]})
pipeline = gp.Pipeline([], gp.Features(["x"], target="y == 1")).fit(frame)
model = gp.models.XGB.from_schema(pipeline.schema)
try:
    model.fit_loaders(pipeline.loader(frame))
except gp.errors.BackendMissing as missing:
    print(missing.remedy)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "pip install 'xgboost-cpu>=3.1'"


def test_a_gpu_needs_another_package(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    pipeline, frame, _ = learned
    assert not xgb.build_info()["USE_CUDA"]
    with raises(BackendMissing, where="gp.models.XGB", match="built for CPUs"):
        XGB.from_schema(pipeline.schema).fit_loaders(pipeline.loader(frame), device=torch.device("cuda", 0))


def test_models_of_other_libraries_are_refused_by_name(tmp_path: Path) -> None:
    frame = rows(100)
    pipeline = fitted("y > 0", frame)
    for given in (xgb.Booster(), HistGradientBoostingClassifier(), xgb.XGBClassifier()):
        with raises(BadConfig, where="save(model=)", got=type(given), match="not safe to load") as caught:
            gp.save(tmp_path / "run", pipeline, given)  # type: ignore[arg-type]
        assert "gp.models.XGB" in caught.value.remedy
    with raises(BadConfig, where="Trainer(model=)", got=xgb.XGBClassifier, match="gp.compare") as caught:
        gp.Trainer(xgb.XGBClassifier())  # type: ignore[arg-type]
    for name in ("model.ubj", "model.txt", "model.json"):
        (tmp_path / name).write_bytes(b"{L")
        with raises(ArtifactError, where=str(tmp_path / name), match="models of other libraries are not safe"):
            gp.load(tmp_path / name)


def test_a_trainer_shows_its_trees(learned: tuple[gp.Pipeline, pd.DataFrame, XGB]) -> None:
    model = learned[2]
    assert repr(gp.Trainer(model)) == f"Trainer(XGB({model.extra_repr()}))"
    assert repr(gp.Trainer(XGB(1))) == "Trainer(XGB(binary, 0 rounds))"


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("eta", "learning_rate="), ("num_boost_round", "n_estimators="), ("subsample", "params={'subsample': ...}")],
)
def test_xgboosts_other_names_are_known(option: str, remedy: str) -> None:
    with raises(BadConfig, where="XGB.from_schema", got=option, remedy=remedy):
        XGB.from_schema(fitted("y > 0", rows(100)).schema, **{option: 0.1})
