"""Estimators of scikit-learn's protocol as candidates of a comparison: fitted on a frame of numbers, then ids.

A boosted tree sorts the ids of a column by their gradients. Where the ids mean nothing and are many, it fits noise by
that, so it has up to three encodings: all ids as categories, only those of columns of few values, or none.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from sklearn import ensemble
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import has_fit_parameter

from gpupipe.errors import BadData
from gpupipe.support.validation import is_one_of

ESTIMATORS = ("linear", "forest", "hist-gradient-boosting")
FEW_CATEGORIES = 32
MAX_BINS = 255  # HistGradientBoosting takes no more categories
MAX_IDS = 1 << 31
MAX_DEPTH = 16  # scikit-learn's trees without an end would hold a table's rows one by one
# A leaf's value is divided by the sum of p (1 - p) over its rows, which is nearly 0 for a class of few rows: the values
# explode unless this, XGBoost's default, is added (accuracy .93 instead of .23 for 56 classes of 1 to 263 rows).
MULTICLASS_L2 = 1.0
_REFUSED = frozenset('[]{}<>",:')  # in a column's name, by XGBoost or LightGBM


@dataclass(frozen=True)
class Layout:
    """Names of a frame's numbers, and of its ids with how many there are; the task; 1 output for two classes."""

    numbers: Sequence[str]
    ids: Mapping[str, int]
    task: str
    outputs: int


@dataclass(frozen=True)
class Rows:
    """Rows on the host: n x F numbers, n x C ids, n targets or n x T, n weights or None."""

    numbers: Any
    ids: Any
    target: Any
    weight: Any

    def to_frame(self, layout: Layout, most: int) -> pd.DataFrame:
        """Return the features as a frame; ids are categories in columns of at most `most` of them, else integers."""
        names = [*layout.numbers, *layout.ids]
        names = [f"column_{position}" if _REFUSED & {*name} else name for position, name in enumerate(names)]
        split = len(layout.numbers)
        columns: dict[str, Any] = {}
        for name, codes, size in zip(names[split:], self.ids.T, layout.ids.values(), strict=True):
            dtype = pd.CategoricalDtype(pd.RangeIndex(size)) if size <= most else None
            columns[name] = codes if dtype is None else pd.Categorical.from_codes(codes, dtype=dtype)
        numbers = pd.DataFrame(self.numbers, columns=names[:split])
        return pd.concat([numbers, pd.DataFrame(columns, index=numbers.index)], axis=1)


class Candidate:
    """Estimator with the encodings of ids that it may get, by their names, and after `fit` with a network's outputs."""

    def __init__(self, name: str, estimator: Any, layout: Layout, encodings: Mapping[str, int] | None = None) -> None:
        self.name, self.layout, self.fitted = name, layout, estimator
        self.notes: list[str] = []
        several = isinstance(estimator, MultiOutputClassifier | MultiOutputRegressor)
        most = _find_max_categories(estimator.estimator if several else estimator)
        self.encodings = list_encodings(layout, most) if encodings is None else encodings
        step = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
        self.takes_weights = has_fit_parameter(step, "sample_weight")
        self._prefix = f"{estimator.steps[-1][0]}__" if hasattr(estimator, "steps") else ""
        self._most, self._classes = 0, np.zeros(0, int)

    def fit(self, rows: Rows, encoding: str) -> None:
        """Fit a copy of the estimator; `BadData` where it fails, as on rows of one class."""
        target, self._most = rows.target, self.encodings[encoding]
        estimator = clone(self.fitted, safe=False)
        if self.layout.task in ("binary", "multiclass"):
            self._classes, target = np.unique(target, return_inverse=True)  # XGBoost takes classes without gaps alone
            if np.bincount(target).min() == 1 and getattr(estimator, "early_stopping", None) == "auto":
                estimator.set_params(early_stopping=False)  # which would put rows of each class on both sides
        weights = {} if rows.weight is None or not self.takes_weights else {f"{self._prefix}sample_weight": rows.weight}
        try:
            estimator.fit(rows.to_frame(self.layout, self._most), target, **weights)
        except Exception as cause:
            problem, expected = f"it does not fit ({type(cause).__name__}: {cause})", "an estimator for such rows"
            where, remedy = f"compare(models=), {self.name}", "models=[...] without it"
            raise BadData(where, problem, expected=expected, remedy=remedy) from cause
        self.fitted = estimator

    def predict(self, rows: Rows) -> Any:
        """Predict n log-odds or values, n x K log-probabilities, or n x T values."""
        frame, task = rows.to_frame(self.layout, self._most), self.layout.task
        if task == "regression":
            return np.asarray(self.fitted.predict(frame))
        chances = self.fitted.predict_proba(frame)
        if task == "multilabel":  # scikit-learn has n x 2 for each label, XGBoost n x T of the positive
            chances = np.stack([each[:, 1] for each in chances], axis=1) if isinstance(chances, list) else chances
            return _log(chances) - _log(1 - chances)
        all_chances = np.zeros((len(frame), max(self.layout.outputs, 2)))
        all_chances[:, self._classes.astype(int)] = chances  # a class that it has not met keeps the least
        logs = _log(all_chances)
        return logs[:, 1] - logs[:, 0] if task == "binary" else logs

    def compute_weights(self) -> tuple[Any, Any]:
        """Compute the D x K weights and the K biases of the fitted linear model, of numbers as they are and of ids."""
        (_, columns), (_, last) = self.fitted.steps
        models = list(_list_models(last))
        weights = np.concatenate([np.atleast_2d(model.coef_) for model in models]).T
        bias = np.concatenate([np.ravel(model.intercept_) for model in models])
        if split := len(self.layout.numbers):
            scaler = columns.named_transformers_["numbers"]
            weights[:split] /= scaler.scale_[:, None]
            bias -= scaler.mean_ @ weights[:split]
        if self.layout.task != "multiclass":
            return weights, bias
        if len(bias) == 1:  # of two classes it has the second one's log-odds
            weights, bias = (np.concatenate([np.zeros_like(part), part], axis=-1) for part in (weights, bias))
        all_weights, all_bias = np.zeros((len(weights), self.layout.outputs)), np.full(self.layout.outputs, _log(0.0))
        all_weights[:, self._classes.astype(int)], all_bias[self._classes.astype(int)] = weights, bias
        return all_weights, all_bias

    def count_bytes(self) -> int | None:
        """Count the bytes of the fitted estimator in memory, as pickle would write them; None where it cannot."""
        counter = _Counter()
        try:
            pickle.Pickler(counter).dump(self.fitted)
        except (AttributeError, TypeError, pickle.PicklingError):
            return None
        return counter.total

    def count_parts(self) -> dict[str, int]:
        """Count the parameters of linear models, or the nodes of scikit-learn's trees; nothing of other estimators."""
        fitted = self.fitted.steps[-1][1] if hasattr(self.fitted, "steps") else self.fitted
        models = list(_list_models(fitted))
        if all(hasattr(model, "coef_") for model in models):
            return {"parameters": sum(np.size(model.coef_) + np.size(model.intercept_) for model in models)}
        if all(hasattr(model, "tree_") for model in models):
            return {"nodes": sum(model.tree_.node_count for model in models)}
        if all(hasattr(model, "_predictors") for model in models):
            trees = [tree for model in models for tree in chain(*model._predictors)]  # noqa: SLF001 - nothing else has them
            return {"nodes": sum(len(tree.nodes) for tree in trees)}
        return {}


def _list_models(fitted: Any) -> Iterator[Any]:
    """List a fitted estimator, or those it is made of, such as a forest's trees."""
    inner = getattr(fitted, "estimators_", None)
    if inner is None:
        yield fitted
    else:
        for each in np.ravel(inner):
            yield from _list_models(each)


class _Counter:
    """File that counts bytes and keeps none."""

    total = 0

    def write(self, data: Any) -> int:
        """Count them."""
        size = memoryview(data).nbytes
        self.total += size
        return size


def make_named(method: str, name: str, layout: Layout, seed: int) -> Candidate:
    """Make the candidate of a method of `ESTIMATORS`."""
    classifies, several = layout.task != "regression", layout.outputs > 1 and layout.task != "multiclass"
    kind = "Classifier" if classifies else "Regressor"
    model: Any
    if method == "linear":
        model = LogisticRegression(max_iter=1000) if classifies else Ridge()
        one_hot = OneHotEncoder(categories=[np.arange(n) for n in layout.ids.values()], handle_unknown="ignore")
        columns, split = [*range(len(layout.numbers) + len(layout.ids))], len(layout.numbers)
        parts = [("numbers", StandardScaler(), columns[:split]), ("ids", one_hot, columns[split:])]
        last = MultiOutputClassifier(model) if layout.task == "multilabel" else model
        steps = make_pipeline(ColumnTransformer([part for part in parts if part[2]]), last)
        return Candidate(name, steps, layout, {"one-hot": 0})
    if method == "forest":
        model = getattr(ensemble, f"RandomForest{kind}")(max_depth=MAX_DEPTH, n_jobs=-1, random_state=seed)
        return Candidate(name, model, layout)
    model = getattr(ensemble, f"HistGradientBoosting{kind}")(random_state=seed)
    wrap = MultiOutputClassifier if classifies else MultiOutputRegressor
    candidate = Candidate(name, wrap(model) if several else model, layout)
    if layout.task == "multiclass":
        model.set_params(l2_regularization=MULTICLASS_L2)
        candidate.notes.append(f"l2_regularization={MULTICLASS_L2:g}, without which it can diverge on rare classes")
    return candidate


def _find_max_categories(estimator: Any) -> int:
    """Return how many categories a column may have for an estimator that goes by the frame's dtypes, else 0."""
    library = type(estimator).__module__.partition(".")[0]
    if library == "lightgbm":
        return MAX_IDS
    if library == "xgboost":
        return MAX_IDS if getattr(estimator, "enable_categorical", False) else 0
    boosted = ensemble.HistGradientBoostingClassifier | ensemble.HistGradientBoostingRegressor
    by_dtype = isinstance(estimator, boosted) and is_one_of(estimator.categorical_features, ["from_dtype"])
    return min(MAX_BINS, estimator.max_bins) if by_dtype else 0


def list_encodings(layout: Layout, most: int) -> dict[str, int]:
    """Return the encodings that differ: by name, of how many ids at most a column of categories is."""
    return {name_encoding(layout, limit): limit for limit in (most, min(FEW_CATEGORIES, most), 0)}


def name_encoding(layout: Layout, most: int) -> str:
    """Name the encoding whose categories are columns of at most so many ids, alike where it gives the same frame."""
    few = [size for size in layout.ids.values() if size <= most]
    if len(few) == len(layout.ids):
        return "categories" if few else "none"
    return f"categories up to {max(few)} ids" if few else "numbers"


def _log(chances: Any) -> Any:
    """Compute the logarithm, finite for a probability of 0 too."""
    return np.log(np.clip(np.asarray(chances, dtype="float64"), np.finfo(np.float64).tiny, 1.0))


def gradient_boosting_auc(train: Any, train_target: Any, valid: Any, valid_target: Any) -> float:
    """Compute the AUC on `valid` of a HistGradientBoostingClassifier fitted on `train`, pandas frames."""
    dtypes = {name: train[name].astype("category").dtype for name in train.select_dtypes("str").columns}
    model = ensemble.HistGradientBoostingClassifier().fit(train.astype(dtypes), train_target)
    return float(roc_auc_score(valid_target, model.predict_proba(valid.astype(dtypes))[:, 1]))
