"""k-means on a line against scikit-learn, from the same start."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.preprocessing.steps.bins import cluster_sorted_values


def start(values: np.ndarray, k: int) -> np.ndarray:
    edges = np.linspace(values.min(), values.max(), k + 1)
    return (edges[1:] + edges[:-1]) / 2


def peer(values: np.ndarray, k: int) -> np.ndarray:
    model = sklearn.cluster.KMeans(k, init=start(values, k)[:, None], n_init=1)
    return np.sort(model.fit(values[:, None]).cluster_centers_[:, 0])


def nearest(values: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.abs(values[:, None] - centres).argmin(axis=1)


def inertia(values: np.ndarray, centres: np.ndarray) -> float:
    return float(np.square(values - centres[nearest(values, centres)]).sum())


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("k", [2, 5, 12])
@pytest.mark.parametrize("power", [1, 3, 5])
def test_as_scikit_learn(power: int, k: int, scale: float) -> None:
    values = np.random.default_rng(k).normal(size=4000) ** power * scale
    found, wanted = np.sort(cluster_sorted_values(np.sort(values), np.ones(4000, dtype=np.int64), k)), peer(values, k)
    if len(np.unique(nearest(values, start(values, k)))) == k:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9 * np.ptp(values))
    else:  # which row a centre without any gets is a matter of rounding there
        assert len(np.unique(nearest(values, found))) == k
        assert inertia(values, found) <= 1.2 * inertia(values, wanted)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 6))
def test_counts_stand_for_rows(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    values, counts = np.unique(rng.normal(size=30)), rng.integers(1, 9, 30)
    rows = np.repeat(values, counts)
    found = cluster_sorted_values(values, counts, k)
    wanted = cluster_sorted_values(rows, np.ones(len(rows), dtype=np.int64), k)
    np.testing.assert_allclose(np.sort(found), np.sort(wanted), rtol=1e-9)
