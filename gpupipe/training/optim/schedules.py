"""Learning rate schedules as tables: one value per update, read on the device, so that no update waits for the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gpupipe.support.validation import check_choice, check_integer, check_number, refuse_argument, refuse_choice
from gpupipe.training.callbacks.history import History

# The share of updates a schedule warms up for unless told otherwise.
SCHEDULES = {"one-cycle": 0.3, "cosine": 0.0, "linear": 0.0, "constant": 0.0, "plateau": 0.0}

# One-cycle starts at lr / 25 and ends at lr / 25 / 10^4, as torch.optim.lr_scheduler.OneCycleLR does.
ONE_CYCLE_START, ONE_CYCLE_END = 25.0, 1e4


@dataclass(frozen=True, slots=True)
class Plateau:
    """Reduce-on-plateau schedule: the rate falls when the monitored metric has not improved for some epochs.

    Args:
        patience: epochs in a row without improvement after which it falls.
        factor: what it is multiplied by then.
        lowest: the smallest rate, as a share of the first.

    Raises:
        BadConfig: a number that makes no sense.

    Example:
        >>> Plateau(patience=1, factor=0.5)
        Plateau(patience=1, factor=0.5, lowest=0.0001)
    """

    patience: int = 3
    factor: float = 0.1
    lowest: float = 1e-4

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", patience=self.patience)
        check_number(self, "(0, 1)", factor=self.factor)
        check_number(self, "[0, 1]", lowest=self.lowest)


# A name, a Plateau, or a function of the share of updates done, in [0, 1), that gives the share of `lr`.
Schedule: TypeAlias = str | Plateau | Callable[[float], float]


def compute_learning_rates(schedule: Schedule, *, lr: float, steps: int, warmup: float | None = None) -> Tensor:
    """Compute the learning rate of each update of a run: `steps` float32 values on the CPU, at most `lr`.

    - "constant": lr; "plateau" and `Plateau` too, until the figure that is monitored says otherwise.
    - "linear": straight from lr to 0 after the warm-up.
    - "cosine": lr (1 + cos(pi t)) / 2, t running from 0 to 1 after the warm-up (Loshchilov & Hutter, arXiv:1608.03983).
    - "one-cycle": half a cosine up from lr / 25, half a cosine down to lr / 250000 (Smith & Topin, arXiv:1708.07120).
    - a function f: lr f(t), t running from 0 to 1 over all updates.

    `warmup` is the share of updates that rises to lr, in a straight line but for the last two; None for the schedule's
    own (0.3 for one-cycle, else 0). A function's is its own business.
    """
    name: Any = "plateau" if isinstance(schedule, Plateau) else schedule
    if not callable(name) and (not isinstance(name, str) or name not in SCHEDULES):
        also = "a Plateau, or a function of the share that is done"
        raise refuse_choice("Trainer", "schedule", schedule, SCHEDULES, also)
    share = (0.0 if callable(name) else SCHEDULES[name]) if warmup is None else warmup
    check_number("Trainer", "[0, 1)", warmup=share)
    check_number("Trainer", "(0, inf)", lr=lr)
    lr = float(lr)
    if callable(name):
        try:
            return torch.tensor([lr * float(name(number / steps)) for number in range(steps)])
        except (TypeError, ValueError) as cause:
            problem, remedy = f"the function gives no share of the rate ({cause})", "schedule=lambda done: 1.0 - done"
            expected = "a function of the share of updates done, in [0, 1), that gives a number"
            raise refuse_argument("Trainer", "schedule", name, expected, remedy, problem=problem) from cause
    step = torch.arange(steps, dtype=torch.float64)
    if name == "one-cycle":
        top = max(share * steps - 1, 0.0)
        rise = _half_cosine(lr / ONE_CYCLE_START, lr, step / max(top, 1.0))
        fall = _half_cosine(lr, lr / ONE_CYCLE_START / ONE_CYCLE_END, (step - top) / max(steps - 1 - top, 1.0))
        return torch.where(step < top, rise, fall).float()
    top = float(round(share * steps))
    after = (step - top) / (steps - top)
    fall = torch.full_like(step, lr)
    if name == "cosine":
        fall = _half_cosine(lr, 0.0, after)
    elif name == "linear":
        fall = lr * (1 - after)
    return torch.where(step < top, lr * (step + 1) / max(top, 1.0), fall).float()


def _half_cosine(start: float, end: float, t: Tensor) -> Tensor:
    return end + (start - end) / 2 * (1 + torch.cos(math.pi * t))


def scaled_rate(lr: float, *, batch_size: int, reference: int = 256, rule: str = "sqrt") -> float:
    """Scale a learning rate found with `reference` rows a step to `batch_size`, over accumulation and all ranks.

    - "linear": lr B / B0, for SGD (Goyal et al., arXiv:1706.02677); warm up for some epochs' share of the updates.
    - "sqrt": lr sqrt(B / B0), for Adam and LAMB (You et al., arXiv:1904.00962; Malladi et al., arXiv:2205.10287).

    Raises:
        BadConfig: an unknown rule, or a number that makes no sense.

    Example:
        >>> scaled_rate(1e-3, batch_size=4096)
        0.004
    """
    powers = {"linear": 1.0, "sqrt": 0.5}
    check_number(scaled_rate, "(0, inf)", lr=lr)
    check_integer(scaled_rate, "[1, inf)", batch_size=batch_size, reference=reference)
    check_choice(scaled_rate, powers, rule=rule)
    return float(lr * (batch_size / reference) ** powers[rule])


def get_plateau_factor(schedule: Schedule, history: History) -> float | None:
    """Return a plateau's factor of the first rate after the epochs so far; None for other schedules."""
    plateau = Plateau() if schedule == "plateau" else schedule
    if not isinstance(plateau, Plateau):
        return None
    best, waited, share = -math.inf, 0, 1.0
    history.monitored  # noqa: B018 - says what is wrong where there is no figure
    for row in history:
        value = float(row[history.monitor]) * (1 if history.higher_is_better else -1)
        waited = 0 if value > best else waited + 1
        best = max(best, value)
        if waited == plateau.patience:
            waited, share = 0, max(share * plateau.factor, plateau.lowest)
    return share
