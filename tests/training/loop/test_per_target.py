"""A loss per target: the named losses column by column, their mean, and a network that learns both kinds."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import gpupipe as gp
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.models import MultiTask
from gpupipe.tensors.batch import Batch
from gpupipe.training import PerTarget
from tests.raising import raises


def test_it_is_the_mean_of_the_losses_column_by_column() -> None:
    draw = torch.Generator().manual_seed(1)
    output, target = torch.randn(20, 3, generator=draw), torch.rand(20, 3, generator=draw).round()
    batch = Batch(torch.zeros(20, 0), torch.zeros(20, 0), target, torch.rand(20, generator=draw))
    found = PerTarget(["mse", "bce", "huber"], [1, 2, 5])(output, batch)
    each = [
        (output[:, 0] - target[:, 0]) ** 2,
        F.binary_cross_entropy_with_logits(output[:, 1], target[:, 1], reduction="none"),
        F.huber_loss(output[:, 2], target[:, 2], reduction="none"),
    ]
    torch.testing.assert_close(found, (each[0] + 2 * each[1] + 5 * each[2]) / 8)


@pytest.mark.slow
def test_one_network_learns_a_number_and_a_yes_or_no() -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(1024, 2, generator=draw)
    target = torch.stack([x[:, 0] + x[:, 1], (x[:, 0] * x[:, 1] > 0).float()], 1)
    batch = Batch(x, torch.zeros(1024, 0, dtype=torch.int32), target)
    model = MultiTask(2, outputs=2, hidden=(32,), head=(16,), seed=1)
    trainer = gp.Trainer(model, loss=PerTarget(["mse", "bce"]), max_epochs=200, lr=0.02, device="cpu", progress=False)
    trainer.fit([batch])
    output = trainer.predict([batch])
    assert ((output[:, 0] - target[:, 0]) ** 2).mean() < 0.02
    assert ((output[:, 1] > 0) == (target[:, 1] > 0.5)).float().mean() > 0.95


def test_what_makes_no_sense_is_refused() -> None:
    with raises(BadConfig, where="PerTarget(losses=)", got="mes") as caught:
        PerTarget(["mes"])
    assert caught.value.remedy == "losses=['mse']"
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0]):
        with raises(BadConfig, where="PerTarget(weights=)", remedy="weights=None"):
            PerTarget(["mse", "bce"], weights)
    with raises(SchemaMismatch, where="loss PerTarget", got=(4, 2)):
        PerTarget(["mse"])(torch.zeros(4, 2), Batch(torch.zeros(4, 0), torch.zeros(4, 0), torch.zeros(4, 2)))
