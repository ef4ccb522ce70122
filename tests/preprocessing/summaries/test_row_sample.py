"""Gathered rows: all of them in order, or a sample that no partitioning changes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gpupipe import errors
from gpupipe.backend import Column, select
from gpupipe.backend.cpu import CpuBackend
from gpupipe.preprocessing.summaries import GatheredRows
from tests.raising import raises

CPU = select("cpu")


def gathered(numbers: np.ndarray, max_rows: int, seed: int = 0) -> GatheredRows:
    columns = {"n": Column("int64", numbers), "half": Column("float64", numbers / 2)}
    return GatheredRows.of(columns, CPU, "test", row_numbers=numbers, max_rows=max_rows, seed=seed)


def test_few_rows_are_all_kept_in_order() -> None:
    total = gathered(np.array([5, 6]), 10) + gathered(np.array([0, 3]), 10)
    assert total.block().tolist() == [[0, 0], [3, 1.5], [5, 2.5], [6, 3]]
    assert (total.num_rows, total.num_kept, total.halvings) == (4, 4, 0)


@pytest.mark.parametrize("sizes", [[10_000], [1, 9_999], [5_000, 0, 5_000], [3_000] * 3 + [1_000]])
def test_many_rows_are_thinned_out_the_same_way(sizes: list[int]) -> None:
    numbers = np.split(np.arange(10_000), np.cumsum(sizes)[:-1])
    whole = gathered(np.arange(10_000), 900)
    parts = [gathered(part, 900) for part in numbers]
    for order in (parts, parts[::-1]):
        total = order[0]
        for part in order[1:]:
            total += part
        np.testing.assert_array_equal(total.block(), whole.block())
        np.testing.assert_array_equal(total.subsample(50), whole.subsample(50))
        assert total.num_rows == 10_000 and total.halvings == whole.halvings
    assert 400 < whole.num_kept <= 900


def test_a_sample_is_even_and_its_seed_decides() -> None:
    kept = gathered(np.arange(100_000), 20_000).block()[:, 0]
    counts = np.histogram(kept, bins=10, range=(0, 100_000))[0]
    assert abs(counts / counts.mean() - 1).max() < 0.15
    other = gathered(np.arange(100_000), 20_000, seed=1).block()[:, 0]
    assert len(np.intersect1d(kept, other)) < 0.3 * len(kept)


def test_a_subsample_is_spread_over_all_rows() -> None:
    rows = gathered(np.arange(50_000), 100_000).subsample(1000)
    assert rows.shape == (1000, 2)
    assert abs(rows[:, 0].mean() - 25_000) < 2_000


def test_missing_values_are_filled_late() -> None:
    columns = {
        "x": Column("float64", np.array([1.0, np.nan])),
        "k": Column("int64", np.array([7, 0]), np.array([True, False])),
    }
    rows = GatheredRows.of(columns, CPU, "test", row_numbers=None, max_rows=9, seed=0)
    assert np.isnan(rows.block()[1]).all()
    assert rows.filled({"x": 5.0, "k": 2}).block().tolist() == [[1.0, 7.0], [5.0, 2.0]]


def test_infinities_are_refused() -> None:
    with raises(errors.BadData, where="test, column 'x'", got=-np.inf):
        GatheredRows.of(
            {"x": Column("float64", np.array([-np.inf]))}, CPU, "test", row_numbers=None, max_rows=9, seed=0
        )


class Elsewhere(CpuBackend):
    """Stands in for a GPU's backend, which another process may be without."""

    def __reduce__(self) -> Any:
        raise AssertionError("it does not travel")


def test_rows_that_travel_arrive_on_the_host() -> None:
    columns = {"n": Column("int64", np.arange(7))}
    rows = GatheredRows.of(columns, Elsewhere(), "test", row_numbers=None, max_rows=9, seed=0)
    again = pickle.loads(pickle.dumps(rows))
    assert again.backend is select("cpu") and np.array_equal(again.block(), rows.block())
