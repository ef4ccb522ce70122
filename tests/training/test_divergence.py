"""A loss that is not finite: where it began and why, or back to where all was well."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData
from gpupipe.models import MLP
from gpupipe.tensors import Loader
from gpupipe.training import Callback, Checkpoints, Plateau, Run, Trainer
from tests.training import resumed

Problem = Callable[..., Any]


class Trap(torch.autograd.Function):
    """Nothing, forward; a gradient that is infinite where the input is above 100."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return torch.where(ctx.saved_tensors[0] > 100, math.inf, gradient)


class Trapped(MLP):
    """A network with a trap in front of the layers."""

    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch) + Trap.apply(batch.numeric[:, 0] * self.scale).clamp_max(1.0) * 0.1


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
        def on_step_end(self, run: Run) -> None:
            if run.step == 7:
                with torch.no_grad():
                    next(run.model.parameters()).fill_(math.nan)

    text = r"update 8: the loss is not finite: its features and target are finite, the weights of '"
    with pytest.raises(BadData, match=text):
        Trainer(model, max_epochs=1, device="cpu", callbacks=[Spoil()]).fit(train)


def test_with_checkpoints_the_gradient_that_began_it_is_found(problem: Problem, tmp_path: Path) -> None:
    train = problem("regression", 640)
    train.shuffle = False
    train.table.numeric[400, 0] = 1000.0  # in the seventh batch; the loss is infinite only in the eighth
    model = Trapped.from_schema(train.schema, hidden=(8,), seed=1)
    model.scale = torch.nn.Parameter(torch.ones(()))
    saves = Checkpoints(tmp_path, every_steps=5)
    trainer = Trainer(model, max_epochs=1, device="cpu", checkpoints=saves, precision="32-true")
    with pytest.raises(BadData, match=r"epoch 1, update 7: the gradient of 'scale' is not finite"):
        trainer.fit(train)
    assert all(weight.isfinite().all() for weight in model.parameters())  # as it was just before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000005"]  # 10 was not finite


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


def test_rollback_goes_on_with_a_lower_rate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the first rate the weights are spoilt in the second epoch, as by an update that was too large."""

    class Fragile(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.step == 30 and run.rate_factor > 0.05:
                with torch.no_grad():
                    next(run.model.parameters()).fill_(math.inf)

    caplog.set_level(logging.INFO)
    arguments = {"schedule": "constant", "callbacks": [Fragile()], "on_divergence": "rollback"}
    history = resumed.trainer(tmp_path, resumed.model(), **arguments).fit(*resumed.loaders())
    assert [row["lr"] for row in history] == [pytest.approx(0.01), *[pytest.approx(0.0001)] * 3]
    assert caplog.text.count("back to the last checkpoint, lr x") == 2
    assert all(math.isfinite(row["train_loss"]) for row in history)


def test_a_plateaus_share_and_that_of_rollbacks_go_together_once(tmp_path: Path) -> None:
    """The figure never improves after the first epoch: the plateau halves the rate after each; once it is rolled back.

    The second fit goes on from the first one's last checkpoint, with both.
    """

    class Fragile(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.step == 50 and run.rate_factor == 0.5:
                with torch.no_grad():
                    next(run.model.parameters()).fill_(math.inf)

        def on_epoch_end(self, run: Run) -> None:
            run.history.rows[-1]["valid_loss"] = float(-10 + run.epoch)

    arguments = {"schedule": Plateau(patience=1, factor=0.5), "callbacks": [Fragile()], "on_divergence": "rollback"}
    arguments |= {"early_stopping": None}
    resumed.trainer(tmp_path, resumed.model(), max_epochs=3, **arguments).fit(*resumed.loaders())
    trainer = resumed.trainer(tmp_path, resumed.model(), max_epochs=5, **arguments)
    history = trainer.fit(*resumed.loaders(), resume="latest")
    assert [row["lr"] for row in history] == pytest.approx([0.01, 0.01, 0.0005, 0.00025, 0.000125], rel=1e-6)


def test_rollback_before_the_first_checkpoint_of_a_fit_that_goes_on_from_elsewhere(tmp_path: Path) -> None:
    """It goes back to where it began, in the middle of the second epoch, and not to the spoilt weights."""

    class Fragile(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.step == 29 and run.rate_factor == 1:
                with torch.no_grad():
                    next(run.model.parameters()).fill_(math.inf)

    saves = Checkpoints(tmp_path / "first", every_steps=27, keep=9)
    first = resumed.trainer(None, resumed.model(), checkpoints=saves).fit(*resumed.loaders())
    saves = Checkpoints(tmp_path / "second", every_epochs=None)
    arguments = {"callbacks": [Fragile()], "on_divergence": "rollback", "checkpoints": saves}
    middle = tmp_path / "first" / "step-0000000027"
    second = resumed.trainer(None, resumed.model(), **arguments).fit(*resumed.loaders(), resume=middle)
    assert [row["epoch"] for row in second] == [1, 2, 3, 4]
    shares = [now["lr"] / before["lr"] for now, before in zip(second, first, strict=True)]
    assert shares == pytest.approx([1, 0.1, 0.1, 0.1])


def test_rollback_before_the_first_checkpoint_starts_again(tmp_path: Path) -> None:
    class Fragile(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.step == 2 and run.rate_factor == 1:
                with torch.no_grad():
                    next(run.model.parameters()).fill_(math.inf)

    arguments = {"callbacks": [Fragile()], "on_divergence": "rollback"}
    assert len(resumed.trainer(tmp_path, resumed.model(), **arguments).fit(*resumed.loaders())) == 4


def test_rollback_has_an_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    block = resumed.block(640)
    block.target[3] = math.nan
    trainer = resumed.trainer(tmp_path, resumed.model(), on_divergence="rollback", early_stopping=None)
    with pytest.raises(BadData, match=r"values in target that are not finite \(rows 3\)"):
        trainer.fit(Loader(block, batch_size=32))
    assert caplog.text.count("back to the last checkpoint") == 3


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="checkpoints to go back to"):
        resumed.trainer(None, resumed.model(), on_divergence="rollback")
    with pytest.raises(BadConfig, match="no such choice, got 'ignore'"):
        resumed.trainer(tmp_path, resumed.model(), on_divergence="ignore")
