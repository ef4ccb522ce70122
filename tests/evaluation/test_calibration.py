"""Calibration: coverage within the bounds of chance, probabilities as scikit-learn's, and nothing lost on the way."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, LeakageError
from gpupipe.saving.calibrator import Curve
from tests.raising import raises

DRAWS, CALIBRATED, JUDGED, COVERAGE = 20, 400, 1000, 0.9


def rows(num_rows: int, seed: int) -> pd.DataFrame:
    """Rows of three groups, the second one noisy; classes that overlap, two of them or three."""
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=num_rows), rng.choice(["calm", "wild", "odd"], num_rows, p=[0.5, 0.4, 0.1])
    noise = rng.normal(size=num_rows) * np.where(group == "wild", 300, 50)
    late = rng.random(num_rows) < 1 / (1 + np.exp(-2 * x))
    kind = np.where(x + rng.normal(size=num_rows) > 0.7, "c", np.where(x + rng.normal(size=num_rows) > 0, "b", "a"))
    kind = np.where(group == "wild", rng.choice(["a", "b", "c"], num_rows), kind)
    frame = {"x": x, "group": group, "y": 1000 + 100 * x + noise, "late": late, "kind": kind, "z": noise - x}
    return pd.DataFrame(frame | {"w": rng.integers(0, 4, num_rows) * 1.0})


_MADE: dict[Any, gp.Scorer] = {}


def scorer_of(target: Any, **options: Any) -> gp.Scorer:
    """A model that learned from other rows than all those below, once for each target."""
    key = (str(target), str(options))
    if key not in _MADE:
        frame, quantiles = rows(1500, 999), options.pop("quantiles", None)
        features = gp.Features((["x"], pre.StandardScaler()), target=target, **options)
        pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
        model = gp.models.MLP.from_schema(pipeline.schema, quantiles=quantiles, hidden=(16,), numbers=None, seed=1)
        trainer = gp.Trainer(model, max_epochs=4, lr=0.01, device="cpu", progress=False)
        trainer.fit(pipeline.loader(frame, batch_size=64, shuffle=True))
        _MADE[key] = gp.Scorer(pipeline, trainer.model)
    return _MADE[key]


def holds_interval(predicted: pd.DataFrame, frame: pd.DataFrame) -> np.ndarray:
    return ((frame["y"] >= predicted["lower"]) & (frame["y"] <= predicted["upper"])).to_numpy()


def holds_set(column: str) -> Callable[[pd.DataFrame, pd.DataFrame], np.ndarray]:
    def holds(predicted: pd.DataFrame, frame: pd.DataFrame) -> np.ndarray:
        flags = {name: predicted[f"set_{name}"].to_numpy() for name in sorted(frame[column].unique())}
        return np.select([frame[column] == name for name in flags], list(flags.values()), default=False)

    return holds


def bound(calibrated: float, judged: float) -> float:
    """Four standard deviations of the mean coverage of the draws (Angelopoulos & Bates 2021, arXiv:2107.07511, 3.2)."""
    rank = math.ceil((calibrated + 1) * COVERAGE)
    of_limit = rank * (calibrated + 1 - rank) / ((calibrated + 1) ** 2 * (calibrated + 2))
    return 4 * math.sqrt((of_limit + COVERAGE * (1 - COVERAGE) / judged) / DRAWS) + 1 / (calibrated + 1)


CASES: dict[str, tuple[Any, dict[str, Any], str, Any]] = {
    "interval": ("y", {}, "predict_interval", holds_interval),
    "raw target": ("y", {"target_transform": None}, "predict_interval", holds_interval),
    "quantiles": ("y", {"quantiles": (0.2, 0.5, 0.8)}, "predict_interval", holds_interval),
    "set of two": ("late", {}, "predict_set", holds_set("late")),
    "set of three": ("kind", {}, "predict_set", holds_set("kind")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_coverage_is_what_was_asked_for(case: str) -> None:
    target, options, method, holds = CASES[case]
    scorer, shares = scorer_of(target, **options), []
    for draw in range(DRAWS):
        calibrated = gp.calibrate(scorer, rows(CALIBRATED, draw), coverage=COVERAGE)
        judged = rows(JUDGED, 100 + draw)
        shares.append(holds(getattr(calibrated, method)(judged), judged).mean())
    assert abs(np.mean(shares) - COVERAGE) < bound(CALIBRATED, JUDGED)
    assert np.std(shares) < 2.5 * bound(CALIBRATED, JUDGED)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["interval", "set of three"])
def test_the_coverage_of_each_group_is_what_was_asked_for(case: str) -> None:
    target, options, method, holds = CASES[case]
    scorer, shares = scorer_of(target, **options), {by: [] for by in (None, "group")}
    for draw in range(DRAWS):
        judged = rows(2 * JUDGED, 100 + draw)
        for by, of_draws in shares.items():
            calibrated = gp.calibrate(scorer, rows(2 * CALIBRATED, draw), coverage=COVERAGE, by=by)
            held = pd.Series(holds(getattr(calibrated, method)(judged), judged))
            of_draws.append(held.groupby(judged["group"]).mean())
    of_all, of_groups = (pd.DataFrame(each).mean() for each in shares.values())
    for name, share in {"calm": 0.5, "wild": 0.4, "odd": 0.1}.items():
        assert abs(of_groups[name] - COVERAGE) < bound(2 * CALIBRATED * share, 2 * JUDGED * share), name
    assert of_all["wild"] < 0.86  # one limit for all is too narrow for the noisy group


def test_trees_are_calibrated_as_networks_are() -> None:
    pytest.importorskip("xgboost")
    frame, judged = rows(1000, 11), rows(1000, 12)
    for target, method, holds in (
        ("y", "predict_interval", holds_interval),
        ("late", "predict_set", holds_set("late")),
    ):
        pipeline = gp.Pipeline([], gp.Features(["x"], target=target), backend="cpu").fit(rows(500, 13))
        model = gp.models.XGB.from_schema(pipeline.schema, n_estimators=20)
        gp.Trainer(model, device="cpu", progress=False).fit(pipeline.loader(rows(500, 13)))
        scorer = gp.calibrate(gp.Scorer(pipeline, model), frame)
        assert holds(getattr(scorer, method)(judged), judged).mean() == pytest.approx(0.9, abs=0.04)
    scorer = gp.calibrate(gp.Scorer(pipeline, model), frame, method="temperature")
    assert scorer.evaluate(judged)["log_loss"] < gp.Scorer(pipeline, model).evaluate(judged)["log_loss"]


@pytest.mark.slow
def test_limits_are_those_of_the_papers() -> None:
    frame, judged = rows(99, 5), rows(50, 6)
    scorer = scorer_of("y")
    predicted = scorer.predict(frame)["prediction"]
    limit = np.sort((frame["y"] - predicted).abs())[89]  # ceil(100 x 0.9)
    calibrated = gp.calibrate(scorer, frame)
    found = calibrated.predict_interval(judged)
    assert list(found) == ["prediction", "lower", "upper"]
    assert np.allclose(found["upper"] - found["prediction"], limit, rtol=1e-9)
    assert np.allclose(found["prediction"] - found["lower"], limit, rtol=1e-9)
    of_quantiles = scorer_of("y", quantiles=(0.2, 0.5, 0.8))
    low, _, high = (column for _, column in of_quantiles.predict(frame).items())
    limit = np.sort(np.maximum(low - frame["y"], frame["y"] - high))[89]
    found = gp.calibrate(of_quantiles, frame).predict_interval(judged)
    assert np.allclose(found["lower"], found["prediction_q20"] - limit) and limit > 0
    assert np.allclose(found["upper"], found["prediction_q80"] + limit)
    scorer = scorer_of("kind")
    chances = scorer.predict_proba(frame).to_numpy()
    truth = chances[np.arange(99), np.searchsorted(["a", "b", "c"], frame["kind"])]
    least = np.sort(truth)[9]  # the 90th of the 99 largest
    flags = gp.calibrate(scorer, frame).predict_set(judged)[["set_a", "set_b", "set_c"]]
    assert np.array_equal(flags, scorer.predict_proba(judged).to_numpy() >= least)


def test_negative_limits_turn_no_interval_round() -> None:
    scorer = scorer_of("y", quantiles=(0.2, 0.5, 0.8))
    frame = rows(200, 3).assign(y=lambda each: scorer.predict(each)["prediction_q50"])
    found = gp.calibrate(scorer, frame, coverage=0.5).predict_interval(frame)
    assert (found["lower"] <= found["upper"]).all()
    assert (found["upper"] - found["lower"]).mean() < (found["prediction_q80"] - found["prediction_q20"]).mean()


def test_several_targets_have_an_interval_each() -> None:
    scorer = scorer_of(["y", "z"])
    calibrated = gp.calibrate(scorer, gp.from_frame(rows(400, 1), num_partitions=3))
    found = calibrated.predict_interval(rows(400, 2))
    names = ["prediction_y", "prediction_z", "lower_y", "upper_y", "lower_z", "upper_z"]
    assert list(found) == names and len(calibrated.calibrator.conformal.limits) == 2
    judged = rows(400, 2)
    for name in ("y", "z"):
        share = ((judged[name] >= found[f"lower_{name}"]) & (judged[name] <= found[f"upper_{name}"])).mean()
        assert share == pytest.approx(0.9, abs=0.06)


def test_groups_of_few_rows_are_named_and_get_the_limits_of_all(caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.concat([rows(300, 4), rows(3, 5).assign(group=None), rows(2, 6).assign(group="new")])
    with caplog.at_level(logging.WARNING, "gpupipe"):
        calibrated = gp.calibrate(scorer_of("y"), frame, by="group")
    text = "calibrate: fewer than 9 rows of group missing, new, which get the limits of all rows"
    assert [record.message for record in caplog.records] == [text]
    limits = {group.name: group.limits for group in calibrated.calibrator.conformal.groups}
    assert limits["missing"] is None and limits["new"] is None and limits["wild"] > limits["calm"]
    judged = rows(4, 8).assign(group=["wild", None, "new", "unheard of"])
    for data in (judged, gp.from_frame(judged, num_partitions=2)):
        found = calibrated.predict_interval(data)
        found = found.compute() if isinstance(found, gp.Dataset) else found
        reach = (found["upper"] - found["prediction"]).tolist()
        assert reach[0] == pytest.approx(limits["wild"][0])
        assert reach[1:] == pytest.approx(calibrated.calibrator.conformal.limits * 3)
    with raises(ColumnNotFound, where="the data", column="group"):
        calibrated.predict_interval(judged.drop(columns="group"))
    numbers = rows(300, 4).assign(group=lambda each: (each["x"] > 0) + 7)
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=None)).fit(numbers)
    of_numbers = gp.calibrate(
        gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema)),
        rows(300, 5).assign(group=lambda each: (each["x"] > 0) + 7),
        by="group",
    )
    assert [group.name for group in of_numbers.calibrator.conformal.groups if group.name in ("7", "8")] != []


class Classifier(ClassifierMixin, BaseEstimator):
    """What scikit-learn calibrates in the comparisons: a scorer."""

    def __init__(self, scorer: Any = None, classes: Any = None) -> None:
        self.scorer, self.classes = scorer, classes

    def fit(self, x: Any, y: Any = None) -> Classifier:
        self.classes_ = np.array(self.classes)
        return self

    def predict_proba(self, x: Any) -> np.ndarray:
        found = self.scorer.predict_proba(pd.DataFrame(x, columns=["x"])).to_numpy().astype(float)
        return found if found.shape[1] > 1 else np.hstack([1 - found, found])

    def predict(self, x: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(x).argmax(1)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Since FrozenEstimator")  # what scikit-learn says of weights
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("target", ["late", "kind"])
@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_probabilities_are_scikit_learns(method: Any, target: str, weighted: bool) -> None:
    scorer = scorer_of(target, **({"weight": "w"} if weighted else {}))
    frame, judged = rows(1500, 21), rows(500, 22)
    classes = sorted(frame[target].unique())
    fitted = FrozenEstimator(Classifier(scorer, classes).fit(frame[["x"]]))
    weight = frame["w"] if weighted else None
    theirs = CalibratedClassifierCV(fitted, method=method).fit(frame[["x"]], frame[target], sample_weight=weight)
    found = gp.calibrate(scorer, frame, method=method).predict_proba(judged).to_numpy()
    wanted = theirs.predict_proba(judged[["x"]])[:, -found.shape[1] :]
    assert np.abs(found - wanted).max() < (2e-6 if method == "isotonic" else 1e-3)


def test_a_temperature_has_the_least_loss_and_keeps_the_order() -> None:
    for target in ("late", "kind"):
        scorer, frame = scorer_of(target), rows(1500, 31)
        with torch.no_grad():  # a model that is far too sure
            sure = gp.Scorer(scorer.pipeline, torch.nn.Sequential(scorer.model, Times(5.0)))
        calibrated = gp.calibrate(sure, frame, method="temperature")
        (temperature,) = calibrated.calibrator.probabilities.temperatures
        (plain,) = gp.calibrate(scorer, frame, method="temperature").calibrator.probabilities.temperatures
        assert temperature == pytest.approx(5 * plain, rel=1e-4) and 0.3 < plain < 3
        before, after = sure.evaluate(frame), calibrated.evaluate(frame)
        assert after["log_loss"] < before["log_loss"] and after["accuracy"] == before["accuracy"]
        losses = [_loss(sure, frame, target, temperature * factor) for factor in (0.98, 1.0, 1.02)]
        assert min(losses) == losses[1]
        assert calibrated.predict(frame).equals(sure.predict(frame))
        if target == "late":
            assert after["auc"] == pytest.approx(before["auc"], abs=1e-6)
            assert calibrated.evaluate(frame).calibration().error < sure.evaluate(frame).calibration().error / 2


class Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor


def _loss(scorer: gp.Scorer, frame: pd.DataFrame, target: str, temperature: float) -> float:
    model = torch.nn.Sequential(scorer.model, Times(1 / temperature))
    found = gp.Scorer(scorer.pipeline, model).predict_proba(frame).to_numpy().astype(float)
    found = found if found.shape[1] > 1 else np.hstack([1 - found, found])
    return log_loss(frame[target], found / found.sum(1, keepdims=True))


def test_labels_are_calibrated_each_alone() -> None:
    targets = ["late", "z > 0"]
    scorer, frame = scorer_of(targets), rows(1500, 41)
    before = scorer.predict_proba(frame)
    for method in ("temperature", "isotonic"):
        calibrated = gp.calibrate(scorer, frame, method=method)
        part = calibrated.calibrator.probabilities
        assert len(part.temperatures or part.curves) == 2
        after = calibrated.predict_proba(frame)
        for name, truth in zip(after, [frame["late"], frame["z"] > 0], strict=True):
            assert log_loss(truth, after[name]) <= log_loss(truth, before[name]) + 1e-9


def test_a_curve_is_isotonic_regressions() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random(300).astype("float32"), rng.integers(0, 2, 300)
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y)
    curve = Curve(fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist())
    new = np.concatenate([[0.0, 1.0], p, rng.random(200).astype("float32")]).astype("float32")
    assert np.allclose(curve.apply(torch.from_numpy(new)).numpy(), fitted.predict(new), atol=1e-12)
    assert Curve([0.3], [0.25]).apply(torch.tensor([0.1, 0.9])).tolist() == [0.25, 0.25]


def test_decisions_sets_and_reports_obey() -> None:
    frame = rows(1500, 51)
    base = scorer_of("late")
    isotonic = gp.calibrate(gp.Scorer(base.pipeline, base.model), frame, method="isotonic")
    both = gp.calibrate(isotonic, rows(500, 52))
    assert both.calibrator.probabilities == isotonic.calibrator.probabilities
    chances = both.predict_proba(frame)["probability"]
    assert both.predict(frame)["prediction"].equals((chances >= 0.5).rename("prediction"))
    least = both.calibrator.conformal.limits[0]
    flags = both.predict_set(frame)
    assert np.array_equal(flags["set_True"], chances >= least) and set(flags) == {"prediction", "set_False", "set_True"}
    strict = gp.calibrate(gp.Scorer(base.pipeline, base.model, threshold=0.8), frame)  # which sets leave as it is
    assert strict.threshold == 0.8 and strict.predict_set(frame)["prediction"].mean() < flags["prediction"].mean()
    report = isotonic.evaluate(frame)
    assert report["log_loss"] == pytest.approx(
        log_loss(frame["late"], isotonic.predict_proba(frame)["probability"]), abs=1e-5
    )


@pytest.mark.slow  # a new process
def test_what_is_calibrated_is_saved_and_obeyed_in_a_new_process(tmp_path: Path) -> None:
    frame, judged = rows(600, 61), rows(200, 62)
    judged.to_parquet(tmp_path / "rows.parquet")
    binary = gp.calibrate(scorer_of("late"), frame, method="isotonic")
    scorers = {
        "interval": gp.calibrate(scorer_of("y"), frame, by="group"),
        "quantiles": gp.calibrate(scorer_of("y", quantiles=(0.2, 0.5, 0.8)), frame),
        "set": gp.calibrate(gp.calibrate(scorer_of("kind"), frame, method="temperature"), frame, by="group"),
        "binary": gp.calibrate(binary, frame),
    }
    methods = {
        "interval": "predict_interval",
        "quantiles": "predict_interval",
        "set": "predict_set",
        "binary": "predict_set",
    }
    for name, scorer in scorers.items():
        gp.save(tmp_path / name, scorer)
    assert repr(scorers["interval"]).endswith(", calibrated: coverage 0.9 by 600 rows, by group")
    code = f"""
import pandas as pd, gpupipe as gp
rows = pd.read_parquet({str(tmp_path / "rows.parquet")!r})
for name, method in {methods!r}.items():
    scorer = gp.load({str(tmp_path)!r} + "/" + name)
    getattr(scorer, method)(rows).to_parquet({str(tmp_path)!r} + f"/{{name}}.parquet")
    if name == "binary":
        scorer.predict_proba(rows).to_parquet({str(tmp_path)!r} + "/proba.parquet")
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0
    for name, scorer in scorers.items():
        wanted = getattr(scorer, methods[name])(judged)
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), wanted, check_exact=True)
        assert repr(gp.load(tmp_path / name).calibrator) == repr(scorer.calibrator)
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "proba.parquet"), binary.predict_proba(judged), check_exact=True
    )


def test_the_rows_of_the_fit_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = rows(300, 71)
    frame.to_parquet(tmp_path / "rows.parquet")
    data = gp.read_parquet(tmp_path / "rows.parquet")
    train, rest = data.split(0.5)
    for learned, other in ((frame, rows(300, 72)), (train, rest)):
        pipeline = gp.Pipeline([], gp.Features(["x"], target="y")).fit(learned)
        gp.save(tmp_path / "run", pipeline, gp.models.Linear.from_schema(pipeline.schema), overwrite=True)
        for scorer in (gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema)), gp.load(tmp_path / "run")):
            caplog.clear()
            gp.calibrate(scorer, other)
            assert not caplog.records
            gp.calibrate(scorer, learned)
            assert "rows that the pipeline was fitted on are among these" in caplog.records[0].message
        caplog.clear()
        gp.calibrate(
            gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema)), data if learned is train else frame
        )
        assert "rows that the pipeline was fitted on are among these" in caplog.records[0].message
    features = gp.Features((["group"], pre.TargetEncoder()), target="y")
    pipeline = gp.Pipeline([], features).fit(frame)
    with pytest.raises(LeakageError):
        gp.calibrate(gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema)), frame)


def test_rows_that_calibrate_nothing() -> None:
    frame, scorer = rows(300, 81), scorer_of("y")
    assert len(gp.calibrate(scorer, frame[:9]).calibrator.conformal.limits) == 1
    with raises(BadData, where="calibrate(coverage=)", match="8 rows cannot tell a coverage of 0.9"):
        gp.calibrate(scorer, frame[:8])
    with raises(BadData, where="calibrate(coverage=)", match="99 rows at least"):
        gp.calibrate(scorer, frame[:98], coverage=0.99)
    with raises(BadData, where="calibrate(coverage=)", match="0 rows"):
        gp.calibrate(scorer, frame[:0])
    with raises(BadData, where="calibrate", match="the rows have no target"):
        gp.calibrate(scorer, frame[["x"]])
    for method in ("temperature", "isotonic"):
        with raises(BadData, where="calibrate", match="the rows lack a class", got=[1.0]):
            gp.calibrate(scorer_of("late"), frame[frame["late"]], method=method)
    with raises(BadData, where="calibrate", match="the rows lack a class"):
        gp.calibrate(scorer_of("kind"), frame[frame["kind"] != "b"], method="isotonic")
    right = frame.assign(late=scorer_of("late").predict(frame)["prediction"])
    with raises(BadData, where="calibrate(method='temperature')", match="all rows are predicted right"):
        gp.calibrate(scorer_of("late"), right, method="temperature")
    with raises(BadData, where="calibrate(method='temperature')", match="the outputs say nothing"):
        gp.calibrate(scorer_of("late"), right.assign(late=~right["late"]), method="temperature")


def test_calls_that_make_no_sense(caplog: pytest.LogCaptureFixture) -> None:
    frame, scorer = rows(300, 91), scorer_of("y")
    with raises(BadConfig, where="calibrate(scorer=)", remedy="gp.Scorer(pipeline, trainer.model)"):
        gp.calibrate(scorer.model, frame)  # type: ignore[arg-type]
    for coverage in (0, 1, 90, -0.1, "0.9", float("nan")):
        with raises(BadConfig, where="calibrate(coverage=)"):
            gp.calibrate(scorer, frame, coverage=coverage)  # type: ignore[arg-type]
    with raises(BadConfig, where="calibrate(method=)", got="platt"):
        gp.calibrate(scorer, frame, method="platt")  # type: ignore[arg-type]
    with raises(BadConfig, where="calibrate", match="nothing to calibrate"):
        gp.calibrate(gp.Scorer(scorer.pipeline, None), frame)
    with raises(BadConfig, where="calibrate(method='isotonic')", got="regression"):
        gp.calibrate(scorer, frame, method="isotonic")
    with raises(BadConfig, where="calibrate(method='temperature')", got="group"):
        gp.calibrate(scorer_of("late"), frame, method="temperature", by="group")
    with raises(BadConfig, where="calibrate", got="multilabel"):
        gp.calibrate(scorer_of(["late", "z > 0"]), frame)
    with raises(BadConfig, where="calibrate", got=[0.9]):
        gp.calibrate(scorer_of("y", quantiles=(0.9,)), frame)
    with raises(ColumnNotFound, where="calibrate", column="grup"):
        gp.calibrate(scorer, frame, by="grup")
    with raises(BadConfig, where="calibrate(by=)", match="fitted on rows without column 'more'", got="more"):
        gp.calibrate(scorer, frame.assign(more=frame["group"]), by="more")
    for by, got in (("x", "float64"), ("y", "a label")):
        with raises(BadConfig, where="calibrate(by=)", got=got):
            gp.calibrate(scorer, frame, by=by)
    with raises(BadConfig, where="calibrate(method='isotonic')", match="no coverage", got=0.8):
        gp.calibrate(scorer_of("late"), frame, method="isotonic", coverage=0.8)
    with raises(BadConfig, where="calibrate(method=)", got="isotonic"):
        gp.calibrate(gp.calibrate(scorer_of("late"), frame), frame, method="isotonic")
    late = gp.Scorer(scorer_of("late").pipeline, scorer_of("late").model, threshold=0.3)
    assert gp.calibrate(late, frame, method="isotonic").threshold == 0.5
    assert "the threshold 0.3 is of other probabilities" in caplog.records[-1].message
    for call, task in ((scorer.predict_set, "regression"), (late.predict_interval, "binary")):
        with raises(BadConfig, where=call.__name__, got=task):
            call(frame)
    remedy = "scorer = gp.calibrate(scorer, data, coverage=0.9)"
    for call in (scorer.predict_interval, late.predict_set):
        with raises(BadConfig, where=call.__name__, remedy=remedy):
            call(frame)
    with raises(BadConfig, where="Scorer(calibrator=)"):
        gp.Scorer(scorer.pipeline, scorer.model, calibrator=0.9)  # type: ignore[arg-type]
    with raises(BadConfig, where="save(model=)", remedy="gp.save(path, scorer)"):
        gp.save("run", scorer, scorer.model)
