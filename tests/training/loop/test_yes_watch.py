"""A classifier that never says yes is named at the end of a fit, with the share of positives and a remedy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpupipe.tensors.batch import Batch
from gpupipe.training import EarlyStopping, Trainer
from gpupipe.training.loop.yes_watch import YesWatch


class Constant(nn.Module):
    """The same logit for each row; learning moves it little."""

    def __init__(self, logit: float, targets: int = 0) -> None:
        super().__init__()
        self.logit, self.targets = nn.Parameter(torch.tensor(logit)), targets

    def forward(self, batch: Batch) -> Tensor:
        return self.logit.expand(len(batch), self.targets) if self.targets else self.logit.expand(len(batch))


def fit(model: nn.Module, train: Any, valid: Any, **options: Any) -> None:
    settings = {"max_epochs": 1, "lr": 1e-4, "device": "cpu", "progress": False, "loss": "bce"}
    Trainer(model, **settings | options).fit(train, valid)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "never says yes" in record.getMessage()]


def test_a_model_that_never_says_yes_is_named(problem: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    train, valid = problem("binary", 100), problem("binary", 80, seed=9)
    share = 100 * float(valid.table.target.mean())
    with caplog.at_level(logging.WARNING, "gpupipe"):
        fit(Constant(-3.0), train, valid)
    (text,) = warnings_of(caplog)
    assert f"{share:.2f}%" in text and "0.0474" in text and "threshold(maximize='f1')" in text


@pytest.mark.parametrize(("logit", "task", "loss"), [(0.1, "binary", "bce"), (-3.0, "regression", "mse")])
def test_others_are_not(
    logit: float, task: str, loss: str, problem: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    fit(Constant(logit), problem(task, 100), problem(task, 80), loss=loss)
    fit(Constant(-3.0), problem("binary", 100), None)
    nobody = problem("binary", 80)
    nobody.table.target.zero_()  # where nobody is positive, no is right
    fit(Constant(-3.0), problem("binary", 100), nobody)
    assert not warnings_of(caplog)


def test_the_epoch_whose_weights_are_kept_counts(problem: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    train, valid = problem("binary", 100), problem("binary", 80)
    train.table.target.zero_()  # each epoch moves the logit down, and the first is the best on these rows
    valid.table.target.fill_(1.0)
    options = {"max_epochs": 3, "lr": 1.0, "schedule": "constant", "optimizer": "sgd"}
    fit(Constant(6.0), train, valid, early_stopping=EarlyStopping(patience=3), **options)
    assert not warnings_of(caplog)
    fit(Constant(6.0), train, valid, early_stopping=None, **options)
    assert len(warnings_of(caplog)) == 1


def test_each_of_several_targets_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    watch = YesWatch(["late", "cancelled"])
    output, target = torch.tensor([[-1.0, 2.0], [-2.0, -9.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    for weight in (None, torch.tensor([1.0, 3.0])):
        watch.reset()
        watch.update(output, Batch(torch.zeros(2, 0), torch.zeros(2, 0), target, weight))
        watch.compute()
    watch.warn(1)
    watch.warn(0)
    watch.warn(2)  # of a run before this one, whose validation is not there
    assert [text.partition(" of the")[0] for text in warnings_of(caplog)] == [
        "predict never says yes to 'late': 50.00%",
        "predict never says yes to 'late': 25.00%",
    ]


def test_rows_without_weight_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    watch = YesWatch()
    output, target, weight = torch.tensor([-1.0, 5.0]), torch.ones(2), torch.tensor([1.0, 0.0])
    watch.update(output, Batch(torch.zeros(2, 0), torch.zeros(2, 0), target, weight))
    watch.compute()
    watch.warn()
    assert "100.00%" in warnings_of(caplog)[0] and "0.269" in warnings_of(caplog)[0]


def test_nothing_makes_the_host_wait(no_host_wait: Callable[..., Any]) -> None:
    watch, rows = YesWatch(), Batch(torch.zeros(2, 0), torch.zeros(2, 0), torch.ones(2), torch.ones(2))
    with no_host_wait():
        for _ in range(3):
            watch.update(torch.zeros(2), rows)
