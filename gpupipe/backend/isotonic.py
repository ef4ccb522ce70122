"""Isotonic regression on the host."""

from __future__ import annotations

from typing import Any

from sklearn.isotonic import IsotonicRegression


def fit_isotonic(probabilities: Any, labels: Any, weights: Any = None) -> tuple[list[float], list[float]]:
    """Fit by scikit-learn the rising function of probabilities that is nearest to labels of 0 and 1: its corners.

    Example:
        >>> fit_isotonic([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
        ([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 1.0])
    """
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(probabilities, labels, weights)
    return fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist()
