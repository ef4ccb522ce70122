"""A loss that is not finite: where it began and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gpupipe.errors import BadData
from gpupipe.models import MLP
from gpupipe.tensors import Loader
from gpupipe.training import Callback, Trainer, TrainState
from tests.training import resumed

Problem = Callable[..., Any]


def test_the_row_and_the_column_are_named() -> None:
    block = resumed.block(640)
    block.numeric[417, 1] = math.inf
    loader = Loader(block, batch_size=32, shuffle="rows", seed=3)
    at = [number for number, batch in enumerate(loader, start=1) if not batch.numeric.isfinite().all()]
    text = rf"epoch 1, update {at[0]}: the loss is not finite: its batch has values in column 'x1' .*\(rows 417\)"
    with pytest.raises(BadData, match=text):
        resumed.trainer(None, resumed.model(), log_every=100, early_stopping=None).fit(loader)


def test_weights_are_named_where_the_batch_is_well(problem: Problem) -> None:
    train = problem("regression", 640)
    model = MLP.from_schema(train.schema, hidden=(8,), seed=1)

    class Spoil(Callback):
        def on_step_end(self, run: TrainState) -> None:
            if run.step == 7:
                with torch.no_grad():
                    next(run.model.parameters()).fill_(math.nan)

    text = r"update 8: the loss is not finite: its features and target are finite, the weights of '"
    with pytest.raises(BadData, match=text):
        Trainer(model, max_epochs=1, device="cpu", callbacks=[Spoil()]).fit(train)


def test_an_update_of_several_batches_is_named_and_the_batch(problem: Problem) -> None:
    train = problem("regression", 640)
    train.shuffle = False
    train.table.numeric[400, 0] = math.inf  # in the seventh batch
    model = MLP.from_schema(train.schema, hidden=(8,), seed=1)
    with pytest.raises(BadData, match=r"epoch 1, update 2, batch 7: the loss is not finite: .*column 'x0'.*rows 16\)"):
        Trainer(model, max_epochs=1, device="cpu", accumulate=4).fit(train)


def test_batches_of_a_loader_that_wraps_another_are_looked_into_as_they_are(problem: Problem) -> None:
    class Spoiling:
        def __init__(self, loader: Any) -> None:
            self.loader, self.schema = loader, loader.schema

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(self.loader):
                if number == 3:
                    batch.numeric[5, 1] = math.inf
                yield batch

    train = Spoiling(problem("regression", 640))
    model = MLP.from_schema(train.schema, hidden=(8,), seed=1)
    with pytest.raises(BadData, match=r"update 4: the loss is not finite: .*column 'x1'.*rows 5\)"):
        Trainer(model, max_epochs=1, device="cpu").fit(train)
