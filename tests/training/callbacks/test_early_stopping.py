"""When it stops, and what it goes back to."""

from __future__ import annotations

import pytest
import torch

from gpupipe.errors import BadConfig
from gpupipe.training import EarlyStopping
from gpupipe.training.callbacks.history import BestWeights


@pytest.mark.parametrize(
    ("figures", "patience", "min_delta", "higher", "stops_at", "best"),
    [
        ([3, 2, 1, 2, 3, 4], 2, 0.0, False, 4, 2),
        ([3, 2, 1, 2, 0.5, 4], 2, 0.0, False, None, 4),
        ([1, 2, 2, 2], 2, 0.0, True, 3, 1),
        ([1, 2, 3, 4], 1, 0.0, False, 1, 0),
        ([1, 0.95, 0.8, 0.75], 2, 0.1, False, None, 2),
        ([1, 0.95, 0.91, 0.5], 2, 0.1, False, 2, 0),
    ],
)
def test_patience_counts_epochs_without_improvement(
    figures: list[float], patience: int, min_delta: float, higher: bool, stops_at: int | None, best: int
) -> None:
    model = torch.nn.BatchNorm1d(2)
    kept = BestWeights(model, EarlyStopping(patience, "valid_loss", min_delta), higher_is_better=higher)
    stopped = None
    for epoch, figure in enumerate(figures):
        with torch.no_grad():
            model.weight.fill_(epoch)
            model.running_mean.fill_(epoch)
        if kept.update(figure):
            stopped = epoch
            break
    assert stopped == stops_at
    kept.restore()
    assert model.weight.tolist() == model.running_mean.tolist() == [best, best]


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"min_delta": -0.1}, {"min_delta": float("nan")}])
def test_what_makes_no_sense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(BadConfig, match=f"EarlyStopping\\({next(iter(arguments))}=\\): makes no sense"):
        EarlyStopping(**arguments)
