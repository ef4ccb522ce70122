"""Baseline models of scikit-learn and XGBoost with their own settings, fitted on a matrix of numbers, then ids."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn.compose import ColumnTransformer
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
    """Layout of the matrix (how many numbers, then how many ids each column has), and the task; 1 output for binary."""

    numeric: int
    cardinalities: Sequence[int]
    task: str
    outputs: int
    seed: int = 0


class Baseline:
    """Baseline model: an estimator fitted with sample weights, with a network's outputs; its class names it."""

    def __init__(self, model: Any, columns: MatrixLayout, estimator: Any = None) -> None:
        self.name, self.columns = type(model).__name__, columns
        self.estimator = model if estimator is None else estimator

    def fit(self, features: Any, target: Any, weight: Any) -> None:
        """Fit the estimator; `BadData` where it refuses the rows, such as rows of one class."""
        steps = getattr(self.estimator, "steps", None)  # of a Pipeline, which passes on what a prefix names
        name = f"{steps[-1][0]}__sample_weight" if steps else "sample_weight"
        try:
            self.estimator.fit(features, target, **({} if weight is None else {name: weight}))
        except (TypeError, ValueError) as cause:
            where, problem = f"baselines, {self.name}", f"it refuses the rows ({cause})"
            expected = "rows of at least two classes, as a network may do without"
            remedy = "only=[...] without this model, or more rows"
            raise BadData(where, problem, expected=expected, remedy=remedy) from cause

    def outputs(self, features: Any) -> Any:
        """Predict n log-odds or values, n x K log-probabilities, or n x T values."""
        if self.columns.task == "regression":
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
            problem, remedy = "XGBoost is not installed", "pip install xgboost"
            expected = "the package xgboost, or xgboost-cpu, which is smaller"
            raise BackendMissing("baselines(only=)", problem, got="xgboost", expected=expected, remedy=remedy)
        names = names[:-1]
    return [_make_baseline(name, columns, on_gpu=on_gpu) for name in names]


def _make_baseline(name: str, columns: MatrixLayout, *, on_gpu: bool) -> Baseline:
    classifies, numeric, ids = columns.task != "regression", columns.numeric, columns.cardinalities
    kind = "Classifier" if classifies else "Regressor"
    options: dict[str, Any] = {"random_state": columns.seed}
    model: Any
    if name == "linear":
        model = LogisticRegression(max_iter=1000) if classifies else Ridge()
        one_hot = OneHotEncoder(categories=[np.arange(n) for n in ids], handle_unknown="ignore")
        places = list(range(numeric + len(ids)))
        parts = [("numbers", StandardScaler(), places[:numeric]), ("ids", one_hot, places[numeric:])]
        last = MultiOutputClassifier(model) if columns.task == "multilabel" else model
        return Baseline(model, columns, make_pipeline(ColumnTransformer([part for part in parts if part[2]]), last))
    if name == "forest":
        return Baseline(getattr(ensemble, f"RandomForest{kind}")(max_depth=MAX_DEPTH, n_jobs=-1, **options), columns)
    if name == "xgboost":
        options |= {"feature_types": ["q"] * numeric + ["c"] * len(ids), "enable_categorical": True}
        cls = getattr(importlib.import_module("xgboost"), f"XGB{kind}")
        return Baseline(cls(device="cuda" if on_gpu else "cpu", **options), columns)
    categories = [False] * numeric + [n <= MAX_CATEGORIES for n in ids]
    cls = getattr(ensemble, f"HistGradientBoosting{kind}")
    model = cls(categorical_features=categories if any(categories) else None, **options)
    several = MultiOutputClassifier if classifies else MultiOutputRegressor
    return Baseline(model, columns, several(model) if columns.outputs > 1 and columns.task != "multiclass" else None)


def _log(chances: Any) -> Any:
    """Compute the logarithm, finite for a probability of 0 too."""
    return np.log(np.clip(np.asarray(chances, dtype="float64"), np.finfo(np.float64).tiny, 1.0))


def gradient_boosting_auc(train: Any, train_target: Any, valid: Any, valid_target: Any) -> float:
    """Compute the AUC on `valid` of a HistGradientBoostingClassifier fitted on `train`, pandas frames."""
    known = {name: train[name].astype("category").dtype for name in train.select_dtypes("str").columns}
    model = ensemble.HistGradientBoostingClassifier().fit(train.astype(known), train_target)
    return float(roc_auc_score(valid_target, model.predict_proba(valid.astype(known))[:, 1]))
