"""Baseline models of scikit-learn and XGBoost, and scikit-learn's gradient boosting as reference.

Each is fitted on the network's feature table with its library's defaults, apart from the random state and, where it
is required, the list of categorical columns. In: a matrix of numbers, then ids. Out: what a network returns,
log-odds (binary), log-probabilities (classes) or values.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gpupipe.errors import BackendMissing, BadData
from gpupipe.support.validation import check_choice

BASELINES = ("linear", "forest", "hist-gradient-boosting", "xgboost")
MAX_CATEGORIES = 255  # what HistGradientBoosting takes as categories; a column of more ids is read as numbers
MAX_DEPTH = 16  # scikit-learn's trees without an end would hold a table's rows one by one


@dataclass(frozen=True)
class MatrixLayout:
    """Layout of the feature matrix, and the task.

    Args:
        numeric: how many numbers, which come first.
        cardinalities: how many ids each of the other columns has, 0 and 1 included.
        task: "regression", "binary", "multiclass" or "multilabel".
        outputs: how many classes or targets; 1 for binary.
        seed: the random state.
    """

    numeric: int
    cardinalities: Sequence[int]
    task: str
    outputs: int
    seed: int = 0

    @property
    def classifies(self) -> bool:
        """Whether the target is a class."""
        return self.task != "regression"


class Baseline:
    """Baseline model: an estimator fitted on the host with sample weights, with a network's outputs.

    Args:
        model: with `fit` and `predict`, or `predict_proba` for classes; its class names it.
        columns: of its matrix.
        estimator: the model with its preprocessing and wrapper; by default the model.
    """

    def __init__(self, model: Any, columns: MatrixLayout, estimator: Any = None) -> None:
        self.name, self.columns = type(model).__name__, columns
        self.estimator = model if estimator is None else estimator

    def fit(self, features: Any, target: Any, weight: Any) -> None:
        """Fit the estimator."""
        steps = getattr(self.estimator, "steps", None)  # of a Pipeline, which passes on what a prefix names
        name = f"{steps[-1][0]}__sample_weight" if steps else "sample_weight"
        try:
            self.estimator.fit(features, target, **({} if weight is None else {name: weight}))
        except (TypeError, ValueError) as cause:
            raise BadData(
                f"baselines, {self.name}",
                f"it refuses the rows ({cause})",
                expected="rows of at least two classes, as a network may do without",
                remedy="only=[...] without this model, or more rows",
            ) from cause

    def outputs(self, features: Any) -> Any:
        """Predict n log-odds or values, n x K log-probabilities, or n x T values."""
        if not self.columns.classifies:
            return np.asarray(self.estimator.predict(features))
        found = self.estimator.predict_proba(features)
        if self.columns.task == "multilabel":  # scikit-learn has n x 2 for each label, XGBoost n x T of the positive
            chances = np.stack([each[:, 1] for each in found], axis=1) if isinstance(found, list) else found
            return _log(chances) - _log(1 - chances)
        chances = np.zeros((len(features), max(self.columns.outputs, 2)))
        chances[:, [int(each) for each in self.estimator.classes_]] = found  # those it has not met keep the least
        logs = _log(chances)
        return logs[:, 1] - logs[:, 0] if self.columns.task == "binary" else logs


def make_baselines(names: Sequence[str], columns: MatrixLayout, *, on_gpu: bool) -> list[Baseline]:
    """Create some of `BASELINES`; all of them leave out XGBoost if it is not installed."""
    for name in names:
        check_choice("baselines", BASELINES, only=name)
    if "xgboost" in names and not find_spec("xgboost"):
        if tuple(names) != BASELINES:
            raise BackendMissing(
                "baselines(only=)",
                "XGBoost is not installed",
                got="xgboost",
                expected="the package xgboost, or xgboost-cpu, which is smaller",
                remedy="pip install xgboost",
            )
        names = names[:-1]
    makers = {"linear": _linear, "forest": _forest, "hist-gradient-boosting": _boosting}
    return [_xgboost(columns, on_gpu=on_gpu) if name == "xgboost" else makers[name](columns) for name in names]


def _linear(columns: MatrixLayout) -> Baseline:
    model = LogisticRegression(max_iter=1000) if columns.classifies else Ridge()
    ids = range(columns.numeric, columns.numeric + len(columns.cardinalities))
    known = [np.arange(n) for n in columns.cardinalities]
    parts = [
        ("numbers", StandardScaler(), list(range(columns.numeric))),
        ("ids", OneHotEncoder(categories=known, handle_unknown="ignore"), list(ids)),
    ]
    answering = MultiOutputClassifier(model) if columns.task == "multilabel" else model
    one_hot = ColumnTransformer([part for part in parts if part[2]])
    return Baseline(model, columns, make_pipeline(one_hot, answering))


def _forest(columns: MatrixLayout) -> Baseline:
    cls = RandomForestClassifier if columns.classifies else RandomForestRegressor
    return Baseline(cls(max_depth=MAX_DEPTH, n_jobs=-1, random_state=columns.seed), columns)


def _boosting(columns: MatrixLayout) -> Baseline:
    ids = [False] * columns.numeric + [n <= MAX_CATEGORIES for n in columns.cardinalities]
    cls = HistGradientBoostingClassifier if columns.classifies else HistGradientBoostingRegressor
    model = cls(categorical_features=ids if any(ids) else None, random_state=columns.seed)
    several: Any = MultiOutputClassifier if columns.classifies else MultiOutputRegressor
    return Baseline(model, columns, several(model) if columns.outputs > 1 and columns.task != "multiclass" else None)


def _xgboost(columns: MatrixLayout, *, on_gpu: bool) -> Baseline:
    library = importlib.import_module("xgboost")
    cls = library.XGBClassifier if columns.classifies else library.XGBRegressor
    types, device = ["q"] * columns.numeric + ["c"] * len(columns.cardinalities), "cuda" if on_gpu else "cpu"
    return Baseline(
        cls(feature_types=types, enable_categorical=True, device=device, random_state=columns.seed), columns
    )


def _log(chances: Any) -> Any:
    """Compute the logarithm, finite for a probability of 0 too."""
    return np.log(np.clip(np.asarray(chances, dtype="float64"), np.finfo(np.float64).tiny, 1.0))


def gradient_boosting_auc(train: Any, train_target: Any, valid: Any, valid_target: Any) -> float:
    """Compute the area under the ROC curve on `valid` of a HistGradientBoostingClassifier fitted on `train`."""
    texts = list(train.select_dtypes("str").columns)
    known = {name: train[name].astype("category").dtype for name in texts}
    model = HistGradientBoostingClassifier().fit(train.astype(known), train_target)
    return float(roc_auc_score(valid_target, model.predict_proba(valid.astype(known))[:, 1]))
