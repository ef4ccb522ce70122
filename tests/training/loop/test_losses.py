"""Each loss against its formula and scikit-learn, weighted; the mean over batches against the mean over all rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pytest
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData, SchemaMismatch
from gpupipe.models import MLP
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors.batch import Batch
from gpupipe.training import PerTarget, Trainer
from gpupipe.training.loop.losses import LOSSES, LossMean, check_loss_task, choose_loss, compute_mean_loss
from tests.raising import raises

CPU = torch.device("cpu")


def batch_of(target: Tensor | None, weight: Tensor | None = None, rows: int = 0) -> Batch:
    rows = rows if target is None else len(target)
    return Batch(torch.zeros(rows, 0), torch.zeros(rows, 0, dtype=torch.int32), target, weight)


def bce(output: Tensor, target: Tensor) -> Tensor:
    p = 1 / (1 + torch.exp(-output))
    return -(target * torch.log(p) + (1 - target) * torch.log(1 - p))


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return -torch.log((output.exp() / output.exp().sum(1, keepdim=True))[torch.arange(len(target)), target.long()])


def huber(output: Tensor, target: Tensor) -> Tensor:
    error = (output - target).abs()
    return torch.where(error <= 1, error**2 / 2, error - 0.5)


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bce": bce,
    "cross-entropy": cross_entropy,
    "mse": lambda output, target: (output - target) ** 2,
    "huber": huber,
}


def example(name: str, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    if name == "cross-entropy":
        return torch.randn(rows, 4, generator=draw).to(dtype), torch.randint(0, 4, (rows,), generator=draw).int()
    target = torch.randn(rows, generator=draw)
    return torch.randn(rows, generator=draw).to(dtype) * 2, (target > 0).float() if name == "bce" else target


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", list(LOSSES))
def test_each_loss_is_its_formula_row_by_row(name: str, dtype: torch.dtype) -> None:
    output, target = example(name, 50, dtype)
    values = LOSSES[name](output, batch_of(target))
    assert values.shape == (50,)
    assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(values.double(), FORMULAS[name](output.double(), target.double()), rtol=1e-5, atol=1e-6)


def test_far_logits_stay_finite() -> None:
    output, target = torch.tensor([200.0, -200.0]), torch.tensor([0.0, 1.0])
    assert LOSSES["bce"](output, batch_of(target)).tolist() == [200.0, 200.0]


def test_the_weighted_mean_is_scikit_learns() -> None:
    output, target = example("mse", 40, torch.float32)
    weight = torch.rand(40)
    mean, total = compute_mean_loss(LOSSES["mse"](output, batch_of(target)), batch_of(target, weight))
    assert mean.item() == pytest.approx(sk.mean_squared_error(target, output, sample_weight=weight), rel=1e-6)
    assert float(total) == pytest.approx(float(weight.sum()))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans())
def test_batches_of_any_size_mean_the_same_as_all_rows_at_once(sizes: list[int], weighted: bool) -> None:
    values = torch.randn(sum(sizes)) ** 2
    weight = torch.rand(sum(sizes)) + 0.01 if weighted else None
    losses = LossMean(CPU)
    weights: Any = weight.split(sizes) if weight is not None else [None] * len(sizes)
    for part, w in zip(values.split(sizes), weights, strict=True):
        losses.add(*compute_mean_loss(part, batch_of(part, w)))
    whole, _ = compute_mean_loss(values, batch_of(values, weight))
    assert losses.read() == pytest.approx(whole.item(), rel=1e-5)


def test_a_batch_without_weight_counts_nothing_and_moves_nothing() -> None:
    output = torch.ones(3, requires_grad=True)
    batch = batch_of(torch.zeros(3), torch.zeros(3))
    mean, total = compute_mean_loss(LOSSES["mse"](output, batch), batch)
    mean.backward()
    assert (mean.item(), float(total), output.grad.tolist()) == (0.0, 0.0, [0.0] * 3)
    losses = LossMean(CPU)
    losses.add(mean.detach(), total)
    assert losses.read() is None


def test_rows_of_weight_zero_do_not_count() -> None:
    output, target = example("bce", 8, torch.float32)
    weight = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0])
    values = LOSSES["bce"](output, batch_of(target))
    padded, _ = compute_mean_loss(values, batch_of(target, weight))
    assert padded.item() == pytest.approx(values[:4].mean().item())


def test_a_scalar_is_taken_as_the_mean() -> None:
    batch = batch_of(torch.zeros(5), torch.full((5,), 2.0))
    mean, total = compute_mean_loss(torch.tensor(3.0), batch)
    assert (mean.item(), float(total)) == (3.0, 10.0)
    assert compute_mean_loss(torch.tensor(3.0), (torch.zeros(5, 2),))[1] == 5


@pytest.mark.parametrize("values", [torch.zeros(5, 1), torch.zeros(4)])
def test_a_loss_of_another_shape_is_refused(values: Tensor) -> None:
    with raises(SchemaMismatch, where="loss", remedy="loss=lambda output, batch: per_row(output, batch).mean(1)"):
        compute_mean_loss(values, batch_of(torch.zeros(5), torch.ones(5)))


def test_sums_keep_their_digits() -> None:
    losses = LossMean(CPU)
    losses.add(torch.tensor(1.0), 2**26)
    for _ in range(100):
        losses.add(torch.tensor(2.0), 1)
    assert losses.read() == (2**26 + 200) / (2**26 + 100)
    losses.reset()
    assert losses.read() is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_mean_that_is_not_finite_is_an_error_that_says_where(value: float) -> None:
    losses = LossMean(CPU)
    losses.add(torch.tensor(value), 1)
    with pytest.raises(BadData, match=f"epoch 2, updates 5 to 9: the loss is not finite, got {value}") as caught:
        losses.read("epoch 2, updates 5 to 9")
    assert "lr=" in caught.value.remedy


@pytest.mark.parametrize("together", [1, 64], ids=["each by itself", "many at once"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_batches_before_the_first_that_is_not_finite_are_counted(value: float, together: int) -> None:
    losses = LossMean(CPU)
    losses._many = together  # as on a GPU, and on a CPU
    for number in (1.0, 2.0, value, 3.0):
        losses.add(torch.tensor(number), 1)
    assert losses.sum_over_ranks()[2] == 2


@pytest.mark.parametrize(
    ("classes", "loss"), [((False, True), "bce"), (("a", "b"), "bce"), ((1, 2, 3), "cross-entropy"), (None, "mse")]
)
def test_auto_goes_by_the_schema(classes: tuple[Any, ...] | None, loss: str) -> None:
    schema = Schema([Field("y", "float32", role=Role.TARGET, classes=classes)])
    assert choose_loss("auto", schema) == loss


def test_auto_without_a_schema_and_unknown_names_are_errors() -> None:
    with raises(BadConfig, where="Trainer(loss='auto')", got="a loader without a schema"):
        choose_loss("auto", None)
    with raises(BadConfig, where="Trainer(loss='auto')", got=["x"]):
        choose_loss("auto", Schema([Field("x", "float32", role=Role.FEATURE)]))
    with raises(BadConfig, where="Trainer(loss=)", got="crossentropy") as caught:
        choose_loss("crossentropy", None)
    assert caught.value.remedy == "loss='cross-entropy'"


TORCHS = {
    "bce": (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits),
    "mse": (nn.MSELoss, F.mse_loss),
    "huber": (nn.HuberLoss, F.huber_loss),
    "cross-entropy": (nn.CrossEntropyLoss, F.cross_entropy),
}


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_own_losses_are_those_by_name(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    classes = name == "cross-entropy"
    output = torch.randn((8, 3) if classes else (8,), generator=generator)
    target = torch.randint(2, (8,), generator=generator, dtype=torch.int32 if classes else torch.float32)
    weighted, plain = batch_of(target, torch.rand(8, generator=generator)), batch_of(target)
    module, function = TORCHS[name]
    for batch, options in ((plain, {}), (plain, {"reduction": "none"}), (weighted, {"reduction": "none"})):
        expected = compute_mean_loss(LOSSES[name](output, batch), batch)[0]
        for own in (module(**options), partial(function, **options)):
            loss: Any = choose_loss(own, None)
            torch.testing.assert_close(compute_mean_loss(loss(output, batch), batch)[0], expected)


def test_a_function_of_output_and_target_is_told_by_its_second_parameter() -> None:
    batch = batch_of(torch.tensor([1.0, 3.0]))
    of_target: Any = choose_loss(lambda output, target: (output - target).abs(), None)
    of_batch: Any = choose_loss(lambda output, batch: (output - batch.target).abs(), None)
    assert of_target(torch.zeros(2), batch).tolist() == of_batch(torch.zeros(2), batch).tolist() == [1.0, 3.0]


def test_several_targets_under_a_loss_of_torch_count_alike() -> None:
    target = torch.tensor([[1.0, 3.0], [0.0, 2.0]])
    loss: Any = choose_loss(nn.MSELoss(reduction="none"), None)
    assert (
        loss(torch.zeros(2, 2), batch_of(target)).tolist()
        == LOSSES["mse"](torch.zeros(2, 2), batch_of(target)).tolist()
    )


def test_a_loss_of_torch_does_not_broadcast() -> None:
    for own, output in ((nn.MSELoss(), torch.zeros(4, 1, 1)), (nn.CrossEntropyLoss(), torch.zeros(4))):
        loss: Any = choose_loss(own, None)
        with pytest.raises(SchemaMismatch, match="the model's output does not fit the target"):
            loss(output, batch_of(torch.zeros(4)))


class Net(nn.Module):
    """A network of a user's, which says nothing of its outputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, outputs)

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.linear(batch.numeric)


def test_other_outputs_than_the_target_has_classes_are_refused() -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "c"]})
    loader = gp.Pipeline([], gp.Features(["x"], target="y")).fit(rows).loader(rows)
    for outputs, options in ((2, {}), (4, {}), (2, {"label_smoothing": 0.1}), (2, {"loss": nn.CrossEntropyLoss()})):
        trainer = Trainer(Net(outputs), max_epochs=1, **options)
        for run in (trainer.fit, trainer.evaluate):
            with pytest.raises(
                SchemaMismatch, match="another number of outputs than the target has classes"
            ) as refused:
                run(loader)
            assert (refused.value.got, refused.value.expected) == (outputs, "3, one a class")


def test_several_outputs_of_one_target_are_classes() -> None:
    for output, remedy in ((torch.zeros(4, 3), "loss='cross-entropy'"), (torch.zeros(4, 1), "MLP.from_schema(")):
        with pytest.raises(SchemaMismatch) as refused:
            LOSSES["bce"](output, batch_of(torch.zeros(4)))
        assert refused.value.remedy.startswith(remedy)


def test_a_loss_of_torch_trains() -> None:
    x = torch.linspace(-1, 1, 64)[:, None]
    loader = [Batch(x, torch.zeros(64, 0, dtype=torch.int32), (x[:, 0] > 0).float())]
    ends = []
    for loss in ("bce", nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits):
        model = MLP(numeric=1, hidden=8, seed=1)
        ends.append(Trainer(model, loss=loss, max_epochs=20, lr=0.05, device="cpu").fit(loader).rows[-1]["train_loss"])
    assert ends[1:] == pytest.approx([ends[0]] * 2, rel=1e-6) and ends[0] < 0.3


def schema_of(*classes: tuple[Any, ...] | None) -> Schema:
    fields = [Field("x", "float32", role=Role.FEATURE)]
    for place, found in enumerate(classes):
        dtype = "int32" if found and len(found) > 2 else "float32"
        fields.append(Field(f"y{place}", dtype, role=Role.TARGET, classes=found))
    return Schema(fields)


@pytest.mark.parametrize("classes", [[(False, True)], [("a", "b", "c")], [(0, 1), (0, 1)]])
@pytest.mark.parametrize("loss", ["mse", "huber", nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), F.mse_loss])
def test_a_regressions_loss_is_none_of_classes(classes: list[Any], loss: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        check_loss_task(choose_loss(loss, None), schema_of(*classes))
    assert caught.value.where == "Trainer(loss=)" and "loss='auto'" in caught.value.remedy


def test_losses_of_classes_and_of_ones_own_are_free_whatever_their_names() -> None:
    def own(output: Tensor, batch: Any) -> Tensor:
        return (output - batch.target) ** 2

    for loss in ("bce", nn.BCEWithLogitsLoss(), own, huber, PerTarget(["mse", "bce"])):
        check_loss_task(choose_loss(loss, None), schema_of((False, True)))
    for loss in ("mse", "huber", nn.MSELoss()):
        check_loss_task(choose_loss(loss, None), schema_of(None))


def test_a_trainer_refuses_it_before_the_first_batch() -> None:
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
    made = gp.Pipeline([], gp.Features(["x"], target="y")).fit(frame)
    model = MLP.from_schema(made.schema, seed=0)
    for loss in ("mse", "huber"):
        with pytest.raises(BadConfig) as caught:
            Trainer(model, loss=loss, max_epochs=1, progress=False).fit(made.loader(frame))
        assert caught.value.got == loss
