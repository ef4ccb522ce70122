"""Places in an order against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import sklearn.preprocessing as peers
from hypothesis import given
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe import preprocessing as pre
from tests.examples import examples
from tests.preprocessing.steps.test_one_hot import frames
from tests.raising import raises

UNKNOWN = {"handle_unknown": "use_encoded_value", "unknown_value": -1}


@examples(120)
@given(
    train=frames(),
    later=frames(),
    options=st.fixed_dictionaries(
        {
            "min_frequency": st.sampled_from([None, 1, 2, 0.2]),
            "max_categories": st.sampled_from([None, 1, 2, 4]),
            "encoded_missing_value": st.sampled_from([np.nan, -2]),
        }
    ),
)
def test_numbers_are_scikit_learns(train: pd.DataFrame, later: pd.DataFrame, options: dict[str, Any]) -> None:
    if not train["s"].isna().any():  # scikit-learn has such missing values unknown
        later = later.fillna({"s": "unknown"})
    peer = peers.OrdinalEncoder(**UNKNOWN, **options).fit(train)
    step = pre.OrdinalEncoder(**UNKNOWN, **options).fit(train)
    for frame in (train, later):
        found = step.transform(frame)
        assert (found.dtypes == "float32").all()
        np.testing.assert_array_equal(found.to_numpy(), peer.transform(frame))


@examples(60)
@given(train=frames(), later=frames())
def test_there_and_back(train: pd.DataFrame, later: pd.DataFrame) -> None:
    step = pre.OrdinalEncoder(**UNKNOWN).fit(train)
    back = step.inverse_transform(step.transform(later))
    for name in "sn":
        known = set(train[name].dropna())
        wanted = [value if value in known else None for value in later[name]]
        assert [None if pd.isna(value) else value for value in back[name]] == wanted


def test_an_order_given() -> None:
    train = pd.DataFrame({"size": ["small", "large", "medium"], "n": [30, 10, 20]})
    order = [["small", "medium", "large"], [10, 20, 30]]
    peer = peers.OrdinalEncoder(categories=order).fit(train)
    for given_as in (order, {"size": order[0]}):
        step = pre.OrdinalEncoder(categories=given_as).fit(train)
        np.testing.assert_array_equal(step.transform(train).to_numpy(), peer.transform(train))
        pd.testing.assert_frame_equal(step.inverse_transform(step.transform(train)), train, check_dtype=False)


def test_a_missing_value_that_fit_did_not_see_is_no_error() -> None:
    step = pre.OrdinalEncoder(encoded_missing_value=-9).fit(pd.DataFrame({"x": ["a", "b"]}))
    assert step.transform(pd.DataFrame({"x": pd.array([None, "b"], dtype="str")}))["x"].tolist() == [-9, 1]


def test_rare_values_have_no_way_back() -> None:
    train = pd.DataFrame({"n": [5, 5, 6, 7, 7]})
    step = pre.OrdinalEncoder(min_frequency=2).fit(train)
    assert step.transform(train)["n"].tolist() == [0, 0, 2, 1, 1]
    odd = pd.DataFrame({"n": [0.0, 1.0, 2.0, 0.5, -1.0, np.nan, 1e9]})
    assert step.inverse_transform(odd)["n"].tolist()[:2] == [5, 7]
    assert step.inverse_transform(odd)["n"].isna().tolist() == [False, False, *[True] * 5]


def test_what_is_refused() -> None:
    train = pd.DataFrame({"x": ["a", "b"]})
    with raises(errors.BadData, where="OrdinalEncoder, column 'x'", got="c"):
        pre.OrdinalEncoder().fit(train).transform(pd.DataFrame({"x": ["c"]}))
    with raises(errors.BadConfig, where="OrdinalEncoder(unknown_value=)", got=None):
        pre.OrdinalEncoder(handle_unknown="use_encoded_value").fit(train)
    with raises(errors.BadConfig, where="OrdinalEncoder(encoded_missing_value=)", got=1e300):
        pre.OrdinalEncoder(encoded_missing_value=1e300).fit(train)  # which float32 does not hold
    with raises(errors.BadConfig, where="OrdinalEncoder(unknown_value=)", got=3):
        pre.OrdinalEncoder(unknown_value=3).fit(train)
    with raises(errors.BadConfig, where="OrdinalEncoder(unknown_value=), column 'x'", got=1):
        pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=1).fit(train)
    with raises(errors.BadConfig, where="OrdinalEncoder(encoded_missing_value=), column 'x'", got=0):
        pre.OrdinalEncoder(encoded_missing_value=0).fit(train)
