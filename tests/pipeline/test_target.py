"""What is learned: targets that go through steps and come back, several at once, and classes that count alike."""

from __future__ import annotations

from collections.abc import Callable
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
from gpupipe import transforms as T
from gpupipe.tensors import Batch, Loader
from tests.raising import raises


def table(rows: int = 2000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    delay = np.expm1(np.abs(5 + x + rng.normal(0, 0.1, rows)))
    return pd.DataFrame({"x": x, "delay": delay, "air": 3 * x + 100, "late": rng.random(rows) < 0.1})


def pipeline(target: Any, steps: Any = (), **more: Any) -> gp.Pipeline:
    return gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target=target, target_transform=steps, **more))


def trained(made: gp.Pipeline, frame: pd.DataFrame, **more: Any) -> tuple[torch.nn.Module, Any, gp.Trainer]:
    model = gp.models.MLP.from_schema(made.schema, hidden=(16,), seed=1)
    trainer = gp.Trainer(model, max_epochs=6, lr=0.02, early_stopping=None, device="cpu", progress=False, **more)
    history = trainer.fit(made.loader(frame, batch_size=256, shuffle=True), made.loader(frame))
    return model, history, trainer


LOG = [pre.Log1p(), pre.StandardScaler()]


def test_a_transformed_target_is_stored_transformed() -> None:
    frame = table()
    frame.loc[3, "delay"] = np.nan
    made = pipeline("delay", LOG).fit(gp.from_frame(frame, num_partitions=3))
    wanted = np.log1p(frame["delay"])
    wanted = (wanted - wanted.mean()) / wanted.std(ddof=0)
    loader = made.loader(frame)
    assert loader.num_rows == len(frame) - 1
    np.testing.assert_allclose(loader.table.target, wanted.dropna(), rtol=1e-5, atol=1e-6)
    # What a person sees is in the target's own units.
    np.testing.assert_allclose(made.transform(frame)["delay"], frame["delay"], rtol=1e-6)
    np.testing.assert_allclose(loader.arrays()["target"], frame["delay"].dropna(), rtol=1e-4)
    assert made.schema.task == "regression"
    assert gp.Features(["x"], target="delay", target_transform=pre.Log1p()).target is not None


def test_predictions_and_metrics_are_in_the_targets_units(tmp_path: Path) -> None:
    frame = table()
    made = pipeline("delay", LOG).fit(frame)
    model, _, trainer = trained(made, frame)
    gp.save(tmp_path / "run", made, model)
    scorer = gp.load(tmp_path / "run")
    found = scorer.predict(frame[["x"]])["prediction"].to_numpy()
    stored = trainer.predict(Loader(made.loader(frame).table)).numpy().astype("float64")
    logs = np.log1p(frame["delay"])
    np.testing.assert_allclose(found, np.expm1(stored * logs.std(ddof=0) + logs.mean()), rtol=1e-4)
    np.testing.assert_allclose(trainer.predict(made.loader(frame)), found, rtol=1e-5)
    assert r2_score(np.log1p(frame["delay"]), np.log1p(found)) > 0.9
    figures = trainer.evaluate(made.loader(frame))
    assert figures["rmse"] == pytest.approx(root_mean_squared_error(frame["delay"], found), rel=1e-4)
    assert figures["mae"] == pytest.approx(mean_absolute_error(frame["delay"], found), rel=1e-4)
    assert figures["r2"] == pytest.approx(r2_score(frame["delay"], found), rel=1e-4)
    assert figures["loss"] < 0.5  # of what is stored


@pytest.mark.parametrize("transform", [pre.QuantileTransformer(), [pre.QuantileTransformer(), pre.StandardScaler()]])
def test_values_beyond_the_quantiles_of_the_fit_are_told(transform: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.DataFrame({"x": np.arange(100.0), "y": np.arange(100.0)})
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y", target_transform=transform)).fit(rows)
    pipeline.loader(rows)
    assert "beyond" not in caplog.text
    pipeline.loader(rows.assign(y=[-1.0, 250.0, np.nan, *range(97)]))
    assert "2 of 99 values are beyond the fit's, 0 to 99" in caplog.text


def test_several_targets_are_learned_and_predicted_together(tmp_path: Path) -> None:
    frame = table()
    frame.loc[5, "air"] = np.nan
    made = pipeline(["delay", "air - 100"], LOG[1:]).fit(frame)
    block = made.loader(frame).table
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
    block = pipeline(["delay", "air"], weight="w").fit(frame).loader(frame).table
    assert block.weight is not None and block.target is not None
    np.testing.assert_array_equal(block.weight, frame["w"])
    np.testing.assert_allclose(block.target, frame[["delay", "air"]], rtol=1e-6)


def test_a_leak_through_any_of_several_targets_is_found() -> None:
    made = gp.Pipeline([], gp.Features((["air"], [], "own"), target=["delay", "air"]))
    with raises(errors.LeakageError, where="feature 'air'"):
        made.fit(table())


def test_a_regression_is_standardised_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    frame = table()
    by_default = gp.Pipeline([], gp.Features(["x"], target="delay")).fit(gp.from_frame(frame, num_partitions=3))
    spelled = pipeline("delay", pre.StandardScaler()).fit(frame)
    raw = pipeline("delay", None).fit(frame)
    assert torch.equal(by_default.loader(frame).table.target, spelled.loader(frame).table.target)
    np.testing.assert_array_equal(raw.loader(frame).table.target, frame["delay"].astype("float32"))
    for made in (by_default, spelled, raw):
        np.testing.assert_allclose(made.transform(frame)["delay"], frame["delay"], rtol=1e-6)
        np.testing.assert_allclose(made.loader(frame).arrays()["target"], frame["delay"], rtol=1e-4)
    gp.save(tmp_path / "p", by_default)
    loaded = gp.load(tmp_path / "p").pipeline
    assert torch.equal(loaded.loader(frame).table.target, by_default.loader(frame).table.target)
    assert loaded.features is not None and loaded.features.target is not None and loaded.features.target.auto
    loaded.fit(frame.assign(delay=frame["delay"] * 10))  # learns anew
    assert abs(float(loaded.loader(frame.assign(delay=frame["delay"] * 10)).table.target.mean())) < 1e-5


def test_the_default_brings_the_error_down() -> None:
    frame = table().assign(price=lambda f: 4000 + 1000 * f["x"] + 300 * np.sin(3 * f["x"]))
    errors_of = {}
    for name, steps in (("default", "auto"), ("raw", None)):
        _, history, _ = trained(pipeline("price", steps).fit(frame), frame)
        errors_of[name] = history.best["valid_rmse"]
    assert errors_of["default"] < errors_of["raw"] / 3


@pytest.mark.parametrize("loss", [lambda output, batch: (output - batch.target).abs(), "bce"])
@pytest.mark.slow
def test_a_loss_that_may_mean_raw_targets_is_asked_about(loss: Any) -> None:
    frame = table().assign(share=lambda f: f["x"].clip(-3, 3) / 6 + 0.5)
    by_default = gp.Pipeline([], gp.Features(["x"], target="share")).fit(frame)
    with pytest.raises(errors.BadConfig) as caught:
        trained(by_default, frame, loss=loss)
    assert caught.value.where == "Trainer(loss=)" and "target_transform=None" in caught.value.remedy
    for steps in (None, pre.StandardScaler()) if callable(loss) else (None,):
        trained(pipeline("share", steps).fit(frame), frame, loss=loss)
    for scale_free in ("huber", torch.nn.L1Loss(), torch.nn.functional.mse_loss):
        trained(by_default, frame, loss=scale_free)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = property(lambda _: True)


def test_units_need_no_rapids_and_are_written_into_torchs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    units = gp.Pipeline([], gp.Features(["x"], target=["delay", "air"])).fit(frame).loader(frame).target_units
    assert units is not None
    values = torch.tensor([[0.5, -1.0], [0.0, 2.0]])
    wanted = units(values).clone()
    monkeypatch.setattr(torch, "from_dlpack", pytest.fail)  # CuPy's memory is freed in another stream's order
    torch.testing.assert_close(units(values), wanted, rtol=0, atol=0)
    torch.testing.assert_close(units(values.as_subclass(OnGpu)).as_subclass(torch.Tensor), wanted, rtol=0, atol=0)


def test_outputs_that_are_no_values_of_the_target_have_no_units() -> None:
    frame = table()
    made = gp.Pipeline([], gp.Features(["x"], target=["delay", "air"])).fit(frame)
    model = torch.nn.Linear(1, 3)
    with pytest.raises(errors.SchemaMismatch) as caught:
        made.loader(frame).target_units(model(made.loader(frame).table.numeric))
    assert caught.value.got == (len(frame), 3) and caught.value.remedy == "Features(target_transform=None)"


def test_choices_of_target_transform_and_task_are_checked_and_shown() -> None:
    for options, where in (({"target_transform": "log"}, "target_transform"), ({"task": "binary"}, "task")):
        with pytest.raises(errors.BadConfig) as caught:
            gp.Features(["x"], target="delay", **options)
        assert caught.value.where == f"Features({where}=)"
    with pytest.raises(errors.BadConfig) as caught:
        gp.Features(["x"], task="regression")
    assert caught.value.where == "Features, task"
    plain, scope = gp.Features(["x"], target="delay"), {**vars(pre), "Features": gp.Features}
    assert "task" not in repr(plain) and "target_transform" not in repr(plain)
    for options in ({"target_transform": None}, {"task": "regression"}, {"task": "classification"}):
        said = repr(gp.Features(["x"], target="delay", **options))
        assert all(f"{name}={value!r}" in said for name, value in options.items()) and repr(eval(said, scope)) == said


def test_a_feature_from_a_target_in_two_passes() -> None:
    frame = table().assign(origin=lambda f: np.where(f["x"] > 0, "JFK", "LGA"))
    made = gp.Pipeline(
        [],
        gp.Features(
            (["origin"], [pre.TargetEncoder(), pre.StandardScaler()]), target="delay * 2", target_transform=LOG
        ),
    )
    data = gp.from_frame(frame, num_partitions=4)
    assert abs(made.fit_transform(data).compute()["origin"].mean()) < 1e-5
    assert abs(float(made.loader(data, out_of_fold=True).table.target.mean())) < 1e-5


def test_a_later_pass_finds_the_target_again() -> None:
    frame = table().assign(origin=lambda f: np.where(f["x"] > 0, "JFK", np.where(f["x"] > -1, "LGA", None)))
    chain = [pre.SimpleImputer(strategy="most_frequent"), pre.TargetEncoder()]
    steps = [pre.StandardScaler(), pre.MinMaxScaler()]
    made = gp.Pipeline([], gp.Features((["origin"], chain), target="delay * 2", target_transform=steps))
    found = made.fit(gp.from_frame(frame, num_partitions=3)).transform(frame)
    stored = made.loader(frame, out_of_fold=False).table.target
    assert (stored.min(), stored.max()) == (0, 1)
    alone = pre.TargetEncoder().fit(frame[["origin"]].fillna("JFK"), frame["delay"] * 2)
    np.testing.assert_allclose(found["origin"], alone.transform(frame[["origin"]].fillna("JFK"))["origin"], rtol=1e-6)


@pytest.mark.parametrize(
    ("target", "steps", "match"),
    [
        (["delay", "late"], [], "'late': it is no number"),
        ("delay > 3", LOG, "it is no number"),
        ("delay", [pre.Categorify()], "no categories"),
        ("delay", [pre.SimpleImputer()], "cannot be undone"),
        (["delay", "delay"], [], "different ones"),
        ("legs", [], "column 'legs': lists are not compared"),
        ([], [], r"Features\(target=\)"),
        (None, LOG, "target_transform: there is no target"),
    ],
)
def test_what_makes_no_sense_is_said(target: Any, steps: Any, match: str) -> None:
    with pytest.raises((errors.BadConfig, errors.SchemaMismatch), match=match):
        pipeline(target, steps).fit(table().assign(legs=[[1, 2]] * 2000))


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("kind == 'catt'", "target=\"kind == 'cat'\" (the closest value)"),
        (
            'x > -9 and kind in ["Dogs", "horse"]',
            'target=\'x > -9 and kind in ["dog", "horse"]\' (the closest value)',
        ),
        ("kind == 'zebra'", "another split or target"),
    ],
)
def test_a_value_that_no_row_has_is_offered_the_closest(target: str, remedy: str) -> None:
    kinds = gp.from_frame(table(40).assign(kind=["cat"] * 10 + ["dog"] * 30), num_partitions=3)
    with pytest.raises(errors.BadData, match="all rows have the same value, got False") as caught:
        gp.Pipeline([], gp.Features(["air"], target=target)).fit(kinds)
    assert caught.value.remedy == remedy and caught.value.expected == "values that column 'kind' has: 'cat', 'dog'"


MEDALS = pd.DataFrame(
    {
        "x": np.arange(60.0),
        "medal": ["Gold", "Silver", None] * 20,
        "age": [20.0, 30.0, np.nan, 40.0, 50.0, 60.0] * 10,
        "year": [2000, 2004, 2008] * 20,
    }
)


@pytest.mark.parametrize(
    ("target", "filled", "condition"),
    [
        ("medal == 'Gold'", "coalesce(medal, '') == 'Gold'", "notnull(medal)"),
        ("age > 30", "coalesce(age > 30, False)", "notnull(age)"),
        (
            "medal != 'Gold' or age > 30",
            "coalesce(medal != 'Gold' or age > 30, False)",
            "notnull(medal) and notnull(age)",
        ),
        ("age / 2", None, "notnull(age)"),
        ("medal", None, None),
        ("year > 2000", None, None),
        ("log(year - 2003)", None, "notnull(log(year - 2003))"),
        ("sqrt(year - 2003) > 1.5", "coalesce(sqrt(year - 2003) > 1.5, False)", "notnull(sqrt(year - 2003) > 1.5)"),
        ("log(year)", None, None),
    ],
)
def test_rows_that_a_gap_leaves_without_a_target_are_warned_of(
    target: str, filled: str | None, condition: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """`medal == 'Gold'` of those alone who have a medal is another question than of all."""

    def warnings(steps: list[T.Transform], target: str, data: Any = MEDALS) -> list[str]:
        caplog.clear()
        gp.Pipeline(steps, gp.Features(["x"], target=target)).fit(data)
        return [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]

    told = warnings([], target, gp.from_frame(MEDALS, num_partitions=4))
    assert told == warnings([], target) and len(told) == (condition is not None)
    assert all(("target=" in line) == (filled is not None) for line in told)
    if filled is not None:
        assert f"target={filled!r} keeps them" in told[0] and not warnings([], filled)
    if condition is not None:
        assert f"T.Filter({condition!r})" in told[0] and not warnings([T.Filter(condition)], target)


def test_a_few_rows_without_a_target_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    few = MEDALS.assign(medal=MEDALS["medal"].fillna("none").where(MEDALS["x"] > 4))
    pipeline("medal == 'Gold'").fit(few)
    assert "keeps them" not in caplog.text


def test_a_column_that_is_missing_in_many_rows_is_warned_of_as_a_target(caplog: pytest.LogCaptureFixture) -> None:
    for num_missing, warns in ((20, False), (24, True)):
        caplog.clear()
        table = MEDALS.assign(medal=MEDALS["medal"].fillna("none").where(MEDALS["x"] >= num_missing))
        gp.Pipeline([], gp.Features(["x"], target="medal")).fit(table)
        assert ("target 'medal': it is missing in 24 of 60 rows, and these are left out" in caplog.text) == warns


def test_a_condition_that_only_rows_without_its_column_do_not_satisfy() -> None:
    with pytest.raises(errors.BadData, match="medal is missing in 20 of 60 rows") as caught:
        pipeline("medal in ['Gold', 'Silver']").fit(MEDALS)
    target = eval(caught.value.remedy.partition(", since")[0].removeprefix("target="))
    fitted = pipeline(target).fit(MEDALS)
    assert fitted.fit_report is not None and fitted.fit_report.num_without_target == 0


def test_a_target_below_minus_one_has_no_logarithm() -> None:
    with raises(errors.BadData, where="Log1p, column 'air'", got=-5.0):
        pipeline("air", [pre.Log1p()]).fit(table().assign(air=-5.0)).loader(table().assign(air=-5.0))


# classes that count alike ---------------------------------------------------------------------------------------------


def test_balanced_weights_are_scikit_learns() -> None:
    frame = table().assign(kind=lambda f: np.where(f["x"] > 1, "far", np.where(f["x"] > -1, "mid", "near")))
    for target in ("late", "kind"):
        made = pipeline(target).fit(frame)
        loader = made.loader(frame)
        found = gp.training.loop.losses.compute_class_weights("balanced", loader, loader.schema)
        classes = np.unique(frame[target])
        np.testing.assert_allclose(found, compute_class_weight("balanced", classes=classes, y=frame[target]), rtol=1e-6)
        halves = list(loader)
        bare = type("Bare", (), {"__iter__": lambda _, b=halves: iter(b), "schema": loader.schema})()
        assert torch.equal(gp.training.loop.losses.compute_class_weights("balanced", bare, loader.schema), found)


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
    with raises(errors.BadConfig, where="Trainer(class_weight=)", match="the target has no classes"):
        trained(numbers, frame, class_weight="balanced")
    with raises(errors.BadData, where="Trainer(class_weight='balanced')", got={False: 1781, True: 0}):
        trained(made, frame[~frame["late"]], class_weight="balanced")
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, 0, dtype=torch.int32), torch.tensor([0.0, 1.0]))
    with raises(errors.BadConfig, where="Trainer(class_weight=)", match="nothing tells the classes"):
        gp.Trainer(gp.models.MLP(numeric=1), max_epochs=1, loss="bce", class_weight="balanced").fit([batch])


def test_units_are_none_without_steps() -> None:
    loader = pipeline("delay", None).fit(table()).loader(table())
    assert isinstance(loader, Loader) and loader.target_units is None


NAMED = ["1960", "x-1", "195.58"]


def named_table(name: str) -> pd.DataFrame:
    frame = table(40)
    return frame.assign(**{name: (frame["air"] > 100).astype(int) if name == "195.58" else frame["delay"]})


@pytest.mark.parametrize("name", NAMED)
def test_a_label_that_is_a_column_in_the_fit_is_one_ever_after(name: str, tmp_path: Path) -> None:
    frame = named_table(name)
    features = gp.Features((["x"], pre.StandardScaler()), target=name, allow_leak=["x"])
    made = gp.Pipeline([], features).fit(frame)
    gp.save(tmp_path / "run", made, gp.models.MLP.from_schema(made.schema, hidden=(4,)))
    scorer = gp.load(tmp_path / "run")
    for one in (made, scorer.pipeline):
        assert list(one.transform(frame[["x"]])) == ["x"]
        assert "target" not in one.loader(frame[["x"]]).arrays()
        np.testing.assert_allclose(one.transform(frame)[name], frame[name], rtol=1e-6)
    assert len(scorer.predict(frame[["x"]])) == len(frame)
    weighted = gp.Pipeline([], gp.Features(["x"], weight=name)).fit(frame)
    assert list(weighted.transform(frame)) == ["x", name] and list(weighted.transform(frame[["x"]])) == ["x"]


def test_another_fit_finds_anew_whether_a_label_is_a_column() -> None:
    frame = named_table("x-1")
    made = gp.Pipeline([], gp.Features(["air"], target="x-1")).fit(frame)
    assert list(made.fit(frame[["x", "air"]]).transform(frame)) == ["air", "target"]
    np.testing.assert_allclose(made.transform(frame)["target"], frame["x"] - 1, rtol=1e-6)


@pytest.mark.parametrize("labels", [{"target": "1960"}, {"target": "air", "weight": "1960"}])
def test_a_label_that_reads_no_column_is_a_column_that_is_not_there(labels: dict[str, Any]) -> None:
    with pytest.raises(errors.ColumnNotFound) as caught:
        gp.Pipeline([], gp.Features(["x"], **labels)).fit(table(40))
    assert caught.value.column == "1960"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Late.Arrival", "Late.Arival"),
        ("late arrival", "late arival"),
        ("late_arrival", "late arival"),
        ("2010_inc", "2011_inc"),
        ("Price ($)", "Prise ($)"),
    ],
)
def test_a_misspelt_label_that_is_no_identifier_is_offered_the_closest(name: str, text: str) -> None:
    frame = table(40).rename(columns={"delay": name})
    calls: list[Callable[[], Any]] = [
        lambda: gp.fit(frame, target=text),
        lambda: gp.Pipeline([], gp.Features(["x"], target=text)).fit(frame),
        lambda: gp.Pipeline([], gp.Features(["x"], target="air", weight=text)).fit(frame),
        lambda: gp.from_frame(frame).describe(text),
    ]
    for call in calls:
        with pytest.raises(errors.ColumnNotFound) as caught:
            call()
        assert caught.value.column == text and caught.value.remedy == f"{name!r} (the closest name)"


@pytest.mark.parametrize("text", ["Late.Arrival", "sold price", "2010_inc"])
def test_a_label_that_is_not_there_and_no_identifier(text: str) -> None:
    with raises(errors.ColumnNotFound, where=f"target={text!r}", column=text):
        gp.fit(table(40), target=text)


@pytest.mark.parametrize("text", ["delay = 1", "delay is null", "delay.mean", "y is null", "delay >", "1 +"])
def test_a_slip_in_an_expression_is_no_misspelt_name(text: str) -> None:
    with raises(errors.ExpressionError, where=f"target={text!r}"):
        gp.fit(table(40).assign(delay_1=1.0), target=text)


def test_an_expressions_target_gives_way_to_a_feature_of_that_name() -> None:
    frame = table(40).assign(target=1.0, weight=np.arange(40.0))
    made = gp.Pipeline([], gp.Features(["target", "weight"], target="air > 100", weight="1 + abs(x)")).fit(frame)
    assert list(made.transform(frame)) == made.schema.names == ["target", "weight", "air > 100", "1 + abs(x)"]
    assert made.schema.task == "binary"
    arrays = made.loader(frame).arrays()
    np.testing.assert_array_equal(arrays["target"], frame["air"] > 100)
    np.testing.assert_allclose(arrays["weight"], 1 + frame["x"].abs(), rtol=1e-6)
    proposed = gp.Pipeline([], gp.Features.auto(frame, target="delay > 100")).fit(frame)
    assert "delay > 100" in proposed.schema.names


def test_weights_are_not_left_out_of_training_without_a_word() -> None:
    frame = table(40).assign(w=1.0, v=2.0)
    made = pipeline("delay", weight="w * v").fit(frame)
    with pytest.raises(errors.ColumnNotFound) as caught:
        made.loader(frame.drop(columns="v"))
    assert caught.value.column == "v" and "weight" in caught.value.where and "'v'" in caught.value.remedy
    assert list(made.transform(frame.drop(columns="v"))) == ["x", "delay"]
    assert made.loader(frame[["x"]]).num_rows == 40  # to score, nobody needs a weight


@pytest.mark.parametrize("target", ["delay", ["air", "delay"]])
def test_a_weight_that_is_the_target_is_named(target: Any) -> None:
    frame = table(50)
    with raises(errors.BadConfig, where="Features(weight=)", got="delay", match="the weight is the target") as caught:
        pipeline(target, weight="delay").fit(frame)
    assert caught.value.remedy.endswith("; weight='1.0 * delay', if larger targets count more")
    pipeline(target, weight="1.0 * delay").fit(frame)
    pipeline("late", weight="1.0 * late").fit(frame)
