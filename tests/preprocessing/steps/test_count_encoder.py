"""Counts of values against pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from gpupipe import preprocessing as pre
from tests.preprocessing.steps.test_one_hot import frames


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
@settings(deadline=None, max_examples=50)
@given(train=frames(), later=frames())
def test_counts_are_those_of_pandas(normalize: bool, train: pd.DataFrame, later: pd.DataFrame) -> None:
    found = pre.CountEncoder(normalize=normalize).fit(train).transform(later)
    for name in "sn":
        counts = train[name].value_counts(normalize=normalize, dropna=False)
        by_value = {None if pd.isna(value) else value: count for value, count in counts.items()}
        wanted = [by_value.get(None if pd.isna(value) else value, 0) for value in later[name]]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


def test_integers_that_may_be_missing() -> None:
    train = pd.DataFrame({"n": pd.array([3, None, 3, 2**40], dtype="Int64")})
    assert pre.CountEncoder().fit_transform(train)["n"].tolist() == [2, 1, 2, 1]
