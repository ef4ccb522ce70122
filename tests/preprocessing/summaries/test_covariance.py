"""Co-moments against NumPy, over partitions and offsets."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend import Column, select
from gpupipe.backend.cpu import CpuBackend
from gpupipe.preprocessing.summaries import Covariance

CPU = select("cpu")


def summed(block: np.ndarray, max_bytes: int = 0) -> Covariance:
    columns = {str(j): Column("float64", block[:, j]) for j in range(block.shape[1])}
    return Covariance.of(columns, CPU, "test", max_bytes=max_bytes)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(0, 50), max_size=6), offset=st.sampled_from([0.0, 1e9]))
def test_partitions_add_up(seed: int, cuts: list[int], offset: float) -> None:
    block = np.random.default_rng(seed).normal(size=(50, 3)) @ np.triu(np.ones((3, 3)))
    parts = [summed(part) for part in np.split(block + offset, sorted(cuts))]
    total = parts[0]
    for part in parts[1:]:
        total += part
    assert total.count == 50
    np.testing.assert_allclose(total.mean - offset, block.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(total.m2 / 49, np.cov(block.T), atol=1e-12 if offset == 0 else 1e-6)


def test_many_blocks_are_one_partition() -> None:
    block = np.random.default_rng(0).normal(1e9, 1, size=(100_000, 2))
    np.testing.assert_allclose(summed(block).m2 / 99_999, np.cov((block - 1e9).T), atol=1e-8)


def test_rows_are_kept_up_to_the_limit() -> None:
    block = np.arange(8.0).reshape(4, 2)
    exactly = summed(block[:1], 64) + summed(block[1:], 64)
    assert exactly.deviations().tolist() == [[-3, -3], [-1, -1], [1, 1], [3, 3]]
    assert (exactly + summed(block[:1], 64)).parts is None
    assert summed(block, 63).parts is None


@pytest.mark.parametrize("first", [True, False])
def test_nothing_is_neutral(first: bool) -> None:
    some, empty = summed(np.eye(2), 999), summed(np.zeros((0, 2)), 999)
    total = empty + some if first else some + empty
    assert total.count == 2 and total.deviations().shape == (2, 2)
    np.testing.assert_array_equal(total.m2, some.m2)


@pytest.mark.parametrize("rows", [[[1e300, 0.0]] * 3, [[0.0, -1e160]], [[1.0, 1.0], [1e150, 2.0]]])
def test_whether_a_value_is_too_large_does_not_depend_on_its_neighbours(rows: list[list[float]]) -> None:
    with pytest.raises(errors.BadData, match="a value is too large to be squared, got 1e"):
        summed(np.array(rows))


class Elsewhere(CpuBackend):
    """Stands in for a GPU's backend, which another process may be without."""

    def __reduce__(self) -> Any:
        raise AssertionError("it does not travel")


def test_what_travels_arrives_on_the_host() -> None:
    columns = {"n": Column("int64", np.array([1, 4, 4]), np.array([True, True, True]))}
    found = Covariance.of(columns, Elsewhere(), "test", max_bytes=1000)
    again = pickle.loads(pickle.dumps(found))
    assert again.backend is select("cpu") and again.parts is not None
    assert np.array_equal(again.deviations(), found.deviations())
    assert (again.count, again.mean.tolist(), again.m2.tolist()) == (
        found.count,
        found.mean.tolist(),
        found.m2.tolist(),
    )
