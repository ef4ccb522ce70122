"""Models that a network has to beat: scikit-learn's and XGBoost's on the host, cuML's and XGBoost's on a GPU.

Each learns from the block a network learns from, with its library's own settings but for the random state and, where it
has to be, what says which columns are ids. In: a matrix of numbers with the ids beside them. Out: what a network gives,
log-odds (binary), log-probabilities (classes) or values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gpupipe.backend.protocol import Array
from gpupipe.backend.ragged import module_of
from gpupipe.errors import BackendMissing, BadData
from gpupipe.support.validation import check_choice

__all__ = ["YARDSTICKS", "Columns", "Yardstick", "yardstick"]

YARDSTICKS = ("linear", "forest", "hist-gradient-boosting", "xgboost")
MAX_CATEGORIES = 255  # what HistGradientBoosting takes as categories; a column of more ids is read as numbers
MAX_DEPTH = 16  # cuML's own; scikit-learn's trees without an end would hold a table's rows one by one


@dataclass(frozen=True)
class Columns:
    """What the matrix holds and what is learned from it.

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


class Yardstick:
    """An estimator that is given rows with weights and answers as a network does.

    Args:
        name: what it is called in a table.
        estimator: with `fit` and `predict`, or `predict_proba` for classes.
        columns: of its matrix.
        on_host: whether it takes NumPy arrays wherever the rows lie.
    """

    def __init__(self, name: str, estimator: Any, columns: Columns, *, on_host: bool) -> None:
        self.name, self.estimator, self.columns, self.on_host = name, estimator, columns, on_host

    def fit(self, features: Array, target: Array, weight: Array | None) -> None:
        """Learn.

        Raises:
            BadData: the estimator refuses the rows, such as rows of one class.

        Memory: as the library's estimator.
        """
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

    def outputs(self, features: Array) -> Array:
        """n log-odds or values, n x K log-probabilities, or n x T values."""
        xp = module_of(features)
        if not self.columns.classifies:
            return xp.asarray(self.estimator.predict(features))
        if self.columns.task == "multilabel":
            return self._labels(features, xp)
        classes = [int(each) for each in self.estimator.classes_]  # those it has met; the others keep the least
        chances = xp.zeros((len(features), max(self.columns.outputs, 2)), dtype=xp.float64)
        chances[:, classes] = xp.asarray(self.estimator.predict_proba(features))
        logs = _log(chances, xp)
        return logs[:, 1] - logs[:, 0] if self.columns.task == "binary" else logs

    def _labels(self, features: Array, xp: Any) -> Array:
        """scikit-learn has n x 2 probabilities for each label, XGBoost n x T of the positive ones."""
        found = self.estimator.predict_proba(features)
        chances = xp.stack([xp.asarray(each)[:, 1] for each in found], axis=1) if isinstance(found, list) else found
        return _log(xp.asarray(chances, dtype=xp.float64), xp) - _log(1 - xp.asarray(chances, dtype=xp.float64), xp)


def yardstick(name: str, columns: Columns, *, gpu: bool) -> Yardstick | None:
    """One of `YARDSTICKS`, or None where its library is not installed.

    Args:
        name: which.
        columns: of the matrix.
        gpu: whether the rows lie on a GPU.

    Raises:
        BadConfig: no such model.

    Example:
        >>> yardstick("linear", Columns(2, [], "regression", 1), gpu=False).name
        'Ridge'
    """
    check_choice("baselines", YARDSTICKS, only=name)
    if name == "xgboost":
        return _xgboost(columns, gpu=gpu) if find_spec("xgboost") else None
    if name == "hist-gradient-boosting" or not gpu:
        return _SKLEARN[name](columns)
    if columns.task == "multilabel":
        return _SKLEARN[name](columns)  # cuML's have one target
    twin = importlib.import_module("gpupipe.backend.yardsticks_gpu")
    estimator = twin.linear(columns) if name == "linear" else twin.forest(columns)
    return Yardstick(f"{_kind(estimator)} (cuML)", estimator, columns, on_host=False)


def missing_xgboost() -> BackendMissing:
    """What is said where XGBoost was asked for by name and is not there."""
    return BackendMissing(
        "baselines(only=)",
        "XGBoost is not installed",
        got="xgboost",
        expected="the package xgboost, or xgboost-cpu, which is smaller",
        remedy="pip install xgboost",
    )


def _linear(columns: Columns) -> Yardstick:
    model = LogisticRegression(max_iter=1000) if columns.classifies else Ridge()
    ids = range(columns.numeric, columns.numeric + len(columns.cardinalities))
    known = [np.arange(n) for n in columns.cardinalities]
    parts = [
        ("numbers", StandardScaler(), list(range(columns.numeric))),
        ("ids", OneHotEncoder(categories=known, handle_unknown="ignore"), list(ids)),
    ]
    one_hot = ColumnTransformer([part for part in parts if part[2]])
    answering = MultiOutputClassifier(model) if columns.task == "multilabel" else model
    return Yardstick(_kind(model), make_pipeline(one_hot, answering), columns, on_host=True)


def _forest(columns: Columns) -> Yardstick:
    cls = RandomForestClassifier if columns.classifies else RandomForestRegressor
    model = cls(max_depth=MAX_DEPTH, n_jobs=-1, random_state=columns.seed)
    return Yardstick(_kind(model), model, columns, on_host=True)


def _boosting(columns: Columns) -> Yardstick:
    ids = [False] * columns.numeric + [n <= MAX_CATEGORIES for n in columns.cardinalities]
    cls = HistGradientBoostingClassifier if columns.classifies else HistGradientBoostingRegressor
    model = cls(categorical_features=ids if any(ids) else None, random_state=columns.seed)
    several: Any = MultiOutputClassifier if columns.classifies else MultiOutputRegressor
    answering = several(model) if columns.outputs > 1 and columns.task != "multiclass" else model
    return Yardstick(_kind(model), answering, columns, on_host=True)


def _xgboost(columns: Columns, *, gpu: bool) -> Yardstick:
    library = importlib.import_module("xgboost")
    cls = library.XGBClassifier if columns.classifies else library.XGBRegressor
    types = ["q"] * columns.numeric + ["c"] * len(columns.cardinalities)
    device = "cuda" if gpu else "cpu"
    model = cls(feature_types=types, enable_categorical=True, device=device, random_state=columns.seed)
    return Yardstick(_kind(model), model, columns, on_host=not gpu)


_SKLEARN: Mapping[str, Callable[[Columns], Yardstick]] = {
    "linear": _linear,
    "forest": _forest,
    "hist-gradient-boosting": _boosting,
}


def _log(chances: Array, xp: Any) -> Array:
    """Finite for a probability of 0 too."""
    return xp.log(xp.clip(chances, np.finfo(np.float64).tiny, 1.0))


def _kind(estimator: object) -> str:
    return type(estimator).__name__
