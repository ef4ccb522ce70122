"""The last room: in batches and a model, out a trained model and the history of how it went."""

from __future__ import annotations

from gpupipe.training.history import History
from gpupipe.training.metrics import Metric
from gpupipe.training.stopping import EarlyStopping
from gpupipe.training.trainer import Trainer

__all__ = ["EarlyStopping", "History", "Metric", "Trainer"]
