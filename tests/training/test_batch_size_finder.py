"""The search for a batch size: where it stops, and that it leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gpupipe.backend import Column, select
from gpupipe.errors import BadConfig
from gpupipe.models import MLP
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import Batch, FeatureTable, Loader
from gpupipe.training import Trainer, batch_size_finder, tune_batch_size
from gpupipe.training.loop.losses import LOSSES
from tests.raising import raises


def loader_of(rows: int = 600) -> Loader:
    schema = Schema([Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)])
    block = FeatureTable.allocate(schema, rows, "cpu")
    x = torch.randn(rows, generator=torch.Generator().manual_seed(0)).numpy()
    block.write(0, {"x": Column("float32", x), "y": Column("float32", 2 * x)}, select("cpu"))
    return Loader(block, batch_size=8, shuffle="rows")


def trainer_of(**settings: Any) -> Trainer:
    return Trainer(
        MLP(1, hidden=(8,), dropout=0.5, seed=1), **{"max_epochs": 2, "loss": "mse", "device": "cpu", **settings}
    )


class TooLarge:
    def __init__(self, most: int) -> None:
        self.most, self.largest = most, 0

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        self.largest = max(self.largest, len(batch))
        if len(batch) > self.most:
            raise torch.OutOfMemoryError("injected")
        return LOSSES["mse"](output, batch)


def speeds(monkeypatch: pytest.MonkeyPatch, of_size: dict[int, float | None]) -> None:
    monkeypatch.setattr(
        batch_size_finder, "_measure_speed", lambda trainer, loader, size, updates, device: of_size[size]
    )


def test_the_fit_after_it_is_the_fit_without_it() -> None:
    histories, weights = [], []
    for tuned in (False, True):
        trainer, loader = trainer_of(), loader_of()
        loader.set_epoch(3)
        before = torch.get_rng_state()
        if tuned:
            trainer.model.eval()
            mean = {name: value.clone() for name, value in trainer.model.state_dict().items()}
            sizes = tune_batch_size(trainer, loader, smallest=32, largest=128, updates=3)
            assert sizes.best in sizes.rows_per_second and set(sizes.rows_per_second) <= {32, 64, 128}
            assert all(torch.equal(value, mean[name]) for name, value in trainer.model.state_dict().items())
            assert not trainer.model.training and all(p.grad is None for p in trainer.model.parameters())
            assert torch.equal(before, torch.get_rng_state()) and loader.state_dict()["epoch"] == 3
            assert loader.batch_size == 8
        histories.append([row["train_loss"] for row in trainer.fit(loader).rows])
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert histories[0] == histories[1] and torch.equal(*weights)


def test_it_stops_at_the_knee(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, {32: 100.0, 64: 190.0, 128: 250.0, 256: 260.0})
    sizes = tune_batch_size(trainer_of(), loader_of(), smallest=32)
    assert sizes.best == 128 and sizes.stopped == "256 was hardly faster than 128"
    assert str(sizes).startswith("batch_size=128: 250 rows/s")


def test_it_stops_where_nobody_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, {32: 100.0, 64: 190.0, 128: 250.0, 256: 500.0, 512: 1000.0})
    assert tune_batch_size(trainer_of(), loader_of(), smallest=32, largest=128).best == 128
    assert tune_batch_size(trainer_of(), loader_of(), smallest=32).best == 512


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_stops_where_memory_ends(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = TooLarge(64)
    sizes = tune_batch_size(
        trainer_of(loss=loss, accumulate=accumulate, metrics=[]),
        loader_of(),
        smallest=32,
        updates=2,
        least_gain=0.0,
    )
    assert sizes.best == 64 and sizes.stopped == "128 rows do not fit in memory" and loss.largest == 128
    trainer = trainer_of(loss=TooLarge(4), metrics=[])
    with raises(BadConfig, where="tune_batch_size", got=32):
        tune_batch_size(trainer, loader_of(), smallest=32)
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


@pytest.mark.parametrize(("loader", "settings"), [([1], {}), (None, {"smallest": 700}), (None, {"smallest": 0})])
def test_what_cannot_be_tried_is_refused(loader: Any, settings: dict[str, int]) -> None:
    with pytest.raises(BadConfig, match="tune_batch_size"):
        tune_batch_size(trainer_of(), loader or loader_of(), **settings)
