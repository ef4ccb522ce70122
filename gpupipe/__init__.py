"""gpupipe: tables to a trained PyTorch model, on a GPU with RAPIDS or on a CPU without.

    files -> io -> transforms -> preprocessing -> tensors -> training
             frames            columns           batches    model

Names load on first use; importing the package loads no heavy library.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import gpupipe.support.forks  # noqa: F401 - notices a fork from here on
from gpupipe.support.collector import pause_collector
from gpupipe.version import __version__ as __version__

if TYPE_CHECKING:
    from gpupipe import errors, io, models, preprocessing, selectors, tensors, training, transforms
    from gpupipe.cluster import Cluster
    from gpupipe.config import configure
    from gpupipe.evaluation.calibration import calibrate
    from gpupipe.evaluation.comparison import Comparison, compare
    from gpupipe.evaluation.cross_validation import CrossValidation, cross_validate
    from gpupipe.evaluation.fit import fit
    from gpupipe.evaluation.importance import Importance, importance
    from gpupipe.io import (
        Dataset,
        concat,
        from_frame,
        from_polars,
        read_csv,
        read_ipc,
        read_json,
        read_orc,
        read_parquet,
    )
    from gpupipe.monitoring.reports import Drift
    from gpupipe.pipeline.cluster_loader import ClusterLoader
    from gpupipe.pipeline.features import Features
    from gpupipe.pipeline.pipeline import Pipeline
    from gpupipe.saving.artifact import load, save
    from gpupipe.saving.scorer import Scorer
    from gpupipe.schema import Schema
    from gpupipe.tensors import Batch
    from gpupipe.training import Checkpoints, EarlyStopping, History, Report, Trainer

_NAMES = {
    "": "errors io models preprocessing selectors tensors training transforms",
    "cluster": "Cluster",
    "config": "configure",
    "evaluation.calibration": "calibrate",
    "evaluation.comparison": "Comparison compare",
    "evaluation.cross_validation": "CrossValidation cross_validate",
    "evaluation.fit": "fit",
    "evaluation.importance": "Importance importance",
    "io": "Dataset concat from_frame from_polars read_csv read_ipc read_json read_orc read_parquet",
    "monitoring.reports": "Drift",
    "pipeline.cluster_loader": "ClusterLoader",
    "pipeline.features": "Features",
    "pipeline.pipeline": "Pipeline",
    "saving.artifact": "load save",
    "saving.scorer": "Scorer",
    "schema": "Schema",
    "tensors": "Batch",
    "training": "Checkpoints EarlyStopping History Report Trainer",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["Batch", "Checkpoints", "Cluster", "ClusterLoader", "Comparison", "CrossValidation", "Dataset"]
__all__ += ["Drift", "EarlyStopping", "Features", "History", "Importance", "Pipeline", "Report", "Schema"]
__all__ += ["Scorer", "Trainer", "calibrate", "compare", "concat", "configure", "cross_validate", "errors", "fit"]
__all__ += ["from_frame", "from_polars", "importance", "io", "load", "models", "preprocessing", "read_csv"]
__all__ += [
    "read_ipc",
    "read_json",
    "read_orc",
    "read_parquet",
    "save",
    "selectors",
    "tensors",
    "training",
    "transforms",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from gpupipe.support.attributes import answer_names

        for part in () if name.startswith("_") else _NAMES[""].split():  # which may have the name
            importlib.import_module(f"gpupipe.{part}")
        answer_names(__name__, __all__, _suggest)(name)
    with pause_collector():  # what modules make stays
        module = importlib.import_module(f"gpupipe.{_HOME[name] or name}")
    return getattr(module, name) if _HOME[name] else module


def _suggest(name: str) -> str | None:
    """Suggest what to write for a name of pandas or Polars."""
    reader = name.replace("scan_", "read_", 1)
    if reader != name and reader in __all__:
        return f"gp.{reader}"
    if name.startswith("read_") and hasattr(sys.modules.get("pandas"), name):
        return f"gp.from_frame(pandas.{name}(...))"
    return "gp.from_frame" if name.startswith("from_") else None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
