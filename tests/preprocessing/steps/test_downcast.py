"""The smallest type that holds what was seen: exact, and an error for what does not fit it later."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from tests.raising import raises

EDGES = [s * (2**p) + d for p in (7, 8, 15, 16, 31, 32, 53, 62) for s in (-1, 1) for d in (-1, 0, 1)]
TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*EDGES, 0, 1]), min_size=1, max_size=4))
def test_an_integer_type_is_the_smallest_that_fits(values: list[int]) -> None:
    frame = pd.DataFrame({"n": np.array(values, "int64")})
    step = pre.Downcast().fit(frame)
    fits = [t for t in TYPES if np.iinfo(t).min <= min(values) and max(values) <= np.iinfo(t).max]
    assert np.dtype(step.dtypes_[0]).itemsize == min(np.dtype(t).itemsize for t in fits)
    made = step.transform(frame)["n"]
    assert made.tolist() == values and str(made.dtype) == step.dtypes_[0]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32) | st.sampled_from([0.1, 1e300, 2.0**24 + 1, np.nan]), max_size=5))
def test_a_float_stays_what_it_is(values: list[float]) -> None:
    frame = pd.DataFrame({"x": np.array(values, "float64")})
    step = pre.Downcast().fit(frame)
    there = [v for v in values if not np.isnan(v)]
    with np.errstate(over="ignore"):
        exact = all(float(np.float32(v)) == v for v in there)
    assert step.dtypes_ == ["float32" if there and exact else "float64"]
    np.testing.assert_array_equal(step.transform(frame)["x"].to_numpy("float64"), frame["x"])


@pytest.mark.parametrize(("seen", "later"), [([1, 2], 300), ([0, 255], -1), ([0.5, 1.5], 0.1), ([0.5], 1e300)])
def test_an_unseen_value_that_does_not_fit_is_an_error(seen: list[Any], later: Any) -> None:
    """Not wrapped or rounded, as NVTabular's ReduceDtypeSize does."""
    step = pre.Downcast().fit(pd.DataFrame({"n": seen}))
    message = f"Downcast, column 'n': a value does not fit {step.dtypes_[0]}.* got {re.escape(str(later))}"
    with pytest.raises(errors.BadData, match=message):
        step.transform(pd.DataFrame({"n": [seen[0], later]}))


def test_gaps_stay_and_partitions_do_not_matter() -> None:
    frame = pd.DataFrame(
        {
            "n": pd.array([None, 40_000, None, -3] * 5, dtype="Int64"),
            "x": [np.nan, 0.5, 1.0, 2.0] * 5,
            "empty": np.full(20, np.nan),
            "yes": [True, False] * 10,
        }
    )
    for parts in (1, 7, 16):
        data = gp.from_frame(frame, num_partitions=parts)
        pipeline = gp.Pipeline([], gp.Features((list(frame), pre.Downcast()))).fit(data)
        made = pipeline.transform(frame)
        assert [str(one).lower() for one in made.dtypes] == ["int32", "float32", "float64", "bool"]
        assert [item.dtype for item in pipeline.schema] == ["int32", "float32", "float64", "bool"]
        assert made["n"].isna().tolist() == frame["n"].isna().tolist()


def test_text_is_refused() -> None:
    with raises(errors.SchemaMismatch, where="Downcast, column 's'", got="string"):
        pre.Downcast().fit(pd.DataFrame({"s": ["a"]}))
