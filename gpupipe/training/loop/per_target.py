"""Multi-task loss: a loss for each of several targets of one network, regression and classification mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.support.validation import is_number, is_sequence, refuse_choice
from gpupipe.training.loop.batches import matching_target
from gpupipe.training.loop.losses import LOSSES

__all__ = ["PerTarget"]

NAMES = [name for name in LOSSES if name != "cross-entropy"]  # that one takes K logits a target


class PerTarget:
    """Weighted mean, for each row, of a loss per output.

    Args:
        losses: a name per target, in the order of `schema.targets`: "mse" or "huber" for a number, "bce" for a target
            of 0 and 1.
        weights: how much each counts, for targets of different units; None lets them count alike.

    Raises:
        BadConfig: an unknown name, or not one weight a loss.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> loss, target = PerTarget(["mse", "bce"], [3.0, 1.0]), torch.tensor([[2.0, 1.0]])
        >>> loss(torch.tensor([[1.0, 50.0]]), Batch(torch.zeros(1, 0), torch.zeros(1, 0), target))
        tensor([0.7500])
    """

    def __init__(self, losses: Sequence[str], weights: Sequence[float] | None = None) -> None:
        for name in losses if isinstance(losses, list | tuple) else [losses]:
            if not isinstance(losses, list | tuple) or name not in NAMES:
                raise refuse_choice("PerTarget", "losses", name, NAMES, "a list of these, one a target")
        given: Any = [1.0] * len(losses) if weights is None else weights
        weights = list(given) if is_sequence(given) else []
        good = len(weights) == len(losses) and all(is_number(weight) and 0 <= weight < inf for weight in weights)
        if not good or not sum(weights):
            raise BadConfig(
                "PerTarget(weights=)",
                "not a weight for each loss",
                got=given,
                expected=f"{len(losses)} numbers of at least 0, not all 0",
                remedy="weights=None",
            )
        self.losses = list(losses)
        self.shares = [weight / sum(weights) for weight in weights]

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values of B x T outputs.

        Raises:
            SchemaMismatch: another number of targets.
        """
        target = matching_target(output, batch, "loss PerTarget")
        if output.ndim != 2 or output.shape[1] != len(self.losses):
            raise SchemaMismatch(
                "loss PerTarget",
                "another number of targets",
                got=tuple(output.shape),
                expected=f"B x {len(self.losses)}",
                remedy="a loss for each of schema.targets",
            )
        each = [
            share * LOSSES[name](output[:, place], replace(batch, target=target[:, place]))
            for place, (name, share) in enumerate(zip(self.losses, self.shares, strict=True))
        ]
        return torch.stack(each).sum(0)
