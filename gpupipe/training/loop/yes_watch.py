"""Watch over a classifier's validation: whether it says yes to any row."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpupipe.training.loop.batches import get_weight

logger = logging.getLogger(__name__)


class YesWatch:
    """Metric without a value that notes the highest logit and the share of positive rows of each target.

    Memory: 24 bytes a target on the device, which the host reads once a validation.
    """

    name, higher_is_better = "yes", True

    def __init__(self, targets: Sequence[str] = ()) -> None:
        self._targets = list(targets)
        self._sums: Tensor | None = None
        self._notes: list[list[list[float]]] = []  # of each validation

    def reset(self) -> None:
        self._sums = None

    def update(self, output: Any, batch: Any) -> None:
        target, weight = getattr(batch, "target", None), get_weight(batch)
        if isinstance(output, Tensor) and isinstance(target, Tensor) and output.shape == target.shape:
            scores, positive = (part.double().reshape(len(part), -1) for part in (output, target >= 0.5))
            weights = torch.ones_like(scores) if weight is None else weight.double()[:, None].expand_as(scores)
            highest = torch.where(weights > 0, scores, -torch.inf).amax(0)
            sums = torch.stack([highest, (weights * positive).sum(0), weights.sum(0)])
            if self._sums is not None:
                sums = torch.cat([torch.maximum(self._sums[:1], sums[:1]), self._sums[1:] + sums[1:]])
            self._sums = sums

    def compute(self) -> None:
        """Note what was seen; it is no figure."""
        self._notes.append([] if self._sums is None else self._sums.T.tolist())

    def warn(self, validations_ago: int = 0) -> None:
        """Log a warning for each target to no row of which, in that validation, the model said yes."""
        if validations_ago >= len(self._notes):
            return
        notes = self._notes[-1 - validations_ago]
        for name, (score, positive, total) in zip(self._targets or [""] * len(notes), notes, strict=False):
            if score < 0 < positive:
                text = (
                    "predict never says yes%s: %.2f%% of the validation rows are positive, and the highest probability "
                    "is %.3g; trainer.evaluate(valid).threshold(maximize='f1') chooses a threshold for gp.save"
                )
                of, share = f" to {name!r}" if len(notes) > 1 else "", 100 * positive / total
                logger.warning(text, of, share, 1 / (1 + math.exp(min(-score, 700.0))))
