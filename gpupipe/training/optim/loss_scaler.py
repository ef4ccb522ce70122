"""Loss scaler for float16 that follows overflows on the device, without a read on the host.

torch.amp.GradScaler reads on the host whether to step. Here an optimiser that can (`found_inf`) leaves out the step by
itself, on the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpupipe.errors import BadConfig
from gpupipe.training.optim.lamb import Lamb

# As torch.amp.GradScaler: from 2^16, halved at an overflow, doubled after 2000 updates without one.
START, BACKOFF, GROWTH, INTERVAL = 2.0**16, 0.5, 2.0, 2000


class LossScale:
    """Loss scale: the factor of the loss before the backward pass (Micikevicius et al., arXiv:1710.03740).

    Args:
        optimizer: which leaves out a step when its `found_inf` is 1: fused ones of torch, LAMB, the row-wise one.
        device: where the gradients are.
        interval: updates without an overflow after which the scale is doubled.

    Raises:
        BadConfig: an optimiser that would step into an overflow.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, *, interval: int = INTERVAL) -> None:
        if not isinstance(optimizer, Lamb) and not optimizer.defaults.get("fused"):
            raise BadConfig(
                "Trainer(precision='fp16-mixed')",
                "the optimiser cannot leave out a step without asking the host",
                got=type(optimizer).__name__,
                expected="'adamw', 'sgd', 'lamb', 'rowwise', or one of torch's with fused=True",
                remedy="precision='bf16-mixed', or optimizer='adamw'",
            )
        self.value = torch.full((), START, device=device)
        self.interval = interval
        self._good = torch.zeros((), dtype=torch.int32, device=device)
        self._found = torch.zeros((), device=device)
        optimizer.found_inf = self._found  # type: ignore[attr-defined]  # where GradScaler puts it

    def update(self, norm: Tensor) -> None:
        """Adapt the scale to the gradients' norm: if it is not finite skip the step and halve, else double in time."""
        bad = ~torch.isfinite(norm)
        self._found.copy_(bad)
        good = torch.where(bad, 0, self._good + 1)
        grown = good >= self.interval
        self.value.mul_(torch.where(bad, BACKOFF, torch.where(grown, GROWTH, 1.0)))
        self._good.copy_(torch.where(grown, 0, good))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the scale, and the number of good updates since it changed."""
        return {"value": self.value, "good": self._good}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; start afresh if it is empty, as of a run without a scale."""
        if state:
            self.value.copy_(state["value"])
            self._good.copy_(state["good"])
        else:
            self.value.fill_(START)
            self._good.zero_()
