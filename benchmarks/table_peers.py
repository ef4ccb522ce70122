"""Models beside the networks on real tables: scikit-learn's, XGBoost's and LightGBM's, on the raw columns."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from public_tables import Split
from sklearn import ensemble
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

MAX_CATEGORIES = 255  # that HistGradientBoosting takes; a longer column becomes its target's means

TEXT = make_column_selector(dtype_include="category")
NUMBERS = make_column_selector(dtype_exclude="category")


class RawRows:
    """Columns and target codes of a split: dates as numbers, text as categories of the train rows."""

    def __init__(self, split: Split) -> None:
        self.classifies = split.task != "regression"
        self.train, self.valid, self.test = (_without_dates(part, split) for part in split.parts)
        for name in self.train.select_dtypes(exclude="number"):
            dtype = pd.CategoricalDtype(sorted(self.train[name].dropna().unique()))
            for part in (self.train, self.valid, self.test):
                part[name] = part[name].astype(dtype)
        self.target, self.valid_target, _ = (split.codes(part) for part in split.parts)

    def score(self, model: Any, **options: Any) -> np.ndarray:
        """Fit a model on the train rows; its values of the test rows, or the logarithms of its probabilities."""
        model.fit(self.train, self.target, **options)
        if not self.classifies:
            return np.asarray(model.predict(self.test))
        logs = np.log(np.clip(model.predict_proba(self.test), 1e-15, 1))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs


def _without_dates(part: pd.DataFrame, split: Split) -> pd.DataFrame:
    columns = {}
    for name, column in part.drop(columns=split.target).items():
        if column.dtype.kind == "M":
            when = column.dt.tz_localize(None)
            columns |= {f"{name} day": (when - pd.Timestamp(0)) / pd.Timedelta(days=1)}
            columns |= {f"{name} {unit}": getattr(when.dt, unit) for unit in ("month", "day_of_week", "hour")}
        else:
            columns[name] = column.astype("int8") if column.dtype == bool else column
    return pd.DataFrame(columns)


def run_linear(split: Split, _seed: int, _threads: int) -> np.ndarray:
    """Ridge or logistic regression: one-hot categories, numbers imputed by the median and scaled."""
    rows = RawRows(split)
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    columns = make_column_transformer((numbers, NUMBERS), (OneHotEncoder(handle_unknown="ignore"), TEXT))
    return rows.score(make_pipeline(columns, LogisticRegression(max_iter=1000) if rows.classifies else Ridge()))


def run_forest(split: Split, seed: int, threads: int) -> np.ndarray:
    """Random forest with its defaults, categories as their numbers."""
    rows = RawRows(split)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    cls = ensemble.RandomForestClassifier if rows.classifies else ensemble.RandomForestRegressor
    columns = make_column_transformer((codes, TEXT), remainder="passthrough")
    return rows.score(make_pipeline(columns, cls(n_jobs=threads, random_state=seed)))


def run_hist(split: Split, seed: int, _threads: int) -> np.ndarray:
    """HistGradientBoosting with its defaults, which take categories as such."""
    rows = RawRows(split)
    text = rows.train.select_dtypes("category")
    long = [name for name in text if len(text[name].cat.categories) > MAX_CATEGORIES]
    folds = StratifiedKFold if rows.classifies else KFold
    means = TargetEncoder(cv=folds(5, shuffle=True, random_state=seed))
    columns = make_column_transformer((means, long), remainder="passthrough", verbose_feature_names_out=False)
    cls = ensemble.HistGradientBoostingClassifier if rows.classifies else ensemble.HistGradientBoostingRegressor
    return rows.score(make_pipeline(columns.set_output(transform="pandas"), cls(random_state=seed)))


def run_xgboost(split: Split, seed: int, threads: int) -> np.ndarray:
    """XGBoost with its defaults."""
    return _run_boosting("xgboost", "XGB", split, enable_categorical=True, n_jobs=threads, random_state=seed)


def run_xgboost_stopped(split: Split, seed: int, threads: int) -> np.ndarray:
    """XGBoost at a rate of 0.05, stopped early by the rows to validate."""
    rows, package = RawRows(split), import_module("xgboost")
    cls = package.XGBClassifier if rows.classifies else package.XGBRegressor
    settings = {"learning_rate": 0.05, "n_estimators": 5000, "early_stopping_rounds": 50, "enable_categorical": True}
    model = cls(n_jobs=threads, random_state=seed, **settings)
    return rows.score(model, eval_set=[(rows.valid, rows.valid_target)], verbose=False)


def run_lightgbm(split: Split, seed: int, threads: int) -> np.ndarray:
    """LightGBM with its defaults."""
    return _run_boosting("lightgbm", "LGBM", split, n_jobs=threads, random_state=seed, verbose=-1)


def _run_boosting(package: str, prefix: str, split: Split, **settings: Any) -> np.ndarray:
    rows = RawRows(split)
    cls = getattr(import_module(package), f"{prefix}{'Classifier' if rows.classifies else 'Regressor'}")
    return rows.score(cls(**settings))


PEERS: dict[str, tuple[str, Callable[[Split, int, int], np.ndarray]]] = {  # the package to install, and the function
    "linear": ("scikit-learn", run_linear),
    "random forest": ("scikit-learn", run_forest),
    "HistGradientBoosting": ("scikit-learn", run_hist),
    "XGBoost": ("xgboost-cpu", run_xgboost),
    "XGBoost, stopped early": ("xgboost-cpu", run_xgboost_stopped),
    "LightGBM": ("lightgbm", run_lightgbm),
}
