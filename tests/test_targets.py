"""What is learned: targets that go through steps and come back, several at once, and classes that count alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from sklearn.utils.class_weight import compute_class_weight

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.tensors import Batch, Loader


def table(rows: int = 2000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    delay = np.expm1(np.abs(5 + x + rng.normal(0, 0.1, rows)))
    return pd.DataFrame({"x": x, "delay": delay, "air": 3 * x + 100, "late": rng.random(rows) < 0.1})


def pipeline(target: Any, steps: Any = (), **more: Any) -> gp.Pipeline:
    return gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target=target, target_transform=steps, **more))


def trained(made: gp.Pipeline, frame: pd.DataFrame, **more: Any) -> tuple[torch.nn.Module, Any, gp.Trainer]:
    model = gp.models.MLP.from_schema(made.schema, hidden=(16,), seed=1)
    trainer = gp.Trainer(model, max_epochs=6, lr=0.02, device="cpu", progress=False, **more)
    history = trainer.fit(made.loader(frame, batch_size=256, shuffle=True), made.loader(frame))
    return model, history, trainer


LOG = [pre.Log1p(), pre.StandardScaler()]


def test_a_transformed_target_is_stored_transformed() -> None:
    frame = table()
    frame.loc[3, "delay"] = np.nan
    made = pipeline("delay", LOG).fit(gp.from_frame(frame, num_partitions=3))
    wanted = np.log1p(frame["delay"])
    wanted = (wanted - wanted.mean()) / wanted.std(ddof=0)
    np.testing.assert_allclose(made.transform(frame)["delay"], wanted, rtol=1e-5, atol=1e-6)
    assert made.loader(frame).num_rows == len(frame) - 1
    assert made.schema.task == "regression"
    assert gp.Features(["x"], target="delay", target_transform=pre.Log1p()).target is not None


def test_predictions_and_metrics_are_in_the_targets_units(tmp_path: Path) -> None:
    frame = table()
    made = pipeline("delay", LOG).fit(frame)
    model, _, trainer = trained(made, frame)
    gp.save(tmp_path / "run", made, model)
    scorer = gp.load(tmp_path / "run")
    found = scorer.predict(frame[["x"]])["prediction"].to_numpy()
    raw = trainer.predict(made.loader(frame)).numpy().astype("float64")
    logs = np.log1p(frame["delay"])
    np.testing.assert_allclose(found, np.expm1(raw * logs.std(ddof=0) + logs.mean()), rtol=1e-4)
    assert r2_score(np.log1p(frame["delay"]), np.log1p(found)) > 0.9
    figures = trainer.evaluate(made.loader(frame))
    assert figures["rmse"] == pytest.approx(root_mean_squared_error(frame["delay"], found), rel=1e-4)
    assert figures["mae"] == pytest.approx(mean_absolute_error(frame["delay"], found), rel=1e-4)
    assert figures["r2"] == pytest.approx(r2_score(frame["delay"], found), rel=1e-4)
    assert figures["loss"] < 0.5  # of what is stored


def test_several_targets_are_learned_and_predicted_together(tmp_path: Path) -> None:
    frame = table()
    frame.loc[5, "air"] = np.nan
    made = pipeline(["delay", "air - 100"], LOG[1:]).fit(frame)
    block = made.loader(frame).block
    assert block.target is not None and block.target.shape == (len(frame) - 1, 2)
    model, history, trainer = trained(made, frame)
    gp.save(tmp_path / "run", made, model)
    found = gp.load(tmp_path / "run").predict(frame[["x"]])
    assert list(found) == ["prediction_delay", "prediction_air - 100"]
    present = frame["air"].notna()
    wanted = pd.DataFrame({"delay": frame["delay"], "air": frame["air"] - 100})[present]
    figures = trainer.evaluate(made.loader(frame))
    assert figures["rmse"] == pytest.approx(root_mean_squared_error(wanted, found[present]), rel=1e-4)
    assert figures["r2"] == pytest.approx(r2_score(wanted, found[present]), rel=1e-4)
    assert figures["r2"] > 0.5 and len(gp.load(tmp_path / "run").predict(frame[["x"]][:0])) == 0
    assert history.best["valid_mae"] > 0


def test_weights_and_targets_lie_apart_in_the_block() -> None:
    frame = table(10).assign(w=np.arange(10.0))
    block = pipeline(["delay", "air"], weight="w").fit(frame).loader(frame).block
    assert block.weight is not None and block.target is not None
    np.testing.assert_array_equal(block.weight, frame["w"])
    np.testing.assert_allclose(block.target, frame[["delay", "air"]], rtol=1e-6)


def test_a_leak_through_any_of_several_targets_is_found() -> None:
    made = gp.Pipeline([], gp.Features((["air"], [], "own"), target=["delay", "air"]))
    with pytest.raises(errors.LeakageError, match="feature 'air'"):
        made.fit(table())


def test_no_target_transform_may_be_said() -> None:
    features = gp.Features("x", target="delay", target_transform=None)
    assert repr(features) == repr(gp.Features("x", target="delay"))


def test_a_feature_from_a_target_in_two_passes() -> None:
    frame = table().assign(origin=lambda f: np.where(f["x"] > 0, "JFK", "LGA"))
    made = gp.Pipeline(
        [],
        gp.Features(
            (["origin"], [pre.TargetEncoder(), pre.StandardScaler()]), target="delay * 2", target_transform=LOG
        ),
    )
    found = made.fit_transform(gp.from_frame(frame, num_partitions=4)).compute()
    assert abs(found["target"].mean()) < 1e-5 and abs(found["origin"].mean()) < 1e-5


def test_a_later_pass_finds_the_target_again() -> None:
    frame = table().assign(origin=lambda f: np.where(f["x"] > 0, "JFK", np.where(f["x"] > -1, "LGA", None)))
    chain = [pre.SimpleImputer(strategy="most_frequent"), pre.TargetEncoder()]
    steps = [pre.StandardScaler(), pre.MinMaxScaler()]
    made = gp.Pipeline([], gp.Features((["origin"], chain), target="delay * 2", target_transform=steps))
    found = made.fit(gp.from_frame(frame, num_partitions=3)).transform(frame)
    assert (found["target"].min(), found["target"].max()) == (0, 1)
    alone = pre.TargetEncoder().fit(frame[["origin"]].fillna("JFK"), frame["delay"] * 2)
    np.testing.assert_allclose(found["origin"], alone.transform(frame[["origin"]].fillna("JFK"))["origin"], rtol=1e-6)


@pytest.mark.parametrize(
    ("target", "steps", "match"),
    [
        (["delay", "late"], [], "'late': it is no number"),
        ("delay > 3", LOG, "it is no number"),
        ("delay", [pre.Categorify()], "no categories"),
        ("delay", [pre.SimpleImputer()], "cannot be undone"),
        (["delay", "delay"], [], "stands there twice"),
        ("legs", [], "column 'legs': lists are not compared"),
        ([], [], "empty"),
        (None, LOG, "target_transform: there is no target"),
    ],
)
def test_what_makes_no_sense_is_said(target: Any, steps: Any, match: str) -> None:
    with pytest.raises((errors.BadConfig, errors.SchemaMismatch), match=match):
        pipeline(target, steps).fit(table().assign(legs=[[1, 2]] * 2000))


def test_a_target_below_minus_one_has_no_logarithm() -> None:
    with pytest.raises(errors.BadData, match=r"'air'.*-1 or below"):
        pipeline("air", [pre.Log1p()]).fit(table().assign(air=-5.0)).loader(table().assign(air=-5.0))


# classes that count alike ---------------------------------------------------------------------------------------------


def test_balanced_weights_are_scikit_learns() -> None:
    frame = table().assign(kind=lambda f: np.where(f["x"] > 1, "far", np.where(f["x"] > -1, "mid", "near")))
    for target in ("late", "kind"):
        made = pipeline(target).fit(frame)
        loader = made.loader(frame)
        found = gp.training.class_weights.class_weights("balanced", loader, loader.schema)
        classes = np.unique(frame[target])
        np.testing.assert_allclose(found, compute_class_weight("balanced", classes=classes, y=frame[target]), rtol=1e-6)
        halves = list(loader)
        bare = type("Bare", (), {"__iter__": lambda _, b=halves: iter(b), "schema": loader.schema})()
        assert torch.equal(gp.training.class_weights.class_weights("balanced", bare, loader.schema), found)


def test_balanced_training_is_training_with_those_weights() -> None:
    frame = table()
    counts = frame["late"].value_counts()
    of_class = {name: len(frame) / (2 * counts[name]) for name in (False, True)}
    plain = pipeline("late").fit(frame)
    by_hand = pipeline("late", weight="w").fit(frame.assign(w=frame["late"].map(of_class)))
    balanced, _, trainer = trained(plain, frame, class_weight="balanced")
    named, _, _ = trained(plain, frame, class_weight=of_class)
    weighted, _, _ = trained(by_hand, frame.assign(w=frame["late"].map(of_class)))
    unweighted, _, _ = trained(plain, frame)
    for other in (named, weighted):
        for mine, theirs in zip(balanced.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    first = next(iter(zip(balanced.parameters(), unweighted.parameters(), strict=True)))
    assert not torch.allclose(*first, atol=1e-3)
    # Metrics stay those of the rows as they are.
    share = (trainer.predict(plain.loader(frame)).numpy() > 0) == frame["late"]
    assert trainer.evaluate(plain.loader(frame))["accuracy"] == pytest.approx(share.mean(), abs=1e-6)


def test_class_weights_that_make_no_sense() -> None:
    frame = table()
    made, numbers = pipeline("late").fit(frame), pipeline("delay").fit(frame)
    for given, match in (("even", "no such choice"), ({"maybe": 2.0}, "no such class"), ({True: -1.0}, "below 0")):
        with pytest.raises(errors.BadConfig, match=match):
            trained(made, frame, class_weight=given)
    with pytest.raises(errors.BadConfig, match="no classes"):
        trained(numbers, frame, class_weight="balanced")
    with pytest.raises(errors.BadData, match="a class has no row"):
        trained(made, frame[~frame["late"]], class_weight="balanced")
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, 0, dtype=torch.int32), torch.tensor([0.0, 1.0]))
    with pytest.raises(errors.BadConfig, match="nothing tells the classes"):
        gp.Trainer(gp.models.MLP(numeric=1), max_epochs=1, loss="bce", class_weight="balanced").fit([batch])


def test_units_are_none_without_steps() -> None:
    loader = pipeline("delay").fit(table()).loader(table())
    assert isinstance(loader, Loader) and loader.target_units is None
