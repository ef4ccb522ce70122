"""Reference model: scikit-learn's gradient boosting with its defaults, on the CPU."""

from __future__ import annotations

from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

__all__ = ["gradient_boosting_auc"]


def gradient_boosting_auc(train: Any, train_target: Any, valid: Any, valid_target: Any) -> float:
    """Compute the area under the ROC curve on `valid` of a HistGradientBoostingClassifier fitted on `train`.

    Args:
        train: a pandas frame of the inputs; strings are taken as categories.
        train_target: one boolean per row.
        valid: as `train`.
        valid_target: as `train_target`.

    Memory: copies the strings.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": range(100)})
        >>> gradient_boosting_auc(frame, frame.x >= 50, frame, frame.x >= 50)
        1.0
    """
    texts = list(train.select_dtypes("str").columns)
    known = {name: train[name].astype("category").dtype for name in texts}
    model = HistGradientBoostingClassifier().fit(train.astype(known), train_target)
    return float(roc_auc_score(valid_target, model.predict_proba(valid.astype(known))[:, 1]))
