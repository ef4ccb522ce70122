"""No step makes the host wait, whatever its loss is made of; and what would, is seen where it is planted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpupipe.models import MLP, MultiTask, ResNet
from gpupipe.tensors.batch import Batch
from gpupipe.training import Callback, PairwiseRanking, PerTarget, Trainer, TrainState
from tests.training.host_waits import no_host_wait

STEPS = 6


class Watched(Callback):
    """All updates but the first, which allocates: the batches, the steps and what lies between."""

    def __init__(self) -> None:
        self.watch, self.watched = ExitStack(), 0

    def on_step_end(self, run: TrainState) -> None:
        if run.step == 1:
            self.watch.enter_context(no_host_wait())
        self.watched = run.step - 1
        if run.step == STEPS:
            self.watch.close()  # at an epoch's end the loss is read


def fitted(model: nn.Module, train: Any, **settings: Any) -> None:
    watched = Watched()
    trainer = Trainer(model, max_epochs=1, device="cpu", progress=False, callbacks=[watched], **settings)
    with watched.watch:
        trainer.fit(train)
    assert watched.watched == STEPS - 1


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize(
    "settings",
    [
        {"label_smoothing": 0.1},
        {"class_weight": "balanced"},
        {"activation_checkpointing": True},
        {
            "label_smoothing": 0.1,
            "class_weight": "balanced",
            "activation_checkpointing": True,
            "max_grad_norm": 1.0,
            "ema_decay": 0.9,
        },
        {"activation_checkpointing": True, "precision": "fp16-mixed"},
    ],
    ids=", ".join,
)
def test_a_step_with(task: str, settings: dict[str, Any], weighted: bool, problem: Callable[..., Any]) -> None:
    train = problem(task, 64 * STEPS, weighted=weighted)
    model = ResNet.from_schema(train.schema, blocks=2, width=8, dropout=0.1)
    fitted(model, train, **settings)


def batches(targets: int, *, weighted: bool) -> list[Batch]:
    """Of one target or several, half of them yes or no; and a kept column of groups."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for _ in range(STEPS):
        numeric = torch.randn(32, 3, generator=draw)
        target = torch.stack([numeric[:, 0], (numeric[:, 1] > 0).float(), numeric[:, 2]], 1)
        weight = torch.rand(32, generator=draw) if weighted else None
        keep = {"query": torch.arange(32) // 4}
        codes = torch.zeros(32, 0, dtype=torch.int32)
        made.append(Batch(numeric, codes, target[:, 0] if targets == 1 else target[:, :targets], weight, keep))
    return made


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("group", [None, "query"])
def test_a_step_of_pairs(group: str | None, weighted: bool) -> None:
    fitted(MLP(3, hidden=(8,)), batches(1, weighted=weighted), loss=PairwiseRanking(group))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_of_several_targets(weighted: bool) -> None:
    model = MultiTask(3, outputs=3, hidden=(8,), head=(4,))
    fitted(model, batches(3, weighted=weighted), loss=PerTarget(["mse", "bce", "huber"], [1, 2, 5]))


PLANTED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x.mean().item(), "torch.Tensor.item"),
    "tolist": (lambda x: x.tolist(), "torch.Tensor.tolist"),
    "numpy": (lambda x: x.numpy(), "torch.Tensor.numpy"),
    "asarray": (np.asarray, "torch.Tensor.__array__"),
    "dlpack": (np.from_dlpack, "torch.Tensor.__dlpack__"),
    "cpu": (lambda x: x.cpu(), "torch.Tensor.cpu"),
    "to cpu": (lambda x: x.to("cpu"), "torch.Tensor.to"),
    "to device=cpu": (lambda x: x.to(device="cpu"), "torch.Tensor.to"),
    "to elsewhere": (lambda x: x.to("meta"), "aten._to_copy"),
    "str": (str, "torch.Tensor.__repr__"),
    "repr": (repr, "torch.Tensor.__repr__"),
    "format": (lambda x: f"{x}", "torch.Tensor.__format__"),
    "format of one": (lambda x: f"{x[0]:.3f}", "torch.Tensor.__format__"),
    "bool": (lambda x: bool(x.sum() > 0), "torch.Tensor.__bool__"),
    "if": (lambda x: 1 if x.sum() > 0 else 0, "torch.Tensor.__bool__"),
    "float": (lambda x: float(x[0]), "torch.Tensor.__float__"),
    "int": (lambda x: int(x[0]), "torch.Tensor.__int__"),
    "complex": (lambda x: complex(x[0]), "torch.Tensor.__complex__"),
    "index": (lambda x: x[0].int().__index__(), "torch.Tensor.__index__"),
    "range": (lambda x: range(x[0].int()), "torch.Tensor.__index__"),
    "in": (lambda x: 1.0 in x, "aten._local_scalar_dense"),
    "slice": (lambda x: x[: x[0].abs().int()], "aten._local_scalar_dense"),
    "arange": (lambda x: torch.arange(x[0].abs()), "aten._local_scalar_dense"),
    "tensor of tensors": (lambda x: torch.tensor([x[0], x[1]]), "torch.tensor"),
    "mask": (lambda x: x[x > 0], "aten.index.Tensor"),
    "write to mask": (lambda x: x.index_put_((x > 0,), x[0]), "aten.index_put_"),
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero"),
    "where": (lambda x: torch.where(x > 0), "aten.nonzero"),
    "masked_select": (lambda x: x.masked_select(x > 0), "aten.masked_select"),
    "equal": (lambda x: torch.equal(x, x), "aten.equal"),
    "allclose": (lambda x: torch.allclose(x, x), "aten.allclose"),
    "unique": (lambda x: x.unique(), "aten._unique2"),
    "bincount": (lambda x: torch.bincount((x > 0).long()), "aten.bincount"),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, (x > 0).long()), "aten.repeat_interleave"),
    "one_hot": (lambda x: nn.functional.one_hot((x > 0).long()), "aten._local_scalar_dense"),
    "to_sparse": (lambda x: x.to_sparse(), "aten._to_sparse"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wait_is_caught_and_named(name: str) -> None:
    planted, told = PLANTED[name]

    def loss(output: Tensor, batch: Batch) -> Tensor:
        planted(output.detach().clone())
        return output.square()

    with pytest.raises(RuntimeError, match=rf"the host waits at {told}\b"):
        fitted(MLP(3, hidden=(8,)), batches(1, weighted=False), loss=loss)


@pytest.mark.parametrize("planted", [Tensor.item, Tensor.nonzero, lambda x: x[x > 0], lambda x: bool(x.any())])
def test_a_wait_in_the_backward_pass_is_caught(planted: Callable[[Tensor], Any]) -> None:
    def loss(output: Tensor, batch: Batch) -> Tensor:
        total = output.square().mean()
        total.register_hook(lambda gradient: [planted(gradient)].clear())
        return total

    with pytest.raises(RuntimeError, match="the host waits at aten"):
        fitted(MLP(3, hidden=(8,)), batches(1, weighted=False), loss=loss)


@pytest.mark.parametrize(
    "free",
    [
        lambda x: torch.repeat_interleave(x, (x > 0).long() + 1, output_size=48),
        lambda x: x.repeat_interleave(2),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.to(x.device, torch.float64),
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: x.masked_fill(x > 0, 0.0).max(),
    ],
)
def test_what_does_not_wait_is_let_through(free: Callable[[Tensor], Any]) -> None:
    with no_host_wait():
        assert free(torch.linspace(-1, 1, 32)) is not None
