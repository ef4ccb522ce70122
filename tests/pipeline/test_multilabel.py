"""Several conditions at once, from `Features` to predictions: stored, learned, measured, compared, saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.tensors import Batch
from gpupipe.training.loop.metrics import METRICS
from tests.raising import raises

TARGETS = ["y > 0", "late"]


def table(rows: int = 1500, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    place = np.where(rng.random(rows) < 0.5, "JFK", "LGA")
    y = x[:, 0] + (place == "JFK") - 0.5
    return pd.DataFrame(
        {"x": x[:, 0], "z": x[:, 1], "place": place, "y": y, "late": x[:, 1] > 1, "w": rng.random(rows)}
    )


def pipeline(**more: Any) -> gp.Pipeline:
    groups = ((["x", "z"], pre.StandardScaler()), (["place"], pre.Categorify()))
    return gp.Pipeline([], gp.Features(*groups, target=TARGETS, **more), backend="cpu").fit(table())


def test_conditions_are_stored_as_zeros_and_ones_side_by_side() -> None:
    made, frame = pipeline(), table()
    assert made.schema.task == "multilabel"
    assert [item.classes for item in made.schema.targets] == [(False, True)] * 2
    block = made.loader(frame).table
    wanted = np.stack([frame["y"] > 0, frame["late"]], 1).astype("float32")
    np.testing.assert_array_equal(block.target, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("model", [gp.models.MLP, gp.models.MultiTask])
def test_a_network_learns_all_of_them_and_says_so_by_name(model: Any, tmp_path: Path) -> None:
    made, train, valid = pipeline(), table(), table(500, seed=1)
    network = model.from_schema(made.schema, hidden=(32,), seed=1)
    trainer = gp.Trainer(network, max_epochs=15, lr=0.02, device="cpu", progress=False)
    history = trainer.fit(made.loader(train, batch_size=128, shuffle=True), made.loader(valid))
    assert history.rows[-1]["valid_auc"] > 0.98
    gp.save(tmp_path / "run", made, network)
    scorer = gp.load(tmp_path / "run", backend="cpu")
    inputs = valid[["x", "z", "place"]]
    decided, chances = scorer.predict(inputs), scorer.predict_proba(inputs)
    assert list(decided.columns) == ["prediction_y > 0", "prediction_late"]
    assert list(chances.columns) == ["probability_y > 0", "probability_late"]
    for name, truth in (("y > 0", valid["y"] > 0), ("late", valid["late"])):
        assert decided[f"prediction_{name}"].dtype == bool
        assert (decided[f"prediction_{name}"] == truth).mean() > 0.93
        assert sk.roc_auc_score(truth, chances[f"probability_{name}"]) > 0.98
    assert scorer.predict(inputs[:0]).shape == (0, 2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["auc", "accuracy", "log_loss", "brier"])
def test_a_metric_is_the_mean_of_scikit_learns(name: str, weighted: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    output = torch.randint(-4, 5, (300, 3), generator=draw) / 2
    target = (torch.rand(300, 3, generator=draw) < 0.3).float()
    weight = torch.rand(300, generator=draw) if weighted else None
    metric = METRICS[name]()
    metric.reset()
    for rows in torch.arange(300).split(70):
        part = None if weight is None else weight[rows]
        metric.update(output[rows], Batch(torch.zeros(len(rows), 0), torch.zeros(len(rows), 0), target[rows], part))
    p = output.sigmoid().numpy()

    def by_hand(t: int) -> float:
        truth = target[:, t].numpy()
        if name == "accuracy":
            return float(sk.accuracy_score(truth, p[:, t] >= 0.5, sample_weight=weight))
        formula = {"auc": sk.roc_auc_score, "log_loss": sk.log_loss, "brier": sk.brier_score_loss}[name]
        return float(formula(truth, p[:, t], sample_weight=weight))

    assert metric.compute() == pytest.approx(np.mean([by_hand(t) for t in range(3)]), rel=1e-5)


@pytest.mark.slow
def test_comparison_and_importance_take_them() -> None:
    made, valid = pipeline(weight="w"), table(500, seed=1)
    train, other = made.loader(table()), made.loader(valid)
    comparison = gp.compare(train, other)
    assert {row["model"] for row in comparison.rows} >= {"linear", "hist-gradient-boosting"}
    assert all(row["auc"] > 0.95 for row in comparison.rows)
    assert comparison["linear"]["auc"] > 0.999  # both conditions are straight lines
    trainer = gp.Trainer(gp.models.Linear.from_schema(made.schema), max_epochs=20, lr=0.1, device="cpu", progress=False)
    trainer.fit(train)
    lost = gp.importance(trainer, other, repeats=2)
    assert lost.metric == "auc"
    assert lost["z"]["mean"] > 0.1 and lost["x"]["mean"] > 0.1


def test_target_encoding_has_a_column_for_each_of_them() -> None:
    groups = (["place"], pre.TargetEncoder(smooth=0.0))
    made = gp.Pipeline([], gp.Features(groups, target=TARGETS), backend="cpu")
    frame = table()
    made.fit(frame)
    found = made.transform(frame[["place"]])
    wanted = frame.assign(good=frame["y"] > 0).groupby("place")["good"].mean()
    first = found.iloc[:, 0]
    np.testing.assert_allclose(first, frame["place"].map(wanted), rtol=1e-6)


def test_numbers_beside_conditions_and_class_weights_are_refused() -> None:
    with raises(errors.BadConfig, where="target 'late'", got="bool"):
        gp.Pipeline([], gp.Features(["x"], target=["y", "late"]), backend="cpu").fit(table())
    with raises(errors.BadConfig, where="target 'y > 0'", got="bool"):
        gp.Pipeline([], gp.Features(["x"], target=TARGETS, target_transform=[pre.StandardScaler()])).fit(table())
    made = pipeline()
    trainer = gp.Trainer(
        gp.models.Linear.from_schema(made.schema), max_epochs=1, class_weight="balanced", device="cpu", progress=False
    )
    with raises(errors.BadConfig, where="Trainer(class_weight=)", got=["y > 0", "late"]):
        trainer.fit(made.loader(table()))
    with raises(errors.BadData, where="target 'late'", got=True):
        made.fit(table().assign(late=True))
