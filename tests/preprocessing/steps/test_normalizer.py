"""Rows divided by their norm, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe.preprocessing import Bucketize, Normalizer, SimpleImputer, StandardScaler
from tests.raising import raises

# scikit-learn leaves rows of a norm below 2e-15 as they are.
NUMBERS = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_as_scikit_learn(norm: str, rows: list[tuple[float, ...]]) -> None:
    table = pd.DataFrame(rows, columns=list("abc"))
    found = Normalizer(norm).fit_transform(table)
    assert set(found.dtypes.astype(str)) == {"float32"}
    wanted = sklearn.preprocessing.Normalizer(norm=norm).fit_transform(table.to_numpy())
    np.testing.assert_allclose(found.to_numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_rows_whose_squares_are_no_floats() -> None:
    table = pd.DataFrame({"x": [3e300, 3e-300], "y": [4e300, 4e-300]})
    np.testing.assert_allclose(Normalizer().fit_transform(table).to_numpy(), [[0.6, 0.8]] * 2, rtol=1e-6)


def test_what_is_refused() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, None]})
    step = Normalizer().fit(table)
    with raises(errors.BadData, where="Normalizer, column 'y'", expected="no missing values"):
        step.transform(table)
    with raises(errors.BadData, where="Normalizer, column 'x'", got=np.inf):
        step.transform(table.assign(x=[np.inf, 1.0]))
    with raises(errors.BadConfig, where="Normalizer(norm=)", got="l3"):
        Normalizer("l3").fit(table)


def test_a_step_that_learns_nothing_has_no_pass_of_its_own() -> None:
    table = pd.DataFrame({"x": [3.0, 1.0, 0.0, 5.0], "y": [4.0, 1.0, 2.0, 0.0], "z": [1.0, None, 3.0, 5.0]})
    pipeline = gp.Pipeline(
        [],
        features=gp.Features(
            (["x", "y"], [Normalizer("l1"), Normalizer(), StandardScaler()]),
            (["z"], [SimpleImputer(), Bucketize([2.0, 4.0])]),
        ),
    )
    assert pipeline.explain().splitlines() == [
        "pass 1: Normalizer + Normalizer + StandardScaler of x, y",
        "pass 1: SimpleImputer + Bucketize of z",
    ]
    found = pipeline.fit(gp.from_frame(table, num_partitions=3)).transform(table)
    unit = Normalizer().fit_transform(table[["x", "y"]])
    wanted = StandardScaler().fit_transform(unit)
    np.testing.assert_allclose(found[["x", "y"]].to_numpy(), wanted.to_numpy(), atol=1e-6)
    assert found["z"].tolist() == [2, 3, 3, 4]
