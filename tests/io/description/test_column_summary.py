"""Summaries of columns in parts against NumPy and pandas on the whole."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend import Column, select
from gpupipe.io.description.column_summary import ColumnSummary, ValueSummary

CPU = select("cpu")
NUMBERS = st.lists(st.none() | st.integers(-800, 800).map(lambda n: n / 8), min_size=0, max_size=40)


def summarize(values: list[float | None], limit: int = 1000) -> ColumnSummary:
    return ColumnSummary.of(Column("float64", np.array(values, dtype=np.float64)), CPU, limit)


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=5), st.sampled_from([0.0, 1e9]))
def test_moments_quartiles_and_counts_as_pandas_has_them(parts: list[list[float | None]], offset: float) -> None:
    parts = [[None if v is None else v + offset for v in part] for part in parts]
    whole = pd.Series([v for part in parts for v in part], dtype="float64")
    found = reduce(add, map(summarize, parts))
    assert (found.num_rows, found.num_missing) == (len(whole), whole.isna().sum())
    present = whole.dropna()
    if not len(present):
        assert found.present is None
        return
    values = found.present
    assert values is not None and values.numbers is not None
    assert (values.low, values.high, values.num_distinct) == (present.min(), present.max(), present.nunique())
    assert values.numbers.mean == pytest.approx(present.mean(), rel=1e-14, abs=1e-12)
    assert values.numbers.std == pytest.approx(present.std(), rel=1e-9, abs=1e-12, nan_ok=True)
    shares = np.array([0.25, 0.5, 0.75])
    np.testing.assert_allclose(values.numbers.histogram.quantiles(shares), present.quantile(shares), rtol=1e-14)


def test_equal_numbers_have_that_mean_and_no_spread() -> None:
    found = reduce(add, (summarize([0.1] * size) for size in (3, 1, 7)))
    assert found.present is not None and found.present.numbers is not None
    assert (found.present.numbers.mean, found.present.numbers.std) == (0.1, 0.0)


def test_many_values_leave_exact_moments_and_estimates_of_the_rest() -> None:
    random = np.random.default_rng(0)
    values = np.append(random.lognormal(0, 2, 50_000), np.zeros(5000))
    random.shuffle(values)
    parts = [summarize(part.tolist(), 2048) for part in np.array_split(values, 5)]
    found = reduce(add, parts).present
    assert found is not None and found.numbers is not None and not found.is_exact
    assert found.numbers.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.numbers.std == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert found.num_distinct == pytest.approx(50_001, rel=0.08)
    assert [value for value, _ in found.frequent.rank(5)] == [0.0]
    quartiles = found.numbers.histogram.quantiles(np.array([0.25, 0.5, 0.75]))
    np.testing.assert_allclose(quartiles, np.quantile(values, [0.25, 0.5, 0.75]), rtol=0.02)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_floats_do_not_hold_stay_apart(dtype: str) -> None:
    numbers = np.array([2**53, 2**53 + 1, 2**53 + 2], dtype=dtype)
    found = ValueSummary.of(Column(dtype, numbers), CPU, 100)
    assert found is not None and (found.num_distinct, found.high) == (3, 2**53 + 2)


def test_lists_have_lengths_and_their_elements_figures() -> None:
    elements = Column("float64", np.array([1.0, np.nan, 3.0]))
    one = Column("list<float64>", np.array([0, 2, 2, 3]), np.array([True, False, True]), None, elements)
    none = Column("list<float64>", np.array([0, 0]), None, None, Column("float64", np.zeros(0)))
    found = ColumnSummary.of(one, CPU, 10) + ColumnSummary.of(none, CPU, 10)
    assert (found.num_missing, found.lengths, found.num_missing_elements) == (1, (0, 2), 1)
    assert found.present is not None and found.present.num_distinct == 2
