"""Scalers, PCA and k-means: gpupipe's folds, the device's library (cuML) and scikit-learn on the host, fit by fit.

All get the same 16 columns of float32 and give the transformed rows. gpupipe gets a frame on the device, the library a
block there, scikit-learn a block on the host and fewer rows, whose seconds are scaled to all (`scaled_s`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn.cluster
import sklearn.decomposition
import sklearn.preprocessing
from stage import Stage

from gpupipe import preprocessing as pre
from gpupipe.backend import Column

ROWS, HOST_ROWS, COLUMNS = 4_000_000, 400_000, 16
COMPONENTS, CLUSTERS, ITERATIONS = 4, 16, 20
OURS: dict[str, Callable[[], Any]] = {
    "StandardScaler": pre.StandardScaler,
    "MinMaxScaler": pre.MinMaxScaler,
    "MaxAbsScaler": pre.MaxAbsScaler,
    "RobustScaler": pre.RobustScaler,
    "PCA": lambda: pre.PCA(COMPONENTS, solver="covariance"),
    "KMeans": lambda: pre.KMeans(CLUSTERS, max_iter=ITERATIONS),
}


def measure(stage: Stage) -> None:
    rows = stage.rows(ROWS)
    host = np.random.default_rng(0).standard_normal((rows, COLUMNS), dtype=np.float32)
    block = stage.backend.to_device(host)
    columns = {f"x{place}": stage.backend.xp.ascontiguousarray(block[:, place]) for place in range(COLUMNS)}
    frame = stage.backend.frame({name: Column("float32", values) for name, values in columns.items()}, rows)
    frame = stage.backend.decode(frame)
    few = host[: stage.rows(HOST_ROWS)]
    library, reference = of_library(gpu=stage.gpu), of_library(gpu=False)
    for name, ours in OURS.items():
        if not stage.room(name, 5):
            continue
        found: dict[str, Any] = {"rows": rows, "host_rows": len(few)}
        runs: dict[str, Callable[[], Any]] = {
            "gpupipe": lambda ours=ours: ours().fit_transform(frame),
            "library": lambda name=name: results(library[name](), block.copy()),
            "scikit-learn": lambda name=name: results(reference[name](), few.copy()),
        }
        found |= {
            engine: stage.tried(lambda run=run, name=name: stage.seconds(name, run, 3)) for engine, run in runs.items()
        }
        if "median" in found["scikit-learn"]:
            found["scikit-learn"]["scaled_s"] = found["scikit-learn"]["median"] * rows / len(few)
        stage.tell(name, found)


def results(estimator: Any, block: Any) -> Any:
    """The transformed rows; of k-means the labels, as gpupipe's gives them."""
    return (getattr(estimator, "fit_predict", None) or estimator.fit_transform)(block)


def of_library(*, gpu: bool) -> dict[str, Callable[[], Any]]:
    """The same estimators of cuML, or of scikit-learn, with the same settings."""
    if gpu:
        import cuml.cluster
        import cuml.decomposition
        import cuml.preprocessing

        return {
            "StandardScaler": cuml.preprocessing.StandardScaler,
            "MinMaxScaler": cuml.preprocessing.MinMaxScaler,
            "MaxAbsScaler": cuml.preprocessing.MaxAbsScaler,
            "RobustScaler": cuml.preprocessing.RobustScaler,
            "PCA": lambda: cuml.decomposition.PCA(n_components=COMPONENTS),
            "KMeans": lambda: cuml.cluster.KMeans(n_clusters=CLUSTERS, max_iter=ITERATIONS, n_init=1, random_state=0),
        }
    return {
        "StandardScaler": sklearn.preprocessing.StandardScaler,
        "MinMaxScaler": sklearn.preprocessing.MinMaxScaler,
        "MaxAbsScaler": sklearn.preprocessing.MaxAbsScaler,
        "RobustScaler": sklearn.preprocessing.RobustScaler,
        "PCA": lambda: sklearn.decomposition.PCA(COMPONENTS),
        "KMeans": lambda: sklearn.cluster.KMeans(CLUSTERS, max_iter=ITERATIONS, n_init=1, random_state=0),
    }
