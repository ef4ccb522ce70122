"""Ranks against scikit-learn's, the stated error without `exact`, and the way back."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend.histogram import MAX_BINS
from gpupipe.preprocessing import QuantileTransformer
from tests.raising import raises

both = pytest.mark.parametrize("output", ["uniform", "normal"])


def frame(seed: int, rows: int = 4000) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 9, rows).astype(float)
    whole[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame({"normal": rng.normal(size=rows), "skewed": rng.lognormal(3, 2, rows), "whole": whole})


def peer(n_quantiles: int, output: str) -> sklearn.preprocessing.QuantileTransformer:
    return sklearn.preprocessing.QuantileTransformer(
        n_quantiles=n_quantiles, output_distribution=output, subsample=None
    )


@both
@pytest.mark.parametrize("n_quantiles", [2, 7, 1000])
def test_as_scikit_learn(output: str, n_quantiles: int) -> None:
    train, later = frame(0), frame(1) * 1.2
    ours = QuantileTransformer(n_quantiles=n_quantiles, output_distribution=output).fit(train)
    theirs = peer(n_quantiles, output).fit(train.to_numpy())
    np.testing.assert_allclose(ours.quantiles_, theirs.quantiles_, rtol=1e-12)
    for table in (train, later):
        np.testing.assert_allclose(
            ours.transform(table).to_numpy(), theirs.transform(table.to_numpy()), rtol=1e-6, atol=1e-6
        )
    made = ours.transform(train).clip(-4, 4)  # nearer to the ends a share is a matter of float32's last digit
    found, wanted = ours.inverse_transform(made), theirs.inverse_transform(made.to_numpy("float64"))
    np.testing.assert_allclose(found.to_numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@both
@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.integers(-3, 3) | st.floats(-5, 5, width=32), min_size=2, max_size=25),
    later=st.lists(st.integers(-4, 4) | st.floats(-9, 9, width=32), min_size=1, max_size=25),
    n_quantiles=st.integers(2, 30),
)
def test_equal_values_are_in_the_middle_of_their_shares(
    output: str, values: list[float], later: list[float], n_quantiles: int
) -> None:
    train, table = (pd.DataFrame({"x": np.array(item, dtype=float)}) for item in (values, later))
    if 0 < np.ptp(train["x"]) < 1:
        return  # scikit-learn takes all within 1e-7 of an end for it, whatever the column's range
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peer(n_quantiles, output).fit(train.to_numpy())
    ours = QuantileTransformer(n_quantiles=n_quantiles, output_distribution=output).fit(train)
    found, wanted = ours.transform(table).to_numpy(), theirs.transform(table.to_numpy())
    gaps = np.abs(table.to_numpy() - theirs.quantiles_[[0, -1]].ravel())
    near = ((gaps > 0) & (gaps < 2e-7)).any(axis=1)
    np.testing.assert_allclose(found[~near], wanted[~near], rtol=1e-6, atol=1e-6)


def test_without_exact_the_stated_error_holds() -> None:
    values = np.random.default_rng(2).lognormal(3, 2, 200_000)
    table = pd.DataFrame({"x": values})
    rough, exact = QuantileTransformer().fit(table), QuantileTransformer(exact=True).fit(table)
    wanted = np.quantile(values, exact.references_)
    assert exact.relative_error_ == 0 and 0 < rough.relative_error_ <= 2.0**-9
    np.testing.assert_allclose(exact.quantiles_[:, 0], wanted, rtol=1e-12)
    np.testing.assert_allclose(rough.quantiles_[:, 0], wanted, rtol=rough.relative_error_[0])
    # A share is wrong by no more than that of the values within the error, and those of the coarse interpolation.
    error = rough.relative_error_[0]
    near = (
        np.searchsorted(np.sort(values), values * (1 + 2 * error))
        - np.searchsorted(np.sort(values), values * (1 - 2 * error))
    ) / len(values)
    gap = np.abs(rough.transform(table)["x"] - exact.transform(table)["x"])
    assert (gap <= near + 1e-6).all()
    assert len(np.unique(values)) > MAX_BINS


def test_ends_constants_and_gaps() -> None:
    train = pd.DataFrame({"x": [1.0, 2.0, 3.0, None], "same": [7.0] * 4, "tiny": [1e-9, 2e-9, 3e-9, 4e-9]})
    later = pd.DataFrame({"x": [-99.0, 99.0, 2.0, None], "same": [7.0, 8.0, 6.0, None], "tiny": [2e-9, 3e-9, 0.0, 1.0]})
    found = QuantileTransformer(n_quantiles=3).fit(train).transform(later)
    assert found["x"].tolist()[:3] == [0.0, 1.0, 0.5] and np.isnan(found["x"][3])
    assert found["same"].tolist()[:3] == [0.0, 1.0, 0.0]
    # Not all of a column of small numbers is near its end.
    normal = QuantileTransformer(n_quantiles=4, output_distribution="normal").fit(train).transform(later)
    np.testing.assert_allclose(normal["tiny"], [-0.430727, 0.430727, -5.199338, 5.199338], rtol=1e-5)


def test_what_is_refused() -> None:
    table = pd.DataFrame({"x": [1.0, np.inf]})
    with raises(errors.BadData, where="QuantileTransformer, column 'x'", got=np.inf):
        QuantileTransformer().fit(table)
    with raises(
        errors.BadData, where="QuantileTransformer, column 'x'", expected="at least one value that is not missing"
    ):
        QuantileTransformer().fit(table.iloc[:0])
    with raises(errors.BadConfig, where="QuantileTransformer(n_quantiles=)", got=0):
        QuantileTransformer(n_quantiles=0).fit(table)
    with raises(errors.BadConfig, where="QuantileTransformer(output_distribution=)", got="beta"):
        QuantileTransformer(output_distribution="beta").fit(table)
