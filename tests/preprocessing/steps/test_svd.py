"""Singular vectors against scikit-learn's arpack."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.decomposition

from gpupipe import errors
from gpupipe.preprocessing import TruncatedSVD
from tests.raising import raises


def frame(rows: int = 800, offset: float = 0.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(rows, 5)) * [5, 3, 2, 1, 0.5] @ rng.normal(size=(5, 5)) + offset
    return pd.DataFrame(mixed, columns=list("abcde"))


@pytest.mark.parametrize("offset", [0.0, 3.0, 100.0])
def test_as_scikit_learn(offset: float) -> None:
    for seed in range(4):
        table = frame(offset=offset, seed=seed)
        peer = sklearn.decomposition.TruncatedSVD(3, algorithm="arpack", random_state=0).fit(table.to_numpy())
        step = TruncatedSVD(3).fit(table)
        signs = np.sign(np.sum(step.components_ * peer.components_, axis=1))
        np.testing.assert_allclose(step.components_ * signs[:, None], peer.components_, atol=1e-5)
        for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_"):
            np.testing.assert_allclose(getattr(step, name), getattr(peer, name), rtol=1e-5, atol=1e-9)
        found = step.transform(table)
        assert list(found) == ["truncatedsvd0", "truncatedsvd1", "truncatedsvd2"]
        wanted = peer.transform(table.to_numpy())
        np.testing.assert_allclose(found.to_numpy() * signs, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
        back = step.inverse_transform(found)
        np.testing.assert_allclose(back.to_numpy(), peer.inverse_transform(wanted), atol=1e-5 * np.abs(wanted).max())
        largest = np.abs(step.components_).argmax(axis=1)
        assert (step.components_[np.arange(3), largest] > 0).all()


def test_one_row_and_columns_of_zeros() -> None:
    one = TruncatedSVD(2).fit(pd.DataFrame({"x": [3.0], "y": [4.0]}))
    np.testing.assert_allclose(one.singular_values_, [5, 0], atol=1e-7)
    np.testing.assert_allclose(one.components_[0], [0.6, 0.8])
    none = TruncatedSVD(1).fit(pd.DataFrame({"x": [0.0, 0.0], "y": [0.0, 0.0]}))
    assert none.explained_variance_ratio_.tolist() == [0.0]


def test_what_is_refused() -> None:
    table = frame(10)
    with raises(errors.BadConfig, where="TruncatedSVD(n_components=)", got=6):
        TruncatedSVD(6).fit(table)
    with pytest.raises(errors.BadData, match="there are no rows to learn from"):
        TruncatedSVD().fit(table[:0])
    with raises(errors.BadData, where="TruncatedSVD, column 'b'", expected="no missing values"):
        TruncatedSVD().fit(table.assign(b=[np.nan, *[1.0] * 9]))
