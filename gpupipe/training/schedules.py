"""Learning rates as tables: one value per update, looked up on the device, so that no update waits for the host."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpupipe.errors import BadConfig
from gpupipe.training.choice import unknown

__all__ = ["SCHEDULES", "learning_rates"]

# The share of updates a schedule warms up for unless told otherwise.
SCHEDULES = {"one-cycle": 0.3, "cosine": 0.0, "constant": 0.0}

# One-cycle starts at lr / 25 and ends at lr / 25 / 10^4, as torch.optim.lr_scheduler.OneCycleLR does.
ONE_CYCLE_START = 25.0
ONE_CYCLE_END = 1e4


def learning_rates(schedule: str, *, lr: float, steps: int, warmup: float | None = None) -> Tensor:
    """The learning rate of each update of a run.

    - "constant": lr.
    - "cosine": lr (1 + cos(pi t)) / 2, t running from 0 to 1 after the warm-up (Loshchilov & Hutter, arXiv:1608.03983).
    - "one-cycle": half a cosine up from lr / 25, half a cosine down to lr / 250000 (Smith & Topin, arXiv:1708.07120).

    The first two warm up in a straight line.

    Args:
        schedule: its name.
        lr: the highest rate.
        steps: how many updates.
        warmup: the share of them that rises to lr, in [0, 1); None for the schedule's own (0.3 for one-cycle, else 0).

    Returns:
        `steps` float32 values on the CPU.

    Raises:
        BadConfig: an unknown schedule, or a rate or share that makes no sense.

    Example:
        >>> learning_rates("cosine", lr=1.0, steps=4)
        tensor([1.0000, 0.8536, 0.5000, 0.1464])
    """
    if schedule not in SCHEDULES:
        raise unknown("Trainer", "schedule", schedule, SCHEDULES)
    share = SCHEDULES[schedule] if warmup is None else warmup
    if not 0 <= share < 1:
        raise BadConfig(
            "Trainer(warmup=)", "not a share", got=warmup, expected="a share in [0, 1)", remedy="warmup=0.05"
        )
    if not 0 < lr < math.inf:
        raise BadConfig("Trainer(lr=)", "not a rate", got=lr, expected="a finite number above 0", remedy="lr=3e-3")
    step = torch.arange(steps, dtype=torch.float64)
    if schedule == "one-cycle":
        top = max(share * steps - 1, 0.0)
        rise = _half_cosine(lr / ONE_CYCLE_START, lr, step / max(top, 1.0))
        fall = _half_cosine(lr, lr / ONE_CYCLE_START / ONE_CYCLE_END, (step - top) / max(steps - 1 - top, 1.0))
        return torch.where(step < top, rise, fall).float()
    top = float(round(share * steps))
    fall = _half_cosine(lr, 0.0, (step - top) / (steps - top)) if schedule == "cosine" else torch.full_like(step, lr)
    return torch.where(step < top, lr * (step + 1) / max(top, 1.0), fall).float()


def _half_cosine(start: float, end: float, t: Tensor) -> Tensor:
    return end + (start - end) / 2 * (1 + torch.cos(math.pi * t))
