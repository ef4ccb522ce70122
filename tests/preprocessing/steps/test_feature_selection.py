"""Columns left out: by variance as scikit-learn, by correlation as pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.feature_selection
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.preprocessing import CorrelationThreshold, VarianceThreshold
from gpupipe.schema import Field
from tests.raising import raises


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=500)
    return pd.DataFrame(
        {
            "same": 0.1,
            "x": x,
            "near": x + 0.05 * rng.normal(size=500),
            "opposite": -3 * x + 7,
            "flag": rng.random(500) < 0.1,
            "whole": rng.integers(0, 3, 500),
            "large": 1e9 + x,
        }
    )


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.5, 0.999])
def test_variances_as_scikit_learn(threshold: float) -> None:
    table = frame().mask(np.random.default_rng(1).random((500, 7)) < 0.1)
    table["flag"] = table["flag"].astype("float64")
    ours = VarianceThreshold(threshold).fit(table)
    theirs = sklearn.feature_selection.VarianceThreshold(threshold).fit(table.to_numpy("float64"))
    assert ours.get_support().tolist() == theirs.get_support().tolist()
    assert ours.get_support(indices=True).tolist() == theirs.get_support(indices=True).tolist()
    np.testing.assert_allclose(ours.variances_, np.nanvar(table.to_numpy("float64"), axis=0), rtol=1e-6, atol=1e-12)
    found = ours.transform(table)
    pd.testing.assert_frame_equal(found, table[ours.names_out_])


def test_a_constant_column_has_no_variance_whatever_its_last_digit() -> None:
    table = pd.DataFrame({"x": [0.1] * 1000, "tiny": [0.0, 1e-20] * 500})
    step = VarianceThreshold().fit(table)
    assert step.names_out_ == ["tiny"] and step.variances_[0] == 0
    fields = step.output_fields([Field("x", "float64"), Field("tiny", "float64")])
    assert [(item.name, item.dtype) for item in fields] == [("tiny", "float64")]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([0.2, 0.5, 0.9]))
def test_no_two_columns_that_are_kept_are_correlated(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(60, 6)) @ rng.normal(size=(6, 6)), columns=list("abcdef"))
    step = CorrelationThreshold(threshold).fit(table)
    wanted = table.corr().to_numpy()
    np.testing.assert_allclose(step.correlations_, wanted, atol=1e-9)
    left = np.abs(table[step.names_out_].corr().to_numpy()) - np.eye(len(step.names_out_))
    assert (left <= threshold + 1e-9).all() and step.names_out_[0] == "a"
    for name in set(table) - set(step.names_out_):
        earlier = [kept for kept in step.names_out_ if kept < name]
        assert table[earlier].corrwith(table[name]).abs().max() > threshold - 1e-9


def test_the_first_of_those_that_say_the_same_is_kept() -> None:
    table = frame()
    step = CorrelationThreshold().fit(table)
    assert step.names_out_ == ["same", "x", "flag", "whole"]
    pd.testing.assert_frame_equal(step.transform(table), table[step.names_out_])
    assert step.correlations_[1, 6] == pytest.approx(1, abs=1e-9)  # near a billion, with all digits
    assert step.correlations_[0].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_what_is_refused() -> None:
    table = pd.DataFrame({"x": [1.0, 1.0], "y": [2.0, None]})
    with raises(errors.BadData, where="VarianceThreshold", got=0.0):
        VarianceThreshold().fit(table)
    with raises(errors.BadConfig, where="VarianceThreshold(threshold=)", got=-1):
        VarianceThreshold(-1).fit(table)
    with raises(errors.BadConfig, where="CorrelationThreshold(threshold=)", got=1.5):
        CorrelationThreshold(1.5).fit(table)
    with raises(errors.BadData, where="CorrelationThreshold, column 'y'", expected="no missing values"):
        CorrelationThreshold().fit(table)
    with raises(errors.BadData, where="CorrelationThreshold", got=1):
        CorrelationThreshold().fit(table[:1])
