"""One update: nothing in it makes the host wait, it follows its table, and it clips."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.models import MLP
from gpupipe.tensors.batch import Batch
from gpupipe.training.loop.device import make_forward
from gpupipe.training.loop.losses import LOSSES
from gpupipe.training.loop.metrics import METRICS
from gpupipe.training.loop.run_start import make_objective
from gpupipe.training.loop.train_step import Update
from gpupipe.training.optim.optimizers import (
    EMA,
    LossScale,
    make_optimizer,
    make_parameter_groups,
    use_sparse_gradients,
)
from tests.raising import raises

CPU = torch.device("cpu")


def rows(count: int = 32, *, weighted: bool = False) -> Batch:
    draw = torch.Generator().manual_seed(1)
    numeric = torch.randn(count, 3, generator=draw)
    codes = torch.randint(0, 5, (count, 2), generator=draw, dtype=torch.int32)
    weight = torch.rand(count, generator=draw) if weighted else None
    return Batch(numeric, codes, (numeric[:, 0] > 0).float(), weight)


def update_of(
    model: nn.Module,
    rates: list[float],
    *,
    optimizer: Any = "adamw",
    loss: Any = LOSSES["bce"],
    precision: str = "32-true",
    compiled: str | None = None,
    decay: float = 0.01,
    average: float | None = None,
    **arguments: Any,
) -> Update:
    lr = torch.zeros(())
    groups = make_parameter_groups(model, lr, highest=1.0, weight_decay=decay, tables=optimizer == "rowwise")
    made = make_optimizer(optimizer, groups, lr)
    objective: Any = make_objective(make_forward(precision, model, CPU), loss)
    if compiled is not None:
        objective = torch.compile(objective, fullgraph=True, backend=compiled)
    if precision == "fp16-mixed":
        arguments["scale"] = LossScale(made, CPU, interval=3)
    if average is not None:
        arguments["average"] = EMA(model, average)
    return Update(objective, made, rates=torch.tensor(rates), **arguments)


def sgd(parameters: Any, lr: Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, fused=True)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"max_grad_norm": 1.0},
    "accumulate": {"accumulate": 3, "max_grad_norm": 1.0},
    "average": {"average": 0.9},
    "sgd": {"optimizer": "sgd"},
    "lamb": {"optimizer": "lamb"},
    "rowwise": {"optimizer": "rowwise", "max_grad_norm": 1.0, "accumulate": 2},
    "of torch": {"optimizer": lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr, fused=True)},
    "bf16": {"precision": "bf16-mixed"},
    "fp16": {"precision": "fp16-mixed", "max_grad_norm": 1.0},
    "fp16 lamb": {"precision": "fp16-mixed", "optimizer": "lamb"},
    "fp16 rowwise": {"precision": "fp16-mixed", "optimizer": "rowwise"},
}


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_never_makes_the_host_wait(
    variant: str, weighted: bool, no_host_wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.training.optim.optimizers.TABLE", 1)
    model = MLP(3, [5, 5], hidden=(8,), dropout=0.1)
    update = update_of(model, [0.01] * 5, **VARIANTS[variant])
    batch = rows(weighted=weighted)
    with no_host_wait(), use_sparse_gradients(model) if "rowwise" in variant else nullcontext():
        for _ in range(3):
            update.learn(batch)
            update.learn(batch)
            update.step()
        update.losses.reset()
    assert update.count.tolist() == [3]


@pytest.mark.parametrize("name", METRICS)
def test_no_metric_makes_the_host_wait(name: str, no_host_wait: Any) -> None:
    metric, batch = METRICS[name](), rows(weighted=True)
    with no_host_wait():
        for _ in range(2):
            metric.update(torch.randn(32), batch)
    assert metric.compute() is not None


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_forward_and_loss_are_one_graph(compiler: str) -> None:
    models = [MLP(3, [5, 5], hidden=(8,), seed=3) for _ in range(2)]
    for model, compiled in zip(models, (None, compiler), strict=True):
        update = update_of(model, [0.01] * 2, compiled=compiled)
        update(rows(weighted=True))
        update(rows(weighted=True))
    for mine, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", ["cross-entropy", "mse", "huber"])
def test_no_loss_makes_the_host_wait(name: str, no_host_wait: Any) -> None:
    classes = name == "cross-entropy"
    batch = rows()
    if classes:
        batch.target = batch.target.int()
    update = update_of(MLP(3, [5, 5], 2 if classes else 1, hidden=(8,)), [0.01] * 2, loss=LOSSES[name])
    with no_host_wait():
        update(batch)


def test_each_update_takes_its_rate_from_the_table() -> None:
    model, rates = nn.Linear(2, 1, bias=False), [0.5, 0.0, 0.125]
    update = update_of(model, rates, optimizer=sgd, loss=lambda output, batch: output.sum())
    x = torch.tensor([[1.0, 2.0]])
    for rate in rates:
        before = model.weight.detach().clone()
        update(x)
        torch.testing.assert_close(model.weight.detach(), before - rate * x)


def test_two_tables_give_two_models_and_no_number_on_the_host_changes() -> None:
    results = []
    for rates in ([0.01, 0.01], [0.01, 0.02]):
        model = MLP(3, [5, 5], hidden=(8,), seed=3)
        update = update_of(model, rates)
        on_host = [
            {k: v for k, v in g.items() if not isinstance(v, Tensor | list)} for g in update.optimizer.param_groups
        ]
        tensors = [id(group["lr"]) for group in update.optimizer.param_groups]
        update(rows())
        update(rows())
        after = [
            {k: v for k, v in g.items() if not isinstance(v, Tensor | list)} for g in update.optimizer.param_groups
        ]
        assert after == on_host
        assert [id(group["lr"]) for group in update.optimizer.param_groups] == tensors
        results.append(model.layers[0].weight.detach())
    assert not torch.equal(*results)


def test_it_is_adamw() -> None:
    ours, theirs = MLP(3, [5, 5], hidden=(8,), seed=3), MLP(3, [5, 5], hidden=(8,), seed=3)
    update, batch = update_of(ours, [0.01, 0.03, 0.02]), rows(weighted=True)
    weights = [theirs.layers[0].weight, theirs.layers[2].weight]
    others = [theirs.layers[0].bias, theirs.layers[2].bias, theirs.embedding.table]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, fused=False, foreach=False)
    for rate in (0.01, 0.03, 0.02):
        update(batch)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        values = nn.functional.binary_cross_entropy_with_logits(theirs(batch), batch.target, reduction="none")
        (values @ batch.weight / batch.weight.sum()).backward()
        optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(("clip", "length"), [(None, 5.0), (1.0, 1.0), (10.0, 5.0)])
def test_gradients_are_clipped_to_a_norm(clip: float | None, length: float) -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    update_of(model, [1.0], optimizer=sgd, loss=lambda output, batch: output.sum(), max_grad_norm=clip)(
        torch.tensor([[3.0, 4.0]])
    )
    assert float((model.weight.detach() - before).norm()) == pytest.approx(length, rel=1e-5)


def test_gradients_do_not_add_up() -> None:
    model = nn.Linear(1, 1, bias=False)
    update = update_of(model, [0.0] * 3, optimizer=sgd, loss=lambda output, batch: output.sum())
    for _ in range(3):
        update(torch.ones(1, 1))
    assert model.weight.grad.tolist() == [[1.0]]


def test_frozen_parameters_stay() -> None:
    model = MLP(3, [5, 5], hidden=(8,))
    model.layers[0].requires_grad_(False)
    before = model.layers[0].weight.clone()
    update_of(model, [0.1])(rows())
    assert torch.equal(model.layers[0].weight, before)


def parts(table: Batch, size: int) -> list[Batch]:
    pieces = range(0, len(table), size)
    return [Batch(*(t[i : i + size] for t in (table.numeric, table.codes, table.target, table.weight))) for i in pieces]


def trained(batches: list[Batch], steps: int = 3, **arguments: Any) -> list[Tensor]:
    model = MLP(3, [5, 5], hidden=(8,), seed=3).double()
    arguments = {"optimizer": "adamw", "max_grad_norm": 0.5, **arguments}
    update = update_of(model, [0.01] * steps, accumulate=len(batches), **arguments)
    for _ in range(steps):
        for batch in batches:
            update.learn(Batch(batch.numeric.double(), batch.codes, batch.target, batch.weight))
        update.step()
    return [parameter.detach() for parameter in model.parameters()] + [update.losses.sums[:1] / update.losses.sums[1:2]]


@pytest.mark.parametrize("loss", [LOSSES["bce"], lambda output, batch: LOSSES["bce"](output, batch).mean()])
@pytest.mark.parametrize("size", [32, 50])
def test_four_small_batches_are_one_large_one(size: int, loss: Any) -> None:
    table = rows(128, weighted=loss is LOSSES["bce"])
    if table.weight is None:
        table.weight = torch.ones(128)
    for mine, other in zip(trained(parts(table, size), loss=loss), trained([table], loss=loss), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_last_update_of_fewer_batches_is_their_mean() -> None:
    table = rows(64, weighted=True)
    small, whole = parts(table, 32), [table]
    models = [MLP(3, [5, 5], hidden=(8,), seed=3) for _ in range(2)]
    for model, batches, accumulate in zip(models, (small, whole), (4, 1), strict=True):
        update = update_of(model, [0.01] * 2, accumulate=accumulate)
        for batch in batches:
            update.learn(batch)
        update.step()
    for mine, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-4)


class Fails:
    """A loss that runs out of memory in forward or backward pass where a batch has more rows than that."""

    def __init__(self, most: int, *, backward: bool) -> None:
        self.most, self.backward = most, backward

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        if len(batch) > self.most and self.backward:
            output.register_hook(self.fail)
        elif len(batch) > self.most:
            self.fail(output)
        return LOSSES["bce"](output, batch)

    def fail(self, gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("injected")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_out_of_memory_halves_the_batch_with_the_same_result_and_says_so_once(
    accumulate: int, backward: bool, caplog: pytest.LogCaptureFixture
) -> None:
    batches = parts(rows(96, weighted=True), 96 // accumulate)
    found = trained(batches, loss=Fails(24, backward=backward))
    for mine, other in zip(found, trained(batches), strict=True):
        torch.testing.assert_close(mine, other)
    said = [record.message for record in caplog.records if "out of memory" in record.message]
    assert len(said) == (2 if accumulate == 1 else 1), said  # 96 -> 48 -> 24, or 48 -> 24
    assert f"in {4 // accumulate} parts" in said[-1]


def test_a_failure_after_the_first_batch_of_an_update_spoils_nothing() -> None:
    small, large = parts(rows(96, weighted=True), 32)[0], rows(64, weighted=True)
    found = trained([small, large], loss=Fails(32, backward=True))
    for mine, other in zip(found, trained([small, large]), strict=True):
        torch.testing.assert_close(mine, other)


def test_one_row_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="injected"):
        trained([rows(8, weighted=True)], loss=Fails(0, backward=False))


@pytest.mark.parametrize("decay", [0.5, 0.95])  # reached after some updates, and never
def test_the_average_follows_its_formula_and_changes_places(decay: float) -> None:
    model = MLP(3, [5, 5], hidden=(8,), seed=3)
    update = update_of(model, [0.05] * 30, average=decay)
    mean = [parameter.detach().clone() for parameter in model.parameters()]
    for t in range(30):
        update(rows())
        d = min(decay, (1 + t) / (10 + t))
        mean = [d * before + (1 - d) * now.detach() for before, now in zip(mean, model.parameters(), strict=True)]
    own = [parameter.detach().clone() for parameter in model.parameters()]
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    with update.use_ema():
        for mine, other in zip(model.parameters(), mean, strict=True):
            torch.testing.assert_close(mine, other)
    assert pointers == [parameter.data_ptr() for parameter in model.parameters()]
    assert all(map(torch.equal, model.parameters(), own))


def test_a_weight_of_two_names_is_averaged_once() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    average = EMA(model, 0.5)
    start = first.weight.detach().clone()
    with torch.no_grad():
        first.weight += 1
    average.update(torch.tensor([100]))
    average.swap()
    torch.testing.assert_close(second.weight, start + 0.5)
    average.swap()
    assert torch.equal(first.weight, start + 1)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "rowwise"])
def test_an_overflow_is_left_out_and_the_scale_recovers(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.training.optim.optimizers.TABLE", 1)
    overflow = [True]

    def loss(output: Tensor, batch: Batch) -> Tensor:
        return LOSSES["bce"](output, batch) * (float("inf") if overflow[0] else 1.0)

    model = MLP(3, [5, 5], hidden=(8,), seed=3)
    update = update_of(model, [0.01] * 9, precision="fp16-mixed", loss=loss, optimizer=optimizer, max_grad_norm=1.0)
    with use_sparse_gradients(model) if optimizer == "rowwise" else nullcontext():
        overflow[0] = False
        update(rows())
        before = {name: value.clone() for name, value in (model.state_dict() | update.state_dict()).items()}
        overflow[0] = True
        update(rows())
        after = model.state_dict() | update.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {"count", "scale.value", "scale.good"}
        assert update.scale is not None and float(update.scale.value) == 2**15
        overflow[0] = False
        for _ in range(3):
            update(rows())
    assert float(update.scale.value) == 2**16
    assert not torch.equal(model.layers[0].weight, before["layers.0.weight"])


def test_a_scaled_loss_trains_as_an_unscaled_one() -> None:
    models = [MLP(3, [5, 5], hidden=(8,), seed=3) for _ in range(2)]
    for model, scaled in zip(models, (False, True), strict=True):
        update = update_of(model, [0.01] * 4, max_grad_norm=0.1)
        if scaled:
            update.scale = LossScale(update.optimizer, CPU, interval=2)
        for _ in range(4):
            update(rows())
    for mine, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, other)


def test_an_optimiser_that_would_step_into_an_overflow_is_refused() -> None:
    with raises(BadConfig, where="Trainer(precision='fp16-mixed')", got="NAdam"):
        update_of(MLP(3, [5, 5]), [0.1], optimizer=torch.optim.NAdam, precision="fp16-mixed")


@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_and_loaded_it_goes_on_bit_for_bit(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.training.optim.optimizers.TABLE", 1)
    rates = [0.01, 0.02, 0.03, 0.02, 0.01]
    models = [MLP(3, [5, 5], hidden=(8,), seed=3) for _ in range(2)]
    whole, second = (update_of(model, rates, **VARIANTS[variant]) for model in models)
    batches = [rows(8 * size, weighted=True) for size in range(1, 6)]
    with ExitStack() as stack:
        for model in models if "rowwise" in variant else ():
            stack.enter_context(use_sparse_gradients(model))
        for batch in batches[:3]:
            whole(batch)
        models[1].load_state_dict(models[0].state_dict())
        second.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
        for batch in batches[3:]:
            whole(batch)
            second(batch)
    mine, other = models[0].state_dict() | whole.state_dict(), models[1].state_dict() | second.state_dict()
    assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_state_that_is_no_tensor_is_refused() -> None:
    update = update_of(MLP(3, [5, 5]), [0.1] * 2, optimizer=Odd)
    update(rows())
    with raises(BadConfig, where="Trainer(optimizer=)", got="Odd"):
        update.state_dict()


class Odd(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step()
        self.state[self.param_groups[0]["params"][0]]["steps"] = 1
