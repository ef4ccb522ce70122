"""A threshold travels with its model, rules what is predicted, and is what a scorer's report decides by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import ArtifactError, BadConfig, BadData, ColumnNotFound, GpupipeError
from gpupipe.saving.artifact import write_manifest
from tests.raising import raises


def table(count: int = 400) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.standard_normal(count)
    frame = pd.DataFrame({"x": x, "late": x + draw.standard_normal(count) > 1.5, "gone": x < -1})
    frame["size"] = np.where(x > 0.5, "L", np.where(x > -0.5, "M", "S"))
    frame["delay"], frame["carrier"] = 30 + 60 * x, draw.choice(["UA", "AA", "DL"], count)
    return frame


def fitted(target: Any, **options: Any) -> tuple[gp.Pipeline, gp.Trainer]:
    frame = table()
    pipeline = gp.Pipeline([], gp.Features(["x"], target=target, **options), backend="cpu").fit(frame)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(8,), seed=1)
    trainer = gp.Trainer(model, max_epochs=3, lr=0.02, device="cpu", progress=False)
    trainer.fit(pipeline.loader(frame, batch_size=64, shuffle="rows"))
    return pipeline, trainer


def test_a_threshold_is_kept_and_rules_predict(tmp_path: Path) -> None:
    pipeline, trainer = fitted("late")
    threshold = trainer.evaluate(pipeline.loader(table())).threshold(min_recall=0.9)
    gp.save(tmp_path / "run", pipeline, trainer.model, threshold=threshold)
    scorer = gp.load(tmp_path / "run")
    assert scorer.threshold == threshold < 0.5
    decided, chance = scorer.predict(table())["prediction"], scorer.predict_proba(table())["probability"]
    assert decided.tolist() == (chance.astype("float64") >= threshold).tolist()
    assert sk.recall_score(table()["late"], decided) >= 0.9
    assert gp.Scorer(pipeline, trainer.model).threshold == 0.5


def test_without_one_it_is_a_half(tmp_path: Path) -> None:
    pipeline, trainer = fitted("late")
    gp.save(tmp_path / "run", pipeline, trainer.model)
    assert "threshold" not in json.loads((tmp_path / "run" / "model.json").read_text())
    scorer = gp.load(tmp_path / "run")
    assert scorer.threshold == 0.5
    chance = scorer.predict_proba(table())["probability"]
    assert scorer.predict(table())["prediction"].tolist() == (chance >= 0.5).tolist()


def test_several_targets_have_a_threshold_each(tmp_path: Path) -> None:
    pipeline, trainer = fitted(["late", "gone"])
    gp.save(tmp_path / "run", pipeline, trainer.model, threshold={"gone": 0.2})
    scorer = gp.load(tmp_path / "run")
    assert scorer.threshold == {"late": 0.5, "gone": 0.2}
    chances, decided = scorer.predict_proba(table()), scorer.predict(table())
    for name, limit in scorer.threshold.items():
        assert decided[f"prediction_{name}"].tolist() == (chances[f"probability_{name}"] >= limit).tolist()
    report = scorer.evaluate(table())
    assert report.confusion_matrix()[1].sum() == 400 and report.decision_threshold == scorer.threshold


def test_a_threshold_that_is_set_is_checked() -> None:
    pipeline, trainer = fitted("late")
    scorer = gp.Scorer(pipeline, trainer.model)
    for value in (30, "0.3", {"late": 0.3}):
        with raises(BadConfig, where="Scorer(threshold=)"):
            scorer.threshold = value  # type: ignore[assignment]
    assert scorer.threshold == 0.5
    scorer.threshold = 0.2
    chances = scorer.predict_proba(table())["probability"]
    assert scorer.predict(table())["prediction"].tolist() == (chances >= 0.2).tolist()


def test_another_threshold_is_another_job() -> None:
    pipeline, trainer = fitted("late")
    ids = [gp.Scorer(pipeline, trainer.model, threshold=limit)._fingerprint(32) for limit in (None, 0.3)]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("target", ["delay", "size"])
def test_a_task_without_a_decision_has_no_threshold(target: str, tmp_path: Path) -> None:
    pipeline, trainer = fitted(target)
    with raises(BadConfig, where="save(threshold=)", got=0.3):
        gp.save(tmp_path / "run", pipeline, trainer.model, threshold=0.3)
    with raises(BadConfig, where="Scorer(threshold=)", got=0.3):
        gp.Scorer(pipeline, trainer.model, threshold=0.3)
    assert not (tmp_path / "run").exists() and gp.Scorer(pipeline, trainer.model).threshold is None


def test_a_threshold_needs_a_model(tmp_path: Path) -> None:
    pipeline, _ = fitted("late")
    with raises(BadConfig, where="save(threshold=)", got=0.3):
        gp.save(tmp_path / "run", pipeline, threshold=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", ["0.5", "0", "1", "0.0", "1.0", "-0.5", "1e999", "null", "true", '{"late": 0.5}', "[0.5]"]
)
def test_a_forged_threshold_is_refused(value: str, tmp_path: Path) -> None:
    pipeline, trainer = fitted("late")
    gp.save(tmp_path / "run", pipeline, trainer.model, threshold=0.25)
    file = tmp_path / "run" / "model.json"
    file.write_text(file.read_text().replace("0.25", value))
    (tmp_path / "run" / "manifest.json").unlink()
    write_manifest(tmp_path / "run")
    if value == "0.5":
        assert gp.load(tmp_path / "run").threshold == 0.5
        return
    with raises(ArtifactError, where="model.json"):
        gp.load(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["late", "delay", "size"])
def test_a_scorers_report_is_the_trainers(target: str, tmp_path: Path) -> None:
    pipeline, trainer = fitted(target)
    gp.save(tmp_path / "run", pipeline, trainer.model)
    expected = trainer.evaluate(pipeline.loader(table()))
    for data in (table(), gp.from_frame(table(), num_partitions=3)):
        report = gp.load(tmp_path / "run").evaluate(data)
        assert dict(report) == pytest.approx(dict(expected), rel=1e-5)


def test_a_report_decides_as_predict_does() -> None:
    pipeline, trainer = fitted("late")
    scorer = gp.Scorer(pipeline, trainer.model, threshold=0.2)
    report, decided = scorer.evaluate(table()), scorer.predict(table())["prediction"]
    assert report["f1"] == pytest.approx(sk.f1_score(table()["late"], decided))
    np.testing.assert_array_equal(report.confusion_matrix(), sk.confusion_matrix(table()["late"], decided))


def test_any_column_makes_groups() -> None:
    pipeline, trainer = fitted("late")
    scorer = gp.Scorer(pipeline, trainer.model)
    for data in (table(), gp.from_frame(table(), num_partitions=3)):
        found = scorer.evaluate(data, by="carrier").by
        assert found is not None and len(found) == len([*found]) == 3
        assert {row["carrier"]: row["rows"] for row in found.rows} == table()["carrier"].value_counts().to_dict()
    assert "carrier" not in scorer.predict(table()).columns and pipeline.features is not None
    assert pipeline.features.keep == [] and "carrier" not in pipeline.schema.names
    frame = found.to_frame()
    assert frame["carrier"].tolist() == ["AA", "DL", "UA"] and "auc" in frame


def test_a_column_that_the_fit_had_not_makes_groups() -> None:
    frame = table().assign(hour=lambda rows: np.arange(len(rows)) % 3)
    for steps in ([], [T.Derive(hour="floor(x)")]):  # a step makes a column of that name of the data's own
        pipeline = gp.Pipeline(steps, gp.Features(["x"], target="late")).fit(table()[["x", "late"]])
        scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
        hours = np.floor(frame["x"]) if steps else frame["hour"]
        report = scorer.evaluate(frame, by="hour")
        assert {row["hour"]: row["rows"] for row in report.by.rows} == hours.value_counts().to_dict()
        assert report["auc"] == scorer.evaluate(frame)["auc"] and pipeline.features.keep == []
    chosen = gp.Pipeline([T.Select(["x", "late"])], gp.Features(["x"], target="late")).fit(table()[["x", "late"]])
    with raises(ColumnNotFound, where="Scorer.evaluate(by=)", column="hour"):
        gp.Scorer(chosen, gp.models.Linear.from_schema(chosen.schema)).evaluate(frame, by="hour")


def test_a_kept_column_makes_groups_and_a_feature_too() -> None:
    frame = table().assign(x=lambda rows: rows["x"].round())
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late", keep=["carrier"])).fit(frame)
    scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
    for by in ("carrier", "x"):
        found = scorer.evaluate(frame, by=by).by
        assert found is not None and [row[by] for row in found.rows] == sorted(frame[by].unique())


@pytest.mark.parametrize("by", ["rows", "auc", "loss"])
def test_groups_of_a_column_that_is_called_as_a_figure_keep_their_labels(by: str) -> None:
    frame = table().rename(columns={"carrier": by})
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late")).fit(frame)
    report = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema)).evaluate(frame, by=by)
    sizes = frame[by].value_counts().to_dict()
    assert {row[f"{by}_keep"]: row["rows"] for row in report.by.rows} == sizes
    assert report.to_frame()[f"{by}_keep"].tolist()[1:] == sorted(sizes) and min(sizes) in repr(report.by)


def test_what_cannot_be_evaluated_is_refused() -> None:
    pipeline, trainer = fitted("late")
    scorer = gp.Scorer(pipeline, trainer.model)
    with raises(ColumnNotFound, where="Scorer.evaluate(by=)", column="carier"):
        scorer.evaluate(table(), by="carier")
    with raises(BadConfig, where="evaluate(by=)", got=3):
        scorer.evaluate(table(), by=3)  # type: ignore[arg-type]
    with raises(BadConfig, where="evaluate"):
        gp.Scorer(pipeline, None).evaluate(table())
    with pytest.raises(GpupipeError, match="no target"):
        scorer.evaluate(table()[["x"]])
    with pytest.raises(BadData, match="of one class"):
        scorer.evaluate(table()[~table()["late"]]).threshold()
    assert dict(scorer.evaluate(table()[:0])) == {}


def test_a_models_half_precision_is_read(tmp_path: Path) -> None:
    pipeline, _ = fitted("late")

    class Half(torch.nn.Module):
        def forward(self, batch: gp.Batch) -> torch.Tensor:
            return batch.numeric[:, 0].half()

    report = gp.Scorer(pipeline, Half()).evaluate(table())
    assert report["auc"] == pytest.approx(sk.roc_auc_score(table()["late"], table()["x"].astype("float16")))
