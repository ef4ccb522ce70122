"""Bins against NumPy and scikit-learn: edges, ids, what is missing, what lies outside."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors, schema
from gpupipe.preprocessing import Bucketize, KBinsDiscretizer
from tests.raising import raises


@pytest.mark.slow
@pytest.mark.parametrize("right", [False, True])
@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.none() | st.sampled_from([-np.inf, np.inf, -1.0, 0.0, 2.5]) | st.floats(-4, 4), min_size=1),
    edges=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.5, 3.0]), min_size=1, unique=True).map(sorted),
)
def test_ids_are_those_of_digitize(right: bool, values: list[float | None], edges: list[float]) -> None:
    table = pd.DataFrame({"x": pd.array(values, dtype="float64")})
    found = Bucketize(edges, right=right).fit_transform(table)["x"]
    wanted = np.where(table["x"].isna(), 0, np.digitize(table["x"], edges, right=right) + 2)
    assert str(found.dtype) == "int32" and found.tolist() == wanted.tolist()


def test_bins_are_a_categorical_that_knows_its_size() -> None:
    # NVTabular's Bucketize tags its output as categorical and records no cardinality, so that nothing can embed it.
    (made,) = Bucketize({"x": [0, 1]}).output_fields([schema.Field("x", "int8")])
    assert (made.dtype, made.kind, made.cardinality, made.nullable) == ("int32", schema.Kind.CATEGORICAL, 5, False)
    with raises(errors.ColumnNotFound, where="Bucketize(edges=...)", column="y"):
        Bucketize({"x": [0, 1]}).output_fields([schema.Field("y", "int8")])
    for edges in ([], [1, 1], [2, 1], [0, np.nan]):
        with raises(errors.BadConfig, where="Bucketize(edges=)", remedy="edges=[0, 10, 100]"):
            Bucketize(edges).fit(pd.DataFrame({"x": [1.0]}))


def frame(seed: int, rows: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"normal": rng.normal(size=rows), "skewed": rng.exponential(50, rows), "whole": rng.integers(0, 9, rows)}
    )


def peer(**options: Any) -> Any:
    return sklearn.preprocessing.KBinsDiscretizer(subsample=None, **options)


@pytest.mark.slow
@pytest.mark.parametrize("n_bins", [2, 7, [3, 5, 4]])
@pytest.mark.parametrize("strategy", ["uniform", "quantile", "kmeans"])
def test_as_scikit_learn(strategy: str, n_bins: Any) -> None:
    columns = ["normal", "skewed", "whole"]
    # Whole numbers lie exactly between centres, where rounding decides.
    train, later = frame(0), frame(1) * 2
    if strategy == "kmeans":
        train, later = (item.assign(whole=item["whole"] + 0.1 * item["normal"]) for item in (train, later))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peer(n_bins=n_bins, strategy=strategy, encode="ordinal").fit(train.to_numpy())
        dense = peer(n_bins=n_bins, strategy=strategy, encode="onehot-dense").fit(train.to_numpy())
    ours = KBinsDiscretizer(n_bins, strategy=strategy).fit(train)
    assert ours.n_bins_.tolist() == theirs.n_bins_.tolist()
    for mine, other in zip(ours.bin_edges_, theirs.bin_edges_, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-6)
    assert ((ours.transform(later).to_numpy() - 2) == theirs.transform(later.to_numpy())).mean() > 0.9999
    back = ours.inverse_transform(ours.transform(train))
    wanted = theirs.inverse_transform(ours.transform(train).to_numpy() - 2.0)
    np.testing.assert_allclose(back[columns].to_numpy(), wanted, rtol=1e-6, atol=1e-6)
    wide = KBinsDiscretizer(n_bins, strategy=strategy, encode="onehot-dense").fit(train)
    flags = wide.transform(train)
    assert list(flags)[:2] == ["normal_0", "normal_1"] and set(flags.dtypes.astype(str)) == {"float32"}
    assert (flags.to_numpy() == dense.transform(train.to_numpy())).mean() > 0.9999
    np.testing.assert_allclose(wide.inverse_transform(flags).to_numpy(), back.to_numpy())


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.integers(-4, 4), min_size=2, max_size=30).filter(lambda v: len(set(v)) > 1),
    method=st.sampled_from(["linear", "averaged_inverted_cdf"]),
    n_bins=st.integers(2, 6),
)
def test_quantiles_that_coincide_leave_fewer_bins(values: list[int], method: str, n_bins: int) -> None:
    table = pd.DataFrame({"x": values})
    ours = KBinsDiscretizer(n_bins, quantile_method=method).fit(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peer(n_bins=n_bins, quantile_method=method, encode="ordinal").fit(table.to_numpy(float))
    np.testing.assert_allclose(ours.bin_edges_[0], theirs.bin_edges_[0], atol=1e-12)
    (made,) = ours.output_fields([schema.Field("x", "int64")])
    assert made.cardinality == theirs.n_bins_[0] + 2


def test_what_is_missing_constant_or_tiny() -> None:
    table = pd.DataFrame({"x": [1e-12, 2e-12, 3e-12, None], "same": [7.0, 7.0, None, 7.0]})
    for strategy in ("uniform", "quantile", "kmeans"):
        step = KBinsDiscretizer(3, strategy=strategy).fit(table)
        assert step.transform(table)["x"].tolist() == [2, 3, 4, 0]
        assert step.transform(table)["same"].tolist() == [2, 2, 0, 2]
        back = step.inverse_transform(step.transform(table))
        assert back["same"].dropna().tolist() == [7.0] * 3 and np.isnan(back["x"][3])
    wide = KBinsDiscretizer(3, encode="onehot-dense").fit(table)
    assert wide.transform(table).iloc[3].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert np.isnan(wide.inverse_transform(wide.transform(table))["x"][3])


def test_what_is_refused() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0]})
    for bad in (1, [2, 2], 2.5, np.array([[2]])):
        with raises(errors.BadConfig, where="KBinsDiscretizer(n_bins=)", remedy="n_bins=5"):
            KBinsDiscretizer(bad).fit(table)  # type: ignore[arg-type]
    with raises(errors.BadConfig, where="KBinsDiscretizer(encode=)", got="onehot"):
        KBinsDiscretizer(encode="onehot").fit(table)
    with raises(errors.BadConfig, where="KBinsDiscretizer(strategy=)", got="entropy"):
        KBinsDiscretizer(strategy="entropy").fit(table)
    with raises(
        errors.BadData, where="KBinsDiscretizer, column 'x'", expected="at least one value that is not missing"
    ):
        KBinsDiscretizer().fit(pd.DataFrame({"x": [np.nan]}))
    with raises(errors.BadData, where="KBinsDiscretizer, column 'x'", got=np.inf):
        KBinsDiscretizer().fit(pd.DataFrame({"x": [np.inf, 1.0]}))
