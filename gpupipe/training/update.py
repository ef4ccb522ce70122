"""One update of the weights: forward, backward, clip, optimiser. Nothing in it makes the host wait for the device.

What changes from update to update (the learning rate) is read on the device from a table at a counter that lies there
too, so a CUDA graph can capture an update and replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from gpupipe.errors import BadConfig
from gpupipe.training.choice import unknown
from gpupipe.training.losses import Loss, LossMean, mean_loss

__all__ = ["MakeOptimizer", "Update", "make_optimizer"]

# Of the parameters and the learning rate, a tensor of one value that changes in place.
MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter], Tensor], Optimizer]


def make_optimizer(
    choice: str | MakeOptimizer, parameters: Iterable[nn.Parameter], lr: Tensor, weight_decay: float
) -> Optimizer:
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101), fused, or what the caller's function makes.

    Raises:
        BadConfig: nothing to train, an unknown name, or an optimiser that would not follow the schedule.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise BadConfig(
            "Trainer",
            "the model has nothing to train",
            got="no parameter with requires_grad",
            expected="a module with trainable parameters",
            remedy="model.requires_grad_(True)",
        )
    if isinstance(choice, str):
        if choice != "adamw":
            raise unknown(
                "Trainer", "optimizer", choice, ["adamw"], "a function of the parameters and the learning rate"
            )
        return AdamW(trained, lr=lr, weight_decay=weight_decay, fused=True, capturable=lr.is_cuda)
    optimizer = choice(trained, lr)
    for group in optimizer.param_groups:
        if group["lr"] is not lr:
            raise BadConfig(
                "Trainer(optimizer=)",
                "the optimiser has a learning rate of its own",
                got=group["lr"],
                expected="the tensor it is given, which the schedule writes to",
                remedy="optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)",
            )
    return optimizer


class Update:
    """One step of the optimiser on one batch.

    Args:
        forward: the model's call, in the precision of the run.
        loss: of the output and the batch.
        optimizer: whose groups' rate is `lr`.
        lr: 0-d, overwritten before each step.
        rates: the learning rate of each update, on the same device.
        gradient_clip: the largest norm of all gradients together; longer ones are scaled down to it.

    Memory:
        Gradients as large as the weights, kept until the next update.
    """

    def __init__(
        self,
        forward: Callable[[Any], Any],
        loss: Loss,
        optimizer: Optimizer,
        *,
        lr: Tensor,
        rates: Tensor,
        gradient_clip: float | None,
    ) -> None:
        self.forward = forward
        self.loss = loss
        self.optimizer = optimizer
        self.rates = rates
        self.gradient_clip = gradient_clip
        self.parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        self.count = torch.zeros(1, dtype=torch.int64, device=lr.device)
        self.losses = LossMean(lr.device)
        self._lr = lr.view(1)

    def __call__(self, batch: Any) -> None:
        """Update the weights from `batch`, and count its loss in `losses`."""
        loss, weight = mean_loss(self.loss(self.forward(batch), batch), batch)
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(loss)
        if self.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.gradient_clip)
        torch.index_select(self.rates, 0, self.count, out=self._lr)
        self.count += 1
        self.optimizer.step()
        self.losses.add(loss.detach(), weight)
