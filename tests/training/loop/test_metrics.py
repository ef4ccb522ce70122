"""Each metric against scikit-learn: weighted or not, in batches of any size, with ties, on the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.tensors.batch import Batch
from gpupipe.training.loop.metrics import METRICS, Metric, choose_metrics
from tests.raising import raises

Oracle = Callable[[Any, Any, Any], float]

BINARY: dict[str, Oracle] = {
    "average_precision": lambda y, p, w: sk.average_precision_score(y, p, sample_weight=w),
    "balanced_accuracy": lambda y, p, w: sk.balanced_accuracy_score(y, p >= 0.5, sample_weight=w),
    "f1": lambda y, p, w: sk.f1_score(y, p >= 0.5, sample_weight=w, zero_division=0),
    "precision": lambda y, p, w: sk.precision_score(y, p >= 0.5, sample_weight=w, zero_division=0),
    "recall": lambda y, p, w: sk.recall_score(y, p >= 0.5, sample_weight=w, zero_division=0),
    "mcc": lambda y, p, w: sk.matthews_corrcoef(y, p >= 0.5, sample_weight=w),
    "kappa": lambda y, p, w: sk.cohen_kappa_score(y, p >= 0.5, sample_weight=w),
    "auc": lambda y, p, w: sk.roc_auc_score(y, p, sample_weight=w),
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p >= 0.5, sample_weight=w),
    "log_loss": lambda y, p, w: sk.log_loss(y, p, sample_weight=w, labels=[0, 1]),
    "brier": lambda y, p, w: sk.brier_score_loss(y, p, sample_weight=w),
}
CLASSES: dict[str, Oracle] = {
    "auc": lambda y, p, w: sk.roc_auc_score(y, p, sample_weight=w, multi_class="ovr"),
    "average_precision": lambda y, p, w: sk.average_precision_score(y, p, sample_weight=w),
    "balanced_accuracy": lambda y, p, w: sk.balanced_accuracy_score(y, p.argmax(1), sample_weight=w),
    "f1": lambda y, p, w: sk.f1_score(y, p.argmax(1), sample_weight=w, average="macro", zero_division=0),
    "precision": lambda y, p, w: sk.precision_score(y, p.argmax(1), sample_weight=w, average="macro", zero_division=0),
    "recall": lambda y, p, w: sk.recall_score(y, p.argmax(1), sample_weight=w, average="macro", zero_division=0),
    "mcc": lambda y, p, w: sk.matthews_corrcoef(y, p.argmax(1), sample_weight=w),
    "kappa": lambda y, p, w: sk.cohen_kappa_score(y, p.argmax(1), sample_weight=w),
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p.argmax(1), sample_weight=w),
    "log_loss": lambda y, p, w: sk.log_loss(y, p, sample_weight=w, labels=[0, 1, 2]),
}
NUMBERS: dict[str, Oracle] = {
    "rmse": lambda y, p, w: sk.root_mean_squared_error(y, p, sample_weight=w),
    "mae": lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w),
    "mape": lambda y, p, w: sk.mean_absolute_percentage_error(y, p, sample_weight=w),
    "median_absolute_error": lambda y, p, w: sk.median_absolute_error(y, p, sample_weight=w),
    "r2": lambda y, p, w: sk.r2_score(y, p, sample_weight=w),
}

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def batch_of(target: Tensor, weight: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(target), 0), torch.zeros(len(target), 0, dtype=torch.int32), target, weight)


def computed(metric: Metric, output: Tensor, target: Tensor, weight: Tensor | None, parts: list[int]) -> float | None:
    weights: Any = [None] * len(parts) if weight is None else weight.split(parts)
    for piece, y, w in zip(output.split(parts), target.split(parts), weights, strict=True):
        reused = batch_of(y.clone(), None if w is None else w.clone())
        given_out = piece.clone()
        metric.update(given_out, reused)
        for tensor in (given_out, reused.target, reused.weight):  # a loader that uses its buffers again
            if tensor is not None:
                tensor.fill_(-1)
    return metric.compute()


def check(
    name: str, oracle: Oracle, output: Tensor, seen: Tensor, target: Tensor, weight: Tensor | None, parts: list[int]
) -> None:
    expected = oracle(
        target.double().numpy(), seen.double().numpy(), None if weight is None else weight.double().numpy()
    )
    assert computed(METRICS[name](), output, target, weight, parts) == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(parts=sizes, seed=st.integers(0, 10**6), weighted=st.booleans(), levels=st.sampled_from([2, 5, 10**6]))
@pytest.mark.parametrize("name", list(BINARY))
def test_binary_metrics_are_scikit_learns(name: str, parts: list[int], seed: int, weighted: bool, levels: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = sum(parts) + 2
    logits = torch.randint(-levels, levels + 1, (rows,), generator=draw) * (4 / levels)  # few levels: many ties
    target = torch.cat([torch.tensor([0.0, 1.0]), (torch.rand(rows - 2, generator=draw) < 0.4).float()])
    weight = torch.randint(0, 4, (rows,), generator=draw).float() if weighted else None
    if weight is not None:
        weight[:2] = 1.5
    check(name, BINARY[name], logits, logits.double().sigmoid(), target, weight, [2, *parts])


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(parts=sizes, seed=st.integers(0, 10**6), weighted=st.booleans())
@pytest.mark.parametrize("name", list(CLASSES))
def test_multiclass_metrics_are_scikit_learns(name: str, parts: list[int], seed: int, weighted: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = sum(parts) + 3
    logits = torch.randn(rows, 3, generator=draw)
    target = torch.cat([torch.arange(3), torch.randint(0, 3, (rows - 3,), generator=draw)]).int()
    weight = torch.rand(rows, generator=draw) + 0.1 if weighted else None
    check(name, CLASSES[name], logits, logits.double().softmax(1), target, weight, [3, *parts])


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("name", ["f1", "precision", "recall", "balanced_accuracy"])
def test_classes_that_are_not_there_count_as_in_scikit_learn(name: str) -> None:
    logits = torch.eye(6)[torch.tensor([0, 0, 1, 2, 3])]
    target = torch.tensor([0, 1, 1, 2, 4]).int()  # 3 is only guessed, 4 only true, 5 neither
    check(name, CLASSES[name], logits, logits, target, None, [5])


def test_average_precision_of_many_rows_is_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    target = (torch.rand(200_000, generator=draw) < 0.01).float()
    score = torch.randn(200_000, generator=draw) + target
    found = computed(METRICS["average_precision"](), score, target, None, [50_000] * 4)
    assert found == pytest.approx(sk.average_precision_score(target, score), abs=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(parts=sizes, seed=st.integers(0, 10**6), weighted=st.booleans(), offset=st.sampled_from([0.0, 1e6]))
@pytest.mark.parametrize("name", list(NUMBERS))
def test_regression_metrics_are_scikit_learns(
    name: str, parts: list[int], seed: int, weighted: bool, offset: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = sum(parts) + 2
    target = torch.randn(rows, generator=draw) + offset
    output = target + torch.randn(rows, generator=draw) / 2
    weight = torch.rand(rows, generator=draw) + 0.1 if weighted else None
    check(name, NUMBERS[name], output, output, target, weight, [2, *parts])


@settings(deadline=None, max_examples=30)
@given(parts=sizes, seed=st.integers(0, 10**6), weighted=st.booleans(), k=st.integers(1, 3))
def test_top_k_accuracy_is_scikit_learns_ties_too(parts: list[int], seed: int, weighted: bool, k: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = sum(parts) + 4
    logits = torch.randint(-2, 3, (rows, 4), generator=draw).float()
    target = torch.cat([torch.arange(4), torch.randint(0, 4, (rows - 4,), generator=draw)]).int()
    weight = torch.rand(rows, generator=draw) + 0.1 if weighted else None
    (metric,) = choose_metrics([f"top_{k}_accuracy"], "cross-entropy")
    expected = sk.top_k_accuracy_score(target, logits, k=k, sample_weight=weight)
    assert computed(metric, logits, target, weight, [4, *parts]) == pytest.approx(expected, abs=1e-6)
    assert metric.name == f"top_{k}_accuracy"


def test_median_of_integer_weights_is_that_of_repeated_rows() -> None:
    output, weight = torch.tensor([3.0, 1.0, 7.0, 5.0]), torch.tensor([1.0, 1.0, 0.0, 2.0])
    found = computed(METRICS["median_absolute_error"](), output, torch.zeros(4), weight, [4])
    assert found == np.median([1.0, 3.0, 5.0, 5.0])


def test_auc_of_many_rows_is_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    target = (torch.rand(200_000, generator=draw) < 0.01).float()
    score = torch.randn(200_000, generator=draw) + target
    found = computed(METRICS["auc"](), score, target, None, [50_000] * 4)
    assert found == pytest.approx(sk.roc_auc_score(target, score), abs=1e-12)


@pytest.mark.parametrize("name", list(METRICS))
def test_nothing_seen_is_none(name: str) -> None:
    metric = METRICS[name]()
    assert metric.compute() is None
    metric.update(torch.zeros(0), batch_of(torch.zeros(0)))
    assert metric.compute() is None


@pytest.mark.parametrize("name", list(METRICS))
def test_rows_without_weight_are_none(name: str) -> None:
    metric = METRICS[name]()
    metric.update(torch.tensor([0.0, 1.0]), batch_of(torch.tensor([0.0, 1.0]), torch.zeros(2)))
    assert metric.compute() is None


@pytest.mark.parametrize(("name", "target"), [("auc", 1.0), ("auc", 0.0), ("average_precision", 0.0), ("r2", 7.3)])
def test_what_one_value_of_the_target_cannot_tell_is_none(name: str, target: float) -> None:
    metric = METRICS[name]()
    metric.update(torch.arange(3.0), batch_of(torch.full((3,), target)))
    assert metric.compute() is None


@pytest.mark.parametrize("name", list(METRICS))
def test_reset_forgets(name: str) -> None:
    metric, batch = METRICS[name](), batch_of(torch.tensor([0.0, 1.0, 1.0]))
    metric.update(torch.tensor([0.3, -2.0, 1.0]), batch)
    first = metric.compute()
    metric.reset()
    metric.update(torch.tensor([-1.0, 1.0, 2.0]), batch)
    second = metric.compute()
    metric.reset()
    metric.update(torch.tensor([0.3, -2.0, 1.0]), batch)
    assert metric.compute() == first != second


def test_half_precision_outputs_are_read_as_they_are() -> None:
    output = torch.randn(30).bfloat16()
    target = (torch.rand(30) < 0.5).float()
    target[:2] = torch.tensor([0.0, 1.0])
    found = computed(METRICS["auc"](), output, target, None, [30])
    assert found == pytest.approx(sk.roc_auc_score(target, output.float()))


@pytest.mark.parametrize("name", list(METRICS))
def test_an_output_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"metric '{name}'"):
        METRICS[name]().update(torch.zeros(4), batch_of(torch.zeros(3)))


def test_metrics_are_chosen_by_loss_by_name_or_given() -> None:
    assert [metric.name for metric in choose_metrics("auto", "huber")] == ["rmse", "mae", "r2"]
    assert choose_metrics("auto", lambda output, batch: output) == []
    own = METRICS["auc"]()
    own.update(torch.zeros(2), batch_of(torch.tensor([0.0, 1.0])))
    assert choose_metrics([own, "brier"], "bce")[0] is own
    assert own.compute() is None
    with raises(BadConfig, where="Trainer(metrics=)", got="acuracy") as caught:
        choose_metrics(["acuracy"], "bce")
    assert caught.value.remedy == "metrics='accuracy'"
    assert [metric.name for metric in choose_metrics("auc", "mse")] == ["auc"]


def test_the_better_direction_is_told() -> None:
    higher = {name for name in METRICS if METRICS[name]().higher_is_better}
    assert set(METRICS) - higher == {"log_loss", "brier", "rmse", "mae", "mape", "median_absolute_error"}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [3, 5])
def test_auc_of_classes_is_scikit_learns_mean_of_each_against_the_rest(classes: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    output = torch.randn(400, classes, generator=generator).mul(4).round().div(4)  # with ties
    target = torch.randint(classes, (400,), generator=generator, dtype=torch.int32)
    weight = torch.rand(400, generator=generator) if weighted else None
    found = computed(METRICS["auc"](), output, target, weight, [150, 250])
    expected = sk.roc_auc_score(target, output.softmax(1), multi_class="ovr", average="macro", sample_weight=weight)
    assert found == pytest.approx(expected, abs=1e-6)


def test_auc_of_a_class_without_rows_is_none() -> None:
    output = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert computed(METRICS["auc"](), output, torch.tensor([0, 1, 0, 1, 0, 1]), None, [6]) is None
