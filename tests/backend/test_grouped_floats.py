"""Floats by group, against pandas."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend.kernels import aggregate_floats


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(1, 200),
    num_groups=st.integers(1, 300),
    offset=st.sampled_from([0.0, 1e9]),
)
def test_groups_are_pandas_groups(seed: int, num_rows: int, num_groups: int, offset: float) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(0, num_groups, num_rows)
    ids = np.unique(ids, return_inverse=True)[1]  # no group is empty
    values = offset + random.integers(-8, 8, num_rows) + random.random(num_rows)
    values[random.random(num_rows) < 0.3] = np.nan
    known = pd.Series(values).groupby(ids)
    one, count = aggregate_floats(values, ids, len(known)), known.count().to_numpy()
    assert one.count.tolist() == count.tolist()
    there = count > 0
    np.testing.assert_array_equal(one.low[there], known.min().to_numpy()[there])
    np.testing.assert_array_equal(one.high[there], known.max().to_numpy()[there])
    np.testing.assert_allclose(one.total, known.sum().to_numpy(), rtol=1e-13, atol=1e-12)
    expected = known.var(ddof=0).fillna(0.0).to_numpy() * count
    np.testing.assert_allclose(one.squares, expected, rtol=1e-6, atol=1e-4 if offset else 1e-10)


def test_a_group_far_from_the_others_keeps_its_digits() -> None:
    ids = np.arange(100_000) % 2
    values = np.where(ids == 0, 1e12, 0.0) + (np.arange(100_000) // 2 % 2)
    found = aggregate_floats(values, ids, 2)
    assert found.squares.tolist() == pytest.approx([12_500.0, 12_500.0], rel=1e-6)


@pytest.mark.parametrize("spread", [2.0**-10, 2.0**-13])
def test_squares_of_values_that_differ_in_their_last_digits(spread: float) -> None:
    random = np.random.default_rng(3)
    values, ids = 1e12 + random.integers(0, 8, 3000) * spread, random.integers(0, 20, 3000)
    found = aggregate_floats(values, ids, 20)
    for group, squares in enumerate(found.squares):
        exact = [Fraction(value) for value in values[ids == group]]
        mean = sum(exact) / len(exact)
        assert squares == pytest.approx(float(sum((value - mean) ** 2 for value in exact)), rel=1e-12)


def test_a_group_of_one_value_many_times_has_no_spread() -> None:
    random = np.random.default_rng(5)
    sizes = random.integers(1, 100, 1000)
    found = aggregate_floats(np.repeat(random.random(1000), sizes), np.repeat(np.arange(1000), sizes), 1000)
    assert not found.squares.any()


def test_infinities_stay_in_their_group() -> None:
    values = np.array([np.inf, 1.0, np.inf, -np.inf, 1e308, 1e308, 2.0])
    found = aggregate_floats(values, np.array([0, 0, 1, 1, 2, 2, 3]), 4)
    np.testing.assert_array_equal(found.total, [np.inf, np.nan, np.inf, 2.0])
    assert not np.isfinite(found.squares[:3]).any() and found.squares[3] == 0.0


def test_no_rows_have_no_values() -> None:
    found = aggregate_floats(np.zeros(0), np.zeros(0, dtype="int64"), 0)
    assert len(found.total) == 0


def test_a_group_of_missing_values_has_no_ends() -> None:
    found = aggregate_floats(np.array([np.nan, 1.0]), np.array([0, 1]), 2)
    assert found.low.tolist() == [np.inf, 1.0] and found.high.tolist() == [-np.inf, 1.0]
    assert found.count.tolist() == [0, 1]
