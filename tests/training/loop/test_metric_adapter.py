"""Metrics of other libraries: torchmetrics' own, any object of three methods, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.tensors.batch import Batch
from gpupipe.training import Trainer
from gpupipe.training.loop.metric_adapter import PredictionMetric
from gpupipe.training.loop.metrics import choose_metrics
from tests.raising import raises
from tests.training.loop.test_trainer import model_for


class Mean:
    """The mean of predictions, and of targets."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.seen.append((preds, target))

    def compute(self) -> Tensor:
        return torch.cat([preds for preds, _ in self.seen]).mean()


def batch_of(target: Tensor, weight: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(target), 0), torch.zeros(len(target), 0, dtype=torch.int32), target, weight)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_torchmetrics_are_taken(task: str, problem: Callable[..., Any]) -> None:
    theirs = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed here: run `make setup`")
    metric = {
        "binary": lambda: theirs.MatthewsCorrCoef(task="binary"),
        "multiclass": lambda: theirs.CohenKappa(task="multiclass", num_classes=3),
        "regression": theirs.MeanAbsolutePercentageError,
    }[task]()
    ours = {"binary": "mcc", "multiclass": "kappa", "regression": "mape"}[task]
    train, valid = problem(task, 200), problem(task, 130, seed=9)
    trainer = Trainer(model_for(train), max_epochs=2, metrics=[metric, ours], device="cpu", progress=False)
    last = trainer.fit(train, valid).rows[-1]
    assert last[f"valid_{type(metric).__name__}"] == pytest.approx(last[f"valid_{ours}"], rel=1e-4)
    report = trainer.evaluate(valid)
    assert report[type(metric).__name__] == last[f"valid_{type(metric).__name__}"]


def test_predictions_have_the_form_of_the_task() -> None:
    output, target = torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0])
    for task, preds, truth in (
        ("binary", output.sigmoid(), torch.tensor([0, 1])),
        ("regression", output, target),
        (None, output, target),
    ):
        metric = PredictionMetric(Mean(), task)
        metric.update(output, batch_of(target))
        assert torch.equal(metric.metric.seen[0][0], preds) and torch.equal(metric.metric.seen[0][1], truth)
        assert metric.metric.seen[0][1].dtype == truth.dtype
    logits, index = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([2], dtype=torch.int32)
    metric = PredictionMetric(Mean(), "multiclass")
    metric.update(logits, batch_of(index))
    assert torch.equal(metric.metric.seen[0][0], logits.softmax(1)) and metric.metric.seen[0][1].dtype == torch.int64


def test_an_object_of_three_methods_is_a_metric_named_after_its_class(problem: Callable[..., Any]) -> None:
    own, rows = Mean(), problem("binary", 100)
    own.seen.append((torch.ones(1), torch.ones(1)))
    (metric,) = choose_metrics([own], "bce", "binary")
    assert (metric.name, metric.higher_is_better, metric.compute(), own.seen) == ("Mean", True, None, [])
    trainer = Trainer(model_for(rows), max_epochs=1, metrics=[Mean()], device="cpu", progress=False)
    found = trainer.evaluate(rows)["Mean"]
    assert found == pytest.approx(float(trainer.predict(rows).sigmoid().mean()))


def test_less_may_be_better() -> None:
    own: Any = Mean()
    own.higher_is_better = False
    assert not choose_metrics([own], "mse")[0].higher_is_better


def test_rows_with_weights_are_refused() -> None:
    metric = PredictionMetric(Mean(), "binary")
    with raises(BadConfig, where="metric Mean") as caught:
        metric.update(torch.zeros(2), batch_of(torch.zeros(2), torch.ones(2)))
    assert "weights" in caught.value.problem


def test_an_object_without_update_is_refused() -> None:
    class Partial:
        compute = reset = None

    with raises(BadConfig, where="Trainer(metrics=)", got=Partial) as caught:
        choose_metrics([Partial()], "bce")
    assert "`update`" in caught.value.problem


def test_a_named_object_says_which_is_better() -> None:
    class Named(Mean):
        name = "mine"

    with raises(BadConfig, where="Trainer(metrics=)") as caught:
        choose_metrics([Named()], "bce")
    assert "`higher_is_better`" in caught.value.problem


def test_several_numbers_are_no_metric() -> None:
    class Each(Mean):
        def compute(self) -> Tensor:
            return torch.zeros(3)

    metric = PredictionMetric(Each(), "binary")
    metric.update(torch.zeros(2), batch_of(torch.zeros(2)))
    with raises(SchemaMismatch, where="metric Each", got="a tensor of shape (3,)"):
        metric.compute()


def test_one_metric_and_a_collection_are_taken() -> None:
    assert [metric.name for metric in choose_metrics(Mean(), "bce", "binary")] == ["Mean"]
    theirs = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed here: run `make setup`")
    collection = theirs.MetricCollection([theirs.AUROC(task="binary"), theirs.Accuracy(task="binary")])
    for given in (collection, [collection]):
        names = [metric.name for metric in choose_metrics([given, "f1"], "bce", "binary")]
        assert sorted(names) == ["BinaryAUROC", "BinaryAccuracy", "f1"]


def test_sample_of_an_oracle_keeps_its_meaning() -> None:
    theirs = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed here: run `make setup`")
    output, target = torch.randn(40, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3 == 0
    metric = PredictionMetric(theirs.AUROC(task="binary"), "binary")
    for part, truth in zip(output.split(15), target.float().split(15), strict=True):
        metric.update(part, batch_of(truth))
    assert metric.compute() == pytest.approx(sk.roc_auc_score(target, output))
