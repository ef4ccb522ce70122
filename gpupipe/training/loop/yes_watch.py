"""Watch over a classifier's validation: whether it ever says yes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpupipe.training.loop.batches import get_weight


class YesWatch:
    """Metric without a value that notes the highest probability and the share of positive rows, for each target.

    Memory: 24 bytes a target on the device; the host reads them once an epoch.
    """

    name, higher_is_better = "yes", True

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def reset(self) -> None:
        self._sums = None

    def update(self, output: Any, batch: Any) -> None:
        """Add a batch."""
        target, weight = getattr(batch, "target", None), get_weight(batch)
        if not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.shape != target.shape:
            return
        score, target = (part.double().reshape(len(part), -1) for part in (output, target))
        weight = torch.ones_like(score) if weight is None else weight.double()[:, None].expand_as(score)
        highest = torch.where(weight > 0, score, -torch.inf).amax(0)
        sums = torch.stack([highest, (weight * (target >= 0.5)).sum(0), weight.sum(0)])
        if self._sums is not None:
            sums = torch.cat([torch.maximum(self._sums[:1], sums[:1]), self._sums[1:] + sums[1:]])
        self._sums = sums

    def compute(self) -> None:
        """Compute nothing: what it noted is no figure."""

    def describe_silence(self, names: Sequence[str]) -> list[str]:
        """Describe the targets whose probability is below 0.5 in all rows, although some of them are positive."""
        if self._sums is None:
            return []
        (highest, positive, total), lines = self._sums.tolist(), []
        for name, score, part, whole in zip(names or [""] * len(highest), highest, positive, total, strict=False):
            probability = 1 / (1 + math.exp(-max(score, -700.0)))
            if whole and part and probability < 0.5:
                of = f" {name!r}" if len(highest) > 1 else ""
                rows = f"{part / whole:.2%} of the validation rows are positive"
                lines.append(f"predict never says yes{of}: {rows}, and the highest probability is {probability:.3g}")
        return lines
