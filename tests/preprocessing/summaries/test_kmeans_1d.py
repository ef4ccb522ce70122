"""k-means on a line against scikit-learn's bins."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.preprocessing import KBinsDiscretizer


def edges(rows: np.ndarray, k: int) -> np.ndarray:
    return KBinsDiscretizer(k, strategy="kmeans").fit(pd.DataFrame({"x": rows})).bin_edges_[0]


def peer(rows: np.ndarray, k: int) -> np.ndarray:
    theirs = sklearn.preprocessing.KBinsDiscretizer(k, strategy="kmeans", encode="ordinal", subsample=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs.fit(rows[:, None]).bin_edges_[0]


def inertia(rows: np.ndarray, edges: np.ndarray) -> float:
    bins = pd.Series(np.digitize(rows, edges[1:-1]))
    return float(np.square(rows - pd.Series(rows).groupby(bins).transform("mean")).sum())


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("k", [2, 5, 12])
@pytest.mark.parametrize("power", [1, 3, 5])
def test_as_scikit_learn(power: int, k: int, scale: float) -> None:
    rows = np.random.default_rng(k).normal(size=4000) ** power
    found, wanted = edges(rows * scale, k) / scale, peer(rows, k)
    if len(np.unique(np.digitize(rows, np.linspace(rows.min(), rows.max(), k + 1)[1:-1]))) == k:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9 * np.ptp(wanted))
    else:  # which row a centre without any gets is a matter of rounding
        assert inertia(rows, found) <= 1.01 * inertia(rows, wanted)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), k=st.integers(2, 4))
def test_counts_stand_for_rows(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.uniform(size=60), rng.integers(1, 9, 60))
    np.testing.assert_allclose(edges(rows, k), peer(rows, k), rtol=1e-9)


def test_no_more_centres_than_values() -> None:
    assert edges(np.array([1.0, 1.0, 2.0, 6.0]), 5).tolist() == [1.0, 1.5, 4.0, 6.0]
