"""Moments against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend import Column, select
from gpupipe.preprocessing.summaries import Moments
from tests.raising import raises

CPU = select("cpu")


def moments(values: list[float]) -> Moments:
    return Moments.of({"x": Column("float64", np.array(values, dtype="float64"))}, CPU, "test")


@settings(deadline=None, max_examples=60)
@given(
    offset=st.sampled_from([0.0, 1e9, -1e12]),
    parts=st.lists(
        st.lists(st.none() | st.integers(-1000, 1000).map(lambda v: v / 16), max_size=8), min_size=1, max_size=5
    ),
)
def test_digits_survive_any_offset(offset: float, parts: list[list[float | None]]) -> None:
    moved = [[np.nan if v is None else offset + v for v in part] for part in parts]
    total = moments(moved[0])
    for part in moved[1:]:
        total += moments(part)
    exact = [Fraction(v) for part in moved for v in part if not np.isnan(v)]
    assert total.count[0] == len(exact)
    assert total.missing[0] == sum(map(len, moved)) - len(exact)
    if exact:
        mean = sum(exact) / len(exact)
        m2 = sum((v - mean) ** 2 for v in exact)
        assert total.mean[0] == pytest.approx(float(mean), rel=1e-15)
        # A mean is known to its last digit, and no better.
        last = 4 * np.finfo(float).eps * abs(offset)
        assert total.m2[0] == pytest.approx(float(m2), rel=1e-12, abs=len(exact) * last * (last + 2 * float(m2) ** 0.5))


def test_many_blocks_are_one_column() -> None:
    values = np.random.default_rng(0).normal(1e9, 1.0, 200_000)
    found = moments(values.tolist())
    assert found.variance[0] == pytest.approx(np.var(values - 1e9), rel=1e-8)


def test_a_constant_is_constant_over_blocks_and_partitions() -> None:
    one = moments([0.1] * 100_000)
    assert (one + one + moments([0.1])).variance[0] == 0.0
    assert (one + one).mean[0] == 0.1


def test_filled_with_its_mean_a_constant_stays_constant() -> None:
    found = moments([0.3, np.nan, 0.3, np.nan])
    assert found.filled({"x": float(found.mean[0])}).variance[0] == 0.0


def test_nothing_is_neutral() -> None:
    empty, some = moments([]), moments([1.0, 2.0])
    for total in (empty + some, some + empty):
        assert (total.count[0], total.mean[0], total.m2[0]) == (2, 1.5, 0.5)
    assert (empty + empty).variance[0] == 0.0


@pytest.mark.parametrize("value", [1e300, -1e160, 1.001e145])
def test_whether_a_value_is_too_large_does_not_depend_on_its_neighbours(value: float) -> None:
    for part in ([value], [value, value], [value, np.nan], [0.0, value], [np.nan] * 40_000 + [value]):
        with raises(errors.BadData, where="test, column 'x'", match="too large to be squared") as refused:
            moments(part)
        assert refused.value.got == abs(value)


def test_the_largest_values_can_be_summed() -> None:
    found = moments([1e145, -1e145, np.nan]) + moments([1e145] * 40_000)
    assert found.count[0] == 40_002 and 0 < found.variance[0] < np.inf


def test_what_gaps_are_filled_with_is_a_value_like_any_other() -> None:
    with raises(errors.BadData, where="column 'x'", got=1e150):
        moments([np.nan]).filled({"x": 1e150})
    assert moments([1.0]).filled({"x": 1e150}).mean[0] == 1.0
