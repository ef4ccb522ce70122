"""The pairwise loss against a loop over pairs, and what it is for: order within groups."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gpupipe as gp
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.models import Linear
from gpupipe.tensors.batch import Batch
from gpupipe.training import PairwiseRanking
from gpupipe.training.loop.losses import LossMean, compute_mean_loss
from tests.raising import raises


def batch_of(target: list[float], groups: list[int] | None = None, weight: list[float] | None = None) -> Batch:
    rows = len(target)
    keep = {} if groups is None else {"query": torch.tensor(groups)}
    weights = None if weight is None else torch.tensor(weight)
    return Batch(torch.zeros(rows, 0), torch.zeros(rows, 0, dtype=torch.int32), torch.tensor(target), weights, keep)


def by_hand(scores: list[float], target: list[float], groups: list[int], weight: list[float]) -> float:
    total = pairs = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if target[i] > target[j] and groups[i] == groups[j]:
                total += weight[i] * weight[j] * math.log1p(math.exp(-(scores[i] - scores[j])))
                pairs += weight[i] * weight[j]
    return total / pairs if pairs else 0.0


ROW = st.tuples(st.integers(-20, 20), st.integers(0, 3), st.integers(0, 2), st.integers(0, 4))


@settings(deadline=None, max_examples=80)
@given(st.lists(ROW, min_size=1, max_size=9))
def test_it_is_the_mean_over_the_pairs(rows: list[tuple[int, int, int, int]]) -> None:
    scores, target, groups, weight = ([float(value) for value in column] for column in zip(*rows, strict=True))
    group = [int(value) for value in groups]
    found = PairwiseRanking("query")(torch.tensor(scores), batch_of(target, group, weight))
    assert float(found) == pytest.approx(by_hand(scores, target, group, weight), rel=1e-5, abs=1e-6)
    ungrouped = PairwiseRanking()(torch.tensor(scores), batch_of(target))
    ones = [1.0] * len(rows)
    assert float(ungrouped) == pytest.approx(by_hand(scores, target, [0] * len(rows), ones), rel=1e-5, abs=1e-6)


def test_rows_without_a_pair_move_nothing() -> None:
    scores = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    loss = PairwiseRanking("query")(scores, batch_of([1.0, 1.0, 2.0], [0, 0, 1]))
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None and not scores.grad.any()


def test_far_scores_stay_finite() -> None:
    assert float(PairwiseRanking()(torch.tensor([-1e4, 1e4]), batch_of([1.0, 0.0]))) == 2e4


def test_it_learns_the_order_within_groups() -> None:
    draw = torch.Generator().manual_seed(1)
    x, query = torch.randn(512, 2, generator=draw), torch.arange(512) // 8
    level = 50 * torch.randn(64, generator=draw)[query]  # between groups nothing can be learned, nor has to be
    target = 2 * x[:, 0] - x[:, 1] + level
    batch = Batch(x, torch.zeros(512, 0, dtype=torch.int32), target, keep={"query": query})
    model = Linear(2)
    trainer = gp.Trainer(
        model, loss=PairwiseRanking("query"), max_epochs=60, lr=0.1, device="cpu", weight_decay=0.0, progress=False
    )
    trainer.fit([batch])
    a, b = model.weight.detach()[:, 0].tolist()
    assert a / -b == pytest.approx(2, rel=0.1)
    scores: Tensor = trainer.predict([batch]).reshape(64, 8)
    assert (scores.argmax(1) == target.reshape(64, 8).argmax(1)).float().mean() > 0.9


def test_it_is_counted_as_a_mean() -> None:
    losses = LossMean(torch.device("cpu"))
    batch = batch_of([1.0, 0.0])
    losses.add(*compute_mean_loss(PairwiseRanking()(torch.tensor([0.0, 0.0]), batch), batch))
    assert losses.read() == pytest.approx(math.log(2))


def test_what_is_not_there_is_named() -> None:
    with raises(ColumnNotFound, where="PairwiseRanking(group=)", column="qery"):
        PairwiseRanking("qery")(torch.zeros(2), batch_of([1.0, 0.0], [0, 0]))
    wide = Batch(torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(2, 3))
    with raises(SchemaMismatch, where="loss PairwiseRanking", got=(2, 3)):
        PairwiseRanking()(torch.zeros(2, 3), wide)
