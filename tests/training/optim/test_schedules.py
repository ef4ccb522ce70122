"""The tables of learning rates against torch's own schedulers."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR

from gpupipe.errors import BadConfig
from gpupipe.training.optim.optimizers import SCHEDULES, compute_learning_rates

LR = 0.02


def of_torch(make: type[LRScheduler], steps: int, **arguments: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch asks for optimizer.step() first
        scheduler = make(optimizer, **arguments)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            if len(rates) < steps:
                scheduler.step()
    return rates


@pytest.mark.parametrize("steps", [5, 10, 99, 360])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_one_cycle_is_torchs(steps: int, share: float) -> None:
    expected = of_torch(OneCycleLR, steps, max_lr=LR, total_steps=steps, pct_start=share, cycle_momentum=False)
    assert compute_learning_rates("one-cycle", lr=LR, steps=steps, warmup=share).tolist() == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_cosine_is_torchs(steps: int) -> None:
    expected = of_torch(CosineAnnealingLR, steps, T_max=steps)
    assert compute_learning_rates("cosine", lr=LR, steps=steps).tolist() == pytest.approx(expected, rel=1e-5)


def test_constant_with_warm_up_is_torchs_linear() -> None:
    expected = of_torch(LinearLR, 40, start_factor=0.1, total_iters=9)
    assert compute_learning_rates("constant", lr=LR, steps=40, warmup=0.25).tolist() == pytest.approx(
        expected, rel=1e-5
    )


def test_cosine_starts_to_fall_where_the_warm_up_ends() -> None:
    rates = compute_learning_rates("cosine", lr=LR, steps=100, warmup=0.2)
    assert rates[:20].tolist() == pytest.approx([LR * (i + 1) / 20 for i in range(20)])
    assert rates[20:].tolist() == pytest.approx(compute_learning_rates("cosine", lr=LR, steps=80).tolist())


@settings(deadline=None)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 300), st.none() | st.floats(0, 0.999))
def test_a_rate_for_each_update_never_above_the_highest(schedule: str, steps: int, warmup: float | None) -> None:
    rates = compute_learning_rates(schedule, lr=LR, steps=steps, warmup=warmup)
    assert rates.shape == (steps,)
    assert rates.dtype == torch.float32
    assert bool((rates > -1e-9).all()) and float(rates.max()) <= LR * (1 + 1e-6)
    assert bool(rates.isfinite().all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": "onecycle"}, "one-cycle"),
        ({"lr": 0.0}, r"a number in \(0, inf\)"),
        ({"lr": float("nan")}, r"a number in \(0, inf\)"),
        ({"warmup": 1.0}, r"a number in \[0, 1\)"),
        ({"warmup": -0.1}, r"a number in \[0, 1\)"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        compute_learning_rates(**{"schedule": "cosine", "lr": LR, "steps": 5, **arguments})
