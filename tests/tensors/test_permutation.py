"""The order of rows: a bijection for every n, the same everywhere, and without a pattern."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest
import torch

from gpupipe import errors
from gpupipe.backend import Backend
from gpupipe.tensors import Permutation
from tests.raising import raises

SURE = 1e-5  # a fair order fails one test of these in 100,000; seeds are fixed, so that none here does


def order_of(n: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return Permutation(n, seed=seed, epoch=epoch).at(np.arange(n))


def probability(counts: np.ndarray, expected: np.ndarray | float, freedom: int) -> float:
    """That chance alone would bring a chi-square this large (Wilson and Hilferty, 1931)."""
    chi_square, variance = ((counts - expected) ** 2 / expected).sum(), 2 / (9 * freedom)
    normal = ((chi_square / freedom) ** (1 / 3) - (1 - variance)) / variance**0.5
    return NormalDist().cdf(-normal)


@pytest.mark.slow
def test_it_is_a_bijection_for_every_small_n() -> None:
    for n in range(1, 4097):
        assert np.array_equal(np.sort(order_of(n, seed=n, epoch=n % 3)), np.arange(n)), n


@pytest.mark.parametrize("n", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, (1 << 17) + 1, 300_000])
def test_it_is_a_bijection_where_words_and_chunks_change(n: int) -> None:
    assert np.array_equal(np.sort(order_of(n, seed=n)), np.arange(n))


@pytest.mark.parametrize("n", [(1 << 31) - 1, 1 << 31, (1 << 31) + 1, 1 << 40, (1 << 62) + 5])
def test_rows_of_an_order_too_long_to_be_made(n: int) -> None:
    positions = np.unique(np.random.default_rng(0).integers(0, n, 50_000))
    rows = Permutation(n, seed=1).at(positions)
    assert rows.min() >= 0 and rows.max() < n and len(np.unique(rows)) == len(positions)
    counts = np.bincount((rows // (n // 50 + 1)).astype(int), minlength=50)
    assert probability(counts, len(rows) / 50, 49) > SURE
    assert np.array_equal(Permutation(n, seed=1).at(torch.from_numpy(positions)).numpy(), rows)


def test_no_rows() -> None:
    assert Permutation(0).order("cpu").tolist() == []
    with raises(errors.BadConfig, where="Permutation", got=-1):
        Permutation(-1)


@pytest.mark.parametrize("n", [1, 2, 77, 4096, 100_003])
def test_every_library_and_device_agrees_and_any_part_can_be_had_alone(n: int, backend: Backend) -> None:
    permutation = Permutation(n, seed=-5, epoch=2)
    whole = permutation.order(backend.device)
    assert whole.dtype == torch.int64 and str(whole.device) == backend.device
    assert np.array_equal(permutation.at(np.arange(n)), whole.cpu().numpy())
    assert np.array_equal(backend.to_host(permutation.at(backend.to_device(np.arange(n)))), whole.cpu().numpy())
    some = torch.arange(n, device=backend.device)[n // 3 : n // 2 + 1]
    assert torch.equal(permutation.at(some), whole[n // 3 : n // 2 + 1])
    assert torch.equal(some.cpu(), torch.arange(n)[n // 3 : n // 2 + 1]), "the positions are the caller's"


def test_orders_are_fixed_for_good() -> None:
    assert order_of(10, seed=7).tolist() == [9, 3, 7, 8, 1, 0, 2, 4, 6, 5]
    assert order_of(100_000, seed=7)[:5].tolist() == [83984, 71555, 68266, 32495, 43396]
    assert Permutation(1 << 40, seed=7).at(np.arange(3)).tolist() == [952835517334, 897254739974, 1063603416713]


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {tuple(order_of(20, seed, epoch)) for seed in (-1, 0, 1, 2**63, 2**64 - 2) for epoch in range(20)}
    assert len(orders) == 100
    assert order_of(20, seed=-1).tolist() == order_of(20, seed=2**64 - 1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_few_rows_comes_equally_often(n: int) -> None:
    orders, repeats = list(permutations(range(n))), 3000
    seen = Counter(tuple(order_of(n, seed=i // 4, epoch=i % 4)) for i in range(repeats))
    counts = np.array([seen[order] for order in orders])
    assert probability(counts, repeats / len(orders), len(orders) - 1) > SURE


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 64, 1000])
def test_every_row_comes_everywhere_equally_often(n: int) -> None:
    groups = min(n, 16)
    group = np.arange(n) * groups // n
    seen = np.zeros((groups, groups))
    for seed in range(2000):
        np.add.at(seen, (group, group[order_of(n, seed=seed)]), 1)
    expected = seen.sum(1, keepdims=True) * seen.sum(0) / seen.sum()
    assert probability(seen, expected, (groups - 1) ** 2) > SURE


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seeds"), [(4096, 40), (50_000, 20), (1 << 17, 20)])
def test_no_order_shows_a_pattern(n: int, seeds: int) -> None:
    """Displacements, steps between neighbours near and far, curvature, and what the next epoch makes of them."""

    def spread(differences: np.ndarray) -> float:
        counts = np.bincount(differences % n * 64 // n, minlength=64)
        widths = np.bincount(np.arange(n) * 64 // n, minlength=64)
        return probability(counts, widths * (len(differences) / n), 63)

    half = 1 << (n.bit_length() // 2)
    for seed in range(seeds):
        order, following = order_of(n, seed), order_of(n, seed, epoch=1)
        found = [spread(order[lag:] - order[:-lag]) for lag in (1, 2, half // 2, half, 2 * half)]
        found.append(spread(order - np.arange(n)))
        found.append(spread(order[2:] - 2 * order[1:-1] + order[:-2]))
        found.append(spread(order - following))
        assert min(found) > SURE / 10, (seed, found)
