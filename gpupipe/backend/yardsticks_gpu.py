"""cuML's linear models and forests as yardsticks; not yet run on a GPU."""

from __future__ import annotations

from typing import Any

import cupy as cp
from cuml.ensemble import RandomForestClassifier, RandomForestRegressor
from cuml.linear_model import LogisticRegression, Ridge

from gpupipe.backend.protocol import Array
from gpupipe.backend.yardsticks import Columns

__all__ = ["forest", "linear"]


class _OneHot:
    """A linear model over the numbers and a column per id: n x (F + sum of cardinalities) float32 on the device."""

    def __init__(self, model: Any, columns: Columns) -> None:
        self.model, self.columns = model, columns

    def fit(self, features: Array, target: Array, sample_weight: Array | None = None) -> None:
        """Learn."""
        self.model.fit(self._widened(features), target, sample_weight=sample_weight)

    def predict(self, features: Array) -> Array:
        """n values."""
        return self.model.predict(self._widened(features))

    def predict_proba(self, features: Array) -> Array:
        """n x K probabilities."""
        return self.model.predict_proba(self._widened(features))

    @property
    def classes_(self) -> Array:
        """The classes in the order of their probabilities."""
        return self.model.classes_

    def _widened(self, features: Array) -> Array:
        numbers = features[:, : self.columns.numeric]
        spread = cp.maximum(numbers.std(axis=0), cp.finfo(cp.float32).tiny) if numbers.size else 1
        parts = [numbers / spread]
        for place, cardinality in enumerate(self.columns.cardinalities, start=self.columns.numeric):
            parts.append((features[:, place, None] == cp.arange(cardinality)).astype(cp.float32))
        return cp.concatenate(parts, axis=1)


def linear(columns: Columns) -> Any:
    """cuML's logistic regression, or its ridge regression."""
    return _OneHot(LogisticRegression(max_iter=1000) if columns.classifies else Ridge(), columns)


def forest(columns: Columns) -> Any:
    """cuML's random forest of 100 trees."""
    if columns.classifies:
        return RandomForestClassifier(n_estimators=100, random_state=columns.seed)
    return RandomForestRegressor(n_estimators=100, random_state=columns.seed)
