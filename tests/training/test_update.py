"""One update: nothing in it makes the host wait, it follows its table, and it clips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpupipe.errors import BadConfig
from gpupipe.models import MLP
from gpupipe.tensors.batch import Batch
from gpupipe.training.device import forward_in
from gpupipe.training.losses import LOSSES
from gpupipe.training.update import Update, make_optimizer

CPU = torch.device("cpu")
WAITS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "equal",
    "is_nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
}


class NoHostSync(TorchDispatchMode):
    """Raises at operations whose result, or its shape, the host has to wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"the host waits at {func}")
        if any(isinstance(index, Tensor) and index.dtype == torch.bool for index in _indices(func, args)):
            raise RuntimeError(f"the host waits at {func} with a mask")
        if kwargs.get("device") not in (None, CPU):
            raise RuntimeError(f"the host waits at {func} to another device")
        return func(*args, **kwargs)


def _indices(func: Any, args: Any) -> Any:
    return args[1] if func.overloadpacket.__name__ in ("index", "index_put_") else ()


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
    clip: float | None = None,
    precision: str = "32-true",
) -> Update:
    lr = torch.zeros(())
    made = make_optimizer(optimizer, model.parameters(), lr, 0.01)
    return Update(forward_in(precision, model, CPU), loss, made, lr=lr, rates=torch.tensor(rates), gradient_clip=clip)


def sgd(parameters: Any, lr: Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, fused=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_an_update_never_makes_the_host_wait(weighted: bool, clip: float | None, precision: str) -> None:
    update = update_of(MLP(3, [5, 5], hidden=(8,), dropout=0.1), [0.01] * 5, clip=clip, precision=precision)
    batch = rows(weighted=weighted)
    with NoHostSync():
        for _ in range(3):
            update(batch)
    assert update.count.tolist() == [3]


@pytest.mark.parametrize("name", ["cross-entropy", "mse", "huber"])
def test_no_loss_makes_the_host_wait(name: str) -> None:
    classes = name == "cross-entropy"
    batch = rows()
    if classes:
        batch.target = batch.target.int()
    update = update_of(MLP(3, [5, 5], 2 if classes else 1, hidden=(8,)), [0.01] * 2, loss=LOSSES[name])
    with NoHostSync():
        update(batch)


@pytest.mark.parametrize(
    "planted",
    [
        lambda output: output.mean().item(),
        lambda output: bool(output.sum() > 0),
        lambda output: float(output[0]),
        lambda output: output[output > 0],
        lambda output: output.nonzero(),
        lambda output: torch.equal(output, output),
        lambda output: output.to("meta"),
    ],
)
def test_a_planted_wait_is_caught(planted: Callable[[Tensor], Any]) -> None:
    def loss(output: Tensor, batch: Batch) -> Tensor:
        planted(output.detach())
        return LOSSES["bce"](output, batch)

    update = update_of(MLP(3, [5, 5], hidden=(8,)), [0.01] * 2, loss=loss)
    update(rows())
    with pytest.raises(RuntimeError, match="the host waits"), NoHostSync():
        update(rows())


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
    optimizer = torch.optim.AdamW(theirs.parameters(), weight_decay=0.01, fused=False, foreach=False)
    for rate in (0.01, 0.03, 0.02):
        update(batch)
        optimizer.param_groups[0]["lr"] = rate
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
    update_of(model, [1.0], optimizer=sgd, loss=lambda output, batch: output.sum(), clip=clip)(
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


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adam", "no such choice, got 'adam'"),
        (lambda parameters, lr: torch.optim.SGD(parameters, lr=0.1), "a learning rate of its own"),
    ],
)
def test_an_optimiser_that_would_not_follow_the_schedule_is_refused(optimizer: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        update_of(MLP(3, [5, 5]), [0.1], optimizer=optimizer)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(BadConfig, match="nothing to train"):
        update_of(nn.ReLU(), [0.1])
