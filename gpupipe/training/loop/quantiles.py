"""Quantile regression: the pinball loss of several quantiles of one target, and how often the outer two hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpupipe.errors import BadConfig
from gpupipe.training.loop.batches import full_precision, matching_target

OF_QUANTILES = ("pinball", "coverage")  # metrics


def compute_pinball(quantiles: Sequence[float], output: Tensor, target: Tensor) -> Tensor:
    """Compute for each row the mean over K quantiles of max(q e, (q - 1) e), e = target - output (B x K).

    Koenker & Bassett 1978; scikit-learn's `mean_pinball_loss` is the mean over rows of one quantile.
    """
    errors = [target - column for column in (output if output.ndim == 2 else output[:, None]).unbind(1)]
    # By numbers of the host: a tensor of them would be a copy to the device in each step.
    losses = [torch.maximum(q * error, (q - 1) * error) for q, error in zip(quantiles, errors, strict=True)]
    return torch.stack(losses).mean(0)


def is_covered(output: Tensor, target: Tensor) -> Tensor:
    """Return for each row whether the target is between the first and the last of B x K ascending quantiles."""
    return (output[:, 0] <= target) & (target <= output[:, -1])


@dataclass(frozen=True)
class PinballLoss:
    """Pinball loss of B x K outputs (B of one quantile), a model's `quantiles`."""

    quantiles: tuple[float, ...]
    rowwise: ClassVar[bool] = True

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values."""
        output = full_precision(output)
        target = matching_target(output, batch, "loss 'pinball'", classes=output.ndim == 2)
        return compute_pinball(self.quantiles, output, target.to(output.dtype))


def get_quantiles(model: object) -> tuple[float, ...] | None:
    """Return the quantiles that a model says it predicts, as all networks of `gpupipe.models` do; else None."""
    quantiles = getattr(model, "quantiles", None)
    return tuple(quantiles) if quantiles else None


def lack_quantiles(name: str, value: object) -> BadConfig:
    """Build the error for a trainer's loss or metric of quantiles, and a model that has none."""
    problem, expected = "the model has no quantiles", "a model that says which quantiles it predicts"
    remedy = "gp.models.MLP.from_schema(pipeline.schema, quantiles=(0.05, 0.5, 0.95))"
    return BadConfig(f"Trainer({name}=)", problem, got=value, expected=expected, remedy=remedy)
