"""Filling against scikit-learn's SimpleImputer, by type of column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer as Peer

from gpupipe import errors
from gpupipe.preprocessing import SimpleImputer
from tests.raising import raises


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.none() | st.integers(-5, 5).map(lambda v: v / 2), min_size=1, max_size=20))
def test_as_scikit_learn(strategy: str, values: list[float | None]) -> None:
    table = pd.DataFrame({"x": pd.array(values, dtype="float64")})
    if table["x"].isna().all():
        return
    found = SimpleImputer(strategy).fit_transform(table)
    np.testing.assert_allclose(found.to_numpy(), Peer(strategy=strategy).fit_transform(table), rtol=1e-12)


def test_a_median_of_many_values_is_exact_when_asked() -> None:
    values = np.random.default_rng(1).normal(size=100_001)
    table = pd.DataFrame({"x": [*values, np.nan]})
    assert SimpleImputer("median", exact=True).fit(table).statistics_["x"] == np.median(values)
    assert SimpleImputer("median").fit(table).statistics_["x"] != np.median(values)


def test_strings_are_filled_with_the_most_frequent_of_which_the_smallest() -> None:
    table = pd.DataFrame({"dest": ["b", None, "a", "b", "a", "c"], "same": [None, "x", "x", "x", "x", "x"]})
    step = SimpleImputer("most_frequent").fit(table)
    assert step.statistics_ == {"dest": "a", "same": "x"}
    assert step.transform(table)["dest"].tolist() == ["b", "a", "a", "b", "a", "c"]


def test_a_value_that_is_in_no_dictionary() -> None:
    names = [f"v{i}" for i in range(128)]  # as many as one signed byte can code
    table = pd.DataFrame({"tail": [*names, None]})
    found = SimpleImputer("constant", fill_value="none").fit_transform(table)["tail"]
    assert found.tolist() == [*names, "none"]
    assert SimpleImputer("constant").fit_transform(table)["tail"].iloc[-1] == "missing_value"
    train = pd.DataFrame({"tail": ["often", "often", "seldom"]})
    later = SimpleImputer("most_frequent").fit(train).transform(pd.DataFrame({"tail": [None, "seldom"]}))
    assert later["tail"].tolist() == ["often", "seldom"]


def test_integers_beyond_float64_keep_their_digits() -> None:
    big = 2**60 + 1
    table = pd.DataFrame({"id": pd.array([big, big, None], dtype="Int64")})
    found = SimpleImputer("most_frequent").fit_transform(table)["id"]
    assert found.tolist() == [big, big, big]


@pytest.mark.parametrize(
    ("strategy", "dtype", "wanted"),
    [
        ("mean", "Int32", "float64"),
        ("mean", "float32", "float32"),
        ("median", "boolean", "float64"),
        ("most_frequent", "Int8", "int8"),
        ("most_frequent", "boolean", "bool"),
        ("constant", "UInt16", "uint16"),
        ("constant", "float64", "float64"),
    ],
)
def test_types(strategy: str, dtype: str, wanted: str) -> None:
    table = pd.DataFrame({"x": pd.array([1, 1, None], dtype=dtype)})
    step = SimpleImputer(strategy, fill_value=1).fit(table)
    found = step.transform(table)["x"]
    assert str(found.dtype).lower().replace("boolean", "bool") == wanted
    assert found.notna().all() and found.astype(float).tolist() == [1, 1, 1]
    whole = step.transform(pd.DataFrame({"x": pd.array([1, 0], dtype=dtype)}))["x"]
    assert str(whole.dtype).lower().replace("boolean", "bool") == wanted


def test_the_indicator_is_there_for_every_column() -> None:
    table = pd.DataFrame({"a": [1.0, None], "b": [1, 2]})
    found = SimpleImputer(add_indicator=True).fit_transform(table)
    assert list(found.columns) == ["a", "b", "a_missing", "b_missing"]
    assert found["a_missing"].tolist() == [False, True] and found["b_missing"].tolist() == [False, False]


def test_a_true_false_column_is_filled_by_majority() -> None:
    table = pd.DataFrame({"storm": pd.array([True, None, False, True], dtype="boolean")})
    step = SimpleImputer("most_frequent").fit(table)
    assert step.statistics_ == {"storm": True}
    assert step.transform(table)["storm"].tolist() == [True, True, False, True]


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_a_column_without_values_is_named(strategy: str) -> None:
    table = pd.DataFrame({"ok": [1.0], "x": [np.nan]})
    remedy = "strategy='constant', or leave the column out"
    with raises(errors.BadData, where="SimpleImputer, column 'x'", remedy=remedy):
        SimpleImputer(strategy).fit(table)
    with pytest.raises(errors.BadData, match="column 'x': 1 infinite value, got inf"):
        SimpleImputer(strategy).fit(pd.DataFrame({"x": [np.inf, 1.0]}))


def test_a_constant_fills_a_column_without_values() -> None:
    found = SimpleImputer("constant", fill_value=-1).fit_transform(pd.DataFrame({"x": [np.nan, np.nan]}))
    assert found["x"].tolist() == [-1.0, -1.0]
    with raises(errors.BadData, where="SimpleImputer, column 'x'", got=np.inf):
        SimpleImputer("constant").fit_transform(pd.DataFrame({"x": [np.inf]}))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("Int8", 300),
        ("Int64", 0.5),
        ("Int64", "x"),
        ("boolean", 2),
        ("float32", 1e300),
        ("float64", np.nan),
        ("str", 3),
    ],
)
def test_a_constant_has_to_fit(dtype: str, value: Any) -> None:
    table = pd.DataFrame({"x": pd.array(["a" if dtype == "str" else 1, None], dtype=dtype)})
    with raises(errors.BadConfig, where="SimpleImputer, column 'x'"):
        SimpleImputer("constant", fill_value=value).fit(table)


def test_what_else_is_refused() -> None:
    with raises(errors.BadConfig, where="SimpleImputer(strategy=)", got="mode"):
        SimpleImputer("mode").fit(pd.DataFrame({"x": [1.0]}))
    with raises(errors.SchemaMismatch, where="SimpleImputer('mean'), column 'x'", got="string"):
        SimpleImputer().fit(pd.DataFrame({"x": ["a"]}))
    with raises(errors.SchemaMismatch, where="SimpleImputer('most_frequent'), column 'x'", got="timestamp"):
        SimpleImputer("most_frequent").fit(pd.DataFrame({"x": pd.to_datetime(["2013-01-01"])}))
