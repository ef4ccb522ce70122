"""Exponential moving average (EMA) of the weights, used for evaluation and in the saved model.

torch.optim.swa_utils.AveragedModel reads its counter on the host at each update, which no CUDA graph can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class EMA:
    """EMA: average = d * average + (1 - d) * weights after each update, d = min(decay, (1 + t) / (10 + t)) at update t.

    The smaller d of the first updates keeps the weights the run started from out of the average (as TensorFlow's
    ExponentialMovingAverage with `num_updates`).

    Args:
        model: whose parameters and floating-point buffers are averaged; other buffers are the model's own.
        decay: in (0, 1).

    Memory:
        One more copy of the weights; a second one for a moment when they change places.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        # What two modules share is one weight of two names, and changes places once.
        found = {id(value): (name, value.detach()) for name, value in model.state_dict(keep_vars=True).items()}
        self._own = {name: value for name, value in found.values() if value.is_floating_point()}
        self._mean = {name: value.clone() for name, value in self._own.items()}
        self.decay = decay

    def update(self, count: Tensor) -> None:
        """Move the average towards the weights; `count` is t, from 0, on the device."""
        share = 1 - ((1 + count) / (10 + count)).clamp_max(self.decay)
        share = share[0].float()
        move_towards_(list(self._mean.values()), list(self._own.values()), share)

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Give the model the average as its weights inside; values are swapped, so CUDA graphs find them."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Swap the weights and their average."""
        for name, own in self._own.items():
            mean = self._mean[name]
            before = own.clone()
            own.copy_(mean)
            mean.copy_(before)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average, by the weights' names."""
        return dict(self._mean)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; start from the weights if it is empty, as of a run without an average."""
        for name, mean in self._mean.items():
            mean.copy_(state[name] if state else self._own[name])


def move_towards_(tensors: Sequence[Tensor], targets: Sequence[Tensor], share: Tensor | float) -> None:
    """Add share * (targets - tensors) to tensors."""
    difference: Any = torch._foreach_sub(list(targets), list(tensors))  # noqa: SLF001
    torch._foreach_mul_(difference, share)
    torch._foreach_add_(list(tensors), difference)
