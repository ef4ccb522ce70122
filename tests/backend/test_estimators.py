"""Estimators are taken apart into arrays and put together again, and give the same numbers."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn import cluster, decomposition, preprocessing

from gpupipe import errors
from gpupipe.backend import select
from gpupipe.backend.estimators import (
    SAVEABLE,
    FittedEstimator,
    apply_estimator,
    export_state,
    fit_estimator,
    get_output_names,
    is_estimator,
    rebuild_estimator,
)
from tests.raising import raises

CPU = select("cpu")
FITTED: list[Any] = [
    preprocessing.StandardScaler(),
    preprocessing.StandardScaler(with_mean=False),
    preprocessing.StandardScaler(with_std=False),
    preprocessing.MinMaxScaler(feature_range=(-1, 2), clip=True),
    preprocessing.MaxAbsScaler(),
    preprocessing.RobustScaler(quantile_range=(10, 90)),
    preprocessing.RobustScaler(with_centering=False),
    preprocessing.QuantileTransformer(n_quantiles=30, output_distribution="normal", random_state=0),
    preprocessing.PolynomialFeatures(degree=(2, 3), interaction_only=True),
    decomposition.PCA(2, whiten=True),
    decomposition.PCA(0.9),
    decomposition.TruncatedSVD(2, random_state=3),
    cluster.KMeans(3, n_init=2, random_state=0),
]


def block(rows: int = 80, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3, 2, size=(rows, 4))


def test_every_saveable_class_is_tried() -> None:
    assert {type(estimator).__name__ for estimator in FITTED} == set(SAVEABLE)


@pytest.mark.parametrize("given", FITTED, ids=repr)
def test_state_is_plain_and_gives_the_same_estimator(given: Any) -> None:
    model = fit_estimator(given, block(), CPU, "test")
    state = export_state(model, "test")
    for name, value in state.items():
        assert value is None or isinstance(value, str | int | float | np.generic | np.ndarray), name
        assert not isinstance(value, np.ndarray) or value.dtype.kind in "fiu"
        assert not isinstance(value, np.ndarray) or len(value) < 80, f"{name} is as long as the data"
    again = rebuild_estimator(state, "test")
    assert type(again) is type(given)
    assert again.get_params() == model.get_params()
    later = block(50, seed=1)
    np.testing.assert_array_equal(
        apply_estimator(again, later.copy(), CPU, "t"), apply_estimator(model, later.copy(), CPU, "t")
    )
    width = apply_estimator(model, later.copy(), CPU, "t").shape[1]
    assert get_output_names(again, list("abcd"), width) == get_output_names(model, list("abcd"), width)
    if hasattr(model, "inverse_transform"):
        made = apply_estimator(model, later.copy(), CPU, "t")
        np.testing.assert_array_equal(again.inverse_transform(made), model.inverse_transform(made))


@pytest.mark.parametrize("given", FITTED, ids=repr)
def test_an_unfitted_one_is_its_parameters(given: Any) -> None:
    state = export_state(given, "test")
    assert set(state) == {"estimator_class", "estimator_params"}
    assert repr(rebuild_estimator(state, "test")) == repr(given)


def test_what_cannot_be_saved() -> None:
    with raises(errors.ArtifactError, where="test", got="sklearn.preprocessing._data.Normalizer"):
        export_state(preprocessing.Normalizer(), "test")
    assert json.loads(export_state(cluster.KMeans(np.int64(2)), "test")["estimator_params"])["n_clusters"] == 2
    with raises(errors.ArtifactError, where="test", remedy="random_state=0"):
        export_state(cluster.KMeans(2, random_state=np.random.RandomState(0)), "test")

    class StandardScaler:
        """Another's of the same name."""

    with raises(errors.ArtifactError, where="test", got=f"{__name__}.StandardScaler"):
        export_state(StandardScaler(), "test")


def test_a_state_names_no_class_outside_the_table() -> None:
    state = {"estimator_class": "Popen", "estimator_params": json.dumps({"args": ["true"]})}
    with raises(errors.ArtifactError, where="test", got="Popen"):
        rebuild_estimator(state, "test")


def test_recognition() -> None:
    assert is_estimator(preprocessing.StandardScaler()) and is_estimator(cluster.MeanShift())
    assert (
        not is_estimator(preprocessing.StandardScaler) and not is_estimator(cluster.DBSCAN()) and not is_estimator({})
    )


def test_a_cuml_estimator_needs_the_gpu_backend() -> None:
    class PCA:
        def fit(self, block: Any) -> Any:
            raise AssertionError("never reached")

    PCA.__module__ = "cuml.decomposition.pca"
    with pytest.raises(errors.BackendMissing, match="a cuML estimator on the CPU backend"):
        fit_estimator(PCA(), block(), CPU, "test")


def test_sparse_and_flat_results_are_dense_columns() -> None:
    one_hot = fit_estimator(preprocessing.OneHotEncoder(), np.array([[1.0], [2.0]]), CPU, "t")
    assert apply_estimator(one_hot, np.array([[2.0]]), CPU, "t").tolist() == [[0.0, 1.0]]
    shift = fit_estimator(cluster.MeanShift(), np.array([[1.0], [9.0]]), CPU, "t")
    assert apply_estimator(shift, np.array([[1.0], [2.0], [9.0]]), CPU, "t").shape == (3, 1)


def test_a_copy_leaves_an_estimator_of_cuml_as_it_is() -> None:
    """A driver pickles it for each worker: what stays would hold the bytes too, and not see a later change."""

    class UMAP:
        def __reduce__(self) -> Any:
            return dict, ()

    UMAP.__module__ = "cuml.manifold.umap"
    kept = FittedEstimator(UMAP(), "test")
    before = dict(vars(kept))
    sent = pickle.loads(pickle.dumps(kept))
    assert vars(kept) == before
    assert pickle.loads(pickle.dumps(sent)).estimator == {}  # a worker may send it on, unopened
