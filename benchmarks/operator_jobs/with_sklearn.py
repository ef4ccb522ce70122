"""The jobs by scikit-learn's class of the same name, on a pandas frame, strings as pandas reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import preprocessing as sk
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer

from operator_jobs import settings as s

__all__ = ["JOBS", "columns", "load"]


def load(folder: Path, rows: int | None) -> pd.DataFrame:
    """The first rows; or all, without the strings, whose encoders are slow."""
    names = [name for name in s.COLUMNS if rows or name not in s.TEXTS]
    return pd.read_parquet(folder / "flights.parquet", columns=names)[:rows].copy()


def columns(block: Any) -> Iterator[Any]:
    """The columns of a result, one after the other."""
    for column in np.asarray(block).T:
        yield pd.Series(column)


def _job(names: Sequence[str], make: Callable[[], Any]) -> Callable[[pd.DataFrame], Any]:
    def job(frame: pd.DataFrame) -> Any:
        return make().fit_transform(frame[list(names)])

    return job


def _target_means(frame: pd.DataFrame) -> Any:
    known = frame[frame[s.TARGET].notna()]
    encoder = sk.TargetEncoder(smooth=s.SMOOTH, target_type="continuous").fit(known[s.TEXTS], known[s.TARGET])
    return encoder.transform(frame[s.TEXTS])


def _binned(frame: pd.DataFrame) -> Any:
    step = sk.KBinsDiscretizer(s.NUM_BINS, encode="ordinal", subsample=None, quantile_method="averaged_inverted_cdf")
    return step.fit_transform(frame[s.WHOLE]) + 2  # ids 0 and 1 are of missing and unknown values elsewhere


JOBS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "StandardScaler": _job(s.NUMBERS, sk.StandardScaler),
    "MinMaxScaler": _job(s.NUMBERS, sk.MinMaxScaler),
    "RobustScaler": _job(s.NUMBERS, sk.RobustScaler),
    "SimpleImputer, mean": _job(s.NUMBERS, SimpleImputer),
    "SimpleImputer, median": _job(s.NUMBERS, lambda: SimpleImputer(strategy="median")),
    "Log1p": _job(s.WHOLE, lambda: sk.FunctionTransformer(np.log1p)),
    "KBinsDiscretizer": _binned,
    "QuantileTransformer": _job(s.NUMBERS, lambda: sk.QuantileTransformer(n_quantiles=s.NUM_QUANTILES, subsample=None)),
    "PowerTransformer": _job(s.NUMBERS, sk.PowerTransformer),
    "OneHotEncoder": _job(s.FEW, lambda: sk.OneHotEncoder(sparse_output=False, dtype=np.uint8)),
    "OrdinalEncoder": _job(s.COMPLETE_TEXTS, lambda: sk.OrdinalEncoder(dtype=np.float32)),
    "TargetEncoder": _target_means,
    "PCA": _job(s.PCA_COLUMNS, lambda: PCA(s.NUM_COMPONENTS)),
    "KMeans": _job(s.WHOLE, lambda: KMeans(s.NUM_CLUSTERS, random_state=0)),
}
