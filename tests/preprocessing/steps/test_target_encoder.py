"""TargetEncoder against scikit-learn and a loop by hand, and NVTabular's defects, which it does not have."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing as peers
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.backend import Column, select
from gpupipe.preprocessing.steps.target_encoder import TargetSummary
from gpupipe.schema import Field
from tests.raising import raises

CPU = select("cpu")


def frame(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    origin = pd.Series(rng.choice(["JFK", "LGA", "EWR", "ß"], rows, p=[0.5, 0.3, 0.19, 0.01]), dtype="str")
    return pd.DataFrame({"origin": origin.where(rng.random(rows) > 0.1), "month": rng.integers(-3, 40, rows)})


def targets(rows: int = 3000) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "continuous": rng.normal(1e6, 3, rows),
        "boolean": rng.random(rows) < 0.3,
        "integer": rng.integers(0, 2, rows),
        "binary": rng.choice(["late", "on time"], rows),
        "multiclass": rng.choice(["late", "on time", "gone"], rows, p=[0.2, 0.7, 0.1]),
        "constant": np.full(rows, 0.1),
    }


def as_objects(given: pd.DataFrame) -> pd.DataFrame:
    return given.astype(object).where(given.notna(), None)


@pytest.mark.slow
@pytest.mark.parametrize("smooth", ["auto", 0.0, 20.0])
@pytest.mark.parametrize("kind", list(targets()))
def test_transform_after_fit_is_scikit_learns(kind: str, smooth: Any) -> None:
    train, y = frame(), targets()[kind]
    later = frame(200, 1).assign(month=np.arange(200))  # months beyond 39 were never seen
    theirs = peers.TargetEncoder(smooth=smooth).fit(as_objects(train), y)
    ours = pre.TargetEncoder(smooth=smooth).fit(train, y)
    assert ours.target_type_ == theirs.target_type_
    assert ours.get_feature_names_out() == list(theirs.get_feature_names_out())
    np.testing.assert_allclose(ours.target_mean_, np.atleast_1d(theirs.target_mean_), rtol=1e-12)
    found, wanted = ours.transform(later), theirs.transform(as_objects(later))
    assert set(found.dtypes.astype(str)) == {"float32"} and list(found) == ours.get_feature_names_out()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    inside = np.concatenate([ours.encodings_["origin"][2:], ours.encodings_["origin"][:1]])
    outputs = inside.shape[1]
    np.testing.assert_allclose(inside, np.stack(theirs.encodings_[:outputs], 1), rtol=1e-9)  # in float64


def test_given_categories_as_scikit_learn() -> None:
    train, y = frame(), targets()["continuous"]
    listed: list[list[Any]] = [["JFK", "SFO"], list(range(10))]
    theirs = peers.TargetEncoder(categories=[np.array(c, object) for c in listed]).fit(as_objects(train), y)
    for given_ in (listed, dict(zip(train, listed, strict=True))):
        ours = pre.TargetEncoder(categories=given_).fit(train, y)
        np.testing.assert_allclose(ours.transform(train), theirs.transform(as_objects(train)), rtol=1e-6)
    with_missing = pre.TargetEncoder(categories={"origin": ["JFK", None]}).fit(train, y)
    plain = pre.TargetEncoder().fit(train, y)
    np.testing.assert_allclose(with_missing.encodings_["origin"][0], plain.encodings_["origin"][0], rtol=1e-12)


def by_hand(values: pd.Series, y: np.ndarray[Any, Any], folds: np.ndarray[Any, Any], smooth: Any) -> Any:
    """Each fold's rows by the formula, on the rows of the others."""
    out, values = np.empty(len(values)), values.astype(object).where(values.notna(), "missing")
    for fold in np.unique(folds):
        rest = folds != fold
        mean, variance = y[rest].mean(), y[rest].var()
        for value in values[~rest].unique():
            inside = y[rest & (values == value).to_numpy()]
            if not len(inside):
                found = mean
            elif smooth == "auto":
                share = variance * len(inside) / (variance * len(inside) + inside.var())
                found = share * inside.mean() + (1 - share) * mean
            else:
                found = (inside.sum() + smooth * mean) / (len(inside) + smooth)
            out[~rest & (values == value).to_numpy()] = found
    return out


@pytest.mark.parametrize("smooth", ["auto", 5.0])
def test_out_of_fold_values_are_those_of_a_loop(smooth: Any) -> None:
    train, y = frame(400), np.random.default_rng(3).normal(size=400)
    step = pre.TargetEncoder(smooth=smooth, cv=4, random_state=9)
    found = step.fit_transform(train, y)
    folds = step.folds(np.arange(400), np)
    assert set(folds) == {0, 1, 2, 3} and np.bincount(folds).min() > 70
    for name in train:
        np.testing.assert_allclose(found[name], by_hand(train[name], y, folds, smooth), rtol=1e-6, atol=1e-6)
    assert not np.allclose(found, step.transform(train))


def test_a_fold_that_is_left_out_is_scikit_learns_fit_on_the_others() -> None:
    train, y = frame(600), targets(600)["multiclass"]
    step = pre.TargetEncoder(cv=3)
    found, folds = step.fit_transform(train, y), step.folds(np.arange(600), np)
    for fold in range(3):
        here = folds == fold
        theirs = peers.TargetEncoder().fit(as_objects(train[~here]), y[~here])
        np.testing.assert_allclose(found[here], theirs.transform(as_objects(train[here])), rtol=1e-6, atol=1e-7)


def test_a_rows_own_target_does_not_reach_it() -> None:
    train, y = frame(300), np.random.default_rng(1).normal(size=300)
    first = pre.TargetEncoder().fit_transform(train, y)
    changed = y.copy()
    changed[17] += 1000
    second = pre.TargetEncoder().fit_transform(train, changed)
    assert (first.iloc[17] == second.iloc[17]).all()
    assert (first != second).to_numpy().mean() > 0.1


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 60), data=st.data())
def test_the_folds_do_not_depend_on_partitions(rows: int, data: st.DataObject) -> None:
    train, y = frame(rows), targets(rows)["continuous"]
    places = [0, *sorted(data.draw(st.lists(st.integers(0, rows), max_size=15))), rows]
    order = data.draw(st.permutations(range(len(places) - 1)))
    whole, step = pre.TargetEncoder(cv=3).fit(train, y), pre.TargetEncoder(cv=3)
    found = [summary(step, train, y, *pair) for pair in pairwise(places)]
    total = found[order[0]]
    for position in order[1:]:
        total = total + found[position]
    step.finalize(total)
    assert np.array_equal(step._counts, whole._counts)
    for name in train:
        np.testing.assert_allclose(step._folds[name], whole._folds[name], rtol=1e-12)
        np.testing.assert_allclose(step.encodings_[name], whole.encodings_[name], rtol=1e-12)


def summary(step: pre.TargetEncoder, train: pd.DataFrame, y: Any, start: int, stop: int) -> TargetSummary:
    part = CPU.encode(train.iloc[start:stop].reset_index(drop=True))
    columns = {name: CPU.column(part, name) for name in train}
    target = {"y": Column("float64", y[start:stop])}
    return step.summarize(columns, CPU, target=target, row_numbers=np.arange(start, stop))


@pytest.mark.slow
def test_many_parts_are_merged_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.preprocessing.summaries._WAITING_GROUPS", 10)
    train, y = frame(500), targets(500)["continuous"]
    step = pre.TargetEncoder()
    total = summary(step, train, y, 0, 10)
    for start in range(10, 500, 10):
        total = total + summary(step, train, y, start, start + 10)
    assert len(total.columns[0].parts) < 10
    whole = pre.TargetEncoder().fit(train, y)
    np.testing.assert_allclose(step.finalize(total).encodings_["month"], whole.encodings_["month"], rtol=1e-12)


def test_several_targets() -> None:
    train, y = frame(), pd.DataFrame({"delay": targets()["continuous"], "air": targets()["integer"] * 2.5})
    found = pre.TargetEncoder(smooth=3).fit(train, y).transform(train)
    assert list(found) == ["origin_delay", "origin_air", "month_delay", "month_air"]
    for name in y:
        alone = pre.TargetEncoder(smooth=3).fit(train, y[name]).transform(train)
        np.testing.assert_array_equal(found[[f"origin_{name}", f"month_{name}"]], alone)


# what NVTabular's TargetEncoding does ---------------------------------------------------------------------------------


def test_the_same_row_gets_the_same_value_in_transform() -> None:
    # NVTabular draws folds again there: twelve identical rows got four different values.
    step = pre.TargetEncoder().fit(frame(), targets()["continuous"])
    again = pd.DataFrame({"origin": ["JFK"] * 12, "month": [3] * 12})
    assert len(step.transform(again).drop_duplicates()) == 1
    assert step.transform(again).equals(step.transform(again))


def test_transform_never_needs_the_target() -> None:
    # NVTabular: KeyError, with one fold too.
    step = pre.TargetEncoder().fit(frame(), targets()["boolean"])
    assert step.transform(frame(5, 2)).shape == (5, 2)
    assert step.transform(frame(0, 2)).shape == (0, 2)


def test_an_unknown_value_gets_the_mean_of_all_rows_not_of_a_fold() -> None:
    y = targets()["continuous"]
    step = pre.TargetEncoder().fit(frame(), y)
    found = step.transform(pd.DataFrame({"origin": ["SFO"], "month": [10**12]}))
    np.testing.assert_allclose(found, np.full((1, 2), y.mean()), rtol=1e-6)


# around it ------------------------------------------------------------------------------------------------------------


def test_in_a_pipeline_of_scikit_learn() -> None:
    train, y = frame(200), targets(200)["continuous"]
    chain = make_pipeline(pre.TargetEncoder(), pre.StandardScaler())
    inside = pre.StandardScaler().fit_transform(pre.TargetEncoder().fit_transform(train, y))
    pd.testing.assert_frame_equal(chain.fit_transform(train, y), inside)


def test_after_a_file_only_transform_is_left() -> None:
    step = pre.TargetEncoder().fit(frame(), targets()["multiclass"])
    again = pre.TargetEncoder().set_state(step.get_state())
    pd.testing.assert_frame_equal(again.transform(frame(50, 2)), step.transform(frame(50, 2)))
    columns = {"origin": CPU.column(CPU.encode(frame(3)), "origin")}
    with pytest.raises(errors.NotFitted, match="its single folds"):
        again.cross_fitted_columns(columns, CPU, np.arange(3))
    sent = pickle.loads(pickle.dumps(step))
    assert sent._folds.keys() == step._folds.keys() and not sent._lookups


@pytest.mark.parametrize(
    ("params", "y", "match"),
    [
        ({"smooth": -1}, [1.0, 2], "smooth"),
        ({"smooth": "much"}, [1.0, 2], "smooth"),
        ({"cv": 1}, [1.0, 2], "cv"),
        ({"cv": "many"}, [1.0, 2], "cv"),
        ({"random_state": "none"}, [1.0, 2], "random_state"),
        ({"categories": None}, [1.0, 2], "categories"),
        ({"categories": {"origin": ["JFK", "JFK"]}}, [1.0, 2], "more than once"),
        ({}, np.ones((2, 2)), "one value in each row"),
        ({"target_type": "ordinal"}, [1.0, 2], "target_type"),
        ({"target_type": "continuous"}, ["a", "b"], "it is no number"),
        ({"categories": "most"}, [1.0, 2], "categories"),
        ({"categories": {"destt": ["JFK"]}}, [1.0, 2], "'destt' not found"),
        ({"categories": {"origin": [1.5]}}, [1.0, 2], "not of the column's type"),
        ({"categories": [["JFK"], [1.5]]}, [1.0, 2], "'month'.*not of the column's type"),
        ({}, None, "it learns from the target, and there is none"),
        ({}, [1.0], "another number of rows"),
    ],
)
def test_what_makes_no_sense_is_said(params: Any, y: Any, match: str) -> None:
    with pytest.raises((errors.BadConfig, errors.ColumnNotFound), match=match):
        pre.TargetEncoder(**params).fit(pd.DataFrame({"origin": ["JFK", "LGA"], "month": [1, 2]}), y)


@pytest.mark.parametrize(
    ("params", "y", "match"),
    [
        ({}, [1.0, np.inf], "1 values are missing, infinite"),
        ({}, [1.0, np.nan], "1 of 2 values are missing"),
        ({}, ["a", "a"], "one class"),
        ({"target_type": "binary"}, None, "3 classes"),
    ],
)
def test_bad_targets_are_named(params: Any, y: Any, match: str) -> None:
    given_ = pd.DataFrame({"origin": ["JFK", "LGA"] if y is not None else ["JFK", "LGA", "EWR"]})
    with pytest.raises(errors.BadData, match=match):
        pre.TargetEncoder(**params).fit(given_, ["a", "b", "c"] if y is None else y)


def test_one_row_has_nobody_to_learn_from() -> None:
    with raises(errors.BadData, where="TargetEncoder", got="1 rows, 5 folds"):
        pre.TargetEncoder().fit_transform(pd.DataFrame({"origin": ["JFK"]}), [1.0])


def test_numbers_are_no_categories() -> None:
    with raises(errors.SchemaMismatch, where="TargetEncoder, column 'temp'", got="float64"):
        pre.TargetEncoder().output_fields([Field("temp", "float64")])


def test_two_outputs_of_one_name_are_refused() -> None:
    given_ = pd.DataFrame({"a": ["x", "y"] * 2, "a_b": ["x", "y"] * 2})
    step = pre.TargetEncoder(target_type="multiclass")
    with raises(errors.BadData, where="TargetEncoder", got="a_b_c"):
        step.fit(given_, ["b_c", "c", "c", "b_c"])
    assert [item.name for item in step.output_fields([Field(name, "string") for name in given_])] == ["a", "a_b"]
