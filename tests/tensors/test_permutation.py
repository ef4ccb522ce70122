"""The order of rows: a bijection for every n, the same everywhere, and without a pattern."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpupipe import errors
from gpupipe.tensors import Permutation


def test_it_is_a_bijection_for_every_small_n() -> None:
    for n in range(1, 4097):
        order = Permutation(n, seed=n, epoch=n % 3).at(np.arange(n))
        assert np.array_equal(np.sort(order), np.arange(n)), n


def test_no_rows() -> None:
    assert Permutation(0).order("cpu").tolist() == []
    with pytest.raises(errors.BadConfig, match="fewer than no rows, got -1"):
        Permutation(-1)


@pytest.mark.parametrize("n", [1, 2, 77, 4096, 100_003])
def test_numpy_and_torch_agree_and_any_part_can_be_had_alone(n: int) -> None:
    order = Permutation(n, seed=-5, epoch=2)
    whole = order.order("cpu")
    assert whole.dtype == torch.int64
    assert np.array_equal(order.at(np.arange(n)), whole.numpy())
    some = torch.arange(n)[n // 3 : n // 2 + 1]
    assert torch.equal(order.at(some), whole[n // 3 : n // 2 + 1])
    assert torch.equal(some, torch.arange(n)[n // 3 : n // 2 + 1])


def test_orders_are_fixed_for_good() -> None:
    assert Permutation(10, seed=7, epoch=0).order("cpu").tolist() == FIRST
    assert Permutation(10, seed=7, epoch=1).order("cpu").tolist() != FIRST
    assert Permutation(10, seed=8, epoch=0).order("cpu").tolist() != FIRST


FIRST = [2, 3, 6, 9, 5, 1, 8, 4, 7, 0]


@pytest.mark.parametrize("n", [3, 10, 64, 200])
def test_every_row_comes_everywhere_equally_often(n: int) -> None:
    repeats = 3000
    seen = np.zeros((n, n))
    for seed in range(repeats):
        seen[np.arange(n), Permutation(n, seed=seed // 5, epoch=seed % 5).at(np.arange(n))] += 1
    expected = repeats / n
    chi_square = ((seen - expected) ** 2 / expected).sum() / (n - 1) ** 2
    assert 0.5 < chi_square < 1.6


def test_neighbours_and_displacements_show_no_pattern() -> None:
    n = 50_000
    order = Permutation(n, seed=3).at(np.arange(n)).astype(float)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.02
    counts, _ = np.histogram((order - np.arange(n)) % n, bins=50, range=(0, n))
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 90  # 49 degrees of freedom: beyond 90 once in 3000
    other = Permutation(n, seed=3, epoch=1).at(np.arange(n)).astype(float)
    assert abs(np.corrcoef(order, other)[0, 1]) < 0.02
