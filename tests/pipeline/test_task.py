"""The task that follows from a target: scikit-learn's `type_of_target`, with what could be meant otherwise said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_iris
from sklearn.utils.multiclass import type_of_target

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from tests.raising import raises

ROWS = 240
OF_SKLEARN = {"binary": "binary", "multiclass": "multiclass", "continuous": "regression"}


def fitted(values: Any, parts: int = 1, **options: Any) -> gp.Pipeline:
    frame = pd.DataFrame({"x": np.arange(len(values)) / len(values), "y": values})
    return gp.Pipeline([], gp.Features(["x"], target="y", **options)).fit(gp.from_frame(frame, num_partitions=parts))


def repeated(*values: Any) -> list[Any]:
    return [values[place % len(values)] for place in range(ROWS)]


@pytest.mark.parametrize(
    "values",
    [
        repeated(True, False),
        repeated("yes", "no"),
        repeated("a", "b", "c"),
        repeated(0, 1),
        repeated(1, 2),
        repeated(-1, 1),
        repeated(0.0, 1.0),
        repeated(7.0, 9.0),
        repeated(0, 1, 2),
        repeated(*range(10)),
        repeated(*range(20)),
        repeated(0.0, 1.0, 2.0),
        repeated(0.0, 0.5, 1.0),
        repeated(1.5, 2.5),
        np.linspace(0, 1, ROWS),
        np.array(repeated(3, 200), dtype="uint8"),
        np.array(repeated(1, 2**63 + 5), dtype="uint64"),
    ],
    ids=lambda values: f"{np.asarray(values).dtype}-{np.unique(values)[:3]}",
)
def test_the_task_is_type_of_targets(values: Any) -> None:
    made = fitted(values)
    assert made.schema.task == OF_SKLEARN[type_of_target(np.asarray(values))]
    if made.schema.task == "regression":
        return
    found = made.schema.target.classes
    assert list(found) == np.unique(values).tolist()
    whole = not isinstance(values[0], str | bool | np.bool_)
    assert all(type(each) is (int if whole else type(values[0])) for each in found)
    block = made.loader(pd.DataFrame({"x": 0.0, "y": values})).table
    assert [found[int(place)] for place in block.target] == list(values)


@pytest.mark.parametrize("values", [repeated(*range(21)), list(range(ROWS)), [*range(10), *range(9)]])
def test_many_whole_numbers_are_amounts(values: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="gpupipe"):
        assert fitted(values).schema.task == "regression"
    (told,) = [record for record in caplog.records if record.getMessage().startswith("target 'y'")]
    few = len(values) < 40
    assert told.levelname == ("WARNING" if few else "INFO") and "distinct whole numbers" in told.getMessage()
    assert ("say task='regression'" in told.getMessage()) == few
    assert fitted(values, task="classification").schema.target.cardinality == len(set(values))


def test_few_whole_numbers_are_classes_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    values = repeated(3, 5, 9)
    made = fitted(values, parts=4)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(word in told for word in ("3, 5, 9", "task='regression'", "task='classification'"))
    assert made.fit_report is not None and told in made.fit_report.notes
    caplog.clear()
    assert fitted(values, task="classification").schema.task == "multiclass"
    assert fitted(values, task="regression").schema.task == "regression"
    assert fitted(values, target_transform=pre.Log1p()).schema.task == "regression"
    assert fitted(repeated(0, 1), task="regression").schema.task == "regression"
    assert not caplog.records


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([None, 0, 1, 2, 3]), st.integers(-(2**62), 2**62), st.sampled_from([0.0, 1.0, 0.5, 7.0])
        ),
        min_size=2,
        max_size=90,
    ),
    st.integers(2, 7),
)
def test_the_decision_does_not_depend_on_partitions(values: list[Any], parts: int) -> None:
    floats = any(isinstance(value, float) for value in values)
    column = pd.array(values, dtype="Float64" if floats else "Int64")
    if pd.Series(column).nunique() < 2:
        return

    def decided(count: int) -> Any:
        found = fitted(column, count)
        return found.schema.task, found.schema.target.classes, found.fit_report.notes

    assert decided(1) == decided(parts)


@pytest.mark.parametrize("distinct", [20, 21])
def test_values_few_in_each_partition_are_counted_together(distinct: int) -> None:
    values = [value for value in range(distinct) for _ in range(8)]
    wanted = "multiclass (20 distinct" if distinct == 20 else "regression (more than 20 distinct"
    for parts in (1, 4, 7):
        report = fitted(values, parts).fit_report
        assert report is not None and report.notes[0].startswith(f"target 'y': {wanted}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "floor"), [(load_digits, 0.93), (load_iris, 0.9)], ids=["digits, whole numbers", "iris, whole numbers"]
)
def test_integer_classes_come_back_as_they_are(data: Any, floor: float, tmp_path: Path) -> None:
    table = data(as_frame=True).frame
    names = [name for name in table.columns if name != "target"]
    table["target"] = table["target"] * 10 + 5  # no indices
    pipeline = gp.Pipeline([], gp.Features((names, pre.StandardScaler()), target="target")).fit(table)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(64,), seed=1)
    trainer = gp.Trainer(model, max_epochs=15, lr=0.01, device="cpu", progress=False)
    trainer.fit(pipeline.loader(table, batch_size=32, shuffle=True))
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run")
    assert scorer.schema.target.classes == tuple(sorted(set(table["target"])))
    found, chances = scorer.predict(table[names]), scorer.predict_proba(table[names])
    assert found["prediction"].dtype == "int64" and (found["prediction"] == table["target"]).mean() > floor
    assert list(chances)[:2] == ["probability_5", "probability_15"]
    assert (chances.to_numpy().argmax(1) * 10 + 5 == found["prediction"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "names", "dtype"),
    [
        ((False, True), ["probability"], "bool"),
        ((0, 1), ["probability"], "int64"),
        ((1, 2), ["probability_1", "probability_2"], "int64"),
        ((2**63 + 5, 2**63 + 7), [f"probability_{2**63 + 5}", f"probability_{2**63 + 7}"], "uint64"),
        (("no", "yes"), ["probability_no", "probability_yes"], object),
    ],
)
def test_two_classes_are_a_binary_task(values: Any, names: list[str], dtype: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=600)
    frame = pd.DataFrame({"x": x, "y": [values[int(each > 0)] for each in x]})
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y")).fit(frame)
    assert pipeline.schema.task == "binary" and pipeline.schema.target.classes == values
    model = gp.models.Linear.from_schema(pipeline.schema)
    trainer = gp.Trainer(model, max_epochs=5, lr=0.1, device="cpu", progress=False)
    history = trainer.fit(pipeline.loader(frame, batch_size=60), pipeline.loader(frame))
    assert history.best["valid_auc"] > 0.99
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run")
    found, chances = scorer.predict(frame[["x"]])["prediction"], scorer.predict_proba(frame[["x"]])
    assert (found == frame["y"]).mean() > 0.97 and (found.dtype == dtype or dtype is object)
    assert list(chances) == names
    np.testing.assert_allclose(chances.iloc[:, -1], torch.sigmoid(trainer.predict(pipeline.loader(frame))), rtol=1e-5)
    np.testing.assert_allclose(chances.sum(axis=1), 1 if len(names) == 2 else chances.iloc[:, 0], rtol=1e-5)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "late"], ["a", "x > 0"]])
def test_several_columns_of_zeros_and_ones_are_several_labels(names: list[str], tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(600, 2))
    frame = pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "a": (x[:, 0] > 0).astype(int), "b": x[:, 1] > 0})
    frame["late"], frame["b"] = x[:, 1] > 1, frame["b"].astype("float64")
    pipeline = gp.Pipeline([], gp.Features(["z"], (["x"], [], "own"), target=names, allow_leak=["x"])).fit(frame)
    assert pipeline.schema.task == "multilabel"
    assert [len(item.classes) for item in pipeline.schema.targets] == [2, 2]
    model = gp.models.Linear.from_schema(pipeline.schema)
    gp.Trainer(model, max_epochs=10, lr=0.1, device="cpu", progress=False).fit(pipeline.loader(frame, batch_size=60))
    gp.save(tmp_path / "run", pipeline, model)
    found = gp.load(tmp_path / "run").predict(frame[["x", "z"]])
    assert list(found) == [f"prediction_{name}" for name in names]
    assert found["prediction_a"].dtype == "int64" and (found["prediction_a"] == frame["a"]).mean() > 0.9
    if names == ["a", "b"]:
        numbers = gp.Pipeline([], gp.Features(["x"], target=names, task="regression")).fit(frame)
        assert numbers.schema.task == "regression"


def test_numbers_beside_zeros_and_ones_stay_raw() -> None:
    frame = pd.DataFrame({"x": np.linspace(0, 1, 60), "flag": [0, 1] * 30, "price": np.linspace(100, 900, 60)})
    made = gp.Pipeline([], gp.Features(["x"], target=["price", "flag"])).fit(frame)
    assert made.schema.task == "regression" and made._target_units is None
    assert made.loader(frame).table.target.max() == 900


@pytest.mark.parametrize(
    ("values", "options", "error", "got"),
    [
        (repeated(0.5, 1.0), {"task": "classification"}, errors.BadData, None),
        (list(range(10_001)), {"task": "classification"}, errors.BadData, None),
        (repeated(4), {"task": "classification"}, errors.BadData, 4),
        (repeated(4), {}, errors.BadData, 4),
        (repeated(2.5), {}, errors.BadData, 2.5),
        (repeated(2.5), {"task": "regression"}, errors.BadData, 2.5),
        (repeated(True, None), {}, errors.BadData, True),
        (repeated("a"), {}, errors.BadData, "a"),
        (repeated("a", "b"), {"task": "regression"}, errors.BadConfig, "string"),
        (repeated(True, False), {"task": "regression"}, errors.BadConfig, "bool"),
    ],
)
def test_a_task_that_the_target_does_not_allow(values: Any, options: Any, error: Any, got: Any) -> None:
    with pytest.raises(error) as caught:
        fitted(values, **options)
    assert caught.value.where == "target 'y'" and caught.value.got == got and caught.value.remedy


@pytest.mark.parametrize(("target", "condition"), [("y", "y > 100"), ("y * 1.5", "(y * 1.5) > 100")])
def test_a_condition_over_a_number_is_offered_for_classes(target: str, condition: str) -> None:
    frame = pd.DataFrame({"x": np.arange(200.0), "y": np.arange(200) + 0.25})
    with pytest.raises(errors.BadData) as caught:
        gp.Pipeline([], gp.Features(["x"], target=target, task="classification")).fit(frame)
    assert f"target={condition!r}" in str(caught.value.remedy)
    assert gp.Pipeline([], gp.Features(["x"], target=condition)).fit(frame).schema.task == "binary"


def test_classes_and_steps_do_not_go_together() -> None:
    with pytest.raises(errors.BadConfig) as caught:
        gp.Features(["x"], target="y", task="classification", target_transform=pre.Log1p())
    assert caught.value.where == "Features(target_transform=)"
    frame = pd.DataFrame({"x": [0.5] * 6, "a": [0, 1, 2] * 2, "b": [0, 1] * 3})
    with pytest.raises(errors.BadConfig) as caught:
        gp.Pipeline([], gp.Features(["x"], target=["a", "b"], task="classification")).fit(frame)
    assert caught.value.got == ["a", "b"]


def test_of_many_classes_a_few_are_named() -> None:
    prices = [f"{price:,}" for price in range(10_000, 10_300)] * 2
    made, later = fitted(prices), pd.DataFrame({"x": [0.0], "y": ["9,999"]})
    with pytest.raises(errors.BadData) as caught:
        made.loader(later)
    assert caught.value.expected.startswith("one of '10,000', '10,001'") and "and 280 more" in caught.value.expected
    model = gp.models.MLP.from_schema(made.schema, hidden=(2,))
    with pytest.raises(errors.BadConfig) as refused:
        gp.Trainer(model, max_epochs=1, class_weight={"9,999": 2.0}).fit(made.loader(later.assign(y="10,001")))
    assert "and 280 more" in refused.value.expected


def test_a_number_that_is_no_class_is_named() -> None:
    made = fitted(repeated(1, 2, 3))
    with pytest.raises(errors.BadData) as caught:
        made.loader(pd.DataFrame({"x": [0.0, 0.0], "y": [1, 4]}))
    assert caught.value.got == 4 and caught.value.expected == "one of 1, 2, 3"
    missing = pd.DataFrame({"x": [0.0, 0.0, 0.0], "y": pd.array([1, None, 3], dtype="Int64")})
    assert made.loader(missing).table.target.tolist() == [0, 2]
    assert made.transform(missing)["y"].isna().tolist() == [False, True, False]


def test_each_fit_decides_anew() -> None:
    made = fitted(repeated(1, 2, 3))
    frame = pd.DataFrame({"x": np.linspace(0, 1, 50), "y": np.linspace(0, 9, 50)})
    assert made.fit(frame).schema.task == "regression"
    assert abs(float(made.loader(frame).table.target.mean())) < 1e-5
    assert made.fit(frame.assign(y=frame["y"] > 4)).schema.task == "binary"
    assert made._target_units is None


def test_nearly_distinct_strings_are_classes_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    values = [f"v{number}" for number in range(ROWS)]
    made = fitted(values, parts=3)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "task='classification'" in told and made.fit_report is not None and told in made.fit_report.notes
    caplog.clear()
    assert fitted(values, task="classification").schema.task == "multiclass"
    assert fitted(repeated(*"abc")).schema.task == "multiclass"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("first", ["18 rows: classes", "13 rows: amounts"])
def test_the_first_fit_decides_whatever_rows_follow(first: str, tmp_path: Path) -> None:
    values = [5, 5, 7, 7, 9, 9, 11, 11, 13, 1, 1, 3, 3, 20, 20, 31, 31, 31]
    frame = pd.DataFrame({"x": np.arange(18.0), "y": values})
    few, many = frame[4:13:2], pd.concat([frame] * 3, ignore_index=True).assign(y=lambda rows: rows.index % 30)
    starts = frame if first.startswith("18") else few
    task = {True: "multiclass", False: "regression"}[first.endswith("classes")]
    made = gp.Pipeline([], gp.Features(["x"], target="y")).fit(starts)
    gp.save(tmp_path / "run", made)
    assert made.schema.task == task and "with other rows it may be the other task" in made.fit_report.notes[0]
    for pipeline in (made, gp.load(tmp_path / "run").pipeline, gp.Pipeline([], made.features)):
        for rows in (few, many, frame):
            assert pipeline.fit(rows).schema.task == task
    assert made.fit_report.notes[0].startswith(f"target 'y': {task} (as in the fit before)")


def test_auto_writes_down_the_task_of_whole_numbers() -> None:
    frame = pd.DataFrame(
        {"x": np.arange(18.0), "y": [1, 1, 2, 2, 3, 3] * 3, "z": [0, 1] * 9, "w": np.linspace(0, 1, 18)}
    )
    for target, task in {
        "y": "classification",
        "y * 7 + x": "regression",
        "z": "auto",
        "w": "auto",
        "y > 1": "auto",
    }.items():
        found = gp.Features.auto(frame[["x", "y", "z", "w"]], target=target)
        assert found.target.task == task and (f"task='{task}'" in repr(found)) == (task != "auto")
        gp.Pipeline([], found).fit(frame[:5])


@pytest.mark.parametrize(
    ("values", "value", "remedy"),
    [
        ((0, 1, 2), 3, "task='regression', if these are counts, or fit on data that holds every class"),
        (("a", "b", "c"), "d", "fit on data that holds every class"),
    ],
)
def test_a_class_that_no_row_of_the_fit_has_is_refused(values: tuple[Any, ...], value: Any, remedy: str) -> None:
    pipeline, rows = fitted(repeated(*values)), pd.DataFrame({"x": [0.5, 0.6], "y": [values[0], value]})
    with raises(errors.BadData, where="target 'y'", match="was not there in fit", got=value, remedy=remedy):
        pipeline.loader(rows)
