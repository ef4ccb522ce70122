"""LAMB: Adam whose steps are as long as the layer's weights, for very large batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpupipe.training.optim.ema import move_towards_


class Lamb(Optimizer):
    """LAMB optimizer: You et al. 2020, arXiv:1904.00962, algorithm 2, with m and v bias-corrected as in Adam.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; r = m^ / (sqrt(v^) + eps) + weight_decay w;
    w = w - lr ||w|| / ||r|| r for each tensor w (lr r where one of the norms is 0).

    All in multi-tensor calls, with rate and count on the device: a CUDA graph can capture it, and a step whose
    `found_inf` is 1 changes nothing.

    Args:
        params: parameters, or groups of them.
        lr: 0-d on the parameters' device, written to in place.
        betas: b1 and b2.
        eps: keeps r finite.
        weight_decay: as above.

    Memory:
        Two moments as large as the weights, and two more such tensors during a step.
    """

    def __init__(
        self,
        params: Any,
        lr: Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        # The count of steps is read on the device; torch puts one that is loaded there where this says so.
        super().__init__(params, {**options, "capturable": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure: it would be called outside a graph
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            trained: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            if trained:
                self._move(group, trained)

    def _move(self, group: dict[str, Any], trained: list[Tensor]) -> None:
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        first, second, step = self._state(group, trained)
        bad: Tensor | None = getattr(self, "found_inf", None)
        if bad is not None:
            # Not finite: they count as 0, for a share of 0 of both moments, and nothing moves.
            gradients = [torch.where(bad > 0, 0.0, gradient) for gradient in gradients]
        taken = 1.0 if bad is None else 1.0 - bad
        step.add_(taken)
        beta1, beta2 = group["betas"]
        move_towards_(first, gradients, (1 - beta1) * taken)
        move_towards_(second, torch._foreach_mul(gradients, gradients), (1 - beta2) * taken)  # noqa: SLF001

        deviation = torch._foreach_div(second, 1 - beta2**step)  # noqa: SLF001
        torch._foreach_sqrt_(deviation)
        torch._foreach_add_(deviation, float(group["eps"]))
        change = list(torch._foreach_div(torch._foreach_div(first, 1 - beta1**step), deviation))  # noqa: SLF001
        if group["weight_decay"]:
            torch._foreach_add_(change, trained, alpha=group["weight_decay"])

        lengths = zip(torch._foreach_norm(trained), torch._foreach_norm(change), strict=True)  # noqa: SLF001
        trust = [torch.where((weight > 0) & (length > 0), weight / length, 1.0) for weight, length in lengths]
        torch._foreach_mul_(change, trust)
        torch._foreach_mul_(change, group["lr"])
        if bad is not None:
            change = [torch.where(bad > 0, 0.0, moved) for moved in change]
        torch._foreach_add_(trained, change, alpha=-1.0)

    def _state(self, group: dict[str, Any], trained: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return both moments, and the group's count of steps, which is on the device of its first parameter."""
        counted = self.state[group["params"][0]]
        if "step" not in counted:
            counted["step"] = torch.zeros_like(group["lr"])
        for parameter in trained:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        first = [self.state[parameter]["exp_avg"] for parameter in trained]
        return first, [self.state[parameter]["exp_avg_sq"] for parameter in trained], counted["step"]
