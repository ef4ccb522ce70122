"""Estimators of others as steps: copied, fitted on gathered rows, named, saved where they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import cluster, decomposition, impute, linear_model, mixture, preprocessing
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes impute.IterativeImputer)

from gpupipe import errors, schema
from gpupipe.preprocessing import EstimatorStep, SimpleImputer
from tests.raising import raises


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.exponential(size=rows), "b": rng.integers(0, 9, rows), "c": rng.random(rows) < 0.5})


def test_it_gives_what_the_estimator_gives() -> None:
    table = frame()
    dense = table.astype("float64").to_numpy()
    given = preprocessing.QuantileTransformer(n_quantiles=20)
    step = EstimatorStep(given)
    found = step.fit_transform(table)
    wanted = preprocessing.QuantileTransformer(n_quantiles=20).fit_transform(dense)
    np.testing.assert_allclose(found.to_numpy(), wanted, rtol=1e-6)
    assert list(found.columns) == ["a", "b", "c"] and set(found.dtypes.astype(str)) == {"float32"}
    with pytest.raises(NotFittedError):
        given.transform(dense)
    assert step.num_rows_ == step.num_fitted_ == 60


POLYNOMIALS = ["a", "b", "c", "a^2", "a b", "a c", "b^2", "b c", "c^2"]


@pytest.mark.parametrize(
    ("estimator", "names"),
    [
        (decomposition.PCA(2), ["pca0", "pca1"]),
        (preprocessing.PolynomialFeatures(2, include_bias=False), POLYNOMIALS),
        (cluster.KMeans(2, n_init=1, random_state=0), ["kmeans0", "kmeans1"]),
        (mixture.GaussianMixture(2, random_state=0), ["gaussianmixture0"]),
        (preprocessing.FunctionTransformer(np.log1p), [f"functiontransformer{k}" for k in range(3)]),
        (preprocessing.StandardScaler().set_output(transform="pandas"), ["a", "b", "c"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_names(estimator: Any, names: list[str]) -> None:
    step = EstimatorStep(estimator).fit(frame())
    assert step.get_feature_names_out() == names
    fields = [schema.Field(name, "float64").as_source() for name in "abc"]
    made = step.output_fields(fields)
    assert [item.name for item in made] == list(step.transform(frame()).columns)
    assert all(item.lineage == {"a", "b", "c"} for item in made)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        preprocessing.SplineTransformer(3),
        decomposition.NMF(2, random_state=0, max_iter=500),
        decomposition.MiniBatchNMF(2, random_state=0),
        decomposition.FastICA(2, random_state=0, whiten="unit-variance"),
        decomposition.FactorAnalysis(2, random_state=0),
        decomposition.KernelPCA(2, kernel="rbf"),
        decomposition.SparsePCA(2, random_state=0),
        decomposition.MiniBatchSparsePCA(2, random_state=0),
        decomposition.DictionaryLearning(2, random_state=0, max_iter=20),
        decomposition.MiniBatchDictionaryLearning(2, random_state=0, max_iter=20),
        decomposition.LatentDirichletAllocation(2, random_state=0),
        decomposition.SparseCoder(np.eye(3)),
        impute.KNNImputer(n_neighbors=2),
        impute.IterativeImputer(random_state=0),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_has_no_step_of_its_own_is_the_estimator_itself(estimator: Any) -> None:
    table = frame()
    if type(estimator).__name__.endswith("Imputer"):
        table["a"] = table["a"].mask(table["a"] > 1)
    dense = table.astype("float64").to_numpy()
    found = EstimatorStep(estimator).fit_transform(table)
    np.testing.assert_allclose(found.to_numpy(), clone(estimator).fit(dense).transform(dense), rtol=1e-5, atol=1e-6)


def test_before_fit_one_field_stands_for_all() -> None:
    (field,) = EstimatorStep(decomposition.PCA(2)).output_fields([schema.Field("a", "float64").as_source()])
    assert (field.name, field.lineage) == ("pca0", {"a"})


def test_an_estimator_may_change_its_block_and_not_the_frame() -> None:
    table = frame()
    before = table.copy()
    EstimatorStep(preprocessing.StandardScaler(copy=False)).fit_transform(table)
    pd.testing.assert_frame_equal(table, before)


def test_no_rows_are_transformed_to_no_rows() -> None:
    step = EstimatorStep(decomposition.PCA(2)).fit(frame())
    assert step.transform(frame().iloc[:0]).shape == (0, 2)


def test_missing_values_are_the_estimators_business() -> None:
    table = frame().assign(a=[None, *np.arange(59.0)])
    found = EstimatorStep(preprocessing.StandardScaler()).fit_transform(table)
    assert found["a"].isna().tolist() == [True, *[False] * 59]
    with raises(errors.BadData, where="EstimatorStep(PCA)"):
        EstimatorStep(decomposition.PCA(2)).fit(table)
    EstimatorStep(decomposition.PCA(2)).fit(SimpleImputer().fit_transform(table))


def test_what_is_refused() -> None:
    for thing in (decomposition.PCA, object(), "pca"):
        with pytest.raises(errors.BadConfig, match="not a step and not an estimator"):
            EstimatorStep(thing)
    for learner in (linear_model.LogisticRegression(), linear_model.Ridge()):
        with pytest.raises(errors.BadConfig, match=r"EstimatorStep\(.*\): it learns from a target"):
            EstimatorStep(learner)
    with raises(errors.BadData, where="EstimatorStep(NMF)"):
        EstimatorStep(decomposition.NMF(1)).fit(frame() - 100)
    with raises(errors.BadData, where="EstimatorStep, column 'a'", got=np.inf):
        EstimatorStep(preprocessing.StandardScaler()).fit(frame().assign(a=[np.inf, *range(59)]))
    with raises(errors.SchemaMismatch, where="EstimatorStep(PCA), column 'a'", got="string"):
        EstimatorStep(decomposition.PCA(1)).fit(pd.DataFrame({"a": ["x"]}))
    with pytest.raises(errors.BadData, match="there are no rows"):
        EstimatorStep(decomposition.PCA(1)).fit(frame().iloc[:0])


def test_an_unknown_class_works_and_says_why_it_is_not_saved() -> None:
    step = EstimatorStep(preprocessing.PowerTransformer()).fit(frame())
    assert step.transform(frame()).shape == (60, 3)
    with raises(
        errors.ArtifactError,
        where="EstimatorStep(PowerTransformer)",
        got="sklearn.preprocessing._data.PowerTransformer",
    ) as caught:
        step.get_state()
    assert "StandardScaler" in caught.value.expected


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (6,)])
def test_centres_that_compiled_loops_would_read_beyond_are_refused(shape: tuple[int, ...]) -> None:
    state = EstimatorStep(cluster.KMeans(2, n_init=1, random_state=0)).fit(frame()).get_state()
    state["estimator.cluster_centers_"] = np.zeros(shape)
    with raises(errors.ArtifactError, where="EstimatorStep(KMeans)", problem="no centres of clusters", got=shape):
        EstimatorStep(cluster.KMeans(2)).set_state(state)
