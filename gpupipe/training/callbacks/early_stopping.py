"""Early stopping, and the best weights to restore."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn

from gpupipe.support.validation import check_integer, check_name, check_number


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stop when a figure has not improved for some epochs, and keep the weights of the best one.

    The best weights are restored whenever `fit` ends, by stopping or by reaching `max_epochs`. Whether larger is better
    is the metric's to say; for losses smaller is. A schedule that falls over `max_epochs` is cut off by stopping.

    Args:
        patience: epochs in a row without improvement after which training stops, at least 1.
        monitor: a figure of the history: "valid_loss", "valid_auc", "train_loss" ...
        min_delta: a change has to be larger than this to be one.

    Raises:
        BadConfig: an argument that makes no sense.

    Memory:
        One more copy of the model's state on its device; two while a better one is taken.

    Example:
        >>> EarlyStopping(patience=2, monitor="valid_auc")
        EarlyStopping(patience=2, monitor='valid_auc', min_delta=0.0)
    """

    patience: int = 3
    monitor: str = "valid_loss"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", patience=self.patience)
        check_name(self, monitor=self.monitor)
        check_number(self, "[0, inf)", min_delta=self.min_delta)


class BestWeights:
    """Model state of the best epoch so far."""

    def __init__(self, model: nn.Module, stopping: EarlyStopping, *, higher_is_better: bool) -> None:
        self._model = model
        self._stopping = stopping
        self._sign = 1.0 if higher_is_better else -1.0
        self._best = -float("inf")
        self._waited = 0
        self._state: dict[str, Any] = {}

    def update(self, value: float) -> bool:
        """Compare an epoch's metric, keep the weights if it is the best, and return whether to stop."""
        gain = self._sign * value - self._best
        if gain > self._stopping.min_delta:
            self._best = self._sign * value
            self._waited = 0
            self._state = deepcopy(self._model.state_dict())
            return False
        self._waited += 1
        return self.should_stop

    @property
    def should_stop(self) -> bool:
        """True when patience is exhausted."""
        return self._waited >= self._stopping.patience

    @property
    def has_weights(self) -> bool:
        """True if there are best weights."""
        return bool(self._state)

    def restore(self) -> None:
        """Restore the best weights in the model."""
        self._model.load_state_dict(self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return the best metric and weights, and the epochs since; aliases the tensors' memory."""
        return {"best": self._best, "waited": self._waited, "weights": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._best, self._waited, self._state = state["best"], state["waited"], state["weights"]
