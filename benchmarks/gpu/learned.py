"""Every learned step, fitted on the CPU and on the device."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np
import pyarrow as pa
from lab import Lab, check, coded, flights_like
from sklearn.preprocessing import QuantileTransformer

from gpupipe import preprocessing as pre
from gpupipe.backend import select

ROWS = 400_000  # at most: the CPU fits every step, too
NUMBERS, CODES = ["x", "y"], ["word", "count"]
# What a step is given where its defaults will not do, and the columns it takes where those are not NUMBERS.
SETTINGS: dict[str, dict[str, Any]] = {
    "Bucketize": {"edges": [0.0, 40.0]},
    "Categorify": {"min_frequency": 20},
    "GroupImputer": {"by": "word"},
    "GroupStats": {"by": "word", "stats": ["mean", "std", "max"]},
    "HashBucket": {"num_buckets": 100},
    "HashedCross": {"num_buckets": 100},
    "HashedNgrams": {"n_features": 8},
    "KMeans": {"n_clusters": 5},
    "PCA": {"n_components": 2},
    "QuantileTransformer": {"n_quantiles": 100},
    "SimpleImputer": {"strategy": "median", "add_indicator": True},
    "EstimatorStep": {"estimator": QuantileTransformer(n_quantiles=100)},
}
COLUMNS = {
    **dict.fromkeys(
        ["Categorify", "CountEncoder", "HashBucket", "HashedCross", "OneHotEncoder", "OrdinalEncoder"], CODES
    ),
    "DatetimeEncoder": ["at"],
    "GroupImputer": ["price", "word"],
    "GroupStats": ["price", "word"],
    "HashedNgrams": ["word"],
    "SimpleImputer": ["price", "count"],
    "TargetEncoder": CODES,
}
ELSEWHERE = {"ListSlice", "Log1p"}  # lists stay lists, and half of the numbers are below Log1p's domain


@check
def parity_of_steps(lab: Lab) -> dict[str, Any]:
    """How far apart are the outputs of each learned step on the CPU and here, and how long does each take?"""
    table, seen = flights_like(min(lab.rows, ROWS)), {}
    for name in (name for name in pre.__all__ if name not in ELSEWHERE):
        step = getattr(pre, name)
        if not (isinstance(step, type) and hasattr(step, "finalize")) or getattr(step, "__abstractmethods__", None):
            continue
        try:
            seen[name] = of_step(lab, table, name, step)
        except Exception:  # noqa: BLE001 - the other steps are still worth asking about
            seen[name] = {"failed": traceback.format_exc()[-2000:]}
    return seen


def of_step(lab: Lab, table: pa.Table, name: str, step: type[Any]) -> dict[str, Any]:
    """One step, fitted on both."""
    outputs, times = [], []
    for backend in (select("cpu"), lab.backend):
        frame, target = (
            backend.decode(coded(backend, table.select(names))) for names in (COLUMNS.get(name, NUMBERS), ["y"])
        )
        started = time.perf_counter()
        given = (frame, target) if issubclass(step, pre.CrossFittedStep) else (frame,)
        made = step(**SETTINGS.get(name, {})).fit_transform(*given)
        outputs.append(backend.to_arrow(backend.encode(made)).to_pandas().to_numpy("float64", na_value=np.nan))
        times.append(time.perf_counter() - started)
    far = np.abs(outputs[0] - outputs[1])
    return {
        "largest_difference": float(np.nanmax(far)),
        "rows_apart": int((far > 1e-6).any(axis=1).sum()),
        "seconds": times,
    }
