"""Rows drawn by weight: in the right shares, the same on any device, and again from anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from gpupipe import errors
from gpupipe.backend import Backend, Column, select
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import FeatureTable, Loader
from gpupipe.tensors.order import Drawn
from tests.raising import raises

from .tables import WEIGHTED, block_of, rows_of


def with_target(target: np.ndarray) -> FeatureTable:
    schema = Schema([Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)])
    block = FeatureTable.allocate(schema, len(target), "cpu")
    columns = {"x": Column("float64", np.arange(len(target)) * 1.0), "y": Column("float64", target.astype("float64"))}
    block.write(0, columns, select("cpu"))
    return block


def drawn(loader: Loader) -> np.ndarray:
    return np.concatenate([batch.numeric[:, 0].numpy() for batch in loader]).astype(int)


def test_classes_come_equally_often() -> None:
    target = np.arange(30_000) % 100 < 2  # 2 %
    found = drawn(Loader(with_target(target), batch_size=1000, sampler="balanced", seed=1))
    assert len(found) == 30_000
    assert stats.binomtest(int(target[found].sum()), 30_000, 0.5).pvalue > 1e-3
    for label in (False, True):  # and the rows of a class equally often
        (members,) = np.nonzero(target == label)
        counts = np.bincount(found, minlength=30_000)[members]
        assert stats.chisquare(counts).pvalue > 1e-3


def test_rows_come_by_their_weight() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0, 0.0]).repeat(4000)
    found = drawn(Loader(with_target(np.zeros(20_000)), batch_size=999, sampler=weights, seed=1))
    counts = np.bincount(found % 5, minlength=5)
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(counts[1:4], 20_000 * np.array([1, 2, 5]) / 8).pvalue > 1e-3


def test_epochs_draw_anew_and_seeds_again() -> None:
    loader = Loader(with_target(np.arange(500) % 2), batch_size=64, sampler="balanced", seed=1)
    first, second = drawn(loader), drawn(loader)
    again = Loader(with_target(np.arange(500) % 2), batch_size=7, sampler="balanced", seed=1)
    assert (first != second).any() and (drawn(again) == first).all()
    other = Loader(with_target(np.arange(500) % 2), batch_size=64, sampler="balanced", seed=2)
    assert (drawn(other) != first).any()


def test_draws_are_the_same_by_torch_as_by_numpy(backend: Backend) -> None:
    sums = torch.tensor([3, 3, 10, 1 << 44])
    here = Drawn(sums, seed=5, epoch=2).at(7, 1007, torch.device("cpu"))
    there = Drawn(sums, seed=5, epoch=2)._draw(torch.arange(8, 1008, device=backend.device))
    assert torch.equal(torch.searchsorted(sums.to(there.device), there, right=True).cpu(), here)
    assert not (here == 1).any(), "a row of weight 0"


def test_the_weights_column_is_used_once() -> None:
    found = list(Loader(block_of(100, schema=WEIGHTED), batch_size=32, sampler="weights"))
    assert all(batch.weight is None for batch in found)
    rows = rows_of(found)
    assert 0 not in rows and np.mean(rows) > 60  # weights rise with the row: 2/3 of the range on average
    ranks = [
        Loader(block_of(99, schema=WEIGHTED), batch_size=32, sampler="weights", rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    assert sum(len(rows_of(loader)) for loader in ranks) == 99
    assert all(set(batch.weight.tolist()) <= {0.0, 1.0} for loader in ranks for batch in loader)  # type: ignore[union-attr]


def test_what_cannot_be_drawn_by() -> None:
    plain = with_target(np.array([0.5, 1.0]))
    for sampler, said in (
        ("balanced", "the target has no classes"),
        ("weights", "the table has no weights"),
        ("best", "no such sampler, got 'best'"),
        (torch.ones(3), "not a weight for each row"),
    ):
        with pytest.raises(errors.BadConfig, match=said):
            Loader(plain, sampler=sampler)  # type: ignore[arg-type]
    for weights in ([-1.0, 2.0], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]):
        with raises(errors.BadData, where="loader(sampler=)"):
            Loader(plain, sampler=torch.tensor(weights))
    with raises(errors.BadConfig, where="loader", got="shuffle='rows'"):
        Loader(plain, sampler=torch.ones(2), shuffle=True)
    assert list(Loader(with_target(np.zeros(0)), sampler="balanced")) == []
